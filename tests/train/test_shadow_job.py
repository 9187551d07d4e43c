"""`distgnn train --sampler shadow`: equal on all ranks, deeper than its hops, exact with all neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from distgnn import cli

from .stores import N, events, run, small_store

NETWORK = ("--hidden", 8, "--dropout", 0.3, "--lr", 0.05, "--dtype", "float64", "--sampler", "shadow")


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("partitioned", [False, True])
def test_every_number_of_ranks_trains_the_same(
    comm: Any, model: str, partitioned: bool, shared_tmp_path: Any
) -> None:
    """Three layers on two hops, beside a serial training, with the graph on every rank and cut."""
    store, log = small_store(shared_tmp_path, comm), shared_tmp_path / "log.jsonl"
    words = [store, *NETWORK, "--layers", 3, "--fanout", "3,2", "--batch-size", 4, "--epochs", 3]
    words += ["--model", model, "--residual"]
    where = ["--partition-graph", "--replication", comm.Get_size() // 2 or 1] if partitioned else []
    run(comm, *words, *where, "--check", "all", "--log", log)
    if comm.Get_rank() == 0:
        alone = shared_tmp_path / "alone.jsonl"
        run(MPI.COMM_SELF, *words, "--log", alone)
        curves = [[(e["loss"], e["val_acc"]) for e in events(one, "epoch")] for one in (log, alone)]
        np.testing.assert_allclose(*curves, rtol=1e-9)
        assert events(log, "run")[0]["config"]["fanout"] == [3, 2]
    comm.Barrier()


@pytest.mark.ranks(1, 3)
def test_with_all_neighbours_and_as_many_hops_as_layers_it_is_the_graph(
    comm: Any, shared_tmp_path: Any
) -> None:
    store = small_store(shared_tmp_path, comm)
    logs = [shared_tmp_path / f"{name}.jsonl" for name in ("shadow", "full")]
    words = [store, *NETWORK, "--order", "original", "--epochs", 3, "--bias"]
    run(comm, *words, "--fanout", f"{N},{N}", "--log", logs[0])
    run(comm, *words, "--sampler", "none", "--algorithm", "1.5d", "--log", logs[1])
    if comm.Get_rank() == 0:
        losses = ([epoch["loss"] for epoch in events(log, "epoch")] for log in logs)
        np.testing.assert_allclose(*losses, rtol=1e-9)
    comm.Barrier()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--fanout 5,0", "--fanout: expected whole numbers, at least 1"),
        ("--rescale", "--rescale: is not for --sampler shadow, whose subgraphs are what the network"),
        ("--algorithm 2d", "--algorithm 2d: excludes --sampler shadow"),
        ("--parts volume:3", "--parts volume:3: is for --sampler cluster, not shadow"),
    ],
)
def test_bad_settings(words: str, message: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", small_store(tmp_path), "--sampler", "shadow", *words.split()]) == 2
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1 and message in printed.err


def test_two_hops_by_default(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sampler", "shadow", "--layers", "4", "--epochs", "1"]
    assert cli.main(["train", small_store(tmp_path), *words]) == 0
    assert "sampled at a time by shadow 10,10, graph on every rank" in capsys.readouterr().out
