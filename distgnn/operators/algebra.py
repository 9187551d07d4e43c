"""Algebra of single entries: dense matrices in expressions, and in NumPy's universal functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from distgnn.arrays.canonical import check_real
from distgnn.arrays.csr import Shape
from distgnn.layout import Cut, Layout

Array = Any
INSTEAD = "gather(H) gives one rank the whole matrix, H.block is what this rank holds"


class Algebra(NDArrayOperatorsMixin):
    """Expressions of matrices that are cut alike: ``H * G``, ``H / 2``, ``-H``, ``np.exp(H)``, ``H += G``.

    They take NumPy's universal functions of one result, and are computed where the blocks are. Beside a
    matrix H, n x f, an operand is

    - a matrix n x f that is cut as H is;
    - a matrix n x 1 whose rows are cut as those of H: a number for each row. Where axes cut the columns
      of H, it is copied along them first;
    - an array (f,) or (1, f), the same on all ranks, which compare it: a number for each column;
    - a number, the same on all ranks, which is not compared.

    Numbers and arrays take the dtype of H if that is a float; two matrices have the wider one, as in NumPy.

    Cost: none; for n x 1 beside columns that are cut, the n/rows words that a rank lacks.

    Raises:
        ValueError: operands that are not cut alike, or of other shapes; TypeError: others. On every rank.
    """

    __slots__ = ()
    __hash__ = object.__hash__  # == compares entries
    block: Array
    layout: Layout[Any]
    shape: Shape

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        if method != "__call__" or ufunc.signature or ufunc.nout != 1 or options:
            call = f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
            raise TypeError(f"{call} does not take a DistDense so; {INSTEAD}")
        matrices = [x for x in (*inputs, *(out or ())) if isinstance(x, Algebra)]
        H: Any = max(matrices, key=lambda x: x.shape[1])
        operands = [_operand(H, x) for x in inputs]
        compute = getattr(H.grid.backend.xp, ufunc.__name__)
        if out is None:
            return H.like(compute(*operands))
        compute(*operands, out=alike(H, out[0]))
        return out[0]

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"a DistDense is no NumPy array: {INSTEAD}")

    def __bool__(self) -> bool:
        raise ValueError("a matrix is neither true nor false; H.max() or H.min() of a comparison is")


def _operand(H: Any, x: Any) -> Any:
    """Return this rank's part of an operand of an expression in which H is the widest matrix."""
    if isinstance(x, Algebra):
        return _column(H, x) if x.shape[1] == 1 < H.shape[1] else alike(H, x)
    if np.ndim(x) == 0:
        x = x.item() if isinstance(x, (np.generic, np.ndarray)) else x
        if isinstance(x, (bool, int, float)):
            return x
    row = replicated(H, "the row", x)
    if row.shape not in ((H.shape[1],), (1, H.shape[1])):
        problem = f"expected shape ({H.shape[1]},), a number for each column; scatter cuts others"
        if row.shape == H.shape[:1]:
            problem += ", such as vectors of a number for each row"
        raise ValueError(f"{H!r} and an array of shape {row.shape}: {problem}")
    own = row.reshape(1, -1)[:, slice(*H.col_range)]
    return H.grid.backend.asarray(own, H.dtype if H.dtype.kind == "f" else None)


def alike(H: Any, G: Any) -> Array:
    """Return the block of G. TypeError: G is no matrix. ValueError: G is not cut like H."""
    if not isinstance(G, Algebra):
        raise TypeError(f"{H!r} does not fit into {type(G).__name__}; {INSTEAD}")
    if G.shape != H.shape or not G.layout.same(H.layout, H.shape):
        raise ValueError(f"{H!r} and {G!r} are not cut alike; redistribute cuts one of equal shape so")
    return G.block


def _column(H: Any, column: Any) -> Array:
    """Return this rank's rows of a matrix n x 1. ValueError: they are not cut like those of H."""
    cut, rows = column.layout, H.layout.rows
    if not rows_alike(H, column):
        raise ValueError(f"rows of {H!r} and {column!r} are not cut alike; redistribute the second")
    return column.redistribute(Layout(H.grid, rows, Cut())).block if cut.col_axes else column.block


def rows_alike(H: Any, G: Any) -> bool:
    """Return True if two matrices have as many rows, cut alike on one grid."""
    same = G.grid is H.grid and G.shape[0] == H.shape[0]
    return same and H.layout.rows.same(G.layout.rows, H.grid, H.shape[0])


def replicated(H: Any, name: str, x: Any) -> np.ndarray:
    """Return on the host an array of real numbers that every rank gives beside H. Collective.

    Raises:
        DisagreementError: ranks give different arrays. TypeError, ArgumentError: no array, or not of real
            numbers. On every rank.
    """
    on = H.grid.backend
    array = on.to_host(x) if isinstance(x, (np.ndarray, list, tuple, on.xp.ndarray)) else None
    H.grid.world.agree({name: type(x).__name__ if array is None else array})
    if array is None:
        raise TypeError(f"{H!r} and {type(x).__name__}: expected a number, an array or a DistDense")
    check_real(name, array.dtype)
    return array
