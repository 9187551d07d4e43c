"""Runs whose dense products are rounded to TensorFloat-32: losses, the log, the way back, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn.errors import ArgumentError, UserError
from distgnn.train import Run
from distgnn.train.resolve import resolved
from distgnn.train.settings import Settings

from .stores import run, small_store

NETWORK = {"algorithm": "1d", "recipe": "plain", "hidden": (12, 12), "epochs": 6, "eval_every": 3}
NETWORK["tune_gemm"] = False  # of forms that differ in rounding, whichever is faster


def trained(comm, store, **settings):
    made = Run(store, Settings(backend="cupy", **settings, **NETWORK), comm)
    losses = [record["loss"] for record in made.train()]
    made.grid.free()
    return np.array(losses), made.record["config"]["tf32"]


@pytest.mark.ranks(1, 2)
def test_losses_are_within_one_per_cent(comm, stand_in, shared_tmp_path):
    """Later runs without it are exact again."""
    store = small_store(shared_tmp_path, comm)
    exact, flag = trained(comm, store)
    rounded, rounded_flag = trained(comm, store, tf32=True, check=True)
    assert (flag, rounded_flag) == (False, True)
    assert 1e-6 < np.abs(rounded / exact - 1).max() < 0.01
    assert (trained(comm, store)[0] == exact).all()
    assert np.abs(trained(comm, store, dtype="float64")[0] / exact - 1).max() < 1e-5


@pytest.mark.ranks(1, 2)
def test_without_a_gpu_it_is_refused_in_a_line(comm, shared_tmp_path):
    small_store(shared_tmp_path, comm)
    words = [shared_tmp_path / "small.dg", "--tf32", "--backend"]
    with pytest.raises(UserError, match="^--tf32: is for a GPU, and --backend numpy computes on none"):
        run(comm, *words, "numpy")
    with pytest.raises(ArgumentError, match="^tf32=True: rounds float32 .* excludes dtype=float64"):
        resolved(Settings(tf32=True, dtype="float64"), 1)


@pytest.mark.ranks(1)
def test_an_older_gpu_is_refused(stand_in, comm, shared_tmp_path, monkeypatch):
    import cupy

    monkeypatch.setattr(cupy.cuda.Device, "compute_capability", "75")
    store = small_store(shared_tmp_path, comm)
    with pytest.raises(ArgumentError, match="^tf32=True: is for GPUs from compute capability 8.0 on"):
        trained(comm, store, tf32=True)
