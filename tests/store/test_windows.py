"""Blocks put together in place, on any grid over any shards, read once per node; what fails on one rank fails
on all.
"""

from __future__ import annotations

import mmap
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import wide_grid
from distgnn import UserError, operators
from distgnn.arrays.backend import Backend
from distgnn.arrays.csr import CSR
from distgnn.layout import partition
from distgnn.store import Store, prepare
from distgnn.store.format import hdf5
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.stored import reading
from distgnn.store.read import windows
from distgnn.store.team import Alone
from distgnn.store.write import adjacency as writer

from .graphs import Graph, adjacency, random_graph

PRIME = random_graph(47, 400, weighted=True)
ALONE = Alone()


def store_of(graph: Graph, path: Path, comm: Any = None, **options: Any) -> Path:
    """Prepare it, on rank 0."""
    if comm is None or comm.Get_rank() == 0:
        prepare(graph, path, **options)
    if comm is not None:
        comm.Barrier()
    return path


def whole(order: Any) -> sp.csr_array:
    """Return the matrix, read by entries instead of blocks."""
    rows, cols, values = map(np.concatenate, zip(*order.entries(50), strict=True))
    A = sp.csr_array(sp.coo_array((values, (rows, cols)), shape=order.shape))
    A.sort_indices()
    return A


def assert_packed_alike(block: CSR, expected: CSR) -> None:
    """Compare the arrays to the bit, at the same places of the buffer where the block has its own."""
    assert [str(part) for part in block.header()] == [str(part) for part in expected.header()]
    to_host = dg.backend.of(block.data).to_host
    arrays = ("indptr", "indices", "data") if block.buffer is None else ("buffer",)  # rows of another block
    for name in arrays:
        np.testing.assert_array_equal(*(to_host(getattr(each, name)) for each in (block, expected)))


# -- one rank ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [None, (1, 3), (4, 5), (23, 5)])
def test_rows_are_read_a_few_chunks_at_a_time(tmp_path, monkeypatch, chunks) -> None:
    """Calls begin and end where chunks do, but for the first and the last."""
    table = np.arange(23 * 5, dtype=np.float32).reshape(23, 5)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("table", data=table, chunks=chunks)
        file.create_dataset("vector", data=table[:, 0], chunks=chunks and chunks[:1])
    calls: list[tuple[int, int]] = []
    direct = h5py.Dataset.read_direct

    def noted(self, out, window):
        calls.append((window[0].start, window[0].stop))
        direct(self, out, window)

    monkeypatch.setattr(h5py.Dataset, "read_direct", noted)
    monkeypatch.setattr(LIMITS, "read_bytes", 120)
    height = 1 if chunks is None else chunks[0]
    with reading(tmp_path / "a.h5") as file:
        whole, vector = file.array("table", (23, 5), np.float32), file.array("vector", (23,), np.float32)
        for first in range(0, 23, 3):
            for last in range(first, 24, 2):
                calls.clear()
                found = hdf5.read(whole, (first, last), (1, 4))
                np.testing.assert_array_equal(found, table[first:last, 1:4])
                inner = [stop for _, stop in calls[:-1]]
                assert not any(stop % height for stop in inner) and inner == [start for start, _ in calls[1:]]
                assert all(stop - start <= max(10, height) for start, stop in calls)
                np.testing.assert_array_equal(hdf5.read(vector, (first, last)), table[first:last, 0])


@pytest.mark.parametrize(
    ("shards", "stored", "dtype"),
    [
        ((1, 1), "float32", None),
        ((5, 7), "float32", None),
        ((5, 7), "float64", None),
        ((5, 7), "float32", np.float64),
        ((5, 7), "float64", np.float32),
        ((9, 16), "float64", np.float32),
    ],
)
@pytest.mark.slow
def test_packed_as_from_scipy(
    shards, stored, dtype, backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "window_entries", 7)
    order = Store(store_of(PRIME, tmp_path / "g.dg", shards=shards, dtype=stored)).order()
    A = whole(order)
    if dtype is not None:
        order.dtype = np.dtype(dtype)
    cuts = [
        (i, j)
        for parts in (1, 2, 3, 16)
        for v in [partition(47, parts)]
        for i, j in zip(v[:-1], v[1:], strict=True)
    ]
    rng = np.random.default_rng(0)
    for _ in range(8):
        (top, bottom), (left, right) = (cuts[k] for k in rng.integers(0, len(cuts), 2))
        block = order.assemble((top, bottom), (left, right), backend, ALONE)
        assert_packed_alike(block, CSR.from_scipy(A[top:bottom, left:right], backend, order.dtype))


@pytest.mark.slow
def test_shards_without_rows_entries_or_columns(backend, tmp_path: Path) -> None:
    store_of(Graph(23, [[1, 2], [2, 21]]), tmp_path / "g.dg", shards=(16, 16), self_loops=False)
    order = Store(tmp_path / "g.dg").order()
    A = whole(order)
    for rows in ((0, 0), (23, 23), (3, 12)):
        for cols in ((0, 0), (23, 23), (3, 12)):
            expected = CSR.from_scipy(A[rows[0] : rows[1], cols[0] : cols[1]], backend)
            assert_packed_alike(order.assemble(rows, cols, backend, ALONE), expected)


class FarMemory(Backend):
    """Host arrays that pretend to be on a device: out of tracemalloc's sight, filled by copies only."""

    on_device = True

    def empty(self, shape: Any, dtype: Any) -> Any:
        return np.frombuffer(mmap.mmap(-1, max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)), dtype)[
            : int(np.prod(shape))
        ]


@pytest.mark.parametrize("far", [False, True], ids=["host", "device"])
@pytest.mark.parametrize(
    "window",
    [((0, 2000), (0, 2000)), ((0, 1000), (1000, 2000)), ((100, 1900), (50, 1950))],
    ids=["all", "quarter", "cut"],
)
@pytest.mark.slow
def test_no_block_is_held_twice(window, far: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And on a device, no block is held on the host."""
    monkeypatch.setattr(LIMITS, "window_entries", 5_000)
    pairs = np.random.default_rng(0).integers(0, 2000, (400_000, 2))
    store_of(Graph(2000, pairs, chunk=100_000), tmp_path / "g.dg", shards=(4, 4))
    order = Store(tmp_path / "g.dg").order()
    on = FarMemory() if far else dg.backend.get("numpy")
    order.assemble((0, 9), (0, 9), on, ALONE)  # what libraries take for themselves
    tracemalloc.start()
    try:
        block = order.assemble(*window, on, ALONE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    pieces = 60 * LIMITS.window_entries  # a few numbers of 8 bytes per entry
    pointers = 3 * 8 * 500 * 4  # per row of a shard and tile of a strip
    assert block.buffer.nbytes > 1_400_000
    assert peak < (0 if far else block.buffer.nbytes) + pieces + pointers + 60_000


def test_scipy_blocks_are_not_copied_again(tmp_path: Path) -> None:
    A = Store(store_of(PRIME, tmp_path / "g.dg")).order().block((0, 47), (0, 47))
    for B in (sp.csr_array(A), sp.csr_array((A.data, A.indices, A.indptr), shape=A.shape)):
        assert np.shares_memory(A.data, B.data) and np.shares_memory(A.indices, B.indices)


def test_bytes_read_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks touched count whole, and once even where a piece ends in the middle of one."""
    monkeypatch.setattr(LIMITS, "window_entries", 100)
    monkeypatch.setattr(LIMITS, "chunk_bytes", 256)
    order = Store(store_of(random_graph(64, 900), tmp_path / "g.dg", shards=(2, 2))).order()
    sizes = dict.fromkeys(("indptr", "indices", "values"), 0)
    for path in (tmp_path / "g.dg").glob("orders/*/shard-*"):
        with h5py.File(path) as file:
            for name in sizes:
                sizes[name] += -(-file[name].size // file[name].chunks[0]) * file[name].chunks[0] * 4
    with dg.Ledger() as all_of_it:
        order.block((0, 64), (0, 64))
    assert all_of_it.loaded == sizes
    with dg.Ledger() as one_row:
        order.block((40, 41), (0, 64))
    assert sum(one_row.loaded.values()) < sum(sizes.values()) / 4
    with dg.Ledger() as cut:  # counting what is left of two tiles takes all their column numbers
        order.block((0, 64), (0, 40))
    assert cut.loaded["values"] == sizes["values"]
    assert sizes["indices"] < cut.loaded["indices"] < 2 * sizes["indices"]
    store = Store(tmp_path / "g.dg")
    with dg.Ledger() as permutation:
        store.order().permutation(0, 64)
    assert permutation.loaded == {"permutation": 64 * 4}


@pytest.mark.parametrize(
    ("dataset", "position", "value", "message"),
    [
        ("indptr", 0, 1, "row pointers do not rise from 0"),
        ("indptr", 3, 10**6, "row pointers do not rise from 0"),
        ("indptr", -1, 0, "row pointers do not rise from 0"),
        ("indices", 5, 24, r"column numbers 0\.\.24 in a shard of 24 columns"),
        ("indices", 5, -1, r"column numbers -1\.\."),
    ],
)
@pytest.mark.parametrize("window", [((0, 47), (0, 47)), ((0, 30), (30, 40))], ids=["whole", "cut"])
def test_entries_that_cannot_be(window, dataset, position, value, message, tmp_path: Path) -> None:
    """Written by something else, for checksums catch what happens to a file afterwards."""
    order = Store(store_of(PRIME, tmp_path / "g.dg", shards=(2, 2))).order()
    with h5py.File(tmp_path / "g.dg" / order._files[0][1], "r+") as file:
        file[dataset][position] = value
    with pytest.raises(UserError, match=rf"shard-0000-0001.h5: .*{message}"):
        order.block(*window)


@pytest.mark.parametrize("how", ["swapped", "repeated"])
@pytest.mark.parametrize("entries", [3, 1 << 20])
@pytest.mark.parametrize("window", [((0, 47), (0, 47)), ((0, 24), (24, 46))], ids=["whole", "cut"])
def test_rows_whose_columns_do_not_rise(window, entries, how, tmp_path: Path, monkeypatch) -> None:
    """In every row that has two entries; products would take them as they are."""
    monkeypatch.setattr(LIMITS, "window_entries", entries)
    order = Store(store_of(PRIME, tmp_path / "g.dg", shards=(2, 2))).order()
    path = tmp_path / "g.dg" / order._files[0][1]
    with h5py.File(path) as file:
        pointers, columns = file["indptr"][:], file["indices"][:]
    rows = np.flatnonzero(np.diff(pointers) > 1)
    assert len(rows) > 2
    order.block(*window)
    for row in rows:
        last = int(pointers[row + 1])
        wrong = columns[[last - 1, last - 2]] if how == "swapped" else columns[[last - 2, last - 2]]
        with h5py.File(path, "r+") as file:
            file["indices"][last - 2 : last] = wrong
        with pytest.raises(UserError, match=r"shard-0000-0001.h5: the column numbers of a row are not asc"):
            order.block(*window)
        with h5py.File(path, "r+") as file:
            file["indices"][:] = columns


# -- many ranks ----------------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", list(operators.ALGORITHMS))
@pytest.mark.slow
def test_products_of_a_loaded_matrix(comm, name, backend, shared_tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(LIMITS, "window_entries", 9)
    path = store_of(PRIME, shared_tmp_path / "g.dg", comm, shards=(5, 7), dtype="float64")
    grid = wide_grid(comm, name, backend)
    A = dg.load(path, grid, name)
    H = np.random.default_rng(0).integers(-5, 5, (47, 6)).astype(np.float64)
    Y = dg.gather(A @ dg.scatter(H, A.input_layout))
    with grid.world.together():
        if grid.rank == 0:
            np.testing.assert_allclose(Y, adjacency(PRIME) @ H, rtol=1e-12)
    grid.free()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", list(operators.ALGORITHMS))
def test_no_rank_multiplies_columns_that_do_not_rise(comm, name, shared_tmp_path, monkeypatch) -> None:
    merge = writer.merged_records

    def repeating(entries: np.ndarray) -> np.ndarray:
        merged = merge(entries)
        merged[1:2] = merged[:1]
        return merged

    monkeypatch.setattr(writer, "merged_records", repeating)
    path = store_of(PRIME, shared_tmp_path / "g.dg", comm, shards=(2, 2), self_loops=False)
    with pytest.raises(UserError, match=r"shard-.*.h5: the column numbers of a row are not ascending"):
        dg.load(path, wide_grid(comm, name), name)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("shards", "nodes"), [((1, 1), 1), ((5, 7), 2), ((8, 8), 1)])
@pytest.mark.slow
def test_blocks_of_every_layer(comm, shards, nodes, backend, shared_tmp_path, monkeypatch) -> None:
    """3d, on the most cubic grids and the flattest: each block is the one that SciPy cuts out, to the bit."""
    monkeypatch.setattr(LIMITS, "window_entries", 31)
    path = store_of(PRIME, shared_tmp_path / "g.dg", comm, shards=shards)
    expected = whole(Store(path).order())
    grids = operators.ALGORITHMS["3d"].grids(comm.Get_size())
    for shape in (grids[0], grids[-1]):
        grid = dg.Grid(comm, backend=backend, **shape)
        grid.node = grid.rank % nodes
        A = dg.load(path, grid, "3d", dtype=np.float64)
        for number in range(3):
            (top, bottom), (left, right) = A.layer(number).algorithm.plane.window
            cut = CSR.from_scipy(expected[top:bottom, left:right], grid.backend, np.float64)
            assert_packed_alike(A.layer(number).algorithm.A, cut)
        grid.free()


@pytest.mark.ranks(8)
def test_each_shard_is_read_once_per_node(comm, backend, shared_tmp_path, monkeypatch) -> None:
    """On 2 x 2 x 2 ranks two hold each shard: in layers 0, 1, 2 those that differ in y, x and z. Ranks 0-3
    have x = 0. Shards that are rows of those of layer 0 on a node are not read.
    """
    monkeypatch.setattr(LIMITS, "chunk_bytes", 64)
    path = store_of(random_graph(48, 500), shared_tmp_path / "g.dg", comm, shards=(8, 8))
    with dg.Ledger() as once:
        Store(path).order().block((0, 48), (0, 48))
    grid = dg.Grid(comm, backend=backend, x=2, y=2, z=2)
    cases = ([0] * 8, [1, 1, 1]), ([0] * 4 + [4] * 4, [1, 2, 1]), (range(8), [2, 2, 2])
    for nodes, copies in cases:
        grid.node = nodes[grid.rank]
        first = None
        for number, times in enumerate(copies):
            with dg.Ledger() as ledger:
                A = first.layer(number) if first else dg.load(path, grid, "3d")
            first, S = first or A, A.algorithm.A
            read = grid.world.gather_objects(dict(ledger.loaded))
            if number in first.algorithm.planes.outer:  # they are rows of shards that the node has
                assert not any(read) and ledger.words == 0
                continue
            assert {name: sum(rank[name] for rank in read) for name in read[0]} == {
                k: times * v for k, v in once.loaded.items()
            }
            assert min(rank["values"] for rank in read) > 0  # nobody just waits
            if times == 2:
                assert ledger.words == 0
            else:  # of what a rank did not read, its neighbour sent row lengths, or all of it
                sent = 4 * S.shape[0] + (0 if grid.shares_memory else 2 * S.nnz)
                words = grid.world.gather_objects((ledger.words, sent))
                assert sum(came for came, _ in words) == sum(sent for _, sent in words) // 2
    grid.free()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ["1d", "2d", "3d"])
@pytest.mark.slow
def test_a_damaged_file_fails_on_all_ranks(comm, name, backend, shared_tmp_path, monkeypatch) -> None:
    """Only one rank reads this shard."""
    monkeypatch.setattr(LIMITS, "verified_bytes", 0)
    path = store_of(PRIME, shared_tmp_path / "g.dg", comm, shards=(6, 3))
    if comm.Get_rank() == 0:
        shard = path / "orders/random/shard-0005-0002.h5"
        data = bytearray(shard.read_bytes())
        data[len(data) // 3 :] = bytes(len(data) - len(data) // 3)
        shard.write_bytes(data)
    comm.Barrier()
    grid = wide_grid(comm, name, backend)
    with pytest.raises(UserError, match=r"shard-0005-0002.h5: truncated or corrupt HDF5 file"):
        A = dg.load(path, grid, name)
        A.layer(1)
    grid.free()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("stage", ["count", "_entries"])
@pytest.mark.parametrize("failing", [0, 1])
def test_what_fails_on_one_rank_fails_on_all(
    comm, failing, stage, backend, shared_tmp_path, monkeypatch
) -> None:
    """While pointers, or entries, are read by ranks that want the same window, and by others that don't."""
    monkeypatch.setattr(LIMITS, "window_entries", 13)
    path = store_of(PRIME, shared_tmp_path / "g.dg", comm, shards=(4, 4))
    original, calls = getattr(windows.Tile, stage), []

    def fail(self, *args):
        calls.append(self)
        if comm.Get_rank() == failing and len(calls) == 2:
            raise OSError("the disk is gone")
        return original(self, *args)

    shape = {2: (1, 2, 1), 4: (1, 2, 2)}[comm.Get_size()]
    grid = dg.Grid(comm, backend=backend, **dict(zip("xyz", shape, strict=True)))
    with monkeypatch.context() as patch:
        patch.setattr(windows.Tile, stage, fail)
        with pytest.raises((OSError, RuntimeError, UserError), match="the disk is gone"):
            dg.load(path, grid, "3d")
    assert dg.load(path, grid, "3d").algorithm.A.shape[1] > 0  # and nothing is left of it
    grid.free()


@pytest.mark.ranks(4)
def test_no_room_for_a_piece_on_one_rank_fails_on_all(comm, backend, shared_tmp_path, monkeypatch) -> None:
    """Memory may run out where pieces are put into the block, too; the others read the same window."""
    path = store_of(random_graph(60, 400), shared_tmp_path / "g.dg", comm, shards=(2, 2))

    def full(*_: Any) -> None:
        raise MemoryError("no room on the device")

    if comm.rank == 1:
        monkeypatch.setattr(windows._Assembly, "_place", full)
    grid = dg.Grid(comm, backend=backend, x=1, y=comm.size, z=1)
    with pytest.raises((MemoryError, RuntimeError), match="no room on the device"):
        dg.load(path, grid, "3d")
    grid.free()
