"""The events of every rank as a Chrome trace: for https://ui.perfetto.dev and for ``distgnn report``.

There is one process per rank, with a track for the epochs, one for computation, one for the communication
that the rank waited for or drove, and as many as are needed for messages under way at once. Clocks of
different hosts are aligned at a barrier when the run ends; the file gives the error there. Speeds that differ
by one in a million add a millisecond for each quarter of an hour before that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from distgnn.comm.group import Comm
from distgnn.files.output import replaced, writing
from distgnn.ledger import MOST_EVENTS, Event

EPOCHS, COMPUTE, WAITED, UNDER_WAY = range(4)
TRACKS = {EPOCHS: "epochs", COMPUTE: "computation", WAITED: "communication, waited for or driven"}
ROUNDS = 21
ARGUMENTS = ("group", "words", "bytes", "flops")


def clock_offset(comm: Comm) -> tuple[float, float]:
    """Measure the seconds by which this rank's clock is ahead of rank 0's, and their error. Collective.

    The clock is ``time.perf_counter``. At some moment all ranks are inside a barrier. A clock read on leaving
    it is read after that moment, by at most the time that the rank was inside. Of many barriers the one whose
    longest stay was the shortest counts.
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
    """Write the latest ``MOST_EVENTS`` events of each rank; rank 0 takes one rank's at a time. Collective.

    Args:
        epochs: (number, start, stop), by this rank's ``time.perf_counter``, as the events are.

    Returns:
        True if earlier events of some rank were left out (on every rank).

    Raises:
        ArgumentError: the file can't be written (on every rank); the old file stays.
    """
    ahead, error = clock_offset(comm)
    events = list(events)
    kept = events[-MOST_EVENTS:]
    mine = [*_marks(epochs, min((event.start for event in kept), default=0.0)), *kept]
    first = min((event.start - ahead for event in mine), default=float("inf"))
    cut, firsts = zip(*comm.gather_objects((len(events) > len(kept), first)), strict=True)
    trace_events = records(comm.rank, mine, ahead + min(firsts))
    text = ",\n".join(json.dumps(record) for record in [*metadata(trace_events), *trace_events])
    facts = {"clocks' error in microseconds": 1e6 * error, "earlier events left out": any(cut)}
    others = _one_by_one(comm, text)
    with comm.together():
        try:
            if comm.rank == 0:
                _publish(Path(path), text, others, json.dumps(facts))
        finally:
            for _ in others:  # sends this rank's text; rank 0 takes all that are left, as the others wait
                pass
    return any(cut)


def _marks(epochs: Sequence[tuple[int, float, float]], earliest: float) -> list[Event]:
    """Return events for the epochs that end after a time."""
    shown = [epoch for epoch in epochs if epoch[2] >= earliest]
    return [Event("epoch", f"epoch {number}", "", start, stop, False) for number, start, stop in shown]


def _one_by_one(comm: Comm, text: str) -> Iterator[str]:
    """Yield the texts of the other ranks on rank 0, each received when needed; other ranks send theirs."""
    if comm.rank > 0:
        comm.mpi.recv(source=0)
        comm.mpi.send(text, 0)
        return
    for rank in range(1, comm.size):
        comm.mpi.send(None, rank)
        yield comm.mpi.recv(source=rank)


def _publish(path: Path, text: str, others: Iterable[str], facts: str) -> None:
    with writing("trace", path), replaced(path) as file:
        file.write(b'{"traceEvents": [\n' + text.encode())
        for other in others:
            file.write(((",\n" if text and other else "") + other).encode())
            text = text or other
        file.write(f'\n], "otherData": {facts}}}\n'.encode())


def records(rank: int, events: Sequence[Event], origin: float = 0.0) -> list[dict[str, Any]]:
    """Return complete events ("X") in microseconds after `origin`; messages under way get own tracks."""
    free_at: list[float] = []  # the end so far of each track of messages under way
    complete = []
    for event in sorted(events, key=lambda event: event.start):
        track = EPOCHS if event.phase == "epoch" else WAITED if event.phase == "comm" else COMPUTE
        if event.flight:
            lane = next((i for i, end in enumerate(free_at) if end <= event.start), len(free_at))
            free_at[lane : lane + 1] = [event.stop]
            track = UNDER_WAY + lane
        complete.append({
            "name": event.operation, "cat": event.phase, "ph": "X", "pid": rank, "tid": track,
            "ts": round(1e6 * (event.start - origin), 3), "dur": round(1e6 * (event.stop - event.start), 3),
            "args": {name: value for name in ARGUMENTS if (value := getattr(event, name))},
        })  # fmt: skip
    return complete


def metadata(complete: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records that name a rank's process and tracks."""
    named = []
    for rank in sorted({record["pid"] for record in complete}):
        whose = {"ph": "M", "pid": rank}
        named.append(whose | {"name": "process_name", "args": {"name": f"rank {rank}"}})
        for track in sorted({record["tid"] for record in complete if record["pid"] == rank}):
            name = TRACKS.get(track, f"messages under way {track - UNDER_WAY + 1}")
            named.append(whose | {"name": "thread_name", "tid": track, "args": {"name": name}})
    return named
