"""Runs of `distgnn train` on several ranks: the log, checkpoints on other grids, --check."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

import distgnn as dg
from distgnn import cli
from distgnn.arrays.tuning import TUNING
from distgnn.errors import ArgumentError, DisagreementError
from distgnn.nn import optim
from distgnn.operators import make_grid
from distgnn.store import Store, prepare
from distgnn.store.checkpoint import BEGUN
from distgnn.store.format.limits import LIMITS
from distgnn.train import Run, train
from distgnn.train.check import SerialCheck
from distgnn.train.log import RunLog
from distgnn.train.resolve import resolved
from distgnn.train.settings import Settings

from ..nn.problem import ALGORITHMS
from .stores import CLASSES, WIDTH, Communities, events, made, run, small_store

NETWORK = ("--hidden", 6, "--dropout", 0.4, "--weight-decay", "1e-2,0", "--bias", "--lr", 0.05)


@pytest.mark.ranks(1, 4)
def test_log_has_the_format(comm, shared_tmp_path):
    P, log = comm.Get_size(), shared_tmp_path / "run.jsonl"
    run(comm, small_store(shared_tmp_path, comm), "--algorithm", "2d", "--epochs", 3, "--log", log)
    comm.Barrier()
    if comm.Get_rank() > 0:
        return
    (start,), epochs, (end,) = (events(log, kind) for kind in ("run", "epoch", "end"))
    assert start["config"]["widths"] == [WIDTH, 16, CLASSES] and start["config"]["lr"] == 0.01
    assert start["grid"]["rows"] * start["grid"]["cols"] == P
    assert [rank["rank"] for rank in start["ranks"]] == list(range(P))
    assert all({"host", "device"} <= set(rank) for rank in start["ranks"])
    assert {"distgnn", "numpy", "mpi4py"} <= set(start["versions"]) and "MPI" in start["mpi"]
    assert start["cuda_aware"]["answer"] in (True, False)
    assert [e["epoch"] for e in epochs] == [1, 2, 3]
    for e in epochs:
        assert {"loss", "train_acc", "val_acc", "test_acc", "seconds"} <= set(e)
        assert set(e["phases"]) == {"spmm", "gemm", "activation", "loss", "optimizer", "comm", "other"}
        assert e["phases"]["spmm"] > 0
    assert end["epoch_seconds_median"] == np.median([e["seconds"] for e in epochs])
    for name in ("words", "bytes", "messages", "peak_bytes"):
        assert len(end[name]) == P and (max(end[name]) > 0) == (P > 1 or name == "peak_bytes")
    assert {"train_acc", "val_acc", "test_acc"} <= set(end)
    assert len(end["buffer_bytes"]) == P and all(
        p["layers"] > 0 and p["features"] > 0 for p in end["buffer_bytes"]
    )
    assert all(entry["matrix"] for entry in end["ledger"] if entry["words"])
    for rank in range(P):
        words = sum(e["words"] for e in end["ledger"] if e["rank"] == rank and e["phase"] == "comm")
        assert abs(words - end["words"][rank]) <= len(end["ledger"])  # each entry is rounded on its own


@pytest.mark.ranks(1, 4)
@pytest.mark.slow
def test_words_of_the_epochs_and_the_last_evaluation_are_the_words_of_the_run(comm, shared_tmp_path):
    """Without dropout, evaluation costs nothing but once after the last update. The first epoch multiplies
    the features once.
    """
    log, words = shared_tmp_path / "run.jsonl", []
    store = small_store(shared_tmp_path, comm)
    for epochs in (2, 5):
        run(comm, store, "--algorithm", "1d", "--recipe=plain", "--epochs", epochs, "--log", log, "--force")
        comm.Barrier()
        words.append(comm.bcast((events(log, "end")[0]["words"][0], events(log, "epoch")[1]["words"])))
    assert words[1][0] - words[0][0] == pytest.approx(3 * words[0][1], abs=3)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.slow
def test_check_agrees(comm, name, shared_tmp_path, capsys):
    run(comm, small_store(shared_tmp_path, comm), "--algorithm", name, "--epochs", 5, "--check", *NETWORK,
        "--normalize-features", "--train-features")  # fmt: skip
    if comm.Get_rank() == 0:
        assert "equal those of a serial training" in capsys.readouterr().out


@pytest.mark.ranks(8)
@pytest.mark.parametrize(
    ("layers", "first", "more"), [(2, "double", ["--train-features"]), (3, "random", [])], ids=["2", "3"]
)
@pytest.mark.slow
def test_double_permutation_from_a_store(comm, layers, first, more, shared_tmp_path, capsys, monkeypatch):
    """The default order and a further one; directed; an even and an odd number of layers. Blocks of few rows,
    too.
    """
    monkeypatch.setattr(TUNING, "small_sum", 0)
    store = shared_tmp_path / "double.dg"
    if comm.Get_rank() == 0:
        prepare(
            Communities(directed=True), store, order=(first, "double" if first == "random" else "original")
        )
    comm.Barrier()
    options = (
        "--layers",
        layers,
        "--block-rows",
        4,
        "--bias",
        "--dropout",
        0.4,
        "--optimizer",
        "adamw",
        "--weight-decay",
        0.01,
    )
    run(comm, store, "--algorithm", "3d", "--order", "double", "--epochs", 4, "--check", *options, *more)
    if comm.Get_rank() == 0:
        assert "equal those of a serial training" in capsys.readouterr().out


@pytest.mark.ranks(1, 2)
def test_double_permutation_is_for_3d(comm, shared_tmp_path):
    store = shared_tmp_path / "double.dg"
    if comm.Get_rank() == 0:
        prepare(Communities(), store, order=("random", "double"))
    comm.Barrier()
    with pytest.raises(dg.UserError, match=r"--order double: only algorithm 3d .* --order random"):
        run(comm, store, "--order", "double", "--algorithm", "1d")
    with pytest.raises(dg.UserError, match=r"no order 'triple'; it has random, double"):
        run(comm, store, "--order", "triple", "--algorithm", "3d")
    with pytest.raises(dg.UserError, match=r"--block-rows 5: is for 1.5d and 3d"):
        run(comm, store, "--block-rows", 5)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ["1.5d", "2d", "3d-split", "3d"])
@pytest.mark.slow
def test_forms_of_dense_products_are_logged(comm, name, shared_tmp_path):
    store, log = small_store(shared_tmp_path, comm), shared_tmp_path / "run.jsonl"
    losses = []
    for tune in ("--tune-gemm", "--no-tune-gemm"):
        run(comm, store, "--algorithm", name, "--epochs", 3, "--layers", 3, "--log", log, "--force", tune)
        comm.Barrier()
        (start,), epochs = (
            comm.bcast(events(log, kind) if comm.Get_rank() == 0 else None) for kind in ("run", "epoch")
        )
        assert ("gemm" in start) == (tune == "--tune-gemm")
        if "gemm" in start:
            assert len(start["gemm"]) == 3 and all(
                set(layer) == {"T W", "TᵀG", "G Wᵀ"} for layer in start["gemm"]
            )
        losses.append([epoch["loss"] for epoch in epochs])
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.ranks(1, 2)
def test_check_fails_on_every_rank_when_losses_differ(comm, shared_tmp_path, capsys, monkeypatch):
    """Losses differ like those of a program that counts every copy of a row: gradients twice too large."""
    from distgnn.nn import optim

    step, by_ranks = optim.Optimizer.step, lambda ps, g: ps[0].matrix.grid.size * g
    monkeypatch.setattr(
        optim.Optimizer, "step", lambda self, ps, gs: step(self, ps, [by_ranks(ps, g) for g in gs])
    )
    words = "--epochs 5 --check --optimizer sgd --lr 0.1"
    assert run(comm, small_store(shared_tmp_path, comm), *words.split()) == int(comm.size > 1)
    if comm.Get_rank() == 0 < comm.size - 1:
        assert "--check: epoch 2: loss" in capsys.readouterr().err


@pytest.mark.ranks(1, 2)
def test_what_fails_in_the_reference_fails_on_every_rank(comm):
    class Breaks:
        def epoch(self, epoch, lr):
            if epoch == 2:
                raise dg.UserError("no memory left")
            yield 2.0

        def shaken(self, seed, size):
            return self

    def missing():
        raise dg.UserError("features are damaged")

    group = dg.Grid(comm, backend="numpy", rows=comm.Get_size()).world
    check = SerialCheck(group, Breaks)
    check.compare(1, 0.1, [2.0])
    with pytest.raises(dg.UserError, match="no memory left"):
        check.compare(2, 0.1, [2.0])
    with pytest.raises(dg.UserError, match="features are damaged"):
        SerialCheck(group, missing)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("what", ["features", "labels", "split", "permutation"])
def test_only_the_first_rank_reads_for_the_check(comm, shared_tmp_path, monkeypatch, what):
    """And what it cannot read is an error on every rank."""
    store = small_store(shared_tmp_path, comm)
    owner = Store if what != "permutation" else type(Store(store).order())
    original, whole = getattr(owner, what), []

    def read(self, *where):
        if (0, 60) in (where, *where[1:2]):
            whole.append(where)
            raise dg.UserError(f"{what} are damaged")
        return original(self, *where)

    monkeypatch.setattr(owner, what, read)
    with pytest.raises(dg.UserError, match=f"{what} are damaged"):
        run(comm, store, "--epochs", 1, "--check")
    assert len(whole) == (comm.Get_rank() == 0)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(
    ("optimizer", "extra"),
    [("adam", ("--train-features",)), ("sgd", ())],
    ids=["adam-features", "sgd-weights"],
)
@pytest.mark.slow
def test_resume_on_another_grid_continues_the_curve(comm, shared_tmp_path, optimizer, extra):
    """3 epochs on one grid, 3 on another's, the rest on one rank: the losses of one run of 8."""
    store, log, saved = (
        small_store(shared_tmp_path, comm),
        shared_tmp_path / "parts.jsonl",
        shared_tmp_path / "saved",
    )
    words = [
        store,
        *NETWORK,
        "--optimizer",
        optimizer,
        "--momentum",
        0.5 if optimizer == "sgd" else 0,
        *extra,
    ]
    whole = shared_tmp_path / "whole.jsonl"
    run(comm, *words, "--epochs", 8, "--log", whole, "--algorithm", "1.5d")
    words += ["--checkpoint", saved, "--log", log]
    run(comm, *words, "--epochs", 3, "--algorithm", "3d")
    run(comm, *words, "--epochs", 6, "--algorithm", "2d", "--resume", "--checkpoint-every", 2)
    if comm.Get_rank() == 0:
        run(MPI.COMM_SELF, *words, "--epochs", 8, "--resume", "--check")
        parts, reference = events(log, "epoch"), events(whole, "epoch")
        assert [e["epoch"] for e in parts] == list(range(1, 9))
        for name in ("loss", "train_acc", "val_acc", "test_acc"):
            np.testing.assert_allclose([e[name] for e in parts], [e[name] for e in reference], rtol=1e-5)
        assert len(events(log, "run")) == 3
    comm.Barrier()


@pytest.mark.ranks(4)
@pytest.mark.slow
def test_axes_stay_as_they_were_named_and_resume_in_another_order(comm, shared_tmp_path):
    """--grid z=2,x=2,y=1: the log says so, and where every rank stands."""
    store, log = small_store(shared_tmp_path, comm), shared_tmp_path / "log"
    words = [store, *NETWORK, "--algorithm", "3d", "--train-features", "--check", "--log", log]
    words += ["--checkpoint", shared_tmp_path / "saved"]
    run(comm, *words, "--epochs", 2, "--grid", "z=2,x=2,y=1")
    run(comm, *words, "--epochs", 4, "--grid", "2x1x2", "--resume")
    if comm.Get_rank() == 0:
        first, second = events(log, "run")
        assert list(first["grid"].items()) == [("z", 2), ("x", 2), ("y", 1)]
        assert list(first["config"]["grid"]) == list(first["ranks"][1]["coords"]) == ["z", "x", "y"]
        assert [tuple(rank["coords"].values()) for rank in first["ranks"]] == [
            (0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)
        ]  # fmt: skip
        assert list(second["grid"].items()) == [("x", 2), ("y", 1), ("z", 2)]
        assert [event["epoch"] for event in events(log, "epoch")] == [1, 2, 3, 4]
    comm.Barrier()


@pytest.mark.ranks(1, 2)
@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_refused(comm, shared_tmp_path):
    store, saved = small_store(shared_tmp_path, comm), shared_tmp_path / "saved"
    words = [store, "--epochs", 2, "--checkpoint", saved]
    run(comm, *words)
    for other, what in (
        ("--seed=1", "seed"),
        ("--hidden=5", "widths"),
        ("--no-bias", "bias"),
        ("--dropout=0.1", "dropout"),
    ):
        with pytest.raises(dg.UserError, match=what):
            run(comm, *words, "--resume", "--epochs", 4, other)
    with pytest.raises(dg.UserError, match="exists"):
        run(comm, *words)
    run(comm, *words, "--force", "--seed", 1)


@pytest.mark.ranks(1, 2)
@pytest.mark.slow
def test_one_run_at_a_time_writes_a_checkpoint(comm, shared_tmp_path):
    saved = shared_tmp_path / "saved"
    words = [small_store(shared_tmp_path, comm), "--checkpoint", saved, "--epochs"]
    records = made(comm, *words, 2).train()
    next(records)
    with pytest.raises(dg.UserError, match="saved: process .* writes it now; wait for that"):
        run(comm, *words, 2)
    assert [record["epoch"] for record in records] == [2]
    late = made(comm, *words, 4, "--resume").train()
    run(comm, *words, 3, "--resume")
    with pytest.raises(dg.UserError, match="saved: another run has written it in between; resume again"):
        next(late)
    run(comm, *words, 4, "--resume")
    comm.Barrier()
    assert {path.name for path in shared_tmp_path.iterdir()} == {"saved", "small.dg"}


@pytest.mark.ranks(1, 2)
def test_a_first_save_that_was_killed_is_no_obstacle(comm, shared_tmp_path):
    saved = shared_tmp_path / "saved"
    words = [small_store(shared_tmp_path, comm), "--checkpoint", saved, "--epochs", 1]
    if comm.Get_rank() == 0:
        saved.mkdir()
        (saved / "000000-00001.h5").write_bytes(b"half")
        (saved / BEGUN).touch()
    comm.Barrier()
    with pytest.raises(dg.UserError, match="--resume: .*saved holds no checkpoint"):
        run(comm, *words, "--resume")
    run(comm, *words)
    comm.Barrier()
    assert {path.name[:6] for path in saved.iterdir()} == {"manife", "000000"}
    assert not (saved / "000000-00001.h5").exists() or comm.Get_size() > 1


@pytest.mark.ranks(1, 2)
def test_verify_reads_all_of_a_large_store(comm, shared_tmp_path, monkeypatch):
    monkeypatch.setattr(LIMITS, "verified_bytes", 0)
    store = small_store(shared_tmp_path, comm)
    if comm.Get_rank() == 0:
        unused = shared_tmp_path / "small.dg/orders/original/shard-0000-0000.h5"
        content = bytearray(unused.read_bytes())
        content[len(content) // 2] ^= 1
        unused.write_bytes(content)
    comm.Barrier()
    run(comm, store, "--epochs", 1)
    with pytest.raises(dg.UserError, match="the bytes of orders/original/shard-0000-0000.h5 changed since"):
        run(comm, store, "--epochs", 1, "--verify")


@pytest.mark.ranks(1, 2)
@pytest.mark.slow
def test_a_checkpoint_of_another_graph_is_refused(comm, shared_tmp_path):
    """The other graph has as many nodes, features and classes."""
    saved = shared_tmp_path / "saved"
    run(comm, small_store(shared_tmp_path, comm), "--epochs", 1, "--checkpoint", saved)
    others = {"seed": {"seed": 1}, "nnz": {"self_loops": False}, "normalize": {"normalize": "none"}}
    for name, options in others.items():
        folder = shared_tmp_path / name
        if comm.Get_rank() == 0:
            folder.mkdir()
        with pytest.raises(dg.UserError, match=f"saved: was written by a run with graph {name}"):
            run(comm, small_store(folder, comm, **options), "--epochs", 2, "--checkpoint", saved, "--resume")
    for name in ("features", "labels", "split"):
        graph, folder = Communities(), shared_tmp_path / name
        array = graph._features if name == "features" else getattr(graph, name)
        array[[0, 4]] = array[[4, 0]] if name == "features" else array[[1, 2]]
        array[[1, 2]] = array[[2, 1]]
        if comm.Get_rank() == 0:
            prepare(graph, folder, order=("random", "original"))
        comm.Barrier()
        with pytest.raises(dg.UserError, match=f"saved: was written by a run with (graph|content of) {name}"):
            run(comm, folder, "--epochs", 2, "--checkpoint", saved, "--resume")
    same = shared_tmp_path / "copied"
    if comm.Get_rank() == 0:
        same.mkdir()
    run(comm, small_store(same, comm, shards=(2, 2)), "--epochs", 2, "--checkpoint", saved, "--resume")


@pytest.mark.ranks(1, 2)
def test_other_rates_after_a_resume_are_told(comm, shared_tmp_path, caplog):
    """Once, by one rank, against the rates of the last run."""
    words = [small_store(shared_tmp_path, comm), "--checkpoint", shared_tmp_path / "saved"]
    cosine = ["--schedule", "cosine", "--clip", 5]
    for epochs, more, expected in (
        (2, ["--lr", 0.1], None),
        (3, ["--lr", 0.1], None),
        (4, [], "lr=0.01, was 0.1 up to epoch 3"),
        (5, [], None),
        (6, ["--weight-decay", 0.1], "weight_decay=[0.1, 0.1], was [0.0005, 0.0] up to epoch 5"),
        (8, cosine, "weight_decay=[0.0005, 0.0], was [0.1, 0.1] up to epoch 6; schedule=cosine of 8 epochs, "
                    "was None up to epoch 6; clip=5.0, was None up to epoch 6"),
        (9, cosine, "schedule=cosine of 9 epochs, was cosine of 8 epochs up to epoch 8"),
        (10, [*cosine, "--warmup", 9], "schedule=cosine of 10 epochs, was cosine of 9 epochs up to epoch 9; "
                                       "warmup=9, was 0 up to epoch 9"),
    ):  # fmt: skip
        caplog.clear()
        run(comm, *words, "--epochs", epochs, *more, *(["--resume"] if epochs > 2 else []))
        told = [one.message for one in caplog.records if one.levelname == "WARNING"]
        line = f"{shared_tmp_path / 'saved'}: goes on with {expected}"
        assert told == ([line] if expected and comm.rank == 0 else [])


@pytest.mark.ranks(1)
def test_another_rate_is_a_line_on_standard_error(comm, tmp_path, capsys):
    words = ["train", small_store(tmp_path), "--checkpoint", str(tmp_path / "saved"), "--epochs"]
    assert cli.main([*words, "1", "--lr", "0.1"]) == 0
    assert "goes on" not in capsys.readouterr().err
    assert cli.main([*words, "2", "--resume"]) == 0
    line = f"distgnn: warning: {tmp_path / 'saved'}: goes on with lr=0.01, was 0.1 up to epoch 1\n"
    assert capsys.readouterr().err.count(line) == 1


@pytest.mark.ranks(1, 2)
@pytest.mark.slow
def test_a_log_that_got_past_the_checkpoint_has_every_epoch_once(comm, shared_tmp_path, monkeypatch):
    """Epochs 1 to 5 are logged and 4 are saved when the run ends."""
    store, log = small_store(shared_tmp_path, comm), shared_tmp_path / "log"
    words = [
        store,
        "--epochs",
        8,
        "--checkpoint",
        shared_tmp_path / "saved",
        "--checkpoint-every",
        4,
        "--log",
        log,
    ]
    write = RunLog.write

    def interrupted(self, event, fields):
        write(self, event, fields)
        if fields.get("epoch") == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunLog, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(comm, *words)
    monkeypatch.undo()
    comm.Barrier()
    run(comm, *words, "--resume")
    comm.Barrier()
    assert [e["epoch"] for e in events(log, "epoch")] == list(range(1, 9))
    assert len(events(log, "run")) == 2 and len(events(log, "end")) == 1


@pytest.mark.ranks(1, 4)
def test_normalized_features_have_rows_of_sum_one(comm, backend):
    """Columns are cut, too; a row of zeros stays."""
    from distgnn.nn.features import normalize_rows

    X = np.random.default_rng(0).random((13, 7)).astype(np.float32)
    X[3] = 0
    A = dg.distribute(np.eye(13, dtype=np.float32), make_grid(comm, "2d", backend=backend), "2d")
    H = dg.scatter(X, A.input_layout)
    normalize_rows(H)
    whole = dg.gather(H)
    if comm.Get_rank() == 0:
        sums = X.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(whole, X / np.where(sums == 0, 1, sums), rtol=1e-6)


@pytest.mark.ranks(2)
def test_every_order_has_the_same_losses(comm, shared_tmp_path):
    """With dropout, whose masks follow the original ids."""
    store = small_store(shared_tmp_path, comm)
    losses = []
    for order in ("random", "original"):
        job = made(comm, store, "--order", order, "--epochs", 4, "--dtype", "float64", *NETWORK)
        assert len(list(job.train())) == 4
        losses.append(job.model.get_weights())
    for first, second in zip(*losses, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-8, atol=1e-10)


@pytest.mark.ranks(2)
def test_a_store_of_directed_edges(comm, shared_tmp_path):
    if comm.Get_rank() == 0:
        prepare(Communities(directed=True), shared_tmp_path / "d.dg", normalize="row")
    comm.Barrier()
    run(comm, shared_tmp_path / "d.dg", "--epochs", 3, "--check", "--train-features", *NETWORK)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"hidden": [0]}, r"hidden=\[0\]: expected whole numbers, at least 1"),
        ({"epochs": 1.5}, "epochs=1.5: expected a whole number, at least 1"),
    ],
    ids=str,
)
def test_settings_from_python_name_the_argument(setting, message):
    with pytest.raises(ArgumentError, match=message):
        resolved(Settings(**setting), 1)


def test_one_number_stands_for_a_list_of_one():
    assert Settings(hidden=64, weight_decay=0.1).hidden_widths == [64]
    assert Settings(hidden=64, weight_decay=0.1).decays == [0.1, 0.1]


@pytest.mark.ranks(4)
@pytest.mark.slow
def test_a_run_on_ranks_that_disagree_is_refused_on_all(comm, shared_tmp_path):
    odd, path = comm.Get_rank() == 1, small_store(shared_tmp_path, comm)
    other = shared_tmp_path / "other.dg"
    if odd:
        prepare(Communities(), other, order=("random", "original"), seed=1)  # of equal sizes
    comm.Barrier()
    for name, values in {"lr": (0.01, 0.1), "epochs": (2, 3), "seed": (0, 1), "log": (None, "x")}.items():
        with pytest.raises(DisagreementError, match=f"ranks disagree: {name} is .* on rank 1"):
            Run(path, Settings(**{name: values[odd]}), comm)
    for there in (other, shared_tmp_path / "nowhere.dg"):
        with pytest.raises(DisagreementError, match="ranks disagree: the store's manifest is .* on rank 1"):
            Run(there if odd else path, Settings(epochs=1), comm)
        with pytest.raises(DisagreementError, match="ranks disagree: the store's manifest is .* on rank 1"):
            dg.load(there if odd else path, make_grid(comm, "1d"))
    with pytest.raises(DisagreementError, match="ranks disagree: dtype is float32 on rank.* on rank 1"):
        dg.load(path, make_grid(comm, "1d"), dtype=np.float64 if odd else np.float32)
    run = Run(path, Settings(epochs=1, quiet=odd), comm)
    assert len(list(run.train())) == 1
    for name, options in {"lr": ("adam", 0.1), "optimizer": ("sgd",), "epochs": ("adam",)}.items():
        run = Run(path, Settings(recipe="plain", epochs=3), comm)
        if odd:
            run.optimizer = optim.make(*options)
        with pytest.raises(DisagreementError, match=f"ranks disagree: {name} is .* on rank 1"):
            next(train(run.model, run.X, run.targets, run.optimizer, 3 + (odd and name == "epochs")))
