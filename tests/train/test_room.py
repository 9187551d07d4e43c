"""Least memory of a network: known before it is made, and refused where there is less."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest

import distgnn as dg
from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError, UserError
from distgnn.plan import Graph
from distgnn.plan.choices import plan
from distgnn.train import Run, Settings, room
from distgnn.train.predict import Predictor
from distgnn.train.resolve import resolved

from .stores import CLASSES, WIDTH, N, run, small_store

CASES: list[dict[str, Any]] = [
    {"hidden": [4000]},
    {"hidden": [300, 300], "optimizer": "sgd", "dtype": "float64"},
    {"hidden": [300] * 4, "train_features": True, "model": "sage"},
    {"hidden": [4000], "algorithm": "3d"},
    {"hidden": [300] * 6, "recompute": 2},
    {"hidden": [1] * 60},
]


@pytest.mark.ranks(1, 4)
def test_no_training_takes_less(comm, shared_tmp_path) -> None:
    """Nor ten times as much, as what is counted grows with the network."""
    store = small_store(shared_tmp_path, comm)
    for case in CASES if comm.size == 1 else CASES[2:4]:
        tracemalloc.start()
        trained = Run(store, Settings(**({"epochs": 2, "dropout": 0.0, "algorithm": "1d"} | case)), comm)
        list(trained.train())
        peak = comm.allreduce(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        needs = room.of_training(trained.settings, N, trained.store.nnz, comm.size)
        assert needs.bytes(trained.widths) <= peak <= 10 * needs.bytes(trained.widths), case
        trained.grid.free()


def limited(monkeypatch: pytest.MonkeyPatch, there: int) -> None:
    """Give every rank so many bytes, and let even the smallest network ask."""
    monkeypatch.setattr(Grid, "share_of_memory", lambda grid: there)
    monkeypatch.setattr(room, "LITTLE", 0)


@pytest.mark.ranks(1, 4)
def test_what_is_beyond_the_memory_is_refused_with_what_would_fit(comm, shared_tmp_path, monkeypatch):
    store = small_store(shared_tmp_path, comm)
    limited(monkeypatch, 1 << 20)
    has = f"{comm.size} ranks have" if comm.size > 1 else "there are"
    with pytest.raises(ArgumentError, match=rf"of memory at least, and {has} {comm.size} MiB") as caught:
        Run(store, Settings(algorithm="1d", hidden=[1 << 63], keep_best="none"), comm)
    assert caught.value.argument == "hidden" and "takes more than 1.05M TiB" in str(caught.value)
    width = int(re.search(r"hidden=(\d+) may fit", str(caught.value))[1])
    fitting = Run(store, Settings(algorithm="1d", hidden=[width], keep_best="none"), comm)
    needs = room.of_training(fitting.settings, N, fitting.store.nnz, comm.size)
    there = comm.size << 20
    assert needs.bytes([WIDTH, width, CLASSES]) <= there < needs.bytes([WIDTH, width + 1, CLASSES])
    with pytest.raises(ArgumentError, match=rf"hidden=\[{width + 1}\]: takes .*; hidden={width} may fit"):
        Run(store, Settings(algorithm="1d", hidden=[width + 1], keep_best="none"), comm)
    with pytest.raises(ArgumentError, match="layers=10000: takes .* may fit") as caught:
        Run(store, Settings(algorithm="1d", hidden=[16], layers=10_000, keep_best="none"), comm)
    layers = int(re.search(r"layers=(\d+) may fit", str(caught.value))[1])
    fits = [needs.bytes([WIDTH, *[16] * (count - 1), CLASSES]) <= there for count in (layers, layers + 1)]
    assert fits == [True, False]
    limited(monkeypatch, 100)
    with pytest.raises(ArgumentError, match="more nodes would do$"):
        Run(store, Settings(algorithm="1d"), comm)


@pytest.mark.ranks(1, 4)
def test_a_refusal_says_how_many_ranks_would_do(comm, shared_tmp_path, monkeypatch, backend) -> None:
    """A rank less would not have memory enough; `fit` refuses, on hosts and devices."""
    each = 40 << 10
    limited(monkeypatch, each)
    how: Any = {"hidden": [16], "dropout": 0.0, "algorithm": "1d", "backend": backend.name}
    edges, n = np.stack([np.arange(4000), np.arange(1, 4001) % 4000]), 4000
    given = (edges, np.ones((n, 8), np.float32), np.arange(n) % 3) if comm.rank == 0 else [None] * 3
    with pytest.raises(ArgumentError, match=r"hidden=\[16\]: takes .*; \d+ ranks with as much") as no:
        dg.fit(*given, directed=False, comm=comm, **how)
    ranks = int(re.search(r"(\d+) ranks with", str(no.value))[1])
    settings = resolved(Settings(**how), comm.size)
    needs = [room.of_training(settings, n, 3 * n, count).bytes([8, 16, 3]) for count in (ranks, ranks - 1)]
    assert needs[0] <= ranks * each and needs[1] > (ranks - 1) * each


@pytest.mark.ranks(1, 4)
def test_a_checkpoint_beyond_the_memory_is_refused(comm, shared_tmp_path, monkeypatch) -> None:
    store, weights = small_store(shared_tmp_path, comm), str(shared_tmp_path / "weights")
    list(Run(store, Settings(algorithm="1d", epochs=1, hidden=[6], checkpoint=weights), comm).train())
    limited(monkeypatch, 100)
    with pytest.raises(UserError, match="weights: takes .* of memory at least, and"):
        Predictor(store, weights, comm)


@pytest.mark.ranks(1, 4)
def test_the_command_refuses_in_a_line(comm, shared_tmp_path, capsys) -> None:
    store = small_store(shared_tmp_path, comm)
    for words in (["--hidden", 1 << 63], ["--hidden", 10**12], ["--algorithm", "auto", "--hidden", 10**12]):
        with pytest.raises(UserError, match=r"(--hidden|no way to train fits).* --hidden \d+ may fit"):
            run(comm, store, *words)


def test_a_plan_refuses_enormous_networks_without_a_dry_run(monkeypatch) -> None:
    monkeypatch.setattr("distgnn.plan.pricing.dry_run", None)
    graph = Graph.of_size(400, 2000, 64, 4)
    for settings in (
        Settings(hidden=(1 << 63,)),
        Settings(hidden=(10**7,) * 2),
        Settings(layers=10**3, hidden=(40_000,)),
    ):
        planned = plan(settings, graph, 4, "infiniband-cpu")
        assert not planned.choices and all(way.peak > planned.machine.memory for way in planned.infeasible)
        with pytest.raises(UserError, match="needs the least, .* may fit"):
            planned.best
