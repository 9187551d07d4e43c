"""Communicators of few ranks out of a launch of many, and their return after the test.

An MPI has room for about two thousand communicators (MPICH: 2,048) and code under test rarely frees the ones
it splits off. So tests get a communicator that remembers its children, and the plugin frees them when the
test has ended well on all ranks.
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

#: The numbers of ranks that tests of distributed code run on.
SIZES = (1, 2, 3, 4, 6, 8, 9, 12)

WORLD = MPI.COMM_WORLD

_children: list[MPI.Comm] = []
_groups: dict[int, MPI.Intracomm] = {}


class TrackedComm(MPI.Intracomm):
    """A communicator whose descendants are freed by :func:`free_children`."""

    def Dup(self, *args: Any) -> MPI.Comm:
        return _track(MPI.Intracomm(self).Dup(*args))

    def Clone(self) -> MPI.Comm:
        return _track(MPI.Intracomm(self).Clone())

    def Split(self, *args: Any, **kwargs: Any) -> MPI.Comm:
        return _track(MPI.Intracomm(self).Split(*args, **kwargs))

    def Split_type(self, *args: Any, **kwargs: Any) -> MPI.Comm:
        return _track(MPI.Intracomm(self).Split_type(*args, **kwargs))

    def Create(self, *args: Any) -> MPI.Comm:
        return _track(MPI.Intracomm(self).Create(*args))

    def Create_group(self, *args: Any, **kwargs: Any) -> MPI.Comm:
        return _track(MPI.Intracomm(self).Create_group(*args, **kwargs))

    def Create_cart(self, *args: Any, **kwargs: Any) -> MPI.Comm:
        return _track(MPI.Intracomm(self).Create_cart(*args, **kwargs))


def first_ranks(size: int) -> MPI.Intracomm:
    """A new communicator of the first ``size`` ranks of the launch; collective over these alone."""
    return WORLD.Create_group(WORLD.Get_group().Incl(range(size)), tag=size)


def subcomm(size: int) -> MPI.Intracomm:
    """The first ``size`` ranks of the launch, for a test that only they run; collective over these alone."""
    if size not in _groups:
        _groups[size] = first_ranks(size)
    return TrackedComm(_groups[size])


def free_children() -> None:
    """Free what the test made out of its communicator, in the order in which all ranks made it."""
    for child in _children:
        if child != MPI.COMM_NULL:  # freed by the code under test
            child.Free()
    _children.clear()


def abandon(size: int) -> None:
    """After a failure of a test on ``size`` ranks: messages may be under way in its communicators, so make
    new ones for the tests that follow. Other sizes keep theirs, as the ranks beyond know nothing of this.
    """
    _children.clear()
    _groups.pop(size, None)


def _track(child: MPI.Comm) -> MPI.Comm:
    if child == MPI.COMM_NULL:
        return child
    if type(child) is MPI.Intracomm:
        child = TrackedComm(child)
    _children.append(child)
    return child
