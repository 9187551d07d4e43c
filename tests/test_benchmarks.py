"""Files that the benchmark programs keep between launches."""

from __future__ import annotations

import importlib
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


@pytest.fixture
def high_water(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load benchmarks/high_water.py."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[1] / "benchmarks")
    return importlib.import_module("high_water")


def test_memory_of_a_phase_leaves_out_the_phase_before(high_water: ModuleType) -> None:
    if high_water.begin() is None:
        pytest.skip("this kernel does not begin its mark anew")
    size = 1 << 25
    large = high_water.rise(lambda: np.ones(8 * size, np.uint8))
    small = high_water.rise(lambda: np.ones(size, np.uint8))
    assert 0.9 * size < small < 3 * size and 7.9 * size < large < 10 * size


def test_memory_that_is_not_known_is_no_number(
    high_water: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(high_water, "ANEW", tmp_path / "none" / "clear_refs")
    assert high_water.rise(list) is None and high_water.mib(None) == "not known"
    assert high_water.mib(3 << 20) == "3"
