"""Files that the benchmark programs keep between launches."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from distgnn.store import Store
from train.stores import small_store


@pytest.fixture
def cora(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load benchmarks/cora.py with three epochs."""
    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    spec = importlib.util.spec_from_file_location("cora", folder / "cora.py")
    monkeypatch.syspath_prepend(folder)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "EPOCHS", 3)
    return module


def test_serial_curves_of_another_problem_are_not_reused(
    cora: ModuleType, tmp_path: Path, monkeypatch
) -> None:
    kept = tmp_path / "serial.npz"
    store = Store(small_store(tmp_path))
    losses = cora.serial(store, 2, kept)["loss"]
    np.savez(kept, **{**np.load(kept), "loss": losses + 1})  # so that what comes from the file can be told
    assert (cora.serial(store, 2, kept)["loss"] == losses + 1).all()
    assert (cora.serial(store, 1, kept)["loss"] == losses[:1] + 1).all()
    (tmp_path / "other").mkdir()
    other = Store(small_store(tmp_path / "other", self_loops=False))
    assert not np.allclose(cora.serial(other, 2, kept)["loss"], losses)
    np.testing.assert_array_equal(cora.serial(store, 2, kept)["loss"], losses)
    monkeypatch.setattr(cora, "LR", 0.1)
    assert not np.allclose(cora.serial(store, 2, kept)["loss"], losses)
