"""How commands without a grid run in a job: on rank 0 while the others wait without a core, or on all."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from distgnn.comm.launch import launched


def on_first_rank(work: Callable[[], None]) -> None:
    """Call `work` on rank 0 of the job. Collective: what it raises is raised on every rank."""
    if launched()[0] == 1:
        return _interruptible(work)
    from mpi4py import MPI

    from distgnn.arrays import backend
    from distgnn.comm.group import Comm
    from distgnn.store.write.ranks import arrive

    comm = Comm(MPI.COMM_WORLD, backend.get("numpy"))
    with comm.together():
        try:
            if comm.rank == 0:
                _interruptible(work)
        finally:
            arrive(comm.mpi)


def on_all_ranks(work: Callable[[Any], None]) -> None:
    """Call `work` on every rank with the communicator of all, or with None where there is only one.

    Collective: `work` raises on all ranks what it raises on one.
    """
    world = None
    if launched()[0] > 1:
        from mpi4py import MPI

        world = MPI.COMM_WORLD
    _interruptible(lambda: work(world))


def _interruptible(work: Callable[[], None]) -> None:
    """SIGTERM, as from `scancel`, acts like Ctrl-C while `work` runs, so that it can tidy up."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        work()
    finally:
        signal.signal(signal.SIGTERM, before)
