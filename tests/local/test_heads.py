"""Products with a vector for each head, and their adjoints, against sums in double precision."""

from __future__ import annotations

import numpy as np

from distgnn.arrays.tuning import TUNING
from distgnn.local import heads
from loops import each

#: Rows, columns, the first of them, columns of a head, the first head and heads that are there.
PARTS = [
    (7, 16, 0, 2, 0, 8), (40, 5, 0, 5, 0, 1), (0, 6, 0, 3, 0, 2), (1, 1, 0, 1, 0, 1), (33, 120, 0, 15, 0, 8),
    (5, 700, 0, 350, 0, 2), (20, 5, 3, 2, 1, 2), (9, 4, 8, 3, 0, 3), (9, 4, 0, 3, 2, 2), (11, 6, 6, 3, 2, 0),
    (12, 0, 4, 2, 0, 3), (600, 33, 0, 33, 0, 1), (6, 9, 0, 1, 0, 9),
]  # fmt: skip


def close(on, found, expected, dtype):
    scale = 1e-5 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(on.to_host(found), expected, rtol=scale, atol=10 * scale)


@each("dtype", [np.float32, np.float64])
@each("count", [1, 2])
@each("part", PARTS)
def test_heads(backend, monkeypatch, dtype, count, part):
    """Parts of columns and of heads that meet, or do not, of one and of two vectors."""
    monkeypatch.setattr(TUNING, "gemm_rows", 8)
    monkeypatch.setattr(TUNING, "summed_rows", 16)
    check(backend, heads.sums, heads.add, heads.dots, dtype, count, part)


def check(on, sums, add_to, dots_of, dtype, count, part):
    """Compare the products of a part, by these functions, with matrices that are 0 outside of heads."""
    random = np.random.default_rng(3)
    m, f, first, width, head, number = part
    X = random.standard_normal((m, f)).astype(dtype)
    vectors = [random.standard_normal(f).astype(dtype) for _ in range(count)]
    given = [random.standard_normal((m, number)).astype(dtype) for _ in range(count)]
    own = (first + np.arange(f)) // width - head
    of_head = (own[:, None] == np.arange(number)).astype(float)
    where, given_vectors = (first, width, head), list(map(on.asarray, vectors))
    for add in (False, True):
        out = [on.asarray(D.copy()) if add else on.asarray(np.full_like(D, np.nan)) for D in given]
        sums(on.asarray(X), given_vectors, out, *where, add)
        for a, D, made in zip(vectors, given, out, strict=True):
            close(on, made, X * a.astype(float) @ of_head + (D if add else 0), dtype)
    numbers, room = list(map(on.asarray, given)), on.asarray(X.copy())
    add_to(room, numbers, given_vectors, *where)
    terms = sum(D.astype(float) @ of_head.T * a for a, D in zip(vectors, given, strict=True))
    close(on, room, X + terms, dtype)
    dots = dots_of(on.asarray(X), numbers, *where)
    assert dots.dtype == dtype
    close(on, dots, np.array([(X * (D.astype(float) @ of_head.T)).sum(axis=0) for D in given]), dtype)


@each("dtype", [np.float32, np.float64])
@each("shape", [(0, 3), (1, 1), (50, 41), (700, 8), (3, 0)])
def test_scaled_dots(backend, monkeypatch, dtype, shape):
    """Sums of columns of a product, of numbers that are scaled afterwards."""
    monkeypatch.setattr(TUNING, "cached_numbers", 64)
    monkeypatch.setattr(TUNING, "summed_rows", 16)
    on, random = backend, np.random.default_rng(4)
    X, D = (random.standard_normal(shape).astype(dtype) for _ in range(2))
    scale, room = random.standard_normal(shape[1]).astype(dtype), on.asarray(D.copy())
    made = heads.scaled_dots(on.asarray(X), room, on.asarray(scale))
    assert made.dtype == dtype
    close(on, made, (X.astype(float) * D).sum(axis=0, keepdims=True), dtype)
    np.testing.assert_array_equal(on.to_host(room), D * scale)
