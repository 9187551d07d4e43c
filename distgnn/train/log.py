"""The log of a run: JSON lines, one per event, written by rank 0 as it goes.

    {"event": "run", "config": {...}, "grid": {...}, "versions": {...}, "mpi": ..., "ranks": [...], ...}
    {"event": "epoch", "epoch": 1, "loss": ..., "train_acc": ..., "seconds": ..., "phases": {...}, ...}
    {"event": "end", "epoch_seconds_median": ..., "words": [per rank], "bytes": [...], "messages": [...], ...}

The first line of a planned run has a ``plan`` as well: the name of its ``machine``, the ``seconds`` of an
epoch that were predicted, these by ``phases``, and lines of ``advice`` on better orders.

In place of the end, where training gave something wrong:

    {"event": "failed", "epoch": 3, "problem": "epoch 3, layer 0: the loss is nan, ..."}

Or where it was asked to stop, by the number of a signal, after some updates of the next epoch:

    {"event": "stopped", "epoch": 3, "updates": 0, "signal": 15}

Numbers that are not finite are null, as JSON has none.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import math
import os
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

import distgnn
from distgnn import records
from distgnn.comm.grid import Grid
from distgnn.comm.transport import cuda_aware
from distgnn.errors import TrainingError
from distgnn.files.output import check_output, claimed, exchanged, writing
from distgnn.ledger import Ledger

log = logging.getLogger(__name__)

MOST_RANKS = 256  # whose traffic a log has: a number for every two of them
PACKAGES = ("numpy", "scipy", "h5py", "mpi4py", "mpich", "cupy-cuda12x", "cupy-cuda13x")


class RunLog:
    """A log file on rank 0, nothing on other ranks or without a path; a context that closes it and writes a
    TrainingError that ends it. Collective to open.

    The file has one writer at a time. A disk that takes no more ends the log, with a warning, and not the
    training.

    Args:
        after: go on in an existing file after this epoch; later epochs are cut off.
        force: replace an existing file.

    Attributes:
        lost: on rank 0, why the log is incomplete; empty as long as it is whole.

    Raises:
        ArgumentError: the file exists and neither was asked for, or it can't be opened (on every rank).
        UserError: another run writes it (on every rank).
    """

    def __init__(
        self, grid: Grid, path: str | os.PathLike[str] | None, after: int | None = None, force: bool = False
    ) -> None:
        self._file: IO[bytes] | None = None
        self._path, self.lost = path, ""
        with grid.world.together(), contextlib.ExitStack() as opened:
            if path is not None and grid.rank == 0:
                check_output("log", Path(path), replace=force or after is not None)
                opened.enter_context(claimed(Path(path)))
                self._file = _open(Path(path), after)
            self._claim = opened.pop_all()

    def write(self, event: str, fields: Mapping[str, Any]) -> None:
        """Write one line, which readers see before the next epoch begins; none after one that was lost."""
        if self._file is not None:
            record = {"event": event} | _finite(dict(fields))
            text = json.dumps(record, default=_plain, allow_nan=False) + "\n"
            try:
                _write(self._file, text.encode())
            except OSError as error:
                self._lose(error)

    def close(self) -> None:
        """Close the file, if there is one."""
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:  # network file systems write late
            self._lose(error)
        self._claim.close()

    def _lose(self, error: OSError) -> None:
        """End the log here. The file stays claimed."""
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            if file is not None:
                file.close()
        self.lost = f"{self._path}: this log is incomplete ({error.strerror or error})"
        log.warning("%s; training goes on", self.lost)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, TrainingError):
            self.write("failed", records.Failed(epoch=error.epoch, problem=str(error)))
        self.close()


def run_record(grid: Grid, config: Mapping[str, Any]) -> records.Start:
    """Return the record of a run: resolved configuration, versions, MPI, and every rank's host and device.

    Collective.

    Raises:
        UserError: the environment has no answer to whether MPI is CUDA-aware (on every rank).
    """
    from mpi4py import MPI

    with grid.world.together():
        aware, reason = cuda_aware()
    mine = records.Rank(rank=grid.rank, host=socket.gethostname(), device=grid.device, coords=grid.coords)
    mine["nnz"] = grid.nonzeros
    return {
        "config": dict(config),
        "grid": grid.shape,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"distgnn": distgnn.__version__, "python": platform.python_version()} | _versions(),
        "mpi": " ".join(MPI.Get_library_version().split())[:200],
        "cuda_aware": {"answer": aware, "because": reason},
        "backend": grid.backend.name,
        "transport": grid.transport,
        "ranks": grid.world.gather_objects(mine),
    }


def end_record(grid: Grid, ledger: Ledger, epoch_seconds: Sequence[float]) -> records.End:
    """Return the cost of a run, by rank: traffic, flops, peak memory, buffers by purpose, the ledger.

    Collective. Of up to MOST_RANKS also ``traffic``, the words that each rank (a row) sent each other (a
    column).
    """
    mine = {name: getattr(ledger, name) for name in ("words", "bytes", "messages", "flops")}
    mine |= {"peak_bytes": grid.backend.peak_bytes(), "buffer_bytes": ledger.peak}
    entries = [cast(records.Charge, {"rank": grid.rank} | entry) for entry in ledger.entries()]
    sent = ledger.traffic(grid.rank) if grid.size <= MOST_RANKS else {}
    everybody = grid.world.gather_objects((mine, entries, sent))
    costs = {name: [costs[name] for costs, *_ in everybody] for name in mine}
    record = cast(records.End, costs)
    record["ledger"] = [entry for _, entries, _ in everybody for entry in entries]
    if grid.size <= MOST_RANKS:
        traffic = np.zeros((grid.size, grid.size), np.int64)
        for *_, routes in everybody:
            for route, words in routes.items():
                traffic[route] += words
        record["traffic"] = traffic.tolist()
    record["epoch_seconds_median"] = float(np.median(epoch_seconds)) if epoch_seconds else None
    return record


def _open(path: Path, after: int | None) -> IO[bytes]:
    """Open a log that this process has claimed, without a buffer that `close` would write."""
    with writing("log", path):
        if after is not None and path.is_file():
            cut(path, after)
        return open(path, "wb" if after is None else "ab", buffering=0)


def _write(file: IO[bytes], data: bytes) -> None:
    """Write all of a line, or nothing: a disk that is nearly full takes a part."""
    before = os.fstat(file.fileno()).st_size
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        file.truncate(before)
        raise


def cut(path: Path, epoch: int) -> None:
    """Take from a log the epochs after `epoch`, the end of a longer run, and an unfinished last line.

    The caller is the log's only writer.
    """
    if not all(kept for _, kept in _judged(path, epoch)):
        with exchanged(path) as shorter:
            shorter.writelines(line for line, kept in _judged(path, epoch) if kept)


def _judged(path: Path, epoch: int) -> Iterator[tuple[bytes, bool]]:
    """Give every line, and whether it stays. Lines of no log stay."""
    with open(path, "rb") as file:
        for line in file:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                event = {}
            event = event if isinstance(event, dict) else {}
            kind = str(event.get("event"))
            reached = event.get("epochs" if kind == "end" else "epoch")
            beyond = isinstance(reached, int) and reached > epoch
            torn = line.startswith(b'{"event"') and not line.endswith(b"\n")
            yield line, not beyond and not torn


@cache
def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _plain(value: Any) -> Any:
    """Convert NumPy numbers and paths for JSON."""
    return _finite(value.item()) if hasattr(value, "item") else str(value)
