"""Serial oracles of GAT and GATv2, in plain NumPy and SciPy, a head after the other.

Of each head, with Y = H W, softmax over the stored entries (i, j) of each row and masks of dropout D:

    GAT (Veličković et al., ICLR 2018)     e_ij = leaky_relu(left · Y_i + right · Y_j)
    GATv2 (Brody et al., ICLR 2022)        e_ij = attention · leaky_relu((H left)_i + Y_j)

Heads stand beside each other; of several in the last layer Z is the mean. The rows of a sampled matrix are
the first of its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import rng
from oracle import GCNReference

SLOPE = 0.2


class GATReference(GCNReference):
    """GAT on one process; of A only the pattern counts.

    Args:
        heads: of each layer, or of all but the last, which has one then; attention_dropout: in training.
        others: as of :class:`GCNReference`.

    Attributes:
        added: trained arrays beside weights and biases, by kind one for each layer; added_gradients: those of
            the latest `gradients`, by name.
    """

    def __init__(
        self, A: sp.csr_array, widths: Sequence[int], *, heads: int | Sequence[int] = 8,
        attention_dropout: float = 0.0, activation: str = "elu", **options: Any,
    ) -> None:  # fmt: skip
        hidden = len(widths) - 2
        self.heads = [heads] * hidden + [1] if isinstance(heads, int) else list(heads)
        self.rate = attention_dropout
        super().__init__(A, widths, activation=activation, **options)
        self.added = self._draw()

    def weight_shapes(self) -> list[tuple[int, int]]:
        last = self.layers - 1
        widths = enumerate(pairwise(self.widths))
        return [(a, b * (self.heads[layer] if layer == last else 1)) for layer, (a, b) in widths]

    def _draw(self) -> dict[str, list[np.ndarray]]:
        """Draw the arrays of each layer beside its weights."""
        return {kind: [self._vector(layer, k) for layer in range(self.layers)]
                for k, kind in enumerate(("left", "right"))}  # fmt: skip

    def _vector(self, layer: int, number: int) -> np.ndarray:
        columns = self.weights[layer].shape[1]
        shape = columns // self.heads[layer], 1
        places = np.arange(columns), np.array([number])
        return rng.glorot(self.seed, -1 - layer, shape, *places, self.dtype)

    def parameters(self, features: bool = False) -> dict[str, np.ndarray]:
        pairs = ((kind, enumerate(arrays)) for kind, arrays in self.added.items())
        added = {f"{kind}{layer}": array for kind, numbered in pairs for layer, array in numbered}
        return super().parameters(features) | added

    def named_gradients(self, *given: Any, **options: Any) -> tuple[float, dict[str, Any]]:
        self.added_gradients: dict[str, np.ndarray] = {}
        loss, named = super().named_gradients(*given, **options)
        return loss, named | self.added_gradients

    # -- a layer ---------------------------------------------------------------------------------------------

    def _layer(
        self, layer: int, A: sp.csr_array, H: np.ndarray, epoch: int | None, nodes: np.ndarray
    ) -> tuple[np.ndarray, Any]:
        rows, columns = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)), A.indices
        masks = self._masks(layer, epoch, nodes[rows], nodes[columns])
        Y = H @ self.weights[layer]
        parts, kept = [], []
        for k, place in enumerate(self._places(layer)):
            ends, e = self._scores(layer, place, H[: A.shape[0]], Y, rows, columns)
            P = _softmax(e, rows, A.shape[0])
            D = P * masks[:, k]
            parts.append(_matrix(A, D) @ Y[:, place])
            kept.append((ends, P, D))
        return self._join(layer, parts), (H, Y, rows, columns, masks, kept)

    def _layer_back(
        self, layer: int, A: sp.csr_array, saved: Any, G: np.ndarray, below: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        H, Y, rows, columns, masks, kept = saved
        self._start(layer)
        dY, dH = np.zeros_like(Y), np.zeros_like(H)
        for k, (place, (ends, P, D)) in enumerate(zip(self._places(layer), kept, strict=True)):
            G_k = self._part(layer, G, k)
            dP = (G_k[rows] * Y[columns, place]).sum(axis=1) * masks[:, k]
            d = P * (dP - _sums(P * dP, rows, len(G))[rows])
            dY[:, place] += _matrix(A, D).T @ G_k
            self._scores_back(layer, place, ends, d, (rows, columns), (H, Y), (dH, dY))
        dH += dY @ self.weights[layer].T
        return H.T @ dY, dH

    def _scores(
        self, layer: int, place: slice, own: np.ndarray, Y: np.ndarray, rows: np.ndarray, columns: np.ndarray
    ) -> tuple[Any, np.ndarray]:
        """Return what the way back needs, and a head's scores."""
        left, right = (self.added[kind][layer][place, 0] for kind in ("left", "right"))
        x = (Y[:, place] @ left)[rows] + (Y[:, place] @ right)[columns]
        return x, np.where(x > 0, x, self.dtype.type(SLOPE) * x)

    def _scores_back(
        self, layer: int, place: slice, x: Any, d: np.ndarray, entries: Any, given: Any, gradients: Any
    ) -> None:
        """Add to the gradients of H and Y, and of the head's arrays, what comes from those of its scores."""
        (_, Y), (_, dY), y = given, gradients, given[1][:, place]
        d = d * np.where(x > 0, 1, SLOPE).astype(d.dtype)
        for kind, ends in zip(("left", "right"), entries, strict=True):
            of_nodes = _sums(d, ends, len(Y))
            self.added_gradients[f"{kind}{layer}"][place, 0] += y.T @ of_nodes
            dY[:, place] += np.outer(of_nodes, self.added[kind][layer][place, 0])

    # -- parts of it -----------------------------------------------------------------------------------------

    def _start(self, layer: int) -> None:
        for kind, arrays in self.added.items():
            self.added_gradients[f"{kind}{layer}"] = np.zeros_like(arrays[layer])

    def _places(self, layer: int) -> list[slice]:
        """List the columns of each head."""
        width = self.weights[layer].shape[1] // self.heads[layer]
        return [slice(k * width, (k + 1) * width) for k in range(self.heads[layer])]

    def _join(self, layer: int, parts: list[np.ndarray]) -> np.ndarray:
        return np.mean(parts, axis=0) if layer == self.layers - 1 else np.hstack(parts)

    def _part(self, layer: int, G: np.ndarray, head: int) -> np.ndarray:
        heads = self.dtype.type(self.heads[layer])
        return G / heads if layer == self.layers - 1 else G[:, self._places(layer)[head]]

    def _masks(self, layer: int, epoch: int | None, to: np.ndarray, source: np.ndarray) -> np.ndarray:
        """Return the factors of attention, (entries, heads)."""
        heads = self.heads[layer]
        if epoch is None or self.rate == 0:
            return np.ones((len(to), heads), self.dtype)
        names = (rng.ends(to)[0] + rng.ends(source)[1]).astype(np.int64)
        k = rng.key(self.seed, rng.ATTENTION, epoch, layer)
        keep = rng.keep_mask(k, names, np.arange(heads), 1 - self.rate)
        return keep * self.dtype.type(1 / (1 - self.rate))


class GATv2Reference(GATReference):
    """GATv2 on one process; see :class:`GATReference`."""

    def _draw(self) -> dict[str, list[np.ndarray]]:
        left = []
        for layer, W in enumerate(self.weights):
            places = np.arange(W.shape[0]), np.arange(W.shape[1])
            left.append(rng.glorot(self.seed, -65536 - layer, W.shape, *places, self.dtype))
        return {"left": left, "attention": [self._vector(layer, 0) for layer in range(self.layers)]}

    def _scores(
        self, layer: int, place: slice, own: np.ndarray, Y: np.ndarray, rows: np.ndarray, columns: np.ndarray
    ) -> tuple[Any, np.ndarray]:
        X = (own @ self.added["left"][layer][:, place])[rows] + Y[columns, place]
        positive = X > 0
        X *= np.where(positive, 1, SLOPE).astype(X.dtype)
        return (positive, X), X @ self.added["attention"][layer][place, 0]

    def _scores_back(
        self, layer: int, place: slice, ends: Any, d: np.ndarray, entries: Any, given: Any, gradients: Any
    ) -> None:
        (positive, X), (rows, columns), (H, Y), (dH, dY) = ends, entries, given, gradients
        left, a = self.added["left"][layer][:, place], self.added["attention"][layer][place, 0]
        self.added_gradients[f"attention{layer}"][place, 0] += d @ X
        dX = np.outer(d, a) * np.where(positive, 1, SLOPE).astype(d.dtype)
        of_rows, of_columns = (_gathered(ends, len(Y)) @ dX for ends in (rows, columns))
        self.added_gradients[f"left{layer}"][:, place] += H.T @ of_rows
        dH += of_rows @ left.T
        dY[:, place] += of_columns


def _matrix(A: sp.csr_array, values: np.ndarray) -> sp.csr_array:
    return sp.csr_array((values, A.indices, A.indptr), shape=A.shape)


def _gathered(ends: np.ndarray, n: int) -> sp.csr_array:
    """Return the matrix (n, entries) that sums entries by one of their ends."""
    places = ends, np.arange(len(ends))
    return sp.csr_array((np.ones(len(ends), np.float32), places), shape=(n, len(ends)))


def _sums(values: np.ndarray, ends: np.ndarray, n: int) -> np.ndarray:
    return np.bincount(ends, values, n).astype(values.dtype)


def _softmax(e: np.ndarray, rows: np.ndarray, n: int) -> np.ndarray:
    top = np.full(n, -np.inf, e.dtype)
    np.maximum.at(top, rows, e)
    powers = np.exp(e - top[rows])
    return powers / _sums(powers, rows, n)[rows]
