"""Serial oracles: the same mathematics in plain NumPy and SciPy, independent of the distributed engine.

Tests and `train --check` compare with these, which share with the engine `rng`, how a caller's matrix is made
canonical, and an error. The model is Kipf and Welling's as in CAGNET section III and Plexus section 2.1:
Z_l = A H_{l-1} W_l + b_l and H_l = relu(Z_l), no activation after the last layer, dropout on every layer's
input, softmax cross-entropy averaged over the training nodes; or, with a row of zeros and ones for each node
as its labels, binary cross-entropy averaged over these nodes and the classes. With residual connections,
layers but the last that are as wide as their input add it to Z_l; with layer norm, H_l = relu(norm(Z_l)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import rng
from distgnn.arrays.canonical import canonical, check_real
from distgnn.nn.finite import NotFiniteError

TRAIN, VAL, TEST = 1, 2, 3


def spmm(A: sp.csr_array, H: np.ndarray) -> np.ndarray:
    """A H."""
    return np.asarray(A @ H)


def normalize(A: sp.csr_array, self_loops: bool = True, dtype: Any = np.float32) -> sp.csr_array:
    """D^-1/2 (A + I) D^-1/2 with D the row sums (Kipf and Welling); loops that are there are not doubled."""
    A = canonical(A, np.float64)
    if self_loops:
        A = A + sp.diags_array((A.diagonal() == 0).astype(np.float64))
    degrees = np.asarray(A.sum(axis=1)).ravel()
    scale = np.zeros_like(degrees)
    np.divide(1.0, np.sqrt(degrees, where=degrees > 0, out=scale), where=degrees > 0, out=scale)
    pattern = sp.coo_array(A)
    values = pattern.data * (scale[pattern.row] * scale[pattern.col])
    return sp.csr_array((values.astype(dtype), (pattern.row, pattern.col)), shape=A.shape)


def softmax_cross_entropy(Z: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean cross-entropy of softmax(Z) over the nodes `rows`, and its gradient by all of Z (n x C)."""
    G = np.zeros_like(Z)
    if len(rows) == 0:
        return 0.0, G
    shifted = Z[rows] - Z[rows].max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = exponentials.sum(axis=1, keepdims=True)
    picked = np.arange(len(rows)), labels[rows]
    loss = np.mean(np.log(sums[:, 0].astype(np.float64)) - shifted[picked])
    G[rows] = exponentials / sums / len(rows)
    G[rows, labels[rows]] -= 1 / len(rows)
    return float(loss), G


def binary_cross_entropy(Z: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean over the nodes `rows` and classes of -log σ(z) where the label is 1, -log(1 - σ(z)) where it is 0;
    and its gradient by all of Z (n x C)."""
    G = np.zeros_like(Z)
    if len(rows) == 0:
        return 0.0, G
    z, y = Z[rows], labels[rows]
    loss = np.mean(np.logaddexp(0, np.where(y == 1, -z, z).astype(np.float64)))
    G[rows] = (np.exp(-np.logaddexp(0, -z)) - y) / z.size
    return float(loss), G


def micro_f1(Z: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> float:
    """2 TP / (2 TP + FP + FN) over the nodes `rows` and all classes; a positive logit says 1. NaN of none."""
    said, there = Z[rows] > 0, labels[rows] == 1
    both = int(said.sum() + there.sum())
    return 2 * int((said & there).sum()) / max(both, 1) if len(rows) else float("nan")


def macro_rocauc(Z: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> float:
    """The mean over classes, but those that all of the nodes `rows` have or none, of the area under the ROC
    curve, by ranks, of equal logits their mean (Mann and Whitney's U); NaN where no class is left."""
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
    """Share of the nodes `rows` whose largest logit, the first of equals, is their label's; NaN of none."""
    return float(np.mean(Z[rows].argmax(axis=1) == labels[rows])) if len(rows) else float("nan")


def labelled(labels: np.ndarray, split: np.ndarray, part: int) -> np.ndarray:
    """The nodes of one part of the split that have a label."""
    return np.flatnonzero((split == part) & (labels.reshape(len(split), -1)[:, 0] >= 0))


#: Metrics by name: a function of logits, labels and nodes, and its name in records.
METRICS = {"accuracy": (accuracy, "acc"), "f1": (micro_f1, "f1"), "rocauc": (macro_rocauc, "rocauc")}


class GCNReference:
    """The network on one process.

    Args:
        A: the normalised adjacency matrix, n x n; row i gathers for node i.
        widths: feature width, hidden widths, classes: one more than there are layers.
        nodes: original id of every row (default: the rows are in original order).

    Attributes:
        weights, biases: one array per layer (biases empty without `bias`).
        gains, shifts: one array per layer but the last (empty without `layer_norm`).
    """

    def __init__(
        self, A: sp.csr_array, widths: Sequence[int], seed: int = 0, dropout: float = 0.0, bias: bool = False,
        dtype: Any = np.float32, nodes: np.ndarray | None = None, residual: bool = False,
        layer_norm: bool = False,
    ) -> None:  # fmt: skip
        self.A = canonical(A, dtype)
        self.widths = list(widths)
        self.layers, self.seed, self.dropout, self.dtype = len(widths) - 1, seed, dropout, np.dtype(dtype)
        self.nodes = np.arange(A.shape[0]) if nodes is None else np.asarray(nodes)
        shapes = list(pairwise(self.widths))
        self.weights = [
            rng.glorot(seed, layer, shape, np.arange(shape[0]), np.arange(shape[1]), self.dtype)
            for layer, shape in enumerate(shapes)
        ]
        self.biases = [np.zeros(shape[1], self.dtype) for shape in shapes] if bias else []
        hidden = self.widths[1:-1] if layer_norm else []
        self.gains = [np.ones(width, self.dtype) for width in hidden]
        self.shifts = [np.zeros(width, self.dtype) for width in hidden]
        self.residual = [
            residual and a == b and layer < self.layers - 1 for layer, (a, b) in enumerate(shapes)
        ]

    def mask(self, epoch: int, layer: int) -> np.ndarray:
        """What the input of a layer is multiplied with in an epoch of training: 0 or 1 / (1 - dropout)."""
        k = rng.key(self.seed, rng.DROPOUT, epoch, layer)
        keep = rng.keep_mask(k, self.nodes, np.arange(self.widths[layer]), 1 - self.dropout)
        return keep.astype(self.dtype) * self.dtype.type(1 / (1 - self.dropout))

    def forward(self, X: np.ndarray, epoch: int | None = None) -> np.ndarray:
        """The logits; with `epoch`, those of training in that epoch (with dropout)."""
        return self._forward(self._real(X), epoch)[-1]

    def _real(self, X: np.ndarray) -> np.ndarray:
        check_real("X", X.dtype)
        return X.astype(self.dtype)

    def _forward(self, X: np.ndarray, epoch: int | None) -> list[np.ndarray]:
        """T_1, Z_1, T_2, Z_2, ... with T_l = A H_{l-1}."""
        H, stages = X, []
        self.normal: list[tuple[np.ndarray, np.ndarray]] = []  # normalised rows, and what divided them
        for layer in range(self.layers):
            if epoch is not None and self.dropout > 0:
                H = H * self.mask(epoch, layer)
            T = spmm(self.A, H)
            Z = T @ self.weights[layer]
            if self.biases:
                Z = Z + self.biases[layer]
            if self.residual[layer]:
                Z = Z + H
            stages += [T, Z]
            H = np.maximum(self._norm(layer, Z), 0)
        return stages

    def _norm(self, layer: int, Z: np.ndarray) -> np.ndarray:
        """Layer norm (Ba, Kiros, Hinton, arXiv 1607.06450, equation 4), where there is one."""
        if layer >= len(self.gains):
            return Z
        deviation = np.sqrt(Z.var(axis=1, keepdims=True) + 1e-5)
        self.normal.append(((Z - Z.mean(axis=1, keepdims=True)) / deviation, deviation))
        return self.normal[-1][0] * self.gains[layer] + self.shifts[layer]

    def _norm_back(self, layer: int, G: np.ndarray) -> np.ndarray:
        """The gradient by what was normalised; those by gain and shift are put into `norm_gradients`."""
        N, deviation = self.normal[layer]
        self.norm_gradients[layer] = (G * N).sum(axis=0), G.sum(axis=0)
        G = G * self.gains[layer]
        projected = G.mean(axis=1, keepdims=True) + N * (G * N).mean(axis=1, keepdims=True)
        return (G - projected) / deviation

    def gradients(
        self, X: np.ndarray, labels: np.ndarray, rows: np.ndarray, epoch: int | None = None,
        features: bool = True,
    ) -> tuple[float, list[np.ndarray], list[np.ndarray], np.ndarray | None]:  # fmt: skip
        """Loss over the nodes `rows` and its gradients: by weights, biases and, if asked, features.
        `norm_gradients` has those by (gain, shift), by layer.
        """
        self.norm_gradients: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        stages = self._forward(self._real(X), epoch)
        cross_entropy = softmax_cross_entropy if labels.ndim == 1 else binary_cross_entropy
        loss, G = cross_entropy(stages[-1], labels, rows)
        weights: list[np.ndarray] = []
        biases: list[np.ndarray] = []
        for layer in reversed(range(self.layers)):
            weights.insert(0, stages[2 * layer].T @ G)
            biases.insert(0, G.sum(axis=0))
            if layer == 0 and not features:
                return loss, weights, biases if self.biases else [], None
            skipped = G if self.residual[layer] else 0
            G = spmm(sp.csr_array(self.A.T), G @ self.weights[layer].T) + skipped
            if epoch is not None and self.dropout > 0:
                G = G * self.mask(epoch, layer)
            if layer > 0 and self.gains:
                N = self.normal[layer - 1][0] * self.gains[layer - 1] + self.shifts[layer - 1]
                G = self._norm_back(layer - 1, G * (N > 0))
            elif layer > 0:
                G = G * (stages[2 * layer - 1] > 0)
        return loss, weights, biases if self.biases else [], G

    def scores(
        self, X: np.ndarray, labels: np.ndarray, split: np.ndarray, metric: str | None = None
    ) -> dict[str, float]:  # fmt: skip
        """train_acc, val_acc and test_acc of the present weights, without dropout, or of another metric;
        default: by the labels."""
        Z, parts = self.forward(X), {"train": TRAIN, "val": VAL, "test": TEST}
        measure, short = METRICS[metric or ("accuracy" if labels.ndim == 1 else "f1")]
        found = {name: measure(Z, labels, labelled(labels, split, part)) for name, part in parts.items()}
        return {f"{name}_{short}": value for name, value in found.items()}

    def train(
        self, X: np.ndarray, labels: np.ndarray, split: np.ndarray, epochs: int, optimizer: str = "adam",
        lr: float = 0.01, weight_decay: float | Sequence[float] = 0.0, momentum: float = 0.0,
        train_features: bool = False, evaluate: bool = True, metric: str | None = None,
        clip: float | None = None, schedule: Callable[[int], float] = lambda epoch: 1.0,
    ) -> Iterator[dict[str, float]]:  # fmt: skip
        """Train full-graph, yielding per epoch its number (from 1), loss, and scores before its update.

        `self.features` holds the features. Of several weight decays, each layer has one; the last repeats.
        clip: the norm to which larger gradients are scaled; schedule: the factor of the step size by epoch.
        NotFiniteError: a loss or a parameter is not finite; it names epoch and layer.
        """
        self.features, rows = self._real(X), labelled(labels, split, TRAIN)
        self.state: dict[str, Any] = {}
        decays = np.atleast_1d(weight_decay).tolist()
        decays += decays[-1:] * self.layers
        rule = {"sgd": self._sgd, "adam": self._adam, "adamw": self._adamw}[optimizer]

        def update(name: str, w: np.ndarray, g: Any, decay: float, layer: int) -> None:
            with np.errstate(all="ignore"):
                rule(name, w, scale * g, epoch, lr * schedule(epoch), decay, momentum)
            if not np.isfinite(w).all():
                raise NotFiniteError(f"{name} is not finite after the update", layer, epoch)

        for epoch in range(1, epochs + 1):
            with np.errstate(all="ignore"):
                found = self.scores(self.features, labels, split, metric) if evaluate else {}
                loss, dW, db, dX = self.gradients(self.features, labels, rows, epoch, train_features)
            if not np.isfinite(loss):
                raise self._not_finite(loss, epoch)
            yield {"epoch": epoch, **found, "loss": loss}
            scale = self._scale(clip, [*dW, *db, *([dX] if train_features else [])])
            for layer in range(self.layers):
                update(f"W{layer}", self.weights[layer], dW[layer], decays[layer], layer)
                if self.biases:
                    update(f"b{layer}", self.biases[layer], db[layer], 0.0, layer)
                for name, of, place in (("g", self.gains, 0), ("s", self.shifts, 1)):
                    if layer < len(of):
                        update(f"{name}{layer}", of[layer], self.norm_gradients[layer][place], 0.0, layer)
            if train_features:
                update("X", self.features, dX, 0.0, 0)

    def _scale(self, clip: float | None, gradients: Sequence[Any]) -> float:
        """What scales these gradients and those of layer norm, as one vector, down to a norm of `clip`."""
        every = [*gradients, *(g for pair in self.norm_gradients.values() for g in pair)]
        norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in every))
        return 1.0 if clip is None or norm <= clip else clip / norm

    def _not_finite(self, loss: float, epoch: int) -> NotFiniteError:
        """The error that names the first layer with such an output, or the last one."""
        with np.errstate(all="ignore"):
            outputs = self._forward(self.features, epoch)[1::2]
        bad = [layer for layer, Z in enumerate(outputs) if not np.isfinite(Z).all()]
        return NotFiniteError(f"the loss is {loss}", (bad or [self.layers - 1])[0], epoch)

    # Updates of one array w, in place, in step t from its gradient g.

    def _sgd(self, name: str, w: Any, g: Any, t: int, lr: float, decay: float, momentum: float) -> None:
        g = g + decay * w
        v = self.state[name] = momentum * self.state.get(name, 0) + g
        w -= lr * v

    def _adam(self, name: str, w: Any, g: Any, t: int, lr: float, decay: float, _: float) -> None:
        self._moments(name, w, g + decay * w, t, lr)

    def _adamw(self, name: str, w: Any, g: Any, t: int, lr: float, decay: float, _: float) -> None:
        w *= 1 - lr * decay
        self._moments(name, w, g, t, lr)

    def _moments(self, name: str, w: Any, g: Any, t: int, lr: float) -> None:
        """Kingma and Ba: Adam, ICLR 2015, Algorithm 1, with beta = (0.9, 0.999) and epsilon = 1e-8."""
        m, v = self.state.get(name, (0, 0))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        self.state[name] = m, v
        w -= lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
