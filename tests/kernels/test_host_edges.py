"""Passes over entries equal a reference: compiled for every instruction set, and by array operations."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from distgnn.arrays.csr import CSR
from distgnn.local import additive, array_edges, edges, host
from kernels import edge_cases as cases
from loops import each

BUILT = pytest.mark.skipif(not host.usable(), reason="the host kernels are not built")
WAYS = ["arrays", *(range(len(host.built().isas())) if host.usable() else ())]


def block(A, dtype, index):
    made = CSR(A.shape, A.nnz, index, dtype, np.empty(CSR.nbytes(A.shape, A.nnz, index, dtype), np.uint8))
    made.data[...], made.indices[...], made.indptr[...] = A.data, A.indices, A.indptr
    return made


@pytest.fixture(params=WAYS)
def machine(request, monkeypatch):
    """Return the passes of an instruction set, or of array operations."""
    on = {"block": block, "asarray": np.array, "to_host": np.asarray}
    names = ("dots", "multiply", "softmax", "softmax_back")
    if request.param == "arrays":
        on |= {name: getattr(additive, f"_{name}_anywhere") for name in ("scores", "slope_sums")}
        return SimpleNamespace(**on, **{name: getattr(array_edges, name) for name in names})
    monkeypatch.setattr(host, "isa", lambda: request.param)
    on |= {"scores": additive._scores, "slope_sums": additive._slope_sums}
    return SimpleNamespace(**on, **{name: getattr(edges, f"_{name}") for name in names})


@each("dtype, index", cases.KINDS)
@each("bounds", cases.BOUNDS)
def test_products_and_dot_products_by_head(machine, dtype, index, bounds):
    cases.check_dots(machine, dtype, index, bounds)
    cases.check_multiply(machine, dtype, index, bounds)


@each("dtype, index", cases.KINDS)
@each("bounds", [*cases.BOUNDS, [0, 12, 19, 64, 100, 130], [0, 7, 17, 18, 48]])
def test_additive_scores_and_sums_of_slopes(machine, dtype, index, bounds):
    cases.check_additive(machine, dtype, index, bounds)


@each("dtype, index", cases.KINDS)
@each("heads", cases.HEADS)
@each("cuts", [1, 3])
@each("scale", [1, 300])
def test_softmax_over_rows_and_its_adjoint(machine, dtype, index, heads, cuts, scale):
    """With large scores, too, whose exponentials overflow without the maximum of a row."""
    cases.check_softmax(machine, dtype, index, heads, scale, cuts)


@each("index", [np.int32, np.int64])
def test_transposition(index):
    A = cases.pattern(3)
    own, values = block(A, np.float64, index), cases.numbers((A.nnz, 3), np.float64, 1)
    expected = np.argsort(A.indices, kind="stable")
    np.testing.assert_array_equal(edges.transposition(own), expected)
    assert edges.transposition(own).dtype == index
    np.testing.assert_array_equal(edges.permuted(own, values), values[expected])


@each("dtype", [np.float32, np.float64])
def test_rows_of_some_columns(dtype):
    """U, V, B and C may be parts of wider arrays; without entries nothing is written but zeros."""
    A = block(cases.pattern(4), dtype, np.int32)
    wide = [cases.numbers((rows, 20), dtype, rows) for rows in A.shape]
    U, V = (X[:, 3:15] for X in wide)
    bounds, out = [0, 4, 12], np.empty((A.nnz, 2), dtype)
    np.testing.assert_array_equal(
        edges.dots(A, U, V, bounds, out), edges.dots(A, U.copy(), V.copy(), bounds, np.empty_like(out))
    )
    C, whole = np.full((A.shape[0], 20), 7, dtype), np.empty((A.shape[0], 12), dtype)
    if host.usable():
        edges.multiply(A, out, V, bounds, C[:, 3:15])
        edges.multiply(A, out, V.copy(), bounds, whole)
        np.testing.assert_array_equal(C[:, 3:15], whole)
        assert (C[:, :3] == 7).all() and (C[:, 15:] == 7).all() and not whole[0].any()


@BUILT
@each("flops", [6, 200])
@each("at", range(4))
def test_messages_under_way_are_driven(at, flops, monkeypatch):
    """Products with messages pending take some rows at a time, with and without an order; of a few operations
    at a time, rows without entries are a block of their own.
    """
    A = block(cases.pattern(at), np.float64, np.int64)
    values, B = cases.numbers((A.nnz, 2), np.float64, at), cases.numbers((A.shape[1], 6), np.float64, 9)
    order = np.random.default_rng(at).permutation(A.nnz) if at % 2 else None
    expected, out = np.ones((A.shape[0], 6)), np.ones((A.shape[0], 6))
    edges.multiply(A, values, B, [0, 3, 6], expected, at > 1, order)
    polls = []
    monkeypatch.setattr(edges.TUNING, "flops_between_polls", flops)
    monkeypatch.setattr(edges.progress, "pending", lambda: True)
    monkeypatch.setattr(edges.progress, "poll", lambda: polls.append(1))
    edges.multiply(A, values, B, [0, 3, 6], out, at > 1, order)
    np.testing.assert_array_equal(out, expected)
    assert len(polls) > 3


@BUILT
def test_what_c_cannot_walk_is_refused():
    ends, indices, bounds = np.array([0, 1, 2]), np.array([0, 1]), np.array([0, 4])
    X = np.ones((2, 4))
    call = host.built().edge_dots
    refused = [
        (ValueError, (ends, indices, X, X, np.array([0, 5]), np.ones((2, 1)))),
        (ValueError, (ends, indices, X, X, np.array([2, 1]), np.ones((2, 1)))),
        (ValueError, (ends, indices, X, X, bounds, np.ones((2, 2)))),
        (ValueError, (ends + 1, indices, X, X, bounds, np.ones((2, 1)))),
        (ValueError, (ends, indices, X[:1], X, bounds, np.ones((2, 1)))),
        (TypeError, (ends, indices, X, X.astype(np.float32), bounds, np.ones((2, 1)))),
        (ValueError, (ends, indices, X, X, bounds, X[:, :1])),
    ]
    for error, arguments in refused:
        with pytest.raises(error):
            call(*arguments)
