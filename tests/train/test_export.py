"""Exported weights: a forward pass in plain NumPy and SciPy, by nothing but the file, has the same logits."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn import cli
from distgnn.errors import ArgumentError
from distgnn.nn.reference import normalize
from distgnn.operators.dense import gather
from distgnn.store import prepare
from distgnn.train import Run, Settings, export_weights
from distgnn.train.predict import Predictor

from .stores import Communities, N, small_store


def logits(found: Any, config: dict[str, Any]) -> np.ndarray:
    """Compute logits like the docstring of ``train/export.py``, from the edges of the graph."""
    graph, last = Communities(), len(config["widths"]) - 2
    (rows, cols, _) = next(graph.edges())
    A = sp.coo_array((np.ones(len(rows)), (rows, cols)), shape=(N, N)).tocsr()
    A = ((A + A.T) != 0).astype(np.float64)
    H = graph.features(np.arange(N)).astype(np.float64)
    if config["normalize_features"]:
        H = H / abs(H).sum(axis=1, keepdims=True)
    for layer in range(last + 1):
        if config["model"] == "sage":
            A.setdiag(0)
            inputs = np.hstack([H, (A @ H) / np.maximum(A.sum(axis=1), 1)[:, None]])
        else:
            inputs = normalize(A, self_loops=config["self_loops"], dtype=np.float64) @ H
        Z = inputs @ found[f"layers.{layer}.weight"]
        Z = Z + found[f"layers.{layer}.bias"] if config["bias"] else Z
        if layer == last:
            return Z
        Z = Z + H if config["residual"] and Z.shape == H.shape else Z
        if config["layer_norm"]:
            Z = (Z - Z.mean(axis=1, keepdims=True)) / np.sqrt(Z.var(axis=1, keepdims=True) + 1e-5)
            Z = Z * found[f"norms.{layer}.weight"] + found[f"norms.{layer}.bias"]
        H = np.maximum(Z, 0)
    raise AssertionError("a network has layers")


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.slow
def test_logits_from_the_file(comm, shared_tmp_path, capsys, model) -> None:
    """The network has cut weights and every optional part of a layer; the best epoch and the last."""
    store, weights = small_store(shared_tmp_path, comm), str(shared_tmp_path / "w")
    settings = Settings(
        model=model, algorithm="3d" if model == "gcn" else "2d", hidden=[9, 5, 5], bias=True, residual=True,
        layer_norm=True, normalize_features=True, dropout=0.5, lr=0.3, epochs=9, keep_best="val", seed=2,
        checkpoint=weights,
    )  # fmt: skip
    run = Run(store, settings, comm)
    list(run.train())
    assert run.end["best"]["epoch"] < 9  # what is exported of both is not the same
    expected = {
        "last": gather(run.model.forward(run.X)),
        "best": gather(Predictor(store, weights, comm)._forward(4)),
    }
    if comm.Get_rank() > 0:
        return
    for epoch, Z in expected.items():
        path = shared_tmp_path / f"{epoch}.npz"
        config = export_weights(weights, path, epoch)
        with np.load(path) as found:
            assert json.loads(str(found["config"])) == config and config["widths"] == [9, 9, 5, 5, 4]
            np.testing.assert_allclose(logits(found, config), Z, rtol=1e-3, atol=1e-4)
    if comm.Get_size() == 1:
        out = str(shared_tmp_path / "m.safetensors")
        assert cli.main(["export", weights, out]) == 0
        assert f"weights after epoch {run.end['best']['epoch']}" in capsys.readouterr().out
        package = pytest.importorskip("safetensors")
        with package.safe_open(out, "numpy") as tensors, np.load(shared_tmp_path / "best.npz") as found:
            config = json.loads(tensors.metadata()["config"])
            assert sorted(tensors.keys()) == sorted(set(found) - {"config"})
            assert all((tensors.get_tensor(name) == found[name]).all() for name in tensors.keys())
            assert config == json.loads(str(found["config"]))


@pytest.mark.ranks(1)
def test_names_of_classes(comm, tmp_path) -> None:
    graph, weights = Communities(), str(tmp_path / "w")
    for names in (["é", "b", "c", "d"], None):
        graph.class_names = names
        prepare(graph, tmp_path / "s.dg", force=True)
        list(Run(tmp_path / "s.dg", Settings(epochs=1, checkpoint=weights, force=True), comm).train())
        export_weights(weights, tmp_path / "m.npz", force=True)
        with np.load(tmp_path / "m.npz") as found:
            assert json.loads(str(found["config"]))["class_names"] == names


@pytest.mark.ranks(1)
def test_trained_features_and_what_is_refused(comm, tmp_path, monkeypatch) -> None:
    store, weights = small_store(tmp_path, comm), str(tmp_path / "w")
    how: Any = {"epochs": 2, "train_features": True, "order": "original", "optimizer": "adam"}
    run = Run(store, Settings(checkpoint=weights, **how), comm)
    list(run.train())
    assert export_weights(weights, tmp_path / "m.npz")["order"] == "original"
    with np.load(tmp_path / "m.npz") as found:
        layers = {f"layers.{layer}.{name}" for layer in (0, 1) for name in ("weight", "bias")}
        assert set(found) == {"config", "features", *layers}
        np.testing.assert_array_equal(found["features"], run.X.block)
    for out, epoch, message in (
        ("m.pt", None, r"expected a file .npz or .safetensors"),
        ("m.npz", None, "exists; force=True replaces"),
        ("n.npz", "best", "has the last one only"),
    ):
        with pytest.raises(ArgumentError, match=message):
            export_weights(weights, tmp_path / out, epoch)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(
        ArgumentError, match=r"needs safetensors; install with: pip install 'distgnn\[safetensors"
    ):
        export_weights(weights, tmp_path / "m.safetensors")
    assert not (tmp_path / "m.safetensors").exists() and not (tmp_path / "n.npz").exists()
