"""`distgnn train --sampler vertices`: the same training on every algorithm, checked, resumed, and refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from distgnn import cli
from distgnn.operators import ALGORITHMS
from distgnn.train.minibatch import STEPS

from .stores import N, events, made, run, small_store

NETWORK = ("--hidden", 6, "--dropout", 0.3, "--lr", 0.05, "--dtype", "float64", "--sampler", "vertices")


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_algorithms_and_orders_train_the_same(comm: Any, algorithm: str, shared_tmp_path: Any) -> None:
    """Beside a serial training, and as `1d` on one rank: losses, and scores of the full graph."""
    store, log = small_store(shared_tmp_path, comm), shared_tmp_path / "log.jsonl"
    words = [store, *NETWORK, "--batch-size", 25, "--epochs", 3]
    run(comm, *words, "--algorithm", algorithm, "--order", "original", "--check", "all", "--log", log)
    if comm.Get_rank() == 0:
        alone = shared_tmp_path / "alone.jsonl"
        run(MPI.COMM_SELF, *words, "--log", alone)
        curves = [[(e["loss"], e["val_acc"]) for e in events(one, "epoch")] for one in (log, alone)]
        np.testing.assert_allclose(*curves, rtol=1e-9)
        (start,), epochs, (end,) = (events(log, kind) for kind in ("run", "epoch", "end"))
        assert end["check"]["updates"] == 9 and end["check"]["largest_difference"] < 1e-11
        assert start["config"]["batch_size"] == 25 and start["config"]["rescale"] is True
        assert all(set(epoch["steps"]) == set(STEPS) for epoch in epochs)
        (default,) = events(alone, "run")
        assert default["config"]["algorithm"] == "1d" and default["config"]["fanout"] is None
    comm.Barrier()


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("model", ["sage", "gat", "gatv2"])
def test_other_networks(comm: Any, model: str, shared_tmp_path: Any) -> None:
    store = small_store(shared_tmp_path, comm)
    words = [store, *NETWORK, "--model", model, "--batch-size", 20, "--epochs", 2, "--check", "all"]
    assert run(comm, *words, "--algorithm", "rdm", "--hidden", 8, "--residual", "--layers", 3) == 0


@pytest.mark.ranks(4)
def test_resumed_in_the_middle_of_an_epoch_on_another_algorithm(comm: Any, shared_tmp_path: Any) -> None:
    store, saved = small_store(shared_tmp_path, comm), shared_tmp_path / "saved"
    logs = [shared_tmp_path / f"{name}.jsonl" for name in ("whole", "parts")]
    words = [store, *NETWORK, "--batch-size", 16, "--epochs", 3]
    run(comm, *words, "--log", logs[0])
    words += ["--checkpoint", saved, "--log", logs[1]]
    asked = iter([0] * 6 + [1] * 9)  # after the sixth update
    stopped = made(comm, *words, "--algorithm", "2d", "--grid", "2x2")
    list(stopped.train(lambda: next(asked)))
    assert stopped.stopped is not None and stopped.stopped["updates"] > 0
    with pytest.raises(dg.UserError, match="batch_size 16, this one has 20"):
        run(comm, *words, "--batch-size", 20, "--resume")
    run(comm, *words, "--resume", "--algorithm", "3d")
    if comm.Get_rank() == 0:
        whole, parts = ([epoch["loss"] for epoch in events(log, "epoch")] for log in logs)
        np.testing.assert_allclose(parts, whole[-len(parts) :], rtol=1e-9)
    comm.Barrier()


@pytest.mark.ranks(1, 4)
def test_a_graph_of_fewer_nodes_than_asked_for(comm: Any, shared_tmp_path: Any, caplog: Any) -> None:
    """All nodes are trained in one step, with a warning where the number was given."""
    store, log = small_store(shared_tmp_path, comm), shared_tmp_path / "log.jsonl"
    full = shared_tmp_path / "full.jsonl"
    run(comm, store, *NETWORK, "--batch-size", N + 1, "--epochs", 2, "--log", log)
    said = [record.message for record in caplog.records if "taken as" in record.message]
    run(comm, store, *NETWORK, "--epochs", 2, "--log", log, "--force")
    run(comm, store, *NETWORK, "--sampler", "none", "--epochs", 2, "--log", full)
    if comm.Get_rank() == 0:
        assert said == [f"batch_size={N + 1}: taken as {N}, all nodes"]
        assert events(log, "run")[0]["config"]["batch_size"] == N
        losses = ([epoch["loss"] for epoch in events(one, "epoch")] for one in (log, full))
        np.testing.assert_allclose(*losses, rtol=1e-9)
    comm.Barrier()


@pytest.mark.ranks(1, 4)
def test_sparse_features(comm: Any) -> None:
    """Losses are those of the same features dense, on an algorithm that cuts columns."""
    r = np.random.default_rng(5)
    n = 300
    A = sp.random_array((n, n), density=0.03, rng=r, format="coo")
    features = sp.random_array((n, 90), density=0.05, rng=r, format="csr", dtype=np.float32)
    labels, split = r.integers(0, 3, n), r.integers(1, 4, n)
    losses = []
    for given in (features, features.toarray()):
        model = dg.fit(
            np.stack((A.row, A.col)), given, labels, split, comm=comm, sampler="vertices", batch_size=90,
            algorithm="2d", epochs=3, dropout=0.4, dtype="float64", normalize_features=False,
            standardize_features=False,
        )  # fmt: skip
        losses.append([record["loss"] for record in model.history])
    np.testing.assert_allclose(*losses, rtol=1e-9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--fanout 5,5", "--fanout 5,5: is not for --sampler vertices, whose step is one subgraph"),
        ("--bulk 2", "--bulk 2: is not for --sampler vertices"),
        ("--batches-per-update 2", "--batches-per-update 2: is not for --sampler vertices"),
        ("--partition-graph", "--partition-graph: is not for --sampler vertices"),
        ("--sparsity-aware", "--sparsity-aware: excludes --sampler vertices; rows that are needed"),
        ("--bulk auto", "--bulk auto: is not for --sampler vertices"),
        ("--algorithm auto --order auto", "--order auto: excludes --sampler vertices"),
        ("--algorithm 2d --replication auto", "--replication auto: 2d keeps no copies; only 1.5d does"),
        ("--train-features", "--sampler vertices: excludes --train-features"),
        ("--batch-size 1", "--batch-size 1: --rescale needs two to be drawn together; take 2 or more"),
        ("--batch-size 0", "--batch-size: expected a whole number, at least 1, not '0'"),
        ("--model sage --rescale", "--rescale: is for --model gcn"),
        ("--importance zou", "--importance zou: is for --sampler ladies, not vertices"),
        ("--wire bfloat16", "--wire bfloat16: excludes --sampler vertices"),
    ],
)
def test_bad_settings(words: str, message: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", small_store(tmp_path), "--sampler", "vertices", *words.split()]) == 2
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1 and message in printed.err


def test_it_says_what_it_does(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sampler", "vertices", "--epochs", "1", "--batch-size", "20"]
    assert cli.main(["train", small_store(tmp_path), *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("; gcn on subgraphs of 20 drawn vertices")
