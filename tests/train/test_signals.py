"""A signal that ends a training on one rank: the others learn of it, and the next training is right."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import distgnn as dg
from distgnn import progress
from distgnn.comm import launch
from distgnn.errors import PeerError
from distgnn.nn import optim

UPDATE = 3  # in which the signal comes


def wait_until(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)


@pytest.mark.ranks(3, 4)
@pytest.mark.abandons
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_one_rank_inside_fit(
    comm: Any, number: signal.Signals, busy: bool, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for the rank, or are `busy` for longer than it waits for them, until it is out."""
    graph = dg.gallery.sbm(1200, communities=3, features=16)
    out, step = shared_tmp_path / "out", optim.Optimizer.step
    monkeypatch.setattr(progress, "LONG", 0.02)
    monkeypatch.setattr(launch, "PATIENCE", 0.3 if busy else 60.0)
    made = 0

    def steps(*given: Any) -> None:
        nonlocal made
        made += 1
        if made == UPDATE and comm.rank == 1:
            os.kill(os.getpid(), number)
        elif made == UPDATE and busy:
            wait_until(out)
        step(*given)

    def end(*_: object) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(3)

    def trained(epochs: int) -> list[float]:
        model = dg.fit(graph.A, graph.features, graph.labels, epochs=epochs, algorithm="1d", comm=comm)
        return [record["loss"] for record in model.history]

    right, before = trained(2), signal.signal(number, end)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(optim.Optimizer, "step", steps)
            with pytest.raises((KeyboardInterrupt, SystemExit, PeerError)) as raised:
                trained(50)
    finally:
        signal.signal(number, before)
    if comm.rank == 1:
        assert not isinstance(raised.value, PeerError)
        out.write_text("")
    else:
        assert made >= UPDATE and "rank 1 on host" in str(raised.value)
        assert out.exists() or not busy
    assert trained(2) == pytest.approx(right, rel=1e-6)  # products are tuned by time
