"""Networks on sparse features: as on the same features dense, and as a serial network in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import some_grids, wide_grid
from distgnn.nn.custom import CustomLayer
from distgnn.nn.features import are_counts, normalize_rows, scaling_of
from distgnn.nn.gat import GAT
from distgnn.nn.gatv2 import GATv2
from distgnn.nn.optim import make
from distgnn.nn.sage import SageMean
from distgnn.nn.whole_weights import collect
from distgnn.operators import ALGORITHMS, make_grid
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.train.full_graph import train
from oracle import GCNReference

N, F, CLASSES = 401, 120, 6


class Words:
    """A directed graph whose nodes have a few of many words each."""

    def __init__(self, n=N, width=F, seed=0):
        r = np.random.default_rng(seed)
        self.A = sp.csr_array(sp.random_array((n, n), density=0.02, rng=r) + sp.eye_array(n))
        self.X = sp.random_array((n, width), density=0.05, rng=r, format="csr")
        self.X.data[:] = r.integers(1, 4, self.X.nnz)
        self.labels = r.integers(0, CLASSES, n).astype(np.int32)
        self.split = r.integers(0, 4, n).astype(np.uint8)


def losses(A, features, words, widths, epochs, network=dg.nn.GCN, **options):
    model = network(A, widths, seed=3, **options)
    X = dg.scatter(features, model.input_layout, A.dtype)
    targets = model.targets(words.labels, words.split)
    records = list(train(model, X, targets, make("adam", 0.02), epochs))
    weights = [collect(p.matrix) for p in model.parameters]
    return [(r["loss"], r["val_acc"]) for r in records], weights, dg.gather(model.forward(X))


def compare(ours, theirs, rtol):
    for (loss, accuracy), (expected, score) in zip(ours[0], theirs[0], strict=True):
        np.testing.assert_allclose((loss, accuracy), (expected, score), rtol=rtol)
    for W, V in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(W.reshape(V.shape), V, rtol=100 * rtol, atol=100 * rtol)


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_network_trains_as_on_dense_features(comm, name, backend):
    """Dropout on, messages above MPI's eager limit; the same as a serial network that shares no code."""
    words = Words() if backend.name == "numpy" else Words(57, 31)
    widths, epochs = [words.X.shape[1], 20, 9, CLASSES], 3
    how = {"dropout": 0.4, "bias": True}
    oracle = GCNReference(words.A, widths, seed=3, dtype=np.float64, **how)
    args = words.X.toarray(), words.labels, words.split, epochs, "adam"
    serial = list(oracle.train(*args, lr=0.02, weight_decay=0.0, momentum=0.0))
    expected = [(r["loss"], r["val_acc"]) for r in serial], oracle.weights + oracle.biases
    for sizes in some_grids(name, comm.Get_size()):
        A = dg.distribute(words.A, make_grid(comm, name, sizes, backend=backend), name)
        ours = losses(A, words.X, words, widths, epochs, **how)
        compare(ours, losses(A, words.X.toarray(), words, widths, epochs, **how), 1e-9)
        compare(ours, expected, 1e-9)
        A.grid.free()


@pytest.mark.ranks(1, 3, 4)
def test_features_are_scaled_as_dense_ones_are(comm, backend):
    """Also where the block of a rank has no entry."""
    words = Words(57, 31)
    some = words.X.tolil()
    some[:, 8:22] = 0
    for sizes in ({"rows": comm.Get_size(), "cols": 1}, {"rows": 1, "cols": comm.Get_size()}):
        grid = make_grid(comm, "2d", sizes, backend=backend)
        layout = dg.distribute(words.A, grid, "2d").input_layout
        for whole in (words.X, words.X * 0.5, -words.X, some.tocsr() * 0.7):
            X, D = dg.scatter(whole, layout), dg.scatter(whole.toarray(), layout)
            assert are_counts(X) == are_counts(D) == (whole is words.X)
            rows = backend.asarray(np.arange(X.block.shape[0]) % 3 == 1)
            (ours, apart), (theirs, differ) = scaling_of(X, rows), scaling_of(D, rows)
            assert apart == pytest.approx(differ)
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)
            _ = X.transposed
            normalize_rows(X)
            normalize_rows(D)
            expected = backend.to_host(D.block)
            np.testing.assert_allclose(X.block.to_scipy().toarray(), expected, rtol=1e-15)
            np.testing.assert_allclose(X.transposed.to_scipy().toarray(), expected.T, rtol=1e-15)
        grid.free()


class OwnLayer(CustomLayer):
    def propagate(self, A, H):
        T = A @ H
        return self.times(A, T), (T,)


class OwnNetwork(dg.nn.GCN):
    convolution = OwnLayer


@pytest.mark.ranks(1, 3)
def test_what_a_network_cannot_take_is_refused(comm):
    words = Words(57, 31)
    A = dg.distribute(words.A, make_grid(comm, "1d"), "1d")
    for options, problem in (
        ({"product_order": "aggregate-first"}, "product_order=aggregate-first makes A X; X.to_dense"),
        ({"residual": True}, "residual connections add the features"),
    ):
        model = dg.nn.GCN(A, [31, 31, CLASSES], **options)
        X = dg.scatter(words.X, model.input_layout)
        with pytest.raises(dg.UserError, match=problem):
            model.forward(X)
        assert np.isfinite(model.forward(X.to_dense()).block).all()
    with pytest.raises(dg.UserError, match="X=sparse features: OwnLayer multiplies dense matrices"):
        OwnNetwork(A, [31, 8, CLASSES]).forward(X)
    model = dg.nn.GCN(A, [31, 8, CLASSES])
    bad = words.X.copy()
    bad.data[40] = np.nan
    row, column = (int(place[40]) for place in bad.tocoo().coords)
    X = dg.scatter(bad, model.input_layout)
    assert isinstance(X, SparseFeatures)
    targets = model.targets(words.labels, words.split)
    problem = f"X=nan: is a feature of node {row}, column {column}; features must be finite"
    with pytest.raises(dg.UserError, match=problem):
        list(train(model, X, targets, make("adam", 0.02), 1))
    A.grid.free()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("network", [SageMean, GAT, GATv2])
def test_other_networks_train_as_on_dense_features(comm, name, network, backend):
    if network is SageMean and name == "3d":
        pytest.skip("3d has no SAGE")
    words = Words(203, 90) if backend.name == "numpy" else Words(57, 31)
    widths, options = [words.X.shape[1], 16, CLASSES], {"dropout": 0.4, "bias": True}
    if network is not SageMean:
        options |= {"heads": 2, "attention_dropout": 0.3}
    A = dg.distribute(words.A, wide_grid(comm, name, backend), name)
    how = words, widths, 2, network
    ours = losses(A, words.X, *how, **options)
    compare(ours, losses(A, words.X.toarray(), *how, **options), 1e-9)
    A.grid.free()
