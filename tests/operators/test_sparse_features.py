"""Sparse features: how they are cut, and their products with weights, against dense ones and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import some_grids
from distgnn.errors import ArgumentError
from distgnn.layout import Cut, Layout, NodeOrder
from distgnn.operators import ALGORITHMS, make_grid
from distgnn.operators.weights import ReplicatedWeights

from .counts import check_price

N, F = 301, 97


def features(dtype=np.float64, seed=0, rows=N, width=F):
    """Make features of which some rows and columns are empty, and one stored entry is 0."""
    r = np.random.default_rng(seed)
    X = sp.random_array((rows, width), density=0.07, rng=r, dtype=np.float64, format="csr")
    keep = np.ones(X.nnz, bool)
    keep[X.indptr[5] : X.indptr[9]] = False
    keep &= X.indices != 3
    entries = sp.coo_array(X)
    values = entries.data[keep].astype(dtype)
    values[7] = 0
    return sp.csr_array((values, (entries.row[keep], entries.col[keep])), shape=X.shape)


BACKWARDS = NodeOrder("backwards", "backwards", lambda first, last: N - 1 - np.arange(first, last))


def layouts(grid):
    return [
        Layout(grid, Cut(("rows", "cols")), Cut()),
        Layout(grid, Cut(("rows",), order=BACKWARDS), Cut(("cols",))),
        Layout(grid, Cut(("cols",), np.array([0, 7, N])), Cut(("rows",))),
    ]


@pytest.mark.ranks(1, 4)
def test_blocks_are_those_of_the_layout(comm, backend):
    size = comm.Get_size()
    grid = dg.Grid(comm, backend=backend, rows=max(size // 2, 1), cols=2 if size > 1 else 1)
    whole = features()
    for layout in layouts(grid)[: 3 if size > 1 else 2]:
        X = dg.scatter(whole if grid.rank == 0 else None, layout)
        D = dg.scatter(whole.toarray() if grid.rank == 0 else None, layout)
        assert isinstance(X, dg.SparseFeatures) and X.shape == D.shape and X.dtype == D.dtype
        assert (X.row_range, X.col_range) == (D.row_range, D.col_range) and X.layout is layout
        np.testing.assert_array_equal(X.block.to_scipy().toarray(), backend.to_host(D.block))
        made = X.to_dense()
        np.testing.assert_array_equal(backend.to_host(made.block), backend.to_host(D.block))
        turned = X.transposed
        np.testing.assert_array_equal(turned.to_scipy().toarray(), backend.to_host(D.block).T)
        assert X.astype(np.float32).dtype == np.float32
    grid.free()


@pytest.mark.ranks(1, 3)
def test_what_is_no_matrix_of_features_is_refused_on_every_rank(comm):
    grid = dg.Grid(comm, backend="numpy", rows=comm.Get_size())
    layout = Layout(grid, Cut(("rows",), np.array([0, *[N] * comm.Get_size()])), Cut())
    twice = sp.coo_array((np.ones(3), ([4, 2, 4], [1, 0, 1])), shape=(N, F))
    beyond = sp.csr_array(features())
    beyond.indices = beyond.indices.copy()
    beyond.indices[17] = F
    for X, problem in (
        (twice, "X=coo_array: the entry in row 4, column 1 stands twice"),
        (beyond, "column numbers must lie in 0..96"),
        (features(rows=9), "has 9 rows, the layout cuts 301"),
        (features().astype(complex), "complex"),
    ):
        with pytest.raises(ArgumentError, match=problem):
            dg.scatter(X if grid.rank == 0 else None, layout)
    A = dg.distribute(sp.eye_array(N), grid, "1d")
    with pytest.raises(TypeError, match=r"got SparseFeatures; to_dense\(\) makes one"):
        A @ dg.scatter(features(), A.input_layout)
    grid.free()


@pytest.mark.ranks(1, 3, 4, 6)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_products_with_weights_are_those_of_the_whole_at_their_price(comm, name, backend):
    """Forward and backward, twice, in the layouts of the weights and of the first layer's input."""
    n, f, h = (999, 200, 24) if backend.name == "numpy" else (61, 23, 7)
    whole, r = features(rows=n, width=f), np.random.default_rng(1)
    W0, G0 = r.standard_normal((f, h)), r.standard_normal((n, h))
    A0 = sp.eye_array(n)
    for sizes in some_grids(name, comm.Get_size()):
        A = dg.distribute(A0, make_grid(comm, name, sizes, backend=backend), name)
        for weights in (A.weights, ReplicatedWeights(A.input_layout)):
            X = dg.scatter(whole, weights.input_layout)
            W, G = dg.scatter(W0, weights.weight_layout), dg.scatter(G0, weights.output_layout)
            times, back = weights.prices(n, (f, h), 8, need_input=False, sparse=True)
            for _ in range(2):
                check_price(lambda w=weights, X=X, W=W: w.times(X, W), times, sizes)
                check_price(lambda w=weights, X=X, G=G: w.backward(X, G), back, sizes)
                Z, dW = dg.gather(weights.times(X, W)), dg.gather(weights.backward(X, G)[0])
                if comm.Get_rank() == 0:
                    np.testing.assert_allclose(Z, whole @ W0, rtol=1e-11, atol=1e-12)
                    np.testing.assert_allclose(dW, whole.T @ G0, rtol=1e-11, atol=1e-12)
            with pytest.raises(ValueError, match="sparse features have no gradient"):
                weights.backward(X, G, W)
        A.grid.free()


@pytest.mark.ranks(1, 3)
def test_other_shapes_and_orders_of_other_nodes_are_refused(comm):
    """On all ranks; of dense matrices, too."""

    class Reversed:
        name, key = "reversed", "r"

        def permutation(self, first, last):
            return np.arange(20)[::-1][first:last]

    grid = make_grid(comm, "1d", backend="numpy")
    plain = Layout(grid, Cut(("rows",)), Cut())
    ordered = Layout(grid, Cut(("rows",), order=Reversed()), Cut())
    with pytest.raises(dg.UserError, match="expected a matrix, got an array of shape"):
        dg.scatter(sp.coo_array(np.ones(20)) if comm.Get_rank() == 0 else None, plain)
    for whole in (np.ones((15, 3)), np.ones((30, 3))):
        for given in (whole, sp.csr_array(whole)):
            with pytest.raises(dg.UserError, match="orders other nodes than"):
                dg.scatter(given if comm.Get_rank() == 0 else None, ordered)
    grid.free()
