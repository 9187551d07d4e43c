"""Cases of the passes over entries with a number per head, and their reference in double precision.

A machine runs them: ``block(A, dtype, index)``, ``asarray`` and ``to_host``, and ``dots``, ``multiply``,
``softmax`` and ``softmax_back`` with the arguments of :mod:`distgnn.local.array_edges`, ``scores`` and
``slope_sums`` with those of :mod:`distgnn.local.additive`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.local.edges import GRADIENT, POWERS, SCORES, SHARES, SUMS

Array = np.ndarray
SLOPE = 0.2
#: Columns of each head: one, many narrow, even and odd widths, some empty, more than a panel or warp has.
BOUNDS = [
    [0, 1], [0, 13], list(range(9)), list(range(14)), [0, 8, 16, 24, 32, 40, 48, 56, 64], [0, 3, 3, 40],
    [0, 5, 10, 100], [0, 0, 0], [0, 16, 32], [0, 1, 6, 9], [7 * k for k in range(11)], list(range(0, 82, 2)),
]  # fmt: skip
HEADS = (1, 2, 3, 4, 7, 8, 9, 16, 17, 33)
KINDS = [(dtype, index) for dtype in (np.float32, np.float64) for index in (np.int32, np.int64)]


def pattern(seed: int = 0, m: int = 23, k: int = 31) -> sp.csr_array:
    """Make a directed pattern: rows without entries, first and last too, of 1 to 9, and one of 71."""
    r = np.random.default_rng(seed)
    lengths = r.integers(0, 10, m)
    lengths[[0, 5, m - 1]], lengths[7] = 0, 71
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    return sp.csr_array((r.standard_normal(indptr[-1]), r.integers(0, k, indptr[-1]), indptr), shape=(m, k))


def rows_of(A: sp.csr_array) -> Array:
    return np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))


def close(got: Array, expected: Array, dtype: Any, told: str) -> None:
    near = {"rtol": 2e-4, "atol": 2e-5} if dtype == np.float32 else {"rtol": 1e-11, "atol": 1e-12}
    np.testing.assert_allclose(got, expected, **near, err_msg=told)


def numbers(shape: tuple[int, ...], dtype: Any, seed: int, scale: float = 1) -> Array:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def check_dots(on: Any, dtype: Any, index: Any, bounds: list[int]) -> None:
    A = pattern()
    U, V = (numbers((rows, bounds[-1]), dtype, rows) for rows in A.shape)
    out = on.asarray(np.full((A.nnz, len(bounds) - 1), np.nan, dtype))
    on.dots(on.block(A, dtype, index), on.asarray(U), on.asarray(V), bounds, out)
    products = U[rows_of(A)].astype(float) * V[A.indices]
    expected = np.transpose([products[:, a:b].sum(axis=1) for a, b in pairwise(bounds)])
    close(on.to_host(out), expected, dtype, f"dots {bounds}")


def check_multiply(on: Any, dtype: Any, index: Any, bounds: list[int]) -> None:
    """Check products of A, and of the transposed block with the values in A's order, alone and added."""
    A = pattern(1)
    order = np.argsort(A.indices, kind="stable")
    ends = np.searchsorted(A.indices[order], range(32))
    At = sp.csr_array((A.data[order], rows_of(A)[order], ends), A.shape[::-1])
    values = numbers((A.nnz, len(bounds) - 1), dtype, 2)
    for M, own, places in ((A, values, None), (At, values[order], order)):
        B, start = (numbers((rows, bounds[-1]), dtype, rows) for rows in M.shape[::-1])
        expected = np.zeros(start.shape)
        for head, (a, b) in enumerate(pairwise(bounds)):
            heads = sp.csr_array((own[:, head].astype(float), M.indices, M.indptr), M.shape)
            expected[:, a:b] = heads @ B[:, a:b].astype(float)
        for add in (False, True):
            out = on.asarray(start if add else np.full(start.shape, np.nan, dtype))
            orders = None if places is None else on.asarray(places.astype(index))
            block = on.block(M, dtype, index)
            on.multiply(block, on.asarray(values), on.asarray(B), bounds, out, add, orders)
            close(on.to_host(out), expected + add * start, dtype, f"multiply {bounds} add {add} of {M.shape}")


def check_softmax(on: Any, dtype: Any, index: Any, heads: int, scale: float, cuts: int) -> None:
    """Compare a softmax and its adjoint, of both ends and of given scores, over blocks of columns."""
    A = pattern(heads)
    u, v = (numbers((rows, heads), dtype, rows, scale) for rows in A.shape)
    g, given = numbers((A.nnz, heads), dtype, 5), numbers((A.nnz, heads), dtype, 6, scale)
    sums = u[rows_of(A)] + v[A.indices]
    for ends, x in (((u, v), np.where(sums > 0, sums, dtype(SLOPE) * sums)), (None, given)):
        P, d, signs, totals = _in_blocks(on, A, dtype, index, ends, given, g, cuts)
        told = f"softmax, {heads} heads, ends {ends is not None}, {cuts} blocks"
        powers = _by_row(A, x.astype(float), lambda s: np.exp(s - s.max(axis=0)))
        expected = _by_row(A, powers, lambda s: s / s.sum(axis=0))
        close(P, expected, dtype, told)
        np.testing.assert_array_equal(signs, x > 0, err_msg=told)
        back = g - _by_row(A, expected * g, lambda s: np.broadcast_to(s.sum(axis=0), s.shape))
        back *= expected * np.where(x > 0, 1, SLOPE)
        close(d, back, dtype, f"{told}, back")
        rows = sp.csr_array((np.ones(A.nnz), np.arange(A.nnz), A.indptr), (A.shape[0], A.nnz))
        close(totals, 1 + rows @ back, dtype, f"{told}, totals")


def check_additive(on: Any, dtype: Any, index: Any, bounds: list[int]) -> None:
    """Compare scores and their signs, and sums of slopes of A and, by an order, of the transposed block."""
    A, f = pattern(2), bounds[-1]
    L, R = (numbers((rows, f), dtype, rows) for rows in A.shape)
    a, slope = numbers((f,), dtype, 9), 0.25
    sums = L[rows_of(A)] + R[A.indices]
    slopes = np.where(sums > 0, 1, slope)
    out = on.asarray(np.full((A.nnz, len(bounds) - 1), np.nan, dtype))
    signs = on.asarray(np.full((A.nnz, -(-f // 8)), 0xA5, np.uint8))
    on.scores(on.block(A, dtype, index), *map(on.asarray, (L, R, a)), bounds, slope, out, signs)
    terms = a.astype(float) * sums * slopes
    told = f"additive {bounds}"
    expected = np.transpose([terms[:, i:j].sum(axis=1) for i, j in pairwise(bounds)])
    close(on.to_host(out), expected, dtype, told)
    np.testing.assert_array_equal(on.to_host(signs), np.packbits(sums > 0, axis=1), err_msg=told)
    order = np.argsort(A.indices, kind="stable")
    ends = np.searchsorted(A.indices[order], range(A.shape[1] + 1))
    At = sp.csr_array((A.data[order], rows_of(A)[order], ends), A.shape[::-1])
    values = numbers((A.nnz, len(bounds) - 1), dtype, 3)
    heads = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    for M, places in ((A, None), (At, order)):
        of = slice(None) if places is None else places
        start, by_entry = numbers((M.shape[0], f), dtype, 4), values[of][:, heads] * slopes[of]
        ones = sp.csr_array((np.ones(M.nnz), np.arange(M.nnz), M.indptr), (M.shape[0], M.nnz))
        for add in (False, True):
            sums_of_M = on.asarray(start if add else np.full(start.shape, np.nan, dtype))
            how = None if places is None else on.asarray(places.astype(index))
            block = on.block(M, dtype, index)
            on.slope_sums(block, on.asarray(values[of]), signs, slope, bounds, sums_of_M, add, how)
            expected = ones @ by_entry + add * start
            close(on.to_host(sums_of_M), expected, dtype, f"{told} add {add} of {M.shape}")


def _by_row(A: sp.csr_array, x: Array, of_row: Any) -> Array:
    """Compute something of each row's numbers."""
    return np.concatenate([of_row(part) for part in np.split(x, A.indptr[1:-1]) if len(part)])


def _in_blocks(
    on: Any, A: sp.csr_array, dtype: Any, index: Any, ends: Any, given: Array, g: Array, cuts: int
) -> tuple[Array, ...]:
    """Run all phases on blocks of columns; return P, gradient, signs in A's order, sums of rows plus 1."""
    (m, k), heads, first = A.shape, given.shape[1], 5
    owner = A.indices * cuts // k
    places = [np.flatnonzero(owner == c) for c in range(cuts)]
    blocks = []
    for place in places:
        indptr = np.concatenate(([0], np.cumsum(np.bincount(rows_of(A)[place], minlength=m))))
        blocks.append(on.block(sp.csr_array((A.data[place], A.indices[place], indptr), (m, k)), dtype, index))
    bits = on.asarray(np.zeros(4 * ((first + given.size) // 32 + 2), np.uint8))
    both = None if ends is None else tuple(map(on.asarray, ends))
    P, d = ([on.asarray(X[place]) for place in places] for X in (given, g))
    starts = [first + heads * sum(map(len, places[:c])) for c in range(cuts)]
    maxima, sums, back, totals = (on.asarray(np.full((m, heads), x, dtype)) for x in (-np.inf, 0, 0, 1))
    whole = SCORES | POWERS | SHARES
    for phases in (whole,) if cuts == 1 else (SCORES, POWERS, SHARES):
        for c in range(cuts):
            on.softmax(blocks[c], P[c], maxima, sums, phases, both, SLOPE, bits, starts[c])
    for phases in (SUMS | GRADIENT,) if cuts == 1 else (SUMS, GRADIENT):
        for c in range(cuts):
            on.softmax_back(blocks[c], P[c], d[c], back, totals, phases, SLOPE, bits, starts[c])
    order = np.argsort(np.concatenate(places))
    flags = np.unpackbits(on.to_host(bits))
    assert not flags[:first].any() and not flags[first + given.size :].any()
    signs = flags[first : first + given.size].reshape(-1, heads).astype(bool)
    P_, d_ = (np.concatenate([on.to_host(x) for x in parts])[order] for parts in (P, d))
    return P_, d_, signs[order], on.to_host(totals)
