"""Ranks learn of an error in a task, leave it together, and what follows is right."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import distgnn as dg
from distgnn import progress
from distgnn.comm import session as sessions
from distgnn.comm.flight import _under_way as flights
from distgnn.comm.session import joined, session_of, task
from distgnn.errors import PeerError, UserError

SIZE = 5000  # of messages beyond those that MPI sends at once


def summed(mpi, value: int) -> int:
    array = np.full(SIZE, value)
    mpi.Allreduce(sessions.MPI.IN_PLACE, array)
    assert (array == array[0]).all()
    return int(array[0])


def total(comm) -> int:
    return comm.size * (comm.size - 1) // 2


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.abandons
@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt(), SystemExit(1), UserError("x")])
def test_an_error_on_one_rank_is_raised_on_all(comm, error, monkeypatch) -> None:
    monkeypatch.setattr(progress, "LONG", 0.02)
    for failing in range(comm.size):
        for calls in range(3):
            with pytest.raises((type(error), PeerError)) as raised, task(comm) as mpi:
                for call in range(3):
                    if comm.rank == failing and call == calls:
                        raise error
                    summed(mpi, call)
            if comm.rank != failing:
                assert isinstance(raised.value, PeerError), raised.value
                assert f"rank {failing} on host" in str(raised.value)
            with task(comm) as mpi:
                assert summed(mpi, comm.rank) == total(comm)


@pytest.mark.ranks(2, 4)
def test_ranks_poll_where_they_do_not_outnumber_the_cores(comm, monkeypatch) -> None:
    """A core short, they take naps at once; each may run on one. The first rank comes when the last waits."""
    firsts = list[str]()
    for cores in (comm.size, comm.size - 1):
        monkeypatch.setattr("distgnn.comm.launch.cores", lambda cores=cores: {min(comm.rank, cores - 1)})
        mpi = joined(comm.Dup())
        for collective in (lambda mpi=mpi: summed(mpi, 1), mpi.session.renew):
            calls = list[str]()

            def noted(name, wait, calls=calls):
                def call(*arguments, **options):
                    calls.append(name)
                    if len(calls) == 1:
                        comm.send(None, 0)
                    return wait(*arguments, **options)

                return call

            with monkeypatch.context() as patch:
                if comm.rank == comm.size - 1:
                    for name in ("soon", "wait"):
                        patch.setattr(progress, name, noted(name, getattr(progress, name)))
                elif comm.rank == 0:
                    comm.recv(source=comm.size - 1)
                collective()
            firsts += calls[:1]
    assert firsts == (["soon"] * 2 + ["wait"] * 2 if comm.rank == comm.size - 1 else [])


@pytest.mark.ranks(3)
@pytest.mark.abandons
def test_ranks_that_fail_at_different_depths_leave_together(comm, monkeypatch) -> None:
    monkeypatch.setattr(progress, "LONG", 0.02)
    for depth in range(3):
        with pytest.raises((ZeroDivisionError, PeerError)), task(comm):
            if comm.rank == 0 and depth == 0:
                1 / 0
            with task(comm) as mpi:
                summed(mpi, 1)
                if comm.rank == 0 and depth == 1:
                    1 / 0
                with task(comm) as inner:
                    summed(inner, 1)
                    if comm.rank == 0:
                        1 / 0
                    summed(inner, 1)
        with task(comm) as mpi:
            assert summed(mpi, comm.rank) == total(comm)


@pytest.mark.ranks(3)
@pytest.mark.abandons
def test_a_rank_that_leaves_a_generator_early_is_waited_for_no_longer(comm, monkeypatch) -> None:
    monkeypatch.setattr(progress, "LONG", 0.02)

    def steps():
        with task(comm) as mpi:
            for _ in range(5):
                yield summed(mpi, comm.rank)

    for everybody in (True, False):
        caught = False
        try:
            for step, _ in enumerate(steps()):
                if step == 2 and (everybody or comm.rank == 1):
                    break
        except PeerError as error:
            caught = "rank 1 on host" in str(error) and "left a training" in str(error)
        assert caught == (not everybody and comm.rank != 1)
        with task(comm) as mpi:
            assert summed(mpi, comm.rank) == total(comm)


@pytest.mark.ranks(3)
def test_an_error_of_all_ranks_needs_no_new_communicators(comm) -> None:
    own = session_of(comm)
    assert own is not None
    joined(comm)
    before = own.generation
    for _ in range(3):
        with pytest.raises(UserError, match="on all"), task(comm):
            raise UserError("on all")
    assert own.generation == before and session_of(comm) is own


@pytest.mark.ranks(2)
def test_dropped_grids_give_their_communicators_back(comm, monkeypatch) -> None:
    """Ranks drop them at different times, and one is kept by a cycle on one rank."""
    monkeypatch.setattr(sessions, "MANY", 4)
    own = comm.Dup()
    kept = dg.Grid(own, rows=comm.size)
    for number in range(20):
        grid = dg.Grid(own, rows=comm.size)
        grid.along("rows")
        if comm.rank == number % comm.size:
            grid.itself = grid
        del grid
        if number % 7 == comm.rank:
            gc.collect()
    assert len(session_of(own).grids) <= 9
    assert kept.world.allreduce(np.ones(SIZE))[0] == comm.size
    kept.free()
    own.Free()


@pytest.mark.ranks(4)
def test_some_ranks_of_a_grid_have_grids_of_their_own(comm) -> None:
    """A program may make a grid on the ranks of a row of another: only these take part."""
    grid = dg.Grid(comm, rows=2, cols=2)
    row = grid.along("cols").mpi
    A = np.arange(SIZE * 2.0).reshape(2, SIZE) + grid.coords["rows"]
    for _ in range(2):
        if grid.coords["rows"] == 0:
            own = dg.make_grid(row, "1d")
            assert own.size == 2 and own.rank == row.Get_rank()
            operator = dg.distribute(A.T, own, "1d")
            product = dg.gather(operator @ dg.scatter(np.ones((2, 1)), operator.input_layout))
            assert own.rank or (product[:, 0] == A.sum(axis=0)).all()
            own.free()
    assert summed(joined(comm), comm.rank) == total(comm)
    grid.free()


@pytest.mark.ranks(2)
@pytest.mark.timeout(300)
def test_where_mpi_has_no_room_for_communicators_the_error_says_what_to_free(comm) -> None:
    """In the first call on a communicator, with room for 0 to 2 more, and for a grid of a session."""
    known, fresh, taken, kept = comm.Dup(), comm.Dup(), [], []
    dg.make_grid(known, "1d").free()
    try:
        with pytest.raises(sessions.MPI.Exception):
            while True:
                taken.append(comm.Dup())
        for left, own in enumerate((fresh, fresh, fresh, known)):
            for _ in range(left > 0 and own is fresh):
                taken.pop().Free()
            for _ in range(3):  # what failed has given back what it made
                with pytest.raises(UserError, match=r"no room for more; call free\(\) of grids"):
                    kept.append([dg.make_grid(own, "1d") for _ in range(9)])
    finally:
        for one in taken:
            one.Free()
    grid = dg.make_grid(fresh, "1d")
    assert grid.world.allreduce(np.ones(SIZE))[0] == comm.size
    grid.free()
    known.Free()
    fresh.Free()


@pytest.mark.ranks(2, 3)
@pytest.mark.abandons
def test_an_interrupt_while_a_rank_polls_keeps_the_memory_of_the_message(comm, monkeypatch) -> None:
    """The others complete the sum, in which MPI still writes, and what follows is right."""
    mpi, array = joined(comm), np.full(SIZE, comm.rank)
    if comm.rank == 0:

        def interrupt() -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(progress, "_yield_core", interrupt)
        with pytest.raises(KeyboardInterrupt):
            mpi.Allreduce(sessions.MPI.IN_PLACE, array)
        assert mpi.session.broken and any(flight.requests for flight in flights.values())
        for rank in range(1, comm.size):
            comm.send(None, rank)
    else:
        comm.recv(source=0)
        mpi.Allreduce(sessions.MPI.IN_PLACE, array)
        assert (array == total(comm)).all()
    for _ in range(2):
        assert summed(joined(comm), comm.rank) == total(comm)
