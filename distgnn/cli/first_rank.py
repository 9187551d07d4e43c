"""Work that one rank does for the job while the others wait without using their cores."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from distgnn.launch import launched


def on_first_rank(work: Callable[[], None]) -> None:
    """Call `work` on rank 0 of the job. Collective: what it raises is raised on every rank.

    Being told to end (SIGTERM, as from `scancel`) is treated like Ctrl-C while `work` runs, so that it can tidy up.
    """
    if launched()[0] == 1:
        _interruptible(work)
        return
    from mpi4py import MPI

    from distgnn import backend
    from distgnn.comm import Comm

    comm = Comm(MPI.COMM_WORLD, backend.get("numpy"))
    with comm.together():
        try:
            if comm.rank == 0:
                _interruptible(work)
        finally:
            _arrive(comm.mpi)


def _interruptible(work: Callable[[], None]) -> None:
    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        work()
    finally:
        signal.signal(signal.SIGTERM, before)


def _arrive(mpi: Any) -> None:
    """A barrier that sleeps: a blocking one would keep the cores busy that rank 0 needs."""
    request = mpi.Ibarrier()
    while not request.Test():
        time.sleep(0.02)
