"""3D product with rotating roles (Plexus sections 3.1 and 3.2, Algorithm 1, after Agarwal et al.)."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.layout import Cut, Layout, as_partition, nested
from distgnn.operators import summed
from distgnn.operators.dense import DistDense
from distgnn.operators.loading import load
from distgnn.operators.operator import DistSparse
from distgnn.operators.sources import BlockSource
from distgnn.operators.weights import ShardedWeights

#: The axis that cuts (rows of A, columns of A, columns of H) in layers 0, 1, 2, and so on around again
#: (Plexus Fig. 4): A lies in the ZX, YZ and XY planes. The one place where the rotation is written down.
ROLES = (("z", "x", "y"), ("y", "z", "x"), ("x", "y", "z"))


class Plexus3D(DistSparse):
    """``A`` cut over one plane of an x, y, z grid and replicated along the third axis; ``H`` cut over another
    plane.

    In layer 0, A is cut over (z, x), ``H`` (the paper's F) over (x, y), the product over (z, y), the weights
    over (y, x) and the layer's output over (z, x). That output is the input of layer 1, whose roles are
    rotated; :meth:`layer` gives that operator. At most three distinct shards of A are ever held, and their
    transposes once an adjoint has been used. Only layer 0's ``H``, and all weights, are also cut over the
    third axis: they have gradients and optimiser state.

    Double permutation (section 5.1): with ``source`` = P_r A P_cᵀ and ``odd`` = P_c A P_rᵀ, layers take them
    in turns, so the input of layer 0 is in the order P_c, its output in P_r, that of layer 1 in P_c again; up
    to six distinct shards are held.

    Sums over ranks of products with A and with the weights are made in row blocks, while the next is
    multiplied (section 5.2).

    Cost per product and rank, with Gx, Gy, Gz the axis sizes in layer 0: an all-gather of n f/(Gx Gy) words
    over z (layer 0 only) and an all-reduce of n f/(Gz Gy) words over x. The adjoint: n f/(Gx Gy) words over
    z, reduce-scattered in layer 0, else all-reduced.

    Args:
        grid: has the axes ``x``, ``y`` and ``z``.
        source: gives the blocks of A.
        row_parts: partition of layer 0's rows over z; col_parts: of its columns over x; default even.
        y_parts: partition of the rows over y, for layer 1; default even.
        odd: gives the blocks of the matrix of odd layers; default: ``source`` gives those of all.
    """

    name = "3d"
    axes = ("x", "y", "z")

    def __init__(
        self,
        grid: Grid,
        source: BlockSource,
        row_parts: np.ndarray | None = None,
        col_parts: np.ndarray | None = None,
        y_parts: np.ndarray | None = None,
        odd: BlockSource | None = None,
    ) -> None:
        super().__init__(grid, source)
        self.sources = (source,) if odd is None else (source, odd)
        if odd is not None and not self.shape[0] == self.shape[1] == odd.shape[0] == odd.shape[1]:
            raise ValueError(
                f"3d: only square matrices of one size can take turns; these are {self.shape} and {odd.shape}"
            )
        parts = {
            "x": as_partition(col_parts, self.shape[1], grid.shape["x"]),
            "y": as_partition(y_parts, self.shape[0], grid.shape["y"]),
            "z": as_partition(row_parts, self.shape[0], grid.shape["z"]),
        }
        self._layers: dict[int, Plexus3D] = {0: self}
        self._arrange(0, parts)
        self.A  # load the shard now, so that errors in the source surface at construction

    def _arrange(self, number: int, parts: dict[str, np.ndarray]) -> None:
        self.number, self.parts = number, parts
        out, contract, feature = ROLES[number % 3]
        self.out, self.contract = self.grid.along(out), self.grid.along(contract)
        rows, cols = parts[out], parts[contract]
        self.sharded = number == 0
        input_rows = (
            Cut((contract, out), nested(cols, self.out.size)) if self.sharded else Cut((contract,), cols)
        )
        self.input_layout = Layout(self.grid, input_rows, Cut((feature,)))
        self.output_layout = Layout(self.grid, Cut((out,), rows), Cut((feature,)))
        self.weights = ShardedWeights(self.grid, Cut((out,), rows), out, contract, feature)
        self._window = (
            self.output_layout.row_range,
            Layout(self.grid, Cut((contract,), cols), Cut()).row_range,
        )
        if self.sharded:
            first = self.grid.coords[contract] * self.out.size
            shares = input_rows.vector(self.grid, int(cols[-1]))[first : first + self.out.size + 1]
            self.shares = shares - shares[0]  # how this plane block's rows of H are cut over the third axis

    def layer(self, number: int) -> Plexus3D:
        """The operator of layer ``number``: its input is laid out as the output of layer ``number - 1``."""
        key = number if number == 0 else 1 + (number - 1) % self.period
        if key not in self._layers:
            if self.shape[0] != self.shape[1]:
                raise ValueError(f"3d: only square matrices have further layers, this one is {self.shape}")
            rotated = object.__new__(Plexus3D)
            DistSparse.__init__(rotated, self.grid, self.sources[key % len(self.sources)])
            rotated._layers, rotated.sources = self._layers, self.sources
            rotated._arrange(key, self.parts)
            rotated.A  # as in the constructor
            self._layers[key] = rotated
        return self._layers[key]

    @property
    def period(self) -> int:
        """Layers until a shard of A is used again: min(period, L) are held."""
        return math.lcm(len(ROLES), len(self.sources))

    @cached_property
    def A(self) -> CSR:
        """This rank's shard of the adjacency matrix for this layer; layers 0, 3, 6 … (0, 6, 12 …) share one."""
        if self.number == self.period:
            return self.layer(0).A
        return load(self.grid, self.source, [self._window])[0]

    @cached_property
    def At(self) -> CSR:
        """The shard, transposed where it is."""
        if self.number == self.period:
            return self.layer(0).At
        with self.grid.world.together():
            return self.A.transposed(self.grid.backend)
        raise AssertionError("unreachable: together() raises")

    def multiply(self, H: DistDense, out: DistDense | None = None) -> DistDense:
        T = self._result(self.output_layout, (self.shape[0], H.shape[1]), out)
        with self._plane_block(H) as room:
            # Alg. 1, line 2
            F = self.out.allgather_rows(H.block, self.shares, room) if self.sharded else H.block
            summed.multiply(self.grid, self.contract, self.A, F, T.block)  # lines 3-4
        return T

    def multiply_adjoint(self, G: DistDense, out: DistDense | None = None) -> DistDense:
        F = self._result(self.input_layout, (self.shape[1], G.shape[1]), out)
        if self.sharded:
            with self._plane_block(F) as room:
                local.spmm(self.At, G.block, out=room)  # line 22
                self.out.reduce_scatter_rows(room, self.shares, out=F.block)  # line 23
        else:
            summed.multiply(self.grid, self.out, self.At, G.block, F.block)
        return F

    def _plane_block(self, F: DistDense) -> AbstractContextManager[Any]:
        """Room for what all ranks along the third axis have of ``F``, where that is cut over it too."""
        height = int(self.shares[-1]) if self.sharded else 0
        return self.grid.workspace.lend((height, F.block.shape[1]), F.dtype)

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        """Every x y z = P, the most cubic first."""
        divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
        shapes = [(x, y, ranks // (x * y)) for x in divisors for y in divisors if ranks % (x * y) == 0]
        return [
            dict(zip("xyz", shape, strict=True))
            for shape in sorted(shapes, key=lambda s: (sum(s), max(s), s[::-1]))
        ]
