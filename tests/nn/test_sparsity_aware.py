"""Training with products that send only the rows needed: the same losses as with whole blocks, in library and
program.
"""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from chosen_grids import each_grid
from distgnn.nn.optim import make
from distgnn.operators import SPARSITY_AWARE, make_grid
from distgnn.partition import Wanted
from distgnn.store import load
from distgnn.train.full_graph import train

from ..train.stores import events, run, small_store
from .problem import Problem

PROBLEM = Problem()
names = pytest.mark.parametrize("name", SPARSITY_AWARE)


@pytest.mark.ranks(1, 4)
@names
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.slow
def test_losses_are_those_of_whole_blocks(comm, name, backend, dropout):
    """On a directed graph; without dropout, A H of the features is computed once."""
    for grid in each_grid(comm, name, backend):
        losses = []
        for sparsity_aware in (False, True, "auto", "cover"):
            A = dg.distribute(PROBLEM.A, grid, name, sparsity_aware=sparsity_aware)
            model = dg.nn.GCN(A, [PROBLEM.width, 8, 7, PROBLEM.classes], dropout=dropout)
            targets = model.targets(PROBLEM.labels, PROBLEM.split)
            X = dg.scatter(PROBLEM.X, model.input_layout)
            records = list(train(model, X, targets, make("sgd", 0.05, momentum=0.9), 4))
            losses.append([[record[key] for key in ("loss", "val_acc", "test_acc")] for record in records])
        for rows in losses[1], losses[3]:
            np.testing.assert_allclose(rows, losses[0], rtol=1e-11)
        assert losses[2] == losses[1]
        grid.free()


@pytest.mark.ranks(1, 4)
@names
@pytest.mark.parametrize("flag", ["--sparsity-aware", "--sparsity-aware=auto"])
@pytest.mark.slow
def test_check_agrees(comm, name, flag, shared_tmp_path, capsys):
    log = shared_tmp_path / "run.jsonl"
    run(
        comm,
        small_store(shared_tmp_path, comm),
        "--algorithm",
        name,
        flag,
        "--epochs",
        4,
        "--check",
        "--log",
        log,
    )
    if comm.Get_rank() == 0:
        printed = capsys.readouterr().out
        assert "equal those of a serial training" in printed and f"{name} {flag[2:]} on" in printed
        assert events(log, "run")[0]["config"]["sparsity_aware"] == (
            True if flag == "--sparsity-aware" else "auto"
        )


@pytest.mark.ranks(4)
@pytest.mark.parametrize("flags", [("1d",), ("1.5d", "--replication", 2), ("rdm", "--grid", "cols=2")])
@pytest.mark.slow
def test_losses_in_an_order_by_partition_are_the_serial_ones(comm, flags, shared_tmp_path, capsys):
    """With dropout, whose masks belong to nodes; with unequal parts, one of four empty."""
    rows = comm.Get_size() // (2 if len(flags) > 1 else 1)
    if comm.Get_rank() == 0:
        part = [node * node % 7 % min(rows, 3) for node in range(60)]
        (shared_tmp_path / "parts").write_text(" ".join(map(str, part)))
    store = small_store(shared_tmp_path, comm, partitions=[Wanted(str(shared_tmp_path / "parts"), rows)])
    words = ["--sparsity-aware", "--order", f"file-{rows}", "--dropout", 0.3, "--epochs", 4, "--check"]
    run(comm, store, "--algorithm", *flags, *words)
    if comm.Get_rank() == 0:
        assert "equal those of a serial training" in capsys.readouterr().out


@pytest.mark.ranks(4)
@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize("kind", dg.nn.NETWORKS.values())
def test_layers_narrower_than_the_process_columns_train_the_same_network(comm, kind, aware):
    """On 1 x 4 ranks two or three have no column of two layers, whatever is multiplied first."""
    found = []
    for algorithm, sizes in (("1d", None), ("rdm", {"rows": 1, "cols": 4})):
        grid = make_grid(comm, algorithm, sizes, backend="numpy")
        A = dg.distribute(PROBLEM.A, grid, algorithm, sparsity_aware=aware)
        heads = {"heads": 1} if issubclass(kind, dg.nn.GAT) or kind is dg.nn.GATv2 else {}
        model = kind(A, [PROBLEM.width, 2, 1, PROBLEM.classes], seed=1, **heads)
        targets = model.targets(PROBLEM.labels, PROBLEM.split)
        X = dg.scatter(PROBLEM.X, model.input_layout)
        found.append([record["loss"] for record in train(model, X, targets, make("sgd", 0.05), 3)])
        grid.free()
    np.testing.assert_allclose(found[1], found[0], rtol=1e-11)


@pytest.mark.ranks(4)
def test_a_store_is_loaded_the_same_way(comm, backend, shared_tmp_path):
    store = small_store(shared_tmp_path, comm)
    grid = dg.Grid(comm, backend=backend, rows=comm.Get_size())
    aware, oblivious = (load(store, grid, "1d", sparsity_aware=choice) for choice in (True, False))
    H = dg.scatter(np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32), aware.input_layout)
    np.testing.assert_allclose(
        backend.to_host((aware @ H).block), backend.to_host((oblivious @ H).block), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(dg.UserError, match="only 1d, 1.5d and rdm can send rows"):
        load(store, grid, "3d", sparsity_aware=True)
    grid.free()
