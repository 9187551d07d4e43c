"""Checkpoints: the state of a run on disk, whole or not at all, readable on any other grid.

Every rank writes its own file under a new name. When all files are on disk, rank 0 renames a manifest that
names them over the old one. Until then the old checkpoint is valid; afterwards its files are removed.
Matrices are written as the blocks that ranks hold (a block that several ranks hold is written by one), from
which any window can be put together. Counters and settings go into the manifest. Its id, as a store's, is a
hash of them that every file carries.

The names of these files are texts, not paths: pathlib notes every part of a path in Python's table of names,
which is made anew, and larger, when it is full of names that are gone. Python 3.12 keeps them all.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distgnn.errors import UserError
from distgnn.files import leftovers
from distgnn.files.leftovers import AnyPath
from distgnn.layout import Range
from distgnn.store.format import hdf5, manifest
from distgnn.store.format.manifest import Kind
from distgnn.store.format.members import Members, stamp
from distgnn.store.format.publish import writing
from distgnn.store.read.node_files import check_window
from distgnn.store.team import shared_out

if TYPE_CHECKING:
    from distgnn.comm.group import Comm

WRITES = "distgnn train STORE --checkpoint {out}"
CHECKPOINT = Kind("distgnn-checkpoint", 2, 2, "checkpoint", "train again", WRITES)

#: Name of a mark in a checkpoint whose first save is not complete: files beside it may be removed.
BEGUN = "first-save-under-way"

# Every file that an interrupted save can leave.
_RANK_FILE = re.compile(r"(\d{6,})-\d{5,}\.h5")
_LEFTOVER = re.compile("|".join([_RANK_FILE.pattern, re.escape(manifest.NAME) + r"\.tmp", BEGUN]))

Piece = tuple[int, int, np.ndarray, tuple[int, int]]


def save(
    path: AnyPath, comm: Comm, pieces: Mapping[str, Piece], meta: Mapping[str, Any] | None = None
) -> None:
    """Write a checkpoint, replacing the one at `path` (a directory) if there is one. Collective.

    The caller makes sure that no other process writes there (`files.lock`).

    Args:
        pieces: this rank's blocks: name -> (first row, first column, host block, global shape). If several
            ranks hold the same block, it is enough that one of them passes it.
        meta: counters and settings with which a run goes on (epoch, configuration), as JSON, on rank 0.

    Raises:
        UserError: `path` is no checkpoint or cannot be written; on every rank. The old one is intact then.
    """
    root, generation = Path(path), 0
    with comm.together():
        if comm.rank == 0:
            generation = next_generation(root)
    generation = comm.share(generation)
    name = f"{generation:06d}-{comm.rank:05d}.h5"
    file = os.path.join(root, name)
    content = _begin(comm, generation, name, pieces, meta or {})
    _mark(root, comm)
    try:
        with comm.together(), writing(root):
            fingerprint = _write(file, content["id"], pieces)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file)
        if comm.rank == 0:
            (root / BEGUN).unlink(missing_ok=True)
        raise
    prints = comm.gather_objects((name, fingerprint))
    with comm.together(), writing(root):
        if comm.rank == 0:
            _commit(root, content | {"files": dict(prints)})


def _mark(root: Path, comm: Comm) -> None:
    """Make the directory, and mark it until its first save is complete. Collective."""
    with comm.together(), writing(root):
        if comm.rank == 0:
            root.mkdir(exist_ok=True)
            if not (root / manifest.NAME).exists():
                (root / BEGUN).touch()


def load(path: AnyPath, comm: Comm) -> CheckpointReader:
    """Open a checkpoint and read every file once, each rank a share of them. Collective.

    Methods of the returned reader are not collective. Raises UserError on every rank if the directory holds
    no checkpoint or one of another schema version, or if a file was changed, is missing or belongs to another
    checkpoint.
    """
    root = Path(path)
    content: dict[str, Any] = {}
    with comm.together():
        if comm.rank == 0:
            content = manifest.read(root, CHECKPOINT)
    content = comm.share(content)
    with comm.together():
        reader = CheckpointReader(root, content)
        if comm.rank == 0:
            reader.members.touch()
    reader.members.refuse(shared_out(comm, reader.members.sizes, reader.members.changed))
    return reader


def read_alone(path: AnyPath) -> CheckpointReader:
    """Open a checkpoint that `load` has verified. Not collective."""
    return CheckpointReader(Path(path), manifest.read(path, CHECKPOINT))


class CheckpointReader:
    """A checkpoint on disk: its `meta`, and `shapes`: name -> global shape of every matrix."""

    def __init__(self, root: Path, content: dict[str, Any]) -> None:
        self.root, self._content = root, content
        try:
            self.meta: dict[str, Any] = dict(content["meta"])
            self.members = Members(root, CHECKPOINT, content["id"], content["files"])
            self.shapes = {name: self._shape(name, piece) for name, piece in content["pieces"].items()}
            parts = [part for piece in content["pieces"].values() for part in piece["parts"]]
            self.members.check({part["file"] for part in parts} | set(content["files"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise manifest.damaged(root, CHECKPOINT, error) from None

    def _shape(self, name: str, piece: Mapping[str, Any]) -> tuple[int, int]:
        """Return the global shape of a matrix; ValueError for one that the files can't hold."""
        dtype, (rows, cols) = np.dtype(piece["dtype"]), piece["shape"]
        places = [(rows, cols), *((part["row"], part["col"]) for part in piece["parts"])]
        places += [tuple(part["shape"]) for part in piece["parts"]]
        if not all(len(place) == 2 and all(type(x) is int and x >= 0 for x in place) for place in places):
            raise ValueError(f"{name} and its parts have shapes and places {places!r:.60}")
        if dtype.kind not in "biuf" or rows * cols * dtype.itemsize > sum(self.members.sizes.values()):
            raise ValueError(f"{name} of {rows} x {cols} {dtype} does not fit into the files")
        return rows, cols

    def piece(self, name: str, rows: Range, cols: Range) -> np.ndarray:
        """Read a C-contiguous window of a matrix.

        Raises UserError if there is no such matrix, or if no rank wrote a part of the window.
        """
        if name not in self.shapes:
            raise UserError(f"{self.root}: has no {name!r}; it has {', '.join(self.shapes) or 'nothing'}")
        described = self._content["pieces"][name]
        check_window(f"{name}: rows", rows, self.shapes[name][0])
        check_window(f"{name}: columns", cols, self.shapes[name][1])
        window = np.empty((rows[1] - rows[0], cols[1] - cols[0]), described["dtype"])
        missing = np.ones(window.shape, bool)
        for part in described["parts"]:
            top, bottom = max(rows[0], part["row"]), min(rows[1], part["row"] + part["shape"][0])
            left, right = max(cols[0], part["col"]), min(cols[1], part["col"] + part["shape"][1])
            if top >= bottom or left >= right:
                continue
            here = np.s_[top - rows[0] : bottom - rows[0], left - cols[0] : right - cols[0]]
            there = np.s_[top - part["row"] : bottom - part["row"], left - part["col"] : right - part["col"]]
            with self.members.open(part["file"]) as file:
                window[here] = file.array(f"pieces/{name}", tuple(part["shape"]), described["dtype"])[there]
            missing[here] = False
        if missing.any():
            row, col = np.argwhere(missing)[0] + (rows[0], cols[0])
            raise UserError(f"{self.root}: {name!r} is incomplete, no rank wrote row {row}, column {col}")
        return window


def next_generation(path: AnyPath) -> int:
    """Return the number of the next `save` at `path`: later than those of all files there.

    Raises UserError where `save` would refuse this path.
    """
    root = Path(path)
    if not root.exists():
        if not root.absolute().parent.is_dir():
            raise UserError(f"{root}: directory {root.parent} does not exist")
        return 0
    if not manifest.claims(root, CHECKPOINT) and not unfinished(root):
        raise UserError(f"{root} exists and is not a distgnn checkpoint; give another name")
    rank_files = map(_RANK_FILE.fullmatch, os.listdir(root))
    return 1 + max((int(match[1]) for match in rank_files if match), default=-1)


def unfinished(root: Path) -> bool:
    """Return True for a directory that is empty or holds only files of a killed first `save`."""
    try:
        names = os.listdir(root)
    except OSError:  # a file, or a directory that may not be read
        return False
    return not names or (BEGUN in names and all(map(_LEFTOVER.fullmatch, names)))


def clean(root: Path) -> None:
    """Remove files of killed runs from a checkpoint, or from an unfinished first one, and log their names."""
    kept: Mapping[str, Any] = {}
    if not unfinished(root):
        try:
            kept = manifest.read(root, CHECKPOINT)["files"]
        except UserError:  # reading or replacing the checkpoint raises it
            return
    stale = (path for path in root.iterdir() if _LEFTOVER.fullmatch(path.name) and path.name not in kept)
    leftovers.remove(root, sorted(stale))


def _begin(
    comm: Comm, generation: int, file: str, pieces: Mapping[str, Piece], meta: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the manifest without its files on rank 0; the other ranks get its id. Collective."""
    content: dict[str, Any] = {}
    with comm.together():
        described = _describe(file, pieces)
    everybody = comm.gather_objects(described)
    with comm.together():
        if comm.rank == 0:
            content = _manifest(generation, everybody, meta)
    return content | {"id": comm.share(content.get("id"))}


def _describe(file: str, pieces: Mapping[str, Piece]) -> dict[str, Any]:
    """Describe this rank's pieces for the manifest."""
    described: dict[str, Any] = {}
    for name, (row, col, block, shape) in pieces.items():
        fits = block.ndim == 2 and 0 <= row <= shape[0] - block.shape[0]
        if not (fits and 0 <= col <= shape[1] - block.shape[1]):
            where = f"a block of shape {block.shape} at ({row}, {col})"
            raise ValueError(f"{name}: {where} is not in a matrix of shape {shape}")
        part = {"file": file, "row": row, "col": col, "shape": block.shape}
        described[name] = {"shape": shape, "dtype": block.dtype.name, "part": part}
    return described


def _manifest(generation: int, everybody: list[dict[str, Any]], meta: Mapping[str, Any]) -> dict[str, Any]:
    """Build the manifest without its files."""
    pieces: dict[str, Any] = {}
    for rank in everybody:
        for name, piece in rank.items():
            entry = pieces.setdefault(name, {"shape": piece["shape"], "dtype": piece["dtype"], "parts": []})
            if entry["shape"] != piece["shape"] or entry["dtype"] != piece["dtype"]:
                both = f"{entry['shape']} and {piece['shape']}"
                raise ValueError(f"{name}: ranks disagree on its shape or dtype: {both}")
            entry["parts"].append(piece["part"])
    content = {"format": CHECKPOINT.format, "version": CHECKPOINT.version, "generation": generation}
    content |= {"meta": dict(meta), "pieces": pieces}
    return content | {"id": manifest.identity(content)}


def _write(path: str, id: str, pieces: Mapping[str, Piece]) -> dict[str, Any]:
    """Write this rank's file durably; return its fingerprint."""
    with hdf5.writing(path) as file:
        stamp(file, id, os.path.basename(path))
        for name, (_, _, block, _) in pieces.items():
            hdf5.store_array(file.require_group("pieces"), name, block)
    return manifest.fingerprint(path, sync=True)


def _commit(root: Path, content: Mapping[str, Any]) -> None:
    """Name the new files in the manifest: from then on they are the checkpoint."""
    manifest.sync_folder(root)
    manifest.write(root, content)
    for stale in os.listdir(root):
        if _LEFTOVER.fullmatch(stale) and stale not in content["files"]:
            with contextlib.suppress(OSError):  # a stale file only takes room
                os.unlink(os.path.join(root, stale))
