"""The best epoch, early stopping, and step sizes that change: alike on all ranks, and after a resume."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import distgnn as dg
from distgnn.errors import ArgumentError, UserError
from distgnn.nn.whole_weights import collect
from distgnn.store import prepare
from distgnn.train import Run, Settings
from distgnn.train.best import Best
from distgnn.train.predict import Predictor
from distgnn.train.resolve import resolved
from distgnn.train.schedule import Schedule

from .stores import Communities, events, run, small_store

#: Validation goes up and down at this step size.
WILD: dict[str, Any] = {"hidden": [6], "lr": 0.3, "dropout": 0.5, "bias": True, "seed": 3}
KINDS: dict[str, dict[str, Any]] = {
    "full graph": {"algorithm": "2d", "optimizer": "sgd", "momentum": 0.5, "lr": 3.0, "dropout": 0.2},
    "minibatches": {"sampler": "sage", "model": "gcn", "fanout": [3, 3], "batch_size": 5},
}


@pytest.mark.parametrize(
    ("text", "warmup", "factors"),
    [
        (None, 0, [1, 1, 1, 1, 1, 1]),
        (None, 4, [0.25, 0.5, 0.75, 1, 1, 1]),
        ("cosine", 2, [0.5, 1, 1, (1 + 2**-0.5) / 2, 0.5, (1 - 2**-0.5) / 2]),
        ("step:2,0.1", 1, [1, 1, 1, 0.1, 0.1, 0.01]),
    ],
)
def test_factors_of_the_step_size(text, warmup, factors) -> None:
    schedule = Schedule.parse(text, warmup)
    assert [schedule.at(epoch, 6) for epoch in range(1, 7)] == pytest.approx(factors)


@pytest.mark.parametrize(
    "text", ["cosine:3", "step", "step:0,0.5", "step:3,1.5", "plateau:3", "linear:3,0.5"]
)
def test_other_schedules_are_refused(text) -> None:
    with pytest.raises(ArgumentError, match=f"schedule={text}: expected one of cosine, step:EPOCHS,FACTOR"):
        resolved(Settings(schedule=text), 1)


def test_what_validation_says() -> None:
    """The first of equals is the best; a plateau is counted from it and from the last drop."""
    weights = SimpleNamespace(name="W0", block=np.zeros(2))
    best = Best([weights], keep=True, patience=4, plateau=Schedule.parse("plateau:2,0.5"))  # type: ignore[list-item]
    told = []
    best.observe(0, {"train_acc": 1.0, "val_acc": 1.0})
    assert best.found is None and not best.blocks and not best.stale
    for epoch, value in enumerate([0.1, 0.5, 0.4, 0.5, 0.3, 0.5, 0.6], 1):
        weights.block[...] = epoch
        for _ in range(2):  # as at the end of a run and at the start of the one that goes on
            best.observe(epoch, {"train_acc": 1.0, "val_acc": value})
        told.append((best.found["epoch"], best.blocks["W0"][0], best.drops, best.stale))  # type: ignore[index]
    assert told == [(1, 1, 0, False), (2, 2, 0, False), (2, 2, 0, False), (2, 2, 1, False),
                    (2, 2, 1, False), (2, 2, 2, True), (7, 7, 2, False)]  # fmt: skip


def test_the_step_size_stays_low_where_the_best_is_kept_from_now_on() -> None:
    plateau = Schedule.parse("plateau:2,0.5")
    before, after = Best([], plateau=plateau), Best([], keep=True, plateau=plateau)
    for epoch in range(1, 6):
        before.observe(epoch, {"val_acc": 0.5})
    assert not after.take(before.state()) and after.found is None
    assert after.drops == before.drops == 2


def test_a_resumed_run_has_stopped_only_if_it_had_and_its_patience_is_over() -> None:
    """More patience goes on; less patience stops after the next evaluation, not before the first epoch."""
    for before, after, stopped in ((3, 3, True), (3, 9, False), (9, 3, False)):
        run, resumed = Best([], patience=before), Best([], patience=after)
        for epoch in range(1, 6):
            run.observe(epoch, {"val_acc": 0.5})
        run.stopped = run.stale
        resumed.take(run.state())
        assert (run.stopped, resumed.stopped) == (before == 3, stopped), (before, after)


def test_a_score_that_is_no_number_is_worse_than_any() -> None:
    best = Best([])
    for epoch, value in enumerate([np.nan, np.nan, 0.2, np.nan, 0.3], 1):
        best.observe(epoch, {"val_rocauc": value})
        assert best.found is not None and best.found["epoch"] == [1, 1, 3, 3, 5][epoch - 1]


def trained(run: Run) -> list[np.ndarray]:
    return [collect(p.matrix) for p in run.parameters]


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_the_best_epoch_is_kept_and_predicted_from(comm, shared_tmp_path, kind) -> None:
    """The best weights are those of a run that ends there.

    `Best` copies them before the update, not after.
    """
    store = small_store(shared_tmp_path, comm)
    how = WILD | KINDS[kind] | {"epochs": 12, "patience": 5}
    long = Run(store, Settings(keep_best="val", checkpoint=str(shared_tmp_path / "w"), **how), comm)
    records = list(long.train())
    values = [record["val_acc"] for record in records] + [long.end["val_acc"]]  # by epoch, from 0
    best, last = 1 + int(np.argmax(values[1:])), len(records)
    assert long.best.found == {"epoch": best} | {
        k: long.end["best"][k] for k in ("train_acc", "val_acc", "test_acc")
    }
    assert values[best] == long.end["best"]["val_acc"] and best < last == long.best.seen
    assert (last == 12) == ("stopped" not in long.end) and long.end["epochs"] == last
    assert all(epoch - np.argmax(values[1 : epoch + 1]) < 6 for epoch in range(1, last - 1))
    predictor = Predictor(store, shared_tmp_path / "w", comm, "2d")
    assert predictor.epoch == best
    found = predictor.scores()
    assert found == pytest.approx({name: long.end["best"][name] for name in found})
    assert Predictor(store, shared_tmp_path / "w", comm, which="last").epoch == last
    short = Run(store, Settings(**(how | {"epochs": best, "patience": None})), comm)
    list(short.train())
    long.best.restore()
    ours, theirs = (dg.gather(one.model.forward(one.X)) for one in (long, predictor))
    if comm.Get_rank() == 0:
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(trained(long), trained(short), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-6)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("full graph", {"schedule": "plateau:2,0.5", "eval_every": 2}),
        ("minibatches", {"schedule": "cosine", "warmup": 3, "clip": 0.3, "patience": 4}),
    ],
    ids=["plateau", "cosine"],
)
@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(comm, shared_tmp_path, kind, more) -> None:
    """Interrupted anywhere, also between evaluations: the same step sizes, the same end, the same best."""
    store, saved = small_store(shared_tmp_path, comm), str(shared_tmp_path / "w")
    how = WILD | KINDS[kind] | {"epochs": 11, "keep_best": "val"} | more
    whole = Run(store, Settings(**how), comm)
    expected = list(whole.train())
    assert len({record["lr"] for record in expected}) > 1
    for stop in (3, 6):
        run = Run(store, Settings(**how, checkpoint=saved, checkpoint_every=3, resume=stop > 3), comm)
        for record in run.train():
            if record["epoch"] == stop:
                break
    last = Run(store, Settings(**how, checkpoint=saved, resume=True), comm)
    assert last.first_epoch == 7
    found = list(last.train())
    for name in ("epoch", "lr", "loss"):
        ours, theirs = ([record[name] for record in records] for records in (found, expected[6:]))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=name)
    assert last.end["best"] == whole.end["best"] and last.best.state() == whole.best.state()
    for name, block in last.best.blocks.items():
        np.testing.assert_allclose(block, whole.best.blocks[name], rtol=1e-4, atol=1e-6)


@pytest.mark.ranks(1)
def test_where_a_run_ends_does_not_count(comm, shared_tmp_path) -> None:
    """Every run evaluates its last weights; a longer one would not have."""
    how = {"keep_best": "val", "eval_every": 2, "hidden": [6]}
    store = small_store(shared_tmp_path, comm)
    for epochs, seen in ((4, 4), (5, 4)):
        run = Run(store, Settings(epochs=epochs, **how), comm)  # type: ignore[arg-type]
        assert "val_acc" in list(run.train())[-1] and run.best.seen == seen
    saved = str(shared_tmp_path / "w")
    run = Run(store, Settings(epochs=1, checkpoint=saved, **how), comm)  # type: ignore[arg-type]
    assert len(list(run.train())) == 1 and "best" not in run.end
    assert Predictor(store, saved, comm).epoch == 1


@pytest.mark.ranks(2)
@pytest.mark.slow
def test_what_cannot_go_on_is_refused(comm, shared_tmp_path) -> None:
    store, saved = small_store(shared_tmp_path, comm), str(shared_tmp_path / "w")
    how = WILD | {"checkpoint": saved, "patience": 1, "lr": 1e-9, "keep_best": "val"}
    first = Run(store, Settings(**how), comm)
    assert len(list(first.train())) == 3 and first.end["best"]["epoch"] == 1
    with pytest.raises(UserError, match="keep_best=none: .* which would be lost; say keep_best=val"):
        Run(store, Settings(resume=True, **(how | {"keep_best": "none"})), comm)
    more = Run(store, Settings(resume=True, **(how | {"patience": 3})), comm)
    assert [record["epoch"] for record in more.train()] == [4, 5]
    with pytest.raises(UserError, match="with layer_norm False, this one has True"):
        Run(store, Settings(resume=True, **(how | {"layer_norm": True, "patience": 9})), comm)
    with pytest.raises(ArgumentError, match="patience=3: goes by validation accuracies, which eval_every=0"):
        resolved(Settings(patience=3, eval_every=0), 1)


@pytest.mark.ranks(2)
def test_without_validation_nodes_there_is_no_best(comm, shared_tmp_path) -> None:
    graph = Communities()
    graph.split[graph.split == 2] = 0
    if comm.Get_rank() == 0:
        prepare(graph, shared_tmp_path / "s.dg")
    comm.Barrier()
    for given, advice in (
        (["--keep-best", "val"], "--keep-best val"),
        (["--patience", 3, "--schedule", "plateau:2,0.5"], "--patience 3 and --schedule plateau:2,0.5"),
    ):
        told = f"no node of the validation split has a label; .*, or leave out {advice}$"
        with pytest.raises(UserError, match=told):
            run(comm, shared_tmp_path / "s.dg", *given)
    run(comm, shared_tmp_path / "s.dg", "--schedule", "cosine", "--epochs", 1)


@pytest.mark.ranks(1, 2)
def test_one_class_is_told(comm, shared_tmp_path, caplog) -> None:
    graph, path = Communities(), shared_tmp_path / "s.dg"
    graph.labels, graph.classes = np.minimum(graph.labels, 0), 1
    if comm.Get_rank() == 0:
        prepare(graph, path)
    comm.Barrier()
    Run(path, Settings(), comm)
    told = [record for record in caplog.records if "there is nothing to learn" in record.message]
    assert len(told) == (comm.Get_rank() == 0) and all(one.levelname == "WARNING" for one in told)
    Run(small_store(shared_tmp_path, comm), Settings(), comm)
    assert "there is nothing to learn" not in "".join(r.message for r in caplog.records if r not in told)


@pytest.mark.ranks(1, 4)
@pytest.mark.slow
def test_the_command_checks_and_tells(comm, shared_tmp_path, capsys) -> None:
    """--check follows the schedule, clipped gradients and a deep network, on several grids."""
    store, log = small_store(shared_tmp_path, comm), shared_tmp_path / "log"
    net = ["--hidden", "9,9", "--residual", "--layer-norm", "--bias", "--train-features"]
    steps = ["--schedule", "cosine", "--warmup", 2, "--clip", 0.05, "--keep-best", "val", "--patience", 30]
    where = ["--algorithm", "3d", "--grid", "2x2x1" if comm.Get_size() == 4 else "1x1x1", "--log", log]
    run(comm, store, *net, *steps, *where, "--epochs", 6, "--check")
    if comm.Get_rank() == 0:
        said = capsys.readouterr().out
        assert "equal those of a serial training" in said and "best validation after epoch" in said
        assert [event["lr"] for event in events(log, "epoch")][:3] == pytest.approx([0.005, 0.01, 0.01])
        assert events(log, "end")[0]["best"]["val_acc"] > 0
