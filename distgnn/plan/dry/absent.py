"""A communicator that answers for absent ranks: one rank runs, and all others are taken to be like it.

No message is sent. Groups of such a communicator charge, wait and are told of what is sent in the order of a
run, so that the steps are those of a run, at the cost of a few calls per panel, exchange or sum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, TypeVar

from mpi4py import MPI

from distgnn.arrays.csr import Header, Shape
from distgnn.arrays.workspace import Workspace
from distgnn.comm.communicator import Communicator
from distgnn.comm.exchange import Exchange
from distgnn.comm.group import Comm
from distgnn.comm.pieces import Pieces
from distgnn.comm.relay import Relay
from distgnn.comm.sums import Series, Sums
from distgnn.layout import Range
from distgnn.plan.dry.ranks import VirtualComm
from distgnn.plan.dry.recorder import Recorder, add, aside, repeated

Array = Any
T = TypeVar("T")


class AbsentGroup(Comm):
    """A group of which this rank alone runs."""

    @staticmethod
    def split(mpi: Communicator, color: int, rank: int, size: int) -> OneOfMany:
        """Make the communicator of a group; the others need not say where they stand."""
        return OneOfMany(size, rank)

    @staticmethod
    def nodes_of(mpi: Communicator, node: Communicator) -> list[int]:
        """List the first rank on the node of each rank."""
        return [rank // mpi.node * mpi.node for rank in range(mpi.Get_size())]  # type: ignore[attr-defined]

    def relay(self, *args: Any, **options: Any) -> Relay:
        """Make a relay whose panels arrive at once."""
        return _Relay(self, *args, **options)

    def exchange(self, *args: Any, **options: Any) -> Exchange:
        """Make an exchange in which all arrives at once."""
        return _Exchange(self, *args, **options)

    def sums(self, workspace: Workspace, overlap: bool = True) -> Sums:
        """Make sums that are complete at once."""
        return _Sums(self, workspace, overlap)

    def gather_headers(
        self, roots: Sequence[int], mine: Mapping[int, Header], shapes: Sequence[Shape]
    ) -> list[Header]:
        """Take panels of other ranks to have as many non-zeros per column as this rank's."""
        own = [header for _, header in sorted(mine.items())]
        following = {root: cycle(own) for root in roots}
        headers = []
        for root, shape in zip(roots, shapes, strict=True):
            (_, columns), nonzeros, indices, values = next(following[root])
            headers.append((shape, nonzeros * shape[1] // max(columns, 1), indices, values))
        return headers


class OneOfMany(VirtualComm):
    """One rank of a group, for which all others are like it: they say what it says."""

    groups = AbsentGroup

    def _meet(self, thing: Any) -> list[Any]:
        return [thing] * self._size

    def alltoall(self, things: Sequence[T]) -> list[T]:
        """Give back what is given: what this rank needs of another, that one needs of it."""
        return list(things)

    def Allreduce(self, place: Any, array: Any, op: Any) -> None:
        if op == MPI.SUM:
            super().Allreduce(place, array, op)

    def Split(self, color: int = 0, key: int = 0) -> OneOfMany:
        """Make a group of all ranks, as ranks that are alike ask for the same group."""
        return OneOfMany(self._size, self._rank)


class _Relay(Relay):
    """A relay whose panels arrive at once: charged and waited for in the order of a run."""

    def _relayed(self) -> Generator[Array]:
        begun: deque[tuple[Array, int, Array]] = deque()
        for _ in self.turns:
            while self.next < len(self.turns) and not self._blocked():
                array, buffer = self._begin()
                begun.append((array, buffer, self.comm.wire(array, self.narrow)))
            array, buffer, wire = begun.popleft()
            if buffer >= 0:
                self.flight.waited(wire.nbytes)
            yield array
            self.comm.release(wire)
            if buffer >= 0:
                self.free.append(buffer)


class _Exchange(Exchange):
    """An exchange that is over when it begins; what is sent is still told to the ledger."""

    def send(self, array: Array, destination: int) -> None:
        if array.size:
            array = self._laid(array)
            self._tell(array)
            if isinstance(array, Pieces):
                add(self._packing(array))

    def _packing(self, array: Pieces) -> Recorder:
        """Pack an array in pieces, one for all arrays of its shape, and return what that is charged."""
        known: dict[Shape, Recorder] = self.__dict__.setdefault("packed", {})
        if array.shape not in known:
            with aside() as known[array.shape]:
                for rows in array.cuts():
                    piece = self._piece(array, rows)
                    array.move(rows, piece.array)
                    self.rooms.append(piece.room)
        return known[array.shape]

    def _delivery(self, array: Array) -> Any:
        """Make a delivery, one for all arrays of a size, where it takes no memory beside theirs."""
        if self.comm.staged or self.comm.narrow or isinstance(array, Pieces):
            return super()._delivery(array)
        known: dict[tuple[Any, Any], Any] = self.__dict__.setdefault("known", {})
        key = array.shape, array.dtype
        if key not in known:
            known[key] = super()._delivery(array)
        return known[key]

    def _receive(self) -> None:
        for delivery in self.deliveries.values():
            delivery.missing = 0


class _Sums(Sums):
    """Sums of which none travels."""

    def in_turn(self, blocks: Sequence[Range]) -> Iterator[Range]:
        """Give one block for all of its height, as only the last one differs."""
        if len(blocks) > 1:
            with repeated(len(blocks) - 1):
                yield blocks[0]
        yield blocks[-1]

    def _series(self, array: Array, root: int | None) -> Series:
        return _Series(self.group, root, self.overlap, self._take)


class _Series(Series):
    """A series of sums that take their memory and are complete."""

    def _begin(self, flat: Array, step: int) -> None:
        pass
