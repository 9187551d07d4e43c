"""Commands without a grid in a job: they run on rank 0 while the others wait without a core, or on all."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from distgnn.comm.launch import launched


def on_first_rank(work: Callable[[], None]) -> None:
    """Call `work` on rank 0 of the job. Collective: what it raises is raised on every rank."""
    from distgnn.store.write.ranks import of

    team = of(_world())
    with team.together():
        if team.rank == 0:
            _interruptible(work)


def on_all_ranks(work: Callable[[Any], None]) -> None:
    """Call `work` on every rank with the communicator of all, or with None where there is only one.

    Collective: `work` raises on all ranks what it raises on one.
    """
    world = _world()
    _interruptible(lambda: work(world))


def _world() -> Any:
    """Return the communicator of all ranks, None if there is only one."""
    if launched()[0] == 1:
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD


def _interruptible(work: Callable[[], None]) -> None:
    """Let SIGTERM, as from `scancel`, act like Ctrl-C while `work` runs, so that it can tidy up."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        work()
    finally:
        signal.signal(signal.SIGTERM, before)
