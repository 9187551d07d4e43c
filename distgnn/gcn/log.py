"""The log of a run: JSON lines, one per event, written by rank 0 as it goes.

    {"event": "run", "config": {...}, "grid": {...}, "versions": {...}, "mpi": ..., "cuda_aware": ..., "ranks": [...]}
    {"event": "epoch", "epoch": 1, "loss": ..., "train_acc": ..., "seconds": ..., "phases": {"spmm": ..., ...}}
    {"event": "end", "epoch_seconds_median": ..., "words": [per rank], "bytes": ..., "messages": ..., ...}

Numbers that are not finite are null, since JSON has none such.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import numpy as np

import distgnn
from distgnn.comm import cuda_aware
from distgnn.errors import UserError
from distgnn.grid import Grid
from distgnn.ledger import Ledger

PACKAGES = ("numpy", "scipy", "h5py", "mpi4py", "mpich", "cupy-cuda12x", "cupy-cuda13x")


class RunLog:
    """A log file on rank 0, nothing on the other ranks or without a path. Collective to open.

    Args:
        append: go on in an existing file; force: replace an existing file.

    Raises:
        UserError: the file exists and neither was asked for, or it cannot be written (on every rank).
    """

    def __init__(
        self, grid: Grid, path: str | os.PathLike[str] | None, append: bool = False, force: bool = False
    ) -> None:
        self._file: IO[str] | None = None
        with grid.world.together():
            if path is not None and grid.rank == 0:
                self._file = _open(Path(path), append, force)

    def write(self, event: str, fields: Mapping[str, Any]) -> None:
        """One line, on disk before the next epoch begins."""
        if self._file is not None:
            self._file.write(json.dumps({"event": event} | _finite(dict(fields)), default=_plain) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def run_record(grid: Grid, config: Mapping[str, Any]) -> dict[str, Any]:
    """What ran where: resolved configuration, versions, MPI, and every rank's host and device. Collective."""
    from mpi4py import MPI

    aware, reason = cuda_aware()
    mine = {"rank": grid.rank, "host": socket.gethostname(), "device": grid.device, "coords": grid.coords}
    return {
        "config": dict(config),
        "grid": grid.describe(),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": {"distgnn": distgnn.__version__, "python": platform.python_version()} | _versions(),
        "mpi": " ".join(MPI.Get_library_version().split())[:200],
        "cuda_aware": {"answer": aware, "because": reason},
        "backend": grid.backend.name,
        "ranks": grid.world.gather_objects(mine),
    }


def end_record(grid: Grid, ledger: Ledger, epoch_seconds: Sequence[float]) -> dict[str, Any]:
    """What the run cost, per rank: words, bytes and messages of the ledger, peak memory, the ledger itself. Collective."""
    mine: dict[str, Any] = {
        "words": ledger.words,
        "bytes": ledger.bytes,
        "messages": ledger.messages,
        "flops": ledger.flops,
        "peak_bytes": grid.backend.peak_bytes(),
        "ledger": [{"rank": grid.rank} | entry for entry in ledger.entries()],
    }
    everybody = grid.world.gather_objects(mine)
    record: dict[str, Any] = {name: [rank[name] for rank in everybody] for name in mine if name != "ledger"}
    record["ledger"] = [entry for rank in everybody for entry in rank["ledger"]]
    record["epoch_seconds_median"] = float(np.median(epoch_seconds)) if epoch_seconds else None
    return record


def check_log(path: Path, append: bool, force: bool) -> None:
    """UserError if a log at this path would overwrite something that it may not."""
    if path.is_dir():
        raise UserError(f"--log {path}: is a directory; give the name of a file")
    if path.exists() and not append and not force:
        raise UserError(f"--log {path}: exists; use --force to replace it, or another name")


def _open(path: Path, append: bool, force: bool) -> IO[str]:
    check_log(path, append, force)
    try:
        return open(path, "a" if append else "w", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--log {path}: cannot write it ({error.strerror})") from error


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _plain(value: Any) -> Any:
    """NumPy numbers and paths as JSON."""
    return value.item() if hasattr(value, "item") else str(value)
