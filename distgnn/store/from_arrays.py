"""A store from arrays in memory: ``prepare(graph, X, y, split, out=...)``, for users of other libraries."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.canonical import check_real
from distgnn.errors import ArgumentError, UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.label_rows import label_array
from distgnn.store.importers.tables import finite
from distgnn.store.source import TEST, TRAIN, VALIDATION, Edges, ImportOptions, parse_split, random_split
from distgnn.store.write.finish import Summary
from distgnn.store.write.prepare import prepare as write_store

#: The parts of a split, and their names in other libraries.
PARTS = {TRAIN: ("train",), VALIDATION: ("val", "valid", "validation"), TEST: ("test",)}


def prepare(
    graph: Any, X: Any = None, y: Any = None, split: Any = None, *, out: str | os.PathLike[str],
    nodes: int | None = None, weights: Any = None, directed: bool | None = None, seed: int = 0,
    comm: Any = None, **options: Any,
) -> Summary:  # fmt: skip
    """Write a store from arrays. With ``comm``, collective: all ranks give equal arrays.

    >>> dg.prepare(data.edge_index, data.x, data.y, "0.6/0.2/0.2", out="graph.dg")  # doctest: +SKIP

    Arrays are anything that NumPy takes, such as CPU tensors. Node ids are 0..n-1.

    Args:
        graph: node ids, int (2, edges), of which column k is an edge from ``graph[0, k]`` to ``graph[1, k]``;
            or a SciPy sparse matrix, n x n, whose entry (i, j) is an edge from j to i.
        X: features, n x width, dense or sparse. y: classes, whole numbers (n); below 0 or NaN: none. Or,
            where a node may have several, n x classes, dense or sparse: 1 for each that it has, else 0; a row
            of NaN or -1: unlabelled.
        split: shares such as "0.6/0.2/0.2", drawn by ``seed``; or (n) numbers, 0 none, 1 training,
            2 validation, 3 test; or three arrays for training, validation and test, each a mask (n) or node
            ids, in this order or by the names train, val (or valid) and test.
        nodes: how many there are; default: as X, y and a matrix say, or one more than the highest id.
        weights: of the edges, (edges) numbers, or True for the values of a matrix; default: all edges are 1.
        directed: default: unless every edge's reverse is there too; False adds the reverses.
        options: of ``store.prepare``: order, normalize, partitions, shards, dtype, self_loops, force.

    Raises:
        ArgumentError: arrays that do not fit together. UserError: as ``store.prepare``.
    """
    source = of_arrays(graph, X, y, split, nodes=nodes, weights=weights, directed=directed, seed=seed)
    return write_store(source, out, seed=seed, comm=comm, **options)


def of_arrays(
    graph: Any, X: Any = None, y: Any = None, split: Any = None, *, nodes: int | None = None,
    weights: Any = None, directed: bool | None = None, seed: int = 0,
) -> Imported:  # fmt: skip
    """The source of a store, see :func:`prepare`."""
    src, dst, values, square = _edges(graph, weights)
    table, labels = None if X is None else _table(X), None if y is None else _labels(y)
    sizes = {"nodes": nodes, "graph": square, "X": None if table is None else table.shape[0]}
    sizes["y"] = None if labels is None else len(labels)
    told = {name: size for name, size in sizes.items() if size is not None}
    if len(set(told.values())) > 1:
        said = ", ".join(f"{name} {size}" for name, size in told.items())
        raise ArgumentError("graph", "arrays", f"do not agree in the number of nodes: {said}")
    n = next(iter(told.values()), int(max(src.max(initial=-1), dst.max(initial=-1))) + 1)
    options = ImportOptions(directed=directed, weights=values is not None, seed=seed)
    source = Imported("arrays", "graph", n, partial(_stream, src, dst, values), options)  # type: ignore[arg-type]
    source.edge_count = len(src)
    if table is not None:
        source.set_features(_Rows(table))
    if labels is not None:
        source.set_labels(labels, "y")
    source.settle_direction(directed=True)
    if split is not None:
        source.set_split(_split(split, n, seed, source.labels), "split")
    return source


def _array(name: str, given: Any) -> np.ndarray:
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(name, type(given).__name__, f"is no array: {error}") from None


def _edges(graph: Any, weights: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, int | None]:
    """Sources, targets, weights or None, and the number of nodes where a matrix says it."""
    if sp.issparse(graph):
        check_real("graph", graph.dtype)
        if graph.shape[0] != graph.shape[1]:
            raise ArgumentError("graph", f"a matrix {graph.shape}", "must be square, nodes by nodes")
        entries = graph.tocoo()
        taken = entries.data if weights is True else weights
        src, dst, square = entries.col, entries.row, graph.shape[0]
    else:
        ends, square, taken = _array("graph", graph), None, weights
        if ends.ndim != 2 or ends.shape[0] != 2 or ends.dtype.kind not in "iu":
            found = f"{ends.dtype} of shape {ends.shape}"
            raise ArgumentError("graph", found, "expected a SciPy sparse matrix, or whole numbers (2, edges)")
        src, dst = ends
    if taken is None or taken is False:
        return src.astype(np.int64), dst.astype(np.int64), None, square
    values = _array("weights", taken)
    if values.shape != src.shape or values.dtype.kind not in "biuf":
        problem = f"expected a number for each of the {len(src)} edges"
        raise ArgumentError("weights", f"{values.dtype} of shape {values.shape}", problem)
    return src.astype(np.int64), dst.astype(np.int64), values.astype(np.float64), square


def _stream(src: np.ndarray, dst: np.ndarray, weights: np.ndarray | None) -> Iterator[Edges]:
    for lo in range(0, len(src), LIMITS.entries):
        some = slice(lo, lo + LIMITS.entries)
        yield src[some], dst[some], None if weights is None else weights[some]


def _table(X: Any) -> Any:
    """A dense array or CSR matrix of features."""
    table = sp.csr_array(X) if sp.issparse(X) else _array("X", X)
    if table.ndim != 2 or table.dtype.kind not in "biuf":
        found = f"{table.dtype} of shape {table.shape}"
        raise ArgumentError("X", found, "expected real numbers, nodes by width")
    return table


class _Rows:
    """A table of features in memory."""

    complete = True

    def __init__(self, table: Any) -> None:
        self.table, (self.nodes, self.width) = table, table.shape

    def rows(self, ids: np.ndarray) -> np.ndarray:
        some = self.table[ids]
        return finite(some.toarray() if sp.issparse(some) else some, ids, "X")


def _labels(y: Any) -> np.ndarray:
    labels = y.toarray() if sp.issparse(y) else _array("y", y)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.ndim not in (1, 2) or labels.dtype.kind not in "biuf" or 0 in labels.shape[1:]:
        found = f"{labels.dtype} of shape {labels.shape}"
        raise ArgumentError("y", found, "expected a class for each node, a whole number, or a row of 0 and 1")
    if labels.ndim == 2:
        try:
            return label_array(labels, "y")
        except UserError as error:
            raise ArgumentError("y", f"{labels.dtype} of shape {labels.shape}", str(error)) from None
    if labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels), -1, labels)
        if not (labels == np.rint(labels)).all():
            raise ArgumentError("y", "numbers with fractions", "are no classes; expected whole numbers")
    return labels.astype(np.int64)


def _split(given: Any, n: int, seed: int, labels: np.ndarray | None) -> np.ndarray:
    """uint8 (n): the part of every node."""
    if isinstance(given, str):
        parse_split(given)
        return random_split(n, given, seed, labels)
    if not isinstance(given, Mapping) and not (len(given) == 3 and np.ndim(given[0])):
        return _array("split", given)
    split = np.zeros(n, np.uint8)
    for part, names in PARTS.items():
        some = _array("split", _part(given, part, names))
        mask = some.dtype == bool
        nodes = np.flatnonzero(some) if mask and some.shape == (n,) else some
        if nodes.ndim != 1 or nodes.dtype.kind not in "iu" or not ((nodes >= 0) & (nodes < n)).all():
            problem = f"expected a mask of the {n} nodes, or node ids from 0 to {n - 1}"
            raise ArgumentError("split", f"{names[0]}: {some.dtype} of shape {some.shape}", problem)
        if split[nodes].any():
            raise ArgumentError("split", names[0], "has nodes that are in another part, too")
        split[nodes] = part
    return split


def _part(given: Sequence[Any] | Mapping[str, Any], part: int, names: Sequence[str]) -> Any:
    if not isinstance(given, Mapping):
        return given[part - TRAIN]
    found = [given[name] for name in names if name in given]
    if len(found) != 1:
        raise ArgumentError("split", ", ".join(map(str, given)), f"expected one part called {names[0]}")
    return found[0]
