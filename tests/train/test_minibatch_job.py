"""`distgnn train --sampler`: the log, resumed runs, the same training on every number of ranks, and what is
refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import distgnn as dg
from distgnn import cli
from distgnn.store import prepare
from distgnn.train.minibatch import STEPS

from .stores import Communities, events, run, small_store

KINDS = {
    "sage": ("--fanout", "3,2"),
    "sage-gcn": ("--fanout", "3,2", "--model", "gcn"),
    "ladies": ("--fanout", "12,9", "--importance", "counts"),
    "fastgcn": ("--fanout", "20,15", "--no-rescale"),
    "saint": ("--fanout", "25"),
}
NETWORK = ("--hidden", 6, "--dropout", 0.3, "--bias", "--lr", 0.05, "--batch-size", 4, "--dtype", "float64")


def flags(kind: str) -> tuple[str, ...]:
    return ("--sampler", kind.partition("-")[0], *KINDS[kind])


@pytest.mark.ranks(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_every_number_of_ranks_trains_the_same(comm: Any, kind: str, shared_tmp_path: Any) -> None:
    """Without being told how many minibatches make an update: replicated and partitioned, bulk 1 and many."""
    store = small_store(shared_tmp_path, comm)
    words = [store, *NETWORK, *flags(kind), "--epochs", 3, "--force"]
    logs = [shared_tmp_path / f"{name}.jsonl" for name in ("alone", "replicated", "partitioned")]
    run(comm, *words, "--log", logs[1], "--bulk", 1)
    run(comm, *words, "--log", logs[2], "--partition-graph", "--replication", comm.Get_size() // 2 or 1)
    if comm.Get_rank() == 0:
        run(MPI.COMM_SELF, *words, "--log", logs[0])
        alone, *others = ([e["loss"] for e in events(log, "epoch")] for log in logs)
        assert alone[2] < alone[0]
        for found in others:
            np.testing.assert_allclose(found, alone, rtol=1e-9)
        accuracies = [
            [events(log, "end")[0][f"{part}_acc"] for part in ("train", "val", "test")] for log in logs
        ]
        assert accuracies[0] == accuracies[1] == accuracies[2]
    comm.Barrier()


@pytest.mark.ranks(1, 4)
@pytest.mark.slow
def test_the_log_says_what_an_epoch_is_made_of(comm: Any, shared_tmp_path: Any) -> None:
    log = shared_tmp_path / "run.jsonl"
    run(
        comm,
        small_store(shared_tmp_path, comm),
        *NETWORK,
        *flags("ladies"),
        "--epochs",
        2,
        "--log",
        log,
        "--eval-every",
        0,
    )
    comm.Barrier()
    if comm.Get_rank() > 0:
        return
    (start,), epochs, (end,) = (events(log, kind) for kind in ("run", "epoch", "end"))
    assert start["config"]["algorithm"] == "1.5d" and start["config"]["model"] == "gcn"
    assert [start["config"][name] for name in ("fanout", "batch_size", "batches_per_update", "bulk")] == [
        [12, 9],
        4,
        8,
        4,
    ]
    for epoch in epochs:
        assert set(epoch["steps"]) == set(STEPS) and sum(epoch["steps"].values()) <= epoch["seconds"]
        known = {"spmm", "gemm", "activation", "loss", "optimizer", "comm", "sampling", "other"}
        assert set(epoch["phases"]) == known and epoch["phases"]["sampling"] > 0
    assert {name: len(values) for name, values in end["steps_median"].items()} == dict.fromkeys(
        STEPS, comm.Get_size()
    )


@pytest.mark.ranks(1, 4)
def test_a_batch_of_too_few_nodes_has_all(comm: Any, shared_tmp_path: Any, caplog: Any) -> None:
    """There are 20 training nodes: 21 of them are 20, with a warning, and the same losses."""
    store = small_store(shared_tmp_path, comm)
    logs = [shared_tmp_path / f"{size}.jsonl" for size in (20, 21)]
    for size, log in zip((20, 21), logs, strict=True):
        words = [*"--sampler sage --model gcn --fanout 3,3 --hidden 6 --batch-size".split(), size]
        run(comm, store, *words, "--epochs", 2, "--log", log)
    comm.Barrier()
    if comm.Get_rank() == 0:
        losses = [[epoch["loss"] for epoch in events(log, "epoch")] for log in logs]
        assert losses[0] == losses[1]
        assert [one["config"]["batch_size"] for log in logs for one in events(log, "run")] == [20, 20]
        assert "batch_size=21: taken as 20, all training nodes" in caplog.text


@pytest.mark.ranks(1, 4)
def test_more_than_there_are_is_all_and_said_once(comm: Any, shared_tmp_path: Any, caplog: Any) -> None:
    """Neighbours beyond what 64 bits hold, of a cut graph; minibatches of an epoch; defaults, too."""
    store, most = small_store(shared_tmp_path, comm), "taken as 60,3, all nodes"
    logs = [shared_tmp_path / f"{name}.jsonl" for name in ("enough", "beyond")]
    words = [store, "--sampler", "sage", "--hidden", 6, "--epochs", 2, "--batch-size", 3]
    run(comm, *words, "--fanout", "60,3", "--bulk", 9, "--log", logs[0])
    caplog.clear()
    more = ["--fanout", f"{10**20},3", "--bulk", 10**20, "--partition-graph", "--check", "all"]
    run(comm, *words, *more, "--log", logs[1])
    said = [record.message for record in caplog.records]
    run(comm, store, "--sampler", "ladies", "--epochs", 1)
    if comm.Get_rank() == 0:
        turns = 7 if comm.Get_size() == 1 else 2
        beyond = f"bulk={10**20}: taken as {turns}, all minibatches of a rank in an epoch"
        assert [line for line in said if "taken as" in line] == [f"fanout={10**20},3: {most}", beyond]
        (start,) = events(logs[1], "run")
        assert (start["config"]["fanout"], start["config"]["bulk"]) == ([60, 3], turns)
        losses = ([epoch["loss"] for epoch in events(log, "epoch")] for log in logs)
        np.testing.assert_allclose(*losses, rtol=1e-5)
        assert "batch_size=1024: taken as 20, all training nodes" in caplog.text
        assert "fanout=512,512: taken as 60,60, all nodes" in caplog.text
        assert "bulk=4" not in caplog.text
    comm.Barrier()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("kind", ["sage", "ladies"])
@pytest.mark.slow
def test_resume_goes_on_with_the_same_minibatches(comm: Any, kind: str, shared_tmp_path: Any) -> None:
    store, saved = small_store(shared_tmp_path, comm), shared_tmp_path / "saved"
    whole, parts = shared_tmp_path / "whole.jsonl", shared_tmp_path / "parts.jsonl"
    words = [store, *NETWORK, *flags(kind)]
    run(comm, *words, "--epochs", 4, "--log", whole)
    words += ["--checkpoint", saved, "--log", parts]
    run(comm, *words, "--epochs", 2)
    run(comm, *words, "--epochs", 4, "--resume", "--bulk", 2, "--partition-graph")
    others = (
        ("--batch-size=5", "batch_size 4, this one has 5"),
        ("--batches-per-update=9", "batches_per_update 8"),
    )
    for other, what in (*others, ("--order=original", "order random")):
        with pytest.raises(dg.UserError, match=what):
            run(comm, *words, "--resume", "--epochs", 6, other)
    with pytest.raises(dg.UserError, match="sampler"):
        model = "gcn" if kind == "ladies" else "sage"
        run(comm, store, *NETWORK[:-4], "--dtype", "float64", "--model", model,
            "--checkpoint", saved, "--resume", "--epochs", 6, "--algorithm", "1.5d")  # fmt: skip
    comm.Barrier()
    if comm.Get_rank() == 0:
        curves = [[epoch["loss"] for epoch in events(log, "epoch")] for log in (whole, parts)]
        np.testing.assert_allclose(curves[1], curves[0], rtol=1e-9)
    comm.Barrier()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sampler", "metropolis"], "--sampler: invalid choice: 'metropolis'"),
        (
            ["--sampler", "sage", "--fanout", "5"],
            "--fanout 5: has 1 numbers for 2 layers; expected one per layer",
        ),
        (["--sampler", "ladies", "--fanout", "5,5,5"], "--fanout 5,5,5: has 3 numbers for 2 layers"),
        (
            ["--sampler", "sage", "--fanout", "5,0"],
            "--fanout: expected whole numbers, at least 1, as in 64,32, not '5,0'",
        ),
        (
            ["--sampler", "saint", "--fanout", "5,5"],
            "--fanout 5,5: --sampler saint draws one subgraph for all layers",
        ),
        (
            ["--sampler", "sage", "--batch-size", "0"],
            "--batch-size: expected a whole number, at least 1, not '0'",
        ),
        (["--sampler", "sage", "--bulk", "0"], "--bulk: expected a whole number, at least 1, or auto, not"),
        (
            ["--sampler", "sage", "--fanout", "-3,2"],
            "--fanout: expected whole numbers, at least 1, as in 64,32, not '-3,2'",
        ),
        (
            ["--sampler", "sage", "--replication", "2"],
            "--replication 2: not for algorithm 1.5d on 1 ranks; possible (rows x reps): 1x1",
        ),
        (
            ["--sampler", "sage", "--replication", "2", "--grid", "rows=1"],
            "--grid rows=1,reps=2: not for algorithm 1.5d on 1 ranks; possible (rows x reps): 1x1",
        ),
        (
            ["--sampler", "sage", "--algorithm", "2d"],
            "--algorithm 2d: excludes --sampler sage; minibatches take features",
        ),
        (
            ["--sampler", "sage", "--no-rescale"],
            "--no-rescale: is for --model gcn; the mean over sampled neighbours",
        ),
        (["--sampler", "sage", "--algorithm", "1d"], "1.5d, which with --replication 1 is 1d"),
        (["--sampler", "ladies", "--train-features"], "--sampler ladies: excludes --train-features"),
        (
            ["--sampler", "ladies", "--model", "sage"],
            "--model sage: needs every vertex's own features, which the samplers sage, cluster and",
        ),
        (["--sampler", "sage", "--importance", "zou"], "--importance zou: is for --sampler ladies, not sage"),
        (["--fanout", "5,5"], "--fanout 5,5: is for minibatches; say with --sampler NAME how to make them"),
        (["--partition-graph"], "--partition-graph: is for minibatches"),
        (["--no-rescale"], "--no-rescale: is for minibatches"),
        (["--check", "0.5"], "argument --check: expected all or a number of updates, not '0.5'"),
        (
            ["--model", "sage", "--product-order", "transform-first"],
            "--product-order transform-first: --model sage aggregates first",
        ),
        (
            ["--model", "gat", "--product-order", "aggregate-first"],
            "--product-order aggregate-first: excludes --model gat, whose attention is between rows of H W",
        ),
        (
            ["--sampler", "sage", "--model", "gatv2", "--no-rescale"],
            "--no-rescale: changes nothing: it is of the values of A, which attention",
        ),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else None,
)
def test_bad_settings(
    words: list[str], message: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", small_store(tmp_path), *words]) == 2
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1 and message in printed.err


def test_a_batch_has_no_more_than_the_labelled_nodes_by_default(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Communities()
    source.labels[::2] = -1
    prepare(source, tmp_path / "some.dg")
    assert cli.main(["train", str(tmp_path / "some.dg"), "--sampler", "sage", "--epochs", "1"]) == 0
    labelled = int(((source.split == 1) & (source.labels >= 0)).sum())
    assert f"sage on minibatches of {labelled}, " in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--sampler", "none"), ("--sampler", "ladies")])
def test_the_command_line_undoes_what_the_environment_says(
    words: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    for name, value in (("SAMPLER", "sage"), ("FANOUT", "3,2"), ("PARTITION_GRAPH", "no"), ("GRID", "1x1")):
        monkeypatch.setenv(f"DISTGNN_{name}", value)
    store, log = small_store(tmp_path), tmp_path / "log"
    assert cli.main(["train", store, *words, "--algorithm", "1.5d", "--epochs", "1", "--log", str(log)]) == 0
    (config,) = (event["config"] for event in events(log, "run"))
    assert (config["sampler"], config["fanout"]) == (
        ("none", None) if words[1] == "none" else ("ladies", [3, 2])
    )


def test_a_grid_from_elsewhere_is_left_out_for_another_algorithm(
    tmp_path: Any, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setenv("DISTGNN_GRID", "1")
    store = small_store(tmp_path)
    assert cli.main(["train", store, "--algorithm", "1d", "--epochs", "1"]) == 0
    assert cli.main(["train", store, "--algorithm", "2d", "--epochs", "1"]) == 0
    assert "grid is for algorithm 1d and is left out, as 2d was chosen" in capsys.readouterr().err


def test_a_double_order_is_for_3d(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(Communities(), tmp_path / "double.dg", order=("double", "random"))
    refused = {"ladies": "minibatches", "vertices": "subgraphs, whose nodes have one place each,"}
    cases = [(["--sampler", name], what) for name, what in refused.items()]
    for words, what in (*cases, (["--model", "sage"], "--model sage")):
        assert cli.main(["train", str(tmp_path / "double.dg"), "--order", "double", *words]) == 2
        assert (
            f"--order double: orders rows and columns apart, which {what} can't use; take another"
            in capsys.readouterr().err
        )


def test_it_says_what_it_does(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(["train", small_store(tmp_path), "--sampler", "sage", "--epochs", "1", "--fanout", "4,3"])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(
        "sage on minibatches of 20, 8 per update, 4 sampled at a time by sage 4,3, graph on every rank"
    )
    assert any(line.startswith("of an epoch, seconds (median, mean of ranks): sampling ") for line in lines)


def test_a_checkpoint_of_before_may_have_a_fanout_beyond_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on: more neighbours than there are were all of them then, too."""
    words = f"train {small_store(tmp_path)} --sampler sage --fanout 1000000,3 --batch-size 7".split()
    words += ["--checkpoint", str(tmp_path / "kept")]
    with monkeypatch.context() as before:
        before.setattr("distgnn.train.data.at_most", lambda name, numbers, *_: [*numbers])
        assert cli.main([*words, "--epochs", "1"]) == 0
    assert cli.main([*words, "--epochs", "2", "--resume"]) == 0
    assert cli.main([*words[:5], "1000000,4", *words[6:], "--epochs", "3", "--resume"]) == 2
