"""Graph attention (Veličković et al., ICLR 2018, equations 1 to 5): each node weighs its neighbours.

Of each head, with Y = H W and the stored entries (i, j) of A, whose values do not count:

    e_ij = leaky_relu(left · Y_i + right · Y_j),  P = softmax of e over each row,  Z = P Y

Heads stand beside each other in the columns of Y and Z. Operators on edges do the work, on every algorithm
that has them; W multiplies first, where A takes its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distgnn import rng
from distgnn.errors import ArgumentError
from distgnn.nn.custom import CustomLayer, Kept
from distgnn.nn.gcn import GCN
from distgnn.nn.layers import Options
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.operator import DistSparse
from distgnn.operators.weights import ReplicatedWeights

Array = Any
SLOPE = 0.2  # of leaky_relu, the paper's


class GraphAttention(CustomLayer):
    """A layer of graph attention; ``left`` and ``right``, (fan out, 1), are trained beside W.

    Args:
        heads: share the fan out evenly. ArgumentError, on ``hidden``: they do not.

    Words of a pass, beside those of its dense products: of ``A.edge_sum`` and ``A.multiply`` forward; of
    ``A.sddmm``, ``A.multiply_adjoint`` and ``column_sums`` backward, and of the sums of each softmax.
    """

    def __init__(
        self, A: DistSparse, index: int, shape: tuple[int, int], options: Options, heads: int = 1
    ) -> None:
        super().__init__(A, index, shape, options=options)
        if heads < 1 or shape[1] % heads:
            raise ArgumentError(
                "hidden", shape[1], f"must be shared evenly by the {heads} heads of layer {index}"
            )
        self.heads, xp = heads, A.grid.backend.xp
        both = rng.glorot(options.seed, -1 - index, (shape[1], 2), xp.arange(shape[1]), xp.arange(2), A.dtype)
        self.left, self.right = (
            self.add_parameter(name, both[:, k : k + 1].copy()) for k, name in enumerate(("left", "right"))
        )

    def propagate(self, A: DistSparse, H: DistDense) -> tuple[DistDense, Kept]:
        dense = ReplicatedWeights(A.input_layout)
        Y = dense.times(H, recut(self.weights(A), dense.weight_layout))
        s, t = (dense.times(Y, self._by_head(vector, dense)) for vector in (self.left, self.right))
        scores = A.edge_sum(self.own(A, s), t)
        P = scores.leaky_relu(SLOPE).softmax()
        return recut(A.multiply(Y, values=P), A.weights.output_layout), (H, Y, scores, P)

    def propagate_back(self, A: DistSparse, kept: Any, G: DistDense) -> tuple[list[Any], DistDense]:
        H, Y, scores, P = kept
        dense, G = ReplicatedWeights(A.input_layout), recut(G, A.output_layout)
        d = scores.leaky_relu_back(P.softmax_back(A.sddmm(G, Y, self.heads)), SLOPE)
        dY, dt = A.multiply_adjoint(G, values=P), d.column_sums()
        ds = dt.like(A.grid.backend.zeros(dt.block.shape, dt.dtype))
        self.add_own(A, d.row_sums(), ds)
        of_vectors = []
        for vector, gradient in ((self.left, ds), (self.right, dt)):
            by_head, through = dense.backward(Y, gradient, self._by_head(vector, dense))
            of_vectors.append(by_head.block[self._places()][:, None])
            dY += through
        dW, dH = dense.backward(H, dY, recut(self.weights(A), dense.weight_layout))
        assert dH is not None
        return [recut(dW, self.weights(A).layout), *of_vectors], dH

    def _places(self) -> tuple[Array, Array]:
        """Return the rows and columns of a matrix (fan out, heads) where each head has its columns."""
        columns = self.W.grid.backend.xp.arange(self.shape[1])
        return columns, columns // (self.shape[1] // self.heads)

    def _by_head(self, vector: DistDense, dense: ReplicatedWeights) -> DistDense:
        """Put a vector (fan out, 1) into the columns of its heads: (fan out, heads)."""
        shape = self.shape[1], self.heads
        block = self.W.grid.backend.zeros(shape, vector.dtype)
        block[self._places()] = vector.block[:, 0]
        return DistDense(block, dense.weight_layout, shape)


class GAT(GCN):
    """A network of graph attention layers, with ReLU between them; arguments as of :class:`GCN`.

    Args:
        heads: of each layer but the last, or of each layer; the last one has one by default. Hidden widths
            count all heads together.
    """

    needs_own = True

    def __init__(
        self, A: DistSparse, widths: Sequence[int], *args: Any, heads: int | Sequence[int] = 8, **options: Any
    ) -> None:
        number = len(widths) - 1
        self.heads = [heads] * (number - 1) + [1] if isinstance(heads, int) else list(heads)
        if len(self.heads) != number:
            raise ArgumentError("heads", heads, f"expected a number, or one for each of {number} layers")
        super().__init__(A, widths, *args, **options)

    def convolution(  # type: ignore[override]
        self, A: DistSparse, index: int, shape: tuple[int, int], options: Options
    ) -> GraphAttention:
        """Make a layer."""
        return GraphAttention(A, index, shape, options, self.heads[index])
