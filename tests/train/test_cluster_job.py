"""`distgnn train --sampler cluster`: where parts come from, equal on all ranks, checked, resumed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import distgnn as dg
from distgnn import cli
from distgnn.store import prepare

from .stores import Communities, N, events, run, small_store

NETWORK = ("--hidden", 6, "--dropout", 0.3, "--lr", 0.05, "--dtype", "float64", "--sampler", "cluster")


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("network", ["gcn", "gcn --rescale", "sage", "gat"])
@pytest.mark.parametrize("partitioned", [False, True])
def test_every_number_of_ranks_trains_the_same(
    comm: Any, network: str, partitioned: bool, shared_tmp_path: Any
) -> None:
    """Beside a serial training, with the graph on every rank and cut."""
    store, log = small_store(shared_tmp_path, comm), shared_tmp_path / "log.jsonl"
    words = [store, *NETWORK, "--parts", "volume:12", "--epochs", 3, "--hidden", 8]
    words += ["--model", *network.split()]
    where = ["--partition-graph", "--replication", comm.Get_size() // 2 or 1] if partitioned else []
    run(comm, *words, *where, "--check", "all", "--log", log)
    if comm.Get_rank() == 0:
        alone = shared_tmp_path / "alone.jsonl"
        run(MPI.COMM_SELF, *words, "--log", alone)
        curves = [[(e["loss"], e["val_acc"]) for e in events(one, "epoch")] for one in (log, alone)]
        np.testing.assert_allclose(*curves, rtol=1e-9)
        (start,), (end,) = (events(log, kind) for kind in ("run", "end"))
        assert end["check"]["updates"] == 3 and start["config"]["batch_size"] == 2
        assert start["config"]["renormalize"] == {"gcn": True, "gcn --rescale": False}.get(network)
    comm.Barrier()


@pytest.mark.ranks(1, 3)
def test_all_parts_together_are_the_graph(comm: Any, shared_tmp_path: Any, caplog: Any) -> None:
    """With a warning where more parts were asked for than there are; parts of a file, one of them empty."""
    store, file = small_store(shared_tmp_path, comm), shared_tmp_path / "parts.txt"
    logs = [shared_tmp_path / f"{name}.jsonl" for name in ("file", "full")]
    if comm.Get_rank() == 0:
        file.write_text("".join(f"{part}\n" for part in np.arange(N) % 3 * 2))
    comm.Barrier()
    words = [store, *NETWORK, "--order", "original", "--epochs", 3]  # dropout is by position
    run(comm, *words, "--parts", f"{file}:5", "--batch-size", 9, "--log", logs[0])
    run(comm, *words, "--sampler", "none", "--algorithm", "1.5d", "--log", logs[1])
    if comm.Get_rank() == 0:
        losses = ([epoch["loss"] for epoch in events(log, "epoch")] for log in logs)
        np.testing.assert_allclose(*losses, rtol=1e-9)
        assert "batch_size=9: taken as 5, all parts" in caplog.text
    comm.Barrier()


@pytest.mark.ranks(2)
def test_parts_of_the_order_and_a_resumed_run(comm: Any, shared_tmp_path: Any) -> None:
    path, saved = shared_tmp_path / "cut.dg", shared_tmp_path / "saved"
    small_store(shared_tmp_path, comm)
    if comm.Get_rank() == 0:
        prepare(Communities(), path, partitions=[dg.partition.Wanted("volume", 7)])
    comm.Barrier()
    logs = [shared_tmp_path / f"{name}.jsonl" for name in ("whole", "parts")]
    words = [str(path), *NETWORK, "--order", "volume-7", "--grid", "1x2", "--batch-size", 3]
    run(comm, *words, "--epochs", 4, "--log", logs[0])
    words += ["--checkpoint", saved, "--log", logs[1]]
    run(comm, *words, "--epochs", 2)
    with pytest.raises(dg.UserError, match="parts"):
        run(comm, *words, "--epochs", 4, "--resume", "--parts", "volume:7")
    with pytest.raises(dg.UserError, match="renormalize"):
        run(comm, *words, "--epochs", 4, "--resume", "--no-renormalize")
    run(comm, *words, "--epochs", 4, "--resume")
    if comm.Get_rank() == 0:
        whole, parts = ([epoch["loss"] for epoch in events(log, "epoch")] for log in logs)
        np.testing.assert_allclose(parts, whole, rtol=1e-9)
    comm.Barrier()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "order random has no parts; give METHOD:K, such as metis:50, or an order by partition"),
        ("--parts 50", "--parts 50: expected METHOD:K or FILE:K, such as volume:8"),
        ("--parts volume:3,random:4", "--parts volume:3,random:4: expected one METHOD:K or FILE:K"),
        ("--parts nothing:3", "--parts nothing:3: no such method or file"),
        (f"--parts volume:{N + 1}", f"--parts volume:{N + 1}: more parts than the {N} nodes of this"),
        ("--parts volume:0", "--parts volume:0: expected at least one part"),
        ("--parts volume:3 --rescale --batch-size 1", "--batch-size 1: --rescale needs two to be drawn"),
        ("--parts volume:3 --fanout 5", "--fanout 5: is not for --sampler cluster, which draws whole parts"),
        ("--sampler ladies --parts volume:3", "--parts volume:3: is for --sampler cluster, not ladies"),
        ("--sampler vertices --parts volume:3", "--parts volume:3: is not for --sampler vertices"),
        ("--sampler vertices --no-renormalize", "--no-renormalize: is not for --sampler vertices"),
        ("--sampler saint --renormalize", "--renormalize: is for --sampler cluster, not saint"),
        ("--parts volume:3 --model gat --renormalize", "and not for --model gat"),
    ],
)
def test_bad_settings(words: str, message: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    sampler = [] if "--sampler" in words else ["--sampler", "cluster"]
    assert cli.main(["train", small_store(tmp_path), *sampler, *words.split()]) == 2
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1 and message in printed.err


def test_it_says_what_it_does(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sampler", "cluster", "--epochs", "1", "--parts", "volume:9"]
    assert cli.main(["train", small_store(tmp_path), *words]) == 0
    said = "gcn on minibatches of 2 parts, 8 per update, 4 sampled at a time by cluster volume:9, graph on "
    assert said in capsys.readouterr().out.splitlines()[0]
