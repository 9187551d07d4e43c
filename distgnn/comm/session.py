"""Sessions: what the ranks of a program's communicator share in all calls of this package.

The first collective call on a communicator makes its session: duplicates of it for what the package sends,
for notices of ranks that failed or left (see ``notices.py``), and for *meetings*, in which ranks tell each
other how a task, such as a training, begins and ends. What raises in a task on one rank is told to the
others, which raise PeerError in that task. All ranks leave it together, and go on with new communicators.

Before it all ranks meet on the program's own communicator, see ``leaving.py``. A rank that leaves the program
before its first call joins that meeting, so the others do not wait for that rank.
"""

from __future__ import annotations

import gc
import hashlib
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from mpi4py import MPI

from distgnn import progress
from distgnn.comm import launch, leaving, waiting
from distgnn.comm.interrupts import later
from distgnn.comm.notices import MEETINGS, Index, Notices
from distgnn.comm.waiting import Wait
from distgnn.comm.watched import Watched, room, watched
from distgnn.errors import PeerError, TrainingError, UserError

#: Grids of a session at which ranks look for those that the program has dropped.
MANY = 64

_key: Any = None  # of the attribute of a communicator that holds its sessions, by Python class


class Grids(Protocol):
    """The links of a grid, see ``links.py``."""

    current: Any
    gone: bool

    def free(self) -> None:
        """Give the communicators back to MPI. Collective."""


class Session:
    """The communicators that this package makes of one of the program's. Collective.

    Args:
        mpi: the program's communicator, of several ranks.

    Attributes:
        current: a duplicate for the package; another one after each error.
        generation: how often it was made anew.
        broken: whether an operation has failed since, as far as this rank knows.
        notices: of ranks that failed or left.
        has_core: the session's ranks on this node do not outnumber the cores that they may run on, so that
            one that polls takes no other's core.
        meetings: the communicator of meetings.
        left: whether this rank has left a task before its end, without an error in it.
        grids: the links of grids made in this generation, in this order on all ranks.
    """

    def __init__(self, mpi: MPI.Intracomm) -> None:
        self.size, made = mpi.Get_size(), []
        try:
            with room():
                made.append(mpi.Split_type(MPI.COMM_TYPE_SHARED))
                for _ in range(3):
                    made.append(mpi.Dup())
        except UserError:
            for duplicate in made:
                duplicate.Free()
            raise
        node, *duplicates = made
        self.has_core = node.Get_size() <= len(set().union(*node.allgather(launch.cores())))
        node.Free()
        self.notices, self.meetings = Notices(duplicates[0]), duplicates[1]
        self.broken, self._many = False, MANY
        self.grids: dict[Index, Grids] = {}
        self._open: list[int] = []  # the depths of the tasks that this rank is in
        self.left = False
        self._pending: _Meeting | None = None
        self._connect(duplicates[2])

    @property
    def generation(self) -> int:
        """The number of times that communicators were made anew."""
        return self.notices.generation

    @property
    def alive(self) -> bool:
        """True while the communicators are there; a program may free all that it knows of."""
        return bool(self.notices.mpi)

    def _connect(self, mpi: Any) -> None:
        self.current = watched(mpi)
        if isinstance(self.current, Watched):
            self.current.join(self, (), range(self.size))

    def fail(self) -> None:
        """Note that an operation has failed on this rank, and notify the others, once in a generation."""
        if not self.broken:
            self.broken = True
            self.notices.send_failure()

    def enter(self, links: Grids) -> None:
        """Add a grid; where there are many, free those that all ranks have dropped. Collective.

        Python collects a grid at other times on other ranks, and only all of them together can free it.
        """
        if len(self.grids) >= self._many:
            gc.collect()
            gone = bytearray(known.gone for known in self.grids.values())
            self.current.Allreduce(MPI.IN_PLACE, [gone, MPI.UNSIGNED_CHAR], MPI.MIN)
            for known, by_all in zip([*self.grids.values()], gone, strict=True):
                if by_all:
                    known.free()
            self._many = len(self.grids) + MANY
        self.grids[links.current.index] = links

    def free(self) -> None:
        """Give the communicators back to MPI, unless messages may be left in them. Collective."""
        self.notices.free()
        if not self.generation and not self.broken:
            self.meetings.Free()
            self.current.Free()

    def renew(self) -> None:
        """Make new communicators, if a rank knows of an error. Collective."""
        self._meet(begins=self._next_depth())

    def _next_depth(self) -> int:
        return max(self._open, default=0) + 1

    @contextmanager
    def task(self) -> Iterator[None]:
        """Make what is inside a task of all ranks; see the top of this file. Collective.

        Raises:
            PeerError: another rank failed in this task.
        """
        depth = self._next_depth()
        self._open.append(depth)
        try:
            agreed = self._meet(begins=depth)  # generators that are dropped count until they are collected
            self._open.remove(depth)
            self._open.append(depth := agreed)
            yield
        except GeneratorExit:  # the program drops a training: the others may do so as well
            self.left = True
            raise
        except BaseException as error:
            with suppress(PeerError):
                self._meet(ends=depth, failed=error)
            raise
        else:
            self._meet(ends=depth)
        finally:
            self._open.remove(depth)

    def _meet(self, begins: int = 0, ends: int = 0, failed: BaseException | None = None) -> int:
        """Wait for the other ranks until all are at the same place; return the depth of the task. Collective.

        Ranks count meetings, not what they meet for: one that has failed may meet others that begin or end a
        task inside. It comes again, until they have left that task, too.
        """
        brief = failed is not None and not isinstance(failed, Exception)
        if self._pending is not None:  # of a meeting that was interrupted, or that others had not come to
            self._pending.brief = brief
            self._outcome()
        said = "" if failed is None else f"{launch.where()} failed: {_words(failed)}"
        unclean = not isinstance(failed, (UserError, TrainingError, type(None)))
        while True:
            self._pending = _Meeting(self, begins, ends, said, unclean or self.broken)
            self._pending.brief = brief
            outcome = self._outcome()
            unclean, again = False, outcome.ends >= outcome.begins if begins else outcome.deepest > ends
            if not again:
                break
        if outcome.said and failed is None:
            raise PeerError(outcome.said)
        return outcome.begins

    def _outcome(self) -> _Meeting:
        """Wait for all ranks, and make new communicators if any asks for them, or if errors differ."""
        meeting = self._pending
        assert meeting is not None
        with Wait("meeting", "world"):
            if not (self.has_core and progress.soon(meeting.request.Test)):
                progress.wait(meeting.request.Test, lambda: False, meeting.check)
        with later():
            if meeting.failing:
                meeting.said = self.meetings.bcast(meeting.said, self.size - meeting.failing)
            if meeting.unclean:
                self.notices.renewed()
                self.broken = False
                self.grids.clear()
                with room():
                    self._connect(self.meetings.Dup())
            self.left, self._pending = False, None
        return meeting


class _Meeting:
    """A meeting under way: an all-reduce of what its ranks say, to be read when the request is complete.

    Attributes:
        brief: the rank was told to end, such as by a signal, and waits for the others for some seconds.
    """

    brief = False

    def __init__(self, session: Session, begins: int, ends: int, said: str, unclean: bool) -> None:
        self.session, self.said, self.number = session, said, session.notices.begin(MEETINGS)
        error = said.partition(" failed: ")[2]  # the same on all ranks, where it was raised on all together
        digest = int.from_bytes(hashlib.sha256(error.encode("utf-8", "replace")).digest()[:7], "big")
        failing = session.size - session.notices.rank if said else 0
        self._numbers = memoryview(bytearray(6 * 8)).cast("q")
        for place, number in enumerate((begins, ends, failing, unclean, digest, -digest)):
            self._numbers[place] = number
        whole = MPI.IN_PLACE, [self._numbers, MPI.INT64_T], MPI.MAX
        self.request, self._told = session.meetings.Iallreduce(*whole), False
        self._begun = time.monotonic()

    @property
    def begins(self) -> int:
        """The depth of the deepest task that a rank begins."""
        return self._numbers[0]

    @property
    def ends(self) -> int:
        """The depth of the deepest task that a rank ends."""
        return self._numbers[1]

    @property
    def deepest(self) -> int:
        """The deepest of both."""
        return max(self.begins, self.ends)

    @property
    def failing(self) -> int:
        """The number of ranks from the lowest that failed on; 0 if none did."""
        return self._numbers[2]

    @property
    def unclean(self) -> bool:
        """True if messages or calls of before may meet those of after."""
        return bool(self._numbers[3] or self._numbers[4] != -self._numbers[5])

    def check(self) -> None:
        """Tell ranks that do not come, if this one has failed; PeerError if one has left the program."""
        if not self._told and (self.said or self.session.left):
            self._told = True
            said = self.said or f"{launch.where()} left a training before its end"
            self.session.notices.remind(said, self.number)
        self.session.notices.check_meeting(self.number)
        if self.brief and time.monotonic() > self._begun + launch.PATIENCE:
            raise PeerError("the others go on without a rank that was told to end")


def session_of(mpi: Any) -> Session | None:
    """Return the session of a communicator, made at its first call; None where there is one rank. Collective.

    Raises:
        PeerError: a rank has left the program, and the communicator has no session yet.
    """
    global _key
    if isinstance(mpi, Watched):
        if mpi.session is not None and list(mpi.ranks) == list(range(mpi.session.size)):
            return mpi.session
        mpi = MPI.Intracomm(mpi)  # of some ranks of a grid, which may be a program's own communicator
    if not isinstance(mpi, MPI.Intracomm) or mpi.Get_size() == 1:
        return None
    if _key is None:
        _key = MPI.Comm.Create_keyval(delete_fn=_end)
    sessions: Any = mpi.Get_attr(_key)  # by the Python class
    if sessions is None:
        mpi.Set_attr(_key, sessions := {})
    kind = type(mpi)
    if not (isinstance(sessions.get(kind), Session) and sessions[kind].alive):
        if not isinstance(sessions.get(kind), leaving.Joined):  # else it goes on after an interrupt
            sessions[kind] = leaving.Joined(mpi, leaves=False)
        joined = sessions[kind]
        waiting.start()
        with Wait("first call", "all ranks") as wait:
            wait.absent = joined.absent
            progress.wait(joined.over, lambda: False, joined.check)
        joined.check()
        with later():
            sessions[kind] = Session(mpi)
    return sessions[kind]


def joined(mpi: Any) -> Any:
    """Return the communicator that stands for the program's in this package: it has its ranks. Collective.

    It notes waits, and raises PeerError in those for a rank that has failed or left.
    """
    session = session_of(mpi)
    if session is None:
        return mpi
    own = getattr(mpi, "session", None) is session
    if session.broken or not own:  # after an error that this rank may not know of
        session.renew()
    return session.current


@contextmanager
def task(mpi: Any) -> Iterator[Any]:
    """Make what is inside a task of all ranks of a communicator, and yield :func:`joined` of it. Collective.

    What raises inside on one rank, be it KeyboardInterrupt, is told to the others. All leave it together.

    Raises:
        PeerError: another rank failed inside.
    """
    session = session_of(mpi)
    if session is None:
        yield mpi
        return
    with session.task():
        yield session.current


def _end(mpi: Any, key: int, sessions: dict[type, Any]) -> None:
    """End the sessions of a communicator that the program frees."""
    for session in sessions.values():
        if isinstance(session, Session) and session.alive and not leaving.left():
            session.free()


def _words(error: BaseException) -> str:
    return " ".join("".join(traceback.format_exception_only(error)).split())
