"""Graph attention whose ranking of neighbours depends on the node (Brody, Alon and Yahav, ICLR 2022, GATv2).

Of each head, with L = H W_l and R = H W, and the stored entries (i, j) of A, whose values do not count:

    e_ij = a · leaky_relu(L_i + R_j),  P = softmax of e over each row,  Z = dropout(P) R

as PyG's GATv2Conv without shared weights has it, but for biases of L and R.
"""

from __future__ import annotations

from typing import Any

from distgnn.local.initial import glorot
from distgnn.nn.attention import SLOPE, Attention, replicated
from distgnn.nn.custom import Kept
from distgnn.nn.gat import GAT
from distgnn.nn.layers import Options
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.edge_products import attention_back
from distgnn.operators.operator import DistSparse
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.operators.weights import ReplicatedWeights

LEFT = -(1 << 16)  #: Of layer l, draws of W_l are those of layer LEFT - l.


class DynamicAttention(Attention):
    """A layer of GATv2; ``left``, W_l (fan in, columns), and ``attention``, a (columns, 1), are trained too.

    Words of a pass, beside those of its dense products: of ``A.additive_scores`` and ``A.multiply`` forward;
    of ``A.sddmm``, ``A.multiply_adjoint`` and ``scores.back`` backward, and of the sums of each softmax.
    """

    def __init__(
        self, A: DistSparse, index: int, shape: tuple[int, int], options: Options, heads: int = 1,
        mean: bool = False, attention_dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(A, index, shape, options, heads, mean, attention_dropout)
        xp, whole = A.grid.backend.xp, self.weight_shape
        places = xp.arange(whole[0]), xp.arange(whole[1])
        left = glorot(options.seed, LEFT - index, whole, *places, A.dtype)
        self.left = self.add_parameter("left", left, decays=True)
        self.attention = self.add_parameter("attention", self.vectors(A, 1)[0], decays=True)

    def propagate(self, A: DistSparse, H: Any) -> tuple[DistDense, Kept]:
        to_right, to_left = ReplicatedWeights(A.input_layout), ReplicatedWeights(A.output_layout)
        R = to_right.times(H, recut(self.weights(A), to_right.weight_layout))
        if isinstance(H, SparseFeatures):  # of which no rows are picked
            own, L = None, self.own(A, to_right.times(H, replicated(to_right, self.left)))
        else:
            own = self.own_rows(A, H)
            L = to_left.times(own, replicated(to_left, self.left))
        scores = A.additive_scores(L, R, self.attention.block[:, 0], self.heads, SLOPE)
        P = scores.softmax(overwrite=True)  # of the scores, signs are all that the way back needs
        return self.joined(A, A.multiply(R, values=self.dropped(A, P))), (H, own, R, scores, P)

    def propagate_back(self, A: DistSparse, kept: Any, G: DistDense) -> tuple[list[Any], DistDense | None]:
        H, own, R, scores, P = kept
        to_right, to_left = ReplicatedWeights(A.input_layout), ReplicatedWeights(A.output_layout)
        G = self.joined_back(A, G)
        through_product = A.multiply_adjoint(G, values=self.dropped(A, P))
        dL, dR, da = scores.back(attention_back(P, G, R, self.mask(A)))
        dR += through_product
        W = recut(self.weights(A), to_right.weight_layout) if self.need_input else None
        dW, dH = to_right.backward(H, dR, W)
        if own is None:
            d_left, d_own = to_right.backward(H, self.spread_own(A, dL, dR))
        else:
            left = replicated(to_left, self.left) if self.need_input else None
            into = None if dH is None else self.part_of(A, dH)
            d_left, d_own = to_left.backward(own, dL, left, into, add=into is not None)
            if dH is not None and d_own is not None and into is None:
                self.add_own(A, d_own, dH)
        return [recut(dW, self.weights(A).layout), d_left, da[:, None]], dH


class GATv2(GAT):
    """A network of GATv2 layers, with ELU between them; arguments and errors as of :class:`GAT`."""

    layer = DynamicAttention
