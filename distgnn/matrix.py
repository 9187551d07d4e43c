"""The matrices: a local CSR block, the dense and sparse distributed matrices, and scatter and gather between them and the world.

The block sources at the end answer one question, "what stands in these rows and columns?", for a whole matrix in memory, for
pieces a rank already holds, and (in ``store/``) for a sharded file. Every distributed operator is built from one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sp
from scipy.sparse import _sparsetools

from distgnn import ledger
from distgnn.backend import Backend
from distgnn.errors import UserError
from distgnn.layout import Layout, Range

if TYPE_CHECKING:
    from distgnn.algorithms.dense import DenseProducts
    from distgnn.comm import Comm
    from distgnn.grid import Grid

Shape = tuple[int, int]

PIECE = 1 << 22  # elements copied to a device at a time


class CSR:
    """A CSR block on this rank, its three arrays packed in one buffer of bytes, so that it travels as one message.

    Attributes:
        shape: rows, columns of the block.
        indptr, indices, data: views into ``buffer``; row pointers and column numbers share one integer type.
        buffer: 1-D uint8, what :meth:`Comm.bcast` sends.
    """

    __slots__ = ("__weakref__", "buffer", "cached", "data", "indices", "indptr", "shape")
    indptr: Any
    indices: Any
    data: Any

    def __init__(self, shape: Shape, nnz: int, index_dtype: Any, dtype: Any, buffer: Any) -> None:
        self.shape = shape
        self.buffer = buffer[: self.nbytes(shape, nnz, index_dtype, dtype)]
        kinds = [("data", nnz, dtype), ("indices", nnz, index_dtype), ("indptr", shape[0] + 1, index_dtype)]
        start = 0
        for name, count, kind in sorted(kinds, key=lambda k: -np.dtype(k[2]).itemsize):  # widest first: all are aligned
            end = start + count * np.dtype(kind).itemsize
            setattr(self, name, self.buffer[start:end].view(kind))
            start = end
        self.cached: dict[str, Any] = {}

    @staticmethod
    def nbytes(shape: Shape, nnz: int, index_dtype: Any, dtype: Any) -> int:
        """Bytes of the buffer such a block needs."""
        return nnz * np.dtype(dtype).itemsize + (nnz + shape[0] + 1) * np.dtype(index_dtype).itemsize

    @classmethod
    def empty(cls, shape: Shape, nnz: int, dtype: Any, backend: Backend) -> CSR:
        """A block to be filled, on ``backend``'s device. Its indices are int32 where they fit."""
        index_dtype = np.int64 if max(nnz, *shape) > np.iinfo(np.int32).max else np.int32
        buffer = backend.empty((cls.nbytes(shape, nnz, index_dtype, dtype),), np.uint8)
        block = cls(shape, nnz, index_dtype, dtype, buffer)
        ledger.holds(block, "adjacency", buffer.nbytes)
        return block

    @classmethod
    def from_scipy(cls, matrix: Any, backend: Backend, dtype: Any = None) -> CSR:
        """A SciPy sparse matrix, sorted, as a block on ``backend``'s device.

        Raises:
            ValueError: row pointers not monotone or column numbers out of range (checked here once, never per product).
        """
        matrix = sp.csr_array(matrix)
        _validate(matrix)
        matrix.sort_indices()
        block = cls.empty(matrix.shape, matrix.nnz, np.dtype(dtype or matrix.dtype), backend)
        for source, target in ((matrix.data, block.data), (matrix.indices, block.indices), (matrix.indptr, block.indptr)):
            for first in range(0, target.size, PIECE):  # converted, where it is, a piece at a time
                piece = slice(first, first + PIECE)
                backend.copy_in(np.ascontiguousarray(source[piece], target.dtype), target[piece])
        return block

    @property
    def nnz(self) -> int:
        return int(self.data.size)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.data.dtype)

    @staticmethod
    def count(shape: Shape, nnz: int) -> int:
        """Payload elements of such a block when it travels: values, column numbers and row pointers."""
        return 2 * nnz + shape[0] + 1

    @property
    def words(self) -> int:
        """Payload elements of this block."""
        return self.count(self.shape, self.nnz)

    def header(self) -> tuple[Shape, int, np.dtype, np.dtype]:
        """What a receiver must know to make room: the arguments of :meth:`nbytes`."""
        return self.shape, self.nnz, np.dtype(self.indices.dtype), self.dtype

    def row_blocks(self, nonzeros: int) -> list[tuple[int, int, CSR]]:
        """Consecutive rows of about so many non-zeros each, as (first, last, block)."""
        bounds = np.unique(np.searchsorted(self.indptr, np.arange(0, self.nnz, nonzeros)))
        ends = [*bounds[(bounds > 0) & (bounds < self.shape[0])].tolist(), self.shape[0]]
        return [(first, last, rows) for (first, last), rows in zip(pairwise([0, *ends]), self.split(ends), strict=True)]

    def split(self, ends: Sequence[int]) -> list[CSR]:
        """The rows before each of these ends: views, but for row pointers of their own. Made once and kept."""
        if tuple(ends) == (self.shape[0],):
            return [self]
        key = f"rows {tuple(ends)}"
        if key not in self.cached:
            self.cached[key] = [self._rows(first, last) for first, last in pairwise([0, *ends])]
        return self.cached[key]

    def _rows(self, first: int, last: int) -> CSR:
        start, stop = int(self.indptr[first]), int(self.indptr[last])
        piece = object.__new__(CSR)
        piece.shape, piece.buffer, piece.cached = (last - first, self.shape[1]), None, {}
        piece.data, piece.indices = self.data[start:stop], self.indices[start:stop]
        piece.indptr = self.indptr[first : last + 1] - self.indptr[first]
        return piece

    def transposed(self, backend: Backend) -> CSR:
        """The transposed block. On the host it is made where it stays, so that nothing is held twice for a moment."""
        if backend.on_device:
            return CSR.from_scipy(self.to_scipy().T, backend)
        block = CSR.empty(self.shape[::-1], self.nnz, self.dtype, backend)
        _sparsetools.csr_tocsc(*self.shape, self.indptr, self.indices, self.data, block.indptr, block.indices, block.data)
        return block

    def to_scipy(self) -> sp.csr_array:
        """The block as a SciPy matrix on the host (sharing memory where the block is there already)."""
        matrix = sp.csr_array(self.shape, dtype=self.dtype)
        # Given to the constructor, they would be copied: SciPy "prunes" views of a buffer with more elements (here bytes).
        matrix.data, matrix.indices, matrix.indptr = (
            a if isinstance(a, np.ndarray) else a.get() for a in (self.data, self.indices, self.indptr)
        )
        return matrix


def _validate(matrix: sp.csr_array) -> None:
    rows, columns = matrix.shape
    if matrix.indptr.size != rows + 1 or matrix.indptr[0] != 0 or np.any(np.diff(matrix.indptr) < 0):
        raise ValueError("CSR row pointers must rise from 0, one more than there are rows")
    if matrix.nnz and not (0 <= matrix.indices.min() and matrix.indices.max() < columns):
        raise ValueError(f"CSR column numbers must lie in 0..{columns - 1}")


class DistDense:
    """A dense matrix cut over the grid.

    Attributes:
        block: this rank's rows and columns, 2-D and C-contiguous, on the grid's backend.
        layout: which rows and columns those are.
        shape: the global shape.
    """

    __slots__ = ("__weakref__", "block", "layout", "shape")

    def __init__(self, block: Any, layout: Layout, shape: Shape) -> None:
        expected = layout.local_shape(shape)
        if tuple(block.shape) != expected:
            raise ValueError(f"rank {layout.grid.rank}: block of shape {block.shape} where the layout says {expected}")
        if not block.flags.c_contiguous:
            raise ValueError("blocks of a DistDense must be C-contiguous")
        self.block, self.layout, self.shape = block, layout, (int(shape[0]), int(shape[1]))

    @classmethod
    def empty(cls, layout: Layout, shape: Shape, dtype: Any) -> DistDense:
        return cls(layout.grid.backend.empty(layout.local_shape(shape), dtype), layout, shape)

    @property
    def grid(self) -> Any:
        return self.layout.grid

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.block.dtype)

    @property
    def row_range(self) -> Range:
        return self.layout.ranges(self.shape)[0]

    @property
    def col_range(self) -> Range:
        return self.layout.ranges(self.shape)[1]

    def like(self, block: Any) -> DistDense:
        """Another block cut the same way."""
        return DistDense(block, self.layout, self.shape)


class DistSparse(ABC):
    """A sparse matrix cut over the grid by one of the algorithms, as an operator: ``Y = A @ H`` and ``G = A.T @ Y``.

    Attributes:
        grid: the process grid; shape: the global shape (rows, columns); dtype: of the values.
        input_layout: how ``H`` of ``A @ H`` must be cut; output_layout: how the product is.
    """

    name: str
    axes: tuple[str, ...]
    grid: Grid
    source: BlockSource
    shape: Shape
    dtype: np.dtype
    symmetric: bool
    input_layout: Layout
    output_layout: Layout
    dense: DenseProducts
    _adjoint: DistSparse | None = None

    @staticmethod
    @abstractmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        """The grids of this many ranks that the algorithm can use, the best first."""

    @abstractmethod
    def multiply(self, H: DistDense, out: DistDense | None = None) -> DistDense:
        """``A H``; ``H`` in ``input_layout``, the result in ``output_layout``, in ``out`` where that is given. Unlike ``A @ H``,
        nothing is checked; ``out`` shares no memory with ``H``.
        """

    @abstractmethod
    def multiply_adjoint(self, G: DistDense, out: DistDense | None = None) -> DistDense:
        """``Aᵀ G``; ``G`` in ``output_layout``, the result in ``input_layout``, in ``out`` where that is given."""

    def __matmul__(self, H: DistDense) -> DistDense:
        """``A H``. Collective.

        Raises:
            ValueError: shapes, layouts or dtypes don't fit (on every rank alike).
        """
        self._check(H, self.shape[1], self.input_layout)
        return self.multiply(H)

    @property
    def T(self) -> DistSparse:
        """The adjoint operator: ``A.T @ G``. A symmetric matrix cut alike in rows and columns is its own adjoint."""
        if self._adjoint is None:
            alike = self.symmetric and self.input_layout.same(self.output_layout, (self.shape[0], 0))
            self._adjoint = self if alike else Adjoint(self)
        return self._adjoint

    def layer(self, number: int) -> DistSparse:
        """The operator of GCN layer ``number``, whose ``input_layout`` is how the layer before leaves its output."""
        return self

    # Products with the weights of a layer, cut as this algorithm cuts them (see algorithms/dense.py).

    @property
    def weight_layout(self) -> Layout:
        """How the weights of a layer are cut."""
        return self.dense.weight_layout

    @property
    def next_layout(self) -> Layout:
        """How ``Z = (A H) W`` is cut: the ``input_layout`` of the next layer's operator."""
        return self.dense.output_layout

    def times(self, T: DistDense, W: DistDense, out: DistDense | None = None) -> DistDense:
        """``Z = T W``: ``T`` in ``output_layout``, ``W`` in ``weight_layout``, ``Z`` in ``next_layout``. Collective."""
        return self.dense.times(T, W, out)

    def backward(
        self, T: DistDense, G: DistDense, W: DistDense | None = None, out: DistDense | None = None
    ) -> tuple[DistDense, DistDense | None]:
        """``(dW, dT) = (Tᵀ G, G Wᵀ)`` for ``G`` in ``next_layout``, ``dT`` in ``out`` where that is given, which shares no memory
        with ``T`` and ``G``; without ``W``, only ``dW``. Collective.
        """
        return self.dense.backward(T, G, W, out)

    def tune(self, fan_in: int, fan_out: int) -> dict[str, str]:
        """Choose the forms of the dense products of a layer with these widths (``DenseProducts.tune``). Collective."""
        return self.dense.tune(self.shape[0], fan_in, fan_out, self.dtype)

    @property
    def associative(self) -> bool:
        """Can this operator compute ``A (H W)`` as well as ``(A H) W``? So it is where its input is cut like its output."""
        return self.shape[0] == self.shape[1] and all(
            self.input_layout.same(other, (self.shape[0], 0)) for other in (self.output_layout, self.next_layout)
        )

    # For the algorithms' constructors.

    def _place(self, grid: Grid, source: BlockSource) -> None:
        """Take over what every algorithm takes from its arguments, checked: a grid it can use, one matrix on all ranks."""
        if tuple(grid.shape) != self.axes:
            raise UserError(f"algorithm {self.name} needs a grid with the axes {', '.join(self.axes)}; got {grid}")
        if grid.shape not in self.grids(grid.size):
            raise self.no_grid(" ".join(f"{axis}={size}" for axis, size in grid.shape.items()), grid.size)
        self.grid, self.source = grid, source
        self.shape = (int(source.shape[0]), int(source.shape[1]))
        self.dtype, self.symmetric = np.dtype(source.dtype), bool(source.symmetric)
        kinds = grid.world.gather_objects((self.shape, str(self.dtype), self.symmetric))
        if len(set(kinds)) > 1:
            raise ValueError(f"the ranks hold blocks of different matrices (shape, dtype, symmetric): {kinds}")

    @classmethod
    def no_grid(cls, asked: str, ranks: int) -> UserError:
        """The error that names the grids this algorithm can use instead of the one asked for."""
        listed = "; ".join("x".join(str(size) for size in grid.values()) for grid in cls.grids(ranks))
        axes = " x ".join(cls.axes)
        return UserError(f"--grid {asked}: not a grid for algorithm {cls.name} on {ranks} ranks; possible ({axes}): {listed}")

    def _load(self, windows: Sequence[tuple[Range, Range]]) -> list[CSR]:
        """The blocks of A in these (rows, columns), on the grid's device. Collective: an error on one rank is raised on all.

        Ranks of a node that ask for the same windows of a store read them together, each shard once (Plexus section 5.4). That
        is charged to the ledger as the broadcasts it is: 2 words per non-zero and a little per row.
        """
        source, backend = self.source, self.grid.backend
        if not isinstance(source, SharedSource):
            return self._pack(lambda: (source.block(*window) for window in windows))
        # Inside, only ranks that read together communicate, and they leave together.
        with self.grid.on_node((source.key, windows)) as readers, self.grid.world.together():
            return [source.assemble(*window, backend, readers) for window in windows]
        raise AssertionError("unreachable: together() raises")

    def _pack(self, read: Callable[[], Iterable[Any]]) -> list[CSR]:
        """The SciPy blocks that ``read`` gives, on the grid's device. Collective: an error on one rank is raised on all."""
        with self.grid.world.together():
            return [CSR.from_scipy(block, self.grid.backend, self.dtype) for block in read()]
        raise AssertionError("unreachable: together() raises")

    def _result(self, layout: Layout, shape: Shape, out: DistDense | None) -> DistDense:
        return DistDense.empty(layout, shape, self.dtype) if out is None else out

    def _check(self, H: DistDense, rows: int, layout: Layout) -> None:
        if not isinstance(H, DistDense):
            raise TypeError(f"{self.name}: can multiply a DistDense (see scatter), got {type(H).__name__}")
        if H.shape[0] != rows:
            raise ValueError(f"{self.name}: shapes {self.shape} and {H.shape} don't multiply")
        if not H.layout.same(layout, H.shape):
            raise ValueError(f"{self.name}: H is cut over {_words(H.layout)}, this operator needs {_words(layout)}")
        if H.dtype != self.dtype:
            raise ValueError(f"{self.name}: A holds {self.dtype}, H holds {H.dtype}; convert one of them")


def _words(layout: Layout) -> str:
    return f"rows over ({', '.join(layout.row_axes)}), columns over ({', '.join(layout.col_axes)})"


class Adjoint(DistSparse):
    """``Aᵀ`` as an operator of its own; holds no data."""

    def __init__(self, forward: DistSparse) -> None:
        self.forward = forward
        self.name = f"{forward.name} transposed"
        self.grid, self.dtype, self.symmetric = forward.grid, forward.dtype, forward.symmetric
        self.shape = (forward.shape[1], forward.shape[0])
        self.input_layout, self.output_layout = forward.output_layout, forward.input_layout

    @property
    def dense(self) -> DenseProducts:  # type: ignore[override]
        raise TypeError("an adjoint has no products with weights; the forward operator, its .T, has")

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        raise TypeError("an adjoint lives on the grid of its forward operator")

    def layer(self, number: int) -> DistSparse:
        return self.forward.layer(number).T

    def multiply(self, H: DistDense, out: DistDense | None = None) -> DistDense:
        return self.forward.multiply_adjoint(H, out)

    def multiply_adjoint(self, G: DistDense, out: DistDense | None = None) -> DistDense:
        return self.forward.multiply(G, out)

    @property
    def T(self) -> DistSparse:
        return self.forward


# -- scatter and gather ------------------------------------------------------------------------------------------------


def scatter(X: Any, layout: Layout, dtype: Any = None) -> DistDense:
    """Cut a global matrix that rank 0 has (others pass anything, e.g. None) over the grid. Collective.

    Returns:
        the distributed matrix, on the grid's backend; replicas get equal copies.
    """
    grid = layout.grid
    world = grid.world
    with world.together():
        if world.rank == 0:
            X = np.ascontiguousarray(X, dtype=dtype)
            if X.ndim != 2:
                raise ValueError(f"scatter takes a matrix; got an array of shape {X.shape}")
            if layout.rows.parts is not None and X.shape[0] != layout.rows.parts[-1]:
                raise ValueError(f"scatter: the layout cuts {layout.rows.parts[-1]} rows, the matrix has {X.shape[0]}")
    shape, kind = world.share((X.shape, X.dtype) if world.rank == 0 else ((0, 0), np.dtype(float)))
    ranges = world.gather_objects(layout.ranges(shape))
    if world.rank == 0:
        for rank in range(1, world.size):
            (top, bottom), (left, right) = ranges[rank]
            world.send(grid.backend.asarray(X[top:bottom, left:right]), rank)
        (top, bottom), (left, right) = ranges[0]
        return DistDense(grid.backend.asarray(X[top:bottom, left:right]).copy(), layout, shape)
    return DistDense(world.receive(grid.backend.empty(layout.local_shape(shape), kind), 0), layout, shape)


def gather(Y: DistDense) -> np.ndarray | None:
    """The global matrix as a NumPy array on rank 0, None elsewhere. Collective; for tests and small results."""
    world = Y.grid.world
    ranges = world.gather_objects(Y.layout.ranges(Y.shape) if Y.layout.primary else None)
    if world.rank != 0:
        if Y.layout.primary:
            world.send(Y.block, 0)
        return None
    whole = np.empty(Y.shape, dtype=Y.dtype)
    for rank, held in enumerate(ranges):
        if held is not None:
            (top, bottom), (left, right) = held
            block = Y.block if rank == 0 else world.receive(Y.grid.backend.empty((bottom - top, right - left), Y.dtype), rank)
            whole[top:bottom, left:right] = Y.grid.backend.to_host(block)
    return whole


# -- block sources -----------------------------------------------------------------------------------------------------


class BlockSource(Protocol):
    """Where the blocks of a sparse matrix come from. ``symmetric`` promises A == Aᵀ to the last bit; a source that knows may also
    have ``nnz``, the non-zeros of all of the matrix.
    """

    shape: Shape
    dtype: np.dtype
    symmetric: bool

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        """Rows and columns of the matrix as CSR with local, sorted indices. Local to a rank."""
        ...


@runtime_checkable
class SharedSource(BlockSource, Protocol):
    """A block source that puts blocks together where they will stay, read by several ranks at once."""

    @property
    def key(self) -> Hashable:
        """Equal on ranks whose sources give the same matrix."""
        ...

    def assemble(self, rows: Range, cols: Range, backend: Backend, readers: Comm) -> CSR:
        """The block on ``backend``'s device. Collective over ``readers``, who all want these rows and columns of this matrix; an
        error is raised on all of them.
        """
        ...


class MatrixSource:
    """A whole SciPy matrix, held by every rank: for tests, small graphs and research code.

    Args:
        matrix: anything SciPy turns into CSR; duplicates are summed.
        dtype: float32 or float64; default: the matrix's own, or float32 for integers.
    """

    def __init__(self, matrix: Any, dtype: Any = None) -> None:
        matrix = sp.csr_array(matrix)
        matrix.sum_duplicates()
        self.matrix = matrix.astype(dtype or (matrix.dtype if matrix.dtype.kind == "f" else np.float32))
        self.shape: Shape = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype = np.dtype(self.matrix.dtype)
        self.nnz = int(self.matrix.nnz)
        self.symmetric = self.shape[0] == self.shape[1] and (self.matrix != self.matrix.T).nnz == 0

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        return self.matrix[rows[0] : rows[1], cols[0] : cols[1]]


class LocalBlocks:
    """The pieces of a matrix that this rank holds already; asking for anything outside one of them is an error.

    Args:
        shape: of the global matrix.
        pieces: ``(rows, cols, csr)`` triples: global ranges and the SciPy matrix that stands there.
        symmetric: promise that the global matrix equals its transpose exactly, so that no Aᵀ is needed.
        dtype: of the values, the same on every rank; a rank that holds no piece can't infer it.
    """

    def __init__(
        self, shape: Shape, pieces: Sequence[tuple[Range, Range, Any]], symmetric: bool = False, dtype: Any = None
    ) -> None:
        self.shape = shape
        self.symmetric = symmetric
        self.pieces = [(rows, cols, sp.csr_array(csr)) for rows, cols, csr in pieces]
        for rows, cols, csr in self.pieces:
            if csr.shape != (rows[1] - rows[0], cols[1] - cols[0]):
                raise ValueError(f"piece of shape {csr.shape} does not fill rows {rows} and columns {cols}")
        if dtype is None and not pieces:
            raise ValueError("a rank that holds no piece of the matrix must be told its dtype")
        self.dtype = np.dtype(self.pieces[0][2].dtype if dtype is None else dtype)

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        if rows[0] >= rows[1] or cols[0] >= cols[1]:
            return sp.csr_array((rows[1] - rows[0], cols[1] - cols[0]), dtype=self.dtype)
        for (top, bottom), (left, right), csr in self.pieces:
            if top <= rows[0] and rows[1] <= bottom and left <= cols[0] and cols[1] <= right:
                return csr[rows[0] - top : rows[1] - top, cols[0] - left : cols[1] - left]
        raise ValueError(f"this rank was given no piece that covers rows {rows} and columns {cols}")
