"""Loaders that put a store straight onto a grid: each rank reads its own blocks, none pass through rank 0."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from mpi4py import MPI

from distgnn.arrays.canonical import value_type
from distgnn.comm.agree import short
from distgnn.comm.communicator import Communicator
from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError, UserError, check_type
from distgnn.layout import Cut, Layout
from distgnn.operators.dense import DistDense
from distgnn.operators.operator import DistSparse
from distgnn.operators.sources import BlockSource
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.store.format import manifest
from distgnn.store.read.neighbours import neighbours_of
from distgnn.store.read.order import Order
from distgnn.store.read.root import RootStore
from distgnn.store.read.sparse_features import load_sparse, own_columns
from distgnn.store.read.store import Store

StoreOrPath = Store | str | os.PathLike[str]
_OPENED: weakref.WeakKeyDictionary[Grid, dict[tuple[str, str], Store]] = weakref.WeakKeyDictionary()


def load(
    store: StoreOrPath, grid: Grid, algorithm: str = "1d", order: str | None = None, dtype: Any = None,
    sparsity_aware: bool | str = False, neighbours: bool = False, verify: bool = False, **partitions: Any,
) -> DistSparse:  # fmt: skip
    """Load the adjacency matrix of a store as a distributed operator. Collective.

    Args:
        store: an opened store or its path.
        grid: the grid that ``operators.make_grid`` makes for the algorithm.
        algorithm: a name in ``operators.ALGORITHMS``.
        order: node order, which layouts carry; default: the store's first. If the order was made by
            partition, its parts are the block rows of ``1d``, ``1.5d`` and ``rdm``. Only ``3d`` takes
            ``double``: its layers alternate between the two versions.
        dtype: dtype of the values; default: as stored.
        sparsity_aware: send only the needed rows, see ``operators.distribute``.
        neighbours: replace all stored entries off the diagonal by ones, and clear the diagonal.
        verify: see `Store`.
        partitions: other partition vectors, as the algorithm's class takes them.

    Raises:
        UserError: no such store, order or algorithm, a damaged file, ranks that disagree.
    """
    from distgnn import operators

    check_type("grid", grid, Grid, "a Grid; load takes the store, the grid, the algorithm")
    asked = {"algorithm": algorithm, "order": order, "dtype": dtype, "sparsity_aware": sparsity_aware}
    grid.world.agree(identity(store, grid.world.mpi) | asked | {"neighbours": neighbours, "verify": verify})
    operators.get(algorithm, sparsity_aware)  # refused before anything is read
    opened = open_store(store, grid, verify, anew=True)
    with grid.world.together():
        source = opened.order(order)
    for version in source.versions:
        version.dtype = value_type(version.dtype, dtype)
    if len(source.versions) > 1:
        _check_alternates(opened, source.name, algorithm)
        partitions = {"odd": source.layer(1)} | partitions
    if algorithm in operators.SPARSITY_AWARE:
        partitions = _parts(source, grid, algorithm) | partitions
    A: BlockSource = neighbours_of(source, opened.manifest) if neighbours else source
    return operators.distribute(A, grid, algorithm, sparsity_aware, **partitions)


def _check_alternates(store: Store, order: str, algorithm: str) -> None:
    if algorithm != "3d":
        others = [name for name in store.orders if len(store.order(name).versions) == 1]
        instead = f"order={' or '.join(others)}" if others else "prepare with order=double,random"
        problem = f"only algorithm 3d alternates two permutations; use algorithm=3d or {instead}"
        raise ArgumentError("order", order, problem)


def _parts(order: Order, grid: Grid, algorithm: str) -> dict[str, Any]:
    """Return the partition vectors of an order by partition; raise ArgumentError if they do not fit.

    A single block row has all of them.
    """
    rows = grid.shape["rows"]
    if order.partition is None or rows == 1:
        return {}
    parts = len(order.partition) - 1
    if parts != rows:
        method = order.name.rpartition("-")[0].replace("file", "FILE")
        more = {"1.5d": f"{parts} C ranks with replication=C", "rdm": f"a grid with rows={parts} or rows=1"}
        ranks = more.get(algorithm, f"{parts} ranks")
        has = f"has {parts} parts, and {algorithm} on {grid.size} ranks has {rows} block rows"
        problem = f"{has}; use {ranks}, or prepare with partition={method}:{rows}"
        raise ArgumentError("order", order.name, problem)
    return {"row_parts": order.partition, "col_parts": order.partition}


@overload
def load_features(
    store: StoreOrPath, layout: Layout, *, dtype: Any = ..., columns: Sequence[int] | None = ...,
    sparse: Literal[False],
) -> DistDense: ...  # fmt: skip


@overload
def load_features(
    store: StoreOrPath, layout: Layout, *, dtype: Any = ..., columns: Sequence[int] | None = ...,
    sparse: bool = ...,
) -> DistDense | SparseFeatures: ...  # fmt: skip


def load_features(
    store: StoreOrPath, layout: Layout, *, dtype: Any = np.float32, columns: Sequence[int] | None = None,
    sparse: bool = True,
) -> DistDense | SparseFeatures:  # fmt: skip
    """Load the features of a store, n x width, cut by ``layout`` and in its order. Collective.

    Features that the store keeps sparse (:attr:`Store.feature_nnz`) stay so, unless ``sparse=False`` asks for
    all their zeros. ``columns``: the columns of the store, from 0, that those of the result are; default:
    all. Each rank reads a share of the files, in whole chunks, and one all-to-all brings rows to their ranks;
    of sparse rows two words per entry.
    """
    check_type("layout", layout, Layout, "a Layout, such as A.input_layout, after the store")
    grid = layout.grid
    grid.world.agree({"dtype": dtype, "columns": columns, "sparse": sparse})
    opened = open_store(store, grid)
    X: DistDense | SparseFeatures
    if isinstance(opened, RootStore):
        X = opened.scatter_features(layout, dtype, columns)
    else:
        with grid.world.together():
            if not opened.width:
                raise UserError(f"{opened.path}: has no features; prepare it with features=FILE")
        taken = np.arange(opened.width) if columns is None else np.array(columns, np.int64)
        files = opened.sparse_files
        given = layout, taken, dtype
        X = _load_dense(opened, *given) if files is None else load_sparse(opened, files, *given)
    return X if sparse or isinstance(X, DistDense) else X.to_dense()


def _load_dense(opened: Store, layout: Layout, taken: np.ndarray, dtype: Any) -> DistDense:
    grid, shape = layout.grid, (opened.n, len(taken))
    with grid.world.together():
        rows, cols = layout.ranges(shape)
        own, window = own_columns(taken, cols)
    block = opened.features(layout.rows.order, rows, window, grid)
    block = block if own is None else block[:, own]
    return DistDense(grid.backend.asarray(block, dtype), layout, shape)


def load_targets(store: StoreOrPath, layout: Layout) -> tuple[DistDense, DistDense]:
    """Load ``(labels, split)``, n x 1, int32 and uint8, rows cut by ``layout`` in its order. Collective.

    Files are read as by :func:`load_features`. If a node may have several classes, labels are n x classes,
    int8; numbers to predict are n x classes, float32.
    """
    check_type("layout", layout, Layout, "a Layout, such as A.output_layout, after the store")
    grid, whole = layout.grid, Layout(layout.grid, layout.rows, Cut())
    opened = open_store(store, grid)
    if isinstance(opened, RootStore):
        return opened.scatter_targets(layout)
    shape = (opened.n, 1)
    (rows, _), order = whole.ranges(shape), layout.rows.order
    labels, split = opened.labels(order, rows, grid), opened.split(order, rows, grid)[:, None]
    labels = labels[:, None] if labels.ndim == 1 else labels
    on, wide = grid.backend, (opened.n, labels.shape[1])
    return DistDense(on.asarray(labels), whole, wide), DistDense(on.asarray(split), whole, shape)


def open_store(store: StoreOrPath, grid: Grid, verify: bool = False, anew: bool = False) -> Store:
    """Open the store at a path, or return an opened one. Collective.

    For a path, the result is the store that a matrix on this grid was loaded from, unless `anew`. So features
    are refused if another store has taken its place.
    """
    grid.world.agree({"the store": "opened" if isinstance(store, Store) else "a path"})
    if isinstance(store, Store):
        if verify:
            store.members.refuse(store.verify(grid.world))
        return store
    opened, key = _OPENED.setdefault(grid, {}), (os.getcwd(), os.fspath(store))
    if anew or not grid.world.lowest(key in opened):
        opened[key] = Store(store, grid.world, verify)
    return opened[key]


def identity(store: StoreOrPath, comm: Communicator) -> dict[str, str]:
    """Return the facts of a store that ranks compare: the hash of its manifest. Collective.

    The store may lie at another path on each rank. Of the ranks of a node that give the same path, one reads.
    """
    check_type("store", store, (Store, str, os.PathLike), "an opened store, or the path of one")
    path = store.path if isinstance(store, Store) else Path(store)
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        paths = node.allgather(os.path.abspath(path))
        reader = paths.index(os.path.abspath(path))
        states = node.allgather(_state(path) if reader == node.Get_rank() else "")
    finally:
        node.Free()
    return {"the store's manifest": states[reader]}


def _state(path: Path) -> str:
    try:
        return f"sha256 {short(hashlib.sha256(manifest.text(path).encode()))}"
    except OSError as error:
        return f"not to be read: {error.strerror}"
    except ValueError as error:
        return f"not to be read: {error}"
