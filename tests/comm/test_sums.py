"""Sums that are under way: all-reduces and reduces to one rank, added in the order of the ranks."""

from __future__ import annotations

import time

import numpy as np
import pytest

import distgnn as dg
from distgnn import progress
from distgnn.arrays.tuning import TUNING
from distgnn.comm.group import Comm

from .test_group import StagedBackend


@pytest.fixture(params=["plain", "pieces", "staged", "direct"])
def grid(request, comm, backend, monkeypatch):
    """Yield a grid with chunks of a few numbers, once for each way in which its group moves arrays."""
    forced = request.param in ("staged", "direct")
    if backend.on_device and forced:
        pytest.skip("forced on host arrays")
    monkeypatch.setattr(TUNING, "sum_chunk", 64)
    if request.param == "pieces":
        monkeypatch.setattr(Comm, "count_limit", 3)
    if forced:
        monkeypatch.setattr("distgnn.comm.transport._cuda_aware_once", lambda: request.param == "direct")
    made = dg.Grid(comm, backend=StagedBackend() if forced else backend)
    yield made
    made.free()


def shares(ranks, sums, size):
    """Return (sums, ranks, size) numbers of very different sizes: every order of additions differs."""
    random = np.random.default_rng(3)
    exponents = random.integers(-12, 12, (sums, ranks, size))
    return (random.standard_normal(exponents.shape) * 2.0**exponents).astype(np.float32)


def in_order(numbers):
    """Add the rows from the first to the last."""
    total = numbers[0].copy()
    for other in numbers[1:]:
        total += other
    return total


@pytest.mark.ranks(3, 6)
@pytest.mark.parametrize("overlap", [True, False])
def test_each_root_gets_its_sums_and_others_keep_their_numbers(grid, overlap):
    """Several arrays for every root, and for all ranks, under way at once."""
    group, on = grid.along("rows"), grid.backend
    grid.overlap = overlap
    roots = [*range(group.size), *reversed(range(group.size)), None, 0, None]
    for size in (0, 1, 5, 50):
        everybodys = shares(group.size, len(roots), size)
        mine = [on.asarray(numbers[group.rank]).copy() for numbers in everybodys]
        with dg.Ledger() as counted, group.sums(grid.workspace, grid.overlap) as sums:
            for root, array in zip(roots, mine, strict=True):
                sums.start(array, root)
                progress.poll()
        for root, array, numbers in zip(roots, mine, everybodys, strict=True):
            expected = in_order(numbers) if root in (None, group.rank) else numbers[group.rank]
            np.testing.assert_array_equal(on.to_host(array), expected)
        away = [root for root in roots if root not in (None, group.rank)]
        entries = {entry["operation"]: entry for entry in counted.entries()}
        assert (entries["reduce"]["words"], entries["reduce"]["messages"]) == (len(away) * size, len(away))
        assert entries["reduce"]["calls"] == len(roots) - 2
        assert entries["allreduce"]["words"] == round(2 * 2 * (group.size - 1) / group.size * size)
    assert not progress.pending()


@pytest.mark.ranks(3)
def test_slow_ranks_do_not_mix_sums_up(grid):
    group, on = grid.along("rows"), grid.backend
    roots = list(range(group.size)) * 2
    everybodys = shares(group.size, len(roots), 100)
    for slow in range(group.size):
        mine = [on.asarray(numbers[group.rank]).copy() for numbers in everybodys]
        with group.sums(grid.workspace, grid.overlap) as sums:
            for root, array in zip(roots, mine, strict=True):
                time.sleep(0.002 * (slow == group.rank))
                sums.start(array, root)
        for root, array, numbers in zip(roots, mine, everybodys, strict=True):
            if root == group.rank:
                np.testing.assert_array_equal(on.to_host(array), in_order(numbers))


@pytest.mark.ranks(4)
def test_room_for_what_a_root_receives_does_not_grow_with_the_array(grid):
    if grid.backend.on_device:
        pytest.skip("staged copies are the backend's")
    group, on = grid.along("rows"), grid.backend
    with group.sums(grid.workspace, grid.overlap) as sums:
        sums.start(on.zeros((2000,), np.float32), root=0)
    assert grid.workspace.reserved <= TUNING.sums_under_way * (TUNING.sum_chunk + 4 * group.size)


@pytest.mark.ranks(4)
@pytest.mark.abandons
def test_an_error_leaves_nothing_to_drive(grid):
    group = grid.along("rows")
    with pytest.raises(ZeroDivisionError), group.sums(grid.workspace, grid.overlap) as sums:
        sums.start(grid.backend.zeros((5,), np.float32), root=1)
        1 / 0
    assert not progress.pending()
    grid.world.mpi.Barrier()
