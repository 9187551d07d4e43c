"""Dense matrices cut over a grid, and scatter and gather between them and the world."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import ledger
from distgnn.arrays import foreign
from distgnn.arrays.backend import Backend, as_array, of
from distgnn.arrays.canonical import check_real
from distgnn.arrays.csr import Shape
from distgnn.comm.checks import compare
from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError, check_type
from distgnn.layout import Cut, Layout, Range
from distgnn.operators.algebra import Algebra
from distgnn.operators.cut_matrix import CutMatrix
from distgnn.operators.reductions import Reductions
from distgnn.operators.relayout import relayout
from distgnn.operators.tall import Tall


class DistDense(CutMatrix, Tall, Reductions, Algebra):
    """A dense matrix cut over the grid.

    Beside a sparse matrix, ``A @ H``, it takes expressions and NumPy's universal functions, such as
    ``np.exp(H) + G`` (:class:`~distgnn.operators.algebra.Algebra`), sums, norms and maxima of columns
    (:class:`~distgnn.operators.reductions.Reductions`), ``H.T @ G``, ``H @ small`` and ``H.qr()``
    (:class:`~distgnn.operators.tall.Tall`).

    ``block`` is 2-D and C-contiguous; other attributes: see
    :class:`~distgnn.operators.cut_matrix.CutMatrix`. On a GPU it may be an array there of any library that
    has DLPack or the CUDA array interface, each rank's own: it is not copied, so it must stay as it is.
    """

    __slots__ = ()

    def __init__(self, block: Any, layout: Layout[Grid], shape: Shape) -> None:
        check_type("layout", layout, Layout, "a Layout, such as A.input_layout")
        block = foreign.block(block, layout.grid.backend)
        super().__init__(block, layout, shape)
        if not block.flags.c_contiguous:
            raise ValueError("blocks of a DistDense must be C-contiguous")

    @classmethod
    def empty(cls, layout: Layout[Grid], shape: Shape, dtype: Any) -> DistDense:
        """Make a matrix of this global shape, of any content."""
        made = cls(layout.grid.backend.empty(layout.local_shape(shape), dtype), layout, shape)
        ledger.holds(made, "results", made.block.nbytes)
        return made

    def like(self, block: Any) -> DistDense:
        """Make a matrix of another block, cut the same way."""
        alike = DistDense(block, self.layout, self.shape)
        alike.origin = self.origin
        return alike

    def redistribute(self, layout: Layout[Grid]) -> DistDense:
        """Cut the matrix by another layout; see :func:`redistribute`."""
        return redistribute(self, layout)

    def __getitem__(self, key: Any) -> DistDense:
        """Return ``H[:, first:last]``; see :func:`~distgnn.operators.column_slices.columns`."""
        return columns(self, key)

    def astype(self, dtype: Any) -> DistDense:
        """Make a matrix of the same numbers in another dtype. ArgumentError: not one of real numbers."""
        return self.like(self.block.astype(check_real("dtype", dtype)))

    def copy(self) -> DistDense:
        """Make a matrix of the same numbers, with memory of its own."""
        return self.like(self.block.copy())


def redistribute(H: DistDense, layout: Layout[Grid]) -> DistDense:
    """Return the numbers of ``H`` in another layout of its grid, as a new matrix. Collective.

    Examples:
        >>> H = scatter(np.eye(4), Layout(grid, Cut(("rows",)), Cut()))  # doctest: +SKIP
        >>> redistribute(H, Layout(grid, Cut(), Cut(("rows",)))).block.shape  # on 2 ranks  # doctest: +SKIP
        (4, 2)

    Args:
        layout: cuts as many rows as ``H`` has, in the same order, over any axes of the grid; along the others
            every rank gets a copy.

    Cost, on ``H`` in the ledger: what this rank holds of the result and not of ``H``, in one all-to-allv of
    all ranks.

    Raises:
        ArgumentError: a layout of another grid, of another number of rows, or in another order of nodes, on
            every rank alike.
    """
    check_type("H", H, DistDense, "a DistDense, then the layout")
    check_type("layout", layout, Layout, "a Layout, such as A.input_layout")
    parts, order = layout.rows.parts, layout.rows.order
    if layout.grid is not H.grid:
        raise ArgumentError("layout", layout.words(), f"is of another grid than {H!r}")
    if parts is not None and parts[-1] != H.shape[0]:
        raise ArgumentError("layout", layout.words(), f"cuts {parts[-1]} rows, not those of {H!r}")
    if order != H.layout.rows.order:
        raise ArgumentError("layout", layout.words(), f"has rows in another order than {H!r}")
    return relayout(H, DistDense.empty(layout, H.shape, H.dtype))


def recut(X: DistDense, layout: Layout[Grid]) -> DistDense:
    """Return ``X`` in a layout: ``X`` itself where it is cut so already, as on every rank. Collective."""
    return X if X.layout.same(layout, X.shape) else redistribute(X, layout)


def scatter(X: Any, layout: Layout[Grid], dtype: Any = None) -> DistDense:
    """Cut a global matrix that rank 0 has (others pass anything) over the grid. Collective.

    A vector (n,) becomes a matrix n x 1. Row i belongs to node i, whatever the order of the layout; rank 0
    puts rows into that order. The matrix has memory of its own.

    X may be on the GPU of rank 0: an array of CuPy, or of any library that has DLPack or the CUDA array
    interface. Its blocks are cut there, after what the caller's streams do to it, and it is free on return.

    Raises:
        ArgumentError: on every rank, X of rank 0 is no matrix of real numbers with as many rows as the layout
            cuts, or is on a GPU where the grid does not compute, or the layout is none.
    """
    check_type("layout", layout, Layout, "a Layout, such as A.input_layout")
    on, world, rows = layout.grid.backend, layout.grid.world, layout.rows.parts
    ids = None
    with ExitStack() as lent:
        with world.together():
            if world.rank == 0:
                X = _checked(lent.enter_context(foreign.borrowed("X", X, on)), dtype)
                if rows is not None and X.shape[0] != rows[-1]:
                    raise ValueError(f"scatter: the layout cuts {rows[-1]} rows, the matrix has {X.shape[0]}")
                ids = node_ids(layout, X.shape[0])
        shape, kind = world.share((X.shape, X.dtype) if world.rank == 0 else ((0, 0), np.dtype(float)))
        ranges = world.gather_objects(layout.ranges(shape))
        if world.rank != 0:
            return DistDense(world.receive(on.empty(layout.local_shape(shape), kind), 0, "H"), layout, shape)
        blocks = (on.asarray(X[_rows(ids, rows, of(X)), slice(*cols)]) for rows, cols in ranges)
        own = next(blocks)
        own = own.copy() if type(own) is type(X) and _within(own, X) else own
        for rank, block in enumerate(blocks, 1):
            world.send(block, rank, "H")
        return DistDense(own, layout, shape)
    raise AssertionError("unreachable: nothing is suppressed")


def _checked(X: Any, dtype: Any) -> Any:
    """Return the matrix that rank 0 gave, C-contiguous; raise for anything else."""
    if X is None or sp.issparse(X):
        problem = "rank 0 must give an array" + ("" if X is None else ", such as X.toarray()")
        raise ArgumentError("X", type(X).__name__, problem)
    X = as_array(X)
    check_real("X", X.dtype)
    X = of(X).asarray(X, dtype)
    X = X[:, None] if X.ndim == 1 else X
    if X.ndim != 2:
        raise ValueError(f"scatter takes a matrix or a vector; got an array of shape {X.shape}")
    return X


def _within(part: Any, X: Any) -> bool:
    """Tell whether a part of a matrix shares its memory, not a copy."""
    start = of(X).address(X)
    return bool(start <= of(part).address(part) < start + X.nbytes)


def gather(Y: DistDense, root: int = 0) -> np.ndarray | None:
    """Gather the global matrix as a NumPy array on one rank, None elsewhere. Collective; for small results.

    Row i belongs to node i, whatever the order of the layout.

    Args:
        root: the rank that gets it. ArgumentError, on every rank: there is no such rank, or ranks disagree.
    """
    check_type("Y", Y, DistDense, "a DistDense, such as A @ H")
    compare("gather", Y=Y)
    on, world, primary = Y.grid.backend, Y.grid.world, Y.layout.primary
    world.agree({"root": root})
    if root not in range(world.size):
        raise ArgumentError("root", root, f"expected a rank, 0 to {world.size - 1}")
    with world.together():
        ids = node_ids(Y.layout, Y.shape[0]) if world.rank == root else None
    ranges = world.gather_objects(Y.layout.ranges(Y.shape) if primary else None)
    if world.rank != root:
        if primary:
            world.send(Y.block, root, "H")
        return None
    whole = np.empty(Y.shape, dtype=Y.dtype)
    for rank, held in enumerate(ranges):
        if held is not None:
            (top, bottom), (left, right) = held
            own = rank == root
            room = Y.block if own else on.empty((bottom - top, right - left), Y.dtype)
            block = on.to_host(room if own else world.receive(room, rank, "H"))
            whole[_rows(ids, (top, bottom), of(whole)), left:right] = block
    return whole


def by_node(Y: DistDense, rows: int) -> Iterator[np.ndarray | None]:
    """Give the global matrix as NumPy arrays of so many rows at a time, on rank 0; None elsewhere.

    Row i of all belongs to node i. Collective, and every rank takes all of them.
    """
    compare("rows by node", Y=Y)
    on, mpi = Y.grid.backend, Y.grid.world.mpi
    with Y.grid.world.together():
        ids = Y.layout.row_ids if Y.layout.primary else np.empty(0, np.int64)
        order = np.argsort(ids, kind="stable")
    ids = ids[order]
    for start in range(0, Y.shape[0], rows):
        stop = min(start + rows, Y.shape[0])
        mine = slice(*np.searchsorted(ids, (start, stop)).tolist())
        block = on.to_host(Y.block[on.asarray(order[mine])])
        blocks = mpi.gather((ids[mine] - start, Y.col_range, block))
        if blocks is None:
            yield None
            continue
        whole = np.empty((stop - start, Y.shape[1]), Y.dtype)
        for places, (left, right), block in blocks:
            whole[places, left:right] = block
        yield whole


def node_ids(layout: Layout[Grid], n: int) -> np.ndarray | None:
    """Return the nodes of n rows, in the order of the layout; None where node i has row i.

    ArgumentError: the order is one of more nodes, or fewer.
    """
    if layout.rows.order is None:
        return None
    ids = layout.rows.ids(0, n)
    if len(ids) != n or ids.max(initial=-1) >= n:
        raise ArgumentError("layout", layout.words(), f"orders other nodes than the {n} of the matrix")
    return ids


def _rows(ids: np.ndarray | None, rows: Range, on: Backend) -> Any:
    """Return the index that picks these rows of a layout from a matrix by node on this backend."""
    return slice(*rows) if ids is None else on.asarray(ids[slice(*rows)])


EXPECTED = "expected H[:, first:last:step], rising columns of all rows; H[:, 3:4] is one column"


def columns(H: Any, key: Any) -> Any:
    """Return ``H[:, first:last:step]`` as a new matrix, its rows cut as those of H. Collective.

    Where axes cut the columns of H, they cut those of the slice as evenly, so that columns move. Cost: the
    columns that this rank holds of the slice and not of H, in one all-to-allv.

    TypeError, on every rank: ``key`` is something else.
    """
    rows, cols = key if isinstance(key, tuple) and len(key) == 2 else (key, None)
    if rows != slice(None) or not isinstance(cols, slice) or (cols.step or 1) < 1:
        raise TypeError(f"H[{key}]: {EXPECTED}")
    first, last, step = cols.indices(H.shape[1])
    chosen = np.arange(first, last, step)
    compare(f"columns {first}:{last}:{step}", H=H)
    held = np.searchsorted(chosen, H.layout.cols.vector(H.grid, H.shape[1]))
    left, right = H.col_range
    own = chosen[slice(*np.searchsorted(chosen, (left, right)))]
    block = H.block[:, own[0] - left : own[-1] + 1 - left : step] if own.size else H.block[:, :0]
    axes, rows = H.layout.col_axes, H.layout.rows
    where = Layout(H.grid, rows, Cut(axes, held if axes else None))
    part = type(H)(H.grid.backend.xp.ascontiguousarray(block).copy(), where, (H.shape[0], chosen.size))
    return part.redistribute(Layout(H.grid, rows, Cut(axes))) if axes else part
