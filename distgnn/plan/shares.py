"""Shares of products of each algorithm that a rank has at least: what it receives, and what it computes.

They are closed formulas of the sizes of a grid: no rank is made ready for them. Cuts are even: of n in p, a
block has n/p, rounded up or down. Where the non-zeros are spread evenly, the rank that has the most to do has
the largest block of every cut. Of other graphs any rank counts: its blocks are rounded down, and its blocks
of A may have no entries.

A product is a list of phases, one after the other: what moves in one is there before the next one begins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from distgnn.arrays.tuning import TUNING
from distgnn.operators.plexus_3d import ROLES
from distgnn.plan.dry.covers import expected
from distgnn.plan.dry.shapes import columns_filled
from distgnn.plan.machine import SUMS
from distgnn.train.ways import Sizes

INDEX = 8  # bytes of a row's number
WORD_OF_A = 4  # bytes of a number, or of an index, of a block of A on its way, at least


class Received(NamedTuple):
    """Messages that a rank receives from a group.

    Attributes:
        kind: of the messages, as ``machine.KINDS`` names it, or "" where it may be any.
        nbytes, messages: at least.
    """

    group: str
    kind: str
    nbytes: float
    messages: int = 0


class Sparse(NamedTuple):
    """Product of a rank's blocks of A, of m rows and as many non-zeros together, with so many columns.

    Attributes:
        k: rows of B that a block reads, at least, and that all may read; passes: blocks, at least.
        touched: bytes of rows that are packed for other ranks.
    """

    m: int
    k: tuple[int, int]
    nonzeros: int
    width: int
    passes: int = 1
    touched: int = 0

    def transposed(self) -> Sparse:
        """Return the product of the transposed blocks, of which no more rows are known than of all."""
        (least, most), height = self.k, self.m
        known = least == most
        k = (height, height) if known else (1, max(height, 1))
        return Sparse(least if known else 0, k, self.nonzeros, self.width)


Moved = list[list[Received]]  # phase by phase
Both = tuple[list[Received], list[Received]]  # forward and backward
Dense = tuple[int, int, int]  # m, k, n of a product with weights


@dataclass(frozen=True)
class Cuts:
    """Cuts of a graph over a grid.

    Attributes:
        n, nnz: nodes and non-zeros; sizes: of the axes; aware: what is sent, as of a way.
        largest: the rank has the largest blocks, and entries are spread evenly.
        itemsize: bytes of a number; sent: of one on its way.
    """

    n: int
    nnz: int
    sizes: Sizes
    aware: bool | str
    largest: bool
    itemsize: int
    sent: int

    def own(self, length: int, *parts: int) -> int:
        """Return the rank's block of a length that is cut, and its blocks again, at least."""
        for number in parts:
            length = -(-length // number) if self.largest else length // number
        return length

    @staticmethod
    def most(length: int, *parts: int) -> int:
        """Return the largest block."""
        for number in parts:
            length = -(-length // number)
        return length

    @staticmethod
    def least(length: int, *parts: int) -> int:
        """Return the smallest block."""
        for number in parts:
            length //= number
        return length

    def entries(self, rows: int, columns: int, blocks: int = 0) -> int:
        """Return the non-zeros of so many rows and columns, at least, of which each block rounds down."""
        if not (self.largest and self.n):
            return 0
        return max(rows * columns * self.nnz // self.n**2 - 2 * blocks, 0)

    def received(self, group: str, kind: str, words: float, messages: int = 0) -> list[Received]:
        """List so many numbers of dense matrices, or nothing."""
        return [Received(group, kind, words * self.sent, messages)] if words > 0 else []

    def summed(self, axis: str, rows: int, width: int) -> list[Received]:
        """List a sum of rows over an axis: ours, or where it is small perhaps MPI's."""
        size, numbers = self.sizes[axis], rows * width
        kind, messages = (SUMS, 2 * (size - 1)) if numbers * self.itemsize > TUNING.small_sum else ("", 0)
        return self.received(axis, kind, 2 * (size - 1) * numbers / size, messages)

    def scattered(self, axis: str, rows: int, width: int) -> list[Received]:
        """List a sum of rows over an axis of which each rank gets its share."""
        size = self.sizes.get(axis, 1)
        return self.received(axis, "reduce_scatter", (size - 1) * rows * width / size)


class Shares(ABC):
    """Shares of the products of a way to train.

    Attributes:
        associative: A (H W) can be computed.
    """

    associative = True

    def __init__(self, cuts: Cuts) -> None:
        self.cuts = cuts

    @abstractmethod
    def product(self, f: int, layer: int, edges: bool = False) -> Moved:
        """Give what a rank receives in a product with f columns; ``edges``: entries are numbers of edges."""

    @abstractmethod
    def back(self, f: int, layer: int, edges: bool = False) -> Moved:
        """Give the same of a product with Aᵀ, by the blocks of A."""

    def adjoint(self, f: int, layer: int, symmetric: bool) -> tuple[Moved, Sparse]:
        """Give both of the product of the backward pass."""
        if symmetric:
            return self.product(f, layer), self.sparse(f, layer)
        return self.back(f, layer), self.sparse(f, layer).transposed()

    @abstractmethod
    def sparse(self, f: int, layer: int) -> Sparse:
        """Give what a rank computes of a product with f columns."""

    def weights(self, below: int, above: int, layer: int, need: bool) -> Both:
        """Give what the products with weights receive, forward and backward."""
        return [], []

    @abstractmethod
    def dense(self, below: int, above: int, layer: int) -> tuple[Dense, Dense, Dense]:
        """Give the products with weights: T W, Tᵀ G and G Wᵀ."""

    @abstractmethod
    def hidden(self, f: int, layer: int) -> int:
        """Give the numbers of a rank's block of a layer's output."""


class OfBlockRows(Shares):
    """Shares of `1d`, `1.5d` and `rdm`: c process columns have each a part of the block's columns, or q ranks
    each some columns of H.
    """

    def __init__(self, cuts: Cuts) -> None:
        super().__init__(cuts)
        self.r, self.c, self.q = (cuts.sizes.get(axis, 1) for axis in ("rows", "reps", "cols"))
        self.R, self.m = cuts.own(cuts.n, self.r), cuts.own(cuts.n, self.r, self.q)
        self.nested = self.r % self.c == 0 or self.c % self.r == 0
        #: Of its own block a rank multiplies nothing where all ranks hold as much and some have other blocks.
        self.apart = cuts.largest and self.nested and cuts.n % self.r == 0 and min(self.r, self.c) > 1
        self.columns = cuts.n if self.c == 1 else max(self.r * cuts.least(cuts.n, self.r) // self.c - 1, 0)

    def product(self, f: int, layer: int, edges: bool = False) -> Moved:
        return self._swapped(f, [self._fetched(f), self._summed(f)], edges)

    def back(self, f: int, layer: int, edges: bool = False) -> Moved:
        return self._swapped(f, [self._fetched(f, written=True)], edges)

    def adjoint(self, f: int, layer: int, symmetric: bool) -> tuple[Moved, Sparse]:
        return super().adjoint(f, layer, symmetric or not self.cuts.aware)  # block rows of Aᵀ are held

    def _swapped(self, f: int, phases: Moved, edges: bool) -> Moved:
        """Put a product of own columns between two exchanges; where columns go in parts, all goes at once."""
        cuts, q, own = self.cuts, self.q, self.cuts.own(f, self.q)
        if q == 1 or edges or (cuts.aware and self.r == 1):
            return phases
        there = (self.R - cuts.most(cuts.n, self.r, q)) * own
        back = self.m * (f - cuts.most(f, q))
        exchanges = [
            cuts.received("cols", "alltoall", words, min(width, q) - 1)
            for words, width in ((there, self.R), (back, f))
        ]
        every = [exchanges[0], *phases, exchanges[1]]
        return every if f // q < 2 * TUNING.part_columns else [[*chain(*every)]]

    def _fetched(self, f: int, written: bool = False) -> list[Received]:
        """List the rows of H that come, or with ``written`` those of the product."""
        cuts, width = self.cuts, self.cuts.own(f, self.q)
        if self.r == 1:
            return []
        if not cuts.aware:
            own = 0 if self.apart else min(cuts.most(cuts.n, self.r), self.columns)
            messages = self.r - 1 if self.c == 1 else self.r // self.c - (not self.apart)
            kind, number = ("", 0) if written else ("bcast", max(messages, 0))
            return cuts.received("rows", kind, (self.columns - own) * width, number)
        return cuts.received("rows", "alltoallv", sum(self._needed) * width, len(self._needed))

    @cached_property
    def _needed(self) -> list[int]:
        """The rows that come from each other block row, needed ones or a cover."""
        cuts = self.cuts
        if not (cuts.aware and self.nested) or self.r == 1:
            return []
        height = cuts.least(cuts.n, self.r) if self.r >= self.c else self.columns
        nonzeros, count = cuts.entries(self.R, height), columns_filled
        each = expected(self.R, height, nonzeros) if cuts.aware == "cover" else count(height, nonzeros)
        return [each] * (max(self.r // self.c, 1) - (not self.apart)) if each else []

    def _summed(self, f: int) -> list[Received]:
        return self.cuts.summed("reps", self.R, f) if self.c > 1 else []

    def sparse(self, f: int, layer: int) -> Sparse:
        stages, width = max(self.r // self.c, 1), self.cuts.own(f, self.q)
        nonzeros = self.cuts.entries(self.R, self.columns, 4 * stages)
        if not self.cuts.aware:
            apart = self.columns * TUNING.fetched_row_bytes > TUNING.joined_panels_on_device
            return Sparse(self.R, (1, self.cuts.n), nonzeros, width, stages if apart else 1)
        touched = self._packed(width * self.cuts.itemsize)
        return Sparse(self.R * (self.r > 1), (1, self.cuts.n), nonzeros, width, 1, touched)

    def _packed(self, nbytes: int) -> int:
        """Return the bytes of rows that are packed, and of those of partial products that are added."""
        apart = [each for each in self._needed if each < self.cuts.least(self.cuts.n, self.r)]
        added = sum(each // 2 for each in apart) if self.cuts.aware == "cover" else 0
        return (sum(apart) - added) * (INDEX + 2 * nbytes) + added * (INDEX + 3 * nbytes)

    def dense(self, below: int, above: int, layer: int) -> tuple[Dense, Dense, Dense]:
        return (self.m, below, above), (below, self.m, above), (self.m, above, below)

    def hidden(self, f: int, layer: int) -> int:
        return self.m * f


class OfPlanes(Shares):
    """Shares of `2d` and, with fibers, of `3d-split`: panels of A travel along rows, those of H along columns
    of each of l planes.
    """

    def __init__(self, cuts: Cuts) -> None:
        super().__init__(cuts)
        self.pr, self.pc, self.layers = (cuts.sizes.get(axis, 1) for axis in ("rows", "cols", "fibers"))
        n = cuts.n
        self.R, self.m = cuts.own(n, self.pr), cuts.own(n, self.pr * self.layers)
        block = n // (self.pr * self.layers)
        self.columns = self.pr * block if self.layers > 1 else n  # of the plane
        whole = self.pr * cuts.most(n, self.pr * self.layers)
        self.others = max(self.columns - cuts.most(whole, self.pc), 0)  # of A, in other process columns
        self.away = (self.pc - 1) * max(self.pr // self.pc, 1)  # panels of these
        self.of_H = max(self.columns - cuts.most(n, self.pr * self.layers), 0)

    def _panels(self, f: int, kind: str, pointers: int) -> list[Received]:
        cuts, blocks = self.cuts, self.pr + self.pc
        messages = (self.pr - 1) * max(self.pc // self.pr, 1) * (kind != "")
        H = cuts.received("rows", kind, self.of_H * cuts.own(f, self.pc), messages)
        words = 2 * cuts.entries(self.R, self.others, blocks) + pointers
        return [*H, Received("cols", "bcast", words * WORD_OF_A, self.away)] if self.pc > 1 else H

    def product(self, f: int, layer: int, edges: bool = False) -> Moved:
        panels = self._panels(f, "bcast", self.away * self.R)
        return [panels, self.cuts.scattered("fibers", self.R, self.cuts.own(f, self.pc))]

    def back(self, f: int, layer: int, edges: bool = False) -> Moved:
        rows = self.R - self.cuts.most(self.cuts.n, self.pr * self.layers)
        gathered = self.cuts.received("fibers", "allgather", rows * self.cuts.own(f, self.pc))
        return [gathered, self._panels(f, "", self.others)]

    def sparse(self, f: int, layer: int) -> Sparse:
        blocks = max(self.pr, self.pc)
        even = self.pr % self.pc == 0 or self.pc % self.pr == 0
        least = self.columns // blocks // 2 if even else 1  # rounding may leave a sliver of a panel
        nonzeros = self.cuts.entries(self.R, self.columns, 2 * (self.pr + self.pc))
        return Sparse(self.R, (least, self.cuts.n), nonzeros, self.cuts.own(f, self.pc), blocks)

    def weights(self, below: int, above: int, layer: int, need: bool) -> Both:
        cuts, pc = self.cuts, self.pc
        forward, back = (
            cuts.received("cols", "bcast", self.m * (f - cuts.most(f, pc)), min(f, pc) - 1)
            for f in (below, above)
        )
        return forward, back

    def dense(self, below: int, above: int, layer: int) -> tuple[Dense, Dense, Dense]:
        own, made = (self.cuts.own(f, self.pc) for f in (below, above))
        return (self.m, below, made), (own, self.m, above), (self.m, above, own)

    def hidden(self, f: int, layer: int) -> int:
        return self.m * self.cuts.own(f, self.pc)


class OfRoles(Shares):
    """Shares of `3d`, whose axes have other roles in each layer."""

    associative = False

    def _roles(self, layer: int) -> tuple[tuple[str, str, str], tuple[int, int, int]]:
        """Return the axes that cut rows of A, columns of A and columns of H, and their sizes."""
        axes, sizes = ROLES[layer % len(ROLES)], self.cuts.sizes
        return axes, (sizes[axes[0]], sizes[axes[1]], sizes[axes[2]])

    def product(self, f: int, layer: int, edges: bool = False) -> Moved:
        cuts, ((out, contract, _), (o, c, w)) = self.cuts, self._roles(layer)
        width = cuts.own(f, w)
        rows = cuts.own(cuts.n, c) - cuts.most(cuts.n, c, o) if layer == 0 else 0
        gathered = cuts.received(out, "allgather", rows * width)
        return [gathered, cuts.summed(contract, cuts.own(cuts.n, o), width)]

    def back(self, f: int, layer: int, edges: bool = False) -> Moved:
        cuts, ((out, _, _), (_, c, w)) = self.cuts, self._roles(layer)
        sums = cuts.summed if layer else cuts.scattered
        return [sums(out, cuts.own(cuts.n, c), cuts.own(f, w))]

    def adjoint(self, f: int, layer: int, symmetric: bool) -> tuple[Moved, Sparse]:
        return super().adjoint(f, layer, False)  # input and output are cut unlike each other

    def sparse(self, f: int, layer: int) -> Sparse:
        cuts, (_, (o, c, w)) = self.cuts, self._roles(layer)
        rows, columns = cuts.own(cuts.n, o), cuts.own(cuts.n, c)
        return Sparse(rows, (columns, columns), cuts.entries(rows, columns), cuts.own(f, w), 1)

    def weights(self, below: int, above: int, layer: int, need: bool) -> Both:
        cuts, ((out, contract, feature), (o, c, w)) = self.cuts, self._roles(layer)
        rows = cuts.own(cuts.n, o)
        shares = (cuts.own(below, w) - cuts.most(below, w * o)) * cuts.own(above, c)
        W = cuts.received(out, "allgather", shares)
        forward = W + cuts.summed(feature, rows, cuts.own(above, c))
        return forward, W + cuts.summed(contract, rows, cuts.own(below, w)) if need else []

    def dense(self, below: int, above: int, layer: int) -> tuple[Dense, Dense, Dense]:
        cuts, (_, (o, c, w)) = self.cuts, self._roles(layer)
        rows, own, made = cuts.own(cuts.n, o), cuts.own(below, w), cuts.own(above, c)
        return (rows, own, made), (own, rows, made), (rows, made, own)

    def hidden(self, f: int, layer: int) -> int:
        cuts, (_, (o, c, w)) = self.cuts, self._roles(layer)
        return cuts.own(cuts.n, o) * min(cuts.own(f, w), cuts.own(f, c))


#: By algorithm; of one that is not here nothing is known before its dry run.
SHARES: dict[str, Callable[[Cuts], Shares]] = {
    "1d": OfBlockRows, "1.5d": OfBlockRows, "rdm": OfBlockRows, "2d": OfPlanes, "3d-split": OfPlanes,
    "3d": OfRoles,
}  # fmt: skip
