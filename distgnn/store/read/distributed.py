"""From a store straight onto a grid: each rank reads what it will hold, and nothing passes through rank 0."""

from __future__ import annotations

import os
import weakref
from typing import Any

import numpy as np

from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError
from distgnn.layout import Layout
from distgnn.operators.dense import DistDense
from distgnn.operators.operator import DistSparse
from distgnn.operators.sources import BlockSource
from distgnn.store.read.neighbours import Neighbours
from distgnn.store.read.store import AnyOrder, Store

StoreOrPath = Store | str | os.PathLike[str]
_OPENED: weakref.WeakKeyDictionary[Grid, dict[str, Store]] = weakref.WeakKeyDictionary()


def load(
    store: StoreOrPath, grid: Grid, algorithm: str = "1d", order: str | None = None, dtype: Any = None,
    sparsity_aware: bool | str = False, neighbours: bool = False, verify: bool = False, **partitions: Any,
) -> DistSparse:  # fmt: skip
    """The adjacency matrix of a store as a distributed operator. Collective.

    Args:
        store: an opened store or its path; grid: as ``operators.make_grid`` makes it for the algorithm.
        order: node order; default: the store's first. The parts of one made by partition are the block rows
            of ``1d`` and ``1.5d``. ``double`` is for ``3d`` only, whose layers take its versions in turn.
        dtype: of the values; default: as stored.
        sparsity_aware: send only the rows that are needed, see ``operators.distribute``.
        neighbours: ones in place of all off-diagonal non-zeros, nothing on the diagonal; verify: see `Store`.
        partitions: other partition vectors, as the algorithm's class takes them.

    Raises:
        UserError: no such store, order or algorithm, a damaged file, or an order that does not fit.
    """
    from distgnn import operators

    operators.get(algorithm, sparsity_aware)  # refused before anything is read
    opened = open_store(store, grid, verify, anew=True)
    with grid.world.together():
        source = opened.order(order)
    if dtype is not None:
        for version in source.versions:
            version.dtype = np.dtype(dtype)
    if len(source.versions) > 1:
        _check_alternates(opened, source.name, algorithm)
        partitions = {"odd": source.layer(1)} | partitions
    if source.partition is not None and algorithm in operators.SPARSITY_AWARE:
        _check_parts(source.name, len(source.partition) - 1, grid, algorithm)
        partitions = {"row_parts": source.partition, "col_parts": source.partition} | partitions
    matrix: BlockSource = Neighbours(source, not opened.manifest["directed"]) if neighbours else source
    return operators.distribute(matrix, grid, algorithm, sparsity_aware, **partitions)


def _check_alternates(store: Store, order: str, algorithm: str) -> None:
    if algorithm != "3d":
        others = [name for name in store.orders if len(store.order(name).versions) == 1]
        instead = f"order={' or '.join(others)}" if others else "prepare with order=double,random"
        problem = f"only algorithm 3d alternates two permutations; use algorithm=3d or {instead}"
        raise ArgumentError("order", order, problem)


def _check_parts(order: str, parts: int, grid: Grid, algorithm: str) -> None:
    rows = grid.shape["rows"]
    if parts != rows:
        method = order.rpartition("-")[0].replace("file", "FILE")
        ranks = f"{parts} ranks" if algorithm == "1d" else f"{parts} C ranks with replication=C"
        has = f"has {parts} parts, and {algorithm} on {grid.size} ranks has {rows} block rows"
        raise ArgumentError("order", order, f"{has}; use {ranks}, or prepare with partition={method}:{rows}")


def load_features(
    store: StoreOrPath, layout: Layout, order: AnyOrder = None, dtype: Any = np.float32
) -> DistDense:
    """The features of a store, n x width, cut by ``layout``: each rank reads its own rows and columns.
    Collective. An order's name means its input side: of ``double``, the columns of layer 0's matrix."""
    grid = layout.grid
    opened = open_store(store, grid)
    with grid.world.together():
        shape = (opened.n, opened.width)
        rows, cols = layout.ranges(shape)
        block = opened.features(order, rows, cols)
    return DistDense(grid.backend.asarray(block, dtype), layout, shape)


def load_targets(store: StoreOrPath, layout: Layout, order: AnyOrder = None) -> tuple[np.ndarray, np.ndarray]:
    """``(labels, split)`` of this rank's rows under ``layout``, int32 and uint8 on the host. Collective.

    Of ``double``, pass the side of the output, ``store.order("double").layer(L - 1)`` for L layers:
    ValueError for its name.
    """
    rows = layout.row_range
    opened = open_store(store, layout.grid)
    with layout.grid.world.together():
        labels, split = opened.labels(order, rows), opened.split(order, rows)
    return labels, split


def open_store(store: StoreOrPath, grid: Grid, verify: bool = False, anew: bool = False) -> Store:
    """The store itself; of a path the one that a matrix on this grid was loaded from, unless `anew`, so that
    features are refused if another has taken its place. Collective."""
    if isinstance(store, Store):
        if verify:
            store.members.refuse(store.verify(grid.world))
        return store
    opened, path = _OPENED.setdefault(grid, {}), os.path.abspath(store)
    if anew or path not in opened:
        opened[path] = Store(store, grid.world, verify)
    return opened[path]
