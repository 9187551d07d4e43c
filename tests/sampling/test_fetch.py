"""Rows of distributed features by node number: right, in order, for exactly the words of the formula."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from distgnn.comm.group import Comm
from distgnn.comm.steps import at_once
from distgnn.layout import Cut, Layout, partition
from distgnn.operators import grids, make_grid
from distgnn.sampling.fetch import Features

from ..comm.test_group import StagedBackend
from .test_spgemm import uneven


def numbers(n, f, dtype):
    return (np.arange(n * f).reshape(n, f) / 7).astype(dtype)


def cases(n, rank):
    """Return ids that differ from rank to rank: in any order, with repeats, rising, all, one, none."""
    rng = np.random.default_rng(rank)
    return [
        rng.integers(0, n, 40),
        rng.permutation(n),
        np.arange(n, dtype=np.int32),
        [n - 1] * 5,
        [],
        rng.integers(0, n, 9).astype(np.uint16) if rank % 2 else np.empty(0, np.int64),
    ]


def distributed(grid, X, parts=None):
    return dg.scatter(X, Layout(grid, Cut(("rows",), parts), Cut()))


def grids_of(comm, backend):
    for sizes in grids("1.5d", comm.Get_size()):
        grid = make_grid(comm, "1.5d", sizes, backend=backend)
        yield grid
        grid.free()


@pytest.mark.ranks(1, 3, 6)
@pytest.mark.parametrize("how", ["plain", "pieces", "staged"])
@pytest.mark.slow
def test_rows_come_as_asked(comm, backend, how, monkeypatch):
    if how == "staged":
        if backend.on_device:
            pytest.skip("forced on host arrays")
        monkeypatch.setattr("distgnn.comm.transport._cuda_aware_once", lambda: False)
        backend = StagedBackend()
    if how == "pieces":
        monkeypatch.setattr(Comm, "count_limit", 7)
    for grid in grids_of(comm, backend):
        cases_of = ((31, 3, np.float32), (67, 1, np.float64), (2, 5, np.float32), (13, 0, np.float64))
        for n, f, dtype in cases_of if how == "plain" else cases_of[:1]:
            X = numbers(n, f, dtype)
            for parts in (None, uneven(n, grid.shape["rows"])):
                features = Features(distributed(grid, X, parts))
                for ids in cases(n, comm.Get_rank()):
                    rows = features.fetch(ids)
                    assert rows.dtype == dtype and rows.flags.c_contiguous
                    np.testing.assert_array_equal(backend.to_host(rows), X[np.asarray(ids, np.int64)])
        if how == "staged" and comm.Get_size() > 1:
            assert backend.copies


@pytest.mark.ranks(1, 3, 4, 8)
def test_words_equal_the_formula_on_every_rank(comm, backend):
    n, f = 67, 5
    everybody = [cases(n, rank) for rank in range(comm.Get_size())]
    for grid in grids_of(comm, backend):
        rows, c = grid.shape["rows"], grid.shape["reps"]
        i, j = grid.coords["rows"], grid.coords["reps"]
        for parts in (partition(n, rows), uneven(n, rows)):
            features = Features(distributed(grid, numbers(n, f, np.float32), parts))
            for case in range(len(everybody[0])):
                wanted = [{int(v) for v in ids[case]} for ids in everybody]
                distinct = len([v for v in wanted[comm.Get_rank()] if not parts[i] <= v < parts[i + 1]])
                column = [row * c + j for row in range(rows) if row != i]
                asked = sum(len([v for v in wanted[rank] if parts[i] <= v < parts[i + 1]]) for rank in column)
                with dg.Ledger() as counted:
                    features.fetch(everybody[comm.Get_rank()][case])
                assert counted.words == distinct * f + asked, (grid.shape, case)


@pytest.mark.ranks(4, 8)
def test_what_falls_as_one_over_c(comm):
    """Every rank fetches D₀ ids spread evenly: a process column moves D₀ f (P/c - 1) words, a rank D₀ f (1 -
    c/P).
    """
    P, f = comm.Get_size(), 3
    n = 4 * P
    for grid in grids_of(comm, "numpy"):
        c = grid.shape["reps"]
        features = Features(distributed(grid, numbers(n, f, np.float64)))
        ids = np.random.default_rng(comm.Get_rank()).permutation(n)
        with dg.Ledger() as counted:
            features.fetch(ids)
        # each other rank of the column asks for this rank's whole block
        numbers_asked = (P // c - 1) * (n * c // P)
        words = counted.words - numbers_asked
        assert words * P == n * f * (P - c)
        assert sum(grid.along("rows").gather_objects(words)) * c == n * f * (P - c)
        partners = [entry["messages"] for entry in counted.entries() if entry["operation"] == "alltoallv"]
        assert sum(partners) == 2 * (P // c - 1)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        ([3, 31], "no node 31: there are 31"),
        ([-1], "no node -1"),
        ([0.5], "list of integers, got float64"),
        ([[1, 2]], "of shape \\(1, 2\\)"),
    ],
)
def test_bad_ids_are_refused_on_all_ranks(comm, backend, ids, complaint):
    grid = make_grid(comm, "1.5d", {"reps": 1}, backend=backend)
    features = Features(distributed(grid, numbers(31, 2, np.float32)))
    bad = comm.Get_rank() == comm.Get_size() - 1
    with pytest.raises((ValueError, RuntimeError), match=complaint):
        features.fetch(ids if bad else [1, 2])
    assert features.fetch([4, 4]).shape == (2, 2)  # still in step


@pytest.mark.ranks(4)
def test_features_cut_by_columns_are_refused(comm):
    grid = dg.Grid(comm, rows=1, cols=comm.Get_size(), backend="numpy")
    H = dg.scatter(numbers(8, 8, np.float32), Layout(grid, Cut(("rows",)), Cut(("cols",))))
    with pytest.raises(ValueError, match="block rows over the axis rows"):
        Features(H)


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)
def test_what_is_wanted_stays_on_the_device(comm, stand_in):
    """The host waits for bounds alone; the rows of a rank may follow each other, or be none."""
    grid = make_grid(comm, "1.5d", {"reps": 1}, backend="cupy")
    n, on = 67, grid.backend
    X = numbers(n, 5, np.float32)
    features = Features(distributed(grid, X))
    for ids in (np.arange(n), np.arange(7, 40)[::-1], np.array([66, 3]), *cases(n, comm.Get_rank())[:2]):
        positions = on.asarray(ids, np.int64)
        with stand_in.observed() as seen:
            wanted = at_once(features.wanted(positions))
        bounds = 8 * (3 * (grid.shape["rows"] + 1) + 1)
        assert seen.counts["synchronizations"] == 1 and seen.counts["device to host bytes"] == bounds
        with features.coming(wanted) as coming, stand_in.observed() as seen:
            rows = coming.take()
        assert seen.counts["synchronizations"] == seen.counts["host to device"] == 0
        np.testing.assert_array_equal(on.to_host(rows), X[ids])
        grid.workspace.give_back(rows)
    assert not grid.workspace._lent
    grid.free()
