"""Lanczos iteration with thick restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence

from distgnn import local
from distgnn.errors import ArgumentError
from distgnn.krylov.vectors import check_square, dots, from_first, product, tall
from distgnn.operators.base import Operator
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.filled import random
from distgnn.operators.tall import whole_rows

#: What is largest for the eigenvalues that are wanted, by SciPy's names.
WHICH: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "LM": np.abs, "SM": lambda w: -np.abs(w), "LA": lambda w: w, "SA": lambda w: -w,
}  # fmt: skip


def lanczos(
    A: Operator, k: int = 6, which: str = "LM", *, v0: DistDense | None = None, ncv: int | None = None,
    maxiter: int | None = None, tol: float = 0.0,
) -> tuple[np.ndarray, DistDense]:  # fmt: skip
    """Find k eigenvalues of a symmetric A and their eigenvectors, as SciPy's ``eigsh`` does. Collective.

    Lanczos with full orthogonalisation and thick restarts (Wu and Simon, SIAM J. Matrix Anal. Appl. 22,
    2000).

    Args:
        k: fewer than n; which: "LM" or "SM", the largest or smallest by magnitude, "LA" or "SA", by value.
        v0: the start, n x 1; default: random, the same on every grid.
        ncv: vectors that are held at most, from k + 2 on; default: max(2 k + 1, 20), or n.
        maxiter: the most restarts, by default 10 n.
        tol: of a residual ``|A v - w v|``, relative to w; 0: the precision of the dtype.

    Returns:
        The eigenvalues (k,), rising, and the eigenvectors n x k, cut as ``A.input_layout``.

    Cost: for vector j of the basis, from 0 on, a product of one column, two all-reduces of j + 1 words and
    one of 1; where A cuts columns, those of vectors that go to whole rows and back; at a restart
    ncv (ncv + 1) words from rank 0.

    Raises:
        scipy.sparse.linalg.ArpackNoConvergence: not all converged; it has those that did. ValueError,
            ArgumentError: arguments that don't fit, or products that are not finite. On every rank.
    """
    check_square(A)
    n = A.shape[0]
    if which not in WHICH:
        raise ArgumentError("which", which, f"expected one of {', '.join(WHICH)}")
    if not 0 < k < n:
        raise ArgumentError("k", k, f"expected 1 to {n - 1}")
    ncv = min(max(2 * k + 1, 20), n) if ncv is None else ncv
    if not min(k + 2, n) <= ncv <= n:
        raise ArgumentError("ncv", ncv, f"expected {min(k + 2, n)} to {n}")
    start = random(n, A.input_layout, A.dtype) if v0 is None else tall(A, v0, "v0", 1)
    basis = _Basis(A, ncv, start)
    eps, limit = float(np.finfo(A.dtype).eps), 10 * n if maxiter is None else maxiter
    for restart in range(max(limit, 1)):
        basis.fill()
        theta, S = basis.ritz()
        order = np.argsort(-WHICH[which](theta), kind="stable")
        residuals = np.abs(basis.beta * S[-1])
        done = residuals <= max(tol, eps) * np.maximum(eps ** (2 / 3), np.abs(theta))
        best = np.sort(order[:k])
        if done[best].all():
            return theta[best], basis.vectors(S[:, best])
        converged = best[done[best]]
        if restart + 1 < limit:
            kept = order[: min(k + max(converged.size // 2, 1), ncv - 1)]
            basis.restart(theta[kept], S[:, kept])
    problem = f"No convergence ({restart + 1} restarts, {converged.size}/{k} eigenvectors converged)"
    raise ArpackNoConvergence(problem, theta[converged], basis.vectors(S[:, converged]))


class _Basis:
    """An orthonormal basis of a Krylov space, a vector in each row, and ``T = Vᵀ A V``.

    Attributes:
        size: vectors that it holds; w: the next one, orthogonal to them; beta: its norm before it was scaled.
    """

    def __init__(self, A: Operator, ncv: int, start: DistDense) -> None:
        self.layout = whole_rows(A.input_layout, A.shape[0])
        self.A, self.apply = A, product(A, self.layout)
        w = recut(start, self.layout).copy()
        self.V = A.grid.backend.empty((ncv, len(w.block)), A.dtype)
        self.T, self.size, self.w, self.drawn = np.zeros((ncv, ncv)), 0, w, 0
        if self._normalise(w) == 0:
            raise ArgumentError("v0", "zero", "expected a vector of another length")

    def fill(self) -> None:
        """Add vectors until it holds as many as it may."""
        for j in range(self.size, len(self.V)):
            self.V[j] = self.w.block[:, 0]
            self.size = j + 1
            w = self.apply(self.w).copy()
            column = self._orthogonalise(w)
            self.T[: j + 1, j] = self.T[j, : j + 1] = column
            self.beta = self._normalise(w, float(np.linalg.norm(column)))
            while self.beta == 0 and self.size < len(self.V) and not self._fresh(w):
                pass
            self.w = w

    def _fresh(self, w: DistDense) -> bool:
        """Draw another vector where the space is invariant; return whether it is independent."""
        self.drawn += 1
        drawn = random(w.shape, self.layout, w.dtype, seed=self.drawn)
        w.block[...] = drawn.block - 0.5
        self._orthogonalise(w)
        return self._normalise(w, 1.0) > 0

    def _orthogonalise(self, w: DistDense) -> np.ndarray:
        """Take the vectors out of w, twice; return its inner products with them."""
        V, on, total = self.V[: self.size], w.grid.backend, np.zeros(self.size)
        for _ in range(2):
            sums = on.zeros((self.size, 1), w.dtype)
            if w.layout.primary:
                local.gemm(V, w.block, out=sums)
            w.grid.world.allreduce(sums, matrix="reductions")
            w.block -= local.gemm(V, sums, trans_a=True)
            total += on.to_host(sums)[:, 0]
        return total

    def _normalise(self, w: DistDense, beside: float = 0.0) -> float:
        """Scale w to the length 1 and return its length; 0 if that is rounding of a length ``beside``."""
        length = float(np.sqrt(dots((w, w))[0, 0]))
        if not np.isfinite(length + beside):
            raise ValueError(f"{self.A!r}: a product, or the start, is not finite")
        if length <= 10 * np.finfo(w.dtype).eps * np.sqrt(w.shape[0]) * beside or length == 0:
            return 0.0
        w.block /= length
        return length

    def ritz(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the eigenvalues and eigenvectors of T."""
        m = len(self.T)
        made = from_first(self.A.grid, (m + 1, m), lambda: np.vstack(np.linalg.eigh(self.T)))
        return made[0], made[1:]

    def restart(self, theta: np.ndarray, S: np.ndarray) -> None:
        """Keep these Ritz vectors, and go on with ``w``."""
        self.size, T = theta.size, np.zeros_like(self.T)
        T[: theta.size, : theta.size] = np.diag(theta)
        self.T, kept = T, self._combined(S)
        self.V[: self.size] = kept

    def vectors(self, S: np.ndarray) -> DistDense:
        """Return Ritz vectors, cut as the input of A."""
        xp, layout = self.A.grid.backend.xp, self.A.input_layout
        block = xp.ascontiguousarray(self._combined(S).T)
        return recut(DistDense(block, self.layout, (self.A.shape[0], S.shape[1])), layout)

    def _combined(self, S: np.ndarray) -> Any:
        on = self.A.grid.backend
        return local.gemm(on.asarray(S, self.V.dtype), self.V, trans_a=True)
