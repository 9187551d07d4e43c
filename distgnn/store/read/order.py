"""The matrix of a store with its nodes in one order: any window, from only the files and rows it touches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays import backend as backends
from distgnn.arrays.backend import Backend
from distgnn.arrays.blocking import bounded
from distgnn.arrays.csr import CSR
from distgnn.layout import NodeOrder, Range, block
from distgnn.store.format.facts import check_types
from distgnn.store.format.members import Members
from distgnn.store.format.shards import overlaps
from distgnn.store.read.node_files import NodeFiles, check_partition, check_window
from distgnn.store.read.windows import Tile, assemble
from distgnn.store.team import Alone

if TYPE_CHECKING:
    from distgnn.comm.grid import Grid
    from distgnn.comm.group import Comm


class Order:
    """The matrix A of a store in one order: a BlockSource that distributed operators load from.

    An order has one version of the matrix, or two for alternating layers (`double`, Plexus section 5.1):
    P_r A P_cᵀ for the even layers, P_c A P_rᵀ for the odd ones. Positions, here and in node arrays, are row
    positions; the columns of a layer's matrix are in the row order of the layer before.

    Attributes:
        name, shape, dtype, nnz
        versions: all versions of the order; `version`: the number of this one.
        symmetric: A == A.T to the bit.
        partition: the partition vector of the parts this order was made of, or None.
        rows, cols: partition vectors of the shard grid; `shard_nnz` its entries.
    """

    def __init__(self, members: Members, name: str, entry: Any, n: int, dtype: Any, version: int = 0) -> None:
        check_types(entry, {"symmetric": (bool,)}, f"orders.{name}.")
        self.members, self.name, self._files, self.version = members, name, entry["files"], version
        self.versions: tuple[Order, ...] = (self,)
        self.shape, self.dtype, self.symmetric = (n, n), np.dtype(dtype), bool(entry["symmetric"])
        self.stored_dtype = self.dtype  # `dtype` may be set to another one that is wanted
        self.partition = None if entry["partition"] is None else np.asarray(entry["partition"], np.int64)
        self.rows, self.cols = np.asarray(entry["rows"], np.int64), np.asarray(entry["cols"], np.int64)
        self.shard_nnz = np.asarray(entry["nnz"], np.int64).reshape(len(self.rows) - 1, len(self.cols) - 1)
        self.nnz = int(self.shard_nnz.sum())
        stored = entry["permutation"]
        self._permutation = None
        if stored is not None:
            self._permutation = NodeFiles(members, stored["partition"], stored["files"])
        inner = None if self._permutation is None else self._permutation.partition
        for vector in (self.rows, self.cols, self.partition, inner):
            if vector is not None:
                check_partition(f"order {name}", vector, n)

    @classmethod
    def opened(cls, members: Members, name: str, entry: dict[str, Any], n: int, dtype: Any) -> Order:
        """Return the first version of an order, from its entry in the manifest."""
        entries = entry.get("versions", [entry])
        if not 1 <= len(entries) <= 2:
            raise ValueError(f"order {name} has {len(entries)} versions")
        versions = tuple(cls(members, name, facts, n, dtype, number) for number, facts in enumerate(entries))
        for version in versions:
            version.versions = versions
        return versions[0]

    def layer(self, number: int) -> Order:
        """Return the matrix of GCN layer `number`.

        Features are in the row order of `layer(-1)`, the output of an L-layer network in that of `layer(L -
        1)`.
        """
        return self.versions[number % len(self.versions)]

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        """Read A[rows, cols] as CSR with local, sorted, unique indices: int32 if they fit.

        Reads only these rows of the shards. Memory: the block, and the pointers of one row of shards.
        """
        block = self.assemble(rows, cols, backends.get("numpy"), Alone()).to_scipy()
        block.has_sorted_indices = block.has_canonical_format = True
        return block

    def assemble(self, rows: Range, cols: Range, backend: Backend, readers: Comm | Alone) -> CSR:
        """Read A[rows, cols] onto ``backend``'s device, with these ranks together: see `windows.assemble`."""
        rows, cols = (int(rows[0]), int(rows[1])), (int(cols[0]), int(cols[1]))
        check_window("rows", rows, self.shape[0])
        check_window("columns", cols, self.shape[1])
        strips = []
        for i, part in overlaps(self.rows, rows):
            tiles = [self._tile(i, j, part, some, cols[0]) for j, some in overlaps(self.cols, cols)]
            strips.append((part[1] - part[0], tiles))
        return assemble(strips, cols[1] - cols[0], self.dtype, backend, readers)

    def splits(self, cols: Range) -> bool:
        """Tell whether a column that begins or ends here is amid a shard."""
        return not np.isin(cols, self.cols).all()

    @property
    def key(self) -> tuple[str, str, int]:
        """A key that is equal on ranks that read the same matrix."""
        return self.members.id or str(self.members.root.resolve()), self.name, self.version

    def entries(self, limit: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield (rows, columns, values), int64 positions, shard by shard, about `limit` entries at a time."""
        for i, j in np.ndindex(self.shard_nnz.shape):
            yield from self.shard_entries(i, j, limit)

    def shard_entries(self, i: int, j: int, limit: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the entries of shard (i, j), as `entries` does."""
        rows, cols = block(self.rows, i), block(self.cols, j)
        if rows[0] == rows[1] or cols[0] == cols[1]:
            return
        tile = self._tile(i, j, rows, cols, 0)
        counts, ranges = tile.count(), bounded(tile.count(), limit)
        entries = tile.read(ranges, np.dtype(np.int64))
        for (lo, hi), (columns, values) in zip(ranges, entries, strict=True):
            yield np.repeat(np.arange(lo, hi) + rows[0], counts[lo:hi]), columns, values

    def permutation(self, lo: int, hi: int) -> np.ndarray:
        """Read the original ids of the nodes at positions (rows) lo..hi, int64."""
        check_window("positions", (lo, hi), self.shape[0])
        if self._permutation is None:
            return np.arange(lo, hi)
        return self._permutation.rows("permutation", (lo, hi))

    def positions(self, ids: np.ndarray, grid: Grid | None = None) -> np.ndarray:
        """Read the positions (rows) of the nodes with these original ids, int64.

        With a grid, its ranks read together, each other ids. Collective then.
        """
        if self._permutation is None:
            return np.asarray(ids, np.int64)
        return self._permutation.gather("inverse", np.asarray(ids), grid=grid)

    @cached_property
    def row_order(self) -> NodeOrder | None:
        """The node of each row, as layouts carry it; None if row i is node i."""
        if self._permutation is None:
            return None
        side = f" ({('rows', 'columns')[self.version]})" if len(self.versions) > 1 else ""
        return NodeOrder(self.name + side, self.key, self.permutation)

    @property
    def col_order(self) -> NodeOrder | None:
        """The node of each column; None if column i is node i."""
        return self.layer(self.version - 1).row_order

    @property
    def files(self) -> list[str]:
        """The shard files, as the manifest names them."""
        return [name for row in self._files for name in row]

    @property
    def permutation_files(self) -> list[str]:
        """The files of the permutation."""
        return [] if self._permutation is None else list(self._permutation.files)

    def _tile(self, i: int, j: int, rows: Range, cols: Range, left: int) -> Tile:
        """Return the part of shard (i, j) in a window whose first column is ``left``."""
        (top, bottom), (first, last) = block(self.rows, i), block(self.cols, j)
        local = (rows[0] - top, rows[1] - top), (cols[0] - first, cols[1] - first)
        name, nnz = self._files[i][j], int(self.shard_nnz[i, j])
        shape = bottom - top, last - first
        return Tile(self.members, name, shape, nnz, self.stored_dtype, *local, first - left)
