"""Features standardised by their training nodes: against NumPy, on every grid, in checkpoints and exports."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import distgnn as dg
from distgnn.nn.features import scaling_of, standardize
from distgnn.operators import make_grid
from distgnn.train import Predictor, Run, Settings, export_weights
from loops import each

N = 600  # x 9 columns of float32 are above the eager limit, on four ranks too
RNG = np.random.default_rng(0)
Y = np.arange(N) % 3
SPLIT = np.where(Y == 1, 1, RNG.integers(1, 4, N))  # training nodes differ from the others
SPLIT[:30] = 0
EDGES = np.stack([np.arange(N), (np.arange(N) + 3 * RNG.integers(1, N // 3, N)) % N])
AGE = 40 + 5 * Y + RNG.normal(size=N)
X = np.column_stack([AGE, RNG.normal(60_000, 9_000, N), np.full(N, 2020), np.zeros(N), RNG.random((N, 5))])
X = X.astype(np.float32)


def standardized(given: np.ndarray) -> np.ndarray:
    """Return features standardised by the training nodes, in double precision."""
    rows = given[(SPLIT == 1) & (Y >= 0)].astype(np.float64)
    spread = np.sqrt(((rows - rows.mean(axis=0)) ** 2).mean(axis=0))
    return ((given - rows.mean(axis=0)) / np.where(spread > 1e-9, spread, 1)).astype(np.float32)


def fitted(comm, given: np.ndarray, **settings):
    how = {"epochs": 4, "lr": 0.05, "directed": False, "comm": comm}
    return dg.fit(EDGES, given, Y, SPLIT, **how | settings)


WAYS = [
    {"algorithm": "1d"}, {"algorithm": "2d"}, {"algorithm": "1.5d"}, {"algorithm": "3d"},
    {"algorithm": "1d", "model": "gat"},
    {"algorithm": "1.5d", "sampler": "sage", "fanout": [3, 3], "batch_size": 50},
    {"algorithm": "1d", "train_features": True},
]  # fmt: skip


@pytest.mark.ranks(1, 4)
@each("way", WAYS)
def test_losses_are_those_of_features_that_numpy_standardised(comm, way) -> None:
    ours = fitted(comm, X, standardize_features=True, dtype="float64", check=True, **way)
    theirs = fitted(comm, standardized(X), standardize_features=False, dtype="float64", **way)
    losses = [[record["loss"] for record in model.history] for model in (ours, theirs)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)  # features of theirs are float32
    assert ours.settings.standardize_features is True


@pytest.mark.ranks(1, 4, 6)
def test_columns_on_every_grid(comm, backend) -> None:
    """A constant column and one of zeros keep their spread; rows beside the training nodes do not count."""
    rows = SPLIT == 1
    for algorithm in ("2d", "3d", "1.5d"):
        A = dg.distribute(np.eye(N, dtype=np.float32), make_grid(comm, algorithm, backend=backend), algorithm)
        H = dg.scatter(X, A.input_layout)
        here = H.grid.backend.asarray(rows[slice(*H.row_range)])
        scaling, differ = scaling_of(H, here)
        standardize(H, scaling)
        whole = dg.gather(H)
        np.testing.assert_allclose(scaling.mean, X[rows].mean(axis=0, dtype=np.float64), rtol=1e-12)
        assert scaling.spread[2:4].tolist() == [1, 1]
        square = np.sqrt((X[rows].astype(np.float64) ** 2).mean(axis=0))
        assert differ == pytest.approx(square.max() / square[square > 0].min())
        assert comm.allgather(differ) == [differ] * comm.size
        if comm.rank == 0:
            np.testing.assert_allclose(whole, standardized(X), rtol=1e-5, atol=1e-5)


@each("given, expected", [
    (X, True), (X[:, [0, 2]], True), (X[:, 4:], False), (X[:, :1], False), (X[:, 3:4], False),
    (np.column_stack([X[:, 4:], X[:, 3]]), False), (RNG.random((N, 4)) < 0.1, False),  # counts
    (np.where(RNG.random((N, 40)) < 0.05, 1 + RNG.random((N, 40)), 0), False),  # as of words, in parts
    (np.column_stack([AGE, Y == 0]), True),
])  # fmt: skip
def test_the_default_goes_by_scales(given, expected: bool, caplog) -> None:
    for recipe in ("kipf-welling", "graphsage", "plain"):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "distgnn"):
            model = fitted(None, given.astype(np.float32), epochs=1, recipe=recipe)
        lines = [line for line in caplog.messages if "standardize_features=False" in line]
        assert model.settings.standardize_features is (expected and recipe != "plain")
        assert len(lines) == model.settings.standardize_features
        assert model.settings.normalize_features is False or not expected


@pytest.mark.ranks(1, 3)
def test_age_beside_income_is_learned(comm) -> None:
    how = {"directed": False, "comm": comm, "epochs": 60, "lr": 0.05}
    default, off = (dg.fit(EDGES, X, Y, standardize_features=given, **how) for given in (None, False))
    assert off.train_score < 0.6 and default.train_score > 0.9 < default.test_score


@pytest.mark.ranks(1, 4)
def test_the_scaling_is_that_of_the_training_wherever_the_network_is_applied(comm, shared_tmp_path) -> None:
    a, b, weights = (shared_tmp_path / name for name in ("a.dg", "b.dg", "weights"))
    dg.prepare(EDGES, X, Y, SPLIT, out=a, directed=False, comm=comm)
    run = Run(a, Settings(epochs=4, lr=0.05, checkpoint=weights, algorithm="2d"), comm)
    list(run.train())
    assert run.settings.standardize_features is True and run.model.layers
    saved = shared_tmp_path / "saved"
    model = fitted(comm, X, dtype="float32")
    model.save(saved)
    comm.Barrier()
    dg.prepare(EDGES, X, Y, np.roll(SPLIT, 1), out=b, directed=False, comm=comm)  # other nodes to train
    applied = [(a, weights), (a, saved), (b, weights)]
    answers = [
        Predictor(store, path, comm).write(shared_tmp_path / f"{k}.npz")
        for k, (store, path) in enumerate(applied)
    ]
    if comm.rank == 0:
        for answer in answers:
            with np.load(answer) as found:
                np.testing.assert_allclose(found["probability"], model.scores(), rtol=1e-3, atol=1e-5)
        assert export_weights(weights, shared_tmp_path / "m.npz")["standardize_features"] is True
        with np.load(shared_tmp_path / "m.npz") as found:
            rows = X[(SPLIT == 1)].astype(np.float64)
            np.testing.assert_allclose(found["features.mean"], rows.mean(axis=0), rtol=1e-9)
            np.testing.assert_allclose(found["features.spread"][:2], rows.std(axis=0)[:2], rtol=1e-6)
            assert found["features.spread"][2:4].tolist() == [1, 1]
    comm.Barrier()
    whole, rest = (
        [record["loss"] for record in Run(a, Settings(epochs=6, lr=0.05, **how), comm).train()]
        for how in ({"algorithm": "1d"}, {"algorithm": "1d", "checkpoint": weights, "resume": True})
    )
    assert rest == pytest.approx(whole[4:], rel=1e-4)
