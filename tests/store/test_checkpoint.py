"""Checkpoints appear whole, survive a failed successor, and can be read on any other grid."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from mpi4py import MPI

from distgnn import UserError
from distgnn.arrays import backend
from distgnn.comm.group import Comm
from distgnn.layout import partition
from distgnn.store import checkpoint
from distgnn.store.format.limits import LIMITS

X = np.arange(13 * 6, dtype=np.float64).reshape(13, 6)


def group(mpi: Any) -> Comm:
    return Comm(mpi, backend.get("numpy"))


@pytest.fixture
def alone() -> Comm:
    return group(MPI.COMM_SELF)


def whole(values: Any) -> checkpoint.Piece:
    """Return a matrix as the piece of one rank alone."""
    matrix = np.atleast_2d(values)
    return 0, 0, matrix, matrix.shape


def all_of(reader: checkpoint.CheckpointReader, name: str) -> np.ndarray:
    rows, cols = reader.shapes[name]
    return reader.piece(name, (0, rows), (0, cols))


def files(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def test_what_goes_in_comes_out(tmp_path: Path, alone: Comm) -> None:
    matrices = {
        "layers/0/W": np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32),
        "empty": np.empty((0, 4), np.float64),
        "mask": np.array([[True, False]]),
        "ids": np.array([[2**40, -1]]),
    }
    meta = {"epoch": 3, "loss": 0.1 + 0.2, "settings": {"hidden": [16, 7]}, "count": np.int64(4)}
    checkpoint.save(tmp_path / "c", alone, {name: whole(matrix) for name, matrix in matrices.items()}, meta)
    reader = checkpoint.load(tmp_path / "c", alone)
    assert reader.meta == meta
    assert reader.shapes == {name: matrix.shape for name, matrix in matrices.items()}
    for name, matrix in matrices.items():
        found = all_of(reader, name)
        assert (found.dtype, found.shape) == (matrix.dtype, matrix.shape)
        np.testing.assert_array_equal(found, matrix)


@pytest.mark.ranks(1, 3, 6)
def test_pieces_of_every_rank_make_any_window(comm: MPI.Intracomm, shared_tmp_path: Path) -> None:
    """Written by P ranks as columns of unequal width, read back as rows on as many, and in windows of all
    kinds.
    """
    ranks, path = group(comm), shared_tmp_path / "c"
    cut = partition(6, ranks.size)
    lo, hi = int(cut[ranks.rank]), int(cut[ranks.rank + 1])
    replicated = {"W": whole([7, 7, 7])} if ranks.rank == ranks.size - 1 else {}  # one rank gives it for all
    checkpoint.save(path, ranks, {"X": (0, lo, X[:, lo:hi], X.shape)} | replicated, {"epoch": ranks.rank})
    reader = checkpoint.load(path, ranks)
    assert reader.meta == {"epoch": 0}  # that of rank 0 counts
    assert reader.shapes == {"X": (13, 6), "W": (1, 3)}
    np.testing.assert_array_equal(all_of(reader, "W"), [[7, 7, 7]])
    rows = partition(13, ranks.size)
    top, bottom = int(rows[ranks.rank]), int(rows[ranks.rank + 1])
    mine = reader.piece("X", (top, bottom), (0, 6))
    np.testing.assert_array_equal(mine, X[top:bottom])
    assert mine.flags.c_contiguous
    for window in (((0, 13), (0, 6)), ((2, 9), (1, 5)), ((4, 4), (0, 6)), ((12, 13), (5, 6))):
        np.testing.assert_array_equal(reader.piece("X", *window), X[slice(*window[0]), slice(*window[1])])


@pytest.mark.ranks(1, 3)
def test_a_failed_save_leaves_the_last_one(
    comm: MPI.Intracomm, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, path = group(comm), shared_tmp_path / "c"
    first, later = ({"W": whole(values)} if ranks.rank == 0 else {} for values in ([1, 1], [0, 0]))
    checkpoint.save(path, ranks, first | {"X": (ranks.rank, 0, X[:1], X.shape)}, {"epoch": 1})
    before = files(path)
    original = checkpoint.manifest.fingerprint

    def fail(*args: Any, **options: Any) -> Any:
        if ranks.rank == ranks.size - 1:
            raise OSError(28, "No space left on device")
        return original(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.manifest, "fingerprint", fail)
        with pytest.raises(UserError, match=r"cannot write .*c: No space left on device"):
            checkpoint.save(path, ranks, later | {"X": (ranks.rank, 0, X[:1], X.shape)}, {"epoch": 2})
    comm.Barrier()
    assert files(path) == before
    assert checkpoint.load(path, ranks).meta == {"epoch": 1}

    def die(*args: Any) -> None:
        raise RuntimeError("before the rename")

    monkeypatch.setattr(checkpoint.manifest.os, "replace", die)
    with pytest.raises(RuntimeError, match="before the rename"):
        checkpoint.save(path, ranks, later, {"epoch": 3})
    monkeypatch.undo()
    reader = checkpoint.load(path, ranks)
    assert reader.meta == {"epoch": 1}
    np.testing.assert_array_equal(all_of(reader, "W"), [[1, 1]])
    comm.Barrier()
    checkpoint.save(path, ranks, later, {"epoch": 4})  # and what the failures left is gone
    assert checkpoint.load(path, ranks).meta == {"epoch": 4}
    comm.Barrier()
    assert files(path) == {"manifest.json"} | {f"000002-{rank:05d}.h5" for rank in range(ranks.size)}


def test_a_successor_replaces_it(tmp_path: Path, alone: Comm) -> None:
    for epoch in range(3):
        checkpoint.save(tmp_path / "c", alone, {"W": whole([epoch, epoch])}, {"epoch": epoch})
    assert files(tmp_path / "c") == {"manifest.json", "000002-00000.h5"}
    np.testing.assert_array_equal(all_of(checkpoint.load(tmp_path / "c", alone), "W"), [[2, 2]])


def test_a_save_adds_nothing_to_the_names_that_python_keeps(
    tmp_path: Path, alone: Comm, monkeypatch: pytest.MonkeyPatch
) -> None:
    intern, names = sys.intern, list[str]()
    monkeypatch.setattr(sys, "intern", lambda name: names.append(name) or intern(name))
    kept = list[set[str]]()
    for _ in range(3):
        checkpoint.save(tmp_path / "c", alone, {"X": whole(X)})
        kept.append(set(names))
    assert kept[2] == kept[1] > set()


def test_a_first_save_that_died_is_no_obstacle(tmp_path: Path, alone: Comm) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "000000-00003.h5").write_bytes(b"half")
    (tmp_path / "c" / "manifest.json.tmp").write_bytes(b"{")
    with pytest.raises(UserError, match="exists and is not a distgnn checkpoint"):  # they may be anybody's
        checkpoint.save(tmp_path / "c", alone, {})
    assert len(files(tmp_path / "c")) == 2
    (tmp_path / "c" / checkpoint.BEGUN).touch()
    checkpoint.save(tmp_path / "c", alone, {})
    assert files(tmp_path / "c") == {"manifest.json", "000001-00000.h5"}


def test_other_directories_are_not_touched(tmp_path: Path, alone: Comm) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is not a distgnn checkpoint; give another name"):
        checkpoint.save(tmp_path, alone, {})
    with pytest.raises(UserError, match=r"notes.txt exists and is not a distgnn checkpoint"):
        checkpoint.save(tmp_path / "notes.txt", alone, {})
    (tmp_path / "manifest.json").write_text('{"format": "distgnn-store", "version": 1}')
    with pytest.raises(UserError, match="not a distgnn checkpoint"):
        checkpoint.save(tmp_path, alone, {})
    with pytest.raises(UserError, match=r"a/c: directory .*a does not exist"):
        checkpoint.save(tmp_path / "a" / "c", alone, {})
    assert files(tmp_path) == {"notes.txt", "manifest.json"}


def test_bad_blocks_are_bugs(tmp_path: Path, alone: Comm) -> None:
    for row, col, block in ((0, 5, X[:, :2]), (-1, 0, X), (10, 0, X[:4]), (0, 0, X[0])):
        with pytest.raises(ValueError, match="is not in a matrix of shape"):
            checkpoint.save(tmp_path / "c", alone, {"X": (row, col, block, X.shape)})
        assert not (tmp_path / "c").exists()


@pytest.mark.ranks(2, 3)
def test_ranks_that_disagree_on_a_matrix_are_a_bug_on_all(comm: MPI.Intracomm, shared_tmp_path: Path) -> None:
    odd = comm.rank == comm.size - 1
    for block, shape in (
        (np.zeros((1, 2)), (comm.size + odd, 2)),
        (np.zeros((1, 2), np.float32 if odd else np.float64), (comm.size, 2)),
    ):
        with pytest.raises((ValueError, RuntimeError), match="W: ranks disagree on its shape or dtype"):
            checkpoint.save(shared_tmp_path / "c", group(comm), {"W": (comm.rank, 0, block, shape)}, {})
    comm.Barrier()
    assert not list(shared_tmp_path.rglob("manifest.json"))


def test_a_hole_is_an_error(tmp_path: Path, alone: Comm) -> None:
    checkpoint.save(tmp_path / "c", alone, {"X": (0, 0, X[:, :4], X.shape)})
    reader = checkpoint.load(tmp_path / "c", alone)
    np.testing.assert_array_equal(reader.piece("X", (3, 5), (1, 4)), X[3:5, 1:4])
    with pytest.raises(UserError, match="'X' is incomplete, no rank wrote row 3, column 4"):
        reader.piece("X", (3, 5), (1, 6))
    with pytest.raises(ValueError, match="do not lie within 0..13"):
        reader.piece("X", (3, 14), (1, 2))


def test_unknown_names(tmp_path: Path, alone: Comm) -> None:
    checkpoint.save(tmp_path / "c", alone, {"W0": whole(1.0), "W1": whole(1.0)})
    with pytest.raises(UserError, match="has no 'W2'; it has W0, W1"):
        checkpoint.load(tmp_path / "c", alone).piece("W2", (0, 1), (0, 1))
    checkpoint.save(tmp_path / "c", alone, {})
    with pytest.raises(UserError, match="has no 'X'; it has nothing"):
        checkpoint.load(tmp_path / "c", alone).piece("X", (0, 1), (0, 1))


@pytest.mark.ranks(1, 2)
def test_damage_is_every_ranks_error(comm: MPI.Intracomm, shared_tmp_path: Path) -> None:
    ranks, path = group(comm), shared_tmp_path / "c"
    with pytest.raises(UserError, match="no such checkpoint"):
        checkpoint.load(path, ranks)
    checkpoint.save(path, ranks, {"W": whole(np.arange(1000.0))} if ranks.rank == 0 else {})
    shard = path / "000000-00000.h5"
    data = shard.read_bytes()
    comm.Barrier()
    if ranks.rank == 0:
        shard.write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"000000-00000.h5: .* bytes where the manifest says"):
        checkpoint.load(path, ranks)
    if ranks.rank == 0:
        at = data.index(np.arange(50.0, 60.0).tobytes())
        shard.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    comm.Barrier()
    with pytest.raises(UserError, match="c: the bytes of 000000-00000.h5 changed since it was written"):
        checkpoint.load(path, ranks)
    comm.Barrier()
    if ranks.rank == 0:
        content = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(json.dumps(content | {"version": 7}))
    with pytest.raises(
        UserError, match="checkpoint schema version 7, this distgnn reads version 2; train again"
    ):
        checkpoint.load(path, ranks)


def test_files_are_chunked_and_checked(tmp_path: Path, alone: Comm) -> None:
    checkpoint.save(tmp_path / "c", alone, {"W": whole(np.ones((400, 300))), "X": (0, 0, X, X.shape)})
    with h5py.File(tmp_path / "c" / "000000-00000.h5") as file:
        for dataset in (file["pieces/W"], file["pieces/X"]):
            assert dataset.fletcher32
            assert np.prod(dataset.chunks) * dataset.dtype.itemsize <= LIMITS.chunk_bytes
