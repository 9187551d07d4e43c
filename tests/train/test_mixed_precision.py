"""Runs in mixed precision: losses, the log, the checkpoint, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from distgnn.arrays.tuning import TUNING
from distgnn.errors import ArgumentError
from distgnn.train import Run
from distgnn.train.resolve import resolved
from distgnn.train.settings import Settings

from .stores import events, run, small_store

NETWORK = {"algorithm": "1d", "recipe": "plain", "hidden": (24, 16), "epochs": 6, "eval_every": 3}
NETWORK["tune_gemm"] = False  # of forms that differ in rounding, whichever is faster
MIXED = {"wire": "bfloat16", "mixed_precision": True}


def trained(comm, store, **settings):
    made = Run(store, Settings(backend="cupy", **settings, **NETWORK), comm)
    losses = [record["loss"] for record in made.train()]
    made.grid.free()
    return np.array(losses), made.record["config"]["mixed_precision"]


@pytest.mark.ranks(1)
@pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)
def test_losses_are_within_one_per_cent(comm, stand_in, shared_tmp_path, monkeypatch):
    monkeypatch.setattr(TUNING, "long_dimension", 20)
    store = small_store(shared_tmp_path, comm)
    exact, flag = trained(comm, store)
    rounded, _ = trained(comm, store, wire="bfloat16")
    mixed, mixed_flag = trained(comm, store, **MIXED, check=True)
    assert (flag, mixed_flag) == (False, True)
    assert 1e-6 < np.abs(mixed / exact - 1).max() < 0.01
    assert (mixed != rounded).all()
    assert (trained(comm, store)[0] == exact).all()


@pytest.mark.ranks(1)
@pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)
def test_a_checkpoint_goes_on_with_it(comm, stand_in, shared_tmp_path):
    small_store(shared_tmp_path, comm)
    store, log, saved = (shared_tmp_path / name for name in ("small.dg", "run.jsonl", "saved"))
    words = [store, "--log", log, "--checkpoint", saved, "--backend", "cupy"]
    words += ["--wire", "bfloat16", "--epochs"]
    run(comm, *words, 2, "--mixed-precision")
    (start,) = events(log, "run")
    assert start["config"]["mixed_precision"] is True
    run(comm, *words, 4, "--mixed-precision", "--resume")
    with pytest.raises(dg.UserError, match="was written by a run with mixed_precision True"):
        run(comm, *words, 6, "--resume")


@pytest.mark.ranks(1, 2)
def test_it_is_for_one_rank_with_a_gpu(comm, shared_tmp_path):
    """Refused in a line on all ranks, with 16 bits that it is not for, too."""
    store = small_store(shared_tmp_path, comm)
    with pytest.raises(ArgumentError, match="^mixed_precision=True: is for one rank, which has a GPU"):
        Run(store, Settings(backend="numpy", **MIXED, **NETWORK), comm)
    for wire in (None, "float16"):
        with pytest.raises(ArgumentError, match="^mixed_precision=True: needs wire=bfloat16"):
            resolved(Settings(wire=wire, mixed_precision=True), 1)


@pytest.mark.ranks(1)
def test_networks_and_algorithms_that_it_would_leave_as_they_are_are_refused(comm):
    for given in ({"model": "sage"}, {"model": "gat"}, {"model": "gatv2"}, {"algorithm": "3d"}):
        with pytest.raises(ArgumentError, match=f"^mixed_precision=True: .*{next(iter(given.values()))}"):
            resolved(Settings(**MIXED, **given), 1)
    assert resolved(Settings(**MIXED, algorithm="2d"), 1).mixed_precision


@pytest.mark.ranks(2)
def test_several_gpus_are_refused(comm, stand_in, shared_tmp_path):
    store = small_store(shared_tmp_path, comm)
    with pytest.raises(ArgumentError, match="^mixed_precision=True: is for one rank"):
        trained(comm, store, **MIXED)
