"""Communicators of MPI that note what a rank waits for, count collectives and compare them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mpi4py import MPI

from distgnn.comm import waiting
from distgnn.comm.notices import Notices
from distgnn.comm.waiting import Wait

COLLECTIVES = (
    "Barrier", "bcast", "allgather", "alltoall", "gather", "Bcast", "Allgatherv", "Allreduce", "Reduce",
    "Reduce_scatter", "Dup", "Split", "Split_type", "Free",
)  # fmt: skip
MESSAGES = ("Send", "Recv")


class Watched(MPI.Intracomm):
    """A communicator whose blocking calls are waits for the watch, see ``waiting.py``.

    Attributes:
        label: the name of the group in the ledger.
        notices: of the grid that the group belongs to, if any; index: of the group there; ranks: in the grid.
        compare: called with each collective before it begins.
    """

    label = "all ranks"
    notices: Notices | None = None
    index = 0
    ranks: Sequence[int] = ()
    compare: Callable[[str], object] | None = None

    def begin(self, flight: bool = False) -> Callable[[], object]:
        """Count a collective, or a flight of messages, and return the check of a wait for it."""
        if self.notices is None:
            return lambda: None
        check = self.notices.check_flight if flight else self.notices.check
        return partial(check, self.ranks, self.index, self.notices.begin(self.index))

    def call(self, name: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Make a blocking collective call."""
        if self.compare is not None:
            self.compare(name)
        with Wait(name, self.label, check=self.begin()):
            return method(self, *args, **options)


def watched(mpi: Any, label: str = "all ranks") -> Any:
    """Return the communicator as a :class:`Watched` one, if it is of MPI and has several ranks."""
    if not isinstance(mpi, MPI.Intracomm) or mpi.Get_size() == 1:
        return mpi
    waiting.start()
    if not isinstance(mpi, Watched):
        mpi = Watched(mpi)
    mpi.label = label
    return mpi


def _collective(name: str) -> Any:
    method = getattr(MPI.Intracomm, name)

    def call(self: Watched, *args: Any, **options: Any) -> Any:
        return self.call(name.lower(), method, *args, **options)

    return call


def _message(name: str) -> Any:
    method = getattr(MPI.Intracomm, name)

    def call(self: Watched, *args: Any, **options: Any) -> Any:
        with Wait(name.lower(), self.label):
            return method(self, *args, **options)

    return call


for _name in COLLECTIVES:
    setattr(Watched, _name, _collective(_name))
for _name in MESSAGES:
    setattr(Watched, _name, _message(_name))
