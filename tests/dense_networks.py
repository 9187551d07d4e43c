"""GraphSAGE and graph attention in dense NumPy, from lists of edges: no code is shared with the engine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Edges = tuple[np.ndarray, np.ndarray, "np.ndarray | None"]  # sources, targets, weights
Parameters = Mapping[str, np.ndarray]


def adjacency(n: int, edges: Edges, self_loops: bool, normalize: str) -> tuple[np.ndarray, np.ndarray]:
    """Return where entries stand, bool (n, n), and their values; entry (i, j) is the edge from j to i.

    No edge is listed twice. A loop that is added has the weight 1.
    """
    sources, targets, weights = edges
    pattern, values = np.zeros((n, n), bool), np.zeros((n, n))
    pattern[targets, sources] = True
    values[targets, sources] = 1 if weights is None else weights
    if self_loops:
        added = np.flatnonzero(~np.diag(pattern))
        pattern[added, added], values[added, added] = True, 1
    sums = values.sum(axis=1)
    scale = np.array([1 / d if d > 0 else 0.0 for d in sums])
    if normalize == "row":
        values = scale[:, None] * values
    elif normalize == "gcn":
        values = np.sqrt(scale)[:, None] * values * np.sqrt(scale)[None, :]
    return pattern, values


def gcn(values: np.ndarray, X: np.ndarray, found: Parameters) -> np.ndarray:
    """Compute the logits of two layers of GCN."""
    H = np.maximum(values @ X @ found["W0"] + found["b0"], 0)
    return values @ H @ found["W1"] + found["b1"]


def sage(pattern: np.ndarray, X: np.ndarray, found: Parameters) -> np.ndarray:
    """Compute the logits of two layers of GraphSAGE, whose means are over entries off the diagonal."""
    others = pattern & ~np.eye(len(pattern), dtype=bool)
    M = others / np.maximum(others.sum(axis=1), 1)[:, None]
    H = np.maximum(np.hstack([X, M @ X]) @ found["W0"] + found["b0"], 0)
    return np.hstack([H, M @ H]) @ found["W1"] + found["b1"]


def attention(pattern: np.ndarray, X: np.ndarray, found: Parameters, heads: int, dynamic: bool) -> np.ndarray:
    """Compute the logits of two layers of GAT, or with `dynamic` of GATv2; the last layer has one head."""
    H = X
    for layer, number in enumerate((heads, 1)):
        parts = []
        columns = np.array_split(np.arange(found[f"W{layer}"].shape[1]), number)
        for some in columns:
            Y = H @ found[f"W{layer}"][:, some]
            if dynamic:
                own = H @ found[f"left{layer}"][:, some]
                e = _leaky(own[:, None] + Y[None]) @ found[f"attention{layer}"].reshape(-1)[some]
            else:
                left, right = (Y @ found[f"{end}{layer}"].reshape(-1)[some] for end in ("left", "right"))
                e = _leaky(left[:, None] + right[None])
            powers = np.where(pattern, np.exp(e), 0)
            P = powers / np.maximum(powers.sum(axis=1, keepdims=True), np.finfo(float).tiny)
            parts.append(P @ Y)
        H = np.hstack(parts) + found[f"b{layer}"]
        if layer == 0:
            H = np.where(H > 0, H, np.expm1(np.minimum(H, 0)))
    return H


def cross_entropy(Z: np.ndarray, labels: np.ndarray, nodes: np.ndarray) -> float:
    """Return the mean over these nodes of minus the logarithm of the softmax at the label."""
    Z = Z[nodes]
    return float(np.mean(np.log(np.exp(Z).sum(axis=1)) - Z[np.arange(len(Z)), labels[nodes]]))


def _leaky(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 0.2 * x)
