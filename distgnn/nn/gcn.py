"""The graph convolutional network: layers over one distributed adjacency matrix, with its backward pass by
hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError
from distgnn.layout import Layout
from distgnn.nn.layers import AGGREGATE, ORDERS, TRANSFORM, GraphConvolution, associative
from distgnn.nn.loss import Targets, accuracies, softmax_cross_entropy
from distgnn.nn.optim import Parameter
from distgnn.operators.dense import DistDense, gather
from distgnn.operators.operator import DistSparse

Array = Any
Nodes = Callable[[int, int], np.ndarray]


class GCN:
    """Kipf and Welling's network, full-graph, on any of the distributed algorithms.

    Args:
        A: normalised adjacency matrix, n x n, as an operator of one of the algorithms.
        widths: feature width, hidden widths, classes: one more than there are layers.
        seed: weights and dropout masks are functions of (seed, global index, epoch), so every algorithm at
            every rank count trains the same network.
        dropout: probability with which entries of every layer's input, the features included, are dropped.
        bias: add a bias to every layer.
        product_order: "aggregate-first", (A H) W, "transform-first", A (H W), or "auto": in each layer the
            one that multiplies fewer columns by A per epoch. `3d` can only aggregate first.
        keep_aggregate: keep A X of features that are neither trained nor dropped, so that the first layer
            multiplies by A once and never again.
        nodes: function (first, last) -> int64 original ids of these rows of a layer's input, where they are
            in a permuted order; several functions, of which layer l takes number l modulo their number, where
            layers differ (double permutation).

    Attributes:
        input_layout: of the features; output_layout: of the logits.
        parameters: what an optimiser updates (weights and biases), aligned with the gradients of `backward`.

    Raises:
        ValueError: A is not square, or widths, dropout or product_order make no sense (on every rank).
        UserError: transform first with an operator that can't (on every rank).
        whatever `nodes` raises on some rank (on every rank).
    """

    def __init__(
        self, A: DistSparse, widths: Sequence[int], seed: int = 0, dropout: float = 0.0, bias: bool = False,
        nodes: Nodes | Sequence[Nodes] | None = None, product_order: str = "auto",
        keep_aggregate: bool = True,
    ) -> None:  # fmt: skip
        widths = [int(width) for width in widths]
        if A.shape[0] != A.shape[1]:
            raise ValueError(f"a GCN needs a square adjacency matrix, got {A.shape}")
        if len(widths) < 2 or min(widths) < 1:
            raise ValueError(f"widths {widths}: need features, hidden widths and classes, each at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout {dropout}: must be in [0, 1)")
        if product_order not in ORDERS:
            raise ValueError(f"product_order {product_order}: must be one of {', '.join(ORDERS)}")
        self.A, self.widths, self.grid = A, widths, A.grid
        self.seed, self.dropout = int(seed), float(dropout)
        operators = [A.layer(index) for index in range(len(widths) - 1)]
        ranges = [operator.input_layout.row_range for operator in operators]
        sides = [np.arange] if nodes is None else [nodes] if callable(nodes) else list(nodes)
        with self.grid.world.together():  # `nodes` may read a file, which may be damaged for one rank only
            ids = [np.asarray(sides[i % len(sides)](*rows), dtype=np.int64) for i, rows in enumerate(ranges)]
        self.layers = []
        for index, (operator, shape) in enumerate(zip(operators, pairwise(widths), strict=True)):
            on_device = self.grid.backend.asarray(ids[index])
            options = (seed, self.dropout, bias, on_device, product_order, keep_aggregate)
            self.layers.append(self._layer(operator, index, shape, *options))
        if product_order == TRANSFORM and not all(associative(operator) for operator in operators):
            problem = f"algorithm {A.name} cuts the input of a product unlike its output"
            raise ArgumentError("product_order", TRANSFORM, f"{problem}, so it can only do {AGGREGATE}")
        for index, (layer, above) in enumerate(pairwise(self.layers)):
            shape = (A.shape[0], widths[index + 1])
            if not layer.A.weights.output_layout.same(above.A.input_layout, shape):
                raise ValueError(
                    f"the output of layer {index} is not cut as layer {index + 1} takes it; "
                    "A needs equal partitions of its rows and columns"
                )

    def _layer(self, A: DistSparse, index: int, shape: tuple[int, int], *options: Any) -> GraphConvolution:
        return GraphConvolution(A, index, shape, *options)

    @property
    def input_layout(self) -> Layout:
        return self.layers[0].A.input_layout

    @property
    def output_layout(self) -> Layout:
        return self.layers[-1].A.weights.output_layout

    @property
    def parameters(self) -> list[Parameter]:
        weights = [Parameter(f"W{i}", i, "weight", layer.W) for i, layer in enumerate(self.layers)]
        return weights + [Parameter(f"b{i}", i, "bias", b) for i, b in enumerate(self._biases())]

    def tune(self) -> list[dict[str, str]]:
        """Time the forms of every layer's dense products once and take the fastest (Plexus section 5.3).
        Collective.

        Returns:
            for each layer product -> form. Rounding depends on it, and so on what else the machine does while
            it is timed.
        """
        return [layer.A.weights.tune(self.A.shape[0], *layer.shape, self.A.dtype) for layer in self.layers]

    def targets(self, labels: Array, split: Array) -> Targets:
        """Labels and splits of the rows of `output_layout` that this rank holds, made ready for the loss.
        Collective.
        """
        return Targets(self.output_layout, self.widths[-1], labels, split)

    def forward(self, X: DistDense, epoch: int | None = None, keep: bool = False) -> DistDense:
        """Logits of all nodes, n x classes in `output_layout`, the caller's own. Collective.

        Args:
            X: features, n x widths[0], in `input_layout`; left alone.
            epoch: apply this epoch's dropout; None for none.
            keep: keep what `backward` needs, one n x fan-in matrix per layer.
        """
        Z = self._forward(X, epoch, keep)
        self.grid.workspace.forget(Z.block)
        return Z

    def _forward(self, X: DistDense, epoch: int | None, keep: bool, need_input: bool = True) -> DistDense:
        """The logits, borrowed from the grid's workspace. Without `need_input`, X must stay as it is from now
        on.
        """
        if X.shape != (self.A.shape[0], self.widths[0]):
            raise ValueError(f"features are {X.shape}, the network needs {(self.A.shape[0], self.widths[0])}")
        H = X
        for layer in self.layers:
            H = layer.forward(H, epoch, keep, need_input or layer.index > 0)
        return H

    def backward(
        self, G: DistDense, epoch: int | None = None, need_input: bool = False
    ) -> tuple[list[Array], DistDense | None]:
        """Gradients after a `forward(..., keep=True)` in the same epoch. Collective.

        Args:
            G: the gradient of the logits.
            need_input: whether to compute the gradient of the features.

        Returns:
            one block per parameter, in the order of `parameters`; and the gradient of the features, or None.
            Its memory is borrowed from the grid's workspace: give it back, or tell the workspace to forget
                it.
        """
        dW: list[Array] = []
        db: list[Array] = []
        dH: DistDense | None = G
        for layer in reversed(self.layers):
            assert dH is not None  # every layer but the first gives one
            weight, bias, dH = layer.backward(dH, epoch, need_input or layer.index > 0)
            dW.insert(0, weight)
            db.insert(0, bias)
        return dW + [bias for bias in db if bias is not None], dH

    def gradients(
        self, X: DistDense, targets: Targets, epoch: int | None = None, need_input: bool = False,
        evaluate: bool = False,
    ) -> tuple[float, dict[str, float], list[Array], DistDense | None]:  # fmt: skip
        """Loss, accuracies of the same logits if `evaluate` says so, and what `backward` returns. Collective.

        Without `need_input`, X must stay as it is from the first call on (see `keep_aggregate`).
        """
        Z = self._forward(X, epoch, True, need_input)
        found = accuracies(Z, targets) if evaluate else {}
        loss, G = softmax_cross_entropy(Z, targets, overwrite=True)
        return loss, found, *self.backward(G, epoch, need_input)

    def evaluate(self, X: DistDense, targets: Targets, need_input: bool = True) -> dict[str, float]:
        """train_acc, val_acc and test_acc of the present weights, without dropout. Collective.

        `need_input=False` promises that X stays as it is, as in `gradients`.
        """
        Z = self._forward(X, None, False, need_input)
        found = accuracies(Z, targets)
        self.grid.workspace.give_back(Z.block)
        return found

    # -- global weights --------------------------------------------------------------------------------------

    def get_weights(self) -> list[np.ndarray]:
        """The weight matrices, global, as NumPy arrays on every rank, one per layer. Collective."""
        return [collect(layer.W) for layer in self.layers]

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Set the weights from global arrays, given alike on every rank. Collective.

        Raises:
            ValueError: wrong number or shapes (on every rank).
        """
        with self.grid.world.together():
            weights = [np.asarray(W) for W in weights]
            expected = [layer.weight_shape for layer in self.layers]
            if [W.shape for W in weights] != expected:
                raise ValueError(f"weights of shapes {[W.shape for W in weights]} for layers {expected}")
        for layer, W in zip(self.layers, weights, strict=True):
            assign(layer.W, W)

    def get_biases(self) -> list[np.ndarray]:
        """The biases, global, as 1-D NumPy arrays on every rank, one per layer; empty without bias.
        Collective.
        """
        return [collect(b)[0] for b in self._biases()]

    def set_biases(self, biases: Sequence[np.ndarray]) -> None:
        """Set the biases from global arrays, given alike on every rank. Collective.

        Raises:
            ValueError: wrong number or shapes (on every rank).
        """
        with self.grid.world.together():
            biases = [np.asarray(b) for b in biases]
            expected = [b.shape[1:] for b in self._biases()]
            if [b.shape for b in biases] != expected:
                raise ValueError(f"biases of shapes {[b.shape for b in biases]} for layers {expected}")
        for ours, b in zip(self._biases(), biases, strict=True):
            assign(ours, b[None])

    def _biases(self) -> list[DistDense]:
        return [layer.b for layer in self.layers if layer.b is not None]


def collect(Y: DistDense) -> np.ndarray:
    """A global matrix, small enough for every rank, as a NumPy array on all of them. Collective."""
    return Y.grid.world.share(gather(Y))


def assign(Y: DistDense, whole: np.ndarray) -> None:
    """Set this rank's block from the global matrix."""
    (top, bottom), (left, right) = Y.row_range, Y.col_range
    Y.block[...] = Y.grid.backend.asarray(whole[top:bottom, left:right])
