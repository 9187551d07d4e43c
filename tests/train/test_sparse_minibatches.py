"""Minibatches on sparse features: as on the same features dense, and what is fetched."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import wide_grid
from distgnn.arrays.csr import CSR
from distgnn.nn import GAT, GCN, Adam, GATv2, SageMean
from distgnn.sampling import GraphSage, Ladies, Replicated
from distgnn.sampling.fetch import Features
from distgnn.train import MinibatchTraining

N, WIDTH, CLASSES = 311, 140, 4


def problem():
    r = np.random.default_rng(5)
    A = sp.csr_array(sp.random_array((N, N), density=0.02, rng=r) + sp.eye_array(N))
    X = sp.random_array((N, WIDTH), density=0.06, rng=r, format="csr")
    return A, X, r.integers(0, CLASSES, N).astype(np.int32), r.integers(0, 3, N).astype(np.uint8)


A, X, LABELS, SPLIT = problem()


@pytest.mark.ranks(1, 3, 4)
def test_rows_are_fetched_as_they_are(comm, backend):
    """In any order, with repeats, of no nodes on some rank; two words of each entry and one of each row."""
    grid = wide_grid(comm, "1.5d", backend)
    operator = dg.distribute(A, grid, "1.5d")
    features = Features(dg.scatter(X, operator.input_layout))
    r = np.random.default_rng(comm.rank)
    for ids in (r.integers(0, N, 200), np.arange(N) if comm.rank else np.arange(0), np.arange(0)):
        with dg.Ledger() as ledger:
            rows = features.fetch(ids)
        assert isinstance(rows, CSR) and rows.dtype == X.dtype
        np.testing.assert_array_equal(rows.to_scipy().toarray(), X[ids].toarray())
        first, last = operator.input_layout.row_range
        away = np.unique(ids[(ids < first) | (ids >= last)])
        entries = sum(e["words"] for e in ledger.entries() if e["matrix"] == "features")
        assert entries == 2 * X[away].nnz
    grid.free()


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("network", [GCN, SageMean, GAT, GATv2])
def test_minibatches_train_as_on_dense_features(comm, network, backend):
    """With dropout, and with a sampler that leaves neighbours out."""
    grid = wide_grid(comm, "1.5d", backend)
    operator = dg.distribute(A, grid, "1.5d")
    found = []
    for whole in (X, X.toarray()):
        model = network(operator, [WIDTH, 16, CLASSES], dropout=0.4, bias=True, seed=2)
        sampler = GraphSage(Replicated(A, backend=grid.backend), [4, 3], seed=1)
        if network is GCN:
            sampler = Ladies(Replicated(A, backend=grid.backend), [60, 60], seed=1)
        features, targets = dg.scatter(whole, model.input_layout), model.targets(LABELS, SPLIT)
        training = MinibatchTraining(model, features, targets, sampler, 24, 2, bulk=2, seed=6)
        records = list(training.train(Adam(0.05), 2))
        found.append([(record["loss"], record["val_acc"]) for record in records])
        found.append([p.block.copy() for p in model.parameters])
    np.testing.assert_allclose(found[0], found[2], rtol=1e-9)
    for ours, theirs in zip(found[1], found[3], strict=True):
        np.testing.assert_allclose(*map(backend.to_host, (ours, theirs)), rtol=1e-8, atol=1e-10)
    grid.free()
