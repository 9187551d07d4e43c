"""Communicators of MPI that note what a rank waits for, count collectives and compare them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, partialmethod
from typing import Any

from mpi4py import MPI

from distgnn.comm import waiting
from distgnn.comm.notices import Notices
from distgnn.comm.waiting import Wait

COLLECTIVES = (
    "Barrier", "bcast", "allgather", "alltoall", "gather", "Bcast", "Allgatherv", "Allreduce", "Reduce",
    "Reduce_scatter", "Dup", "Split", "Split_type",
)  # fmt: skip
MESSAGES = ("Send", "Recv")


class Watched(MPI.Intracomm):
    """A communicator whose blocking calls are waits for the watch, see ``waiting.py``.

    Attributes:
        label: the name of the group in the ledger.
        notices: of the grid that the group belongs to, if any; index: of the group there; ranks: in the grid.
        compare: called with each collective before it begins.
        source: the object that stood for the communicator before.
    """

    label = "all ranks"
    notices: Notices | None = None
    index = 0
    ranks: Sequence[int] = ()
    compare: Callable[[str], object] | None = None
    source: MPI.Intracomm | None = None

    def begin(self, flight: bool = False) -> Callable[[], object] | None:
        """Count a collective, or a flight of messages, and return the check of a wait for it, if any."""
        if self.notices is None:
            return None
        check = self.notices.check_flight if flight else self.notices.check
        return partial(check, self.ranks, self.index, self.notices.begin(self.index))

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Make a blocking collective call."""
        if self.compare is not None:
            self.compare(name.lower())
        with Wait(name.lower(), self.label, check=self.begin()):
            return getattr(super(), name)(*args, **options)

    def Free(self) -> None:
        """Give the communicator back to MPI. Collective."""
        with Wait("free", self.label, check=self.begin()):
            super().Free() if self.source is None else self.source.Free()

    def send_or_receive(self, name: str, *args: Any, **options: Any) -> None:
        """Make a blocking call for one message."""
        with Wait(name.lower(), self.label):
            getattr(super(), name)(*args, **options)


for _name in COLLECTIVES:
    setattr(Watched, _name, partialmethod(Watched.call, _name))
for _name in MESSAGES:
    setattr(Watched, _name, partialmethod(Watched.send_or_receive, _name))


_kinds: dict[type[MPI.Intracomm], type[Watched]] = {MPI.Intracomm: Watched}


def watched(mpi: Any, label: str = "all ranks") -> Any:
    """Return the communicator as a :class:`Watched` one, if it is of MPI and has several ranks."""
    if not isinstance(mpi, MPI.Intracomm) or mpi.Get_size() == 1:
        return mpi
    waiting.start()
    if not isinstance(mpi, Watched):
        source, mpi = mpi, _kind(type(mpi))(mpi)
        mpi.source = source
    mpi.label = label
    return mpi


def _kind(base: type[MPI.Intracomm]) -> type[Watched]:
    """Return the class of communicators of this kind that are watched."""
    if base not in _kinds:
        _kinds[base] = type("Watched", (Watched, base), {})
    return _kinds[base]
