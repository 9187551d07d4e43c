"""Block sources answer one question: what stands in these rows and columns?

There is one for a whole matrix in memory, one for the blocks that a rank holds already, and (in ``store/``)
one for a sharded file. Every distributed operator is built from one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sp

from distgnn.arrays import foreign
from distgnn.arrays.backend import Backend
from distgnn.arrays.canonical import as_matrix, canonical, identical, value_type
from distgnn.arrays.csr import CSR, Shape, column_blocks
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.errors import ArgumentError
from distgnn.layout import NodeOrder, Range
from distgnn.operators import strips


class BlockSource(Protocol):
    """A source of the blocks of a sparse matrix. ``symmetric`` promises A == Aᵀ to the last bit.

    One that reads files has a method ``splits(cols)``, which tells whether who reads these columns of some
    rows reads others, too. It is asked once for blocks side by side, which are then cut.
    """

    shape: Shape
    dtype: np.dtype
    symmetric: bool

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        """Return rows and columns of the matrix as CSR with local, sorted indices. Local to a rank.

        Of the ranks of a node that hold the same block, one may ask for all.
        """
        ...


@runtime_checkable
class SharedSource(BlockSource, Protocol):
    """A block source that puts blocks together where they will stay, read by several ranks at once."""

    @property
    def key(self) -> Hashable:
        """A key that is equal on ranks whose sources give the same matrix."""
        ...

    def assemble(self, rows: Range, cols: Range, backend: Backend, readers: Comm) -> CSR:
        """Put the block together on ``backend``'s device. Collective over ``readers``.

        All of them want this block of this matrix; an error is raised on all of them.
        """
        ...


class MatrixSource:
    """A whole SciPy matrix, held by every rank: for tests, small graphs and research code.

    ``matrix`` is anything SciPy turns into CSR; duplicates are summed. Its arrays stay as they are, and are
    shared where they are canonical already: who changes them changes what is distributed next. ``dtype`` is
    float32 or float64, by default the shorter of them that holds the matrix's own.

    ArgumentError: what :func:`canonical` refuses, such as complex values and indices out of range.
    """

    def __init__(self, matrix: Any, dtype: Any = None) -> None:
        matrix = as_matrix(matrix)
        self.dtype = value_type(matrix.dtype, dtype)
        self.matrix = canonical(matrix, self.dtype)
        self.shape: Shape = (int(matrix.shape[0]), int(matrix.shape[1]))
        square = self.shape[0] == self.shape[1]
        # A zero stored on one side only is a gathered row there: by values alone, A would pass for Aᵀ.
        self.symmetric = square and identical(self.matrix, canonical(self.matrix.T))

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        """Return a view or copy of these rows and columns."""
        return self.matrix[rows[0] : rows[1], cols[0] : cols[1]]


class LocalBlocks:
    """The blocks of a matrix that this rank holds already; it can't be asked for anything else.

    Args:
        shape: of the global matrix.
        pieces: ``(rows, cols, csr)`` triples: global ranges and the SciPy matrix that stands there, taken as
            a :class:`MatrixSource` takes its own.
        symmetric: promise that the global matrix equals its transpose exactly, so that no Aᵀ is needed.
        dtype: of the values, the same on every rank; a rank that holds nothing must give it.

    Raises:
        ArgumentError: as a :class:`MatrixSource`. ValueError: a block that does not fill its ranges.
    """

    def __init__(
        self, shape: Shape, pieces: Sequence[tuple[Range, Range, Any]], symmetric: bool = False,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        if dtype is None and not pieces:
            raise ValueError("a rank that holds no block of the matrix must be told its dtype")
        self.shape, self.symmetric = shape, symmetric
        pieces = [(rows, cols, foreign.on_host("matrix", csr)) for rows, cols, csr in pieces]
        for rows, cols, csr in pieces:
            if csr.shape != (rows[1] - rows[0], cols[1] - cols[0]):
                raise ValueError(f"block of shape {csr.shape} does not fill rows {rows} and columns {cols}")
        self.dtype = value_type(pieces[0][2].dtype if dtype is None else dtype, dtype)
        self.blocks = [(rows, cols, canonical(csr, self.dtype)) for rows, cols, csr in pieces]

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        """Return rows and columns within one of the blocks. ValueError: no block covers them."""
        if rows[0] >= rows[1] or cols[0] >= cols[1]:
            return sp.csr_array((rows[1] - rows[0], cols[1] - cols[0]), dtype=self.dtype)
        for (top, bottom), (left, right), csr in self.blocks:
            if top <= rows[0] and rows[1] <= bottom and left <= cols[0] and cols[1] <= right:
                return csr[rows[0] - top : rows[1] - top, cols[0] - left : cols[1] - left]
        raise ValueError(f"this rank was given no block that covers rows {rows} and columns {cols}")


class RootMatrix:
    """A whole SciPy matrix that one rank holds, as a :class:`MatrixSource` does.

    The others get from it the blocks that they need, when they need them: rank after rank, so that the root
    copies one rank's at a time.

    Args:
        grid: of the operators that are made of it. Collective over it, as is :meth:`blocks`.
        matrix: on the root; what others give does not matter.
        root: the rank that holds it.
        dtype: as of a :class:`MatrixSource`.

    Cost of a block, charged as ``adjacency``: two words per non-zero, one per row, and one.

    Raises:
        ArgumentError: on every rank, what a :class:`MatrixSource` raises on the root.
    """

    def __init__(self, grid: Grid, matrix: Any, root: int = 0, dtype: Any = None) -> None:
        self.root, self.comm = root, grid.along_on_host(*grid.shape)
        with self.comm.together():
            if self.comm.rank == root:
                foreign.check_place("matrix", matrix, grid.backend)
            self.held = MatrixSource(matrix, dtype) if self.comm.rank == root else None
        held = self.held
        facts = held and (held.shape, held.dtype, held.symmetric, int(held.matrix.nnz))
        self.shape, self.dtype, self.symmetric, self.nnz = self.comm.share(facts, root)  # type: ignore[misc]

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        """Return rows and columns on the root only; ValueError elsewhere."""
        if self.held is None:
            raise ValueError(f"only rank {self.root} holds this matrix; blocks() gives every rank its own")
        return self.held.block(rows, cols)

    def blocks(self, windows: Sequence[tuple[Range, Range]]) -> list[sp.csr_array]:
        """Return the blocks in these (rows, columns), each rank's own.

        Collective; errors are raised on all.
        """
        comm, mine, failure = self.comm, [], None
        asked = comm.gather_objects(list(windows))
        if comm.rank != self.root:
            mine = [self._receive() for _ in windows]
        for rank, wanted in enumerate(asked) if self.held else ():
            given = self._given(wanted)
            for _ in wanted:
                try:
                    block = next(given) if failure is None else None
                except Exception as error:
                    failure, block = error, None
                if rank == self.root:
                    mine.append(block)
                else:
                    self._send(block, rank)
        with comm.together():
            if failure is not None:
                raise failure
        return mine

    def _given(self, windows: Sequence[tuple[Range, Range]]) -> Iterator[sp.csr_array]:
        """Give the blocks in these (rows, columns). Those side by side are made once, and cut."""
        for rows, bounds in strips.side_by_side(windows):
            strip = self.block(rows, (bounds[0], bounds[-1]))
            yield from column_blocks(strip, [end - bounds[0] for end in bounds])

    def _send(self, block: sp.csr_array | None, rank: int) -> None:
        parts = () if block is None else (block.indptr, block.indices, block.data)
        facts = None if block is None else (block.shape, [(part.size, part.dtype) for part in parts])
        self.comm.mpi.send(facts, rank)
        for part in parts:
            self.comm.send(part, rank, "adjacency")

    def _receive(self) -> sp.csr_array | None:
        facts = self.comm.mpi.recv(source=self.root)
        if facts is None:
            return None
        shape, parts = facts
        rooms = (np.empty(size, dtype) for size, dtype in parts)
        indptr, indices, data = (self.comm.receive(room, self.root, "adjacency") for room in rooms)
        return sp.csr_array((data, indices, indptr), shape=shape)


def blocks(
    source: BlockSource, windows: Sequence[tuple[Range, Range]], grid: Grid | None = None
) -> Iterable[Any]:
    """Give the SciPy blocks in these (rows, columns), one after another.

    Collective where a root holds them all, and then they are there on return; and with a grid, whose ranks
    read files together. Else local, as each is asked for.
    """
    if isinstance(source, RootMatrix):
        return source.blocks(windows)
    if hasattr(source, "splits"):
        return strips.read(grid, source, windows)
    return (source.block(*window) for window in windows)


def entries(source: BlockSource) -> dict[Hashable, int]:
    """Count the stored entries that this rank knows of, by the part of the matrix that they are in.

    TypeError: the source does not say.
    """
    if isinstance(source, LocalBlocks):
        return {(rows, cols): int(csr.nnz) for rows, cols, csr in source.blocks}
    count = source.matrix.nnz if isinstance(source, MatrixSource) else getattr(source, "nnz", None)
    if count is None:
        raise TypeError(f"{type(source).__name__} does not say how many entries it has, give it an nnz")
    return {"all": int(np.sum(count))}


def identity(source: BlockSource) -> dict[str, Any]:
    """Return the facts of a matrix that ranks compare: its kind, and its content where all hold it whole."""
    facts = {"the matrix's shape": source.shape, "the matrix's dtype": source.dtype}
    facts["the matrix's symmetry"] = source.symmetric
    orders = [getattr(source, side, None) for side in ("row_order", "col_order")]
    facts["the matrix's orders"] = " and ".join(order.name if order else "none" for order in orders)
    if isinstance(source, MatrixSource):
        A = source.matrix  # its indices may be of 32 or 64 bits
        facts |= {"the matrix's row lengths": np.diff(A.indptr).astype(np.int64)}
        facts |= {"the matrix's columns": A.indices.astype(np.int64), "the matrix's values": A.data}
    return facts


class Parts:
    """An order of the nodes by part; within a part, by node.

    Args:
        part: the part of each node, whole numbers from 0.
        number: of parts, or None for as many as there are.

    Attributes:
        order: of the nodes; bounds: the partition vector of the parts in it.

    Raises:
        ArgumentError: no vector of whole numbers, or one outside 0..number-1.
    """

    def __init__(self, part: Any, number: int | None = None) -> None:
        vector = np.asarray(part)
        if vector.ndim != 1 or vector.dtype.kind not in "iu":
            problem = "expected the part of each node, a vector of whole numbers"
            raise ArgumentError("parts", f"{vector.dtype}{list(vector.shape)}", problem)
        number = int(vector.max(initial=-1)) + 1 if number is None else number
        wrong = np.flatnonzero((vector < 0) | (vector >= number))
        if len(wrong):
            node = int(wrong[0])
            raise ArgumentError("parts", int(vector[node]), f"of node {node}; expected 0..{number - 1}")
        self.nodes = np.argsort(vector, kind="stable").astype(np.int64)
        self.bounds = np.searchsorted(vector[self.nodes], np.arange(number + 1)).astype(np.int64)
        key = "parts", hashlib.sha256(self.nodes.tobytes()).hexdigest()
        self.order = NodeOrder("by parts", key, lambda first, last: self.nodes[first:last])

    def permuted(self, matrix: Any, dtype: Any) -> Any:
        """Return a SciPy matrix with rows and columns in this order. ArgumentError: it has other nodes."""
        matrix = as_matrix(matrix)
        n = len(self.nodes)
        if matrix.shape != (n, n):
            raise ArgumentError("parts", f"of {n} nodes", f"the matrix has shape {matrix.shape}")
        return canonical(matrix, value_type(matrix.dtype, dtype))[self.nodes][:, self.nodes]
