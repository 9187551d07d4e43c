"""The dot test of an operator: whether ``A.T`` is the adjoint of ``A``."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.operators.filled import random


def dottest(
    A: Any, columns: int = 1, *, rtol: float | None = None, seed: int = 0, raiseerror: bool = True
) -> bool:
    """Compare ``<A u, v>`` and ``<u, A.T v>`` of random u and v, as PyLops' ``dottest`` does. Collective.

    Examples:
        >>> dottest(A - 2 * I)  # doctest: +SKIP
        True

    Args:
        A: any operator.
        columns: of u and v.
        rtol: the difference that is allowed, times ``|A u| |v| + |u| |A.T v|``; default: 1e-10 in double
            precision and 1e-4 in single. Messages of 16 bits need more.
        seed: of u and v, uniform in [-1, 1).

    Returns:
        True, or False without ``raiseerror``. A number that is not finite is no equal one.

    Raises:
        ValueError: the two differ; on every rank.
    """
    if rtol is None:
        rtol = 1e-10 if A.dtype == np.float64 else 1e-4
    m, n = A.shape
    u = 2 * random((n, columns), A.input_layout, A.dtype, seed=seed) - 1
    v = 2 * random((m, columns), A.output_layout, A.dtype, seed=seed + 1) - 1
    Au, Atv = A @ u, A.T @ v
    left, right = Au.dot(v), u.dot(Atv)
    passed = bool(abs(left - right) <= rtol * (Au.norm() * v.norm() + u.norm() * Atv.norm()))
    if raiseerror and not passed:
        products = f"<A u, v> = {left:.16g}, <u, A.T v> = {right:.16g}"
        raise ValueError(f"{A!r}: A.T is not its adjoint: {products}")
    return passed
