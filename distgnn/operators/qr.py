"""QR of tall matrices by two Cholesky factorisations (Yamamoto et al., ETNA 44, 2015)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from distgnn.errors import UserError

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
