"""What every rank did when, as a Chrome trace: a file for https://ui.perfetto.dev, and for ``distgnn
report``.

One process per rank, with a track for the epochs, one for what it computed, one for the communication that it
waited for or drove, and as many as are needed for messages under way at once. Clocks of different hosts are
aligned at a barrier when the run ends, to within the time that the file gives as the clocks' error; two
clocks that run apart by a millionth part are apart by another millisecond a quarter of an hour before that.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from distgnn.comm.group import Comm
from distgnn.errors import UserError
from distgnn.ledger import MOST_EVENTS, Event

EPOCHS, COMPUTE, WAITED, UNDER_WAY = range(4)
TRACKS = {EPOCHS: "epochs", COMPUTE: "computation", WAITED: "communication, waited for or driven"}
ROUNDS = 21
ARGUMENTS = ("group", "words", "bytes", "flops")


def check_trace(path: Path, force: bool) -> None:
    """UserError if a trace can't go there."""
    if path.is_dir():
        raise UserError(f"--trace {path}: is a directory; give the name of a file")
    if path.exists() and not force:
        raise UserError(f"--trace {path}: exists; use --force to replace it, or another name")
    if not path.absolute().parent.is_dir():
        raise UserError(f"--trace {path}: directory {path.absolute().parent} does not exist")


def clock_offset(comm: Comm) -> tuple[float, float]:
    """Seconds by which this rank's ``time.perf_counter`` is ahead of rank 0's, and how wrong that can be.
    Collective.

    Nobody leaves a barrier before the last rank has entered it, so that there is a moment at which all ranks
    are inside: clocks read on leaving were read after it, by no more than the rank was inside. Of many
    barriers the one that was shortest for the rank for which it was longest counts.
    """
    rounds = []
    for _ in range(ROUNDS):
        comm.barrier()  # so that all enter the next one at about the same time
        entered = time.perf_counter()
        comm.barrier()
        left = time.perf_counter()
        rounds.append((left - entered, left))
    everybody = comm.gather_objects(rounds)
    inside = [max(rank[i][0] for rank in everybody) for i in range(ROUNDS)]
    best = inside.index(min(inside))
    return rounds[best][1] - everybody[0][best][1], inside[best]


def write(
    path: str | Path, comm: Comm, events: Iterable[Event], epochs: Sequence[tuple[int, float, float]]
) -> bool:
    """Write everybody's events, the latest ``MOST_EVENTS`` of each rank, on rank 0, which takes one rank's at
    a time. Collective.

    Args:
        epochs: (number, start, stop), by this rank's ``time.perf_counter``, as the events are.

    Returns:
        Whether earlier events of some rank were left out (on every rank).

    Raises:
        UserError: the file can't be written (on every rank); what was there before stays.
    """
    ahead, error = clock_offset(comm)
    events = list(events)
    kept = events[-MOST_EVENTS:]
    earliest = min((event.start for event in kept), default=0.0)
    marks = [
        Event("epoch", f"epoch {number}", "", start, stop, False)
        for number, start, stop in epochs
        if stop >= earliest
    ]
    mine = [*marks, *kept]
    facts = comm.gather_objects(
        (len(events) > len(kept), min((event.start - ahead for event in mine), default=float("inf")))
    )
    left_out = any(fact[0] for fact in facts)
    found = records(comm.rank, mine, ahead + min(fact[1] for fact in facts))
    text = ",\n".join(json.dumps(record) for record in [*metadata(found), *found])
    others = _one_by_one(comm, text)
    with comm.together():
        if comm.rank == 0:
            told = {"clocks' error in microseconds": 1e6 * error, "earlier events left out": left_out}
            try:
                _publish(Path(path), text, others, json.dumps(told))
            except OSError as failure:
                raise UserError(f"--trace {path}: cannot write it ({failure.strerror})") from None
            finally:
                for _ in others:  # ranks that have not been heard yet wait for it
                    pass
        else:
            next(others, None)
    return left_out


def _one_by_one(comm: Comm, text: str) -> Iterator[str]:
    """On rank 0 the texts of the others, each asked for when it is needed; elsewhere nothing, when the text
    is sent.
    """
    if comm.rank > 0:
        comm.mpi.recv(source=0)
        comm.mpi.send(text, 0)
        return
    for rank in range(1, comm.size):
        comm.mpi.send(None, rank)
        yield comm.mpi.recv(source=rank)


def _publish(path: Path, text: str, others: Iterable[str], told: str) -> None:
    """The whole file or none; a link stays one."""
    path = path.resolve()
    descriptor, name = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write('{"traceEvents": [\n' + text)
            for other in others:
                file.write((",\n" if text and other else "") + other)
                text = text or other
            file.write(f'\n], "otherData": {told}}}\n')
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def records(rank: int, events: Sequence[Event], origin: float = 0.0) -> list[dict[str, Any]]:
    """Complete events ("X") in microseconds after ``origin``, those of messages under way on as few tracks as
    keep them apart.
    """
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
            "ts": round(1e6 * (event.start - origin), 3), "dur": round(1e6 * (event.stop - event.start), 3),
            "args": {name: value for name in ARGUMENTS if (value := getattr(event, name))},
        })  # fmt: skip
    return found


def metadata(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The names of a rank's process and tracks."""
    named = []
    for rank in sorted({record["pid"] for record in found}):
        named.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}})
        for track in sorted({record["tid"] for record in found if record["pid"] == rank}):
            name = TRACKS.get(track, f"messages under way {track - UNDER_WAY + 1}")
            named.append(
                {"name": "thread_name", "ph": "M", "pid": rank, "tid": track, "args": {"name": name}}
            )
    return named
