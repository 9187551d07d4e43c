"""Serial oracles: the same mathematics in plain NumPy and SciPy, independent of the distributed engine.

Tests compare the engine with these, which share with the engine `rng`, how a caller's matrix is made
canonical, and an error. The model is Kipf and Welling's as in CAGNET section III and Plexus section 2.1:
Z_l = A H_{l-1} W_l + b_l and H_l = relu(Z_l), no activation after the last layer, dropout on every layer's
input, softmax cross-entropy averaged over the training nodes; or, with a row of zeros and ones for each node
as its labels, binary cross-entropy averaged over these nodes and the classes; or, with a row of floats, the
squared difference averaged over nodes and columns. With residual connections,
layers but the last that are as wide as their input add it to Z_l; with layer norm, H_l = relu(norm(Z_l)).
ELU may take the place of ReLU.
GraphSAGE (Hamilton, Ying and Leskovec, NIPS 2017) has Z_l = [H_{l-1} | M H_{l-1}] W_l + b_l in its place, M
the means over neighbours. On a minibatch, every layer has a matrix of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import rng
from distgnn.arrays.canonical import as_matrix, canonical, check_real, value_type
from distgnn.nn.finite import NotFiniteError
from distgnn.split import SPLITS, TRAIN
from oracle_optim import ReferenceOptimizer
from oracle_scores import METRICS, labelled, loss_of

#: For each layer its matrix, and a number for each of its columns, on which dropout's masks depend.
Graphs = Sequence[tuple[sp.csr_array, np.ndarray]]


def spmm(A: sp.csr_array, H: np.ndarray) -> np.ndarray:
    """Multiply A H."""
    return np.asarray(A @ H)


def means(A: sp.csr_array, dtype: Any = None) -> sp.csr_array:
    """Divide the pattern of A by the numbers of entries of its rows, D: D^-1, means over them, 0 of none.

    Values are of `dtype`, by default as A promotes.
    """
    dtype = value_type(as_matrix(A).dtype, dtype)
    A = canonical(A, dtype)
    counts = np.diff(A.indptr)
    values = np.repeat(1 / np.maximum(counts, 1), counts).astype(dtype)
    return sp.csr_array((values, A.indices, A.indptr), shape=A.shape)


class GCNReference:
    """The network on one process.

    Args:
        A: the normalised adjacency matrix, n x n; row i gathers for node i.
        widths: feature width, hidden widths, classes: one more than there are layers.
        nodes: original id of every row (default: the rows are in original order).

    Attributes:
        weights, biases: one array per layer (biases empty without `bias`).
        gains, shifts: one array per layer but the last (empty without `layer_norm`).
        features: those that `train`, or who calls `epoch_gradients`, trains with.
    """

    gathered = 1  # matrices side by side that weights are multiplied by

    def __init__(
        self, A: sp.csr_array, widths: Sequence[int], seed: int = 0, dropout: float = 0.0, bias: bool = False,
        dtype: Any = np.float32, nodes: np.ndarray | None = None, residual: bool = False,
        layer_norm: bool = False, activation: str = "relu",
    ) -> None:  # fmt: skip
        self.widths, self.elu = list(widths), activation == "elu"
        self.layers, self.seed, self.dropout, self.dtype = len(widths) - 1, seed, dropout, np.dtype(dtype)
        self.A = self.operator(canonical(A, dtype))
        self.nodes = np.arange(A.shape[0]) if nodes is None else np.asarray(nodes)
        self.weights = [
            rng.glorot(seed, layer, shape, np.arange(shape[0]), np.arange(shape[1]), self.dtype)
            for layer, shape in enumerate(self.weight_shapes())
        ]
        self.biases = [np.zeros(width, self.dtype) for width in self.widths[1:]] if bias else []
        hidden = self.widths[1:-1] if layer_norm else []
        self.gains = [np.ones(width, self.dtype) for width in hidden]
        self.shifts = [np.zeros(width, self.dtype) for width in hidden]
        equal = [a == b for a, b in pairwise(self.widths)]
        self.residual = [residual and same for same in equal[:-1]] + [False]
        self.features = np.empty((0, 0), self.dtype)

    def weight_shapes(self) -> list[tuple[int, int]]:
        """List the shapes of the weights."""
        return [(self.gathered * a, b) for a, b in pairwise(self.widths)]

    def operator(self, A: sp.csr_array) -> sp.csr_array:
        """Make the matrix that layers multiply by from that of the whole graph."""
        return A

    def block_operator(self, A: sp.csr_array) -> sp.csr_array:
        """Make the matrix that a layer multiplies by from a sampled one."""
        return canonical(A, self.dtype)

    def mask(self, epoch: int, layer: int, nodes: np.ndarray | None = None) -> np.ndarray:
        """Return the factors of a layer's input in an epoch of training: 0 or 1 / (1 - dropout)."""
        k, nodes = rng.key(self.seed, rng.DROPOUT, epoch, layer), self.nodes if nodes is None else nodes
        keep = rng.keep_mask(k, nodes, np.arange(self.widths[layer]), 1 - self.dropout)
        return keep.astype(self.dtype) * self.dtype.type(1 / (1 - self.dropout))

    def forward(self, X: np.ndarray, epoch: int | None = None) -> np.ndarray:
        """Compute the logits; with `epoch`, those of training in that epoch (with dropout)."""
        return self._forward(self._real(X), epoch, self._whole())[-1]

    def _real(self, X: np.ndarray) -> np.ndarray:
        check_real("X", X.dtype)
        return X.astype(self.dtype)

    def _whole(self) -> Graphs:
        return [(self.A, self.nodes)] * self.layers

    def _forward(self, X: np.ndarray, epoch: int | None, graphs: Graphs) -> list[np.ndarray]:
        """Compute T_1, Z_1, T_2, Z_2, ... with T_l what the way back of layer l needs, such as A H_{l-1}."""
        H, stages = X, []
        self.normal: list[tuple[np.ndarray, np.ndarray]] = []  # normalised rows, and what divided them
        for layer, (A, nodes) in enumerate(graphs):
            if epoch is not None and self.dropout > 0:
                H = H * self.mask(epoch, layer, nodes)
            Z, T = self._layer(layer, A, H, epoch, nodes)
            if self.biases:
                Z = Z + self.biases[layer]
            if self.residual[layer]:
                Z = Z + H[: len(Z)]
            stages += [T, Z]
            N = self._norm(layer, Z)
            H = np.where(N > 0, N, np.expm1(np.minimum(N, 0))) if self.elu else np.maximum(N, 0)
        return stages

    def _layer(
        self, layer: int, A: sp.csr_array, H: np.ndarray, epoch: int | None, nodes: np.ndarray
    ) -> tuple[np.ndarray, Any]:
        """Compute Z of a layer without bias; return it, and what the way back needs."""
        T = self._gather(A, H)
        return T @ self.weights[layer], T

    def _layer_back(
        self, layer: int, A: sp.csr_array, T: Any, G: np.ndarray, below: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Compute the gradient by the weights, and with ``below`` by the input."""
        return T.T @ G, self._gather_back(A, G @ self.weights[layer].T) if below else None

    def _gather(self, A: sp.csr_array, H: np.ndarray) -> np.ndarray:
        return spmm(A, H)

    def _gather_back(self, A: sp.csr_array, G: np.ndarray) -> np.ndarray:
        """Compute the gradient by what was gathered from, of one by what was gathered."""
        return spmm(sp.csr_array(A.T), G)

    def _norm(self, layer: int, Z: np.ndarray) -> np.ndarray:
        """Apply layer norm (Ba, Kiros, Hinton, arXiv 1607.06450, equation 4), where there is one."""
        if layer >= len(self.gains):
            return Z
        deviation = np.sqrt(Z.var(axis=1, keepdims=True) + 1e-5)
        self.normal.append(((Z - Z.mean(axis=1, keepdims=True)) / deviation, deviation))
        return self.normal[-1][0] * self.gains[layer] + self.shifts[layer]

    def _norm_back(self, layer: int, G: np.ndarray) -> np.ndarray:
        """Compute the gradient by what was normalised; put those by gain and shift into `norm_gradients`."""
        N, deviation = self.normal[layer]
        self.norm_gradients[layer] = (G * N).sum(axis=0), G.sum(axis=0)
        G = G * self.gains[layer]
        projected = G.mean(axis=1, keepdims=True) + N * (G * N).mean(axis=1, keepdims=True)
        return (G - projected) / deviation

    def gradients(
        self, X: np.ndarray, labels: np.ndarray, rows: np.ndarray, epoch: int | None = None,
        features: bool = True, graphs: Graphs | None = None, loss_weights: Any = None,
    ) -> tuple[float, list[np.ndarray], list[np.ndarray], np.ndarray | None]:  # fmt: skip
        """Compute the loss over the nodes `rows`, and its gradients by weights, biases and features.

        The last only if asked. `norm_gradients` has those by (gain, shift), by layer. On other `graphs`,
        `labels` are those of the last one's rows.
        """
        graphs = graphs or self._whole()
        self.norm_gradients: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        stages = self._forward(self._real(X), epoch, graphs)
        loss, G = loss_of(labels)(stages[-1], labels, rows, loss_weights)
        weights: list[np.ndarray] = []
        biases: list[np.ndarray] = []
        for layer in reversed(range(self.layers)):
            (A, nodes), wanted = graphs[layer], layer > 0 or features
            dW, below = self._layer_back(layer, A, stages[2 * layer], G, wanted)
            weights.insert(0, dW)
            biases.insert(0, G.sum(axis=0))
            if below is None or not wanted:
                return loss, weights, biases if self.biases else [], None
            if self.residual[layer]:
                below[: len(G)] += G
            G = below * self.mask(epoch, layer, nodes) if epoch is not None and self.dropout > 0 else below
            if layer > 0:
                G = self._activation_back(layer - 1, G, stages[2 * layer - 1])
        return loss, weights, biases if self.biases else [], G

    def _activation_back(self, layer: int, G: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """Compute the gradient by the output Z of a layer, of that by what the next one takes."""
        N = self.normal[layer][0] * self.gains[layer] + self.shifts[layer] if self.gains else Z
        G = G * (np.exp(np.minimum(N, 0)) if self.elu else N > 0)
        return self._norm_back(layer, G) if self.gains else G

    def parameters(self, features: bool = False) -> dict[str, np.ndarray]:
        """Return the arrays that are trained, as "W0" or "b0", and "X" if features are."""
        kinds = {"W": self.weights, "b": self.biases, "g": self.gains, "s": self.shifts}
        trained = {f"{kind}{layer}": W for kind, arrays in kinds.items() for layer, W in enumerate(arrays)}
        return trained | ({"X": self.features} if features else {})

    def named_gradients(self, *given: Any, **options: Any) -> tuple[float, dict[str, Any]]:
        """Return the loss, and by the names of `parameters` the gradients, as `gradients` computes them."""
        loss, weights, biases, features = self.gradients(*given, **options)
        kinds = {"W": dict(enumerate(weights)), "b": dict(enumerate(biases))}
        for kind, place in (("g", 0), ("s", 1)):
            kinds[kind] = {layer: pair[place] for layer, pair in self.norm_gradients.items()}
        named = {f"{kind}{layer}": g for kind, arrays in kinds.items() for layer, g in arrays.items()}
        return loss, named | ({} if features is None else {"X": features})

    def epoch_gradients(
        self, labels: np.ndarray, rows: np.ndarray, epoch: int, train_features: bool = False
    ) -> tuple[float, dict[str, Any]]:
        """Return the named gradients of full-graph training in an epoch.

        NotFiniteError: the loss is not finite.
        """
        with np.errstate(all="ignore"):
            loss, named = self.named_gradients(self.features, labels, rows, epoch, features=train_features)
        if not np.isfinite(loss):
            raise self._not_finite(loss, epoch)
        return loss, named

    def scores(
        self, X: np.ndarray, labels: np.ndarray, split: np.ndarray, metric: str | None = None
    ) -> dict[str, float]:  # fmt: skip
        """Return train_acc, val_acc and test_acc of the present weights, without dropout, or another metric.

        The default metric is by the labels.
        """
        Z, parts = self.forward(X), SPLITS
        default = ["accuracy"] if labels.ndim == 1 else ["f1"]
        asked = ["r2", "mae"] if labels.dtype.kind == "f" else [metric] if metric else default
        return {
            f"{name}_{short}": measure(Z, labels, labelled(labels, split, part))
            for measure, short in map(METRICS.__getitem__, asked)
            for name, part in parts.items()
        }

    def train(
        self, X: np.ndarray, labels: np.ndarray, split: np.ndarray, epochs: int, optimizer: str = "adam",
        lr: float = 0.01, weight_decay: float | Sequence[float] = 0.0, momentum: float = 0.0,
        train_features: bool = False, evaluate: bool = True, metric: str | None = None,
        clip: float | None = None, schedule: Callable[[int], float] = lambda epoch: 1.0,
    ) -> Iterator[dict[str, float]]:  # fmt: skip
        """Train full-graph, yielding per epoch its number (from 1), loss, and scores before its update.

        schedule: the factor of the step size by epoch; others: see :class:`ReferenceOptimizer`.
        NotFiniteError: a loss or a parameter is not finite; it names epoch and layer.
        """
        self.features, rows = self._real(X), labelled(labels, split, TRAIN)
        steps = ReferenceOptimizer(optimizer, weight_decay, momentum, clip)
        for epoch in range(1, epochs + 1):
            with np.errstate(all="ignore"):
                scores = self.scores(self.features, labels, split, metric) if evaluate else {}
            loss, gradients = self.epoch_gradients(labels, rows, epoch, train_features)
            yield {"epoch": epoch, **scores, "loss": loss}
            self.update(steps, gradients, lr * schedule(epoch), epoch)

    def update(self, optimizer: ReferenceOptimizer, gradients: dict[str, Any], lr: float, epoch: int) -> None:
        """Make a step in an epoch; NotFiniteError: a parameter is not finite then."""
        try:
            optimizer.step(self.parameters("X" in gradients), gradients, lr)
        except NotFiniteError as error:
            raise error.in_epoch(epoch) from None

    def _not_finite(self, loss: float, epoch: int) -> NotFiniteError:
        """Make the error that names the first layer with such an output, or the last one."""
        with np.errstate(all="ignore"):
            outputs = self._forward(self.features, epoch, self._whole())[1::2]
        bad = [layer for layer, Z in enumerate(outputs) if not np.isfinite(Z).all()]
        return NotFiniteError(f"the loss is {loss}", (bad or [self.layers - 1])[0], epoch)


class SageReference(GCNReference):
    """GraphSAGE on one process: of A only its entries off the diagonal count, all alike.

    Weights of own features stand above those of the neighbours' mean. The rows of a sampled matrix are the
    first of its columns.
    """

    gathered = 2

    def operator(self, A: sp.csr_array) -> sp.csr_array:
        entries = sp.coo_array(A)
        off = entries.row != entries.col
        parts = entries.data[off], (entries.row[off], entries.col[off])
        return means(sp.csr_array(parts, shape=A.shape), self.dtype)

    def block_operator(self, A: sp.csr_array) -> sp.csr_array:
        return means(A, self.dtype)

    def _gather(self, A: sp.csr_array, H: np.ndarray) -> np.ndarray:
        return np.hstack([H[: A.shape[0]], spmm(A, H)])

    def _gather_back(self, A: sp.csr_array, G: np.ndarray) -> np.ndarray:
        of_own, of_means = np.hsplit(G, 2)
        gathered = spmm(sp.csr_array(A.T), of_means)
        gathered[: len(of_own)] += of_own
        return gathered
