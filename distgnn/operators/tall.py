"""Algebra of tall matrices, n x f with few columns, and small ones that every rank has whole.

Products of rows need whole rows. Where axes of the grid cut the columns, the rows of a rank are first shared
among the ranks along these axes, in one all-to-all:

    rank (0, 0)    h00 h01 |            h00 h01 h02 h03
                   h10 h11 |        ->
    rank (0, 1)            | h02 h03
                           | h12 h13    h10 h11 h12 h13
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from distgnn import local
from distgnn.arrays.csr import Shape
from distgnn.comm.checks import compare
from distgnn.errors import UserError
from distgnn.layout import Cut, Layout, nested
from distgnn.operators.algebra import replicated, rows_alike


class Tall:
    """Products of tall matrices by small ones, and of tall ones over the rows."""

    __slots__ = ()
    block: Any
    layout: Layout[Any]
    shape: Shape

    @property
    def T(self) -> Transposed:
        """The transposed matrix, as the left side of ``H.T @ G``; nothing is moved."""
        return Transposed(self)

    def __matmul__(self, small: Any) -> Any:
        """Multiply by an array (f, k) that all ranks have: a matrix n x k, cut as this one. Collective.

        Ranks compare the array, which takes the dtype of the matrix.

        Cost: none where rows are whole. Where c ranks share them, (c-1)/c of the words of this rank's blocks
        of the matrix and of the product, in two all-to-alls.

        Raises:
            ValueError: shapes that don't multiply, or a matrix without floats; TypeError: no array. On every
                rank.
        """
        return times(self, small)

    def qr(self: Any) -> tuple[Any, np.ndarray]:
        """Return Q, n x f with orthonormal columns and cut as H, and R, f x f on every rank: H = Q R.

        Cholesky-QR twice (Yamamoto et al., ETNA 44, 2015), in double precision, for columns of a condition up
        to about 1e7. Q has the dtype of H, float64 if H has no floats. R is upper triangular with a positive
        diagonal, float64. Collective.

        Cost: twice that of ``H.T @ H`` in all-reduces; where c ranks share rows, (c-1)/c of the words of this
        rank's blocks of H and Q, in two all-to-alls.

        Raises:
            UserError: columns that are dependent, to rounding, or not finite, on every rank.
        """
        rows = by_rows(self)
        Q, R = cholesky_qr(rows, inner, times)
        Q = Q.astype(self.dtype) if self.dtype.kind == "f" else Q
        return Q if rows is self else Q.redistribute(self.layout), R


class Transposed:
    """``Hᵀ`` of a tall matrix: ``H.T @ G`` is a small array that every rank has."""

    __slots__ = ("T",)
    __array_ufunc__ = None

    def __init__(self, H: Any) -> None:
        self.T = H

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of Hᵀ."""
        return self.T.shape[::-1]

    def __repr__(self) -> str:
        return f"<transposed {self.T!r}>"

    def __matmul__(self, G: Any) -> np.ndarray:
        """Compute ``Hᵀ G``, f x k: a NumPy array, with the same bits on every rank. Collective.

        Cost: 2 f k (P-1)/P words in an all-reduce over all ranks, charged as ``reductions``. Where c ranks
        share rows, (c-1)/c of the words of this rank's blocks of H and G in an all-to-all each; ``H.T @ H``
        has one.

        Raises:
            ValueError: rows that are not cut alike, or two dtypes; TypeError: no matrix. On every rank.
        """
        return inner(self.T, G)


def whole_rows(layout: Layout[Any], n: int) -> Layout[Any]:
    """Return the layout with whole rows, those of a rank shared by the ranks that have its columns."""
    if not layout.col_axes:
        return layout
    rows, grid = layout.rows, layout.grid
    parts = nested(rows.vector(grid, n), grid.count(*layout.col_axes))
    return Layout(grid, Cut((*rows.axes, *layout.col_axes), parts, rows.order), Cut())


def by_rows(H: Any) -> Any:
    """Return the matrix with whole rows."""
    return H.redistribute(whole_rows(H.layout, H.shape[0])) if H.layout.col_axes else H


def times(H: Any, small: Any) -> Any:
    """Compute ``H @ small``, see :meth:`Tall.__matmul__`."""
    if isinstance(small, Tall):
        raise TypeError(f"{H!r} @ {small!r}: one must be small, as H.T @ G and H @ small have it")
    compare("H @ small", H=H)
    array = replicated(H, "the array", small)
    if array.ndim != 2 or array.shape[0] != H.shape[1]:
        raise ValueError(f"{H!r} @ an array of shape {array.shape}: expected ({H.shape[1]}, k)")
    _check_floats(H)
    rows = by_rows(H)
    product = local.gemm(rows.block, H.grid.backend.asarray(array, H.dtype))
    made = type(H)(product, rows.layout, (H.shape[0], array.shape[1]))
    return made if rows is H else made.redistribute(Layout(H.grid, H.layout.rows, Cut(H.layout.col_axes)))


def inner(H: Any, G: Any) -> np.ndarray:
    """Compute ``Hᵀ G``, see :meth:`Transposed.__matmul__`."""
    if not isinstance(G, type(H)):
        raise TypeError(f"{H!r}.T @ {type(G).__name__}: expected a DistDense; scatter makes one of an array")
    if not rows_alike(H, G) or H.layout.col_axes != G.layout.col_axes:
        raise ValueError(f"rows of {H!r} and {G!r} are not cut alike; redistribute one of them")
    if G.dtype != H.dtype:
        raise ValueError(f"{H!r}.T @ {G!r}: two dtypes; G.astype(H.dtype) has the first")
    _check_floats(H)
    compare("H.T @ G", H=H, G=G)
    left = by_rows(H)
    right = left if G is H else by_rows(G)
    on = H.grid.backend
    product = on.zeros((H.shape[1], G.shape[1]), H.dtype)
    if left.layout.primary:
        local.gemm(left.block, right.block, out=product, trans_a=True)
    return on.to_host(H.grid.world.allreduce(product, matrix="reductions"))


def _check_floats(H: Any) -> None:
    if H.dtype.kind != "f":
        raise ValueError(f"{H!r}: products are of floats; H.astype(np.float32) has them")


#: How far QᵀQ may be from the identity at each step. That of the first Q of dependent columns is 1 or more.
NEAR = (np.inf, 0.5)


def cholesky_qr(
    H: Any, inner: Callable[[Any, Any], np.ndarray], times: Callable[[Any, np.ndarray], Any]
) -> tuple[Any, np.ndarray]:
    """Return Q, n x f, and R, f x f, both float64; see :meth:`~distgnn.operators.tall.Tall.qr`.

    The columns of the first Q are orthogonal to about κ² ε, where κ is the condition of H; those of the
    second to ε.

    Args:
        inner, times: the products ``Hᵀ G`` and ``H small`` of tall matrices.
    """
    n, f = H.shape
    if f > n:
        raise UserError(f"qr of {H!r}: more columns than rows are dependent")
    Q, R = H.astype(np.float64), np.eye(f)
    for near in NEAR:
        gram = inner(Q, Q)
        with H.grid.world.together():
            if not np.linalg.norm(gram - np.eye(f)) < near:
                raise _dependent(H)
            try:
                R_k = np.linalg.cholesky(gram).T
            except np.linalg.LinAlgError:
                raise _dependent(H) from None
            inverse = solve_triangular(R_k, np.eye(f))
        Q, R = times(Q, inverse), R_k @ R
    return Q, R


def _dependent(H: Any) -> UserError:
    return UserError(f"qr of {H!r}: its columns are dependent, to rounding, or not finite")
