"""Any window of a store, from only the files it touches; damage is one clear error, never wrong numbers."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from distgnn import UserError
from distgnn.store import Store, prepare
from distgnn.store.format import hdf5
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.members import stamp
from distgnn.store.format.shards import overlaps

from .graphs import Graph, assert_same, random_graph, reseal, window

GRAPH = random_graph(47, 400, width=7, classes=4, weighted=True)


@pytest.fixture(scope="module")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare a store of GRAPH in two orders, 5 x 3 shards and several node files; not to be changed."""
    path = tmp_path_factory.mktemp("loader") / "g.dg"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LIMITS, "file_bytes", 300)
        prepare(GRAPH, path, order=("random", "original"), shards=(5, 3), dtype="float64")
    assert len(Store(path).manifest["nodes"]["files"]) == 5
    return path


@pytest.fixture
def store_copy(store_path: Path, tmp_path: Path) -> Path:
    """Copy the store, to be damaged."""
    return Path(shutil.copytree(store_path, tmp_path / "copy.dg"))


@pytest.mark.parametrize("at_a_time", [2 << 20, 7])
@pytest.mark.parametrize("order", ["random", "original"])
@pytest.mark.slow
def test_any_window(order: str, at_a_time: int, store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "window_entries", at_a_time)
    source = Store(store_path).order(order)
    A = source.block((0, 47), (0, 47))
    rng = np.random.default_rng(0)
    corners = [
        (0, 47, 0, 47),
        (9, 18, 0, 15),
        (9, 19, 14, 16),
        (46, 47, 46, 47),
        (0, 47, 20, 21),
        (13, 13, 0, 47),
        (0, 9, 47, 47),
    ]
    corners += [(*sorted(rng.integers(0, 48, 2)), *sorted(rng.integers(0, 48, 2))) for _ in range(12)]
    for top, bottom, left, right in corners:
        B = source.block((top, bottom), (left, right))
        assert_same(B, window(A, (top, bottom), (left, right)), 0)
        assert B.indices.dtype == B.indptr.dtype == np.int32
        assert B.has_sorted_indices
        assert B.data.dtype == np.float64


def test_dtype_can_be_chosen(store_path: Path) -> None:
    """dg.load(..., dtype=) sets it."""
    source = Store(store_path).order()
    exact = source.block((3, 40), (5, 41)).data
    source.dtype = np.dtype(np.float32)
    np.testing.assert_array_equal(source.block((3, 40), (5, 41)).data, exact.astype(np.float32))


@pytest.mark.parametrize("piece", [8 << 20, 30])
@pytest.mark.parametrize("order", ["random", "original", None])
@pytest.mark.slow
def test_windows_of_node_arrays(
    order: str | None, piece: int, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "row_bytes", piece)
    store = Store(store_path)
    p = np.arange(47) if order is None else store.order(order).permutation(0, 47)
    rng = np.random.default_rng(1)
    for _ in range(8):
        lo, hi = sorted(rng.integers(0, 48, 2))
        left, right = sorted(rng.integers(0, 8, 2))
        X = store.features(order, (lo, hi), (left, right))
        assert X.dtype == np.float32
        assert X.flags.c_contiguous
        np.testing.assert_array_equal(X, GRAPH.X[p[lo:hi], left:right])
        np.testing.assert_array_equal(store.labels(order, (lo, hi)), GRAPH.labels[p[lo:hi]])
        np.testing.assert_array_equal(store.split(order, (lo, hi)), GRAPH.split[p[lo:hi]])
        if order is not None:
            np.testing.assert_array_equal(store.order(order).permutation(lo, hi), p[lo:hi])
    assert store.labels(order).dtype == np.int32
    assert store.split(order).dtype == np.uint8
    assert store.order(order).permutation(0, 47).dtype == np.int64


def test_an_order_object_is_as_good_as_its_name(store_path: Path) -> None:
    store = Store(store_path)
    np.testing.assert_array_equal(store.labels(store.order("original")), GRAPH.labels)


def test_without_features_and_labels(tmp_path: Path) -> None:
    prepare(Graph(5, [[0, 1]]), tmp_path / "g.dg")
    store = Store(tmp_path / "g.dg")
    assert store.features(rows=(1, 4)).shape == (3, 0)
    np.testing.assert_array_equal(store.labels(rows=(1, 4)), [-1, -1, -1])
    np.testing.assert_array_equal(store.split(), [0] * 5)


def test_only_touched_files_are_read(store_copy: Path) -> None:
    store = Store(store_copy)
    order = store.order("random")
    expected = order.block((10, 25), (16, 31))
    keep = {f"orders/random/shard-{i:04d}-0001.h5" for i in (1, 2)}
    for name in store.manifest["files"]:
        if name not in keep:
            (store_copy / name).unlink()
    assert (order.block((10, 25), (16, 31)) != expected).nnz == 0
    with pytest.raises(UserError, match=r"shard-0000-0001.h5: file is missing"):
        order.block((8, 25), (16, 31))


def test_windows_outside_the_matrix_are_bugs(store_path: Path) -> None:
    store = Store(store_path)
    for bad in ((-1, 3), (4, 3), (0, 48)):
        for call in (
            lambda bad=bad: store.order().block(bad, (0, 1)),
            lambda bad=bad: store.order().block((0, 1), bad),
            lambda bad=bad: store.features(None, bad),
            lambda bad=bad: store.features(None, (0, 1), bad),
            lambda bad=bad: store.labels(None, bad),
            lambda bad=bad: store.split(None, bad),
            lambda bad=bad: store.order().permutation(*bad),
        ):
            with pytest.raises(ValueError, match="do not lie within 0"):
                call()


def test_overlaps_skip_empty_blocks() -> None:
    vector = np.array([0, 0, 4, 4, 9, 9])
    assert list(overlaps(vector, (0, 9))) == [(1, (0, 4)), (3, (4, 9))]
    assert list(overlaps(vector, (3, 5))) == [(1, (3, 4)), (3, (4, 5))]
    assert list(overlaps(vector, (4, 4))) == []


@pytest.mark.slow
def test_memory_of_a_block_is_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are put together in place: no second copy."""
    monkeypatch.setattr(LIMITS, "window_entries", 10_000)
    pairs = np.random.default_rng(0).integers(0, 2000, (300_000, 2))
    prepare(Graph(2000, pairs, chunk=100_000), tmp_path / "g.dg", shards=(3, 4))
    order = Store(tmp_path / "g.dg").order()
    tracemalloc.start()
    try:
        A = order.block((100, 1900), (50, 1950))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = A.data.nbytes + A.indices.nbytes
    reserved = order.nnz * 8  # room for all touched shards, of which what isn't used is never touched
    assert size > 3_000_000
    assert peak < reserved + 1_000_000 < 2 * size


# -- damage --------------------------------------------------------------------------------------------------


def test_no_such_store(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.dg: no such store"):
        Store(tmp_path / "nowhere.dg")


def test_a_file_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "graph.mtx").write_text("%%MatrixMarket")
    with pytest.raises(UserError, match=r"graph.mtx: is a file; a distgnn store is a directory"):
        Store(tmp_path / "graph.mtx")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not a distgnn store, it has no manifest.json"),
        ("{", "not readable as JSON"),
        ("[1]", "not a distgnn store"),
        (
            '{"name": "my web app"}',
            'not a distgnn store; its manifest.json does not say "format": "distgnn-store"',
        ),
        (
            '{"format": "distgnn-store", "version": 1}',
            "store schema version 1, this distgnn reads versions 2 to 3; prepare it again from its source",
        ),
        ('{"format": "distgnn-store", "version": true}', "store schema version True, this distgnn reads"),
        ('{"format": "distgnn-store", "version": 2}', "manifest.json: damaged"),
        ("[" * 10_000, "manifest.json: not readable as JSON .it is nested too deeply"),
        ('{"format": 1, "format": "distgnn-store"}', "not readable as JSON .the key 'format' comes twice"),
        ('{"format": "distgnn-store"}', "manifest.json: damaged .it does not say its schema version"),
    ],
)
def test_not_a_store(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=message):
        Store(tmp_path)


@pytest.mark.parametrize("key", ["n", "files", "orders", "nodes", "dtype"])
def test_manifest_with_something_missing(key: str, store_copy: Path) -> None:
    content = json.loads((store_copy / "manifest.json").read_text())
    del content[key]
    (store_copy / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"manifest.json: damaged .it was changed after it was written"):
        Store(store_copy)
    reseal(store_copy, content)
    with pytest.raises(UserError, match=r"manifest.json: damaged"):
        Store(store_copy)


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("n", 1, "manifest.json: damaged .48 nodes, but nodes is cut at"),
        ("n", -1, "manifest.json: damaged .46 nodes, but nodes is cut at"),
        ("nnz", 1, r"manifest.json: damaged .\d+ non-zeros, but \d+ in the shards of order random"),
        ("width", 1, r"rows-0000.h5: features has shape \(9, 7\), but manifest.json means \(9, 8\)"),
        ("width", -1, r"features has shape .* but manifest.json means"),
        ("classes", -1, r"manifest.json: says 3 classes, but a node has label 3; expected -1\.\.2"),
    ],
)
def test_a_manifest_that_contradicts_the_files(key: str, change: int, message: str, store_copy: Path) -> None:
    content = json.loads((store_copy / "manifest.json").read_text())
    content[key] += change
    reseal(store_copy, content)
    with pytest.raises(UserError, match=r"manifest.json: damaged|is not the file that was written here"):
        Store(store_copy)
    reseal(store_copy, content, stamped=True)
    with pytest.raises(UserError, match=message):
        _contents(Store(store_copy))


@pytest.mark.parametrize("other", [True, False], ids=["of another order", "as stored"])
def test_a_width_that_no_file_has(other: bool, store_copy: Path) -> None:
    content = json.loads((store_copy / "manifest.json").read_text())
    content["width"] = 3
    reseal(store_copy, content, stamped=True)
    with pytest.raises(UserError, match=r"manifest.json means"):
        Store(store_copy).features("original" if other else "random", (0, 9))


def test_entries_of_a_shard_that_are_not_in_its_file(store_copy: Path) -> None:
    content = json.loads((store_copy / "manifest.json").read_text())
    nnz = content["orders"]["random"]["nnz"]
    nnz[0][0], nnz[0][1] = nnz[0][0] + 1, nnz[0][1] - 1
    reseal(store_copy, content, stamped=True)
    with pytest.raises(UserError, match=r"shard-0000-0000.h5: indices has shape"):
        Store(store_copy).order("random").block((0, 2), (0, 2))


def test_a_pipe_is_not_a_manifest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(UserError, match=r"manifest.json: not readable as JSON .it is no regular file"):
        Store(tmp_path)


def test_what_may_not_be_read_is_not_called_damaged(
    store_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Any, *_args: Any, **_more: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    message = r"{}: permission denied; give this user the right to read it"
    store = Store(store_copy)
    with monkeypatch.context() as patch, pytest.raises(UserError, match=message.format("rows-0000.h5")):
        patch.setattr(h5py, "File", refuse)
        store.features("random")
    with monkeypatch.context() as patch, pytest.raises(UserError, match=message.format(r"\.h5")):
        patch.setattr("builtins.open", refuse)
        store.verify()
    stat, hidden = Path.stat, "shard-0000-0000.h5"
    with monkeypatch.context() as patch, pytest.raises(UserError, match=message.format(hidden)):
        look = lambda path, **more: (refuse if path.name == hidden else stat)(path, **more)  # noqa: E731
        patch.setattr(Path, "stat", look)
        Store(store_copy)
    with monkeypatch.context() as patch, pytest.raises(UserError, match=message.format("manifest.json")):
        patch.setattr("builtins.open", refuse)
        Store(store_copy)


def test_unknown_order(store_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"g.dg: no order 'metis-8'; it has random, original; prepare with partition=metis:8 makes",
    ):
        Store(store_path).order("metis-8")


def test_truncated_and_missing_files_are_seen_at_once(store_copy: Path) -> None:
    shard = store_copy / "orders/original/shard-0002-0001.h5"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    with pytest.raises(
        UserError, match=rf"shard-0002-0001.h5: {len(data) - 1} bytes where the manifest says {len(data)}"
    ):
        Store(store_copy)
    shard.unlink()
    with pytest.raises(UserError, match=r"shard-0002-0001.h5: file is missing"):
        Store(store_copy)


@pytest.mark.slow
def test_no_flipped_byte_goes_unnoticed(store_copy: Path) -> None:
    """Wherever a byte of a shard or a node file changes, reading says so or gives the right numbers."""
    store = Store(store_copy)
    errors = 0
    for name in ("orders/random/shard-0001-0001.h5", "nodes/rows-0001.h5"):
        path = store_copy / name
        data = path.read_bytes()
        expected = _contents(store)
        for position in range(3, len(data), 199):
            path.write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
            assert store.verify() == [name]
            try:
                found = _contents(store)
            except UserError as error:
                errors += 1
                assert f"{name}: truncated or corrupt HDF5 file" in str(error)
            else:
                for a, b in zip(found, expected, strict=True):
                    np.testing.assert_array_equal(a, b)
        path.write_bytes(data)
    assert errors > 10
    assert store.verify() == []


def _contents(store: Store) -> list[np.ndarray]:
    A = store.order().block((0, 47), (0, 47))
    return [
        A.data,
        A.indices,
        A.indptr,
        *(read("random") for read in (store.features, store.labels, store.split)),
    ]


def test_a_file_of_something_else(store_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has the right length, and is even HDF5, but lacks these datasets."""
    monkeypatch.setattr(LIMITS, "verified_bytes", 0)
    shard = store_copy / "orders/random/shard-0000-0000.h5"
    size = shard.stat().st_size
    shard.write_bytes(b"x" * size)
    with pytest.raises(UserError, match=r"shard-0000-0000.h5: truncated or corrupt HDF5 file"):
        Store(store_copy).order().block((0, 2), (0, 2))
    with hdf5.writing(shard) as file:
        file["other"] = 1
    os.truncate(shard, size)
    with pytest.raises(UserError, match=r"shard-0000-0000.h5: is not the file that was written here"):
        Store(store_copy).order().block((0, 2), (0, 2))
    with hdf5.writing(shard, "r+") as file:
        stamp(file, Store(store_copy).members.id, shard.relative_to(store_copy).as_posix())
    os.truncate(shard, size)
    with pytest.raises(UserError, match=r"shard-0000-0000.h5: indptr is missing; expected an array"):
        Store(store_copy).order().block((0, 2), (0, 2))


def test_reading_leaves_the_store_alone(store_copy: Path) -> None:
    """The store is read like a file system mounted read-only, without locking."""
    for path in store_copy.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    store = Store(store_copy)
    before = {path: path.stat().st_mtime_ns for path in store_copy.rglob("*")}
    with open(store_copy / "orders/random/shard-0000-0000.h5", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # HDF5 would refuse to open what somebody locks
        _contents(store)
    assert store.verify() == []
    assert {path: path.stat().st_mtime_ns for path in before} == before
