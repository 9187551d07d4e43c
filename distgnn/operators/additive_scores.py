"""Additive attention on stored entries, a · leaky_relu(L_i + R_j), on every algorithm (Brody et al., 2022).

Rows of R travel as for ``A @ R``; where features are cut, scores are summed over their axis. With s = 1 where
an entry's sum is positive, else the slope, and d the gradient of the scores, the way back is

    M_ic = Σ_j d_ij s_ijc,  N_jc = Σ_i d_ij s_ijc,  dL = a M,  dR = a N,  da = Σ_i L_ic M_ic + Σ_j R_jc N_jc

for which one bit of each s is kept, and no rows travel again but the partial sums of N.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.comm.panels import summed
from distgnn.local import additive, elementwise
from distgnn.local import edges as entries
from distgnn.operators import summed as sums
from distgnn.operators.compared import compare
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.edge_pattern import EdgePattern
from distgnn.operators.edges import DistEdges
from distgnn.operators.edges_of_planes import PlaneEdges, ShardEdges
from distgnn.operators.edges_of_rows import BlockRowEdges

Array = Any
#: Called with the number of a block or panel, it, and the rows of L and R, to make scores in the last array.
Forward = Callable[[int, CSR, Array, Array, Array], Any]
#: Called with the number of a block or panel, it, its values, and room; for Aᵀ with the order of its entries.
Back = Callable[..., Any]


class AdditiveScores(DistEdges):
    """Scores a · leaky_relu(L_i + R_j) of the stored entries; ``A.additive_scores`` makes them.

    They hold L and R as A takes them, and beside their numbers a bit for each entry and column.
    """

    __slots__ = ("a", "left", "right", "signs", "slope", "way")

    def __init__(
        self, way: Way, left: DistDense, right: DistDense, a: Array, heads: int, slope: float
    ) -> None:
        pattern, on = way.pattern, way.pattern.grid.backend
        super().__init__(pattern, on.empty((pattern.size, heads), pattern.dtype))
        self.way, self.left, self.right, self.a, self.slope = way, left, right, a, slope
        width = additive.sign_bytes(right.block.shape[1])
        self.signs = [on.empty((size, width), np.uint8) for size in way.sizes]
        ledger.holds(self, "edges", sum(signs.nbytes for signs in self.signs))
        own, bounds = a[slice(*right.col_range)], self._bounds()

        def apply(k: int, block: CSR, L: Array, R: Array, out: Array) -> None:
            additive.scores(block, L, R, own, bounds, slope, out, self.signs[k])

        way.forward(self, left, right, apply)

    def back(self, gradient: DistEdges) -> tuple[DistDense, DistDense, Array]:
        """Return the gradients of L, R and a from that of these scores. Collective.

        dL is cut as L was given, dR as R; da is an array (f) of the grid's backend, on every rank.

        Cost: of :meth:`multiply_adjoint` with f columns, and where a product's panels of A travel, those
        twice; two all-reduces of f words; where L and R are redistributed, so are dL and dR.
        """
        compare("scores, back", E=self, gradient=gradient)
        numbers = self.like(self._operand(gradient))
        M, N = (DistDense.empty(X.layout, X.shape, X.dtype) for X in (self.left, self.right))
        bounds = self._bounds()

        def rows(k: int, block: CSR, values: Array, out: Array, add: bool = False) -> None:
            additive.slope_sums(block, values, self.signs[k], self.slope, bounds, out, add)

        def columns(k: int, block: CSR, values: Array, order: Array, out: Array) -> None:
            additive.slope_sums(block, values, self.signs[k], self.slope, bounds, out, order=order)

        self.way.onto_rows(numbers, M, rows)
        self.way.onto_columns(numbers, N, columns)
        da = self._gradient_of_a(self.left, M) + self._gradient_of_a(self.right, N)
        for X in (M, N):
            X.block *= self.a[slice(*X.col_range)]
        A = self.pattern.A
        return recut(M, A.output_layout), recut(N, A.input_layout), da

    def _bounds(self) -> list[int]:
        """Return where each head begins and ends in this rank's columns."""
        return self.pattern.bounds(self.heads, self.right)

    def _gradient_of_a(self, X: DistDense, sums_of_X: DistDense) -> Array:
        """Sum X times its sums by column, over all rows. Collective."""
        grid = self.pattern.grid
        da = grid.backend.zeros((1, X.shape[1]), self.dtype)
        da[:, slice(*X.col_range)] = elementwise.column_sums(X.block * sums_of_X.block)
        grid.along(*X.layout.row_axes, *X.layout.col_axes).allreduce(da, matrix="gradients")
        return da[0]


def additive_scores(
    pattern: EdgePattern, L: DistDense, R: DistDense, a: Array, heads: int, slope: float
) -> AdditiveScores:
    """Compute the scores, with L and R cut as a product takes them. Collective."""
    way = next((kind(pattern) for known, kind in WAYS.items() if isinstance(pattern, known)), Alone(pattern))
    return AdditiveScores(way, recut(L, way.left), recut(R, way.right), a, heads, slope)


class Way(ABC):
    """Part that depends on the algorithm: where entries are, how rows of L, R and gradients reach them.

    Attributes:
        left, right: how L and R are cut meanwhile; sizes: entries of each block or panel that comes by.
    """

    def __init__(self, pattern: Any) -> None:
        self.pattern, A = pattern, pattern.A
        self.left, self.right = A.output_layout, A.input_layout
        self.sizes = [block.nnz for block in pattern.blocks]

    @abstractmethod
    def forward(self, E: DistEdges, L: DistDense, R: DistDense, apply: Forward) -> None:
        """Make the scores in E. Collective."""

    @abstractmethod
    def onto_rows(self, E: DistEdges, M: DistDense, apply: Back) -> None:
        """Sum over the entries of each row. Collective."""

    @abstractmethod
    def onto_columns(self, E: DistEdges, N: DistDense, apply: Back) -> None:
        """Sum over the entries of each column. Collective."""

    def _of_block(self, E: DistEdges, k: int) -> tuple[Array, Array]:
        """Return the numbers of an own block's entries as the transposed block has them, and their order."""
        block = self.pattern.blocks[k]
        return entries.permuted(block, E.data[self.pattern.places[k]]), entries.transposition(block)


class Alone(Way):
    """One rank has everything: the block of a minibatch."""

    def forward(self, E: DistEdges, L: DistDense, R: DistDense, apply: Forward) -> None:
        apply(0, self.pattern.A.A, L.block, R.block, E.data)

    def onto_rows(self, E: DistEdges, M: DistDense, apply: Back) -> None:
        apply(0, self.pattern.A.A, E.data, M.block)

    def onto_columns(self, E: DistEdges, N: DistDense, apply: Back) -> None:
        apply(0, self.pattern.A.At, *self._of_block(E, 0), N.block)


class Rows(Way):
    """Block rows: rows of R come to the entries, as for a product of the same algorithm."""

    def __init__(self, pattern: BlockRowEdges) -> None:
        super().__init__(pattern)
        self.right, self.left = pattern.inner

    def forward(self, E: DistEdges, L: DistDense, R: DistDense, apply: Forward) -> None:
        p = self.pattern
        with p.pairs.rows_of(R.block) as pairs:
            for k, ((_, R_j), block, place) in enumerate(zip(pairs, p.blocks, p.places, strict=True)):
                apply(k, block, L.block, R_j, E.data[place])
        p.features.allreduce(E.data, matrix="sums")

    def onto_rows(self, E: DistEdges, M: DistDense, apply: Back) -> None:
        p = self.pattern
        for k, (block, place) in enumerate(zip(p.blocks, p.places, strict=True)):
            apply(k, block, E.data[place], M.block, k > 0)
        if not p.blocks:
            M.block[...] = 0
        if p.reps is not None:
            sums.add_up(p.grid, p.reps, M.block)

    def onto_columns(self, E: DistEdges, N: DistDense, apply: Back) -> None:
        p = self.pattern
        with (self._panels if p.whole else self._needed)(N) as blocks:
            for k, At, C in blocks:
                apply(k, At, *self._of_block(E, k), C)
        if p.reps is not None:  # the one process column with the stage has the sum
            s = -(-p.grid.shape["rows"] // p.grid.shape["reps"])
            p.reps.bcast(N.block, p.grid.coords["rows"] // s, matrix="sums")

    @contextmanager
    def _needed(self, N: DistDense) -> Iterator[Iterator[tuple[int, CSR, Array]]]:
        """Give the transposed blocks of needed rows, and room for what is added up: groups in reverse."""
        A, numbers = self.pattern.pairs, range(len(self.pattern.blocks))
        first = [0] if A.diagonal is not None else []
        with A.sums_in(N.block) as pairs:
            order = [*numbers[len(first) :][::-1], *first]
            yield ((k, At, C) for k, (At, C) in zip(order, pairs, strict=True))

    @contextmanager
    def _panels(self, N: DistDense) -> Iterator[Iterator[tuple[int, CSR, Array]]]:
        """Give the transposed blocks of whole panels, and room: in an order that is the same on all ranks."""
        p, A, transposed = self.pattern, self.pattern.pairs, self.pattern.transposed
        shapes = [(cut.stop - cut.start, N.block.shape[1]) for cut in A.rows]
        own = lambda stage: N.block[A.rows[stage]]  # noqa: E731
        with summed(p.grid, A.comm, A.roots, own, shapes, N.dtype) as panels:
            order = np.argsort(A.turns).tolist()
            yield ((k, transposed[k], C) for k, C in zip(order, panels, strict=True))


class Planes(Way):
    """Planes of processes: A's panels and their numbers travel along a row, rows of R along a column."""

    def __init__(self, pattern: PlaneEdges) -> None:
        super().__init__(pattern)
        self.sizes = [nnz for _, nnz, _, _ in pattern.plane.A.headers]

    def forward(self, E: DistEdges, L: DistDense, R: DistDense, apply: Forward) -> None:
        p, plane = self.pattern, self.pattern.plane
        roots, shapes = p._shapes(E.heads)
        own = lambda k: E.data[p.numbers[k]]  # noqa: E731
        with p._rows_of_block(L) as rows, ExitStack() as stack:
            how = plane.row, roots, own, shapes, E.dtype, "partial edges"
            sums_of_E = stack.enter_context(summed(p.grid, *how))
            panels, panels_of_R = map(stack.enter_context, (plane.A.broadcast(), plane._broadcast(R.block)))
            for q, (E_q, A_q, R_q) in enumerate(zip(sums_of_E, panels, panels_of_R, strict=True)):
                apply(q, A_q, rows, R_q, E_q)

    def onto_rows(self, E: DistEdges, M: DistDense, apply: Back) -> None:
        p, plane = self.pattern, self.pattern.plane
        with p._whole(M) as whole, ExitStack() as stack:
            panels = stack.enter_context(plane.A.broadcast())
            numbers = stack.enter_context(p._broadcast(E, transposed=False))
            for q, (A_q, E_q) in enumerate(zip(panels, numbers, strict=True)):
                apply(q, A_q, E_q, whole, q > 0)
            if not plane.panels:
                whole[...] = 0

    def onto_columns(self, E: DistEdges, N: DistDense, apply: Back) -> None:
        p, plane = self.pattern, self.pattern.plane
        with plane._summed(N.block) as sums_of_N, ExitStack() as stack:
            panels = stack.enter_context(plane.At.broadcast())
            numbers = stack.enter_context(p._broadcast(E, transposed=True))
            for k, (N_k, At_k, E_k) in enumerate(zip(sums_of_N, panels, numbers, strict=True)):
                apply(k, At_k, E_k, _inverse(entries.transposition(At_k)), N_k)


class Shards(Way):
    """Shards of 3D: rows of R are gathered, and scores summed over the axis that cuts the features."""

    def forward(self, E: DistEdges, L: DistDense, R: DistDense, apply: Forward) -> None:
        p = self.pattern
        with p._plane_block(R) as rows:
            apply(0, p.A.A, L.block, rows, E.data)
        p.features.allreduce(E.data, matrix="sums")

    def onto_rows(self, E: DistEdges, M: DistDense, apply: Back) -> None:
        A = self.pattern.A
        apply(0, A.A, E.data, M.block)
        sums.add_up(A.grid, A.contract, M.block)

    def onto_columns(self, E: DistEdges, N: DistDense, apply: Back) -> None:
        A = self.pattern.A
        if not A.sharded:
            apply(0, A.plane.At, *self._of_block(E, 0), N.block)
            sums.add_up(A.grid, A.out, N.block)
            return
        with A._plane_block(N) as room:
            apply(0, A.plane.At, *self._of_block(E, 0), room)
            A.out.reduce_scatter_rows(room, A.shares, N.block, "sums")


def _inverse(order: Array) -> Array:
    """Return where each place stands in an order of them."""
    inverse = order.copy()
    inverse[order] = backend.of(order).xp.arange(len(order), dtype=order.dtype)
    return inverse


#: By kind of pattern; all others are on one rank.
WAYS: dict[type[EdgePattern], type[Way]] = {BlockRowEdges: Rows, PlaneEdges: Planes, ShardEdges: Shards}
