"""Reading a store: any window of the matrix, features, labels and split, from only the files and rows it
touches.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import scipy.sparse as sp

from distgnn.arrays import backend as backends
from distgnn.arrays.backend import Backend
from distgnn.arrays.csr import CSR
from distgnn.errors import UserError
from distgnn.layout import Range, owner
from distgnn.partition.orders import KNOWN
from distgnn.store import hdf5, manifest
from distgnn.store.adjacency import bounded
from distgnn.store.nodes import PIECE_BYTES
from distgnn.store.windows import Alone, Strip, Tile, assemble, check_shape

if TYPE_CHECKING:
    from distgnn.comm.group import Comm


class Store:
    """An opened store. Any rank may open it; opening reads the manifest and looks at the length of every
    file.

    Attributes:
        path, manifest: where it is and what it says of itself (see ``manifest.py``).
        n, nnz, width, classes: nodes, entries of A, feature width, number of classes (0 where there are
            none).
        dtype: of A's values.
        symmetric: A == A.T, to the bit.
        orders: names of the orders, the default first.

    Raises:
        UserError: no such directory, not a store, another schema version, a file missing or of the wrong
            length, or numbers of nodes or entries that contradict each other. What contradicts a file's
            contents is found when that is read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.manifest: dict[str, Any] = manifest.read(self.path)
        try:
            manifest.check_sizes(self.path, self.manifest["files"])
            self.n, self.nnz = int(self.manifest["n"]), int(self.manifest["nnz"])
            self.width, self.classes = int(self.manifest["width"]), int(self.manifest["classes"])
            self.dtype = np.dtype(self.manifest["dtype"])
            self.symmetric = bool(self.manifest["symmetric"])
            self.orders: tuple[str, ...] = tuple(self.manifest["orders"])
            nodes = self.manifest["nodes"]
            self._nodes = NodeFiles(self.path, nodes["partition"], nodes["files"], self.width)
            _check_partition("nodes", self._nodes.partition, self.n)
            self._stored = {name: self.order(name) for name in self.orders}[nodes["order"]].layer(-1)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.path / manifest.NAME}: damaged ({error}); copy or prepare the store again"
            ) from None

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}: {self.n} nodes, {self.nnz} entries, {self.width} features, {self.classes} classes)"

    def order(self, name: str | None = None) -> Order:
        """The matrix in one order (default: the first), of `double` that of layer 0; UserError lists the
        orders there are.
        """
        name = self.orders[0] if name is None else name
        if name not in self.manifest["orders"]:
            method, _, parts = name.rpartition("-")
            flag = (
                f"--order {name}"
                if name in KNOWN
                else f"--partition {method}:{parts}"
                if parts.isdecimal()
                else ""
            )
            hint = f"; prepare {flag} makes one that has it" if flag else ""
            raise UserError(f"{self.path}: no order {name!r}; it has {', '.join(self.orders)}{hint}")
        order = Order.opened(self.path, name, self.manifest["orders"][name], self.n, self.dtype)
        for version in order.versions:
            if version.nnz != self.nnz:
                raise ValueError(f"{self.nnz} non-zeros, but {version.nnz} in the shards of order {name}")
        return order

    def features(
        self, order: str | Order | None = None, rows: Range | None = None, cols: Range | None = None
    ) -> np.ndarray:
        """float32[rows, cols] of the nodes at these positions of an order; everything by default.

        A name means the side that layer 0 takes its input from, `order(name).layer(-1)`; an Order its own
        rows. In the order they are stored in (the default one) this reads just the window. In others a rank's
        nodes are scattered over the whole store: it reads the columns of all nodes, in pieces, and keeps what
            it needs.
        """
        rows, cols = rows or (0, self.n), cols or (0, self.width)
        _check_window("features", rows, self.n)
        _check_window("features", cols, self.width)
        if not self.width:
            return np.zeros((rows[1] - rows[0], 0), np.float32)
        return self._read("features", order, rows, cols)

    def labels(self, order: str | Order | None = None, rows: Range | None = None) -> np.ndarray:
        """int32[rows]: the class of the nodes at these positions, -1 where unlabelled.

        Labels belong to the output of the last layer, so of an order with two versions say which: ValueError
        for its name.
        """
        order = self._output_side(order)
        rows = rows or (0, self.n)
        _check_window("labels", rows, self.n)
        if not self.classes:
            return np.full(rows[1] - rows[0], -1, np.int32)
        labels = self._read("labels", order, rows, None)
        if len(labels) and not -1 <= labels.min() <= labels.max() < self.classes:
            wrong = labels[(labels < -1) | (labels >= self.classes)][0]
            raise UserError(f"{self.path / manifest.NAME}: says {self.classes} classes, but a node has label {wrong}; "
                            f"expected -1..{self.classes - 1}, copy or prepare the store again")  # fmt: skip
        return labels

    def split(self, order: str | Order | None = None, rows: Range | None = None) -> np.ndarray:
        """uint8[rows]: 0 none, 1 train, 2 validation, 3 test; of an order with two versions as `labels`."""
        order = self._output_side(order)
        rows = rows or (0, self.n)
        _check_window("split", rows, self.n)
        if self.manifest["split"] is None:
            return np.zeros(rows[1] - rows[0], np.uint8)
        return self._read("split", order, rows, None)

    def verify(self) -> list[str]:
        """Reads every byte; the names of files that are not what was written."""
        return manifest.verify(self.path, self.manifest["files"])

    def _read(self, name: str, order: str | Order | None, rows: Range, cols: Range | None) -> np.ndarray:
        wanted = order if isinstance(order, Order) else self.order(order).layer(-1)
        if (wanted.name, wanted.version) == (self._stored.name, self._stored.version):
            return self._nodes.rows(name, rows, cols)
        return self._nodes.gather(name, self._stored.positions(wanted.permutation(*rows)), cols)

    def _output_side(self, order: str | Order | None) -> Order:
        if isinstance(order, Order):
            return order
        named = self.order(order)
        if len(named.versions) > 1:
            raise ValueError(
                f"order {named.name} has two sides, and the network's depth says which its output is in: pass "
                f'store.order("{named.name}").layer(L - 1) for a network of L layers'
            )
        return named


class Order:
    """The matrix A of a store with its nodes in one order: a BlockSource that distributed operators load
    from.

    An order has one version of the matrix for all layers, or two for layers in turn (`double`, Plexus section
    5.1): P_r A P_cᵀ for the even layers, P_c A P_rᵀ for the odd ones. Positions, here and in node arrays, are
    those of the rows; the columns of a layer's matrix are in the row order of the layer before.

    Attributes:
        name, shape, dtype, nnz
        versions: the one or two versions of the order, all of them; `version`: which of them this is.
        symmetric: A == A.T to the bit, so one copy serves both.
        partition: the partition vector this order was made for (a partitioner's unequal blocks), or None.
        rows, cols: partition vectors of the shard grid; `shard_nnz` its entries.
    """

    def __init__(
        self, root: Path, name: str, entry: dict[str, Any], n: int, dtype: Any, version: int = 0
    ) -> None:
        self.root, self.name, self._files = root, name, entry["files"]
        self.version = version
        self.versions: tuple[Order, ...] = (self,)
        self.shape = (n, n)
        self.dtype = np.dtype(dtype)
        self.symmetric = bool(entry["symmetric"])
        self.partition = None if entry["partition"] is None else np.asarray(entry["partition"], np.int64)
        self.rows, self.cols = np.asarray(entry["rows"], np.int64), np.asarray(entry["cols"], np.int64)
        self.shard_nnz = np.asarray(entry["nnz"], np.int64).reshape(len(self.rows) - 1, len(self.cols) - 1)
        self.nnz = int(self.shard_nnz.sum())
        stored = entry["permutation"]
        self._permutation = None if stored is None else NodeFiles(root, stored["partition"], stored["files"])
        vectors = [self.rows, self.cols]
        vectors += [] if self.partition is None else [self.partition]
        vectors += [] if self._permutation is None else [self._permutation.partition]
        for vector in vectors:
            _check_partition(f"order {name}", vector, n)

    @classmethod
    def opened(cls, root: Path, name: str, entry: dict[str, Any], n: int, dtype: Any) -> Order:
        """The first version of an order, from its entry in the manifest."""
        entries = entry.get("versions", [entry])
        if not 1 <= len(entries) <= 2:
            raise ValueError(f"order {name} has {len(entries)} versions")
        versions = tuple(cls(root, name, one, n, dtype, number) for number, one in enumerate(entries))
        for one in versions:
            one.versions = versions
        return versions[0]

    def layer(self, number: int) -> Order:
        """The matrix of GCN layer `number`. Layer -1 is "before layer 0": its rows are what layer 0 has as
        columns, so that features go by `layer(-1)` and the output of an L-layer network by `layer(L - 1)`."""
        return self.versions[number % len(self.versions)]

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        """A[rows, cols] as CSR with local, sorted, unique indices: int32 where they fit.

        Reads the shards that the window touches, and of those only its rows. Memory: the block, and beside it
        the pointers of one row of shards and a small piece.
        """
        block = self.assemble(rows, cols, backends.get("numpy"), Alone()).to_scipy()
        block.has_sorted_indices = block.has_canonical_format = True
        return block

    def assemble(self, rows: Range, cols: Range, backend: Backend, readers: Comm | Alone) -> CSR:
        """A[rows, cols] on ``backend``'s device, read by these ranks of a node together: see
        :func:`windows.assemble`.
        """
        rows, cols = (int(rows[0]), int(rows[1])), (int(cols[0]), int(cols[1]))
        _check_window("rows", rows, self.shape[0])
        _check_window("columns", cols, self.shape[1])
        strips = [self._strip(i, part, cols) for i, part in overlaps(self.rows, rows)]
        return assemble(strips, cols[1] - cols[0], self.dtype, backend, readers)

    @property
    def key(self) -> tuple[str, str, int]:
        """Equal on ranks that read the same matrix."""
        return str(self.root.resolve()), self.name, self.version

    def entries(
        self, limit: int, shards: Container[int] | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """All (rows, columns, values), int64 positions, shard by shard in pieces of about `limit`. With
        `shards` (numbered row by row) only theirs."""
        for i, rows in overlaps(self.rows, (0, self.shape[0])):
            for j, cols in overlaps(self.cols, (0, self.shape[1])):
                if shards is not None and i * (len(self.cols) - 1) + j not in shards:
                    continue
                tile = self._tile(i, j, rows, cols, 0)
                counts = tile.count()
                ranges = bounded(counts, limit)
                for (lo, hi), (columns, values) in zip(
                    ranges, tile.pieces(ranges, np.dtype(np.int64)), strict=True
                ):
                    yield np.repeat(np.arange(lo, hi) + rows[0], counts[lo:hi]), columns, values

    def permutation(self, lo: int, hi: int) -> np.ndarray:
        """int64: the original ids of the nodes at positions (rows) lo..hi."""
        _check_window("positions", (lo, hi), self.shape[0])
        if self._permutation is None:
            return np.arange(lo, hi)
        return self._permutation.rows("permutation", (lo, hi)).astype(np.int64)

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """int64: where the nodes with these original ids stand (which rows are theirs)."""
        if self._permutation is None:
            return np.asarray(ids, np.int64)
        return self._permutation.gather("inverse", np.asarray(ids)).astype(np.int64)

    @property
    def files(self) -> list[str]:
        """The shard files, as the manifest names them."""
        return [name for row in self._files for name in row]

    def _strip(self, i: int, rows: Range, cols: Range) -> Strip:
        tiles = [self._tile(i, j, rows, part, cols[0]) for j, part in overlaps(self.cols, cols)]
        return Strip(rows[1] - rows[0], tiles)

    def _tile(self, i: int, j: int, rows: Range, cols: Range, left: int) -> Tile:
        """The part of shard (i, j) in a window whose first column is ``left``."""
        top, first = int(self.rows[i]), int(self.cols[j])
        shape = int(self.rows[i + 1]) - top, int(self.cols[j + 1]) - first
        own = (rows[0] - top, rows[1] - top), (cols[0] - first, cols[1] - first)
        return Tile(self.root / self._files[i][j], shape, int(self.shard_nnz[i, j]), *own, first - left)


class NodeFiles:
    """Arrays with one row per node, cut into files by a partition vector; those of two dimensions have
    `width` columns.
    """

    def __init__(self, root: Path, partition: Sequence[int], files: Sequence[str], width: int = 0) -> None:
        self.root, self.partition, self.files, self.width = (
            root,
            np.asarray(partition, np.int64),
            files,
            width,
        )

    def rows(self, name: str, rows: Range, cols: Range | None = None) -> np.ndarray:
        """Rows `rows` (of columns `cols`) of an array."""
        result = _empty(name, rows[1] - rows[0], cols)
        for k, (lo, hi) in overlaps(self.partition, rows):
            first = int(self.partition[k])
            with hdf5.reading(self.root / self.files[k]) as file:
                dataset = self._dataset(file, name, k, cols)
                window = [(lo - first, hi - first)] if cols is None else [(lo - first, hi - first), cols]
                hdf5.read_into(result[lo - rows[0] : hi - rows[0]], dataset, *window)
        return result

    def gather(self, name: str, positions: np.ndarray, cols: Range | None = None) -> np.ndarray:
        """The rows at `positions`, in this order. Reads the files from front to back, in pieces, and skips
        what has none.
        """
        result = _empty(name, len(positions), cols)
        step = max(1, PIECE_BYTES // max(1, result[:1].nbytes))
        arrangement = np.argsort(positions, kind="stable")
        sorted_positions = positions[arrangement]
        for k, (first, last) in overlaps(self.partition, (0, int(self.partition[-1]))):
            with hdf5.reading(self.root / self.files[k]) as file:
                dataset = self._dataset(file, name, k, cols)
                for lo in range(first, last, step):
                    a, b = np.searchsorted(sorted_positions, [lo, min(lo + step, last)])
                    if a < b:
                        start, stop = int(sorted_positions[a]), int(sorted_positions[b - 1]) + 1
                        piece = _slice(dataset, start - first, stop - first, cols)
                        result[arrangement[a:b]] = piece[sorted_positions[a:b] - start]
        return result

    def _dataset(self, file: h5py.File, name: str, k: int, cols: Range | None) -> h5py.Dataset:
        rows = int(self.partition[k + 1] - self.partition[k])
        return check_shape(file[name], (rows,) if cols is None else (rows, self.width))


_TYPES = {
    "features": np.float32,
    "labels": np.int32,
    "split": np.uint8,
    "permutation": np.int64,
    "inverse": np.int64,
}


def _empty(name: str, rows: int, cols: Range | None) -> np.ndarray:
    return np.empty((rows,) if cols is None else (rows, cols[1] - cols[0]), _TYPES[name])


def _slice(dataset: h5py.Dataset, lo: int, hi: int, cols: Range | None) -> np.ndarray:
    return hdf5.read(dataset, (lo, hi)) if cols is None else hdf5.read(dataset, (lo, hi), cols)


def overlaps(vector: np.ndarray, window: Range) -> Iterator[tuple[int, Range]]:
    """The blocks of a partition vector that a window touches, each with its part of the window."""
    lo, hi = window
    if lo == hi:
        return
    for index in range(owner(vector, lo), len(vector) - 1):
        first, last = max(lo, int(vector[index])), min(hi, int(vector[index + 1]))
        if first >= hi:
            return
        if first < last:
            yield index, (first, last)


def _check_partition(what: str, vector: np.ndarray, n: int) -> None:
    if not len(vector) or vector[0] != 0 or vector[-1] != n or np.any(np.diff(vector) < 0):
        raise ValueError(
            f"{n} nodes, but {what} is cut at {vector.tolist() if len(vector) < 9 else '... ' + str(vector[-1])}"
        )


def _check_window(what: str, window: Range, extent: int) -> None:
    if not 0 <= window[0] <= window[1] <= extent:
        raise ValueError(f"{what} {window[0]}..{window[1]} do not lie within 0..{extent}")
