"""3D product with rotating roles (Plexus sections 3.1 and 3.2, Algorithm 1, after Agarwal et al.)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.layout import Cut, Layout, Range, as_partition, nested, within
from distgnn.local.epilogue import Ending
from distgnn.operators.algorithm import Algorithm
from distgnn.operators.moves import Moves, Room, told
from distgnn.operators.planes import Planes, Window
from distgnn.operators.prices import FREE, Price, gathered, reduced, summed_rows
from distgnn.operators.sources import BlockSource
from distgnn.operators.weights import ShardedWeights

#: The axis that cuts (rows of A, columns of A, columns of H) in layers 0, 1, 2, and so on around again
#: (Plexus Fig. 4): A lies in the ZX, YZ and XY planes. The one place where the rotation is written down.
ROLES = (("z", "x", "y"), ("y", "z", "x"), ("x", "y", "z"))


class Plexus3D(Algorithm):
    """``A`` cut over one plane of an x, y, z grid and copied along the third axis; ``H`` cut over another.

        x 2, z 2     H is cut       all-gather over z    SpMM       all-reduce over x
        (0, 0)       H_00 ─┐        H_0                  A_00 H_0 ─┐    T_0
        (0, 1)       H_01 ─┘        H_0                  A_10 H_0 ─│─┐  T_1
        (1, 0)       H_10 ─┐        H_1                  A_01 H_1 ─┘ │  T_0
        (1, 1)       H_11 ─┘        H_1                  A_11 H_1 ───┘  T_1

    In layer 0, A is cut over (z, x), ``H`` (the paper's F) over (x, y), the product over (z, y), the weights
    over (y, x) and the layer's output over (z, x). That is the input of layer 1, whose roles are rotated;
    :meth:`layer` gives its operator. At most three shards of A are held, and their transposes once an adjoint
    has been used, where a rank's memory has room for them: else rows of a shard are transposed while they
    multiply. On hosts a shard may be rows of another one, of any layer and any rank of the node, and of a
    symmetric matrix its transpose: it is held once (``planes.py``). Only layer 0's ``H``, and all weights,
    are also cut over the third axis.

    Double permutation (section 5.1): layers take ``source`` = P_r A P_cᵀ and ``odd`` = P_c A P_rᵀ in turns.
    The input of layer 0 is in the order P_c, its output in P_r, that of layer 1 in P_c again; at most six
    shards are held. Sums are made in row blocks, while the next block is multiplied (section 5.2).

    Cost per product and rank, with Gx, Gy, Gz the axis sizes in layer 0: an all-gather of n f/(Gx Gy) words
    over z (layer 0 only) and an all-reduce of n f/(Gz Gy) words over x. The adjoint: n f/(Gx Gy) words over
    z, reduce-scattered in layer 0, else all-reduced.

    Args:
        row_parts, col_parts, y_parts: partitions of layer 0's rows over z, of its columns over x, and of the
            rows over y, for layer 1; default even.
        odd: gives the blocks of the matrix of odd layers; default: ``source`` gives those of all.
        first, number: of :meth:`layer`, the operator of layer 0 and which one this is.
    """

    name = "3d"
    axes = ("x", "y", "z")

    def __init__(
        self, grid: Grid, source: BlockSource, row_parts: np.ndarray | None = None,
        col_parts: np.ndarray | None = None, y_parts: np.ndarray | None = None,
        odd: BlockSource | None = None, *, first: Plexus3D | None = None, number: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(grid, source)
        (n, m), self.first, self.sharded = self.shape, first or self, number == 0
        if first is None:
            if odd is not None and not n == m == odd.shape[0] == odd.shape[1]:
                problem = f"only square matrices of one size can take turns; these are {self.shape}"
                raise ValueError(f"3d: {problem} and {odd.shape}")
            self.sources = (source,) if odd is None else (source, odd)
            self.layers = {0: self}
            parts = {"x": (col_parts, m), "y": (y_parts, n), "z": (row_parts, n)}
            self.parts = {
                axis: self.cut(axis, as_partition(*given, grid.shape[axis])) for axis, given in parts.items()
            }
            self.period = math.lcm(len(ROLES), len(self.sources)) if n == m else 1  # until planes return
            self.planes = Planes(grid, self.sources, [self._window(k) for k in range(self.period)])
        out, contract, feature = ROLES[number % 3]
        self.out, self.contract = grid.along(out), grid.along(contract)
        rows = Cut((out,), self.first.parts[out], self.row_order)
        cols = Cut((contract,), self.first.parts[contract], self.col_order)
        self.plane = self.first.planes[number]
        self.A = self.plane.A
        if self.sharded:  # the third axis cuts the rows of H, too
            shares = self.cut("shares", nested(cols.vector(grid, m), self.out.size))
            cols = Cut((contract, out), shares, self.col_order)
            self.shares = within(shares, self.contract.rank, self.out.size)
        self.input_layout = Layout(grid, cols, Cut((feature,)))
        self.output_layout = Layout(grid, rows, Cut((feature,)))
        self.weights = ShardedWeights(grid, rows, out, contract, feature)

    def _window(self, number: int) -> Window:
        """Return the rows and columns of A that this rank has in layer ``number``."""
        out, contract, _ = ROLES[number % 3]
        cuts = Cut((out,), self.parts[out]), Cut((contract,), self.parts[contract])
        return cuts[0].range(self.grid, self.shape[0]), cuts[1].range(self.grid, self.shape[1])

    def layer(self, number: int) -> Plexus3D:
        """Return the operator of layer ``number``.

        Its input is laid out as the output of layer ``number - 1``.
        """
        first = self.first
        key = number if number == 0 else 1 + (number - 1) % first.period
        if key not in first.layers:
            if self.shape[0] != self.shape[1]:
                raise ValueError(f"3d: only square matrices have further layers, this one is {self.shape}")
            source = first.sources[key % len(first.sources)]
            first.layers[key] = Plexus3D(self.grid, source, first=first, number=key)
        return first.layers[key]

    def _moves(self) -> Moves:
        return ShardMoves(self)

    def multiply_adjoint(self, G: Any, F: Any, then: Ending | None = None) -> None:
        if self.plane.keeps_transpose:
            super().multiply_adjoint(G, F, then)
            return
        with told(self.grid), self.moves.columns_written(F) as rooms:
            for room in rooms:
                out = room.array if isinstance(room, Room) else room
                local.spmm_transposed(self.A, self.grid.rounded(G), out)

    def _plane_block(self, F: Any) -> AbstractContextManager[Any]:
        """Lend room for what all ranks along the third axis have of ``F``, where that is cut over it too."""
        height = int(self.shares[-1]) if self.sharded else 0
        return self.grid.workspace.lend((height, F.shape[1]), F.dtype)

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        """List every x y z = P, by the words received in three layers of equal widths, whose roles go around.

        These are about 4 (x-1 + y-1 + z-1) n f/P. Of equal sums the one with the smallest largest axis comes
        first, then the one with the smallest z, over which two layers send most.
        """
        divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
        shapes = [(x, y, ranks // (x * y)) for x in divisors for y in divisors if ranks % (x * y) == 0]
        shapes.sort(key=lambda s: (sum(s), max(s), s[::-1]))
        return [dict(zip("xyz", shape, strict=True)) for shape in shapes]


class ShardMoves(Moves):
    """Moves of 3D: one block, of which the ranks along the feature axis have copies.

    Words: columns, n f/(Gx Gy) in layer 0; rows or columns written, those of the sum in ``A @ H``; entries
    written, an all-reduce of the shard's nnz heads numbers over the feature axis.
    """

    def __init__(self, A: Plexus3D) -> None:
        axes, grid = A.input_layout.rows.axes[:1], A.grid
        columns = Layout(grid, Cut(axes, A.first.parts[axes[0]], A.col_order), Cut())
        super().__init__(A, [A.A], A.contract, Layout(grid, A.output_layout.rows, Cut()), columns)
        self.group, self.features = A.contract, grid.along(*A.input_layout.col_axes)
        self.primary = self.features.rank == 0

    def prepare(self, adjoint: bool) -> None:
        _ = self.A.plane.transpose() if adjoint else None

    def back(self) -> AbstractContextManager[Iterator[tuple[int, CSR]]]:
        return nullcontext(iter([(0, self.A.plane.transpose())]))

    def ranges(self) -> list[Range]:
        return [self.A.plane.window[1]]

    @contextmanager
    def columns_read(self, V: Any) -> Iterator[Iterator[Any]]:
        A = self.A
        with A._plane_block(V) as room:  # line 2
            yield iter([A.out.allgather_rows(V, A.shares, room, "H", narrow=True) if A.sharded else V])

    @contextmanager
    def columns_written(self, F: Any) -> Iterator[Iterator[Any]]:
        A = self.A
        if not A.sharded:
            with Room(self.grid, F, A.out) as room:
                yield iter([room])
            return
        with A._plane_block(F) as whole:
            yield iter([whole])
            A.out.reduce_scatter_rows(whole, A.shares, F, "sums", narrow=True)  # line 23

    def rows_price(self, width: int, written: bool = False) -> Price:
        shape = self.height, width
        return summed_rows(self.grid, self.A.contract, shape, self.dtype.itemsize) if written else FREE

    def columns_price(self, width: int, written: bool = False) -> Price:
        A, (first, last) = self.A, self.A.plane.window[1]
        if not A.sharded:
            shape = last - first, width
            return summed_rows(self.grid, A.out, shape, self.dtype.itemsize) if written else FREE
        if written:
            return reduced(A.out, "sums", (last - first) * width, scattered=True)
        return gathered(A.out, "H", np.diff(A.shares).tolist(), width)
