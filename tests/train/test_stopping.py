"""Runs that are asked to stop: all ranks together, after an update, and on to the same numbers."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgnn as dg
from distgnn.cli.stop import CODE, SIGNALS, Stop, handled
from distgnn.comm.group import Comm
from distgnn.errors import ArgumentError, DisagreementError
from distgnn.store import checkpoint
from distgnn.train import Run
from distgnn.train.minibatches import after, turns
from distgnn.train.predict import Predictor
from distgnn.train.settings import Settings

from .stores import events, run, small_store
from .test_best import WILD

KINDS: dict[str, dict[str, Any]] = {
    "full graph": {"algorithm": "1d", "schedule": "plateau:2,0.5", "eval_every": 2, "patience": 7},
    "minibatches": {
        "sampler": "sage", "model": "gcn", "fanout": [3, 3], "batch_size": 4, "batches_per_update": 2,
        "schedule": "cosine", "warmup": 3, "clip": 0.3,
    },
}  # fmt: skip


class Asked:
    """A signal that reaches one rank just before it has been looked for so many times."""

    def __init__(self, here: bool, times: int) -> None:
        self.left = times if here else -1

    def __call__(self) -> int:
        self.left -= 1
        return signal.SIGTERM if self.left == 0 else 0


def numbers(record: Any) -> dict[str, Any]:
    """Return the numbers of an epoch that do not depend on time."""
    timed = ("seconds", "phases", "flight", "words", "eval_seconds", "steps", "event")
    return {name: value for name, value in record.items() if name not in timed}


def contents(path: Path, comm: Any) -> dict[str, Any]:
    """Return all of a checkpoint, but for its name and how many minibatches are sampled at a time."""
    reader = checkpoint.load(path, Comm(comm, dg.arrays.backend.get("numpy")))
    whole = {name: reader.piece(name, (0, rows), (0, cols)) for name, (rows, cols) in reader.shapes.items()}
    settings = {name: value for name, value in reader.meta["settings"].items() if name != "bulk"}
    meta = dict(reader.meta) | {"settings": settings}
    return {name: array.tobytes() for name, array in whole.items()} | {"meta": meta}


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("kind", KINDS)
def test_stopped_anywhere_and_resumed_to_the_same_bits(comm, shared_tmp_path, kind) -> None:
    store, saved, log = small_store(shared_tmp_path, comm), shared_tmp_path / "w", shared_tmp_path / "log"
    how = WILD | KINDS[kind] | {"epochs": 9, "keep_best": "val", "tune_gemm": False}
    expected = [*Run(store, Settings(**how, checkpoint=f"{saved}-whole"), comm).train()]
    found, stops = [], []
    for number, times in enumerate(itertools.cycle((1, 2, 3, 5, 4))):
        resumed = saved.exists()
        files = {"checkpoint": str(saved), "log": str(log), "force": not resumed, "resume": resumed}
        part = Run(store, Settings(**how, **files, bulk=1 + number % 3 if "fanout" in how else None), comm)
        found += part.train(Asked(comm.rank == number % comm.size, times))
        if part.stopped is None:
            break
        stops.append((part.stopped["epoch"], part.stopped["updates"]))
        assert part.end == {} and part.stopped["signal"] == signal.SIGTERM
    assert [*map(numbers, found)] == [*map(numbers, expected)]
    assert len(stops) >= 4 and stops[:2] == [(0, 0), (0, 1) if kind == "minibatches" else (1, 0)]
    assert contents(saved, comm) == contents(Path(f"{saved}-whole"), comm)
    if comm.rank == 0:
        assert [*map(numbers, events(log, "epoch"))] == [*map(numbers, expected)]
        assert len(events(log, "stopped")) == len(stops) - 1  # nothing was saved after the first
    comm.Barrier()


@pytest.mark.ranks(1, 3)
def test_a_signal_ends_the_command(comm, shared_tmp_path, capsys, monkeypatch) -> None:
    store, saved = small_store(shared_tmp_path, comm), shared_tmp_path / "w"
    handlers = [signal.getsignal(number) for number in SIGNALS]
    words = [store, "--quiet", "--epochs", 5]

    def at_epoch(number: int, epoch: int) -> None:
        def logged(record: Any) -> None:
            if comm.rank == comm.size - 1 and record["epoch"] == epoch:
                os.kill(os.getpid(), number)

        monkeypatch.setattr("distgnn.train.run.log_epoch", logged)

    for epoch, number in enumerate(SIGNALS, 1):
        at_epoch(number, epoch)
        assert run(comm, *words, "--checkpoint", saved, *["--resume"] * (epoch > 1)) == CODE == os.EX_TEMPFAIL
        line = f"distgnn: {signal.Signals(number).name}: stopped after epoch {epoch}; "
        said = capsys.readouterr().err.splitlines()
        assert said[-1:] == ([] if comm.rank else [f"{line}--resume goes on from {saved}"])
        assert [signal.getsignal(number) for number in SIGNALS] == handlers
    at_epoch(signal.SIGTERM, 5)  # the last epoch is made: there is nothing to stop
    assert run(comm, *words, "--checkpoint", saved, "--resume") == 0
    at_epoch(signal.SIGTERM, 2)
    capsys.readouterr()
    assert run(comm, *words) == CODE
    end = "stopped after epoch 2; nothing is saved, as there is no --checkpoint\n"
    assert capsys.readouterr().err.endswith("" if comm.rank else end)


def test_ctrl_c_once_more_interrupts(monkeypatch, capfd) -> None:
    now = [10.0]
    monkeypatch.setattr("distgnn.cli.stop.time.monotonic", lambda: now[0])
    stop = Stop()
    with handled(stop.keep):
        assert stop() == 0
        for seconds in (0.0, 0.5):  # the launcher's, and the terminal's
            now[0] += seconds
            os.kill(os.getpid(), signal.SIGINT)
            assert stop() == signal.SIGINT
        now[0] += 2
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    line = "distgnn: SIGINT: stops after this update; Ctrl-C once more stops at once\n"
    assert capfd.readouterr().err == line


def test_signals_that_are_ignored_stay_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stop = Stop()
        with handled(stop.keep):
            os.kill(os.getpid(), signal.SIGINT)
            assert stop() == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_library_leaves_signals_to_its_caller() -> None:
    caught = []
    before = {number: signal.signal(number, lambda got, _: caught.append(got)) for number in SIGNALS}
    try:
        edges, draw = np.array([np.arange(30), np.roll(np.arange(30), 1)]), np.random.default_rng(0)
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        model = dg.fit(edges, draw.random((30, 4), np.float32), np.arange(30) % 2, epochs=2)
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        assert len(model.history) == 2 and caught == [*SIGNALS, *SIGNALS]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.ranks(1, 2)
def test_a_finished_run_has_nothing_left(comm, shared_tmp_path, caplog) -> None:
    """Killed after its last save, it has a log without an end."""
    store, saved, log = small_store(shared_tmp_path, comm), shared_tmp_path / "w", shared_tmp_path / "log"
    words = [store, "--checkpoint", saved, "--log", log, "--patience", 1, "--lr", 1e-9]
    for epochs, reached, more in ((2, 2, "epochs"), (20, 3, "patience")):
        run(comm, *words, "--epochs", epochs, *["--resume"] * (epochs > 2))
        comm.Barrier()
        if comm.rank == 0:
            lines = log.read_text().splitlines(True)
            assert '"end"' in lines[-1]
            log.write_text("".join(lines[:-1]))
        comm.Barrier()
        before = contents(saved, comm), log.read_text()
        caplog.clear()
        assert run(comm, *words, "--epochs", epochs, "--resume") == 0
        assert (contents(saved, comm), log.read_text()) == before
        line = f"{saved} has all {reached} epochs; for more, resume it with more {more}"
        assert [record.getMessage() for record in caplog.records] == ([] if comm.rank else [line])
        comm.Barrier()
    with pytest.raises(dg.UserError, match="--epochs 1: .*w is of epoch 3 already; ask for more"):
        run(comm, *words, "--epochs", 1, "--resume")


@pytest.mark.ranks(2)
def test_weights_of_the_middle_of_an_epoch(comm, shared_tmp_path, caplog) -> None:
    store, saved = small_store(shared_tmp_path, comm), str(shared_tmp_path / "w")
    how = WILD | KINDS["minibatches"] | {"epochs": 4, "checkpoint": saved, "keep_best": "none"}
    part = Run(store, Settings(**how), comm)
    assert [record["epoch"] for record in part.train(Asked(comm.rank == 1, 6))] == [1]
    assert part.stopped == {"epoch": 1, "updates": 2, "signal": signal.SIGTERM}
    assert Predictor(store, saved, comm).epoch == 1
    assert caplog.messages[-1] == f"{saved}: was saved after 2 updates of epoch 2"
    with pytest.raises(ArgumentError, match="check=True: .*w is of the middle of an epoch"):
        Run(store, Settings(**how, resume=True, check=True), comm)
    checked = Run(store, Settings(**how | {"checkpoint": None}, check=True), comm)
    assert [record["epoch"] for record in checked.train(Asked(comm.rank == 1, 3))] == [1, 2]


@pytest.mark.ranks(2)
def test_all_ranks_are_asked_or_none(comm, shared_tmp_path) -> None:
    one = Run(small_store(shared_tmp_path, comm), Settings(epochs=1), comm)
    with pytest.raises(DisagreementError, match="stop is"):
        list(one.train((lambda: 0) if comm.rank else None))


def test_turns_after_updates() -> None:
    for minibatches, per_update, ranks in itertools.product((1, 7, 12), (1, 3, 8), (1, 2, 5)):
        dealt = turns(minibatches, per_update, ranks)
        for updates in range(-(-minibatches // per_update) + 1):
            left = [n for turn in after(dealt, updates) for n in turn.numbers if n is not None]
            assert left == [*range(min(updates * per_update, minibatches), minibatches)]
