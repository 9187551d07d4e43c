"""The end of a rank's program, which other ranks may not have come to.

A rank that ends waits for all ranks of its sessions (see ``session.py``), as it would in ``MPI_Finalize``.
Where they do not come at once, it notifies them that it has left (see ``notices.py``). Ranks that make their
first call later learn it there: a rank that has made none joins them. A rank that an uncaught exception ends
gives the others some seconds, then ends the job. No hook of the process is replaced.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from distgnn.comm import launch
from distgnn.errors import PeerError, UserError

#: Seconds after which a rank that waits for others at the end of its program notifies them.
SOON = 1.0

_sessions: list[Any] = []  # the Notices of each session
_key: Any = None  # of an attribute whose deletion tells that the program ends MPI itself
_left = False


def enter(notices: Any) -> None:
    """Wait at the end of the program for the ranks that get these :class:`~notices.Notices`."""
    global _key
    from mpi4py import MPI

    if _key is None:  # MPI deletes it first in MPI_Finalize, while all else still works
        _key = MPI.Comm.Create_keyval(delete_fn=lambda *_: leave())
        MPI.COMM_SELF.Set_attr(_key, None)
    _sessions.append(notices)


class Joined:
    """An all-reduce on a program's communicator, which comes before all else that this package does there.

    Args:
        leaves: whether this rank joins the others only to say that it leaves the program.
    """

    def __init__(self, mpi: Any, leaves: bool) -> None:
        from mpi4py import MPI

        self._mpi, self._word = mpi, memoryview(bytearray(8)).cast("q")
        self._word[0] = mpi.Get_size() - mpi.Get_rank() if leaves else 0
        self._request = mpi.Iallreduce(MPI.IN_PLACE, [self._word, MPI.INT64_T], MPI.MAX)

    def over(self) -> bool:
        """Tell whether all ranks have joined."""
        return bool(self._request.Test())

    def check(self) -> None:
        """Raise PeerError if a rank has left the program, or if notices say so."""
        for notices in _sessions:
            notices.check_joined(self._mpi)
        if self.over() and self._word[0]:
            rank = self._mpi.Get_size() - self._word[0]
            raise PeerError(f"rank {rank} has left the program without taking part")


def left() -> bool:
    """Tell whether this rank has come to the end of its program."""
    return _left


def forget(notices: Any) -> None:
    """Wait for these ranks no longer."""
    _sessions.remove(notices)


def leave() -> None:
    """Wait until the others have come to the end of their programs; see the top of this file."""
    global _left
    world = launch.connected_world()
    if _left or world is None:
        return
    _left = True
    error = _uncaught()
    with contextlib.suppress(Exception):  # of MPI, which the program may have ended or broken
        _wait(world, error)
    waiting = sys.modules.get("distgnn.comm.waiting")
    if waiting is not None:
        waiting.stop()


def at_exit() -> None:
    """Call :func:`leave` before Python ends."""
    leave()
    if _key is not None:  # Python, which the attribute calls, ends before MPI
        mpi = sys.modules["mpi4py.MPI"]
        if not mpi.Is_finalized():
            mpi.COMM_SELF.Delete_attr(_key)


def _wait(world: Any, error: BaseException | None) -> None:
    since, notified, limit = time.monotonic(), False, launch.STALL_LIMIT
    with contextlib.suppress(UserError):
        limit = launch.stall_limit()
    sessions = [notices for notices in _sessions if notices.mpi]
    waits: list[Callable[[], bool]] = [partial(next, notices.part(), True) for notices in sessions]
    if all(notices.mpi.Get_size() < world.Get_size() for notices in sessions):
        joined = Joined(sys.modules["mpi4py.MPI"].COMM_WORLD, leaves=True)
        soon = since + (SOON if error is None else float("inf"))  # MPI goes on with it in MPI_Finalize
        waits.append(lambda: joined.over() or time.monotonic() > soon)
    while waits := [over for over in waits if not over()]:
        waited = time.monotonic() - since
        if waited > SOON and not notified:
            notified = True
            for notices in sessions:
                if not notices.met:
                    notices.send_departure()
        if error is not None and waited > launch.PATIENCE:
            line = " ".join(traceback.format_exception_only(type(error), error)[-1].split())
            launch.say(f"failed: {line}")
            launch.abort(world)
        if waited > limit:
            limit = float("inf")
            launch.say(f"has come to the end of its program, and waited {waited:.0f} s for other ranks there")
        time.sleep(min(waited / 10, 0.05))


def _uncaught() -> BaseException | None:
    """Return the exception that ends the program, if one does."""
    error, trace = getattr(sys, "last_value", None), getattr(sys, "last_traceback", None)
    outermost = "" if trace is None else trace.tb_frame.f_globals.get("__name__")
    return error if outermost in ("__main__", "runpy") else None
