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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from distgnn.comm import launch
from distgnn.errors import PeerError, UserError

#: Seconds after which a rank that waits for others at the end of its program notifies them.
SOON = 1.0

#: The bytes of ranks that join the others.
CALLS, LEAVES = 1, 2

_sessions: list[Any] = []  # the Notices of each session
_key: Any = None  # of an attribute whose deletion tells that the program ends MPI itself
_left = False
_joined: Any = None  # of this rank as it left: MPI may still write its memory


def enter(notices: Any) -> None:
    """Wait at the end of the program for the ranks that get these :class:`~notices.Notices`."""
    global _key
    from mpi4py import MPI

    if _key is None:  # MPI deletes it first in MPI_Finalize, while all else still works
        _key = MPI.Comm.Create_keyval(delete_fn=lambda *_: leave())
        MPI.COMM_SELF.Set_attr(_key, None)
    _sessions.append(notices)


class Joined:
    """The meeting of all ranks of a program's communicator before all else that this package does there.

    The first and the last rank gather a byte of each rank, and tell all what they know. MPI sends these
    messages straight from rank to rank, in MPICH and Open MPI: nobody needs one that has left since.

    Args:
        leaves: whether this rank joins the others only to say that it leaves the program.

    Attributes:
        gathers: whether this rank is the first or the last.
    """

    def __init__(self, mpi: Any, leaves: bool) -> None:
        from mpi4py import MPI

        self._mpi, self._rank, size = mpi, mpi.Get_rank(), mpi.Get_size()
        self._roots = sorted({0, size - 1})
        self.gathers, self._told = self._rank in self._roots, [bytearray(8) for _ in self._roots]
        self._come, self._word = bytearray(size if self.gathers else 0), 0
        mine, come = [bytes([LEAVES if leaves else CALLS]), MPI.BYTE], [self._come, [1] * size, MPI.BYTE]
        whole = {self._rank: come}
        self._gathered = [mpi.Igatherv(mine, whole.get(root), root) for root in self._roots]
        self._scattered: list[Any] = []

    def sent(self) -> bool:
        """Tell whether this rank's bytes are on their way."""
        return all(request.Test() for request in self._gathered)

    def over(self) -> bool:
        """Tell whether all ranks have joined, and no message is under way."""
        MPI = sys.modules["mpi4py.MPI"]
        self.sent()
        for root, answer in [*zip(self._roots, self._told, strict=True)][len(self._scattered) :]:
            words = None
            if root == self._rank:
                if not self._gathered[self._roots.index(root)].Test():
                    break
                gone = self._come.find(LEAVES) + 1
                word = (gone << 1 | (CALLS in self._come)).to_bytes(8, "little")
                words = [word * len(self._come), [8] * len(self._come), MPI.BYTE]
            self._scattered.append(self._mpi.Iscatterv(words, [answer, MPI.BYTE], root))
        known = [request.Test() for request in self._scattered]
        some = [answer for answer, there in zip(self._told, known, strict=False) if there]
        self._word = int.from_bytes(some[0], "little") if some else 0
        return sum(known) == len(self._roots) and self.sent()

    def absent(self) -> list[int]:
        """List the ranks of the job that have not joined, as far as this rank is told."""
        ranks = [rank for rank, come in enumerate(self._come) if not come and rank != self._rank]
        return ranks_of_job(self._mpi, ranks)

    @property
    def waiting(self) -> bool:
        """True, once all have joined, if a rank waits in a call."""
        return bool(self._word & 1)

    def check(self) -> None:
        """Raise PeerError if a rank has left the program, or if notices say so."""
        for notices in _sessions:
            notices.check_joined(self._mpi)
        self.over()
        if self._word > 1:
            (rank,) = ranks_of_job(self._mpi, [(self._word >> 1) - 1])
            raise PeerError(f"rank {rank} has left the program without taking part")


def ranks_of_job(mpi: Any, ranks: Sequence[int]) -> list[int]:
    """Translate ranks of a communicator to those that errors name."""
    MPI = sys.modules["mpi4py.MPI"]
    return sorted(translated(mpi, ranks, MPI.COMM_WORLD))


def translated(mpi: Any, ranks: Sequence[int], other: Any) -> list[int]:
    """Translate ranks of a communicator to those of another; MPI.UNDEFINED for one that is not there."""
    MPI = sys.modules["mpi4py.MPI"]
    groups = mpi.Get_group(), other.Get_group()
    places: list[int] = MPI.Group.Translate_ranks(groups[0], ranks, groups[1])
    for group in groups:
        group.Free()
    return places


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
    global _joined
    since, notified, limit = time.monotonic(), False, launch.STALL_LIMIT
    with contextlib.suppress(UserError):
        limit = launch.stall_limit()
    sessions = [notices for notices in _sessions if notices.mpi]
    waits: list[Callable[[], bool]] = [partial(next, notices.part(), True) for notices in sessions]
    if alone := all(notices.mpi.Get_size() < world.Get_size() for notices in sessions):
        _joined = joined = Joined(sys.modules["mpi4py.MPI"].COMM_WORLD, leaves=True)
        soon = since + (SOON if error is None else float("inf"))  # others may not use this package at all
        done = joined.sent if error is None and not joined.gathers else joined.over
        waits.append(lambda: done() or time.monotonic() > soon)
    while waits := [over for over in waits if not over()]:
        waited = time.monotonic() - since
        if waited > SOON and not notified:
            notified = True
            for notices in sessions:
                if not notices.met:
                    notices.send_departure()
        if error is not None and waited > launch.PATIENCE:
            _say_failed(error)
            launch.abort(world)
        if waited > limit:
            limit = float("inf")
            launch.say(f"has come to the end of its program, and waited {waited:.0f} s for other ranks there")
        time.sleep(min(waited / 10, 0.05))
    if error is not None and alone and joined.waiting:
        _say_failed(error)


def _say_failed(error: BaseException) -> None:
    launch.say(f"failed: {' '.join(traceback.format_exception_only(type(error), error)[-1].split())}")


def _uncaught() -> BaseException | None:
    """Return the exception that ends the program, if one does."""
    error, trace = getattr(sys, "last_value", None), getattr(sys, "last_traceback", None)
    outermost = "" if trace is None else trace.tb_frame.f_globals.get("__name__")
    return error if outermost in ("__main__", "runpy") else None
