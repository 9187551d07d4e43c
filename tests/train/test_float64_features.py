"""Features of float64 keep their digits in trainings in float64, beside a dense network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import distgnn as dg
from dense_networks import adjacency, cross_entropy, gcn
from distgnn.store import Store, load_features
from distgnn.store.checkpoint import read_alone
from distgnn.train import Predictor, Run, Settings

N, WIDTH, CLASSES = 400, 24, 3
PLAIN: dict[str, Any] = {
    "recipe": "plain", "hidden": (8,), "epochs": 3, "dropout": 0.0, "bias": True, "dtype": "float64",
    "normalize_features": False, "standardize_features": False,
}  # fmt: skip


def made() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return edges, X, of which float32 keeps no more than that all are nearly 1, labels and split."""
    r = np.random.default_rng(8)
    ends = np.unique(r.integers(0, N, (4 * N, 2)), axis=0).T
    X = 1 + 1e-9 * r.standard_normal((N, WIDTH))
    return ends[:, ends[0] != ends[1]], X, r.integers(0, CLASSES, N), np.tile([1, 2, 3, 1], N // 4)


def expected(weights: dict[str, np.ndarray], X: np.ndarray) -> np.ndarray:
    """Return the logits of the dense network."""
    edges = made()[0]
    _, values = adjacency(N, (edges[0], edges[1], None), True, "gcn")
    return gcn(values, X, weights)


def saved(path: Path) -> dict[str, np.ndarray]:
    reader = read_alone(path)
    shapes = {name: reader.shapes[name] for name in ("W0", "b0", "W1", "b1")}
    return {name: reader.piece(name, *((0, size) for size in shape)) for name, shape in shapes.items()}


@pytest.mark.ranks(1, 3)
def test_fit_and_run_keep_the_digits_of_features(comm: Any, shared_tmp_path: Path) -> None:
    edges, X, y, split = made()
    rank0 = (edges, X, y, split) if comm.rank == 0 else (None,) * 4
    model = dg.fit(*rank0, comm=comm, directed=True, **PLAIN)
    model.save(shared_tmp_path / "model")
    dg.prepare(edges, X, y, split, out=shared_tmp_path / "g.dg", directed=True, dtype="float64", comm=comm)
    run = Run(shared_tmp_path / "g.dg", Settings(**PLAIN), comm)
    losses = [record["loss"] for record in run.train()]
    assert losses == pytest.approx([record["loss"] for record in model.history], rel=1e-12)
    run.grid.free()
    predictor = Predictor(shared_tmp_path / "g.dg", shared_tmp_path / "model", comm)
    answers = predictor.write(shared_tmp_path / "p.npz", layer=2)
    if comm.rank == 0:
        Z = expected(saved(shared_tmp_path / "model"), X)
        for logits in (model.scores(logits=True), np.load(answers)["embedding"]):
            np.testing.assert_allclose(logits, Z, rtol=1e-12, atol=1e-12)
        rounded = expected(saved(shared_tmp_path / "model"), X.astype(np.float32).astype(float))
        assert abs(rounded - Z).max() > 1e-11


def test_losses_are_those_of_the_dense_network_before_every_step(tmp_path: Path) -> None:
    edges, X, y, split = made()
    trained = np.flatnonzero(split == 1)
    for epochs in (1, 2):
        given = PLAIN | {"directed": True, "keep_best": "none", "epochs": epochs}
        before = dg.fit(edges, X, y, split, **given)
        before.save(tmp_path / f"{epochs}")
        given["epochs"] = epochs + 1
        after = dg.fit(edges, X, y, split, **given)
        loss = cross_entropy(expected(saved(tmp_path / f"{epochs}"), X), y, trained)
        assert after.loss == pytest.approx(loss, rel=1e-12)


def test_a_store_keeps_them_where_that_is_asked_for(tmp_path: Path) -> None:
    """Elsewhere, and where float32 holds every number, it has float32."""
    edges, X, y, split = made()
    X[7, 3], whole = 1e300, np.rint(100 * X)
    hashes = {}
    for name, features, dtype, kept in (
        ("wide", X, "float64", "float64"), ("whole", np.minimum(whole, 9), "float64", "float32"),
        ("integers", np.full((N, 2), 2**40 + 1), "float64", "float64"),
        ("narrow", np.minimum(X, 2), "float32", "float32"),
    ):  # fmt: skip
        for order in ("random", "original"):
            path = tmp_path / f"{name}-{order}.dg"
            dg.prepare(edges, features, y, split, out=path, dtype=dtype, order=(order,))
            store = Store(path, verify=True)
            assert store.features().dtype == kept == store.manifest.get("feature_dtype", "float32")
            assert (store.features() == features.astype(kept)).all()
            assert (store.features("random" if order == "random" else None, (5, 90), (1, 2)).dtype) == kept
            hashes[name] = store.manifest["content"]["features"]
    assert len({*hashes.values()}) == 4
    A = dg.load(tmp_path / "wide-random.dg", dg.Grid(MPI.COMM_SELF, rows=1), "1d", dtype="float64")
    assert load_features(tmp_path / "wide-random.dg", A.input_layout, dtype="float64").block.max() == 1e300


def test_what_its_type_cannot_hold_is_refused() -> None:
    edges, X, y, split = made()
    for dtype, number in (("float32", 1e300), ("float64", np.inf), ("float64", np.nan)):
        wrong = X.copy()
        wrong[5, 2] = number
        with pytest.raises(dg.UserError, match="X: feature 2 of node 5 is"):
            dg.fit(edges, wrong, y, split, **PLAIN | {"dtype": dtype})
    integers = np.full((N, 2), 2**60 + 1)
    with pytest.raises(dg.UserError, match="which float64 cannot hold"):
        dg.fit(edges, integers, y, split, **PLAIN)
