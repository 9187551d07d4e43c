"""Checkpoints: the state of a run on disk, whole or not at all, readable on any other grid.

Every rank writes its own file under a new name; when all are on disk rank 0 renames a manifest
that names them over the old one. Until then the old checkpoint is valid; then its files are removed. Matrices
are written as the blocks that ranks hold (one that all hold alike by one of them), from which any window can
be put together. Counters and settings go into the manifest.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distgnn.errors import UserError
from distgnn.layout import Range
from distgnn.store.format import hdf5, manifest
from distgnn.store.format.manifest import AnyPath
from distgnn.store.format.publish import writing
from distgnn.store.read.node_files import check_window

if TYPE_CHECKING:
    from distgnn.comm.group import Comm

FORMAT, VERSION = "distgnn-checkpoint", 1

# All that an interrupted save can leave.
_RANK_FILE = re.compile(r"\d{6,}-\d{5,}\.h5(\.reserve)?")
_LEFTOVER = re.compile(_RANK_FILE.pattern + "|" + re.escape(manifest.NAME) + r"\.tmp")

Piece = tuple[int, int, np.ndarray, tuple[int, int]]


def save(
    path: AnyPath, comm: Comm, pieces: Mapping[str, Piece], meta: Mapping[str, Any] | None = None
) -> None:
    """Write a checkpoint, replacing the one at `path` (a directory) if there is one. Collective.

    Args:
        pieces: this rank's blocks: name -> (first row, first column, host block, global shape). Of ranks with
            the same block one is enough.
        meta: what else it takes to go on, as JSON (epoch, configuration), on rank 0.

    Raises:
        UserError: `path` is no checkpoint or cannot be written; on every rank. The old one is intact then.
    """
    root = Path(path)
    generation = 0
    with comm.together():
        if comm.rank == 0:
            generation = next_generation(root)
            if not root.exists():
                with writing(root):
                    root.mkdir()
    generation = comm.share(generation)
    own = root / f"{generation:06d}-{comm.rank:05d}.h5"
    try:
        with comm.together(), writing(root):
            described = _write(own, pieces)
    except BaseException:
        own.unlink(missing_ok=True)
        raise
    everybody = comm.gather_objects(described)
    with comm.together(), writing(root):
        if comm.rank == 0:
            _commit(root, generation, everybody, {**(meta or {})})


def load(path: AnyPath, comm: Comm) -> CheckpointReader:
    """Open a checkpoint. Collective; the reader that each rank gets is not. UserError on every rank: no
    checkpoint, another schema version, a file missing or truncated."""
    root = Path(path)
    content: dict[str, Any] = {}
    with comm.together():
        if comm.rank == 0:
            content = manifest.read(root, FORMAT, VERSION, "checkpoint")
            manifest.check_sizes(root, content["files"])
    return CheckpointReader(root, comm.share(content))


class CheckpointReader:
    """What a checkpoint holds: `meta`; `shapes`: name -> global shape of every matrix."""

    def __init__(self, root: Path, content: dict[str, Any]) -> None:
        self.root, self._content = root, content
        self.meta: dict[str, Any] = content["meta"]
        self.shapes = {name: tuple(piece["shape"]) for name, piece in content["pieces"].items()}

    def piece(self, name: str, rows: Range, cols: Range) -> np.ndarray:
        """A C-contiguous window of a matrix; UserError: no such matrix, or no rank wrote some of it."""
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
            with hdf5.reading(self.root / part["file"]) as file:
                window[here] = file["pieces"][name][there]
            missing[here] = False
        if missing.any():
            row, col = np.argwhere(missing)[0] + (rows[0], cols[0])
            raise UserError(f"{self.root}: {name!r} is incomplete, no rank wrote row {row}, column {col}")
        return window


def next_generation(path: AnyPath) -> int:
    """The number of the next `save` at `path`: 0 where there is nothing, or only leftovers of an interrupted
    first one. UserError where `save` would refuse this path."""
    root = Path(path)
    if not root.exists():
        if not root.absolute().parent.is_dir():
            raise UserError(f"{root}: directory {root.parent} does not exist")
    elif (root / manifest.NAME).exists():
        return int(manifest.read(root, FORMAT, VERSION, "checkpoint")["generation"]) + 1
    elif not root.is_dir() or any(not _LEFTOVER.fullmatch(entry.name) for entry in root.iterdir()):
        raise UserError(f"{root} exists and is not a distgnn checkpoint; give another name")
    return 0


def _write(path: Path, pieces: Mapping[str, Piece]) -> dict[str, Any]:
    """Write this rank's file durably; returns its part of the manifest."""
    described: dict[str, Any] = {"file": path.name, "pieces": {}}
    with hdf5.writing(path, sum(piece[2].nbytes for piece in pieces.values())) as file:
        for name, (row, col, block, shape) in pieces.items():
            fits = block.ndim == 2 and 0 <= row <= shape[0] - block.shape[0]
            if not (fits and 0 <= col <= shape[1] - block.shape[1]):
                found = f"a block of shape {block.shape} at ({row}, {col})"
                raise ValueError(f"{name}: {found} is not in a matrix of shape {shape}")
            hdf5.store_array(file.require_group("pieces"), name, block)
            part = {"file": path.name, "row": row, "col": col, "shape": block.shape}
            described["pieces"][name] = {"shape": shape, "dtype": block.dtype.name, "part": part}
    described["fingerprint"] = manifest.fingerprint(path, sync=True)
    return described


def _commit(root: Path, generation: int, everybody: list[dict[str, Any]], meta: dict[str, Any]) -> None:
    """Name the new files in the manifest; from here on they are the checkpoint."""
    pieces: dict[str, Any] = {}
    for rank in everybody:
        for name, piece in rank["pieces"].items():
            entry = pieces.setdefault(name, {"shape": piece["shape"], "dtype": piece["dtype"], "parts": []})
            if entry["shape"] != piece["shape"] or entry["dtype"] != piece["dtype"]:
                found = f"{entry['shape']} and {piece['shape']}"
                raise ValueError(f"{name}: ranks disagree on its shape or dtype: {found}")
            entry["parts"].append(piece["part"])
    manifest.sync_folder(root)
    files = {rank["file"]: rank["fingerprint"] for rank in everybody}
    kind = {"format": FORMAT, "version": VERSION, "generation": generation}
    manifest.write(root, {**kind, "meta": meta, "pieces": pieces, "files": files})
    for stale in root.iterdir():
        if _RANK_FILE.fullmatch(stale.name) and stale.name not in files:
            with contextlib.suppress(OSError):  # it costs room, nothing else
                stale.unlink()
