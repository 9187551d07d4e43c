"""The graph convolutional network, with its backward pass by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np

from distgnn.comm.narrow import check_overflow
from distgnn.errors import ArgumentError, check_type, offered
from distgnn.layout import Layout
from distgnn.ledger import holds
from distgnn.local.epilogue import Epilogue
from distgnn.nn.activation import ACTIVATIONS, RELU
from distgnn.nn.buffers import Buffers, LayerGraph, LayerProducts, Mode, lent
from distgnn.nn.dropout import DeviceEpoch
from distgnn.nn.features import gone
from distgnn.nn.finite import QUIETLY, NotFiniteError, all_finite
from distgnn.nn.layers import GraphConvolution, Options
from distgnn.nn.loss import LossRows, Targets, Total
from distgnn.nn.metrics import scores
from distgnn.nn.network_arguments import check, residual_layers
from distgnn.nn.optim import Parameter
from distgnn.nn.products import AGGREGATE, TRANSFORM, associative
from distgnn.nn.recomputed import Passed
from distgnn.nn.rounding import loss_of, round_between
from distgnn.nn.whole_weights import WholeWeights
from distgnn.operators.base import Operator
from distgnn.operators.dense import DistDense
from distgnn.operators.later import Later, block_of
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.operators.weights import Features
from distgnn.split import TRAIN

Array = Any


class GCN(WholeWeights):
    """Kipf and Welling's network, on the whole graph by any distributed algorithm, or on minibatches.

    Args:
        A: normalised adjacency matrix, n x n, of any algorithm.
        widths: feature width, hidden widths, classes: one more than there are layers.
        seed: weights and dropout masks are functions of (seed, global index, epoch), whatever the algorithm
            and the order of A.
        dropout: probability with which entries of every layer's input, the features included, are dropped.
        bias: add a bias to every layer.
        product_order: "aggregate-first", (A H) W, "transform-first", A (H W), or "auto": in each layer the
            one that multiplies fewer columns by A per epoch, in a pass without a backward pass in that alone,
            of equals the one that takes less memory. `3d` can only aggregate first.
        keep_aggregate: keep A X of features that are neither trained nor dropped, so that the first layer
            multiplies by A once and never again.
        residual: Z = A H W + b + H in every layer but the last whose fan in and fan out are equal, with H
            after dropout.
        layer_norm: H = dropout(relu(norm(Z))), with a gain and a shift for each column, in every layer but
            the last.
        activation: "relu" or "elu", after every layer but the last; default: that of the class.
        recompute: keep the input of every so many layers alone for the backward pass, and what it needs of
            these layers up to the last: those before are gone through again, layer by layer the same numbers
            (Chen et al., Training deep nets with sublinear memory cost, arXiv 1604.06174); 0 or 1: none is.

    Attributes:
        layers: the weights; graphs: the whole graph, as each layer takes it; adjacency: A as given.
        input_layout: of the features; output_layout: of the logits.
        parameters: the matrices that an optimiser updates, aligned with the gradients of `backward`: weights,
            biases, and gains and shifts of layer norm.
        convolution: the class of the layers; a network with layers of your own has another (see
            ``custom.py``). means: whether they take means over neighbours (see ``sage.py``); needs_own:
            whether they use vertices' own features apart, which minibatches have to keep first; neighbours:
            whether a run makes A of ones off the diagonal, not of the values that a store has; attends:
            whether their layers have heads; activation: of the layers, where none is given.

    Raises:
        ValueError: A is not square, or widths, dropout or product_order make no sense (on every rank).
        UserError: transform first with an operator that can't, residual connections without a layer that
            could have one, or ranks disagree in an argument (on every rank).
        whatever reading A's order raises on some rank (on every rank).
    """

    convolution = GraphConvolution
    means = needs_own = neighbours = attends = False
    activation = RELU

    def __init__(
        self, A: Operator, widths: Sequence[int], seed: int = 0, dropout: float = 0.0, bias: bool = False,
        product_order: str = "auto", keep_aggregate: bool = True, residual: bool = False,
        layer_norm: bool = False, activation: str | None = None, recompute: int = 0,
    ) -> None:  # fmt: skip
        check_type("A", A, Operator, "a distributed matrix, as of load or distribute; then the widths")
        widths = [int(width) for width in widths]
        self.activation = activation or self.activation
        switches = keep_aggregate, residual, layer_norm
        options = Options(seed, dropout, bias, product_order, *switches, self.activation)
        A.grid.world.agree({"widths": widths, "recompute": recompute, **asdict(options)})
        check(A, widths, dropout, product_order)
        if self.activation not in ACTIVATIONS:
            raise ArgumentError("activation", activation, offered(activation, ACTIVATIONS))
        self.adjacency, A = A, self.operator(A, product_order)
        self.A, self.widths, self.grid = A, widths, A.grid
        self.seed, self.dropout = int(seed), float(dropout)
        operators = [A.layer(index) for index in range(len(widths) - 1)]
        order = A.input_layout.rows.order
        if self.needs_own and order != A.output_layout.rows.order:
            network = f"which {type(self).__name__} can't use; take another"
            raise ArgumentError("order", order and order.name, f"orders rows and columns apart, {network}")
        if product_order == TRANSFORM and not all(map(associative, operators)):
            problem = f"algorithm {A.name} cuts the input of a product unlike its output, so it can only do "
            raise ArgumentError("product_order", TRANSFORM, problem + AGGREGATE)
        with self.grid.world.together():  # this may read a file, which may be damaged for one rank only
            layouts = {id(operator.input_layout): operator.input_layout for operator in operators}
            nodes = {key: self._nodes(layout) for key, layout in layouts.items()}
        holds(self, "nodes", sum(ids.nbytes for ids in nodes.values()))
        self.graphs = [LayerGraph(operator, nodes[id(operator.input_layout)]) for operator in operators]
        self.residual = residual_layers(operators, widths) if residual else ()
        shared = [replace(options, residual=index in self.residual) for index in range(len(operators))]
        self.layers = [
            self.convolution(operator, index, shape, options=shared[index])
            for index, (operator, shape) in enumerate(zip(operators, pairwise(widths), strict=True))
        ]
        self.plans: dict[Mode, list[LayerProducts]] = {}  # of the whole graph, by the mode of layer 0
        self.recompute = int(recompute)
        self.buffers: list[Buffers] = []  # of a forward pass until its backward pass
        self.passed: list[Passed] = []  # before these
        for index, (below, above) in enumerate(pairwise(operators)):
            if not below.weights.output_layout.same(above.input_layout, (A.shape[0], widths[index + 1])):
                problem = f"the output of layer {index} is not cut as layer {index + 1} takes it; "
                raise ValueError(problem + "A needs equal partitions of its rows and columns")

    def operator(self, A: Operator, product_order: str) -> Operator:
        """Make the operator of the network from the adjacency matrix. Collective."""
        return A

    @property
    def input_layout(self) -> Layout:
        """The layout of the features."""
        return self.graphs[0].A.input_layout

    @property
    def output_layout(self) -> Layout:
        """The layout of the logits."""
        return self.graphs[-1].A.weights.output_layout

    @property
    def draws(self) -> bool:
        """Tell whether a pass of training draws masks, so that its logits are not those to evaluate."""
        return self.dropout > 0

    @property
    def parameters(self) -> list[Parameter]:
        """Weights, biases, gains and shifts, as an optimiser takes them; the layers' own blocks."""
        return self._by_kind([layer.parameters() for layer in self.layers])

    def _by_kind(self, of_layers: Sequence[Sequence[Any]]) -> list[Any]:
        """Sort items of the layers' parameters as `parameters` has these: by kind, then by layer."""
        kinds = [p.kind for layer in self.layers for p in layer.parameters()]
        flat = [item for layer in of_layers for item in layer]
        return [flat[i] for i in sorted(range(len(flat)), key=lambda i: kinds.index(kinds[i]))]

    def tune(self, sparse: bool = False) -> list[dict[str, str]]:
        """Time the forms of every layer's dense products once and take the fastest (Plexus section 5.3).

        Collective. ``sparse``: features are, so that the first layer has no such products.

        Returns:
            for each layer product -> form. Rounding depends on it, so two runs may differ in it.
        """
        (n, _), dtype, pairs = self.A.shape, self.A.dtype, zip(self.graphs, self.layers, strict=True)
        return [
            {} if sparse and layer.index == 0 else graph.A.weights.tune(n, *layer.shape, dtype)
            for graph, layer in pairs
        ]

    def targets(self, labels: Array, split: Array, metric: str | None = None) -> Targets:
        """Make labels and splits of all nodes, int (n), ready for the loss. Collective.

        They are arrays by node that rank 0 has (others pass anything), or matrices that `load_targets` read
        for `output_layout`. Labels of n x classes zeros and ones make a loss of several classes. `metric`:
        see :class:`Targets`.
        """
        return Targets(self.output_layout, self.widths[-1], labels, split, metric)

    def forward(
        self, X: Features, epoch: int | None = None, keep: bool = False, layers: int | None = None,
        after: int = 0, scratch: bool = False,
    ) -> DistDense:  # fmt: skip
        """Compute the logits of all nodes, n x classes in `output_layout`, the caller's own. Collective.

        Args:
            X: features, n x widths[0], in `input_layout`; left alone. They may be sparse where
                :meth:`needs_dense` is None.
            epoch: apply this epoch's dropout; None for none.
            keep: keep the matrices that `backward` needs, one n x fan-in matrix per layer.
            layers: go through so many layers and return the output of the last, before its activation;
                default: all.
            after: go on after so many layers, whose output is X and is overwritten.
            scratch: X may be overwritten in any case; the numbers of ``OwnedFeatures`` go once they are used.
        """
        Z = self._forward(self._plans(keep, X, scratch=scratch)[after:layers], X, epoch, after)
        self.grid.workspace.forget(Z.block)
        check_overflow(self.grid)
        return Z

    def _nodes(self, layout: Layout) -> Array:
        """List the original ids of this rank's rows, int64."""
        on, ordered = self.grid.backend, layout.rows.order is not None
        return on.asarray(layout.row_ids) if ordered else on.xp.arange(*layout.row_range, dtype=np.int64)

    def needs_dense(self) -> str | None:
        """Return why the features of this network can't be sparse, or None where they can."""
        return self.layers[0].needs_dense()

    def _plans(
        self, keep: bool, X: Features, need_input: bool = True, scratch: bool = False
    ) -> list[LayerProducts]:  # fmt: skip
        """Return the plans of all layers on the whole graph, made the first time."""
        need_input = need_input and not gone(X)
        mode = Mode(keep, need_input, scratch, sparse=isinstance(X, SparseFeatures))
        if mode not in self.plans:
            self.plans[mode] = self._planned(self.graphs, mode)
        return self.plans[mode]

    def _planned(self, graphs: Sequence[LayerGraph], mode: Mode) -> list[LayerProducts]:
        """Plan every layer. ``mode``: of layer 0. ArgumentError: it can't take sparse features."""
        if mode.sparse and (reason := self.needs_dense()) is not None:
            raise ArgumentError("X", "sparse features", f"{reason}; X.to_dense() makes them dense")
        pairs = zip(self.layers, graphs, strict=True)
        return [layer.plan(graph, Mode(mode.keep) if layer.index else mode) for layer, graph in pairs]

    def _forward(
        self, plans: Sequence[LayerProducts], X: Any, epoch: int | DeviceEpoch | None, after: int = 0
    ) -> DistDense:  # fmt: skip
        """Compute the logits, in memory of the workspace, from X after so many layers."""
        A = plans[0].A
        if X.shape != (expected := (A.shape[1], self.widths[after])):
            raise ValueError(f"features are {X.shape}, the network needs {expected}")
        if not X.layout.same(A.input_layout, X.shape):
            cut = f"features are cut over {X.layout.words()}"
            raise ValueError(f"{cut}, the network needs {A.input_layout.words()}")
        self.drop()
        layers, keep, every = self.layers[after : after + len(plans)], plans[0].mode.keep, self.recompute
        first = self.first_kept(len(plans)) if keep else 0
        passing = [plan.passing(i % every > 0) for i, plan in enumerate(plans[:first])]
        made = [Buffers(plan, epoch) for plan in (*passing, *plans[first:])]
        for below, above in pairwise(zip(layers, made, strict=True)) if every < 2 else ():
            round_between(below, above)
        for i, (layer, buffers) in enumerate(zip(layers, made, strict=True)):
            last = i == len(layers) - 1
            if i < first and i % every == 0:
                self.passed.append(Passed(layers[i : i + every], plans[i : i + every], X, buffers))
            then = Epilogue if last else partial(layers[i + 1].activation.epilogue, made[i + 1])
            X = layer.forward(buffers, X, then)
        self.buffers = made[first:] if keep else []
        return X

    def first_kept(self, layers: int) -> int:
        """Return the layer from which on a forward pass through so many keeps all that backward needs."""
        return (layers - 1) // self.recompute * self.recompute if self.recompute > 1 else 0

    def _again(self) -> list[Buffers]:
        """Go through the last layers that were passed again, to keep what backward needs. Collective."""
        return self.passed.pop().again(self.layers)

    def drop(self) -> None:
        """Return the memory that a forward pass kept for a backward pass that won't come."""
        for buffers in self.buffers:
            buffers.drop()
        for passed in self.passed:
            passed.drop()
        self.buffers, self.passed = [], []

    def backward(
        self, G: DistDense, epoch: int | DeviceEpoch | None = None, need_input: bool = False,
        mean_over: int = 1,
    ) -> tuple[list[Array], DistDense | None]:  # fmt: skip
        """Compute the gradients after a `forward(..., keep=True)` in the same epoch. Collective.

        Args:
            G: the gradient of the logits.
            need_input: whether to compute the gradient of the features.
            mean_over: G is of a mean over so many nodes. Where the grid's wire is float16, in which that is
                mostly 0, gradients of the sum travel, by a power of two, which rounds nothing.

        Returns:
            one block per parameter, in the order of `parameters`; and the gradient of the features, or None,
            in memory of the grid's workspace.

        Raises:
            RuntimeError: no such forward pass. ValueError: it had another epoch, and dropout.
        """
        if not self.buffers:
            raise RuntimeError("backward without a forward(..., keep=True) before it")
        if self.dropout and epoch != (forward := self.buffers[0].epoch):
            raise ValueError(f"backward in epoch {epoch}, forward in epoch {forward}")
        kept, self.buffers = self.buffers, []
        gradients: list[list[Any]] = []
        scale = 2.0 ** (max(mean_over, 1).bit_length() - 1) if self.grid.wire == "float16" else 1.0
        scaled([G.block], scale)
        dH, later = cast(Any, G), Later()
        with nullcontext() if self.grid.narrow is None else self.grid.narrow.gradients():
            for layer in reversed(self.layers):
                kept = kept or self._again()
                buffers = kept.pop()
                buffers.later = later
                of_layer, dH = layer.backward(buffers, dH, need_input or layer.index > 0)
                gradients.insert(0, of_layer)
            later.finish()
        blocks = list(map(block_of, self._by_kind(gradients)))
        scaled(blocks if dH is None else [*blocks, dH.block], 1 / scale)
        return blocks, dH

    @QUIETLY
    def gradients(
        self, X: Features, targets: Targets, epoch: int | None = None, need_input: bool = False,
        evaluate: bool = False,
    ) -> tuple[float, dict[str, float], list[Array], DistDense | None]:  # fmt: skip
        """Return loss, scores of the same logits if asked to `evaluate`, and the results of `backward`.

        Collective.

        Without `need_input`, X must stay as it is from the first call on, or from a :meth:`forget` (see
        `keep_aggregate`).

        Raises:
            NotFiniteError: the loss or a logit to evaluate is not finite (on every rank).
        """
        plans = self._plans(True, X, need_input)
        key = id(self), plans[0].mode, epoch is None, evaluate
        with self.grid.workspace.repeated(key):
            return self._gradients(plans, X, targets, epoch, evaluate)

    def _gradients(
        self, plans: Sequence[LayerProducts], X: Features, targets: Targets, epoch: int | None, evaluate: bool
    ) -> tuple[float, dict[str, float], list[Array], DistDense | None]:
        """Compute what `gradients` returns, by these plans."""
        Z = self._forward(plans, X, epoch)
        try:
            seen = scores(Z, targets) if evaluate else {}
            total, G = self._loss(Z, targets)
            begun = total.begin_reading()
        except FloatingPointError as error:
            self.grid.workspace.give_back(Z.block)
            raise self.not_finite(X, str(error), epoch) from None
        gradients, dX = self.backward(G, epoch, plans[0].mode.need_input, mean_over(targets))
        loss = begun()  # a device has all of backward to do meanwhile
        if not math.isfinite(loss):
            if dX is not None:
                self.grid.workspace.give_back(dX.block)
            raise self.not_finite(X, f"the loss is {loss}", epoch)
        return loss, seen, gradients, dX

    def queue(
        self, X: Features, targets: Targets, epoch: int | DeviceEpoch | None, need_input: bool, logits: Array
    ) -> tuple[Total, list[Array], DistDense | None]:  # fmt: skip
        """Compute as `gradients` does, but leave the loss where it is, and look at nothing. Collective.

        logits: an array of the shape of this rank's block, to which they are copied; None: they are not.
        """
        Z = self._forward(self._plans(True, X, need_input), X, epoch)
        if logits is not None:
            logits[...] = Z.block
        total, G = self._loss(Z, targets)
        return total, *self.backward(G, epoch, need_input, mean_over(targets))

    def _loss(self, Z: DistDense, targets: LossRows) -> tuple[Total, DistDense]:
        """Compute the loss and its gradient, in the place of Z or in 16 bits. Collective."""
        return loss_of((self.layers[-1], self.buffers[-1]), Z, targets)

    def queue_logits(self, X: Features, need_input: bool, logits: Array) -> None:
        """Compute the logits of the present weights, without dropout, in this array. Collective."""
        with lent(self._forward(self._plans(False, X, need_input), X, None)) as Z:
            logits[...] = Z.block

    @QUIETLY
    def not_finite(self, X: Features, problem: str, epoch: int | None = None) -> NotFiniteError:
        """Make the error that names the first layer whose output is not finite on the whole graph.

        Collective. It names the last layer if there is none.

        WireOverflowError: a number did not fit into 16 bits, so that others are not finite (on every rank).
        """
        self.drop()
        check_overflow(self.grid)
        H: Any = X
        for layer, plan in zip(self.layers, self._plans(False, X), strict=True):
            H = layer.forward(Buffers(plan, epoch), H)
            if self.grid.world.lowest(int(all_finite(H.block))) == 0:
                break
        with lent(H):
            return NotFiniteError(f"{problem}, and this layer is where it begins", layer.index, epoch)

    def forget(self) -> None:
        """Drop A X of features that may have changed (see `keep_aggregate`)."""
        for layer in self.layers:
            layer.fixed.forget()

    @QUIETLY
    def minibatch_gradients(
        self, graphs: Sequence[LayerGraph], X: Features, targets: LossRows, step: int
    ) -> tuple[float, list[Array]]:
        """Compute loss and gradients of a minibatch, aligned with `parameters`.

        Collective over the grid of `graphs`, which of blocks is this rank alone.

        Args:
            graphs: the block of each layer, or the operator of a subgraph for each.
            X: the features of the first block's columns, in memory of the workspace, which it returns to.
            targets: of the last block's rows.
            step: number of the minibatch in the whole run, on which dropout's masks depend.
        """
        mode = Mode(keep=True, need_input=False, sparse=isinstance(X, SparseFeatures))
        Z = self._forward(self._planned(graphs, mode), X, step)
        total, G = self._loss(Z, targets)
        loss = total.begin_reading()
        gradients = self.backward(G, step)[0]
        return loss(), gradients

    @QUIETLY
    def evaluate(self, X: Features, targets: Targets, need_input: bool = True) -> dict[str, float]:
        """Score the present weights, such as by val_acc, without dropout. Collective.

        `need_input=False` promises that X stays as it is, as in `gradients`. Raises as that does.
        """
        plans = self._plans(False, X, need_input)
        again = self.grid.workspace.repeated((id(self), plans[0].mode))
        with again, lent(self._forward(plans, X, None)) as Z:
            try:
                return scores(Z, targets)
            except FloatingPointError as error:  # where a number did not fit into 16 bits, too: it is NaN
                problem = str(error)
        raise self.not_finite(X, problem)


def mean_over(targets: Targets) -> int:
    """Return the nodes of whose losses the mean is taken, if none of their gradients can exceed 1; else 1."""
    return 1 if targets.loss == "mse" else targets.counts[TRAIN]


def scaled(blocks: Sequence[Array], scale: float) -> None:
    """Multiply arrays by a number, in place."""
    for block in blocks if scale != 1 else ():
        block *= block.dtype.type(scale)
