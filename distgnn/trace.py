"""What every rank did when, as a Chrome trace: a file for https://ui.perfetto.dev, and for ``distgnn report``.

One process per rank, with a track for the epochs, one for what it computed, one for the communication that it waited for or
drove, and as many as are needed for messages under way at once. Clocks of different hosts are aligned at barriers, to about the
time that a barrier takes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.comm import Comm
from distgnn.errors import UserError
from distgnn.ledger import Event

EPOCHS, COMPUTE, WAITED, UNDER_WAY = range(4)
TRACKS = {EPOCHS: "epochs", COMPUTE: "computation", WAITED: "communication, waited for or driven"}
ROUNDS = 21
MOST_EVENTS = 200_000  # of a rank, about 30 MB of JSON


def check_trace(path: Path, force: bool) -> None:
    """UserError if a trace can't go there."""
    if path.is_dir():
        raise UserError(f"--trace {path}: is a directory; give the name of a file")
    if path.exists() and not force:
        raise UserError(f"--trace {path}: exists; use --force to replace it, or another name")
    if not path.absolute().parent.is_dir():
        raise UserError(f"--trace {path}: directory {path.absolute().parent} does not exist")


def clock_offset(comm: Comm) -> float:
    """Seconds by which this rank's ``time.perf_counter`` is ahead of rank 0's: the median over barriers. Collective."""
    ahead = []
    for _ in range(ROUNDS):
        comm.barrier()
        now = time.perf_counter()
        ahead.append(now - comm.share(now))
    return float(np.median(ahead))


def write(path: str | Path, comm: Comm, events: Sequence[Event], epochs: Sequence[tuple[int, float, float]]) -> None:
    """Write everybody's events, the latest ``MOST_EVENTS`` of each rank, on rank 0. Collective.

    Args:
        epochs: (number, start, stop), by this rank's ``time.perf_counter``, as the events are.

    Raises:
        UserError: the file can't be written (on every rank).
    """
    ahead = clock_offset(comm)
    kept = list(events)[-MOST_EVENTS:]
    earliest = min((event.start for event in kept), default=0.0)
    marks = [Event("epoch", f"epoch {number}", "", start, stop, False) for number, start, stop in epochs if stop >= earliest]
    mine = records(comm.rank, [*marks, *kept], ahead)
    origin = min(comm.gather_objects(min((record["ts"] for record in mine), default=0.0)))
    everybody = comm.mpi.gather(mine, 0)
    with comm.together():
        if comm.rank == 0:
            assert everybody is not None
            timed = [record | {"ts": round(record["ts"] - origin, 3)} for rank in everybody for record in rank]
            names = [record for rank in everybody for record in metadata(rank)]
            left_out = len(events) > len(kept)
            try:
                with open(path, "w", encoding="utf-8") as file:
                    json.dump({"traceEvents": names + timed, "otherData": {"earlier events left out": left_out}}, file)
            except OSError as error:
                raise UserError(f"--trace {path}: cannot write it ({error.strerror})") from None


def records(rank: int, events: Sequence[Event], ahead: float = 0.0) -> list[dict[str, Any]]:
    """Complete events ("X") in microseconds, those of messages under way on as few tracks as keep them apart."""
    free_at: list[float] = []  # when each track of messages under way ends so far
    found = []
    for event in sorted(events, key=lambda event: event.start):
        track = EPOCHS if event.phase == "epoch" else WAITED if event.phase == "comm" else COMPUTE
        if event.flight:
            lane = next((i for i, end in enumerate(free_at) if end <= event.start), len(free_at))
            free_at[lane : lane + 1] = [event.stop]
            track = UNDER_WAY + lane
        found.append({
            "name": event.operation, "cat": event.phase, "ph": "X", "pid": rank, "tid": track,
            "ts": 1e6 * (event.start - ahead), "dur": round(1e6 * (event.stop - event.start), 3),
            "args": {"group": event.group} if event.group else {},
        })  # fmt: skip
    return found


def metadata(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The names of a rank's process and tracks."""
    named = []
    for rank in sorted({record["pid"] for record in found}):
        named.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}})
        for track in sorted({record["tid"] for record in found if record["pid"] == rank}):
            name = TRACKS.get(track, f"messages under way {track - UNDER_WAY + 1}")
            named.append({"name": "thread_name", "ph": "M", "pid": rank, "tid": track, "args": {"name": name}})
    return named
