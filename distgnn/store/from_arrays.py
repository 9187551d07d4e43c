"""A store from arrays in memory: ``prepare(graph, X, y, split, out=...)``, for users of other libraries."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.canonical import check_real
from distgnn.errors import ArgumentError, UserError, did_you_mean
from distgnn.split import NAMES, TRAIN
from distgnn.store.adapters import Given, array, ends, sparse, unpacked
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import open_source
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.labels import label_array
from distgnn.store.importers.names import Names, encoded, shown
from distgnn.store.importers.tables import finite
from distgnn.store.source import Edges, ImportOptions, parse_split, random_split
from distgnn.store.write.finish import Summary
from distgnn.store.write.prepare import prepare as write_store
from distgnn.store.write.ranks import of
from distgnn.terminal import printable


def prepare(
    graph: Any, X: Any = None, y: Any = None, split: Any = None, *, out: str | os.PathLike[str],
    ids: Any = None, nodes: Any = None, weights: Any = None, directed: bool | None = None, seed: int = 0,
    multilabel: bool = False, regression: bool = False, comm: Any = None, **options: Any,
) -> Summary:  # fmt: skip
    """Write a store from arrays, or from files. With ``comm``, collective: all ranks give equal arrays.

    Examples:
        >>> dg.prepare(data.edge_index, data.x, data.y, "0.6/0.2/0.2", out="graph.dg")  # doctest: +SKIP
        >>> dg.prepare("edges.csv", "x.npy", "labels.csv", out="graph.dg")  # doctest: +SKIP

    Arrays are anything that NumPy takes, such as CPU tensors. ``distgnn.store.rules`` defines how rows,
    repeated edges and directions are read, in files and in arrays. If `graph` is a path, X and y are
    paths too (or words such as "random:128" and "degree:32"), as for ``distgnn prepare``.

    Args:
        graph: node ids, int (2, edges), of which column k is an edge from ``graph[0, k]`` to ``graph[1, k]``,
            or (edges, 2), or a pair of arrays; or a SciPy sparse matrix or sparse tensor, n x n, whose entry
            (i, j) is an edge from j to i; or a graph of PyG, DGL, OGB or NetworkX, which may have X, y and
            split itself (see ``store/adapters.py``); or a path.
        X: features, n x width, dense or sparse.
        y: classes as whole numbers (n), where a number below 0 or NaN means unlabelled; or as strings (n),
            where an empty one means unlabelled, and semicolons part several. If a node may have several
            classes: n x classes, dense or sparse, 1 for each class of the node, else 0; a row of NaN or -1
            means unlabelled.
        split: shares such as "0.6/0.2/0.2", drawn by ``seed``; or (n) numbers, 0 none, 1 training,
            2 validation, 3 test; or three arrays for training, validation and test, each a mask (n) or node
            ids, in this order or by the names train, val (or valid) and test.
        ids: the user's ids of the nodes, whole numbers or strings (n), which the store keeps; the ends of
            edges are then ids. Default: numbers 0..n-1; without X and y also strings, in ascending order.
        nodes: the number of nodes; default: the rows of X, y or a matrix, or one more than the highest id.
        weights: of the edges, (edges) numbers, or True for the values of a matrix; default: all edges are 1.
        directed: False adds the reverse of every edge. By default the graph is directed unless the reverse
            of every edge is there too.
        seed: seed of random orders and of a split by shares.
        multilabel: keep rows of 0 and 1 of which none has two ones; by default they are classes.
        regression: y are numbers to predict, (n) or (n, columns), kept as float32; NaN means unlabelled.
        options: options of ``store.prepare``: order, normalize, partitions, shards, dtype, self_loops, force.
            For a path also fields of ``store.source.ImportOptions``: format, source_column, ...

    Raises:
        ArgumentError: arrays that do not fit together.
        UserError: as ``store.prepare``.
    """
    given = {"ids": ids, "nodes": nodes, "weights": weights, "directed": directed, "seed": seed}
    given |= {"multilabel": multilabel, "regression": regression}
    if not isinstance(graph, (str, os.PathLike)):
        source = of_arrays(graph, X, y, split, **given)
        for note in source.notes if of(comm, out).rank == 0 else ():
            warnings.warn(printable(note), stacklevel=2)
        return write_store(source, out, seed=seed, comm=comm, **options)
    if nodes is not None:
        raise ArgumentError("nodes", nodes, "is for arrays; the file says it, or node_list=FILE")
    del given["nodes"]
    named = {field.name for field in dataclasses.fields(ImportOptions)} & set(options)
    given |= {"features": X, "labels": y, "split": split} | {name: options.pop(name) for name in named}
    team = of(comm, out)
    with team.together():
        imported = open_source(graph, _of_files(given))
    for note in imported.notes if team.rank == 0 else ():
        warnings.warn(printable(note), stacklevel=2)
    return write_store(imported, out, seed=seed, comm=comm, **options)


def _of_files(given: Mapping[str, Any]) -> ImportOptions:
    """Return the import options of a graph in files; raise ArgumentError for arrays among them."""
    plain = {"weights", "directed", "seed", "multilabel", "regression"}
    if not isinstance(given["weights"], (bool, type(None))):
        weights = type(given["weights"]).__name__
        raise ArgumentError("weights", weights, "expected True, which takes those of the file")
    for name, value in given.items():
        if name not in plain and not isinstance(value, (str, os.PathLike, type(None))):
            wrong = {"features": "X", "labels": "y"}.get(name, name)
            raise ArgumentError(wrong, type(value).__name__, "expected a path, as the graph is in a file")
    words = {
        name: value if name in plain or value is None else os.fspath(value) for name, value in given.items()
    }
    return ImportOptions(**words | {"weights": given["weights"] is True})


def of_arrays(
    graph: Any, X: Any = None, y: Any = None, split: Any = None, *, ids: Any = None, nodes: int | None = None,
    weights: Any = None, directed: bool | None = None, seed: int = 0, multilabel: bool = False,
    regression: bool = False, default_split: str | None = None,
) -> Imported:  # fmt: skip
    """Return the source of a store from arrays; :func:`prepare` documents the arguments.

    `default_split`: shares of the parts if no split is given.
    """
    given = unpacked(Given(graph, X, y, split, ids, nodes, weights, directed))
    graph, X, y, split, ids, nodes = given.graph, given.X, given.y, given.split, given.ids, given.nodes
    weights, directed = given.weights, given.directed
    names = None if ids is None else _names(ids)
    src, dst, values, square, names = _edges(graph, weights, names, X is None and y is None)
    read = _numbers if regression else _labels
    table, labels = None if X is None else _table(X), None if y is None else read(y)
    sizes = {"nodes": nodes, "graph": square, "X": None if table is None else table.shape[0]}
    sizes |= {"y": None if labels is None else len(labels), "ids": None if names is None else len(names)}
    known = {name: size for name, size in sizes.items() if size is not None}
    if len(set(known.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in known.items())
        raise ArgumentError("graph", "arrays", f"do not agree in the number of nodes: {listed}")
    n = next(iter(known.values()), int(max(src.max(initial=-1), dst.max(initial=-1))) + 1)
    options = ImportOptions(directed=directed, weights=values is not None, seed=seed, multilabel=multilabel)
    options.regression = regression
    source = Imported("arrays", "graph", n, partial(_stream, src, dst, values), options)  # type: ignore[arg-type]
    source.edge_count = len(src)
    if names is not None:
        source.set_ids(names, listed=True)
    if table is not None:
        source.set_features(_Rows(table))
    if labels is not None and regression:
        try:
            source.set_numbers(labels, "y")
        except UserError as error:
            raise ArgumentError("y", f"{labels.dtype} of shape {labels.shape}", str(error)) from None
    elif labels is not None:
        (source.set_classes if labels.dtype == object else source.set_labels)(labels, "y")
    source.settle_direction(directed=True)
    split = default_split if split is None else split
    if split is not None:
        source.set_split(_split(split, n, seed, source.labels), "split")
    return source


def _names(ids: Any) -> Names:
    """Check and wrap the users' ids of nodes."""
    names = array("ids", ids)
    if names.ndim != 1 or names.dtype.kind not in "iuOUS":
        given = f"{names.dtype} of shape {names.shape}"
        raise ArgumentError("ids", given, "expected a whole number or a string for each node")
    try:
        return Names(_as_ids(names), "ids")
    except ValueError as error:
        raise ArgumentError("ids", f"{len(names)} of them", str(error)) from None


def _as_ids(names: np.ndarray) -> np.ndarray:
    """Convert ids to int64 or UTF-8; raise ValueError for a value that is neither a number nor text."""
    if names.dtype.kind in "iu":
        return names.astype(np.int64)
    return encoded(word.decode() if isinstance(word, bytes) else word for word in names.tolist())


def _edges(
    graph: Any, weights: Any, names: Names | None, free: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, int | None, Names | None]:  # fmt: skip
    """Return sources, targets, weights or None, nodes of a square matrix or None, and the node names.

    With `free`, and no names given, the names are the distinct ends of the edges.
    """
    graph = sparse("graph", graph)
    if sp.issparse(graph):
        check_real("graph", graph.dtype)
        if graph.ndim != 2 or graph.shape[0] != graph.shape[1]:
            raise ArgumentError("graph", f"a matrix {graph.shape}", "must be square, nodes by nodes")
        entries = graph.tocoo()
        taken = entries.data if weights is True else weights
        src, dst, square = entries.col, entries.row, graph.shape[0]
    else:
        (src, dst), names = _ends(ends(graph), names, free)
        square, taken = None, weights
    values = None if taken is None or taken is False else _weights(taken, src.shape)
    return src.astype(np.int64), dst.astype(np.int64), values, square, names


def _ends(given: np.ndarray, names: Names | None, free: bool) -> tuple[np.ndarray, Names | None]:
    """Return the node numbers at the ends of edges, (2, edges), and the node names."""
    words = given.dtype.kind in "OUS" and (free or names is not None)
    if given.ndim != 2 or given.shape[0] != 2 or not (words or given.dtype.kind in "iu"):
        shape = f"{given.dtype} of shape {given.shape}"
        expected = "a SciPy sparse matrix, or whole numbers (2, edges), or strings with their ids=IDS"
        raise ArgumentError("graph", shape, f"expected {expected}")
    if names is None and not words:
        return given, None
    try:
        flat = _as_ids(given.reshape(-1))
    except ValueError as error:
        raise ArgumentError("graph", f"{given.dtype} of shape {given.shape}", f"has {error}") from None
    if names is None:
        names = Names(np.unique(flat), "graph")
    if names.words != (flat.dtype.kind == "S"):
        raise ArgumentError("graph", given.dtype, "ends of edges and ids are numbers, or both are strings")
    numbers = names.find(flat)
    if len(numbers) and numbers.min() < 0:
        unknown = shown(flat[np.flatnonzero(numbers < 0)[0]])
        raise ArgumentError("graph", unknown, "is no node; ids=IDS has others")
    return numbers.reshape(2, -1), names


def _weights(taken: Any, shape: tuple[int, ...]) -> np.ndarray:
    values = array("weights", taken)
    if values.shape != shape or values.dtype.kind not in "biuf":
        problem = f"expected a number for each of the {shape[0]} edges"
        raise ArgumentError("weights", f"{values.dtype} of shape {values.shape}", problem)
    return values.astype(np.float64)


def _stream(src: np.ndarray, dst: np.ndarray, weights: np.ndarray | None) -> Iterator[Edges]:
    for lo in range(0, len(src), LIMITS.entries):
        some = slice(lo, lo + LIMITS.entries)
        yield src[some], dst[some], None if weights is None else weights[some]


def _table(X: Any) -> Any:
    """Return features as a dense array or a CSR matrix."""
    X = sparse("X", X)
    table = sp.csr_array(X) if sp.issparse(X) else array("X", X)
    if table.ndim != 2 or table.dtype.kind not in "biuf":
        given = f"{table.dtype} of shape {table.shape}"
        raise ArgumentError("X", given, "expected real numbers, nodes by width")
    return table


class _Rows:
    """A table of features in memory."""

    listed: np.ndarray | None = None

    def __init__(self, table: Any) -> None:
        self.table, (self.nodes, self.width) = table, table.shape

    def rows(self, ids: np.ndarray) -> np.ndarray:
        some = self.table[ids]
        return finite(some.toarray() if sp.issparse(some) else some, ids, "X")


def _numbers(y: Any) -> np.ndarray:
    """Return numbers to predict, (n) or (n, columns)."""
    y = sparse("y", y)
    numbers = y.toarray() if sp.issparse(y) else array("y", y)
    if numbers.ndim not in (1, 2) or numbers.dtype.kind not in "biuf":
        given = f"{numbers.dtype} of shape {numbers.shape}"
        raise ArgumentError("y", given, "expected a number for each node, or a row of some")
    return numbers


def _labels(y: Any) -> np.ndarray:
    y = sparse("y", y)
    labels = y.toarray() if sp.issparse(y) else array("y", y)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    words = labels.dtype.kind in "OU" and all(isinstance(y_i, str) for y_i in labels.ravel().tolist())
    if labels.ndim == 1 and words:
        return labels.astype(object)
    if labels.ndim not in (1, 2) or labels.dtype.kind not in "biuf" or 0 in labels.shape[1:]:
        given = f"{labels.dtype} of shape {labels.shape}"
        raise ArgumentError("y", given, "expected a class for each node, a whole number, or a row of 0 and 1")
    if labels.ndim == 2:
        try:
            return label_array(labels, "y")
        except UserError as error:
            raise ArgumentError("y", f"{labels.dtype} of shape {labels.shape}", str(error)) from None
    if labels.dtype.kind == "f":
        if (infinite := np.flatnonzero(np.isinf(labels))).size:
            problem = f"is the label of node {infinite[0]}; expected a class, a whole number, or NaN for none"
            raise ArgumentError("y", labels[infinite[0]], problem)
        labels = np.where(np.isnan(labels), -1, labels)
        if not (labels == np.rint(labels)).all():
            expected = "expected whole numbers; regression=True, of fit loss=mse, predicts numbers"
            raise ArgumentError("y", "numbers with fractions", f"are no classes; {expected}")
    return labels.astype(np.int64)


def _split(given: Any, n: int, seed: int, labels: np.ndarray | None) -> np.ndarray:
    """Return the part of every node, uint8 (n)."""
    if isinstance(given, str):
        parse_split(given)
        return random_split(n, given, seed, labels)
    if not isinstance(given, Mapping) and not (len(given) == 3 and np.ndim(given[0])):
        return array("split", given)
    split = np.zeros(n, np.uint8)
    _check_parts(given)
    for part, names in NAMES.items():
        some = array("split", _part(given, part, names))
        mask = some.dtype == bool
        nodes = np.flatnonzero(some) if mask and some.shape == (n,) else some
        if nodes.ndim != 1 or nodes.dtype.kind not in "iu" or not ((nodes >= 0) & (nodes < n)).all():
            problem = f"expected a mask of the {n} nodes, or node ids from 0 to {n - 1}"
            raise ArgumentError("split", f"{names[0]}: {some.dtype} of shape {some.shape}", problem)
        if len(np.unique(nodes)) < len(nodes):  # a mask of 0 and 1 would pass for ids
            problem = f"lists nodes more than once; a mask must be bool, not {some.dtype}"
            raise ArgumentError("split", names[0], problem)
        if split[nodes].any():
            raise ArgumentError("split", names[0], "has nodes that are in another part, too")
        split[nodes] = part
    return split


def _part(given: Sequence[Any] | Mapping[str, Any], part: int, names: Sequence[str]) -> Any:
    if not isinstance(given, Mapping):
        return given[part - TRAIN]
    parts = [given[name] for name in names if name in given]
    if len(parts) != 1 and (parts or part == TRAIN):
        raise ArgumentError("split", ", ".join(map(str, given)), f"expected one part called {names[0]}")
    return parts[0] if parts else np.zeros(0, np.int64)  # without nodes for validation or test


def _check_parts(given: Any) -> None:
    """Raise ArgumentError for a part of another name."""
    known = [name for names in NAMES.values() for name in names]
    for name in given if isinstance(given, Mapping) else ():
        if name not in known:
            problem = f"no part has this name; there is train, val and test{did_you_mean(name, known)}"
            raise ArgumentError("split", name, problem)
