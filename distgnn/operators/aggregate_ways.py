"""Products over semirings by algorithm: the loops of ``A @ H``, where another pass stands for the product."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from distgnn.comm.panels import summed
from distgnn.layout import Range, block
from distgnn.operators import summed as sums
from distgnn.operators.aggregate_columns import Columns
from distgnn.operators.aggregate_passes import Pass
from distgnn.operators.by_columns import by_columns
from distgnn.operators.dense import DistDense
from distgnn.operators.kept import cached_property

Array = Any


class Way(ABC):
    """Loops in which an algorithm's blocks meet rows of H. All is collective.

    Attributes:
        A: the operator; pattern: where its entries are; columns: that this rank's blocks read.
    """

    def __init__(self, A: Any) -> None:
        self.A, self.grid, self.pattern = A, A.grid, A.pattern

    @cached_property
    def columns(self) -> Columns:
        return Columns.of(self.grid, self.A.input_layout.rows, self.ranges(), self.A.dtype)

    @abstractmethod
    def ranges(self) -> list[Range]:
        """Return the columns of A of each block."""

    @abstractmethod
    def forward(self, work: Pass, H: DistDense, T: DistDense) -> None:
        """Compute T of H."""

    @abstractmethod
    def backward(self, work: Pass, G: DistDense, F: DistDense) -> None:
        """Compute the gradient F of H from that of T."""

    def nodes(self, held: list[Array], N: DistDense) -> None:
        """Put the nodes of codes into N, int64, in ``A.output_layout``."""
        N.block[...] = self.columns.nodes_of(held[0])


class OfOneRank(Way):
    """A matrix that one rank has all of."""

    @cached_property
    def columns(self) -> Columns:
        return Columns(self.grid, [range(self.A.shape[1])], self.A.dtype)

    def ranges(self) -> list[Range]:
        return [(0, self.A.shape[1])]

    def forward(self, work: Pass, H: DistDense, T: DistDense) -> None:
        work.begin(T.block)
        work.product(0, self.A.A, H.block, T.block, False)
        work.complete(T.block)
        work.end()

    def backward(self, work: Pass, G: DistDense, F: DistDense) -> None:
        work.back(0, self.A.At, G.block, F.block)


class OfBlockRows(Way):
    """Block rows: 1D, 1.5D, and RDM by columns."""

    def __init__(self, A: Any) -> None:
        super().__init__(A)
        self.reps = A.grid.along("reps") if "reps" in A.grid.shape else None
        self.row = A.grid.along("cols") if A.column_axis else None

    def ranges(self) -> list[Range]:
        A, blocks = self.A, self.A.A  # whole blocks, in turns
        starts = [A.col_parts[blocks.roots[turn]] for turn in blocks.turns]
        rows = [blocks.rows[turn] for turn in blocks.turns]
        return [(int(s) + own.start, int(s) + own.stop) for s, own in zip(starts, rows, strict=True)]

    @cached_property
    def columns(self) -> Columns:
        A, cut = self.A, self.A.input_layout.rows
        if not A.sparsity_aware:
            return Columns.of(self.grid, cut, self.ranges(), A.dtype)
        with self.grid.world.together():
            ids = lambda j: cut.ids(*block(A.col_parts, j))  # noqa: E731
            nodes = [ids(A.column.rank)] if A.A.diagonal is not None else []
            needed = A.A.rows.needed
            for _, ranks, _ in A.A.groups:
                given = [ids(j)[self.grid.backend.to_host(needed[j])] for j in ranks if j in needed]
                nodes.append(np.concatenate(given))
        return Columns(self.grid, nodes, A.dtype)

    def forward(self, work: Pass, H: DistDense, T: DistDense) -> None:
        _ = self.columns  # before rows travel
        with self._parts(H, T, "H") as parts:
            for X, Y in parts:
                work.begin(Y)
                self._product(work, X, Y)
                work.end()

    def _product(self, work: Pass, H: Array, T: Array) -> None:
        last = len(self.A.A) - 1
        with self.A.A.rows_of(H) as pairs:
            for k, (A_k, H_k) in enumerate(pairs):
                if self.reps is None or k < last:
                    work.product(k, A_k, H_k, T, k > 0)
                else:
                    work.last(self.grid, self.reps, k, A_k, H_k, T, k > 0)
        if last < 0:
            work.nothing(T)
            if self.reps is not None:
                work.last(self.grid, self.reps, 0, None, H, T, False)
        if self.reps is None:
            work.complete(T)

    def backward(self, work: Pass, G: DistDense, F: DistDense) -> None:
        self._prepare()
        whole = self._whole if not self.A.sparsity_aware else self._needed
        with self._parts(G, F, "G") as parts:
            for X, Y in parts:
                whole(work, X, Y)
                work.held[:1] = []
                if self.reps is not None:  # the one process column with the stage has the sum
                    s = -(-self.grid.shape["rows"] // self.grid.shape["reps"])
                    self.reps.bcast(Y, self.grid.coords["rows"] // s, matrix="sums", narrow=True)

    def _prepare(self) -> None:
        """Make what the way back needs beside A, before messages are under way."""
        _ = self.columns
        if self.A.sparsity_aware:
            self.A.A.prepare(adjoint=True)
        else:
            _ = self.pattern.transposed

    def _needed(self, work: Pass, G: Array, F: Array) -> None:
        """Add up needed rows: the groups of A in reverse, then the diagonal block."""
        order = list(range(len(self.A.A)))
        own = [0] if self.A.A.diagonal is not None else []
        with self.A.A.sums_in(F) as pairs:
            for k, (At, C) in zip([*order[len(own) :][::-1], *own], pairs, strict=True):
                work.back(k, At, G, C)

    def _whole(self, work: Pass, G: Array, F: Array) -> None:
        """Add up panels on the ranks that have them, in an order that is the same on all ranks."""
        A = self.A.A
        shapes = [(cut.stop - cut.start, F.shape[1]) for cut in A.rows]
        own = lambda stage: F[A.rows[stage]]  # noqa: E731
        with summed(self.grid, A.comm, A.roots, own, shapes, F.dtype) as panels:
            for k, C in zip(np.argsort(A.turns).tolist(), panels, strict=True):
                work.back(k, self.pattern.transposed[k], G, C)

    @contextmanager
    def _parts(self, X: DistDense, Y: DistDense, matrix: str) -> Iterator[Iterable[tuple[Array, Array]]]:
        """Give blocks of the rows of A: this rank's, or some columns of the process row's at a time."""
        if self.row is None or self.row.size == 1:
            yield [(X.block, Y.block)]
            return
        heights = self.A.heights(X), self.A.heights(Y)
        with by_columns(self.grid, self.row, X.block, Y.block, heights, matrix) as parts:
            yield parts

    def nodes(self, held: list[Array], N: DistDense) -> None:
        xp = self.grid.backend.xp
        own = [self.columns.nodes_of(C).astype(np.int64) for C in held]
        if self.row is not None and self.row.size > 1:
            inner = DistDense(xp.concatenate(own, axis=1), self.A.inner_layouts[1], N.shape)
            N.block = inner.redistribute(N.layout).block
            return
        N.block[...] = own[0] if self.reps is None else self.reps.allreduce(own[0], "max", matrix="nodes")


class OfPlane(Way):
    """Planes of processes: 2D, and a layer of Split-3D."""

    def ranges(self) -> list[Range]:
        return [panel.columns for panel in self.A.plane.panels]

    def forward(self, work: Pass, H: DistDense, T: DistDense) -> None:
        _ = self.columns
        work.begin(T.block)
        self._product(work, H.block, T.block)
        work.complete(T.block)
        work.end()

    def _product(self, work: Pass, H: Array, T: Array) -> None:
        plane = self.A.plane
        with plane.A.broadcast() as panels, plane._broadcast(H) as panels_of_H:
            for q, (A_q, H_q) in enumerate(zip(panels, panels_of_H, strict=True)):
                work.product(q, A_q, H_q, T, q > 0)
        if not plane.panels:
            work.nothing(T)

    def backward(self, work: Pass, G: DistDense, F: DistDense) -> None:
        self._back(work, G.block, F.block)

    def _back(self, work: Pass, G: Array, F: Array) -> None:
        plane = self.A.plane
        with plane._summed(F) as panels_of_F, plane.At.broadcast() as transposed:
            for k, (F_k, At_k) in enumerate(zip(panels_of_F, transposed, strict=True)):
                work.back(k, At_k, G, F_k)


class OfFibers(OfPlane):
    """Split-3D: the best, or the sums, of the layers are scattered along the fiber."""

    def forward(self, work: Pass, H: DistDense, T: DistDense) -> None:
        _ = self.columns
        with self.A._whole(T.block.shape[1]) as partial:
            work.begin(partial)
            self._product(work, H.block, partial)
            work.scattered(self.A.fiber, partial, self.A.shares, T.block)
        work.end()

    def backward(self, work: Pass, G: DistDense, F: DistDense) -> None:
        A = self.A
        work.gathered(A.fiber, A.shares)
        with A._whole(G.block.shape[1]) as whole:
            whole = A.fiber.allgather_rows(G.block, A.shares, whole, "G", narrow=True)
            self._back(work, whole, F.block)

    def nodes(self, held: list[Array], N: DistDense) -> None:
        N.block[...] = held[0]


class OfShards(Way):
    """3D: one block, and the best, or the sum, of the ranks that have the other columns."""

    def ranges(self) -> list[Range]:
        return [self.A.plane.window[1]]

    def forward(self, work: Pass, H: DistDense, T: DistDense) -> None:
        _, A = self.columns, self.A
        work.begin(T.block)
        with A._plane_block(H) as room:
            rows = H.block
            if A.sharded:
                rows = A.out.allgather_rows(H.block, A.shares, room, "H", narrow=True)
            work.last(self.grid, A.contract, 0, A.A, rows, T.block, False)
        work.end()

    def backward(self, work: Pass, G: DistDense, F: DistDense) -> None:
        A, At = self.A, self.A.plane.At
        if not A.sharded:
            work.back(0, At, G.block, F.block)
            sums.add_up(self.grid, A.out, F.block)
            return
        with A._plane_block(F) as room:
            work.back(0, At, G.block, room)
            A.out.reduce_scatter_rows(room, A.shares, F.block, "sums", narrow=True)

    def nodes(self, held: list[Array], N: DistDense) -> None:
        own = self.columns.nodes_of(held[0]).astype(np.int64)
        N.block[...] = self.A.contract.allreduce(own, "max", matrix="nodes")
