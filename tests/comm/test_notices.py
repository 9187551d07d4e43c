"""Ranks learn who has left: those that wait for it, and no others."""

from __future__ import annotations

import threading
import time

import pytest

import distgnn as dg
from distgnn.comm import leaving, waiting
from distgnn.comm.notices import Notices
from distgnn.comm.waiting import Wait
from distgnn.comm.watched import Watched
from distgnn.errors import PeerError


def until_error(check, seconds: float = 5.0) -> str:
    """Return the text of the PeerError that a check raises within so many seconds; empty without one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            check()
        except PeerError as error:
            return str(error)
    return ""


@pytest.mark.ranks(4)
def test_a_collective_that_a_rank_began_before_it_left_is_no_wait_in_vain(comm) -> None:
    grid = dg.Grid(comm.Dup())  # which has a session of its own
    group, notices = grid.along("rows").mpi, grid.links.session.notices
    if comm.rank == 0:
        group.begin()  # of a collective that the others wait in, and not of the next
        notices.send_departure()
    else:
        began, not_began = group.begin(), group.begin()
        assert "has left the program without taking part" in until_error(not_began)
        assert until_error(began, 0.2) == ""
        notices.check(range(1, comm.size), group.index, 10**6)  # a group without the rank that left
    comm.Barrier()
    notices.failure = ""


@pytest.mark.ranks(4)
def test_no_notice_is_on_its_way_to_a_rank_that_has_parted(comm) -> None:
    notices, late = Notices(comm.Dup()), {1, 3}
    parting = notices.part()
    next(parting, True)
    if comm.rank in late:  # the others have met it, and it has not met them
        time.sleep(0.3)
        notices.send_departure()
    while not next(parting, True):
        time.sleep(0.01)
    assert set(notices._received) == late - {comm.rank} and not notices.mpi.iprobe()
    assert all(send.Test() for send in notices._sends)
    comm.Barrier()
    leaving.forget(notices)
    notices.mpi.Free()


@pytest.mark.ranks(2)
def test_blocking_collectives_are_counted_and_noted(comm, monkeypatch) -> None:
    grid, entered = dg.Grid(comm), []
    enter = Wait.__enter__
    monkeypatch.setattr(Wait, "__enter__", lambda wait: entered.append(wait.operation) or enter(wait))
    group = grid.world.mpi
    notices = grid.links.session.notices
    before = notices.calls.get(group.index, 0)
    grid.world.barrier()
    grid.world.gather_objects(1)
    assert isinstance(group, Watched) and entered == ["barrier", "allgather"]
    assert notices.calls[group.index] == before + 2


def test_a_wait_inside_another_keeps_the_matrix() -> None:
    thread = threading.get_ident()
    with Wait("bcast", "rows", "H"):
        with Wait("allreduce", "world"):
            noted = waiting._waits[thread]
            text = str(noted)
        assert waiting._waits[thread] is noted
    assert text.startswith("bcast of H over rows")
    assert thread not in waiting._waits


def test_a_rank_says_once_in_each_wait_that_it_waits(monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(waiting, "LOOK", 0.01)
    monkeypatch.setattr(waiting, "_stop", threading.Event())
    monkeypatch.setattr(waiting.launch, "say", said.append)
    monkeypatch.setattr(waiting, "_limit", 0.02)
    watch = threading.Thread(target=waiting._look)
    watch.start()
    for operation in ("bcast", "allreduce"):
        with Wait(operation, "rows"):
            time.sleep(0.3)
    waiting._stop.set()
    watch.join()
    waits = [line.rpartition(" in ")[2].split(",")[0] for line in said]
    assert waits == ["bcast over rows", "allreduce over rows"]
