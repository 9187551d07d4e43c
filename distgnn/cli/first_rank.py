"""Commands without a grid in a job: they run on rank 0 while the others wait without a core, or on all."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from distgnn.cli.stop import interruptible
from distgnn.comm.launch import PATIENCE, launched

T = TypeVar("T")
TAG = 75  # of the message of a rank that got a signal
EVERY = 0.2  # seconds between looks for it


def on_first_rank(work: Callable[[], T]) -> T:
    """Call `work` on rank 0 of the job. Collective: every rank has its result, and what it raises.

    A signal to any rank interrupts `work`, which tidies up before the job ends.
    """
    from distgnn.store.write.ranks import of

    world, result = _world(), list[T]()
    team = of(world)
    if team.rank == 0:
        with interruptible(), team.together(), _listening(world):
            result.append(work())
    else:
        with interruptible(lambda: _tell(world)), team.together():
            pass
    return team.gather_objects(result)[0][0]


def on_all_ranks(work: Callable[[Any], None]) -> None:
    """Call `work` on every rank with the communicator of all, or with None where there is only one.

    Collective: `work` raises on all ranks what it raises on one. A signal interrupts it.
    """
    with interruptible():
        work(_world())


def _world() -> Any:
    """Return the communicator of all ranks, None if there is only one."""
    if launched()[0] == 1:
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD


def _tell(world: Any) -> None:
    """Tell rank 0 of a signal, and give it time to tidy up and to end the job."""
    world.isend(None, 0, TAG)
    time.sleep(PATIENCE)


@contextmanager
def _listening(world: Any) -> Iterator[None]:
    """Take the signal of another rank as one of this rank, which computes inside and does not communicate."""
    if world is None:
        yield
        return

    def look(number: int, frame: Any) -> None:
        if world.Iprobe(tag=TAG):
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.kill(os.getpid(), signal.SIGTERM)

    handler = signal.signal(signal.SIGALRM, look)
    timer = signal.setitimer(signal.ITIMER_REAL, EVERY, EVERY)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
