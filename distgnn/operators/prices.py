"""Prices: the words and messages that this rank receives in an operation, exactly, before any is sent.

A price follows from shapes, cuts, and the counts that a rank has of its blocks: non-zeros, needed rows, rows
of covers. Each move of an algorithm has one (see ``moves.py``); the price of an operation is the sum of its
moves', whatever the algorithm. What the ledger of a run charges is equal to it, rank by rank, to the word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from distgnn.arrays.csr import Shape
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.layout import Layout
from distgnn.operators.relayout import taken
from distgnn.operators.summed import row_blocks

Words = Fraction | float


class Price(dict[tuple[str, str], tuple[Words, int]]):
    """Words and messages that a rank receives, by the ledger's group of ranks and matrix."""

    def __add__(self, other: Price) -> Price:
        total = Price(self)
        for key, added in other.items():
            words, messages = total.get(key, (0, 0))
            total[key] = words + added[0], messages + added[1]
        return total

    @property
    def words(self) -> Words:
        """Words of all matrices."""
        return sum(words for words, _ in self.values())

    @property
    def messages(self) -> int:
        """Messages of all groups."""
        return sum(messages for _, messages in self.values())

    def by_matrix(self) -> Counter[str]:
        """Return the words of each matrix of which some are received."""
        received: Any = Counter()
        for (_, matrix), (words, _) in self.items():
            received[matrix] += words
        return +received


FREE = Price()


def whole(group: Comm, matrix: str, sizes: Iterable[int]) -> Price:
    """Price panels of these sizes that other ranks hand on, or sum on this one: a message for each."""
    sizes = list(sizes)
    return Price({(group.name, matrix): (sum(sizes), len(sizes))})


def gathered(group: Comm, matrix: str, heights: Sequence[int], width: int) -> Price:
    """Price the rows of the other ranks, of so many by rank."""
    return whole(group, matrix, [heights[rank] * width for rank in group.others()])


def direct(group: Comm, matrix: str, sizes: Iterable[int]) -> Price:
    """Price messages straight from other ranks, of which none is sent of none."""
    return whole(group, matrix, (size for size in sizes if size))


def reduced(group: Comm, matrix: str, words: int, pieces: int = 1, scattered: bool = False) -> Price:
    """Price an all-reduce, or with ``scattered`` a reduce-scatter, in so many pieces."""
    messages = (group.size - 1) * (1 if scattered else 2)
    return Price({(group.name, matrix): (Fraction(messages * words, group.size), messages * pieces)})


def summed_rows(grid: Grid, group: Comm, shape: Shape, itemsize: int, multiple: int = 1) -> Price:
    """Price the sum of a product of this shape, whose row blocks travel one after another."""
    pieces = row_blocks(grid, group.size, shape[0], shape[1] * itemsize, multiple)
    return reduced(group, "sums", shape[0] * shape[1], len(pieces))


def relaid(source: Layout[Any], target: Layout[Any], shape: Shape, matrix: str = "H") -> Price:
    """Price a matrix of this shape whose cut changes; FREE if both cut it alike."""
    grid = source.grid
    windows = taken(source, target, shape, grid)
    away = [(b - a) * (d - c) for rank, ((a, b), (c, d)) in windows if rank != grid.rank]
    return direct(grid.world, matrix, away)


class ProductPrices(NamedTuple):
    """Prices of the products of an operator that is made of others, by the number of columns."""

    product: Callable[[int], Price]
    adjoint: Callable[[int], Price]


class Prices:
    """Prices of the operations of a matrix on this rank, of f columns, or so many heads."""

    def __init__(self, A: Any) -> None:
        self.A = A

    def product(self, f: int) -> Price:
        """Price ``A @ H``."""
        return _product(self.A.moves, f)

    def adjoint(self, f: int) -> Price:
        """Price ``A.T @ G``. Collective the first time, where block rows of Aᵀ are held from then on."""
        if self.A.T is self.A:
            return self.product(f)
        moves, turned = self.A.moves, self.A.algorithm.moves_of_transpose
        if turned is not None:
            return _product(turned, f)
        swapped, widths = moves.passes(f, True)
        return sum((_columns_of_blocks(moves, width) for width in widths), swapped)

    def multiply(self, f: int, heads: int = 1) -> Price:
        """Price ``A.multiply(H, values=E)``. Collective the first time, as all operations on entries are."""
        moves, cut, width = self._recut(f, ("H", "right", True), ("T", "left", False))
        return cut + _rows_of_blocks(moves, width) + moves.entries_price(heads)

    def multiply_adjoint(self, f: int, heads: int = 1) -> Price:
        """Price ``A.multiply_adjoint(G, values=E)``."""
        moves, cut, width = self._recut(f, ("H", "left", True), ("T", "right", False))
        return cut + _columns_of_blocks(moves, width) + moves.entries_price(heads)

    def sddmm(self, f: int, heads: int = 1) -> Price:
        """Price ``A.sddmm(U, V)``, or additive scores."""
        moves, cut, width = self._recut(f, ("H", "left", True), ("H", "right", True))
        read = moves.rows_price(width) + moves.blocks_price() + moves.columns_price(width)
        return cut + read + moves.entries_price(heads, True)

    def edge_sum(self, heads: int) -> Price:
        """Price ``A.edge_sum(u, v)``."""
        moves, rows = self.A.pattern, self.A.output_layout
        return relaid(rows, moves.row_layout, (self.A.shape[0], heads)) + moves.whole_columns_price(heads)

    def row_sums(self, heads: int) -> Price:
        """Price ``E.row_sums()``. A softmax costs two of them."""
        return reduced(self.A.pattern.across, "sums", self.A.pattern.height * heads)

    def _recut(self, f: int, *operands: tuple[str, str, bool]) -> tuple[Any, Price, int]:
        """Return the moves of entries, the price of operands that are cut as these need them, own columns."""
        A, moves, price = self.A, self.A.pattern, FREE
        for matrix, side, comes in operands:
            ends = (A.input_layout, A.shape[1]) if side == "right" else (A.output_layout, A.shape[0])
            cuts = ends[0], getattr(moves, side)
            price += relaid(*(cuts if comes else cuts[::-1]), (ends[1], f), matrix)
        return moves, price, moves.right.local_shape((A.shape[1], f))[1]


def _product(moves: Any, f: int) -> Price:
    swapped, widths = moves.passes(f)
    return sum((_rows_of_blocks(moves, width) for width in widths), swapped)


def _rows_of_blocks(moves: Any, width: int) -> Price:
    return moves.blocks_price() + moves.columns_price(width) + moves.rows_price(width, True)


def _columns_of_blocks(moves: Any, width: int) -> Price:
    return moves.rows_price(width) + moves.blocks_price(True) + moves.columns_price(width, True)
