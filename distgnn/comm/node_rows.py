"""Rows of other nodes, which come to a node once and are passed on inside it.

Of the ranks of a node that need the same row of a rank elsewhere, one carries it: it fetches the row over the
network, and the others have it from there. In reverse, contributions of a node to a row are summed where it
is carried, and the sum is sent. The ranks that need a row carry it in turns, so that the network brings as
much to each of them.

    node 0   rank 0   needs a b c      carries a c      has b from rank 1
             rank 1   needs a b        carries b        has a from rank 0
    node 1   rank 2   has a b c        sends 3 rows, not 5

Rows of ranks of the own node are fetched and summed without a detour, see ``rows.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import numpy as np

from distgnn import local
from distgnn.comm.exchange import Exchange
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.comm.rows import Rows, consecutive

Array = Any
T = TypeVar("T")
Needs = dict[int, np.ndarray]  # by rank, rising rows of its block


def rows(grid: Grid, comm: Comm, needed: Mapping[int, np.ndarray]) -> Rows | NodeRows:
    """Make what fetches the needed rows, by way of the nodes where some have several ranks. Collective."""
    several = 1 < len(set(comm.nodes)) < comm.size
    return NodeRows(grid, comm, needed) if several else Rows(grid, comm, needed)


def by_nearness(comm: Comm) -> list[int]:
    """List the other ranks in the order in which their rows come: those of the own node first."""
    return sorted(comm.others(), key=lambda r: comm.nodes[r] != comm.nodes[comm.rank])


class NodeRows:
    """The rows that this rank needs of matrices in block rows over ``comm``, as :class:`Rows`. Collective.

    Args:
        needed: as of :class:`Rows`, without the rank itself, in the order of :func:`by_nearness`.

    Attributes:
        needed, places, received: as of :class:`Rows`.
        near: those of the own node's ranks; far: those that this rank carries; mates: those that others of
            its node carry, by their places there.
        order: where the rows of other nodes lie among those carried and those of mates; back: the reverse.

    Cost: as many words as of :class:`Rows`, of which each row of another node crosses the network once. A
    fetch brings each rank as many, too; of a sum those that carry rows receive what others send elsewhere.
    """

    def __init__(self, grid: Grid, comm: Comm, needed: Mapping[int, np.ndarray]) -> None:
        self.grid, on = grid, comm.backend
        self.needed = {q: rows for q, rows in needed.items() if rows.size}
        self.places = consecutive({q: rows.size for q, rows in self.needed.items()})
        self.received = sum(rows.size for rows in self.needed.values())
        home = comm.nodes[comm.rank]
        away = {q: rows for q, rows in self.needed.items() if comm.nodes[q] != home}
        everybody = comm.swap_objects([away if node == home else {} for node in comm.nodes])
        wanted = {r: everybody[r] for r, node in enumerate(comm.nodes) if node == home}
        carried = {r: dict[int, np.ndarray]() for r in wanted}
        for q in sorted({q for needs in wanted.values() for q in needs}):
            for r, rows in in_turns({r: needs[q] for r, needs in wanted.items() if q in needs}).items():
                carried[r][q] = rows
        self.near = Rows(grid, comm, {q: r for q, r in self.needed.items() if q not in away})
        self.far = Rows(grid, comm, carried[comm.rank])
        of_mates = {r: _places(away, needs) for r, needs in carried.items() if r != comm.rank}
        self.mates = Rows(grid, comm, {r: there for r, (there, _) in of_mates.items()})
        here = [_places(away, carried[comm.rank])[1], *(here for _, here in of_mates.values())]
        back = np.concatenate(here)  # of what lies at each place of the two, its place among the needed
        self.back, self.order = on.asarray(back, np.int64), on.asarray(np.argsort(back), np.int64)

    def counts(self, back: bool = False) -> list[int]:
        """List how many rows come from each other rank in a fetch, or come back."""
        return [count for rows in (self.near, self.far, self.mates) for count in rows.counts(back)]

    @contextmanager
    def fetch(self, X: Array, into: Array, matrix: str, narrow: bool = False) -> Iterator[Arriving]:
        """Fetch the needed rows of all ranks' ``X``, as :meth:`Rows.fetch`.

        Rows that were rounded once are passed on as they are: rounding them again changes nothing.
        """
        with (
            self._scratch(X) as (scratch, carried, mates),
            self.far.fetch(X, carried, matrix, narrow) as far,
            self.near.fetch(X, into[: self.near.received], matrix, narrow) as near,
            ExitStack() as passing,
        ):

            def pass_on() -> None:
                far.wait(self.far.places)
                passed = passing.enter_context(self.mates.fetch(carried, mates, matrix, narrow))
                passed.wait(self.mates.places)
                local.gather_rows(scratch, self.order, into[self.near.received :])

            arriving = Arriving(near, far, self.near.places, pass_on)
            yield arriving
            arriving.pass_on()

    @contextmanager
    def add_back(
        self, Y: Array, into: Array, work: Iterable[tuple[Sequence[int], T]]
    ) -> Iterator[Iterator[T]]:
        """Add all ranks' rows of ``Y`` to the rows of ``into`` they came from, as :meth:`Rows.add_back`."""
        with (
            self._scratch(Y) as (scratch, carried, mates),
            self.far.add_back(carried, into, [([*self.far.places], None)]) as sending,
        ):

            def pass_back() -> None:
                local.gather_rows(Y[self.near.received :], self.back, scratch)
                with self.mates.add_back(mates, carried, [([*self.mates.places], None)]) as passing:
                    next(passing)
                    next(passing, None)
                next(sending)
                next(sending, None)

            with self.near.add_back(Y[: self.near.received], into, self._in_order(work, pass_back)) as items:
                yield items

    def _in_order(
        self, work: Iterable[tuple[Sequence[int], T]], pass_back: Any
    ) -> Iterator[tuple[Sequence[int], T]]:
        """Give the work with its near ranks; pass back when all other rows have been made."""
        left = set(self.places) - set(self.near.places)
        if not left:
            pass_back()
        for ranks, item in work:
            yield [q for q in ranks if q in self.near.places], item
            if left and not (left := left - set(ranks)):
                pass_back()

    @contextmanager
    def _scratch(self, like: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Lend room for the rows that are carried and those of mates: together, and each."""
        shape = self.far.received + self.mates.received, like.shape[1]
        with self.grid.workspace.lend(shape, like.dtype) as scratch:
            yield scratch, scratch[: self.far.received], scratch[self.far.received :]


class Arriving:
    """Rows under way to a rank, those of other nodes by way of its mates.

    Args:
        near, far: the exchanges; places: the near ranks; pass_on: completes the rows of other nodes.
    """

    def __init__(self, near: Exchange, far: Exchange, places: Mapping[int, slice], pass_on: Any) -> None:
        self.near, self.far, self.places, self._pass_on, self.passed = near, far, places, pass_on, False

    def wait(self, sources: Iterable[int]) -> None:
        """Wait until the rows of these ranks are there, where products read them."""
        sources = list(sources)
        self.near.wait([q for q in sources if q in self.places])
        if not all(q in self.places for q in sources):
            self.pass_on()

    def pass_on(self) -> None:
        """Pass on the rows of other nodes, once."""
        if not self.passed:
            self.passed = True
            self._pass_on()

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Drive the messages during the computations inside, see :meth:`Exchange.driven`."""
        with self.far.driven(), self.near.driven():
            yield


def in_turns(wanted: Needs) -> Needs:
    """Divide the rows that some ranks want among them: of those that want a row, one carries it.

    Examples:
        >>> in_turns({0: np.array([1, 2, 4]), 1: np.array([1, 2])})
        {0: array([1, 4]), 1: array([2])}
    """
    rows = np.unique(np.concatenate([*wanted.values()]))
    wants = np.array([np.isin(rows, own, assume_unique=True) for own in wanted.values()])
    turn = np.arange(rows.size) % wants.sum(0)
    carries = wants & (np.cumsum(wants, axis=0) == turn + 1)
    return {r: rows[own] for r, own in zip(wanted, carries, strict=True)}


def _places(needed: Needs, carried: Needs) -> tuple[np.ndarray, np.ndarray]:
    """Return where the rows lie that are both needed and carried: among those carried, and those needed."""
    places = consecutive({q: rows.size for q, rows in needed.items()})
    there, here, first = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for q, rows in carried.items():
        if q in needed:
            _, own, other = np.intersect1d(needed[q], rows, assume_unique=True, return_indices=True)
            here.append(places[q].start + own)
            there.append(first + other)
        first += rows.size
    return np.concatenate(there), np.concatenate(here)
