"""A graph in the memory of rank 0, read as a store is: the other ranks get from there what they hold."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.backend import of
from distgnn.comm.group import Comm
from distgnn.errors import UserError, did_you_mean
from distgnn.layout import Cut, Layout, NodeOrder
from distgnn.operators.dense import DistDense, scatter
from distgnn.operators.sources import RootMatrix
from distgnn.operators.sparse_features import SparseFeatures, scatter_sparse
from distgnn.partition import orders
from distgnn.store.read.graph_matrix import GraphMatrix, Moved
from distgnn.store.read.neighbours import Neighbours
from distgnn.store.read.store import AnyOrder, Store

ROOT = 0
ORDERS = ("random", "original")


@dataclass
class Arrays:
    """The arrays of a graph by node.

    A has the nodes in their own order, n x n; features are n x width, sparse or dense as in a store, or dense
    on a GPU; labels and split are as in a store, too.
    """

    matrix: GraphMatrix
    features: Any
    labels: np.ndarray
    split: np.ndarray


class RootStore(Store):
    """An opened store whose arrays rank 0 has in memory.

    Labels, features and blocks of the matrix travel from there to the ranks that hold them; only the
    permutation of an order is made on every rank.

    Args:
        comm: the ranks, with NumPy as their backend. Collective.
        manifest: of the store, on every rank, without files.
        arrays: on rank 0, else None.
    """

    def __init__(self, comm: Comm, manifest: dict[str, Any], arrays: Arrays | None) -> None:
        self.comm, self.manifest, self.arrays = comm, manifest, arrays
        self.path = Path(str(manifest["source"]))
        self.n, self.nnz = int(manifest["n"]), int(manifest["nnz"])
        self.width, self.classes = int(manifest["width"]), int(manifest["classes"])
        self.multilabel = bool(manifest.get("multilabel", False))
        self.regression = bool(manifest.get("regression", False))
        self.dtype, self.symmetric = np.dtype(manifest["dtype"]), bool(manifest["symmetric"])
        self.feature_type = np.dtype(manifest.get("feature_dtype", "float32"))
        sparse = manifest.get("sparse_features")
        self._nnz = None if sparse is None else int(sparse["nnz"])
        self.orders = tuple(manifest["orders"])
        self._made: dict[str, Any] = {}

    @property
    def held(self) -> Arrays:
        """The arrays of rank 0; ValueError on another rank."""
        if self.arrays is None:
            raise ValueError(f"only rank {ROOT} holds this graph")
        return self.arrays

    @property
    def has_ids(self) -> bool:
        """Always False: nodes have their numbers here."""
        return False

    def order(self, name: str | None = None) -> Any:
        """Return the matrix in one order (default: the first); UserError for another name."""
        name = self.orders[0] if name is None else name
        if name not in self.orders:
            hint = did_you_mean(name, self.orders)
            written = "; a store may have others: prepare(..., out=STORE) writes one" if not hint else ""
            raise UserError(f"order={name}: there is {' and '.join(self.orders)} in memory{hint}{written}")
        if name not in self._made:
            self._made[name] = RootOrder(self, name)
        return self._made[name]

    def features(
        self, order: AnyOrder = None, rows: Any = None, cols: Any = None, grid: Any = None
    ) -> np.ndarray:
        """Return features, as :class:`Store` does; on rank 0 only."""
        some = self._features(order, rows, cols)
        return some.toarray() if sp.issparse(some) else of(some).to_host(some)

    def sparse_features(self, order: AnyOrder = None, rows: Any = None, cols: Any = None) -> sp.csr_array:
        """Return features as CSR, as :class:`Store` does; on rank 0 only."""
        some = self._features(order, rows, cols)
        return sp.csr_array(some if sp.issparse(some) else of(some).to_host(some))

    def _features(self, order: AnyOrder, rows: Any, cols: Any) -> Any:
        some = self._by(order, self.held.features)[slice(*(rows or (0, self.n)))]
        return some[:, slice(*(cols or (0, self.width)))]

    @property
    def feature_nnz(self) -> int | None:
        """The entries of sparse features; None where they are dense."""
        return self._nnz

    def labels(self, order: AnyOrder = None, rows: Any = None, grid: Any = None) -> np.ndarray:
        """Return labels, as :class:`Store` does; on rank 0 only."""
        return self._by(order, self.held.labels)[slice(*(rows or (0, self.n)))]

    def split(self, order: AnyOrder = None, rows: Any = None, grid: Any = None) -> np.ndarray:
        """Return the split, as :class:`Store` does; on rank 0 only."""
        return self._by(order, self.held.split)[slice(*(rows or (0, self.n)))]

    def verify(self, team: Any = None) -> list[str]:
        """Return an empty list: there are no files that could be changed."""
        return []

    def scatter_features(
        self, layout: Layout, dtype: Any, columns: Sequence[int] | None = None
    ) -> DistDense | SparseFeatures:  # fmt: skip
        """Cut the features, or some columns of them, by a layout. Collective.

        Those on a GPU are copied to the host for a grid that computes there, such as a check's.
        """
        taken = slice(None) if columns is None else columns
        cut = scatter if self.feature_nnz is None else scatter_sparse
        features = None if self.arrays is None else self.arrays.features[:, taken]
        if features is not None and self.feature_nnz is None and not layout.grid.backend.on_device:
            features = of(features).to_host(features)
        return cut(features, layout, dtype)

    def scatter_targets(self, layout: Layout) -> tuple[DistDense, DistDense]:
        """Cut the rows of labels and split by a layout. Collective."""
        whole = Layout(layout.grid, layout.rows, Cut())
        labels = split = None
        if self.arrays is not None:
            labels, split = self.arrays.labels.reshape(self.n, -1), self.arrays.split[:, None]
        return scatter(labels, whole), scatter(split, whole)

    def _by(self, order: AnyOrder, array: Any) -> Any:
        """Put the rows of an array into an order."""
        order = self.order(order) if isinstance(order, str) else order
        if order is None:
            return array
        places = order.permutation(0, self.n)
        return array[places if sp.issparse(array) else of(array).asarray(places)]


class RootOrder(RootMatrix):
    """The matrix of a :class:`RootStore` in one order, with the methods of a store's ``Order``.

    Rank 0 makes its blocks when they are asked for, and holds no matrix of its own in this order. Local to a
    rank; only `blocks` and `whole` are collective.
    """

    def __init__(self, store: RootStore, name: str) -> None:
        self.root, self.comm, self.name = ROOT, store.comm, name
        self.shape, self.dtype, self.symmetric = (store.n, store.n), store.dtype, store.symmetric
        self.nnz: Any = store.nnz
        self.partition: np.ndarray | None = None
        self.versions: tuple[RootOrder, ...] = (self,)
        self.nodes = orders.Permutation()
        if name == "random":
            self.nodes = orders.shuffled(store.n, int(store.manifest["seed"]))
        content = tuple(store.manifest["content"].values())
        self.row_order = None
        if self.nodes.permutation is not None:
            self.row_order = NodeOrder(name, (content, name), self.permutation)
        self.held: Any = None
        if store.arrays is not None:
            self.held = Moved(store.arrays.matrix, self.nodes, self.symmetric)

    @property
    def col_order(self) -> NodeOrder | None:
        """The order of the columns, the same as that of the rows."""
        return self.row_order

    def layer(self, number: int) -> RootOrder:
        """Return the matrix of a layer: there is one for all."""
        return self

    def permutation(self, lo: int, hi: int) -> np.ndarray:
        """Return the ids of the nodes at positions lo..hi, int64."""
        return self.nodes.ids(np.arange(lo, hi)).astype(np.int64)

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """Return the positions of the nodes with these ids, int64."""
        return self.nodes.positions(np.asarray(ids)).astype(np.int64)

    def neighbours(self, symmetric: bool, nnz: int) -> RootOrder:
        """Return the off-diagonal entries as ones: :class:`Neighbours` of this matrix."""
        other = copy.copy(self)
        other.held = None if self.held is None else Neighbours(self.held, symmetric)
        other.symmetric, other.nnz = symmetric, nnz
        return other

    def whole(self) -> Held:
        """Send all of the matrix to every rank. Collective."""
        everything = (0, self.shape[0]), (0, self.shape[1])
        (matrix,) = self.blocks([everything])
        return Held(matrix, self.row_order, self.dtype, self.symmetric)


class Held:
    """A block source of a whole matrix that this rank has, whose rows and columns are in one order."""

    def __init__(self, matrix: Any, order: NodeOrder | None, dtype: Any, symmetric: bool = False) -> None:
        self.matrix, self.shape, self.dtype, self.symmetric = matrix, matrix.shape, np.dtype(dtype), symmetric
        self.row_order = self.col_order = order

    def block(self, rows: Any, cols: Any) -> sp.csr_array:
        """Return these rows and columns."""
        return self.matrix[rows[0] : rows[1], cols[0] : cols[1]]


def manifest_orders() -> Mapping[str, Any]:
    """Return the entry `orders` of the manifest of a graph in memory, the default first."""
    return {name: {} for name in ORDERS}
