"""Q A against SciPy, replicated and partitioned; row blocks; what is refused."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from awkward_shapes import awkward
from chosen_grids import wide_grid
from distgnn import ledger
from distgnn.arrays.blocking import bounded
from distgnn.gallery import rmat
from distgnn.layout import partition
from distgnn.operators import grids, make_grid
from distgnn.operators.sources import LocalBlocks
from distgnn.sampling import FastGCN, GraphSage, Ladies, Saint
from distgnn.sampling.spgemm import Partitioned, Replicated
from distgnn.store import Store
from mpi_helpers import on_nodes
from train.stores import small_store

from ..comm.test_group import StagedBackend

MATRICES = awkward()
SOME = (
    "prime",
    "directed",
    "stored_zeros",
    "mixed_sign",
    "block_of_empty_rows",
    "hub_row",
    "wide",
    "tall",
    "two",
    "no_edges",
)


def one_per_row(n, seed, rows=None):
    """Make GraphSAGE's Q: a one in each row."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(0, 9)) if rows is None else rows
    return sp.csr_array((np.ones(k), rng.integers(0, n, k), np.arange(k + 1)), shape=(k, n))


def several_per_row(n, seed):
    """Make a Q as LADIES', and worse: rows of any length, some empty, a stored zero.

    Rank 1 has no rows at all.
    """
    rng = np.random.default_rng(seed)
    k = 0 if seed == 1 else int(rng.integers(1, 8))
    dense = rng.uniform(0.5, 2.0, (k, n)) * (rng.random((k, n)) < 0.3)
    Q = sp.csr_array(dense)
    if Q.nnz:
        Q.data[0] = 0.0
    return Q


def ones(M):
    return sp.csr_array((np.ones(M.nnz), M.indices, M.indptr), shape=M.shape)


def integers(M):
    M = sp.csr_array(M, copy=True)
    M.data = np.rint(M.data * 4)
    return M


def uneven(n, parts):
    """Return a partition with empty blocks first and, where there are several more, second to last."""
    inner = sorted(np.random.default_rng(n + parts).integers(0, n + 1, max(parts - 2, 0)).tolist())
    return np.array([0, 0, *inner, n][: parts + 1] if parts > 1 else [0, n])


def check_canonical(C):
    assert C.has_sorted_indices and C.has_canonical_format


def open_grids(comm, backend=None):
    for sizes in grids("1.5d", comm.Get_size()):
        yield make_grid(comm, "1.5d", sizes, backend=backend)


def grids_of(comm, backend=None):
    for grid in open_grids(comm, backend):
        yield grid
        grid.free()


@pytest.mark.ranks(1, 3, 4, 6)
@pytest.mark.slow
def test_partitioned_equals_scipy_on_every_grid(comm, backend):
    rank = comm.Get_rank()
    for grid in grids_of(comm, backend):
        for name in SOME if comm.Get_size() <= 4 else SOME[::2]:
            A = MATRICES[name]
            whole = Replicated(A)
            for cut in (partition, uneven):
                graph = Partitioned(grid, A, cut(A.shape[0], grid.shape["rows"]))
                assert graph.shape == A.shape and graph.dtype == A.dtype
                for make in (one_per_row, several_per_row):
                    Q = make(A.shape[0], rank)
                    before = Q.copy()
                    C = graph.multiply(Q)
                    check_canonical(C)
                    np.testing.assert_array_equal(ones(C).toarray(), (ones(Q) @ ones(A)).toarray() > 0)
                    assert C.shape == (Q.shape[0], A.shape[1]) and C.dtype == A.dtype
                    np.testing.assert_allclose(
                        C.toarray(), (Q @ A).toarray(), rtol=1e-13, atol=1e-15, err_msg=name
                    )
                    np.testing.assert_array_equal(Q.toarray(), before.toarray())
                    if make is one_per_row:
                        same(C, whole.multiply(Q))


def same(C, D):
    """Check that two matrices are equal to the bit."""
    np.testing.assert_array_equal(C.indptr, D.indptr)
    np.testing.assert_array_equal(C.indices, D.indices)
    np.testing.assert_array_equal(C.data.view(np.uint8), D.data.view(np.uint8))


@pytest.mark.ranks(1, 3, 4, 8)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_integer_values_are_the_same_to_the_bit_in_both_forms(comm, dtype):
    A = integers(rmat(97, degree=7, directed=True, features=0, classes=0).A).astype(dtype)
    A.data += np.arange(A.nnz) % 5
    whole = Replicated(A)
    for grid in grids_of(comm, "numpy"):
        Q = integers(several_per_row(97, grid.rank)).astype(np.float64)
        C = Partitioned(grid, A).multiply(Q)
        assert C.dtype == dtype and (C.nnz > 0 or not Q.nnz)
        same(C, whole.multiply(Q))


@pytest.mark.ranks(1, 4, 6)
@pytest.mark.parametrize("entries", [1, 12, 10_000])
@pytest.mark.slow
def test_row_blocks_together_are_the_whole(comm, entries):
    """Bounded as promised, and of different number on different ranks."""
    A = integers(MATRICES["larger_prime"])
    for grid in grids_of(comm, "numpy"):
        for make in (one_per_row, several_per_row):
            Q = integers(make(A.shape[0], grid.rank))
            graph, whole = Partitioned(grid, A, entries=entries), Replicated(A)
            blocks = list(graph.row_blocks(Q))
            assert [row for (first, last), _ in blocks for row in range(first, last)] == list(
                range(Q.shape[0])
            )
            for (first, last), C in blocks:
                assert C.shape[0] == last - first >= 1 and (C.nnz <= entries or last == first + 1)
            same(graph.multiply(Q), whole.multiply(Q))
            assert len(blocks) <= 1 or entries < 10_000
            estimates = [np.diff(A.indptr)[Q[[row]].indices].sum() for row in range(Q.shape[0])]
            assert [block for block, _ in blocks] == bounded(np.array(estimates, int), entries)


@pytest.mark.parametrize("entries", [1, 12, None])
def test_replicated_row_blocks(entries):
    A, Q = MATRICES["larger_prime"], several_per_row(67, 0)
    graph = Replicated(A, entries)
    blocks = list(graph.row_blocks(Q))
    assert (len(blocks) > 1) == (entries is not None)
    same(sp.vstack([C for _, C in blocks], format="csr"), Replicated(A).multiply(Q))
    np.testing.assert_allclose(graph.multiply(Q).toarray(), (Q @ A).toarray(), rtol=1e-14)
    assert graph.multiply(Q[:0]).shape == (0, 67)


@pytest.mark.ranks(4)
@pytest.mark.slow
def test_everything_of_one_rank_and_nothing_elsewhere(comm):
    """Ranks without rows of Q serve the others, also one that asks for every row."""
    A = MATRICES["prime"]
    for grid in grids_of(comm, "numpy"):
        Q = sp.eye_array(31, format="csr") if grid.rank == 2 else sp.csr_array((0, 31))
        same(Partitioned(grid, A).multiply(Q), Replicated(A).multiply(Q))
        same(Partitioned(grid, A, entries=7).multiply(Q), Replicated(A).multiply(Q))


@pytest.mark.ranks(1, 4, 6)
def test_a_rank_reads_only_its_block_and_none_that_nobody_asks_for(comm):
    A = MATRICES["prime"]
    for grid in grids_of(comm, "numpy"):
        graph = Partitioned(grid, A)
        own = tuple(graph.parts[grid.rank : grid.rank + 2].tolist())
        assert np.abs(np.diff(graph.parts) - 31 / grid.size).max() < 1.01
        graph = Partitioned(grid, LocalBlocks(A.shape, [(own, (0, 31), A[slice(*own)])]))
        Q = several_per_row(31, grid.rank)
        np.testing.assert_allclose(graph.multiply(Q).toarray(), (Q @ A).toarray(), rtol=1e-13)
        assert sum(grid.world.gather_objects(graph.A.nnz)) == A.nnz  # once in all


@pytest.mark.ranks(4)
def test_on_a_grid_of_device_arrays(comm):
    """Sampling moves host arrays, whatever the backend of the grid; the ledger knows what came from nodes."""
    A, counted = MATRICES["prime"], []
    for backend in (StagedBackend(), "numpy"):
        for grid in on_nodes(lambda on=backend: list(open_grids(comm, on)), 2):
            Q = one_per_row(31, grid.rank, rows=20)
            with dg.Ledger() as ledger:
                same(Partitioned(grid, A).multiply(Q), Replicated(A).multiply(Q))
            counted.append((ledger.words, ledger.messages, ledger.far))
            assert backend == "numpy" or grid.backend.copies == 0
            grid.free()
    half = len(counted) // 2
    assert counted[:half] == counted[half:] and any(far for *_, far in counted)


@pytest.mark.ranks(1, 4)
def test_errors_are_raised_on_all_ranks(comm):
    A = MATRICES["prime"]
    grid = wide_grid(comm, "1.5d", "numpy")
    graph = Partitioned(grid, A)
    bad = comm.Get_rank() == comm.Get_size() - 1
    with pytest.raises((ValueError, RuntimeError), match="a column for each of the 31 rows"):
        graph.multiply(sp.csr_array((3, 30 if bad else 31)))
    with pytest.raises((TypeError, RuntimeError), match="sparse matrix, got ndarray"):
        graph.multiply(np.zeros((3, 31)) if bad else sp.csr_array((3, 31)))
    same(graph.multiply(one_per_row(31, 5)), Replicated(A).multiply(one_per_row(31, 5)))  # still in step
    with pytest.raises((ValueError, RuntimeError), match="rise from 0 to 31"):
        Partitioned(grid, A, np.full(grid.shape["rows"] + 1, 7))
    if comm.Get_size() > 1:
        with pytest.raises(ValueError, match="different matrices"):
            Partitioned(grid, MATRICES["prime" if bad else "larger_prime"])
    with pytest.raises(dg.UserError, match="entries=0: expected at least 1"):
        Partitioned(grid, A, entries=0)
    with pytest.raises(dg.UserError, match="axes rows, reps"):
        Partitioned(make_grid(comm, "1d", backend="numpy"), A)


@pytest.mark.ranks(1, 4)
@pytest.mark.slow
def test_from_a_store(comm, shared_tmp_path):
    """Every order of a store, each rank reading its own block row."""
    store = Store(small_store(shared_tmp_path, comm))
    for name in store.orders:
        order = store.order(name)
        n = order.shape[0]
        A = order.block((0, n), (0, n))
        for grid in grids_of(comm, "numpy"):
            Q = one_per_row(n, grid.rank, rows=5)
            same(Partitioned(grid, order).multiply(Q), Replicated(A).multiply(Q))
            same(Replicated(order).multiply(Q), Replicated(A).multiply(Q))


@pytest.mark.ranks(1, 4)
def test_mapped_values(comm):
    A = MATRICES["prime"]
    for grid in grids_of(comm, "numpy"):
        Q = several_per_row(31, grid.rank)
        for graph in (Replicated(A), Partitioned(grid, A)):
            squares = graph.map(np.square)
            np.testing.assert_allclose(squares.multiply(Q).toarray(), (Q @ A.power(2)).toarray(), rtol=1e-13)
            # as it was
            np.testing.assert_allclose(graph.multiply(Q).toarray(), (Q @ A).toarray(), rtol=1e-13)
    with pytest.raises(ValueError, match="makes bool"):
        Replicated(A).map(np.isfinite)


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("kind", ["sage", "ladies", "fastgcn", "saint"])
def test_ranks_of_a_node_hold_the_graph_once(comm, kind):
    """Samples are those of a graph of this rank's own; its bytes are charged once, until it goes."""
    A = integers(rmat(97, degree=7, directed=True, features=0, classes=0).A).astype(np.float32)
    grid, alone = dg.Grid(comm, backend="numpy", rows=comm.size, reps=1), Replicated(A)
    charged = comm.allreduce(ledger.books().held["adjacency"])
    graph = Replicated(A, grid=grid)
    own = 8 * A.nnz + 4 * 98 + comm.size * 8 * 98  # pointers of 64 bits on each rank
    more = comm.allreduce(ledger.books().held["adjacency"]) - charged
    assert own - comm.size < more <= own and grid.shares_memory == (comm.size > 1)
    assert graph.A.data.flags.writeable == (comm.size == 1)
    same(graph.multiply(sp.eye_array(97, dtype=np.float32).tocsr()), alone.A)
    batches = [np.arange(5), np.arange(40, 60)]
    drawn = [_samples(kind, G, batches) for G in (graph, alone)]
    for ours, theirs in zip(*drawn, strict=True):
        for block, expected in zip(ours.blocks, theirs.blocks, strict=True):
            np.testing.assert_array_equal(block.indices, expected.indices)
            np.testing.assert_array_equal(block.data, expected.data)
    del graph, drawn, ours, theirs, block, expected
    gc.collect()
    assert comm.allreduce(ledger.books().held["adjacency"]) == charged


def _samples(kind, graph, batches):
    made = {
        "sage": lambda: GraphSage(graph, [4, 3], seed=2),
        "ladies": lambda: Ladies(graph, [9, 9], seed=2),
        "fastgcn": lambda: FastGCN(graph, [9, 9], seed=2),
        "saint": lambda: Saint(graph, 3, 2, seed=2, training=np.arange(97)),
    }
    return made[kind]().sample(batches)
