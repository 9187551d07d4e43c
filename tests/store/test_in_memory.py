"""A graph in the memory of rank 0 is the store that `prepare` would write: facts, contents, blocks."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

import distgnn as dg
from distgnn import ledger
from distgnn.arrays import backend as backends
from distgnn.comm.group import Comm
from distgnn.errors import ArgumentError, UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.from_arrays import of_arrays
from distgnn.store.in_memory import hold
from distgnn.store.read.root import RootStore
from distgnn.store.write import merged_rows

N = 200
#: Facts of files, which a graph in memory has not.
OF_FILES = {"format", "version", "id", "files", "checksum", "nodes", "orders"}

DIRECTIONS = {"directed": True, "undirected": False, "open": None}


def arrays(seed: int, symmetric: bool = False, again: int = 0) -> tuple[np.ndarray, ...]:
    """Draw edges with repeats and loops, features, labels of which some are missing, and weights.

    Of a symmetric graph so many edges come `again`, without their reverses.
    """
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, N, (2, 900))
    edges[:, :40] = edges[:, 40:80]  # repeats
    edges[1, 80:90] = edges[0, 80:90]  # loops
    weights = rng.random(edges.shape[1])
    if symmetric:
        edges = np.concatenate([edges, edges[::-1], edges[:, :again]], 1)
        weights = np.concatenate([weights, weights, weights[:again]])
    features = rng.random((N, 5)).astype(np.float32)
    return edges, features, rng.integers(-1, 3, N), weights


def held(comm, source, **options) -> RootStore:
    return hold(source, Comm(comm.Dup(), backends.get("numpy")), **options)


@pytest.mark.parametrize("normalize", ["gcn", "row", "none"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("self_loops", [True, False])
def test_facts_and_entries_are_those_of_the_written_store(
    tmp_path, normalize: str, direction: str, weighted: bool, self_loops: bool
) -> None:
    from mpi4py import MPI

    for symmetric, again in ((0, 0), (1, 0), (1, 5)) if direction == "open" else ((0, 0),):
        edges, X, y, weights = arrays(3, symmetric, again)
        given = {"weights": weights if weighted else None, "directed": DIRECTIONS[direction], "seed": 4}
        how = {"normalize": normalize, "self_loops": self_loops, "dtype": "float64"}
        orders = ["random", "original"]
        graph, out = (edges, X, y, "0.5/0.2/0.3"), tmp_path / "a.dg"
        dg.prepare(*graph, out=out, order=orders, force=True, **given, **how)
        written = dg.Store(out)
        store = held(MPI.COMM_SELF, of_arrays(*graph, **given), seed=4, **how)
        for name in set(written.manifest) - OF_FILES:
            assert store.manifest[name] == written.manifest[name], name
        directed = {"directed": True, "undirected": False, "open": not symmetric}
        assert store.manifest["directed"] == directed[direction]
        everything = (0, N), (0, N)
        for name in orders:
            ours, theirs = store.order(name), written.order(name)
            A, B = ours.block(*everything), theirs.block(*everything)
            assert (A.indptr == B.indptr).all() and (A.indices == B.indices).all()
            # degrees of weighted graphs are summed in the order of the nodes
            np.testing.assert_allclose(A.data, B.data, rtol=1e-13 if weighted else 0)
            assert ours.symmetric == theirs.symmetric
            assert (ours.permutation(0, N) == theirs.permutation(0, N)).all()
            assert (store.features(ours) == written.features(theirs)).all()
            assert (store.labels(ours) == written.labels(theirs)).all()
            assert (store.split(ours) == written.split(theirs)).all()


def test_features_of_many_nodes_have_the_contents_of_the_written_store(tmp_path) -> None:
    from mpi4py import MPI

    n = (1 << 16) + 40
    X = np.random.default_rng(0).random((n, 2)).astype(np.float32)
    dg.prepare(np.zeros((2, 1), int), X, out=tmp_path / "a.dg")
    ours = held(MPI.COMM_SELF, of_arrays(np.zeros((2, 1), int), X)).manifest["content"]
    assert ours == dg.Store(tmp_path / "a.dg").manifest["content"]
    X[-1, -1] += 1
    assert ours != held(MPI.COMM_SELF, of_arrays(np.zeros((2, 1), int), X)).manifest["content"]


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("order", ["random", "original"])
@pytest.mark.parametrize("neighbours", [False, True])
def test_blocks_features_and_targets_reach_the_ranks_that_hold_them(
    comm, backend, order: str, neighbours: bool
) -> None:
    edges, X, y, _ = arrays(5)
    source = of_arrays(edges, X, y, "0.5/0.2/0.3") if comm.rank == 0 else None
    store = held(comm, source)
    grid = dg.Grid(comm, backend=backend, rows=comm.size)
    A = dg.load(store, grid, "1d", order, neighbours=neighbours)
    H = dg.load_features(store, A.input_layout)
    product, entries = dg.gather(A @ H), A.nnz
    labels, split = (dg.gather(one) for one in dg.store.load_targets(store, A.output_layout))
    if comm.rank == 0:
        M = store.order("original").block((0, N), (0, N)).toarray()
        if neighbours:
            M = ((M != 0) & ~np.eye(N, dtype=bool)).astype(np.float32)
        assert entries == np.count_nonzero(M)
        np.testing.assert_allclose(product, M @ X, rtol=1e-5, atol=1e-6)
        assert (labels[:, 0] == store.labels()).all() and (split[:, 0] == store.split()).all()


@pytest.mark.ranks(1, 4)
def test_bad_arrays_are_refused_on_every_rank(comm) -> None:
    edges, X, y, weights = arrays(6)
    weights[500] = -50.0
    source = of_arrays(edges, X, y, weights=weights) if comm.rank == 0 else None
    with pytest.raises(UserError, match="negative weights need normalize=none"):
        held(comm, source)
    with pytest.raises(ArgumentError, match="normalize=sym: expected one of gcn, row, none"):
        held(comm, source, normalize="sym")


@pytest.mark.ranks(1, 4)
def test_an_order_in_memory_is_random_or_original(comm) -> None:
    edges, X, y, _ = arrays(7)
    store = held(comm, of_arrays(edges, X, y) if comm.rank == 0 else None)
    with pytest.raises(UserError, match="order=orignal: there is random and original in.*did you mean"):
        store.order("orignal")
    with pytest.raises(UserError, match=r"prepare\(\.\.\., out=STORE\) writes one"):
        store.order("double")


@pytest.mark.ranks(1)
def test_features_of_the_stored_type_are_those_given(comm) -> None:
    """Other numbers, or rows in another order of memory, are copied."""
    X = np.random.default_rng(0).random((7, 3), dtype=np.float32)
    for given, kept in ((X, True), (X.astype(np.float64), False), (np.asfortranarray(X), False)):
        store = held(comm, of_arrays(np.zeros((2, 1), int), given))
        assert (store.held.features is given) == kept
        np.testing.assert_array_equal(store.held.features, X)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_ranges_of_rows_make_the_same_matrix(monkeypatch, weighted: bool, direction: str) -> None:
    """A range has the rows of an eighth of the entries, or one row that has more; some have no entry."""
    from mpi4py import MPI

    edges, X, y, weights = arrays(8)
    edges[:, 100:400] = np.clip(edges[:, 100:400], 50, 60)  # rows with many entries
    edges[0, 90:] = np.minimum(edges[0, 90:], N - 30)
    edges[1, 90:] = np.minimum(edges[1, 90:], N - 30)
    given = {"weights": weights if weighted else None, "directed": DIRECTIONS[direction]}
    for self_loops in (True, False):
        made, ranges = [], []
        for entries in (1 << 20, 1):
            monkeypatch.setattr(LIMITS, "entries", entries)
            taken = merged_rows.merged_rows(of_arrays(edges, X, y, **given), self_loops, np.float64, ignored)
            ranges.append(len(taken.ranges))
            made.append(held(MPI.COMM_SELF, of_arrays(edges, X, y, **given), self_loops=self_loops))
        monkeypatch.undo()
        assert ranges[0] == 1 and ranges[1] >= merged_rows.RANGES
        whole, parts = made
        assert whole.manifest == parts.manifest
        for name in ("indptr", "indices", "data"):
            ours, theirs = (getattr(store.held.matrix.whole(), name) for store in (parts, whole))
            assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs), name


def ignored(*_) -> None:
    """Take entries of rows, and do nothing."""


def test_rank_0_holds_little_beside_the_matrix(monkeypatch) -> None:
    """The matrix takes 4 bytes an entry; an order, and its blocks, are made when they are asked for."""
    from mpi4py import MPI

    n, many = 2000, 400_000
    edges = np.random.default_rng(0).integers(0, n, (2, many))
    source = of_arrays(edges, np.ones((n, 1), np.float32), directed=True)
    monkeypatch.setattr(LIMITS, "entries", 1 << 12)
    gc.collect()
    counted = ledger.books().held["graph"]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        store = held(MPI.COMM_SELF, source)
        kept, peak = (size - before for size in tracemalloc.get_traced_memory())
        order = store.order("random")
        block = order.block((0, n // 8), (0, n))
        del block
        gc.collect()
        after = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept < 5 * store.nnz and peak < 11 * store.nnz
    assert after - kept < 40 * n
    counted = ledger.books().held["graph"] - counted
    assert 4 * store.nnz < counted < kept
    del store, order
    gc.collect()
    assert ledger.books().held["graph"] < counted


@pytest.mark.ranks(1, 4)
def test_blocks_of_an_order_are_cut_of_the_moved_matrix(comm) -> None:
    """Windows side by side, of no rows, of no columns, and apart, of a matrix that is not symmetric."""
    edges, X, y, weights = arrays(10)
    store = held(comm, of_arrays(edges, X, y, weights=weights, directed=True) if comm.rank == 0 else None)
    thirds = [(0, 70), (70, 70), (70, N)]
    windows = [((10, 90), cols) for cols in thirds] + [((0, N), (5, 9)), ((3, 3), (0, N)), ((90, 91), (0, N))]
    for name in ("random", "original"):
        order = store.order(name)
        found, nodes = order.blocks(windows), order.permutation(0, N)
        whole = comm.bcast(store.held.matrix.whole() if comm.rank == 0 else None)
        expected = whole[nodes][:, nodes].toarray()
        for (rows, cols), block in zip(windows, found, strict=True):
            np.testing.assert_array_equal(block.toarray(), expected[slice(*rows), slice(*cols)])
            assert block.has_canonical_format or not block.nnz
