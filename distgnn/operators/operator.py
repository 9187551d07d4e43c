"""A sparse matrix cut over a grid by an algorithm: products, operations on its entries, semirings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays.csr import Shape
from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError
from distgnn.layout import NodeOrder, written
from distgnn.local.epilogue import Epilogue
from distgnn.operators.aggregate import Aggregates
from distgnn.operators.dense import DistDense
from distgnn.operators.kept import cached_property
from distgnn.operators.moves import Moves, Step
from distgnn.operators.prices import Prices
from distgnn.operators.sources import BlockSource, blocks, entries, identity

Array = Any


class DistSparse(Aggregates):
    """A sparse matrix cut over the grid by one of the algorithms.

    Args:
        grid: has the axes of the algorithm in any order, which says where blocks are, not what they are.
        source: gives the blocks of A, the same matrix on all ranks. One whose nodes were permuted has a
            ``row_order`` and a ``col_order``, which layouts carry.

    Attributes: those of :class:`~distgnn.operators.base.Operator`.

    Raises:
        ArgumentError: a grid that the algorithm can't use, or whose messages have 16 bits where A is float64;
            ranks with different matrices or orders, as far as
            :func:`~distgnn.operators.sources.identity` says.
    """

    axes: tuple[str, ...]

    def __init__(self, grid: Grid, source: BlockSource) -> None:
        if grid.shape not in self.grids(grid.size):  # whatever the order of the axes
            raise self.no_grid(grid.shape, grid.size)
        self.grid, self.source = grid, source
        self.shape: Shape = (int(source.shape[0]), int(source.shape[1]))
        self.dtype, self.symmetric = np.dtype(source.dtype), bool(source.symmetric)
        if grid.wire is not None and self.dtype != np.float32:
            raise ArgumentError("wire", grid.wire, f"rounds float32 while it travels; A holds {self.dtype}")
        self.row_order: NodeOrder | None = getattr(source, "row_order", None)
        self.col_order: NodeOrder | None = getattr(source, "col_order", None)
        if grid.checks is not None:
            self.number = grid.checks.next_matrix()
        if grid.size > 1:
            with grid.world.together():  # a source may be the caller's own
                facts = identity(source)
            grid.world.agree(facts)

    @cached_property
    def nnz(self) -> int:
        """Stored entries of the whole matrix, equal on every rank. Collective the first time."""
        with self.grid.world.together():
            held = entries(self.source)
        counts = self.grid.world.gather_objects(held)
        return sum({place: count for own in counts for place, count in own.items()}.values())

    @staticmethod
    @abstractmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        """List the grids of this many ranks that the algorithm can use, by the words received in a product.

        The words that a rank receives, as far as these are known without graph and machine (with both:
        ``distgnn.plan.settle``).
        """

    @classmethod
    def no_grid(cls, sizes: Mapping[str, int], ranks: int) -> ArgumentError:
        """Make the error that names the grids this algorithm can use instead of the one with these sizes."""
        listed = "; ".join("x".join(str(size) for size in grid.values()) for grid in cls.grids(ranks))
        possible = f"possible ({' x '.join(cls.axes)}): {listed}"
        problem = f"not for algorithm {cls.name} on {ranks} ranks; {possible}"
        return ArgumentError("grid", written(sizes), problem)

    @cached_property
    def moves(self) -> Moves:
        """The moves of products with dense matrices."""
        return self._moves()

    def _moves(self) -> Moves:
        raise NotImplementedError(f"{self.name}: neither moves nor products")

    @cached_property
    def prices(self) -> Prices:
        """The prices of operations, in words and messages of this rank."""
        return Prices(self)

    def _multiply(self, H: DistDense, T: DistDense) -> None:
        multiply(self.moves, H.block, T.block)

    def _multiply_adjoint(self, G: DistDense, F: DistDense) -> None:
        multiply_adjoint(self.moves, G.block, F.block)

    @cached_property
    def _one_piece(self) -> Any:
        return self.source.block((0, self.shape[0]), (0, self.shape[1]))

    def diagonal(self) -> DistDense:
        """Return the entry (i, i) of each node i, n x 1, in ``output_layout``. Collective.

        Ranks ask the source for it; nothing travels between ranks, but from one that alone has the matrix.

        Raises:
            ValueError: A is not square. ValueError or RuntimeError: a rank's own blocks
                (:class:`LocalBlocks`) lack what stands on the diagonal beside its rows. On every rank.
        """
        return diagonal(self, self.source)


def diagonal(A: Any, source: BlockSource) -> DistDense:
    """Return the entry (i, i) of each node i; see :meth:`~distgnn.operators.operator.DistSparse.diagonal`.

    A rank asks the source for what stands on the diagonal beside its rows. Where rows and columns are in two
    orders, it asks for whole rows, and looks for the columns of their nodes.
    """
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"{A.name}: only square matrices have a diagonal of nodes, this one is {A.shape}")
    shape, layout, columns = (A.shape[0], 1), A.output_layout, A.input_layout.rows
    rows, (left, right) = layout.ranges(shape)
    alike = layout.rows.order == columns.order
    window = rows, rows if alike else (0, A.shape[1])
    given = blocks(source, [window] if left < right else [])
    with A.grid.world.together():
        entries = np.zeros((rows[1] - rows[0], right - left), A.dtype)
        for block in given:
            entries[:, 0] = block.diagonal() if alike else _of_nodes(block, layout.rows.ids(*rows), columns)
    return DistDense(A.grid.backend.asarray(entries), layout, shape)


def _of_nodes(block: Any, nodes: np.ndarray, columns: Any) -> np.ndarray:
    """Return the entries of these rows, of these nodes, in the columns of the same nodes."""
    row = np.repeat(np.arange(len(nodes)), np.diff(block.indptr))
    own = columns.ids(0, block.shape[1])[block.indices] == nodes[row]
    entries = np.zeros(len(nodes), block.dtype)
    entries[row[own]] = block.data[own]
    return entries


def multiply(moves: Moves, H: Array, T: Array, then: Epilogue | None = None) -> None:
    """Compute ``T = A H`` of this rank's blocks; ``then`` is done where a local product ends all rows of T.

    Collective.
    """
    with moves.onto_rows(T, H, rounds=True) as steps:
        _multiply(steps, then)


def multiply_adjoint(moves: Moves, G: Array, F: Array) -> None:
    """Compute ``F = Aᵀ G`` of this rank's blocks. Collective."""
    with moves.onto_columns(F, G, rounds=True) as steps:
        _multiply(steps)


def _multiply(steps: Iterable[Step], then: Epilogue | None = None) -> None:
    for step in steps:
        end = then if step.last else None
        local.spmm(step.A, step.B, out=step.out, accumulate=step.add, then=end)
