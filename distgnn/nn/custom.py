"""Layers of your own: a forward and a backward pass by hand, on every algorithm.

A layer says what Z is, from its operator A, its input H and its weights W; the network around it makes H
(dropout, ReLU, layer norm), adds biases and residual connections, and updates what is trained. This is GIN
(Xu et al., ICLR 2019, equation 4.1) with one dense product and a trained epsilon:

    from distgnn.nn import GCN, CustomLayer

    class GINLayer(CustomLayer):
        # Z = (A H + (1 + eps) H) W
        def __init__(self, A, index, shape, **options):
            super().__init__(A, index, shape, **options)
            self.eps = self.add_parameter("eps", [[0.0]])     # beside W

        def propagate(self, A, H):
            own, T = self.own(A, H), A @ H                    # own: the rows of H, cut as A H is
            T.block += (1 + self.eps.block) * own.block
            return self.times(A, T), (own, T)                 # Z = T W, and what the way back needs

        def propagate_back(self, A, kept, G):                 # G: the gradient of Z
            own, T = kept
            dW, dT = self.times_back(A, T, G)                 # Tᵀ G and G Wᵀ
            d_eps, dH = self.total(own, dT), A.T @ dT
            dT.block *= 1 + self.eps.block
            self.add_own(A, dT, dH)                           # dH += (1 + eps) dT
            return [dW, d_eps], dH                            # of W, then of what was added, in that order

    class GIN(GCN):
        convolution, needs_own = GINLayer, True

    def network(A, widths):
        return GIN(A, widths, bias=True, layer_norm=True)

It is trained as any GCN is, on the whole graph or on minibatches; entered in ``distgnn.nn.NETWORKS``, by a
:class:`~distgnn.train.Run` too. What the methods are given and make:

- ``A``: the operator of this layer, or the block of a minibatch, of which H has as many rows as A has
  columns. ``A @ H`` and ``A.T @ G`` are its products. `3d` cuts H, A H and Z unlike each other.
- Matrices are :class:`DistDense`. ``block`` is what this rank holds of one, an array of its grid's backend.
- H, G and what was kept must stay as they are. What is made belongs to the layer.
- All ranks call the same methods in the same order. They are collective: of a minibatch, on one rank alone.
"""

from __future__ import annotations

import re
from typing import Any

from distgnn.layout import Cut, Layout
from distgnn.local.epilogue import Ending, Epilogue
from distgnn.nn.buffers import Buffers, Gradients, Mode, Names
from distgnn.nn.dropout import DeviceEpoch
from distgnn.nn.layers import GraphConvolution, copy_rows
from distgnn.nn.optim import Parameter
from distgnn.nn.products import SparseInput
from distgnn.operators.dense import DistDense
from distgnn.operators.operator import DistSparse
from distgnn.operators.relayout import relayout

Array = Any
Kept = tuple[Any, ...]  # matrices, and edges
#: Names and kinds of the parameters that networks have without a layer's doing.
RESERVED = ("W", "b", "g", "s", "X", "weight", "bias", "gain", "shift", "features")


class CustomLayer(GraphConvolution):
    """The base class of a layer of your own; see the text above and :class:`GraphConvolution`.

    ``weight_shape``, (fan in, fan out) as a rule, may be overridden as a property.

    Attributes:
        epoch: of a pass whose dropout is on, of minibatches the number of the step, else None; in a graph of
            the library's own networks its keys. nodes: int64 ids of this rank's rows of H; need_input:
            whether the gradient of H is used, for which :meth:`propagate_back` may return None otherwise. All
            are those of the pass that runs.
        of_sparse: set it to ``SparseInput`` where ``propagate`` of the first layer takes sparse H, whose
            products are those of ``A.weights``; by default H is dense.
    """

    of_sparse: type[SparseInput] | None = None
    epoch: int | DeviceEpoch | None = None
    nodes: Array = None
    need_input = True

    def propagate(self, A: DistSparse, H: DistDense) -> tuple[DistDense, Kept]:
        """Compute Z without bias, cut as :meth:`times` cuts it; return it and a tuple of matrices to keep."""
        raise NotImplementedError

    def propagate_back(self, A: DistSparse, kept: Kept, G: DistDense) -> tuple[list[Any], DistDense | None]:
        """Compute the gradients of W and of added parameters, a list in this order; and that of H."""
        raise NotImplementedError

    # -- parts of these --------------------------------------------------------------------------------------

    def add_parameter(self, name: str, values: Any, decays: bool = False) -> DistDense:
        """Train a matrix beside W: small, two-dimensional, the same on all ranks. For ``__init__``.

        ``decays``: whether weight decay is for it, as for W.

        ValueError: another shape, or a name that the network or the layer has, or that is not made of letters
        (a checkpoint adds the layer's number).
        """
        block = self.W.grid.backend.xp.asarray(values, dtype=self.W.dtype)
        if not re.fullmatch("[A-Za-z_]+", name) or name in (*RESERVED, *(p.kind for p in self.added)):
            problem = f"expected letters, once in a layer, and none of {', '.join(RESERVED)}"
            raise ValueError(f"{type(self).__name__}: parameter name {name!r}: {problem}")
        if block.ndim != 2:
            raise ValueError(f"{type(self).__name__}: {name} is {block.shape}, expected (rows, columns)")
        matrix = DistDense(block, Layout(self.W.grid, Cut(), Cut()), block.shape)
        self.added.append(Parameter(f"{name}{self.index}", self.index, name, matrix, decays))
        return matrix

    def times(self, A: DistSparse, T: DistDense) -> DistDense:
        """Multiply T W, with T cut as A H is. Collective."""
        return A.weights.times(T, self.weights(A))

    def times_back(self, A: DistSparse, T: DistDense, G: DistDense) -> tuple[DistDense, DistDense]:
        """Multiply Tᵀ G and G Wᵀ. Collective."""
        dW, dT = A.weights.backward(T, G, self.weights(A))
        assert dT is not None
        return dW, dT

    def own(self, A: DistSparse, H: DistDense) -> DistDense:
        """Copy the rows of H that belong to the nodes of A's rows, cut as A H is. Collective.

        A network that calls this has ``needs_own = True``: minibatches come from samplers that keep these
        rows first.
        """
        return copy_rows(H, DistDense.empty(A.output_layout, (A.shape[0], H.shape[1]), H.dtype))

    def add_own(self, A: DistSparse, D: DistDense, dH: DistDense) -> None:
        """Add D, cut as A H is, to the rows of dH that :meth:`own` copies, in place. Collective."""
        if not D.layout.same(A.input_layout, D.shape):
            D = relayout(D, DistDense.empty(A.input_layout, D.shape, D.dtype))
        own = dH.block[: len(D.block)]
        own += D.block

    def total(self, X: DistDense, Y: DistDense) -> Array:
        """Add up all entries of X times those of Y, cut alike: (1, 1), the same on all ranks.

        Collective: an all-reduce of one word.
        """
        axes = *X.layout.row_axes, *X.layout.col_axes
        own = (X.block * Y.block).sum(dtype="float64").reshape(1, 1)
        return X.grid.along(*axes).allreduce(own, matrix="gradients").astype(X.dtype)

    # -- the network calls these -----------------------------------------------------------------------------

    def products(self, A: Any, mode: Mode) -> CustomProducts:
        return CustomProducts(self)


class CustomProducts:
    """Products by the two methods of a layer of your own."""

    keeps: Names = ()
    before_Z: Names = ()
    before_dH: Names = ()

    def __init__(self, layer: CustomLayer) -> None:
        self.layer, self.name = layer, type(layer).__name__

    def forward(
        self, A: Any, H: DistDense, W: DistDense, buffers: Buffers, then: Epilogue
    ) -> DistDense:  # fmt: skip
        self._begin(buffers)
        Z, kept = self.layer.propagate(A, H)
        wanted = A.shape[0], self.layer.shape[1]
        if Z.shape != wanted or not Z.layout.same(A.weights.output_layout, wanted):
            problem = f"propagate made {Z!r}, where times gives n x {wanted[1]}"
            raise ValueError(f"{self.name}: {problem} cut over {A.weights.output_layout.words()}")
        if buffers.plan.mode.keep:
            buffers.own = kept
            buffers.kept += ("H",) if any(X is H for X in kept) else ()
        return buffers.hold("Z", Z)

    def again(self, A: Any, H: DistDense, W: DistDense, buffers: Buffers) -> None:
        self.forward(A, H, W, buffers, Epilogue())

    def backward(
        self, A: Any, G: DistDense, W: DistDense | None, buffers: Buffers, then: Ending | None
    ) -> Gradients:  # fmt: skip
        self._begin(buffers)
        self.layer.need_input = W is not None
        kept, buffers.own = buffers.own, ()  # its memory is free after this
        gradients, dH = self.layer.propagate_back(A, kept, G)
        wanted = 1 + len(self.layer.added)
        if len(gradients) != wanted:
            problem = f"propagate_back gave {len(gradients)} gradients of {wanted} parameters"
            raise ValueError(f"{self.name}: {problem}")
        return [getattr(gradient, "block", gradient) for gradient in gradients], None if W is None else dH

    def _begin(self, buffers: Buffers) -> None:
        self.layer.epoch, self.layer.nodes = buffers.epoch, buffers.plan.nodes
