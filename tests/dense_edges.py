"""Operators on the stored entries of a matrix, and products over semirings, on dense arrays."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp


class DenseEdges:
    """Operators on stored entries, on dense arrays: entries are (n, m, heads), 0 where nothing is stored."""

    def __init__(self, A: sp.csr_array) -> None:
        self.stored = np.zeros(A.shape, bool)
        coo = A.tocoo()
        self.stored[coo.row, coo.col] = True

    def edges(self, numbers: np.ndarray) -> np.ndarray:
        return np.where(self.stored[:, :, None], numbers, 0)

    def sddmm(self, U: np.ndarray, V: np.ndarray, heads: int) -> np.ndarray:
        by_head = (X.reshape(len(X), heads, -1) for X in (U, V))
        return self.edges(np.einsum("ihc,jhc->ijh", *by_head))

    def multiply(self, E: np.ndarray, H: np.ndarray) -> np.ndarray:
        product = np.einsum("ijh,jhc->ihc", E, H.reshape(len(H), E.shape[2], -1))
        return product.reshape(len(E), H.shape[1])

    def softmax(self, E: np.ndarray) -> np.ndarray:
        stored = self.stored[:, :, None]
        top = np.where(stored, E, -np.inf).max(axis=1, initial=-np.inf, keepdims=True)
        powers = np.exp(np.where(stored, E - np.where(np.isfinite(top), top, 0), -np.inf))
        sums = powers.sum(axis=1, keepdims=True)
        return powers / np.where(sums > 0, sums, 1)


class DenseSemiring:
    """A product over a semiring, on dense arrays: row by row, in the order of the nodes."""

    def __init__(self, A: sp.csr_array, H: np.ndarray, reduce: str, combine: str) -> None:
        (m, n), f = A.shape, H.shape[1]
        self.H, self.counts, whole = H, np.diff(A.indptr), A.toarray()
        self.nodes = np.full((m, f), -1)
        self.weights = np.ones((m, n)) if combine != "times" else whole  # of the gradient
        self.stored = np.zeros((m, n), bool)
        identity = {"max": -np.inf, "min": np.inf}.get(reduce, 0) if combine == "plus" else 0
        self.product = np.full((m, f), identity, H.dtype)
        for i in range(m):
            columns = np.sort(A.indices[A.indptr[i] : A.indptr[i + 1]])
            self.stored[i, columns] = True
            values = whole[i, columns, None]
            with np.errstate(invalid="ignore"):
                made = {"times": values * H[columns], "plus": values + H[columns]}.get(combine, H[columns])
            if not len(columns):
                continue
            if reduce in ("max", "min"):  # the first NaN, or the first of equals
                at = made.argmax(axis=0) if reduce == "max" else made.argmin(axis=0)
                self.nodes[i], self.product[i] = columns[at], made[at, np.arange(f)]
            else:
                self.product[i] = made.sum(axis=0) / (len(columns) if reduce == "mean" else 1)
        self.reduce = reduce

    def back(self, G: np.ndarray) -> np.ndarray:
        F = np.zeros(self.H.shape)
        if self.reduce in ("sum", "mean"):
            share = G / np.maximum(self.counts, 1)[:, None] if self.reduce == "mean" else G
            return (self.weights * self.stored).T @ share
        for i, k in np.argwhere(self.nodes >= 0):
            F[self.nodes[i, k], k] += self.weights[i, self.nodes[i, k]] * G[i, k]
        return F
