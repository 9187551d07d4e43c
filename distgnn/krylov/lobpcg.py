"""LOBPCG: eigenvectors by conjugate gradients on blocks of vectors."""

from __future__ import annotations

import warnings

import numpy as np

from distgnn.krylov.vectors import Apply, check_square, dots, from_first, own, product, tall, times
from distgnn.operators.base import Operator
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.tall import inner, whole_rows


def lobpcg(
    A: Operator, X: DistDense, M: Operator | Apply | None = None, *, tol: float | None = None,
    maxiter: int | None = None, largest: bool = True,
) -> tuple[np.ndarray, DistDense]:  # fmt: skip
    """Find as many of the largest or smallest eigenvalues of a symmetric A as X has columns. Collective.

    Locally optimal block preconditioned conjugate gradients (Knyazev, SIAM J. Sci. Comput. 23, 2001), on a
    basis that is kept orthonormal (Duersch, Shao, Yang and Gu, SIAM J. Sci. Comput. 40, 2018).

    Args:
        X: approximate eigenvectors, n x k, cut in any way, of full rank.
        M: an approximate inverse of A, for the smallest eigenvalues, as of :func:`cg`.
        tol: all residuals ``|A v - w v|`` must be smaller; default: n sqrt(eps) of the dtype.
        maxiter: the most iterations, by default 20.
        largest: False: the smallest.

    Returns:
        The eigenvalues (k,), the largest first, or the smallest; and their eigenvectors, cut as X.

    Cost: a product of k columns, and another one in each iteration, of the columns that have not converged.
    Beside it about 16 k² words in all-reduces, and where A cuts columns, those of vectors that go to whole
    rows and back.

    Raises:
        ValueError, UserError: operands that don't fit, dependent columns; on every rank.

    Warns:
        UserWarning: residuals after ``maxiter`` iterations, as SciPy does.
    """
    check_square(A)
    rows = whole_rows(A.input_layout, A.shape[0])
    apply, precondition = product(A, rows), None if M is None else product(A, rows, M)
    start = tall(A, X, "X")
    V, k = recut(start, rows).qr()[0], X.shape[1]
    if tol is None:
        tol = float(A.shape[0] * np.sqrt(np.finfo(A.dtype).eps))
    values, V, _, AV, _ = _best_of([V], [apply(V)], k, largest)
    P: list[DistDense] = []
    AP: list[DistDense] = []
    for iteration in range(1 + (maxiter := 20 if maxiter is None else maxiter)):
        R = V.like(AV.block - own(V, values) * V.block)
        norms = np.sqrt(dots((R, R))[0])
        if (norms < tol).all() or iteration == maxiter:
            break
        active = _taken(R, np.flatnonzero(~(norms < tol)))
        W = _orthonormal(active if precondition is None else precondition(active), [V, *P])
        if W.shape[1] == 0:
            break
        values, V, new, AV, A_new = _best_of([V, *P, W], [AV, *AP, apply(W)], k, largest)
        P, AP = ([new], [A_new]) if new.shape[1] else ([], [])
    if not (norms < tol).all():
        problem = f"not reaching the requested tolerance {tol}."
        warnings.warn(f"Exited at iteration {iteration} with accuracies \n{norms}\n{problem}", stacklevel=2)
    return values, recut(V, start.layout)


def _best_of(
    basis: list[DistDense], images: list[DistDense], k: int, largest: bool
) -> tuple[np.ndarray, DistDense, DistDense, DistDense, DistDense]:  # fmt: skip
    """Return the best k Ritz values and vectors V in an orthonormal basis, directions P, and A V and A P.

    P are what V has of the basis beside its first k vectors, orthonormal and orthogonal to V.
    """
    S, AS = _joined(basis), _joined(images)
    T = inner(S, AS).astype(np.float64)

    def solve() -> np.ndarray:
        theta, C = np.linalg.eigh((T + T.T) / 2)
        best = slice(None, -k - 1, -1) if largest else slice(k)
        C = C[:, best]
        rest = np.where(np.arange(len(C))[:, None] < k, 0, C)
        for _ in range(2):
            left, sizes, _V = np.linalg.svd(rest - C @ (C.T @ rest), full_matrices=False)
            rest = left * (sizes > 1e-8)
        return np.vstack([np.hstack([theta[best], np.zeros(k)]), np.hstack([C, rest])])

    theta, C = np.split(from_first(S.grid, (1 + S.shape[1], 2 * k), solve), [1])
    C, P = C[:, :k], C[:, k:][:, C[:, k:].any(axis=0)]
    return theta[0, :k], *(times(M, small) for M in (S, AS) for small in (C, P))  # type: ignore[return-value]


def _orthonormal(W: DistDense, basis: list[DistDense]) -> DistDense:
    """Return an orthonormal basis of what W adds to others, of fewer columns where it adds less.

    By eigenvalues of its Gram matrix (Stathopoulos and Wu, SIAM J. Sci. Comput. 23, 2002), twice.
    """
    for _ in range(2):
        for Q in basis:
            W = W.like(W.block - times(Q, inner(Q, W)).block)
        gram, k = inner(W, W).astype(np.float64), W.shape[1]
        least = 100 * max(k, 1) * np.finfo(W.dtype).eps

        def solve(gram: np.ndarray = gram, least: float = least) -> np.ndarray:
            sizes = np.sqrt(np.diag(gram))
            scale = np.divide(1, sizes, out=np.zeros_like(sizes), where=sizes > 0)
            theta, U = np.linalg.eigh(scale[:, None] * gram * scale)
            kept = theta > least
            return scale[:, None] * U * np.where(kept, np.where(kept, theta, 1) ** -0.5, 0)

        made = from_first(W.grid, (k, k), solve)
        W = times(W, made[:, made.any(axis=0)])
    return W


def _joined(parts: list[DistDense]) -> DistDense:
    """Set matrices with whole rows side by side."""
    H, width = parts[0], sum(part.shape[1] for part in parts)
    block = H.grid.backend.xp.concatenate([part.block for part in parts], axis=1)
    return DistDense(block, H.layout, (H.shape[0], width))


def _taken(H: DistDense, columns: np.ndarray) -> DistDense:
    """Take columns of a matrix with whole rows."""
    on = H.grid.backend
    block = on.xp.ascontiguousarray(H.block[:, on.asarray(columns)])
    return DistDense(block, H.layout, (H.shape[0], columns.size))
