"""Exchanges in steps: what they bring and are charged, what travels between steps, and how they end early."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import distgnn as dg
from distgnn import progress
from distgnn.comm import steps as in_steps
from distgnn.comm.flight import under_way
from distgnn.comm.group import Comm
from distgnn.comm.steps import Steps, Swap, abandon, at_once, gather, side_by_side, swap, swap_numbers
from distgnn.errors import PeerError, UserError

from .test_group import StagedBackend, mine, uneven


@pytest.fixture(params=["plain", "staged"])
def team(request: Any, comm: MPI.Intracomm, backend: Any) -> Comm:
    """Make a group of all ranks, whose arrays MPI is given, or copies of them."""
    made = Comm(comm, StagedBackend() if request.param == "staged" and not backend.on_device else backend)
    made.direct = request.param == "plain" and not backend.on_device
    return made


def sent_to(team: Any, rank: int, width: int) -> Any:
    """Make what this rank sends another one: as many rows as the sum of both."""
    return mine(team, (team.rank + rank, width)) + 10_000 * rank


def swaps(team: Any, widths: tuple[int, ...]) -> list[Swap]:
    made, ranks = [], range(team.size)
    for width in widths:
        into = {rank: team.backend.empty((team.rank + rank, width), np.float64) for rank in ranks}
        made.append(Swap({rank: sent_to(team, rank, width) for rank in ranks}, into, f"X{width}"))
    return made


def check(team: Any, given: list[Swap], widths: tuple[int, ...]) -> None:
    for (_, into, _), width in zip(given, widths, strict=True):
        for rank, array in into.items():
            height = team.rank + rank
            expected = np.arange(height * width).reshape(height, width) % 11
            expected = expected + 100 * rank + 10_000 * team.rank
            np.testing.assert_array_equal(team.backend.to_host(array), expected)


@pytest.mark.ranks(1, 3, 4)
def test_arrays_are_swapped_in_one_step(team: Any) -> None:
    for widths in ((3,), (1, 0, 5), ()):
        given = swaps(team, widths)
        with dg.Ledger() as counted:
            steps = swap(team, *given)
            assert next(steps) is None
            with pytest.raises(StopIteration):
                next(steps)
        check(team, given, widths)
        others = sum(team.rank + rank for rank in range(team.size) if rank != team.rank)
        assert counted.words == sum(widths) * others
        assert {e["matrix"] for e in counted.entries()} == {f"X{width}" for width in widths}


@pytest.mark.ranks(1, 3, 4)
def test_functions_take_their_steps_side_by_side(team: Any) -> None:
    """Messages of the second one are sent before the first one is over; one of them has no step."""

    def numbers(times: int) -> Steps[list[int]]:
        found = np.full((team.size, 1), team.rank)
        for _ in range(times):
            found = yield from swap_numbers(team, found + 10 * np.arange(team.size)[:, None])
        return found.ravel().tolist()

    steps, count = side_by_side([numbers(2), in_steps.without_steps(lambda: [7])(), numbers(3)]), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            twice, seven, thrice = end.value
            break
        count += 1
    assert count == 3 and seven == [7]
    assert twice == at_once(numbers(2)) and thrice == at_once(numbers(3))
    assert at_once(numbers(1)) == [rank + 10 * team.rank for rank in range(team.size)]


@pytest.mark.ranks(1, 3, 4)
def test_rows_are_gathered_for_the_charge_of_the_collective(team: Any) -> None:
    parts = uneven(team.size)
    height = int(parts[team.rank + 1] - parts[team.rank])
    blocks = [mine(team, (height,)), mine(team, (height, 3), np.float32)]
    with dg.Ledger() as counted:
        found = at_once(gather(team, "columns", *((block, parts) for block in blocks)))
    with dg.Ledger() as expected:
        whole = [team.allgather_rows(block, parts, matrix="columns") for block in blocks]
    for one, other in zip(found, whole, strict=True):
        np.testing.assert_array_equal(*map(team.backend.to_host, (one, other)))
    totals = [(c.words, c.bytes, c.messages, c.calls) for c in (counted, expected)]
    assert totals[0] == totals[1]
    kinds = [{(e["operation"], e["matrix"]) for e in c.entries()} for c in (counted, expected)]
    assert kinds[0] == kinds[1]


@pytest.mark.ranks(1, 3, 4)
def test_an_error_is_raised_on_all_together(team: Any) -> None:
    assert at_once(in_steps.together(team, lambda: team.rank)) == team.rank
    for failed in range(team.size):

        def fail(failed: int = failed) -> None:
            if team.rank >= failed:
                raise UserError(f"rank {team.rank} is wrong")

        with pytest.raises(UserError, match=f"rank {max(team.rank, failed)} is wrong"):
            at_once(in_steps.together(team, fail))
    assert at_once(in_steps.together(team, lambda: 5)) == 5  # still in step


@pytest.mark.ranks(3, 4)
def test_what_is_closed_receives_what_is_under_way(comm: MPI.Intracomm, backend: Any) -> None:
    """One rank ends its function early and says nothing more; the others get what it had sent."""
    team = dg.Grid(comm, rows=comm.size, backend=backend).world
    for last in range(team.size):
        widths = (500, 2)
        given = swaps(team, widths)
        steps = side_by_side([swap(team, *given), swap_numbers(team, np.eye(team.size, dtype=np.int64))])
        next(steps)
        if team.rank == last:
            at_once(steps)
        else:
            steps.close()
        check(team, given, widths)
        assert not under_way() and not progress.pending()
    assert team.gather_objects(1) == [1] * team.size


@pytest.mark.ranks(3)
@pytest.mark.abandons
def test_an_error_abandons_what_is_under_way(comm: MPI.Intracomm, monkeypatch: Any) -> None:
    """A rank fails between two steps. It does not wait; those do not that wait for what it did not send."""
    monkeypatch.setattr(progress, "LONG", 0.05)
    grid = dg.Grid(comm, rows=comm.size, backend="numpy")

    def twice() -> Steps[None]:
        for _ in range(2):
            yield from swap(grid.world, *swaps(grid.world, (700,)))

    for failed in range(comm.size):
        steps = side_by_side([twice(), twice()])
        next(steps)
        if grid.rank == failed:
            abandon(steps, ZeroDivisionError())
        else:
            with pytest.raises(PeerError):
                at_once(steps)
        assert not progress.pending()
        assert grid.world.gather_objects(failed) == [failed] * comm.size
    grid.free()


def test_steps_of_one_rank_end(comm: MPI.Intracomm) -> None:
    """An error in a function side by side with others ends all of them."""
    team, ended = Comm(MPI.COMM_SELF, dg.backend.get("numpy")), []

    def waits() -> Steps[None]:
        try:
            yield from swap(team)
            yield
        finally:
            ended.append(True)

    def fails() -> Steps[None]:
        yield
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        at_once(side_by_side([waits(), fails(), waits()]))
    assert ended == [True, True]


@pytest.mark.ranks(1)
def test_all_functions_end_whatever_the_end_of_one_raises() -> None:
    ended = list[int]()

    def lasting(number: int) -> Steps[None]:
        try:
            yield
        finally:
            ended.append(number)
            if number == 1:
                raise PeerError("gone")

    for end in (lambda steps: steps.close(), lambda steps: abandon(steps, ValueError())):
        steps = side_by_side([lasting(number) for number in range(3)])
        next(steps)
        with pytest.raises(PeerError):
            end(steps)
        assert ended == [0, 1, 2]  # in one order, on all ranks
        ended.clear()
