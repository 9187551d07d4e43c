"""Communicators of few ranks out of a launch of many, and their return after the test.

An MPI has room for about two thousand communicators (MPICH: 2,048) and code under test rarely frees the ones
it splits off. So tests get a communicator that remembers its children, and the plugin frees them when the
test has ended well on all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

import pytest
from mpi4py import MPI

T = TypeVar("T")

#: The numbers of ranks that tests of distributed code run on.
SIZES = (1, 2, 3, 4, 6, 8, 9, 12)

WORLD = MPI.COMM_WORLD

#: Is told of every buffer that MPI is given: the call's name, the buffer, whether it is written. The context
#: is around the call, and takes the request where there is one.
Witness = Callable[[str, Any, bool], AbstractContextManager[Callable[[Any], None]]]
witness: list[Witness] = []

_children: list[MPI.Comm] = []
_groups: dict[int, MPI.Intracomm] = {}


class TrackedComm(MPI.Intracomm):
    """A communicator whose descendants are of its class, and are freed by :func:`free_children`."""

    def Dup(self, *args: Any) -> MPI.Comm:
        return _track(self, MPI.Intracomm(self).Dup(*args))

    def Clone(self) -> MPI.Comm:
        return _track(self, MPI.Intracomm(self).Clone())

    def Split(self, *args: Any, **kwargs: Any) -> MPI.Comm:
        return _track(self, MPI.Intracomm(self).Split(*args, **kwargs))

    def Split_type(self, *args: Any, **kwargs: Any) -> MPI.Comm:
        return _track(self, MPI.Intracomm(self).Split_type(*args, **kwargs))

    def Create(self, *args: Any) -> MPI.Comm:
        return _track(self, MPI.Intracomm(self).Create(*args))

    def Create_group(self, *args: Any, **kwargs: Any) -> MPI.Comm:
        return _track(self, MPI.Intracomm(self).Create_group(*args, **kwargs))

    def Create_cart(self, *args: Any, **kwargs: Any) -> MPI.Comm:
        return _track(self, MPI.Intracomm(self).Create_cart(*args, **kwargs))

    def Free(self) -> None:
        """Take out messages that nobody received: a later communicator may get the same place in MPI, and
        would receive them.
        """
        status = MPI.Status()
        while self.Iprobe(status=status):
            room = bytearray(status.Get_count(MPI.BYTE))
            MPI.Intracomm.Recv(self, room, status.Get_source(), status.Get_tag())
        super().Free()


def on_nodes(make: Callable[[], T], ranks: int, dealt: str = "in a row") -> T:
    """Make a grid, or what has one, as if nodes had so many ranks, consecutive ones or dealt "in turns"."""

    def split(self: TrackedComm, *args: Any) -> MPI.Comm:
        size, rank = self.Get_size(), self.Get_rank()
        return self.Split(rank // ranks if dealt == "in a row" else rank % -(-size // ranks), rank)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TrackedComm, "Split_type", split)
        return make()


#: Calls with buffers: which arguments MPI reads and which it writes.
_BUFFERS = {
    "Send": "r", "Isend": "r", "Recv": "w", "Irecv": "w", "Allreduce": "rw", "Iallreduce": "rw",
    "Allgatherv": "rw", "Iallgatherv": "rw", "Reduce_scatter": "rw", "Ireduce_scatter": "rw", "Reduce": "rw",
    "Ireduce": "rw", "Alltoallv": "rw", "Bcast": "r", "Ibcast": "r",
}  # fmt: skip


def _told(name: str, uses: str) -> Callable[..., Any]:
    """Wrap the call of this name, so that it tells the witnesses."""
    call = getattr(MPI.Intracomm, name)

    def told(self: TrackedComm, *arguments: Any, **keywords: Any) -> Any:
        buffers = [(_array(x), use == "w") for x, use in zip(arguments, uses, strict=False) if x is not None]
        if name.endswith("cast"):
            buffers = [(buffers[0][0], self.Get_rank() != arguments[1])]
        if len(buffers) > 1 and buffers[0][0] is MPI.IN_PLACE:
            buffers = buffers[1:]
        with ExitStack() as stack:
            notes = [stack.enter_context(w(name, *buffer)) for w in witness for buffer in buffers]
            answer = call(self, *arguments, **keywords)
            for note in notes if name.startswith("I") else ():
                note(answer)
        return answer

    return told


def _array(buffer: Any) -> Any:
    """Return the array in a buffer with its counts and places."""
    return buffer[0] if isinstance(buffer, (list, tuple)) else buffer


for _name, _uses in _BUFFERS.items():
    setattr(TrackedComm, _name, _told(_name, _uses))


def await_all(comm: MPI.Intracomm) -> None:
    """Wait at a barrier for ranks that wait long: they nap, as polls would slow it down on few cores."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


def first_ranks(size: int) -> MPI.Intracomm:
    """Make a communicator of the first ``size`` ranks of the launch; collective over these alone."""
    return WORLD.Create_group(WORLD.Get_group().Incl(range(size)), tag=size)


def subcomm(size: int) -> MPI.Intracomm:
    """Return the first ``size`` ranks of the launch, for a test that only they run; collective over these."""
    if size not in _groups:
        _groups[size] = first_ranks(size)
    return TrackedComm(_groups[size])


def unfreed() -> int:
    """Count the communicators that the test made and did not free."""
    return sum(child != MPI.COMM_NULL for child in _children)


def free_children() -> None:
    """Free what the test made out of its communicator, in the order in which all ranks made it."""
    for child in _children:
        if child != MPI.COMM_NULL:  # freed by the code under test
            child.Free()
    _children.clear()


def abandon(size: int) -> None:
    """Make new communicators after a failure of a test on ``size`` ranks.

    Messages may be under way in the old ones. Other sizes keep theirs, as the ranks beyond know nothing of
    this.
    """
    _children.clear()
    _groups.pop(size, None)


def _track(parent: TrackedComm, child: MPI.Comm) -> MPI.Comm:
    if child == MPI.COMM_NULL:
        return child
    if type(child) is MPI.Intracomm:
        child = type(parent)(child)
    _children.append(child)
    return child
