"""Conjugate gradients (Hestenes and Stiefel, J. Res. NBS 49, 1952)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from distgnn.krylov.vectors import Apply, check_square, dots, own, product, tall
from distgnn.operators.base import Operator
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.filled import zeros


def cg(
    A: Operator, b: DistDense, x0: DistDense | None = None, *, rtol: float = 1e-5, atol: float = 0.0,
    maxiter: int | None = None, M: Operator | Apply | None = None,
    callback: Callable[[DistDense], object] | None = None,
) -> tuple[DistDense, int]:  # fmt: skip
    """Solve ``A x = b`` by conjugate gradients, for a symmetric positive definite A. Collective.

    Columns of b are systems of their own, which share products; one that has converged stays as it is.

    Args:
        b: n x k, cut in any way; x0: the start, n x k; default: zeros.
        rtol, atol: a column has converged when ``|b - A x| < max(rtol |b|, atol)``.
        maxiter: the most iterations, by default 10 n.
        M: an approximate inverse of A, symmetric positive definite: an operator, or a function of
            residuals, cut as ``A.input_layout``.
        callback: is called with x after each iteration, on every rank.

    Returns:
        x, cut as ``A.input_layout``, and 0; or a number of iterations: ``maxiter`` where some column has not
        converged, negative where the method broke down in that one, as ``p.T A p`` was zero or not finite.

    Cost: of i iterations i products of k columns (with ``x0`` one more), and 2 i + 2 all-reduces of k words;
    with M, every second one has 2 k.

    Raises:
        ValueError: A is not square, or operands don't fit; on every rank.
    """
    check_square(A)
    layout = A.input_layout
    apply, precondition = product(A, layout), None if M is None else product(A, layout, M)
    b = recut(tall(A, b, "b"), layout)
    x = zeros(b.shape, layout, A.dtype) if x0 is None else recut(tall(A, x0, "x0"), layout).copy()
    r = b.copy() if x0 is None else b - apply(x)
    (squares,) = dots((b, b))
    limits, empty = np.maximum(rtol * np.sqrt(squares), atol), squares == 0
    if x0 is not None:  # A x = 0 has x = 0
        x, r = x * np.where(empty, 0.0, 1.0), r * np.where(empty, 0.0, 1.0)
    before, p = squares, None
    for iteration in range(maxiter := 10 * A.shape[0] if maxiter is None else maxiter):
        z = r if precondition is None else precondition(r)
        now, *others = dots((r, z)) if z is r else dots((r, z), (r, r))
        active = ~((np.sqrt(others[0] if others else now) < limits) | empty)
        if not active.any():
            return x, 0
        if p is None:
            p = z.copy()
        else:
            p.block *= own(p, _ratio(now, before, active))
            p.block += z.block
        q = apply(p)
        alpha = _ratio(now, dots((p, q))[0], active)
        if not np.isfinite(alpha).all():
            return x, -(iteration + 1)
        _add(x, alpha, p)
        _add(r, -alpha, q)
        before = now
        if callback is not None:
            callback(x)
    return x, maxiter


def _ratio(above: np.ndarray, below: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Divide where columns are active; 0 elsewhere."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(active, above / below, 0.0)


def _add(Y: DistDense, factors: np.ndarray, X: DistDense) -> None:
    Y.block += own(X, factors) * X.block
