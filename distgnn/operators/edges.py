"""Numbers of the stored entries of a sparse matrix, which lie where the entries do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import ledger
from distgnn.arrays import backend
from distgnn.arrays.blocking import every, rows_within
from distgnn.arrays.csr import CSR
from distgnn.comm.checks import compare
from distgnn.errors import ArgumentError
from distgnn.local import edges as entries
from distgnn.operators import edge_passes
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.moves import Moves

Array = Any


#: Places of rows, the block's entries in them, their numbers, which of these each has (None: its own).
Piece = tuple[slice, CSR, Array, Array]


class Numbers:
    """Numbers of a block's entries, (entries, heads).

    Args:
        values: in the order of the block's entries; order: where the block is transposed, which of them each
            entry has.
    """

    def __init__(self, values: Array, order: Array = None) -> None:
        self.values, self.order = values, order

    def pieces(self, A: CSR) -> Iterator[Piece]:
        """Give what is multiplied at once of ``A``, the block or some of its rows."""
        values, order = self.values, self.order
        if A.nnz < len(values):
            own = slice(A.first_entry, A.first_entry + A.nnz)
            values, order = (values[own], None) if order is None else (values, order[own])
        yield slice(None), A, values, order


class PiecewiseNumbers(Numbers):
    """Numbers that are made when they are read, those of some rows at a time.

    Args:
        edges: that know them; place: of the block's entries among theirs; order: as of :class:`Numbers`.
    """

    def __init__(self, edges: Any, place: slice, order: Array = None) -> None:
        self.edges, self.place, self.order = edges, place, order

    @property
    def values(self) -> Array:
        return self.edges.part(self.place)

    def pieces(self, A: CSR) -> Iterator[Piece]:
        for rows, part, A_part in row_blocks(A, self.edges.heads):
            if A_part is A and self.order is not None and A.nnz == len(self.order):  # all of the block
                yield rows, A, self.values, self.order
                return
            within = slice(A.first_entry + part.start, A.first_entry + part.stop)
            which = within if self.order is None else self.order[within]
            yield rows, A_part, self.edges.part(self.place, which), None


def row_blocks(A: CSR, heads: int) -> Iterator[tuple[slice, slice, CSR]]:
    """Give some rows after another: their places, their entries' places, and them. All have as many rows."""
    per_row, first = -(-A.nnz // max(A.shape[0], 1)), 0
    for rows in every(A.shape[0], rows_within(backend.of(A.indptr).at_a_time(), heads * max(per_row, 1))):
        part = A.rows(*rows)
        yield slice(*rows), slice(first, first + part.nnz), part
        first += part.nnz


class DistEdges:
    """Numbers of the stored entries of a matrix: (nnz, heads), cut as the matrix is.

    ``A.edges``, ``A.edge_sum`` and ``A.sddmm`` make them; ``A.multiply(H, values=E)`` multiplies with them.
    Ranks that hold copies of an entry have the same bits of its numbers. Passes are local, unless they say
    otherwise; sums and maxima are over all ranks that have a part of a row.

    Attributes:
        pattern: the :class:`~distgnn.operators.moves.Moves` of the entries of the matrix.
        data: this rank's numbers, (its entries, heads), C-contiguous, on the grid's backend.
    """

    __slots__ = ("__weakref__", "data", "pattern")
    __array_ufunc__ = None

    def __init__(self, pattern: Moves, data: Array) -> None:
        if data.ndim != 2 or len(data) != pattern.size or data.dtype != pattern.dtype:
            expected = f"expected ({pattern.size}, heads) of {pattern.dtype}"
            raise ValueError(f"edges: an array {data.shape} of {data.dtype}; {expected}")
        self.pattern, self.data = pattern, data
        ledger.holds(self, "edges", data.nbytes)

    @property
    def heads(self) -> int:
        """Numbers that an entry has."""
        return int(self.data.shape[1])

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the numbers."""
        return np.dtype(self.data.dtype)

    def __repr__(self) -> str:
        heads = f"{self.heads} heads" if self.heads > 1 else "1 head"
        return f"<DistEdges of {self.pattern.A!r}, {heads}, {self.dtype}>"

    @property
    def grid(self) -> Any:
        """The grid that cuts the matrix."""
        return self.pattern.grid

    def as_operand(self) -> str:
        """Return what ranks compare of an operand."""
        return f"edges of {self.pattern.A.as_operand()}, heads {self.heads}"

    def like(self, data: Array) -> DistEdges:
        """Make other numbers of the same entries."""
        return DistEdges(self.pattern, data)

    def __mul__(self, other: Any) -> DistEdges:
        return self.like(self.data * self._operand(other))

    __rmul__ = __mul__

    def __add__(self, other: Any) -> DistEdges:
        return self.like(self.data + self._operand(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> DistEdges:
        return self.like(self.data - self._operand(other))

    def __neg__(self) -> DistEdges:
        return self.like(-self.data)

    def _operand(self, other: Any) -> Any:
        if isinstance(other, DistEdges):
            check_edges(self.pattern, other)
            if other.heads != self.heads:
                raise ArgumentError("edges", repr(other), f"expected {self.heads} heads, as {self!r} has")
            return other.data
        if isinstance(other, (bool, int, float, np.integer, np.floating)):
            return self.dtype.type(other)
        raise TypeError(f"edges: cannot take {type(other).__name__}: expected a number, or edges of {self!r}")

    def mixed(self, weights: Array) -> DistEdges:
        """Multiply the numbers of each entry by an array (heads, k) that all ranks have: k heads."""
        on = self.pattern.grid.backend
        return self.like(on.xp.ascontiguousarray(self.data @ on.asarray(weights, self.dtype)))

    def numbers(self, place: slice, order: Array = None) -> Numbers:
        """Give products the numbers of the block at this place; ``order``: as of :class:`Numbers`."""
        return Numbers(self.data[place], order)

    def masked(self, through: Through) -> Masked:
        """Return these edges for products that read them changed, with no copy of all of them.

        Args:
            through: gets numbers, (entries, heads), to change in place, and a slice or an array that says
                which of this rank's entries they are of.
        """
        return Masked(self, through)

    # -- activations and their adjoints ----------------------------------------------------------------------

    def leaky_relu(self, slope: float = 0.2) -> DistEdges:
        """Compute x, or ``slope`` x where x is negative."""
        return self.like(self.data * self._slopes(slope))

    def leaky_relu_back(self, gradient: DistEdges, slope: float = 0.2) -> DistEdges:
        """Return the gradient of these numbers from that of ``self.leaky_relu(slope)``."""
        return self.like(self._operand(gradient) * self._slopes(slope))

    def _slopes(self, slope: float) -> Array:
        factors = self.dtype.type(1), self.dtype.type(slope)
        return self.pattern.grid.backend.xp.where(self.data > 0, *factors)

    def softmax(self, overwrite: bool = False) -> DistEdges:
        """Compute exp(x) over its sum in the row of the matrix, by head. Collective.

        ``overwrite``: in the memory of these numbers, which are gone then.

        Cost: where the columns of the matrix are cut over c ranks, two all-reduces of a number for each of
        this rank's rows and heads.
        """
        compare("softmax of edges", E=self)
        data = self.data if overwrite else self.data.copy()
        edge_passes.softmax(self.pattern, data)
        return self.like(data)

    def softmax_back(self, gradient: DistEdges) -> DistEdges:
        """Return the gradient of x from that of these numbers, which are ``x.softmax()``. Collective.

        P (g - Σ P g), with the sum over a row. Cost: one of the two all-reduces of :meth:`softmax`.
        """
        data = self._operand(gradient).copy()
        compare("softmax of edges, back", E=self)
        edge_passes.softmax_back(self.pattern, self.data, data)
        return self.like(data)

    # -- sums ------------------------------------------------------------------------------------------------

    def row_sums(self) -> DistDense:
        """Sum the numbers of each row, m x heads in ``A.output_layout``. Collective.

        Cost: an all-reduce of :meth:`softmax`.
        """
        pattern = self.pattern
        compare("row sums of edges", E=self)
        shape = pattern.A.shape[0], self.heads
        sums = DistDense(edge_passes.row_sums(pattern, self.data), pattern.row_layout, shape)
        return recut(sums, pattern.A.output_layout)

    def row_sums_back(self, gradient: DistDense) -> DistEdges:
        """Return the gradient of these numbers from that of ``self.row_sums()``. Collective.

        Cost: what the rank lacks of its rows of the gradient.
        """
        pattern = self.pattern
        return self.like(edge_passes.of_rows(pattern, recut(gradient, pattern.row_layout).block))

    def column_sums(self) -> DistDense:
        """Sum the numbers of each column, n x heads in ``A.input_layout``. Collective.

        Cost: that of ``A.multiply_adjoint`` with a column for each head.
        """
        A, on = self.pattern.A, self.pattern.grid.backend
        (m, n), f = A.shape, self.heads
        rows, columns = A.output_layout, A.input_layout
        ones = DistDense(on.xp.ones(rows.local_shape((m, f)), self.dtype), rows, (m, f))
        sums = DistDense.empty(columns, (n, f), self.dtype)
        sums.origin = compare("column sums of edges", E=self)
        edge_passes.multiply_adjoint(self.pattern, self, ones, sums)
        return sums

    # -- the way out -----------------------------------------------------------------------------------------

    def gather(self, head: int = 0, root: int = 0) -> sp.coo_array | None:
        """Gather one head as a SciPy matrix by node, on one rank; None elsewhere. Collective; for small ones.

        Raises:
            ArgumentError: no such head or rank, on every rank.
        """
        pattern = self.pattern
        world, on = pattern.grid.world, pattern.grid.backend
        if head not in range(self.heads):
            raise ArgumentError("head", head, f"expected 0 to {self.heads - 1}")
        if root not in range(world.size):
            raise ArgumentError("root", root, f"expected a rank, 0 to {world.size - 1}")
        rows, columns = pattern.ends()
        own = (rows, columns, on.to_host(self.data[:, head])) if pattern.primary else None
        held = [part for part in world.mpi.gather(own, root) or [] if part is not None]
        if world.rank != root:
            return None
        rows, columns, numbers = (np.concatenate(parts) for parts in zip(*held, strict=True))
        return sp.coo_array((numbers, (rows, columns)), shape=pattern.A.shape)


Function = Callable[[np.ndarray, np.ndarray], Any]
#: Changes numbers of entries in place: it gets them, and which of the rank's entries they are of.
Through = Callable[[Array, Any], Any]


class Masked:
    """Edges whose numbers are changed where a product reads them, such as by a mask of dropout.

    Only ``A.multiply`` and ``A.multiply_adjoint`` take them; ``E.masked(through)`` makes them. They take no
    memory.
    """

    __slots__ = ("E", "heads", "pattern", "through")

    def __init__(self, E: DistEdges, through: Through) -> None:
        self.E, self.pattern, self.heads, self.through = E, E.pattern, E.heads, through

    @property
    def grid(self) -> Any:
        """The grid that cuts the matrix."""
        return self.pattern.grid

    def as_operand(self) -> str:
        """Return what ranks compare of an operand."""
        return f"masked {self.E.as_operand()}"

    def numbers(self, place: slice, order: Array = None) -> Numbers:
        """Give products the numbers of the block at this place, when they read them."""
        return PiecewiseNumbers(self, place, order)

    def part(self, place: slice, within: Any = slice(None)) -> Array:
        """Make the numbers of some of the entries at this place: a slice, or an array of where they are."""
        own = self.E.data[place]
        if isinstance(within, slice):
            within = slice(*within.indices(len(own)))
            numbers, of = own[within].copy(), slice(place.start + within.start, place.start + within.stop)
        else:
            numbers, of = entries.gathered(own, within), within.astype(np.int64) + place.start
        self.through(numbers, of)
        return numbers


def check_edges(moves: Moves, E: Any) -> None:
    """Raise ArgumentError, on every rank alike, unless E are edges of the operator of these moves."""
    if not isinstance(E, (DistEdges, Masked)):
        problem = "expected edges, such as A.edges() or A.edge_sum(u, v)"
        raise ArgumentError("values", type(E).__name__, problem)
    if E.pattern is not moves:
        raise ArgumentError("values", repr(E), f"are edges of another operator than {moves.A!r}")


def made(pattern: Moves, values: Function | None, heads: int) -> DistEdges:
    """Make edges of the matrix's own values, or of a function; see ``A.edges``."""
    on = pattern.grid.backend
    if values is None:
        parts = [block.data.reshape(-1, 1) for block in pattern.blocks]
        own = on.xp.concatenate(parts) if parts else on.empty((0, 1), pattern.dtype)
        return DistEdges(pattern, on.xp.ascontiguousarray(on.xp.repeat(own, heads, axis=1)))
    ends = pattern.ends()
    with pattern.grid.world.together():
        numbers = np.asarray(values(*ends), pattern.dtype)
        if numbers.shape not in ((pattern.size,), (pattern.size, heads)):
            problem = f"expected ({pattern.size},) or ({pattern.size}, {heads})"
            raise ArgumentError("values", numbers.shape, problem)
        if numbers.ndim == 1:
            numbers = np.repeat(numbers[:, None], heads, axis=1)
    return DistEdges(pattern, on.asarray(np.ascontiguousarray(numbers)))
