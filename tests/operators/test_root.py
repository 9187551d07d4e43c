"""A matrix that one rank has: every rank gets its own blocks of it, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from awkward_shapes import awkward
from distgnn.errors import UserError
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, make_grid
from distgnn.operators.sources import RootMatrix

MATRICES = {name: awkward()[name] for name in ("directed", "wide", "stored_zeros")}
WAYS = [*((name, False) for name in ALGORITHMS), *((name, True) for name in SPARSITY_AWARE)]


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(("algorithm", "aware"), WAYS)
def test_products_and_adjoints_are_those_of_the_whole_matrix(comm, backend, algorithm, aware) -> None:
    root = comm.size - 1
    for A in MATRICES.values():
        grid = make_grid(comm, algorithm, backend=backend)
        op = dg.distribute(A if comm.rank == root else None, grid, algorithm, aware, root=root)
        same = dg.distribute(A, grid, algorithm, aware)
        X = np.arange(2.0 * A.shape[1]).reshape(-1, 2)
        G = np.arange(2.0 * A.shape[0]).reshape(-1, 2)
        results = [dg.gather(a @ dg.scatter(X, a.input_layout)) for a in (op, same)]
        results += [dg.gather(a.T @ dg.scatter(G, a.output_layout)) for a in (op, same)]
        assert op.nnz == A.nnz and op.symmetric == same.symmetric and op.dtype == same.dtype
        if A.shape[0] == A.shape[1]:
            layers = [a.layer(1) for a in (op, same)]
            results += [dg.gather(a @ dg.scatter(X, a.input_layout)) for a in layers]
        with grid.world.together():
            for ours, theirs in zip(results[::2], results[1::2], strict=True) if comm.rank == 0 else ():
                np.testing.assert_array_equal(ours, theirs)
        grid.free()


@pytest.mark.ranks(4)
def test_a_rank_receives_its_blocks_alone(comm) -> None:
    A, grid = MATRICES["directed"], dg.Grid(comm, backend="numpy", rows=4)
    with dg.Ledger() as ledger:
        op = dg.distribute(A if comm.rank == 0 else "nothing", grid, "1d", root=0)
    rows = op.output_layout.row_range
    own = 2 * A[slice(*rows)].nnz + 4 * (rows[1] - rows[0] + 1)  # four blocks, with their row pointers
    assert ledger.words == (0 if comm.rank == 0 else own)


@pytest.mark.ranks(4)
def test_all_ranks_hear_of_a_root_that_fails(comm, monkeypatch) -> None:
    grid = dg.Grid(comm, backend="numpy", rows=comm.size)
    for matrix, root, problem in (
        (None, 0, "matrix=None"),
        (np.ones((4, 4), complex), 0, "complex"),
        (MATRICES["directed"], 9, "root=9: expected a rank, 0 to"),
        (MATRICES["directed"], comm.rank, "ranks disagree: root"),
    ):
        with pytest.raises(UserError, match=problem):
            dg.distribute(matrix if comm.rank == 0 else None, grid, "1d", root=root)

    def fails(self, rows, cols):
        raise UserError(f"no block {rows}" if rows[0] else "no first block")

    monkeypatch.setattr(RootMatrix, "block", fails)
    with pytest.raises(UserError, match="no first block"):
        dg.distribute(MATRICES["directed"] if comm.rank == 0 else None, grid, "1d", root=0)
    grid.free()
