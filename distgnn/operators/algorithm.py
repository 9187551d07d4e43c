"""An algorithm: how a sparse matrix and its operands are cut over a grid, and the moves of its operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from distgnn import local
from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError
from distgnn.layout import NodeOrder, written
from distgnn.local.epilogue import Ending
from distgnn.operators.kept import cached_property
from distgnn.operators.linear_map import LinearMap
from distgnn.operators.moves import Moves, Step
from distgnn.operators.sources import BlockSource, entries, identity
from distgnn.operators.weights import DenseProducts

Array = Any


class Algorithm(LinearMap, ABC):
    """A sparse matrix cut over the grid, with moves; operations on it are those of ``DistSparse``.

    Args:
        grid: has the axes of the algorithm in any order, which says where blocks are, not what they are.
        source: gives the blocks of A, the same matrix on all ranks. One whose nodes were permuted has a
            ``row_order`` and a ``col_order``, which layouts carry.

    Attributes: beside those of :class:`~distgnn.operators.linear_map.LinearMap`,
        cuts: the partition vectors of rows and columns by name.

    Raises:
        ArgumentError: a grid that the algorithm can't use, or whose messages have 16 bits where A is float64;
            ranks with different matrices or orders, as far as
            :func:`~distgnn.operators.sources.identity` says.
    """

    axes: tuple[str, ...]
    weights: DenseProducts
    sparsity_aware: bool | str = False
    #: The moves of block rows of Aᵀ, by which the adjoint is another product; None: it goes by ``moves``.
    moves_of_transpose: Any = None

    def __init__(self, grid: Grid, source: BlockSource) -> None:
        if grid.shape not in self.grids(grid.size):  # whatever the order of the axes
            raise self.no_grid(grid.shape, grid.size)
        self.grid, self.source, self.cuts = grid, source, dict[str, np.ndarray]()
        self.shape = (int(source.shape[0]), int(source.shape[1]))
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

    def cut(self, name: str, vector: np.ndarray) -> np.ndarray:
        """Keep a partition vector, or in its place the one that the source has by this name.

        All cuts of rows and columns are kept so: an induced subgraph is cut where the whole matrix is, which
        need not be where its own nodes would be cut evenly.
        """
        self.cuts[name] = getattr(self.source, "cuts", {}).get(name, vector)
        return self.cuts[name]

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
    def pattern(self) -> Moves:
        """The moves of the stored entries. Collective the first time."""
        return self._edge_pattern()

    def _edge_pattern(self) -> Moves:
        return self.moves

    def multiply(self, H: Array, T: Array, then: Ending | None = None) -> None:
        """Compute ``T = A H`` of this rank's blocks. Collective.

        ``then`` is done where a local product ends all rows of T; it says so.
        """
        multiply(self.moves, H, T, then)

    def multiply_adjoint(self, G: Array, F: Array, then: Ending | None = None) -> None:
        """Compute ``F = Aᵀ G`` of this rank's blocks. Collective. ``then``: as of :meth:`multiply`."""
        if self.moves_of_transpose is not None:
            multiply(self.moves_of_transpose, G, F, then)
            return
        with self.moves.onto_columns(F, G, rounds=True) as steps:
            _multiply(steps, then)

    def times_sparse(self, B: Algorithm) -> Algorithm | None:
        """Compute ``A B``, if the algorithm can, on as many ranks. Collective."""
        return None

    def layer(self, number: int) -> Algorithm:
        """Return the algorithm of layer ``number``.

        It takes its input as the weights of layer ``number - 1`` leave their product (``weights.times``).
        """
        return self

    def one_piece(self) -> Any:
        """Return all of the matrix, which one rank has, in SciPy's form."""
        return self.source.block((0, self.shape[0]), (0, self.shape[1]))


def multiply(moves: Moves, H: Array, T: Array, then: Ending | None = None) -> None:
    """Compute ``T = A H`` of this rank's blocks; ``then`` is done where a local product ends all rows of T.

    Collective.
    """
    with moves.onto_rows(T, H, rounds=True) as steps:
        _multiply(steps, then)


def _multiply(steps: Iterable[Step], then: Ending | None) -> None:
    for step in steps:
        end = then if step.last else None
        local.spmm(step.A, step.B, out=step.out, accumulate=step.add, then=end)
