"""Rows of other ranks: fetched, ragged ones too, and contributed to; to the bit, for the words of the
formula.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn import progress
from distgnn.comm.group import Comm
from distgnn.comm.rows import Rows, as_slice, by_owner, consecutive
from distgnn.comm.steps import at_once
from distgnn.comm.transport import NCCL
from distgnn.gallery import rmat
from distgnn.layout import partition

from .test_group import StagedBackend

N, F = 83, 3


def needed_rows(ranks, kind):
    """Return needed[i][q]: the rows of rank q's block that rank i needs.

    They are scattered, consecutive, all or none; a rank's own rows too.
    """
    parts, rng = partition(N, ranks), np.random.default_rng(ranks)
    heights = np.diff(parts)

    def some(i, q):
        if kind == "nothing" or (kind == "one" and (i, q) != (0, ranks - 1)):
            return np.empty(0, np.int64)
        if (i + q) % 3 == 0:
            return np.arange(heights[q] // 3, heights[q])
        return np.flatnonzero(rng.random(heights[q]) < 0.4)

    return parts, [{q: some(i, q) for q in range(ranks)} for i in range(ranks)]


@pytest.fixture(params=["plain", "pieces", "staged"])
def grid(request, comm, backend, monkeypatch):
    if request.param == "staged":
        if backend.on_device:
            pytest.skip("forced on host arrays")
        monkeypatch.setattr("distgnn.comm.transport._cuda_aware_once", lambda: False)
        backend = StagedBackend()
    if request.param == "pieces":
        monkeypatch.setattr(Comm, "count_limit", 7)
    made = dg.Grid(comm, backend=backend, rows=comm.Get_size())
    yield made
    made.free()


@pytest.mark.ranks(1, 3, 6)
@pytest.mark.parametrize("kind", ["many", "one", "nothing"])
@pytest.mark.parametrize("overlap", [True, False])
def test_rows_are_fetched_and_contributions_summed(grid, kind, overlap):
    me, ranks, on = grid.rank, grid.size, grid.backend
    grid.overlap = overlap
    parts, needed = needed_rows(ranks, kind)
    with dg.Ledger() as told:
        rows = Rows(grid, grid.along("rows"), needed[me])
    foreign = sum(needed[i][me].size for i in range(ranks) if i != me)
    assert told.words == foreign
    X = np.random.default_rng(0).standard_normal((N, F)).astype(np.float32)
    expected = np.concatenate([X[needed[me][q] + parts[q]] for q in range(ranks)])

    own = on.asarray(X[parts[me] : parts[me + 1]])
    into = on.empty((rows.received, F), np.float32)
    with dg.Ledger() as counted, rows.fetch(own, into, "H") as arriving:
        for q, place in rows.places.items():
            arriving.wait([q])
            with arriving.driven():
                np.testing.assert_array_equal(on.to_host(into[place]), X[needed[me][q] + parts[q]])
    np.testing.assert_array_equal(on.to_host(into), expected)
    assert counted.words == F * sum(needed[me][q].size for q in range(ranks) if q != me)

    Y = on.empty((rows.received, F), np.float32)
    F_j = on.empty(own.shape, np.float32)
    work = [([q], q) for q in rows.places] + [([], me + ranks)]
    with dg.Ledger() as counted, rows.add_back(Y, F_j, work) as items:
        for number, item in enumerate(items):
            if number == 0:  # what is computed drives the messages, but those that NCCL has queued
                assert progress.pending() == (overlap and foreign > 0 and grid.transport != NCCL)
            if item >= ranks:
                F_j[...] = 1
            else:
                Y[rows.places[item]] = on.asarray(contribution(me, needed[me][item]))
    assert counted.words == foreign * F
    total = np.ones(own.shape, np.float32)
    for i in [(me + step) % ranks for step in range(ranks)]:  # in this order, to the bit
        np.add.at(total, needed[i][me], contribution(i, needed[i][me]))
    np.testing.assert_array_equal(on.to_host(F_j), total)


@pytest.mark.ranks(3)
@pytest.mark.abandons
def test_a_sum_of_rows_that_is_left_early_raises(grid):
    parts, needed = needed_rows(grid.size, "many")
    rows = Rows(grid, grid.along("rows"), needed[grid.rank])
    Y = grid.backend.zeros((rows.received, F), np.float32)
    F_j = grid.backend.zeros((int(np.diff(parts)[grid.rank]), F), np.float32)
    with (
        pytest.raises(RuntimeError, match="left before all of them were made"),
        rows.add_back(Y, F_j, [([q], q) for q in rows.places]) as items,
    ):
        next(items)
    assert not progress.pending()
    grid.world.barrier()


def contribution(rank, rows):
    numbers = np.random.default_rng(rank).standard_normal((N, F)).astype(np.float32)
    return numbers[rows]


@pytest.mark.ranks(3, 6)
@pytest.mark.parametrize("kind", ["many", "one", "nothing"])
def test_ragged_rows_are_fetched(comm, kind):
    A = rmat(N, degree=4, directed=True, features=0, classes=0).A
    grid = dg.Grid(comm, backend="numpy", rows=comm.Get_size())
    parts, needed = needed_rows(grid.size, kind)
    mine = needed[grid.rank]
    block = sp.csr_array(A[parts[grid.rank] : parts[grid.rank + 1]])
    rows = Rows(grid, grid.along("rows"), mine)
    expected = A[np.concatenate([mine[q] + parts[q] for q in range(grid.size)])]
    foreign = {q: picked for q, picked in mine.items() if q != grid.rank}
    entries = sum(A[picked + parts[q]].nnz for q, picked in foreign.items())
    with dg.Ledger() as counted:
        lengths = at_once(rows.lengths(block))
    assert counted.words == sum(picked.size for picked in foreign.values())
    with dg.Ledger() as counted:
        packed = at_once(rows.fetch_ragged(block, lengths=lengths))
    assert counted.words == 2 * entries
    for got, wanted in zip(packed, (np.diff(expected.indptr), expected.indices, expected.data), strict=True):
        np.testing.assert_array_equal(got, wanted)
    grid.free()


def test_places_and_owners():
    assert consecutive({3: 2, 0: 0, 1: 5}) == {3: slice(0, 2), 0: slice(2, 2), 1: slice(2, 7)}
    owned = by_owner(np.array([0, 4, 5, 9]), np.array([0, 0, 5, 10]))
    assert {q: rows.tolist() for q, rows in owned.items()} == {0: [], 1: [0, 4], 2: [0, 4]}
    assert as_slice(np.array([3, 4, 5])) == slice(3, 6)
    assert as_slice(np.array([3, 5])) is None and as_slice(np.empty(0, np.int64)) is None
