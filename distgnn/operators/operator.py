"""A sparse matrix cut over a grid, as an operator: ``Y = A @ H`` and ``G = A.T @ Y``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from distgnn.arrays.canonical import value_type
from distgnn.arrays.csr import Shape
from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError
from distgnn.layout import Layout, NodeOrder, written
from distgnn.local.epilogue import Epilogue
from distgnn.operators import products
from distgnn.operators.aggregate import Aggregates
from distgnn.operators.compared import compare
from distgnn.operators.dense import DistDense, gather, scatter
from distgnn.operators.diagonals import diagonal
from distgnn.operators.edge_operators import EdgeOperators
from distgnn.operators.edges import DistEdges, Masked
from distgnn.operators.kept import cached_property
from distgnn.operators.linear_operator import linear_operator
from distgnn.operators.moves import Moves
from distgnn.operators.sources import BlockSource, entries, identity
from distgnn.operators.weights import DenseProducts

CONVERT = "distribute and scatter take dtype=np.float64, or np.float32, for both"


class DistSparse(EdgeOperators, Aggregates, ABC):
    """A sparse matrix cut over the grid by one of the algorithms.

    Args:
        grid: has the axes of the algorithm in any order, which says where blocks are, not what they are.
        source: gives the blocks of A, the same matrix on all ranks. One whose nodes were permuted has a
            ``row_order`` and a ``col_order``, which layouts carry.

    Attributes:
        shape: the global shape; dtype: of the values; symmetric: A == Aᵀ to the last bit.
        input_layout: how ``H`` of ``A @ H`` must be cut; output_layout: how the product is.
        weights: the products of ``A H`` with the weights of a layer, cut as this algorithm cuts them.

    Raises:
        ArgumentError: a grid that the algorithm can't use, or whose messages have 16 bits where A is float64;
            ranks with different matrices or orders, as far as
            :func:`~distgnn.operators.sources.identity` says.
    """

    name: str
    axes: tuple[str, ...]
    #: The axis among whose ranks the columns of a product are shared, where that is all that they share.
    column_axis: str | None = None
    #: How ``H`` and the product are cut while A multiplies, where that is not how they come and go.
    inner_layouts: tuple[Layout[Grid], ...] = ()
    input_layout: Layout[Grid]
    output_layout: Layout[Grid]
    weights: DenseProducts
    number = 0  #: among the matrices of its grid, where ranks compare calls
    _adjoint: DistSparse | None = None
    __array_ufunc__ = None  # NumPy's numbers leave products with a matrix to the matrix

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

    def __repr__(self) -> str:
        m, n = self.shape
        taken, given = self.input_layout.words(), self.output_layout.words()
        return f"<{self.name} {m} x {n} {self.dtype}; input: {taken}; output: {given}; on {self.grid!r}>"

    def as_operand(self) -> str:
        """Return what ranks compare of an operand."""
        m, n = self.shape
        return f"{self.name} {m} x {n} {self.dtype}, matrix {self.number}"

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

    def multiply(
        self, H: DistDense, out: DistDense | None = None, values: DistEdges | Masked | None = None,
        then: Epilogue | None = None,
    ) -> DistDense:  # fmt: skip
        """Compute ``A H``; ``H`` in ``input_layout``, the result in ``output_layout``, in ``out`` if given.

        Unlike ``A @ H``, nothing is checked; ``out`` shares no memory with ``H``. With ``values``, edges of
        this operator, they stand in place of A's, for each head in its columns of ``H``, and all is checked.
        The adjoint: ``dE = A.sddmm(G, H, E.heads)``, ``dH = A.multiply_adjoint(G, values=E)``. ``then``: what
        becomes of the result, which is done with it where a kernel can; it says so.
        """
        if values is not None:
            return self._with_values(values, H, out, back=False)
        call = compare("A @ H", A=self, H=H)
        if out is None:
            out = DistDense.empty(self.output_layout, (self.shape[0], H.shape[1]), self.dtype)
        if then is None:
            self._multiply(H, out)
        else:
            self._multiply_then(H, out, then)
        out.origin = call
        return out

    def multiply_adjoint(
        self, G: DistDense, out: DistDense | None = None, values: DistEdges | Masked | None = None
    ) -> DistDense:
        """Compute ``Aᵀ G``, in ``out`` if given; ``G`` in ``output_layout``, result in ``input_layout``.

        ``values``: as of :meth:`multiply`.
        """
        if values is not None:
            return self._with_values(values, G, out, back=True)
        call = compare("A.T @ G", A=self, G=G)
        if out is None:
            out = DistDense.empty(self.input_layout, (self.shape[1], G.shape[1]), self.dtype)
        self._multiply_adjoint(G, out)
        out.origin = call
        return out

    @cached_property
    def moves(self) -> Moves:
        """The moves of products with dense matrices."""
        return self._moves()

    def _moves(self) -> Moves:
        raise NotImplementedError(f"{self.name}: neither moves nor products")

    def _multiply(self, H: DistDense, T: DistDense) -> None:
        """Compute ``T = A H``."""
        products.multiply(self.moves, H.block, T.block)

    def _multiply_then(self, H: DistDense, T: DistDense, then: Epilogue) -> None:
        """Compute ``T = A H``, and do ``then`` where one local product ends all rows of T."""
        self._multiply(H, T)

    def _multiply_adjoint(self, G: DistDense, F: DistDense) -> None:
        """Compute ``F = Aᵀ G``."""
        products.multiply_adjoint(self.moves, G.block, F.block)

    def __matmul__(self, H: Any) -> Any:
        """Compute ``A H``. Collective.

        On one rank ``H`` may also be an array, n x f by node, and so is the product, whose type is the wider
        one.

        Raises:
            ValueError: shapes, layouts or dtypes don't fit (on every rank alike).
        """
        if isinstance(H, np.ndarray) and self.grid.size == 1:
            flat = H.reshape(len(H), -1) if H.ndim else H
            wider = H.dtype.kind in "biuf" and value_type(H.dtype).itemsize > self.dtype.itemsize
            if wider and len(flat) == self.shape[1]:
                return self._wide(flat).reshape(self.shape[0], *H.shape[1:])
            whole: Any = gather(self @ scatter(flat, self.input_layout, self.dtype))
            return whole.reshape(self.shape[0], *H.shape[1:])
        if not isinstance(H, DistDense):
            raise TypeError(f"{self.name}: can multiply a DistDense (see scatter), got {type(H).__name__}")
        if H.shape[0] != self.shape[1]:
            raise ValueError(f"{self.name}: shapes {self.shape} and {H.shape} don't multiply")
        if not H.layout.same(self.input_layout, H.shape):
            cut, needed = H.layout.words(), self.input_layout.words()
            raise ValueError(f"{self.name}: H is cut over {cut}, this operator needs {needed}{self._hint(H)}")
        if H.dtype != self.dtype:
            raise ValueError(f"{self.name}: A holds {self.dtype}, H holds {H.dtype}; {CONVERT}")
        return self.multiply(H)

    def _hint(self, H: DistDense) -> str:
        """Return what brings H into the input layout, if anything does, for an error."""
        if H.grid is not self.grid:
            return "; it is on another grid"
        if H.layout.rows.order == self.input_layout.rows.order:
            return "; H.redistribute(A.input_layout) cuts it so"
        next_layer = H.layout.rows.order == self.output_layout.rows.order
        return "; A.layer(1) takes this order" if next_layer else "; rows are in another order of the nodes"

    def _wide(self, H: np.ndarray) -> np.ndarray:
        """Compute ``A H`` in double precision, of a shorter A on one rank."""
        product = np.empty((self.shape[0], H.shape[1]))
        given = H[self.input_layout.row_ids].astype(np.float64)
        product[self.output_layout.row_ids] = self._one_piece @ given
        return product

    @cached_property
    def _one_piece(self) -> Any:
        """All of the matrix, as one rank has it."""
        return self.source.block((0, self.shape[0]), (0, self.shape[1]))

    @property
    def T(self) -> DistSparse:
        """The adjoint operator: ``A.T @ G``. A symmetric matrix cut alike both ways is its own adjoint."""
        if self._adjoint is None:
            alike = self.symmetric and self.input_layout.same(self.output_layout, (self.shape[0], 0))
            self._adjoint = self if alike else Adjoint(self)
        return self._adjoint

    def aslinearoperator(self) -> LinearOperator:
        """Make an operator for SciPy's solvers. Its vectors, (n,) or (n, k) by node, are whole on every rank.

        On several ranks all run the solver alike, from a start that all have, such as ``v0``; see
        :class:`~distgnn.operators.linear_operator.Replicated` for the cost and the errors of a product.
        """
        return linear_operator(self)

    def sum(self, axis: int | None = None) -> Any:
        """Sum all entries, or those of each row (``axis=1``) or column (``axis=0``). Collective.

        Sums of rows are a matrix m x 1 in ``output_layout``, those of columns n x 1 in ``input_layout``, of
        A's dtype. Cost: a product of A, or of its adjoint, by one column.

        ArgumentError, on every rank: another axis.
        """
        if axis not in (None, 0, 1):
            raise ArgumentError("axis", axis, "expected None, 0 for columns or 1 for rows")
        if axis == 0:
            return self.T.sum(axis=1)
        shape = (self.shape[1], 1)
        ones = self.grid.backend.xp.ones(self.input_layout.local_shape(shape), self.dtype)
        sums = self @ DistDense(ones, self.input_layout, shape)
        return sums if axis == 1 else sums.sum()

    def diagonal(self) -> DistDense:
        """Return the entry (i, i) of each node i, n x 1, in ``output_layout``. Collective.

        Ranks ask the source for it; nothing travels between ranks, but from one that alone has the matrix.

        Raises:
            ValueError: A is not square. ValueError or RuntimeError: a rank's own blocks
                (:class:`LocalBlocks`) lack what stands on the diagonal beside its rows. On every rank.
        """
        return diagonal(self, self.source)

    def __mul__(self, factor: Any) -> DistSparse:
        """Multiply by a number, the same on all ranks: an operator that scales each product."""
        if isinstance(factor, (bool, int, float, np.integer, np.floating)):
            return Scaled(self, float(factor))
        raise TypeError(f"{self.name}: A * {type(factor).__name__}: expected a number; the product is A @ H")

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> DistSparse:
        return self * (1 / divisor)

    def __neg__(self) -> DistSparse:
        return self * -1

    def layer(self, number: int) -> DistSparse:
        """Return the operator of layer ``number``.

        It takes its input as the weights of layer ``number - 1`` leave their product (``A.weights.times``).
        """
        return self


class Adjoint(DistSparse):
    """``Aᵀ`` as an operator of its own; holds no data, and has no products with weights."""

    has_entries = False

    def __init__(self, forward: DistSparse) -> None:
        self.forward, self.name = forward, f"{forward.name} transposed"
        self.grid, self.dtype, self.symmetric = forward.grid, forward.dtype, forward.symmetric
        self.shape, self.number = (forward.shape[1], forward.shape[0]), forward.number
        self.input_layout, self.output_layout = forward.output_layout, forward.input_layout

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        raise TypeError("an adjoint lives on the grid of its forward operator")

    def layer(self, number: int) -> DistSparse:
        return self.forward.layer(number).T

    def _multiply(self, H: DistDense, T: DistDense) -> None:
        self.forward._multiply_adjoint(H, T)

    def _multiply_adjoint(self, G: DistDense, F: DistDense) -> None:
        self.forward._multiply(G, F)

    @property
    def _one_piece(self) -> Any:
        return self.forward._one_piece.T

    @property
    def nnz(self) -> int:
        return self.forward.nnz

    @property
    def T(self) -> DistSparse:
        return self.forward

    def diagonal(self) -> DistDense:
        return self.forward.diagonal().redistribute(self.output_layout)


class Scaled(DistSparse):
    """``c A`` as an operator of its own; holds no data, and scales each product where it is."""

    has_entries = False

    def __init__(self, forward: DistSparse, factor: float) -> None:
        self.forward, self.factor, self.name = forward, factor, forward.name
        self.grid, self.dtype, self.symmetric = forward.grid, forward.dtype, forward.symmetric
        self.shape, self.inner_layouts, self.number = forward.shape, forward.inner_layouts, forward.number
        self.input_layout, self.output_layout = forward.input_layout, forward.output_layout

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        raise TypeError("a scaled operator lives on the grid of the operator that it scales")

    def as_operand(self) -> str:
        return f"{self.factor} * {self.forward.as_operand()}"

    @property
    def weights(self) -> DenseProducts:  # type: ignore[override]
        """The products of the operator that is scaled."""
        return self.forward.weights

    def layer(self, number: int) -> DistSparse:
        return self.forward.layer(number) * self.factor

    def _multiply(self, H: DistDense, T: DistDense) -> None:
        self.forward._multiply(H, T)
        T *= self.factor

    def _multiply_adjoint(self, G: DistDense, F: DistDense) -> None:
        self.forward._multiply_adjoint(G, F)
        F *= self.factor

    @property
    def _one_piece(self) -> Any:
        return self.forward._one_piece * self.factor

    @property
    def nnz(self) -> int:
        return self.forward.nnz

    def diagonal(self) -> DistDense:
        return self.forward.diagonal() * self.factor
