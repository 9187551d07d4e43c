"""Rows of a matrix that other ranks hold: fetched from them, or summed there.

Inspector and executor, like PETSc's star forest and Ginkgo's row gatherer. The inspector tells every rank
once which of its rows are needed where. The executor packs rows and sends them, and the caller uses those of
one rank while others travel. In reverse, it sends contributions to rows to the ranks that hold them. They are
added in an order that does not depend on when they arrive, so that overlap changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np

from distgnn import local
from distgnn.arrays.csr import index_type
from distgnn.comm import steps
from distgnn.comm.exchange import Exchange
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.comm.pieces import Pieces, rooms
from distgnn.comm.steps import Steps, Swap, swap, swap_numbers
from distgnn.local import csr_rows
from distgnn.local.csr_rows import Packed
from distgnn.local.narrow import BITS

Array = Any
T = TypeVar("T")
_END: Any = object()


class Rows:
    """The rows that this rank needs of matrices cut in block rows over ``comm``. Collective.

    Args:
        grid: its workspace holds what is packed; ``overlap``: rows travel while the caller computes.
        comm: the ranks that share the matrices; rank r holds block r.
        needed: by rank, distinct rising rows of its block. The rank itself may be among them.
        at_once: ask the ranks now. Otherwise nothing but ``asking`` works until all of its steps are taken.
        runs: by rank, its rows as a slice where they follow each other, else None; default: looked for, for
            which a GPU is waited for.

    Attributes:
        asking: asks the ranks for the rows, in steps.
        needed: without the ranks of which no row is needed.
        places: by rank, where its rows lie among those received, in the order of ``needed``.
        received: how many rows are received, own ones included.
        asked: by rank, the rows that it needs of this rank's block: int64 on the device, or a slice where
            they are consecutive and another rank's. The rank that waits first for this one is the first; this
            one is the last.
        sizes: by rank, how many those are.

    Cost: one all-to-allv of as many row numbers as rows are needed of other ranks.
    """

    def __init__(
        self, grid: Grid, comm: Comm, needed: Mapping[int, Array], at_once: bool = True,
        runs: Mapping[int, slice | None] | None = None,
    ) -> None:  # fmt: skip
        self.grid, self.comm, self.me = grid, comm, comm.rank
        self.needed = {q: rows for q, rows in needed.items() if rows.size}
        self.places = consecutive({q: rows.size for q, rows in self.needed.items()})
        self.received = sum(rows.size for rows in self.needed.values())
        own = {q: as_slice(rows) for q, rows in self.needed.items()} if runs is None else runs
        self.asking = self._ask(own)
        if at_once:
            steps.at_once(self.asking)

    def _ask(self, runs: Mapping[int, slice | None]) -> Steps[None]:
        comm, on, requests = self.comm, self.comm.backend, np.zeros((self.comm.size, 3), np.int64)
        for q, rows in self.needed.items():
            run = runs[q] or slice(0, 0)
            requests[q] = rows.size, run.start, run.stop
        sizes, starts, stops = (yield from swap_numbers(comm, requests)).T.tolist()
        self.sizes = {r: sizes[r] for r in [*reversed(comm.others()), comm.rank] if sizes[r]}
        asked = {r: on.empty((size,), np.int64) for r, size in self.sizes.items()}
        sent = {q: on.asarray(rows, np.int64) for q, rows in self.needed.items()}
        yield from swap(comm, Swap(sent, asked, "rows"))
        one_after_another = {r: slice(starts[r], stops[r]) for r in asked if r != self.me and stops[r]}
        self.asked = asked | one_after_another

    def counts(self, back: bool = False) -> list[int]:
        """List how many rows come from each other rank in a fetch, or come back."""
        sizes = self.sizes if back else {q: rows.size for q, rows in self.needed.items()}
        return [size for rank, size in sizes.items() if rank != self.me]

    @contextmanager
    def fetch(self, X: Array, into: Array, matrix: str, narrow: bool = False) -> Iterator[Exchange]:
        """Fetch the needed rows of all ranks' ``X``. Collective; complete when the context is left.

        Args:
            X: this rank's block (its height, f), C-contiguous; must stay as it is until then.
            into: (received, f). When the context's ``wait(ranks)`` has returned, ``into[places[q]]`` are the
                rows of these ranks q. What is computed meanwhile stands within its ``driven()``.
            matrix: what the ledger calls ``X``.
            narrow: they are features or gradients of a sparse product, which may travel in 16 bits. Rows of
                this rank are not rounded.

        Cost: f words per row of other ranks, in one all-to-allv.
        """
        receives, how = self._others(self.places, into), {"narrow": narrow, "in_pieces": self.comm.in_pieces}
        pieces = self._to_pack(X, self.comm.wire_type(X, narrow))
        with self.grid.workspace.lending() as borrow:
            few = rooms(borrow, [*pieces.values()], self.comm.in_pieces)
            with self.comm.exchange(receives, matrix, self.grid.overlap, rooms=few, **how) as arriving:
                for r, rows in self.asked.items():
                    if r == self.me:
                        local.gather_rows(X, rows, into[self.places[r]])
                    else:
                        arriving.send(pieces[r] if r in pieces else X[rows], r)
                arriving.all_sent()
                yield arriving

    def _to_pack(self, X: Array, dtype: np.dtype) -> dict[int, Pieces]:
        """Return the rows that are packed for other ranks: all that are not consecutive."""
        packs = {r: rows for r, rows in self.asked.items() if r != self.me and not isinstance(rows, slice)}
        move = lambda rows: lambda some, room: self._packed(X, rows[some], room)  # noqa: E731
        return {r: Pieces((rows.size, X.shape[1]), dtype, move(rows)) for r, rows in packs.items()}

    def _packed(self, X: Array, rows: Array, out: Array) -> Array:
        """Gather rows of X in ``out``, rounded where that has 16 bits."""
        if self.comm.narrow is not None and out.dtype == BITS:
            return self.comm.narrow.rows_into(X, rows, out)
        return local.gather_rows(X, rows, out)

    @contextmanager
    def add_back(
        self, Y: Array, into: Array, work: Iterable[tuple[Sequence[int], T]]
    ) -> Iterator[Iterator[T]]:
        """Add all ranks' rows of ``Y`` to the rows of ``into`` they came from, at the end of the context.

        The reverse of :meth:`fetch`. Collective.

        Args:
            Y: (received, f), laid out as :meth:`fetch` leaves it.
            into: this rank's block (its height, f), C-contiguous.
            work: (ranks, item), best in the order of ``asked``'s ranks. The context gives the items, for the
                caller to make the rows of Y of these ranks; they are sent when the next item is asked for.
                After the last one, ``into`` must hold what is added to.

        Cost: f words per row that other ranks need of this one, in one all-to-allv.

        Raises:
            RuntimeError: the context is left before all items were asked for.
        """
        with (
            self._room(self.asked, Y) as came,
            self.comm.exchange(list(came.items()), "sums", self.grid.overlap, narrow=True) as exchange,
        ):
            items = self._sent(exchange, Y, work)
            yield items
            if next(items, _END) is not _END:
                raise RuntimeError("a sum of rows was left before all of them were made")
            for r, rows in reversed(self.asked.items()):
                exchange.wait([r])
                sums = came[r] if r in came else Y[self.places[r]]
                if isinstance(rows, slice):
                    into[rows] += sums
                else:
                    local.scatter_add(sums, rows, into)

    def _sent(self, exchange: Exchange, Y: Array, work: Iterable[tuple[Sequence[int], T]]) -> Iterator[T]:
        """Give the items; after each, send the rows of Y of its ranks."""
        for ranks, item in work:
            with exchange.driven() if self.grid.overlap else nullcontext():
                yield item
            for q in ranks:
                if q != self.me:
                    exchange.send(Y[self.places[q]], q)
        exchange.all_sent()

    def lengths(self, A: Any) -> Steps[Array]:
        """Fetch the number of entries of each needed row of the ranks' CSR matrices.

        Collective; one all-to-allv, in one step.
        """
        kind = index_type(*A.shape)
        received = self.comm.backend.empty((self.received,), kind)
        sent = {r: csr_rows.lengths(A, rows).astype(kind, copy=False) for r, rows in self.asked.items()}
        into = {q: received[place] for q, place in self.places.items()}
        yield from swap(self.comm, Swap(sent, into, "rows"))
        return received

    def fetch_ragged(self, A: Any, matrix: str = "adjacency", lengths: Array = None) -> Steps[Packed]:
        """Fetch the needed rows of the ranks' CSR matrices, packed. Collective.

        ``lengths``: as of :meth:`lengths`, which is called without; ``matrix``: what the ledger calls A.

        Cost: two words per entry of other ranks' rows, in two all-to-allvs and one step.
        """
        if lengths is None:
            lengths = yield from self.lengths(A)
        ends = csr_rows.row_pointers(lengths)
        spans = {q: slice(int(ends[at.start]), int(ends[at.stop])) for q, at in self.places.items()}
        packed = {r: csr_rows.gather(A, rows) for r, rows in self.asked.items()}
        parts, swaps = [], []
        for number, kind in ((1, index_type(*A.shape)), (2, A.dtype)):  # columns, values
            sent = {r: rows[number].astype(kind, copy=False) for r, rows in packed.items()}
            parts.append(self.comm.backend.empty((int(ends[-1]),), kind))
            swaps.append(Swap(sent, {q: parts[-1][span] for q, span in spans.items()}, matrix))
        yield from swap(self.comm, *swaps)
        return lengths, *parts

    def _others(self, places: Mapping[int, slice], whole: Array) -> list[tuple[int, Array]]:
        return [(q, whole[place]) for q, place in places.items() if q != self.me]

    @contextmanager
    def _room(self, ranks: Iterable[int], like: Array) -> Iterator[dict[int, Array]]:
        """Lend memory for the rows that each of these ranks needs, but for this one."""
        sizes = {r: self.sizes[r] for r in ranks if r != self.me}
        with self.grid.workspace.lend((sum(sizes.values()), *like.shape[1:]), like.dtype) as whole:
            yield dict(self._others(consecutive(sizes), whole))


def all_to_all(comm: Comm, sent: Mapping[int, Array], into: Mapping[int, Array], matrix: str) -> None:
    """Send ``sent[r]`` to every rank r, and receive what rank q sends in ``into[q]``.

    Collective; one all-to-allv.
    """
    steps.at_once(swap(comm, Swap(sent, into, matrix)))


def by_owner(ids: np.ndarray, parts: np.ndarray) -> dict[int, np.ndarray]:
    """Return rising row numbers of a matrix, cut by a partition vector, as rows of each rank's block."""
    bounds = np.searchsorted(ids, parts).tolist()
    return {q: ids[first:last] - parts[q] for q, (first, last) in enumerate(pairwise(bounds))}


def consecutive(sizes: Mapping[int, int]) -> dict[int, slice]:
    """Place parts of these sizes one after another."""
    ends = list(accumulate(sizes.values()))
    return {q: slice(end - size, end) for (q, size), end in zip(sizes.items(), ends, strict=True)}


def as_slice(rows: Any) -> slice | None:
    """Return rising row numbers as a slice, if that is what they are."""
    if len(rows) == 0:
        return None
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else None
