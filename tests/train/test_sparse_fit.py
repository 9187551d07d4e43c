"""Runs, models and predictions on sparse features, against the same with dense ones."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn.arrays.tuning import TUNING
from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError
from distgnn.train import Run, Settings, room

N, WORDS = 307, 150
MADE = dg.gallery.sbm(N, communities=4, features=4)
EDGES, Y = np.stack(MADE.A.nonzero()), MADE.labels


def bags(seed=0, n=N, counts=True):
    """Make bags of words: counts, or numbers whose columns differ in scale."""
    r = np.random.default_rng(seed)
    X = sp.random_array((n, WORDS), density=0.05, rng=r, format="csr", dtype=np.float32)
    X.data[:] = r.integers(1, 3, X.nnz) if counts else 10.0 ** -(X.indices % 4)
    return X


X = bags()
FAST = {"epochs": 4, "hidden": 16, "lr": 0.03, "seed": 5, "dtype": "float64"}
WAYS = [
    {"algorithm": "1d", "sparsity_aware": True, "dropout": 0.5},
    {"algorithm": "1d", "sparsity_aware": "cover", "dropout": 0.5},
    {"algorithm": "1.5d", "dropout": 0.5, "bias": True},
    {"algorithm": "2d", "bias": True, "layer_norm": True, "dropout": 0.5},
    {"algorithm": "3d", "dropout": 0.5},
    {"algorithm": "3d-split", "dropout": 0.5, "overlap": True},
    {"algorithm": "rdm", "product_order": "transform-first"},
    {"model": "sage", "algorithm": "1.5d", "dropout": 0.3},
    {"model": "gat", "heads": [2], "algorithm": "2d", "dropout": 0.3},
    {"sampler": "sage", "fanout": [5, 5], "batch_size": 32, "dropout": 0.3},
]


def fitted(comm, features, **settings):
    given = (EDGES, features, Y) if comm.rank == 0 else [None] * 3
    return dg.fit(*given, comm=comm, **FAST | settings)


@pytest.fixture
def made_dense(monkeypatch):
    """Return what lets runs make all sparse features dense from then on."""
    return lambda: monkeypatch.setattr(TUNING, "densest_features", -1.0)


def alike(ours, theirs, comm):
    np.testing.assert_allclose([r["loss"] for r in ours.history], [r["loss"] for r in theirs.history], 1e-9)
    if comm.rank == 0:
        np.testing.assert_allclose(ours.scores(), theirs.scores(), rtol=1e-7, atol=1e-10)
        assert ours.metrics == pytest.approx(theirs.metrics)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("settings", WAYS, ids=lambda s: "-".join(f"{value}" for value in s.values()))
def test_models_are_those_of_dense_features(comm, settings, made_dense, caplog) -> None:
    """On their own graph and on another, which comes sparse."""
    caplog.set_level(logging.INFO)
    other = (np.roll(EDGES, 1, axis=1)[:, :900], bags(9, N)) if comm.rank == 0 else (None, None)
    sparse = fitted(comm, X, **settings)
    answers = sparse.predict_proba(*other)
    assert not [r for r in caplog.records if "made dense" in r.message]
    made_dense()
    dense = fitted(comm, X, **settings)
    alike(sparse, dense, comm)
    expected = dense.predict_proba(*other)
    assert comm.rank or [r for r in caplog.records if "made dense: 5% of them are not 0" in r.message]
    if comm.rank == 0:
        np.testing.assert_allclose(answers, expected, rtol=1e-7, atol=1e-10)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize(
    ("features", "settings", "reason"),
    [
        (X, {"train_features": True}, "they are trained"),
        (X, {"product_order": "aggregate-first"}, "product_order=aggregate-first makes A X"),
        (X, {"standardize_features": True}, "columns are standardised"),
        (bags(counts=False), {}, "columns are standardised"),
        (bags(counts=False), {"standardize_features": False}, None),
        (X, {"normalize_features": False}, None),
    ],
    ids=lambda value: None if sp.issparse(value) else str(value),
)
def test_what_makes_features_dense_is_said(comm, features, settings, reason, made_dense, caplog) -> None:
    caplog.set_level(logging.INFO)
    sparse = fitted(comm, features, **settings)
    said = [r.message.split("made dense: ")[1] for r in caplog.records if "made dense" in r.message]
    assert comm.rank or said == ([] if reason is None else [reason])
    made_dense()
    alike(sparse, fitted(comm, features, **settings), comm)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("settings", [{"algorithm": "2d"}, {"sampler": "sage", "batch_size": 64}])
def test_a_run_is_checked_saved_and_resumed(comm, shared_tmp_path, settings) -> None:
    """The check computes with dense features; a resumed run goes on as one that was not stopped."""
    store, weights = shared_tmp_path / "words.dg", shared_tmp_path / "weights"
    dg.prepare(EDGES, X, Y, "0.6/0.2/0.2", out=store, dtype="float64", seed=5, comm=comm)
    how = FAST | settings | {"dropout": 0.4}
    run = Run(store, Settings(**how | {"check": True, "tune_gemm": True}), comm)
    assert isinstance(run.X, dg.SparseFeatures)
    assert [bool(layer) for layer in run.record["gemm"]] == [False, True]
    losses = [record["loss"] for record in run.train()]
    assert comm.rank or run.end["check"]["epochs"] == (1, 4), run.end["check"]
    saved = how | {"checkpoint": weights}
    first = Run(store, Settings(**saved | {"epochs": 2}), comm)
    found = [record["loss"] for record in first.train()]
    again = Run(store, Settings(**saved | {"resume": True}), comm)
    found += [record["loss"] for record in again.train()]
    np.testing.assert_allclose(found, losses, rtol=1e-9)
    for each in (run, first, again):
        each.grid.free()


@pytest.mark.ranks(1, 3)
def test_features_that_are_wrong_are_named(comm) -> None:
    entries = X.tocoo()
    rows, cols = entries.coords
    twice = sp.coo_array((np.append(entries.data, 1), (np.append(rows, rows[7]), np.append(cols, cols[7]))))
    bad = X.copy()
    bad.data[11] = np.inf
    for features, problem in (
        (twice, f"X: feature {cols[7]} of node {rows[7]} comes twice"),
        (bad, f"feature.* of node {rows[11]}"),
    ):
        with pytest.raises(dg.UserError, match=problem):
            fitted(comm, features)
    with pytest.raises(ArgumentError, match="cuda_graph=True"):
        fitted(comm, X, cuda_graph=True)


@pytest.mark.ranks(1, 4)
def test_room_is_asked_for_entries_not_for_columns(comm, shared_tmp_path, monkeypatch) -> None:
    """In memory that the features would not fit into with their zeros."""
    store, wide = shared_tmp_path / "words.dg", bags()
    wide.resize((N, 20 * WORDS))
    dg.prepare(EDGES, wide, Y, "0.6/0.2/0.2", out=store, dtype="float64", seed=5, comm=comm)
    there = N * 20 * WORDS * 8 // 2
    monkeypatch.setattr(Grid, "share_of_memory", lambda grid: there // comm.size)
    monkeypatch.setattr(room, "LITTLE", 0)
    how = FAST | {"hidden": 1, "epochs": 1}
    run = Run(store, Settings(**how), comm)
    assert isinstance(run.X, dg.SparseFeatures) and len(list(run.train())) == 1
    with pytest.raises(ArgumentError, match="of memory at least"):
        Run(store, Settings(**how | {"train_features": True}), comm)
    run.grid.free()
