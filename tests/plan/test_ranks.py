"""Ranks that are not there meet like ranks of MPI, and what they do wrong is found at once."""

import numpy as np
import pytest
from mpi4py import MPI

from distgnn import ledger
from distgnn.arrays import backend
from distgnn.comm.exchange import Exchange
from distgnn.comm.flight import Flight
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.plan.dry.absent import OneOfMany
from distgnn.plan.dry.backend import SHAPES
from distgnn.plan.dry.ranks import Stuck, run_all


def objects(comm):
    """Run all operations on small objects, on any communicator of 6 ranks; return their results."""
    rank = comm.Get_rank()
    column = comm.Split(rank % 2, -rank)
    lowest = np.array([rank + 3, -rank], np.int64)
    comm.Allreduce(MPI.IN_PLACE, lowest, MPI.MIN)
    octets = bytearray([rank, 7 - rank])
    comm.Allreduce(MPI.IN_PLACE, [octets, MPI.UNSIGNED_CHAR], MPI.MAX)
    everybody = comm.allgather(("rank", rank)), comm.bcast(rank * 2, 4)
    swapped = comm.alltoall([10 * rank + to for to in range(6)])
    half = column.Get_rank(), column.allgather(rank), column.Dup().bcast(rank, 1)
    whole = column_numbers(Comm(column, backend.get("numpy")), rank)
    return everybody, swapped, half, lowest.tolist(), bytes(octets), whole


def column_numbers(group, rank):
    """Compute the column numbers of 3 ranks by collectives."""
    whole = group.allgather_rows(np.full((group.rank, 2), rank), np.array([0, 0, 1, 3]))
    return whole.tolist(), group.bcast(np.array([rank]), 2).tolist()


@pytest.mark.ranks(6)
def test_virtual_ranks_meet_like_real_ones(comm):
    assert objects(comm) == run_all(6, objects)[comm.Get_rank()]


def test_every_rank_has_books_of_its_own():
    def program(comm):
        with ledger.Ledger() as mine:
            ledger.charge("comm", "bcast", words=comm.Get_rank())
            comm.Barrier()
            ledger.charge("comm", "bcast", words=10)
            ledger.held("layers", 5 + comm.Get_rank())
        return mine.words, mine.peak["layers"]

    with ledger.Ledger() as own:
        assert run_all(3, program) == [(10, 5), (11, 6), (12, 7)]
    assert own.words == 0 and not own.entries()


def test_who_waits_in_vain_is_told():
    def program(comm):
        if comm.Get_rank() != 1:
            comm.Barrier()

    with pytest.raises(Stuck, match=r"ranks \[0, 2\] wait for others that do not come"):
        run_all(3, program)


def test_an_error_of_one_rank_is_what_the_others_wait_for():
    def program(comm):
        if comm.Get_rank() == 1:
            raise KeyError("mine")
        comm.Barrier()

    def kindly(comm):
        with Comm(comm, SHAPES).together():
            if comm.Get_rank() == 1:
                raise ArithmeticError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_all(3, program)
    with pytest.raises(RuntimeError, match="rank 1 .*failed with ArithmeticError: mine"):
        run_all(3, kindly)


def test_messages_must_be_received_as_they_are_sent():
    def program(comm, sizes):
        group = Comm(comm, SHAPES)
        into = [(1 - comm.Get_rank(), SHAPES.empty((sizes[comm.Get_rank()],), np.float32))]
        with Exchange(group, into, "H") as exchange:
            exchange.send(SHAPES.empty((5,), np.float32), 1 - comm.Get_rank())

    run_all(2, lambda comm: program(comm, [5, 5]))
    with pytest.raises(Stuck, match="not sent as they are received"):
        run_all(2, lambda comm: program(comm, [5, 6]))


def test_numbers_of_the_host_travel_among_all_ranks():
    def program(comm, silent=None):
        group, rank = Comm(comm, backend.get("numpy")), comm.Get_rank()
        into = np.zeros(3)
        with Exchange(group, [((rank - 1) % 3, into)], "rows") as exchange:
            if rank != silent:
                exchange.send(np.full(3, 10.0 * rank), (rank + 1) % 3)
        return into.tolist()

    assert run_all(3, program) == [[20.0] * 3, [0.0] * 3, [10.0] * 3]
    with pytest.raises(Stuck, match=r"ranks \[2\] wait for numbers that nobody sends"):
        run_all(3, lambda comm: program(comm, silent=1))


def test_numbers_do_not_travel_to_ranks_that_are_not_run():
    comm = OneOfMany(4, 1)
    with pytest.raises(TypeError, match="numbers do not travel"):
        Flight(comm, "alltoallv", "world", "H").send(np.zeros(3), 0, 0, lambda: None)


def test_one_rank_takes_the_others_to_be_like_it():
    grid = Grid(OneOfMany(12, 5), backend=SHAPES, rows=4, cols=3)
    assert grid.coords == {"rows": 1, "cols": 2}
    assert (grid.along("rows").rank, grid.along("rows").size) == (1, 4)
    assert (grid.along("cols", "rows").rank, grid.along("cols", "rows").size) == (9, 12)
    assert grid.world.gather_objects("me") == ["me"] * 12
    assert grid.along("cols").swap_objects(["a", "b", "c"]) == ["a", "b", "c"]
    grid.free()
