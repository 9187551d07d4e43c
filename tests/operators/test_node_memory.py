"""Ranks of a node that hold the same block of A hold it once, in memory that they share."""

import errno
import gc
from pathlib import Path

import numpy as np
import pytest

import distgnn as dg
from awkward_shapes import awkward
from distgnn import ledger
from distgnn.arrays.csr import CSR
from distgnn.comm import shared
from distgnn.operators.block_rows import CoveredRows
from distgnn.operators.sources import MatrixSource, RootMatrix
from distgnn.store import prepare

from ..store.graphs import adjacency, random_graph

A = awkward()["directed"]
GRAPH = random_graph(48, 500)


def blocks(D: dg.DistSparse) -> list[CSR]:
    """Return the blocks that a rank multiplies, forward and back."""
    if not D.algorithm.sparsity_aware:
        return [*D.algorithm.A.blocks, *D.algorithm.At.blocks]
    sides = [D.moves.fetched, D.moves.others] if isinstance(D.algorithm.A, CoveredRows) else [D.moves]
    return [block for side in sides for block in (*side.blocks, *side.transposed)]


def product(D, grid):
    """Return A H and Aᵀ A H, on rank 0."""
    H = np.random.default_rng(0).integers(-5, 5, (D.shape[1], 7)).astype(np.float64)
    Y = D @ dg.scatter(H, D.input_layout)
    return H, dg.gather(Y), dg.gather(D.T @ Y)


def shared_maps():
    return Path("/proc/self/maps").read_text().count("memfd:distgnn")


@pytest.mark.ranks(6)
@pytest.mark.parametrize("aware", [False, True, "cover"])
@pytest.mark.parametrize("rooted", [False, True])
def test_ranks_that_hold_a_block_hold_one(comm, aware, rooted):
    """Ranks of a process row read what one of them writes; others do not."""
    for rows in (1, 2):
        grid = dg.Grid(comm, backend="numpy", rows=rows, cols=comm.Get_size() // rows)
        root = {"root": 1} if rooted else {}
        given = A if not rooted or grid.rank == 1 else None
        D = dg.distribute(given, grid, "rdm", aware, dtype=np.float64, **root)
        held, row = blocks(D), grid.along("cols").mpi
        first = grid.coords["cols"] == 0
        for block in held:
            assert not block.data.flags.writeable and not block.buffer.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                block.data[...] = 0
            memory, kept = block.data.base, block.data.copy()
            memory.flags.writeable = True
            written = memory.view(np.float64)[: block.nnz]  # values of 8 bytes come first
            row.Barrier()
            if first:
                written += 1000 * (1 + grid.coords["rows"])
            row.Barrier()
            assert np.array_equal(block.data, kept + 1000 * (1 + grid.coords["rows"]))
            row.Barrier()
            if first:
                written[...] = kept
            row.Barrier()
        H, Y, F = product(D, grid)
        if grid.rank == 0:
            np.testing.assert_allclose(Y, A @ H, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(F, A.T @ (A @ H), rtol=1e-12, atol=1e-12)
        grid.free()


@pytest.mark.ranks(4, 8)
def test_the_ledger_counts_a_share(comm):
    """On two nodes there are two copies. On ranks that cannot map each other's memory there are four."""
    size, kept = CSR.nbytes(A.shape, A.nnz, np.int32, np.float64), []
    gc.collect()
    for nodes, holders in ((1, comm.Get_size()), (2, comm.Get_size() // 2), (comm.Get_size(), 1)):
        grid = dg.Grid(comm, backend="numpy", rows=1, cols=comm.Get_size())
        grid.node = grid.rank % nodes
        before = ledger.books().held["adjacency"]
        D = dg.distribute(A, grid, "rdm", dtype=np.float64)
        assert ledger.books().held["adjacency"] - before == size // holders
        assert D.algorithm.A.blocks[0].data.flags.writeable == (holders == 1)
        kept.append(D)
        grid.free()


def refused(*_):
    raise OSError(errno.EFBIG, "File too large")


@pytest.mark.ranks(4)
@pytest.mark.parametrize("where", ["no memfd", "a limit on files", "one rank", "another file"])
def test_ranks_that_cannot_share_hold_copies(comm, where, monkeypatch):
    if where == "no memfd":
        monkeypatch.delattr(shared.os, "memfd_create")
    elif where == "a limit on files":
        monkeypatch.setattr(shared.os, "ftruncate", refused)
    elif comm.Get_rank() == 2:
        other = None if where == "one rank" else np.zeros(8, np.uint8)
        monkeypatch.setattr(shared, "_mapped", lambda path, nbytes: other)
    grid = dg.Grid(comm, backend="numpy", rows=1, cols=4)
    assert not grid.shares_memory
    D = dg.distribute(A, grid, "rdm", dtype=np.float64)
    H, Y, _ = product(D, grid)
    assert D.algorithm.A.blocks[0].data.flags.writeable and (Y is None or np.allclose(Y, A @ H))
    grid.free()


@pytest.mark.ranks(4)
def test_memory_goes_with_the_matrix(comm):
    """Memory goes also where the grid is not freed, and where a rank's source fails."""
    gc.collect()
    before = shared_maps()
    grid = dg.Grid(comm, backend="numpy", rows=1, cols=4)
    D = dg.distribute(A, grid, "rdm", dtype=np.float64)
    assert shared_maps() == before + 1
    del D
    gc.collect()
    assert shared_maps() == before

    class Failing(MatrixSource):
        def block(self, rows, cols):
            raise OSError("the disk is gone")

    with pytest.raises((OSError, RuntimeError), match="the disk is gone"):
        dg.distribute(Failing(A, np.float64), grid, "rdm")
    D = dg.distribute(RootMatrix(grid, A, 3, np.float64), grid, "rdm")
    H, Y, _ = product(D, grid)
    assert Y is None or np.allclose(Y, A @ H)
    grid.free()
    del D
    gc.collect()
    assert shared_maps() == before and not shared._Files().descriptors


@pytest.mark.ranks(4)
def test_readers_write_what_they_read(comm, shared_tmp_path):
    """A store is read once, and nothing but row lengths is sent."""
    path = shared_tmp_path / "g.dg"
    if comm.Get_rank() == 0:
        prepare(GRAPH, path, shards=(3, 3))
    comm.Barrier()
    grid = dg.Grid(comm, backend="numpy", rows=1, cols=4)
    with dg.Ledger() as loading:
        D = dg.load(path, grid, "rdm", dtype=np.float64)
    (block,) = D.algorithm.A.blocks
    expected = dg.Store(path).order().block((0, 48), (0, 48))
    assert (block.to_scipy() != expected).nnz == 0 and not block.data.flags.writeable
    lengths = sum(entry["words"] for entry in loading.entries() if entry["matrix"] == "adjacency")
    assert lengths < 3 * 48 + 1 < block.nnz
    H, Y, _ = product(D, grid)
    assert Y is None or np.allclose(Y, adjacency(GRAPH) @ H)
    grid.free()
