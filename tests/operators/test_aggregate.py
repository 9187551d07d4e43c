"""Products over semirings equal dense ones, with their adjoints, on every algorithm, grid and order."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import some_grids, wide_grid
from dense_edges import DenseSemiring
from distgnn.arrays.tuning import TUNING
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, make_grid
from distgnn.operators.dense import DistDense
from distgnn.operators.one_rank import Alone, OneRank
from distgnn.operators.operator import DistSparse

from .test_edges import everywhere, matrix

WAYS = [(name, False) for name in ALGORITHMS] + [(name, True) for name in SPARSITY_AWARE]
SEMIRINGS = [(r, c) for r in ("sum", "mean", "max", "min") for c in ("times", "plus", "pattern")]


def compare(comm: Any, A: Any, M: sp.csr_array, H: np.ndarray, semirings: Any = SEMIRINGS) -> None:
    """Run products and adjoints, one after another, and compare them."""
    close = {"rtol": 1e-12, "atol": 1e-12} if A.dtype == np.float64 else {"rtol": 1e-4, "atol": 1e-4}
    G = np.random.default_rng(3).standard_normal((M.shape[0], H.shape[1]))
    H_, G_ = (dg.scatter(X.astype(A.dtype), to) for X, to in ((H, A.input_layout), (G, A.output_layout)))
    for reduce, combine in semirings:
        expected, told = DenseSemiring(M, H, reduce, combine), f"{reduce} {combine} of {A!r}"
        made, picked = A.aggregate(H_, reduce, combine, keep=True)
        back = A.aggregate_back(G_, picked)
        np.testing.assert_allclose(everywhere(comm, made), expected.product, err_msg=told, **close)
        if reduce in ("max", "min"):
            np.testing.assert_array_equal(everywhere(comm, picked.nodes()), expected.nodes, err_msg=told)
        if np.isfinite(H).all():
            np.testing.assert_allclose(everywhere(comm, back), expected.back(G), err_msg=told, **close)


def whole(r: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Return small whole numbers of either sign, many of them equal."""
    return r.integers(-2, 3, shape).astype(np.float64)


@pytest.mark.ranks(1, 3, 4, 8)
@pytest.mark.parametrize(("name", "aware"), WAYS)
def test_every_semiring_equals_a_dense_one(comm, name, aware, backend):
    """Directed, with empty rows and columns; in the order of the nodes, and in others."""
    for number, shape in enumerate(some_grids(name, comm.Get_size())):
        r = np.random.default_rng(number)
        M = matrix(r, 29 + 4 * number)
        M.data = np.where(r.random(M.nnz) < 0.5, np.sign(M.data), M.data)
        grid = make_grid(comm, name, shape, backend=backend)
        grid.overlap = number % 2 == 0
        parts = None if number % 2 else r.integers(0, shape.get("rows", 1), M.shape[0])
        A = dg.distribute(M, grid, name, aware, parts=parts)
        compare(comm, A, M, whole(r, (M.shape[1], 5 + number)))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("name", "aware"), WAYS)
def test_messages_beyond_the_eager_limit(comm, name, aware, overlap, monkeypatch):
    """Panels and pairs of 12 kB and more in float32, in several row blocks, many operations in a row."""
    monkeypatch.setattr(TUNING, "small_sum", 1 << 12)
    monkeypatch.setattr(TUNING, "smallest_sum_block", 1 << 13)
    r = np.random.default_rng(5)
    M = matrix(r, 150, np.float32, 0.3)
    grid = make_grid(comm, name, backend="numpy")
    grid.overlap = overlap
    A = dg.distribute(M, grid, name, aware, parts=r.integers(0, grid.shape.get("rows", 1), 150))
    semirings = [("max", "pattern"), ("min", "plus"), ("mean", "pattern"), ("max", "times")]
    compare(comm, A, M, whole(r, (150, 64)), semirings)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(("name", "aware"), WAYS)
def test_what_is_missing_and_what_is_infinite(comm, name, aware, backend):
    """NaN goes through, to the smallest node that has one; infinite numbers are numbers; 0 inf is NaN."""
    r = np.random.default_rng(2)
    M, H = matrix(r, 31), whole(r, (31, 6))
    H[3, 1:4], H[17, 2], H[9], H[20] = np.nan, np.nan, np.inf, -np.inf
    M[M.nonzero()[0][0], M.nonzero()[1][0]] = 0
    grid = make_grid(comm, name, backend=backend)
    A = dg.distribute(M, grid, name, aware, parts=r.integers(0, grid.shape.get("rows", 1), 31))
    compare(comm, A, M, H, [s for s in SEMIRINGS if s[0] in ("max", "min")])


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("name", "aware"), WAYS)
def test_words_are_those_of_a_product(comm, name, aware):
    """Words of ``A @ H`` and ``A.T @ G``; where ranks sum, max and min send a node with each number."""
    n, f = 64, 16
    M = matrix(np.random.default_rng(6), n)
    A = dg.distribute(M, wide_grid(comm, name, "numpy"), name, aware)
    H, G = (dg.scatter(np.ones((n, f)), to) for to in (A.input_layout, A.output_layout))
    A @ H, A.T @ G, A.aggregate(H, "mean")
    forward, back = words(lambda: A @ H), words(lambda: A.T @ G)
    for reduce, combine in SEMIRINGS:
        picks = reduce in ("max", "min")
        _, picked = A.aggregate(H, reduce, combine, keep=True)
        made = words(lambda how=(reduce, combine): A.aggregate(H, *how))
        expected = dict(forward)
        if picks and "sums" in expected:
            expected["sums"] *= 2
        assert made == expected, (reduce, combine)
        made = words(lambda kept=picked: A.aggregate_back(G, kept))
        expected = dict(back)
        if name == "3d-split" and picks and "G" in expected:
            expected["G"] *= 2
        if not aware and name in ("1d", "1.5d", "rdm") and (picks or combine != "times"):
            sent, usual = (comm.allreduce(sum(counts.values())) for counts in (made, expected))
            assert sent == usual or (name == "1.5d" and sent == 2 * n * f < usual), (reduce, combine)
        else:
            assert made == expected, (reduce, combine)


def words(call: Any) -> dict[str, int]:
    """Return the words of a call, by matrix."""
    with dg.Ledger() as book:
        call()
    found: dict[str, int] = {}
    for entry in book.entries():
        if entry["words"]:
            found[entry["matrix"]] = found.get(entry["matrix"], 0) + entry["words"]
    return found


@pytest.mark.ranks(1, 3)
def test_other_words_and_operands_are_refused_in_one_line(comm):
    M = matrix(np.random.default_rng(8), 20)
    grid = make_grid(comm, "1d", backend="numpy")
    A, B, C = (dg.distribute(M, grid, "1d", aware) for aware in (False, True, "cover"))
    H, G = (dg.scatter(np.ones((20, width)), A.input_layout) for width in (4, 5))
    _, picked = A.aggregate(H, "max", keep=True)
    _, total = A.aggregate(H, keep=True)
    short = dg.distribute(M.astype(np.float32), grid, "1d")
    refused = {
        "reduce=product: expected sum, mean, max, min": lambda: A.aggregate(H, "product"),
        "combine=second: expected times, plus, pattern": lambda: A.aggregate(H, "max", "second"),
        "max and pattern takes the entries of a row together": lambda: C.aggregate(H, "max"),
        "mean and times takes": lambda: C.aggregate(H, "mean", "times"),
        "expected what A.aggregate.H, …, keep=True. returns": lambda: A.aggregate_back(H, None),
        "is of another operator": lambda: B.aggregate_back(H, picked),
        "G is .20, 5., the product was .20, 4.": lambda: A.aggregate_back(G, picked),
        "takes from all neighbours": lambda: total.nodes(),
        "A holds float32, H holds float64": lambda: short.aggregate(H, "max"),
        "H must be a DistDense": lambda: A.aggregate(np.ones((20, 4)), "max"),
    }
    for message, call in refused.items():
        with pytest.raises((dg.UserError, ValueError, TypeError), match=message) as raised:
            call()
        assert "\n" not in str(raised.value)
    for made in (2 * A, A.T):  # has what it can do
        assert not hasattr(made, "aggregate") and not hasattr(made, "sddmm")
        with pytest.raises(dg.UserError, match="has no aggregate: take that of what it is made of"):
            made.aggregate(H)
    product = everywhere(comm, C.aggregate(H, "sum", "times"))
    np.testing.assert_allclose(product, M @ np.ones((20, 4)))


@pytest.mark.ranks(1, 4)
def test_a_matrix_of_one_rank(comm, backend):
    """The block of a minibatch, its columns in any order."""
    M, r = matrix(np.random.default_rng(9), 20)[:12], np.random.default_rng(0)
    grid = make_grid(comm, "1d", backend=backend)
    order = np.concatenate([first + r.permutation(last - first) for first, last in pairwise(M.indptr)])
    alone = Alone(grid)
    A = DistSparse(OneRank(alone, M.shape, M.data[order], M.indices[order], M.indptr, np.float64))
    X = whole(r, (20, 5))
    H, G = (DistDense(backend.asarray(x), alone.whole, x.shape) for x in (X, X[:12]))
    for reduce, combine in SEMIRINGS:
        expected = DenseSemiring(M, X, reduce, combine)
        made, picked = A.aggregate(H, reduce, combine, keep=True)
        np.testing.assert_allclose(backend.to_host(made.block), expected.product, atol=1e-12)
        back = backend.to_host(A.aggregate_back(G, picked).block)
        np.testing.assert_allclose(back, expected.back(X[:12]), atol=1e-12)
