"""Losses and metrics of the serial oracles: of logits, labels and the nodes that count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def softmax_cross_entropy(
    Z: np.ndarray, labels: np.ndarray, rows: np.ndarray, weights: Any = None
) -> tuple[float, np.ndarray]:
    """Compute the mean cross-entropy of softmax(Z) over the nodes `rows`, and its gradient.

    The gradient is by all of Z (n x C). With `weights`, each node's is multiplied by its own.
    """
    G = np.zeros_like(Z)
    if len(rows) == 0:
        return 0.0, G
    weights = np.ones(len(rows)) if weights is None else weights
    shifted = Z[rows] - Z[rows].max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = exponentials.sum(axis=1, keepdims=True)
    picked = np.arange(len(rows)), labels[rows]
    loss = np.mean(weights * (np.log(sums[:, 0].astype(np.float64)) - shifted[picked]))
    by_logits = exponentials / sums
    by_logits[picked] -= 1
    G[rows] = by_logits * (weights / len(rows)).astype(Z.dtype)[:, None]
    return float(loss), G


def binary_cross_entropy(
    Z: np.ndarray, labels: np.ndarray, rows: np.ndarray, weights: Any = None
) -> tuple[float, np.ndarray]:
    """Compute the mean binary cross-entropy over the nodes `rows` and classes, and its gradient by all of Z.

    That is -log σ(z) where the label is 1, -log(1 - σ(z)) where it is 0; the gradient is n x C. With
    `weights`, each node's is multiplied by its own.
    """
    G = np.zeros_like(Z)
    if len(rows) == 0:
        return 0.0, G
    weights = np.ones((len(rows), 1)) if weights is None else np.asarray(weights)[:, None]
    z, y = Z[rows], labels[rows]
    loss = np.mean(weights * np.logaddexp(0, np.where(y == 1, -z, z).astype(np.float64)))
    G[rows] = (np.exp(-np.logaddexp(0, -z)) - y) * (weights / z.size).astype(Z.dtype)
    return float(loss), G


def squared_error(
    Z: np.ndarray, labels: np.ndarray, rows: np.ndarray, weights: Any = None
) -> tuple[float, np.ndarray]:
    """Return the mean over the nodes `rows` and columns of (z - y)², and its gradient by all of Z (n x C).

    With `weights`, each node's is multiplied by its own.
    """
    G = np.zeros_like(Z)
    if len(rows) == 0:
        return 0.0, G
    weights = np.ones((len(rows), 1)) if weights is None else np.asarray(weights)[:, None]
    far = Z[rows] - labels.reshape(len(labels), -1)[rows]
    G[rows] = far * (2 * weights / far.size)
    return float(np.mean(weights * far.astype(np.float64) ** 2)), G


def loss_of(labels: np.ndarray) -> Callable[..., tuple[float, np.ndarray]]:
    """Return the loss for labels: one class of a node, a row of zeros and ones, or a row of floats."""
    if labels.dtype.kind == "f":
        return squared_error
    return softmax_cross_entropy if labels.ndim == 1 else binary_cross_entropy


def mean_absolute_error(Z: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> float:
    """Return the mean of |z - y| over the nodes `rows` and columns; NaN of none."""
    far = Z[rows].astype(np.float64) - labels.reshape(len(labels), -1)[rows]
    return float(np.mean(abs(far))) if len(rows) else float("nan")


def determination(Z: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> float:
    """Return R² over the nodes `rows`, the mean over columns; NaN of fewer than two nodes.

    A column of equal numbers counts 1 where these are predicted, else 0.
    """
    if len(rows) < 2:
        return float("nan")
    columns = []
    for z, y in zip(Z[rows].T, labels.reshape(len(labels), -1)[rows].T.astype(np.float64), strict=True):
        wrong, spread = np.sum((y - z) ** 2), np.sum((y - y.mean()) ** 2)
        columns.append(1 - wrong / spread if spread > 0 else float(wrong == 0))
    return float(np.mean(columns))


def micro_f1(Z: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> float:
    """Return 2 TP / (2 TP + FP + FN) over the nodes `rows` and all classes. A positive logit says 1.

    NaN of none.
    """
    said, there = Z[rows] > 0, labels[rows] == 1
    both = int(said.sum() + there.sum())
    return 2 * int((said & there).sum()) / max(both, 1) if len(rows) else float("nan")


def macro_rocauc(Z: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> float:
    """Return the mean over classes of the area under the ROC curve.

    The area is by ranks, of equal logits their mean (Mann and Whitney's U). Classes that all of the nodes
    `rows` have or none are left out; NaN where no class is left.
    """
    areas = []
    for z, y in zip(Z[rows].T, labels[rows].T == 1, strict=True):
        with_it = int(y.sum())
        if 0 < with_it < len(y):
            _, place, counts = np.unique(z, return_inverse=True, return_counts=True)
            ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
            least = with_it * (with_it + 1) / 2
            areas.append((ranks[y].sum() - least) / (with_it * (len(y) - with_it)))
    return float(np.mean(areas)) if areas else float("nan")


def accuracy(Z: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> float:
    """Return the share of the nodes `rows` whose largest logit, the first of equals, is their label's.

    NaN of none.
    """
    return float(np.mean(Z[rows].argmax(axis=1) == labels[rows])) if len(rows) else float("nan")


def labelled(labels: np.ndarray, split: np.ndarray, part: int) -> np.ndarray:
    """List the nodes of one part of the split that have a label."""
    first = labels.reshape(len(split), -1)[:, 0]
    known = first == first if labels.dtype.kind == "f" else first >= 0  # NaN is unequal to itself
    return np.flatnonzero((split == part) & known)


#: Metrics by name: a function of logits, labels and nodes, and its name in records.
METRICS = {"accuracy": (accuracy, "acc"), "f1": (micro_f1, "f1"), "rocauc": (macro_rocauc, "rocauc"),
           "r2": (determination, "r2"), "mae": (mean_absolute_error, "mae")}  # fmt: skip
