"""Graph attention (Veličković et al., ICLR 2018, equations 1 to 6): each node weighs its neighbours.

Of each head, with Y = H W and the stored entries (i, j) of A, whose values do not count:

    e_ij = leaky_relu(left · Y_i + right · Y_j),  P = softmax of e over each row,  Z = dropout(P) Y

Operators on edges do the work, on every algorithm that has them; W multiplies first, where A takes its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distgnn.errors import ArgumentError
from distgnn.nn.activation import ELU
from distgnn.nn.attention import SLOPE, Attention
from distgnn.nn.custom import Kept
from distgnn.nn.gcn import GCN
from distgnn.nn.layers import Options
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.operator import DistSparse
from distgnn.operators.weights import ReplicatedWeights

Array = Any


class GraphAttention(Attention):
    """A layer of graph attention; ``left`` and ``right``, (columns, 1), are trained beside W.

    Words of a pass, beside those of its dense products: of ``A.edge_softmax`` and ``A.multiply`` forward; of
    ``A.multiply_adjoint`` and ``A.attention_back`` backward.
    """

    def __init__(
        self, A: DistSparse, index: int, shape: tuple[int, int], options: Options, heads: int = 1,
        mean: bool = False, attention_dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(A, index, shape, options, heads, mean, attention_dropout)
        left, right = self.vectors(A, 2)
        self.left = self.add_parameter("left", left, decays=True)
        self.right = self.add_parameter("right", right, decays=True)

    def propagate(self, A: DistSparse, H: Any) -> tuple[DistDense, Kept]:
        dense = ReplicatedWeights(A.input_layout)
        Y = dense.times(H, recut(self.weights(A), dense.weight_layout))
        s, t = dense.by_head(Y, self._vectors(), self.heads)
        P = A.edge_softmax(self.own_rows(A, s), t, SLOPE)
        return self.joined(A, A.multiply(Y, values=self.dropped(A, P))), (H, Y, P)

    def propagate_back(self, A: DistSparse, kept: Any, G: DistDense) -> tuple[list[Any], DistDense | None]:
        H, Y, P = kept
        dense, G = ReplicatedWeights(A.input_layout), self.joined_back(A, G)
        dY = A.multiply_adjoint(G, values=self.dropped(A, P))
        own, dt = A.attention_back(P, G, Y, self.mask(A))
        del G  # of all heads, whose place what is added to dY takes
        ds = self.spread_own(A, own, dt)
        of_vectors = dense.by_head_back(Y, self._vectors(), (ds, dt), dY)
        W = recut(self.weights(A), dense.weight_layout) if self.need_input else None
        dW, dH = dense.backward(H, dY, W)
        return [recut(dW, self.weights(A).layout), *(vector[:, None] for vector in of_vectors)], dH

    def _vectors(self) -> list[Array]:
        return [vector.block[:, 0] for vector in (self.left, self.right)]


class GAT(GCN):
    """A network of graph attention layers, with ELU between them; arguments as of :class:`GCN`.

    Args:
        heads: of each layer, or of each but the last, which has one then. Hidden widths count all heads
            together; of several heads in the last layer the mean is taken.
        attention_dropout: the share of attention that is dropped in training.

    Raises:
        ArgumentError: heads that do not divide their layer's width, or are not as many as layers (on every
            rank); and as GCN.
    """

    needs_own = attends = True
    activation = ELU
    layer: type[Attention] = GraphAttention

    def __init__(
        self, A: DistSparse, widths: Sequence[int], *args: Any, heads: int | Sequence[int] = 8,
        attention_dropout: float = 0.0, **options: Any,
    ) -> None:  # fmt: skip
        self.heads, self.attention_dropout = spread(heads, len(widths) - 1), float(attention_dropout)
        super().__init__(A, widths, *args, **options)

    @property
    def draws(self) -> bool:
        return super().draws or self.attention_dropout > 0

    def convolution(  # type: ignore[override]
        self, A: DistSparse, index: int, shape: tuple[int, int], options: Options
    ) -> Attention:
        """Make a layer."""
        last = index == len(self.heads) - 1
        return self.layer(A, index, shape, options, self.heads[index], last, self.attention_dropout)


def spread(heads: int | Sequence[int], layers: int) -> list[int]:
    """Return the heads of each layer; ArgumentError for another number of them than of layers."""
    given = [heads] * (layers - 1) + [1] if isinstance(heads, int) else list(heads)
    given = given * (layers - 1) + [1] if len(given) == 1 < layers else given
    if len(given) != layers or min(given) < 1:
        problem = f"expected one number, at least 1, or one for each of {layers} layers"
        raise ArgumentError("heads", heads, problem)
    return given
