"""Edges of planes of processes (2D, Split-3D) and of 3D's shards: entries travel, or are copied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from distgnn.comm.panels import broadcast, summed
from distgnn.layout import Cut, Layout
from distgnn.local import edges as entries
from distgnn.operators import summed as sums
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.edge_pattern import EdgePattern
from distgnn.operators.edges import DistEdges, Masked

Array = Any


class PlaneEdges(EdgePattern):
    """The entries of a plane's blocks of A, whose numbers travel with the panels of A.

    Words of a product, either way: those of ``A @ H``, and the numbers of the panels of A that come, nnz
    heads / pr of a row of processes. Of dot products: those of ``A @ H``, and as many numbers, which are
    summed where the entries are. Of :meth:`rows_of`: what the rank lacks of the rows that its columns read.

    Args:
        axes: that cut A's columns, the columns of a plane first; columns: the partition vector of that cut.
    """

    def __init__(self, A: Any, row_layout: Layout[Any], axes: tuple[str, ...], columns: Any) -> None:
        plane, cut = A.plane, Cut(axes, columns, A.col_order)
        self.plane, self.mine = plane, sorted(plane.A.mine)
        super().__init__(A, [plane.A.mine[k] for k in self.mine], A.grid.along(*axes), row_layout)
        self.column_layout = Layout(A.grid, cut, Cut())
        self.numbers = dict(zip(self.mine, self.places, strict=True))

    @contextmanager
    def rows_of(self, v: DistDense) -> Iterator[Iterator[Array]]:
        own = recut(v, self.column_layout)
        first = own.row_range[0]
        columns = (self.plane.panels[k].columns for k in self.mine)
        yield (own.block[start - first : stop - first] for start, stop in columns)

    def multiply(self, E: DistEdges | Masked, H: DistDense, T: DistDense) -> None:
        plane, bounds = self.plane, self.bounds(E.heads, H)
        with self._whole(T) as Z, ExitStack() as stack:
            panels, panels_of_H = map(stack.enter_context, (plane.A.broadcast(), plane._broadcast(H.block)))
            numbers = stack.enter_context(self._broadcast(E, transposed=False))
            for q, (A_q, E_q, H_q) in enumerate(zip(panels, numbers, panels_of_H, strict=True)):
                entries.multiply(A_q, E_q, H_q, bounds, Z, add=q > 0)
            if not plane.panels:
                Z[...] = 0

    def multiply_adjoint(self, E: DistEdges | Masked, G: DistDense, F: DistDense) -> None:
        plane, bounds = self.plane, self.bounds(E.heads, G)
        with self._rows_of_block(G) as rows, plane._summed(F.block) as sums_of_F, ExitStack() as stack:
            panels = stack.enter_context(plane.At.broadcast())
            numbers = stack.enter_context(self._broadcast(E, transposed=True))
            for F_k, At_k, E_k in zip(sums_of_F, panels, numbers, strict=True):
                entries.multiply(At_k, E_k, rows, bounds, F_k)

    def dots(self, U: DistDense, V: DistDense, E: DistEdges) -> None:
        plane, bounds = self.plane, self.bounds(E.heads, V)
        roots, shapes = self._shapes(E.heads)
        own = lambda k: E.data[self.numbers[k]]  # noqa: E731
        how = roots, own, shapes, E.dtype, "partial edges"
        with self._rows_of_block(U) as rows, ExitStack() as stack:
            sums_of_E = stack.enter_context(summed(self.grid, plane.row, *how))
            panels, panels_of_V = map(stack.enter_context, (plane.A.broadcast(), plane._broadcast(V.block)))
            for E_q, A_q, V_q in zip(sums_of_E, panels, panels_of_V, strict=True):
                entries.dots(A_q, rows, V_q, bounds, E_q)

    def _shapes(self, heads: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the owners and the shapes of the numbers of all panels."""
        return [p.c for p in self.plane.panels], [(nnz, heads) for _, nnz, _, _ in self.plane.A.headers]

    def _broadcast(self, E: DistEdges | Masked, transposed: bool) -> Any:
        """Give the numbers of each panel along the process row."""
        mine, (roots, shapes) = self.plane.A.mine, self._shapes(E.heads)

        def own(k: int) -> Array:
            numbers = E.data[self.numbers[k]] if isinstance(E, DistEdges) else E.part(self.numbers[k])
            return entries.permuted(mine[k], numbers) if transposed else numbers

        how = roots, own, shapes, self.dtype
        return broadcast(self.grid, self.plane.row, "A", *how, room="panel of edges")

    @contextmanager
    def _whole(self, T: DistDense) -> Iterator[Array]:
        """Give room for the product of this rank's rows, which becomes T."""
        yield T.block

    @contextmanager
    def _rows_of_block(self, X: DistDense) -> Iterator[Array]:
        """Give the rows of X that are those of this rank's panels."""
        yield X.block


class FiberEdges(PlaneEdges):
    """The entries of a plane of Split-3D, one layer of several.

    Words: those of :class:`PlaneEdges`; of products, and of dot products for U, also those along the fiber.
    """

    @contextmanager
    def _whole(self, T: DistDense) -> Iterator[Array]:
        with self.A._whole(T.block.shape[1]) as partial:
            yield partial
            self.A.fiber.reduce_scatter_rows(partial, self.A.shares, T.block, "sums")

    @contextmanager
    def _rows_of_block(self, X: DistDense) -> Iterator[Array]:
        with self.A._whole(X.block.shape[1]) as whole:
            yield self.A.fiber.allgather_rows(X.block, self.A.shares, whole, "G")


class ShardEdges(EdgePattern):
    """The entries of a rank's shard of A in 3D, of which the ranks along the feature axis have copies.

    Words of a product, either way: those of ``A @ H``. Of dot products: of V as for ``A @ H``, and an
    all-reduce of the shard's nnz heads numbers over the feature axis. Of :meth:`rows_of`: what the rank lacks
    of the rows that its columns read.
    """

    def __init__(self, A: Any) -> None:
        rows = A.output_layout.rows
        super().__init__(A, [A.A], A.contract, Layout(A.grid, rows, Cut()))
        self.features = A.grid.along(*A.input_layout.col_axes)
        self.primary = self.features.rank == 0
        parts = A.first.parts[A.input_layout.rows.axes[0]]
        self.column_layout = Layout(A.grid, Cut(A.input_layout.rows.axes[:1], parts, A.col_order), Cut())

    @contextmanager
    def rows_of(self, v: DistDense) -> Iterator[Iterator[Array]]:
        yield iter([recut(v, self.column_layout).block])

    @contextmanager
    def _plane_block(self, H: DistDense) -> Iterator[Array]:
        """Give all rows of H that the shard's columns read, in this rank's columns of H."""
        with self.A._plane_block(H) as room:
            A = self.A
            yield A.out.allgather_rows(H.block, A.shares, room, "H") if A.sharded else H.block

    def multiply(self, E: DistEdges | Masked, H: DistDense, T: DistDense) -> None:
        with self._plane_block(H) as rows:
            self.product(0, self.A.A, E, rows, T.block, self.bounds(E.heads, H))
        sums.add_up(self.grid, self.A.contract, T.block)

    def multiply_adjoint(self, E: DistEdges | Masked, G: DistDense, F: DistDense) -> None:
        A, At, bounds = self.A, self.A.plane.At, self.bounds(E.heads, G)
        if not A.sharded:
            self.product(0, At, E, G.block, F.block, bounds, transposed=True)
            sums.add_up(self.grid, A.out, F.block)
            return
        with A._plane_block(F) as room:
            self.product(0, At, E, G.block, room, bounds, transposed=True)
            A.out.reduce_scatter_rows(room, A.shares, F.block, "sums")

    def dots(self, U: DistDense, V: DistDense, E: DistEdges) -> None:
        with self._plane_block(V) as rows:
            entries.dots(self.A.A, U.block, rows, self.bounds(E.heads, V), E.data)
        self.features.allreduce(E.data, matrix="sums")
