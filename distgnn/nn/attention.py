"""Common parts of attention layers: heads, dropout of attention, means over the last layer's heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import ledger, rng
from distgnn.errors import ArgumentError
from distgnn.local import edges as entries
from distgnn.local import elementwise
from distgnn.local.initial import glorot
from distgnn.nn.custom import CustomLayer
from distgnn.nn.dropout import mask_key
from distgnn.nn.layers import Options
from distgnn.nn.products import SparseInput
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.edges import DistEdges, Masked, Through
from distgnn.operators.operator import DistSparse
from distgnn.operators.weights import ReplicatedWeights

Array = Any
SLOPE = 0.2  # of leaky_relu, the papers'


class Attention(CustomLayer):
    """A layer whose heads weigh the neighbours of each node: the base of those of GAT and GATv2.

    Heads stand beside each other in the columns of Y and Z.

    Args:
        heads: share the fan out evenly; with ``mean`` each has a fan out of its own, and Z is their mean.
        attention_dropout: the share of the weights, after softmax, that is dropped in training. Which ones is
            a function of (seed, epoch, layer, head, nodes at both ends).

    Raises:
        ArgumentError: on ``hidden``, heads that do not divide it; on ``attention_dropout``, no share.
    """

    of_sparse = SparseInput  # whose first product the layers make by themselves

    def __init__(
        self, A: DistSparse, index: int, shape: tuple[int, int], options: Options, heads: int = 1,
        mean: bool = False, attention_dropout: float = 0.0,
    ) -> None:  # fmt: skip
        self.heads, self.mean = heads, mean and heads > 1
        if heads < 1 or (shape[1] % heads and not mean):
            problem = f"must be shared evenly by the {heads} heads of layer {index}"
            raise ArgumentError("hidden", shape[1], problem)
        if not 0 <= attention_dropout < 1:
            problem = "must be at least 0 and less than 1"
            raise ArgumentError("attention_dropout", attention_dropout, problem)
        super().__init__(A, index, shape, options=options)
        self.rate = attention_dropout
        self._numbers = A.grid.backend.xp.arange(self.heads)
        self._taken: dict[bool, Array] = {}  # see `_means`

    @property
    def columns(self) -> int:
        """Columns of all heads together."""
        return self.shape[1] * (self.heads if self.mean else 1)

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Global shape of the weights: inputs, columns of all heads."""
        return self.shape[0], self.columns

    def vectors(self, A: DistSparse, number: int) -> list[Array]:
        """Draw weights of attention, (columns, 1) each: Glorot's of a head's columns and one score."""
        xp, rows = A.grid.backend.xp, A.grid.backend.xp.arange(self.columns)
        shape = self.columns // self.heads, 1
        both = glorot(self.options.seed, -1 - self.index, shape, rows, xp.arange(number), A.dtype)
        return [both[:, k : k + 1].copy() for k in range(number)]

    # -- dropout of attention --------------------------------------------------------------------------------

    def dropped(self, A: DistSparse, E: DistEdges) -> DistEdges | Masked:
        """Return edges that products multiply by the mask of this pass. Collective, as :meth:`mask`."""
        mask = self.mask(A)
        return E if mask is None else E.masked(mask)

    def mask(self, A: DistSparse) -> Through | None:
        """Return what multiplies numbers of entries by the mask of this pass, 0 or 1 / (1 - rate), in place.

        None without dropout. The mask is its own adjoint. Collective. Cost: the first time for a graph, that
        of ``A.edge_sum`` with one head in float64.
        """
        if self.epoch is None or self.rate == 0:
            return None
        names, heads = self._names(A), self._numbers
        k = mask_key(self.epoch, self.options.seed, rng.ATTENTION, self.index)
        return lambda E, part: elementwise.dropout(E, E, k, names[part], heads, 1 - self.rate)

    def _names(self, A: DistSparse) -> Array:
        """Return a number by the nodes at its ends for each entry on this rank, int64. Collective."""
        pattern, layout, on = A.pattern, A.input_layout, A.grid.backend
        if pattern.names is not None:
            return pattern.names
        shape = A.shape[1], A.grid.count(*layout.col_axes)  # a column for every rank that has some
        ends = (on.xp.ascontiguousarray(x[:, None]) for x in rng.ends(on.asarray(self.nodes)))
        by_row, by_column = (DistDense(block, layout, shape) for block in ends)
        rows, sums = recut(self.own(A, by_row), pattern.row_layout).block, on.empty((pattern.size, 1), float)
        with pattern.whole_columns(by_column) as columns:
            for block, place, read in zip(pattern.blocks, pattern.places, columns, strict=True):
                u, v = (on.xp.ascontiguousarray(x[:, :1]) for x in (rows, read))
                entries.end_sums(block, u, v, sums[place])
        pattern.names = sums[:, 0].astype(np.int64)
        ledger.holds(pattern, "edges", pattern.names.nbytes)
        return pattern.names

    # -- rows of a layer's own nodes, and means over heads ---------------------------------------------------

    def own_rows(self, A: DistSparse, H: DistDense) -> DistDense:
        """Return the rows of H that belong to A's rows, cut as A H is: without a copy where H is cut so."""
        part = self.part_of(A, H)
        return self.own(A, H) if part is None else part

    def part_of(self, A: DistSparse, H: DistDense) -> DistDense | None:
        """Return the rows of H that belong to A's rows, in H's memory; None where H is cut unlike A H."""
        shape = A.shape[0], H.shape[1]
        if not H.layout.same(A.output_layout, H.shape):
            return None
        return DistDense(H.block[: A.output_layout.local_shape(shape)[0]], A.output_layout, shape)

    def spread_own(self, A: DistSparse, D: DistDense, like: DistDense) -> DistDense:
        """Give D, cut as A H is, in the rows that :meth:`own` copies of such a matrix, 0 in others."""
        if D.layout.same(like.layout, like.shape) and D.shape == like.shape:
            return D
        all_rows = like.like(A.grid.backend.zeros(like.block.shape, like.dtype))
        self.add_own(A, D, all_rows)
        return all_rows

    def joined(self, A: DistSparse, Z: DistDense) -> DistDense:
        """Give Z of all heads as the layer's output: cut as such, with ``mean`` the mean of the heads."""
        dense = ReplicatedWeights(A.output_layout)
        return recut(dense.times(Z, self._means(dense)) if self.mean else Z, A.weights.output_layout)

    def joined_back(self, A: DistSparse, G: DistDense) -> DistDense:
        """Return the gradient of Z of all heads from that of the output."""
        G, dense = recut(G, A.output_layout), ReplicatedWeights(A.output_layout)
        return dense.times(G, self._means(dense, back=True)) if self.mean else G

    def _means(self, dense: ReplicatedWeights, back: bool = False) -> DistDense:
        """Make the matrix (columns, fan out) that takes means over heads, or transpose it."""
        if back not in self._taken:
            width, on = self.shape[1], self.W.grid.backend
            block, columns = on.zeros((self.columns, width), self.W.dtype), on.xp.arange(self.columns)
            block[columns, columns % width] = self.W.dtype.type(1 / self.heads)
            self._taken[back] = on.xp.ascontiguousarray(block.T) if back else block
        return DistDense(self._taken[back], dense.weight_layout, self._taken[back].shape)


def replicated(dense: ReplicatedWeights, matrix: DistDense) -> DistDense:
    """Give an added parameter as these dense products take it: on a minibatch's grid, too."""
    return DistDense(matrix.block, dense.weight_layout, matrix.shape)
