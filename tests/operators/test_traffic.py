"""Senders and receivers of a product: the words of a rank by the ranks that they come from."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from awkward_shapes import awkward
from distgnn.arrays.tuning import TUNING
from distgnn.layout import partition
from distgnn.operators import grids, make_grid
from distgnn.plan.dry.recorder import Recorder

from .test_products import right_sides

MATRIX, WIDTH = awkward()["prime"], 5


def traffic(grid, algorithm, aware=False):
    """Return the traffic of ``A @ H``, as charged to this rank, and its words."""
    A = dg.distribute(MATRIX, grid, algorithm, aware)
    H = dg.scatter(right_sides(MATRIX, WIDTH)[0], A.input_layout)
    with dg.Ledger() as ledger:
        A @ H
    return ledger.traffic(grid.rank), ledger.words


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("aware", [False, True])
def test_rows_come_from_the_ranks_that_hold_them(comm, backend, aware):
    grid = make_grid(comm, "1d", backend=backend)
    parts, me = partition(MATRIX.shape[0], grid.size), grid.rank
    mine = MATRIX.tocsr()[parts[me] : parts[me + 1]]
    needed = np.unique(mine.indices) if aware else np.arange(MATRIX.shape[1])
    rows = np.histogram(needed, parts)[0] * (np.arange(grid.size) != me)
    assert traffic(grid, "1d", aware)[0] == {(r, me): WIDTH * n for r, n in enumerate(rows.tolist()) if n}
    assert grid.nonzeros == mine.nnz


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("aware", [False, True, "cover"])
def test_each_rank_of_rdm_with_one_block_row_counts_all_non_zeros(comm, aware):
    grid = make_grid(comm, "rdm", {"rows": 1, "cols": comm.Get_size()})
    dg.distribute(MATRIX, grid, "rdm", aware)
    assert grid.nonzeros == MATRIX.nnz
    grid.free()


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("part_columns", [1, 32])
def test_copies_of_columns_are_charged(comm, backend, monkeypatch, part_columns):
    """The own rows of H, and of the product, are read and written once, in however many parts."""
    monkeypatch.setattr(TUNING, "part_columns", part_columns)
    grid = make_grid(comm, "rdm", {"rows": 1, "cols": comm.Get_size()}, backend=backend)
    A = dg.distribute(MATRIX, grid, "rdm")
    H = dg.scatter(right_sides(MATRIX, 3 * WIDTH)[0], A.input_layout)
    with Recorder() as book:
        T = A @ H
    touched = [step.touched for step in book.steps if step.operation == "copy columns"]
    assert sum(touched) == 2 * (H.block.nbytes + T.block.nbytes)
    assert (len(touched) > 2) == (part_columns == 1)
    grid.free()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("algorithm", ["1.5d", "2d", "3d-split", "3d"])
def test_every_word_has_a_peer_in_a_group_of_the_grid(comm, backend, algorithm):
    for sizes in grids(algorithm, comm.Get_size()):
        grid = make_grid(comm, algorithm, sizes, backend=backend)
        found, words = traffic(grid, algorithm)
        assert abs(sum(found.values()) - words) <= len(found)  # each is rounded
        places = grid.world.gather_objects(grid.coords)
        for sender, receiver in found:
            assert grid.rank in (sender, receiver) and sender != receiver
            other = places[sender + receiver - grid.rank]
            assert algorithm == "1.5d" or sum(other[axis] != grid.coords[axis] for axis in sizes) == 1
        grid.free()
