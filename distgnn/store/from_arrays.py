"""A store from arrays in memory: ``prepare(graph, X, y, split, out=...)``, for users of other libraries."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import scipy.sparse as sp

from distgnn.arrays import foreign
from distgnn.arrays.backend import Backend, known
from distgnn.errors import ArgumentError
from distgnn.store import array_labels
from distgnn.store.adapters import Given, array, sparse, unpacked
from distgnn.store.array_edges import ArrayEdges, edges_of
from distgnn.store.array_ids import names_of
from distgnn.store.array_splits import split_of
from distgnn.store.frames import of_tables
from distgnn.store.importers import open_source
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.tables import FeatureRows, SparseRows, finite
from distgnn.store.keywords import PrepareOptions
from distgnn.store.source import ImportOptions
from distgnn.store.write.finish import Summary
from distgnn.store.write.prepare import prepare as write_store
from distgnn.store.write.ranks import of, task
from distgnn.terminal import printable


def prepare(
    graph: Any, X: Any = None, y: Any = None, split: Any = None, *, out: str | os.PathLike[str],
    ids: Any = None, nodes: Any = None, weights: Any = None, directed: bool | None = None, seed: int = 0,
    multilabel: bool = False, regression: bool = False, comm: Any = None,
    **options: Unpack[PrepareOptions],
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
            (i, j) is an edge from j to i: entries of one place add up, and zeros that it stores are none; or
            a table of pandas, or a graph of PyG, DGL, OGB or NetworkX, which may have X, y and split itself
            (see ``store/adapters.py``); or a path.
        X: features, n x width, dense or sparse; kept as float32, or with dtype="float64" as float64 if
            float32 would change one.
        y: classes as whole numbers (n), where a number below 0, NaN or None means unlabelled; or as text (n),
            where an empty one, NaN or None means unlabelled, and semicolons part several. If a node may have
            several classes: n x classes, dense or sparse, 1 for each class of the node, else 0; a row of NaN
            or -1 means unlabelled.
        split: shares such as "0.6/0.2/0.2" or (0.6, 0.2, 0.2), drawn by ``seed``; or for each node train,
            val, test or none, or numbers, 0 none, 1 training, 2 validation, 3 test, of which 3 is there; or
            three arrays for training, validation and test, each a mask (n) or nodes, by id where they have
            ids, in this order or by the names train, val (or valid) and test.
        ids: the user's ids of the nodes, whole numbers or strings (n), which the store keeps; the ends of
            edges are then ids. Default: numbers 0..n-1; without X, y and nodes also strings, and numbers that
            leave more than half of their range empty, in ascending order.
        nodes: the number of nodes; default: the rows of X, y or a matrix, or one more than the highest id.
        weights: of a list of edges, (edges) numbers, or True for the values of a matrix; default: all are 1.
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
    further: dict[str, Any] = {**options}
    with task(comm) as ours:
        if not isinstance(further.get("dtype", ""), str):
            further["dtype"] = np.dtype(further["dtype"]).name
        given = {"ids": ids, "nodes": nodes, "weights": weights, "directed": directed, "seed": seed}
        given |= {"multilabel": multilabel, "regression": regression}
        if not isinstance(graph, (str, os.PathLike)):
            source = of_arrays(graph, X, y, split, **given, dtype=further.get("dtype", "float32"))
            for note in source.notes if of(ours, out).rank == 0 else ():
                warnings.warn(printable(note), stacklevel=2)
            return write_store(source, out, seed=seed, comm=ours, **further)
        if nodes is not None:
            raise ArgumentError("nodes", nodes, "is for arrays; the file says it, or node_list=FILE")
        del given["nodes"]
        named = {field.name for field in dataclasses.fields(ImportOptions)} & set(further)
        given |= {"features": X, "labels": y, "split": split} | {name: further.pop(name) for name in named}
        team = of(ours, out)
        with team.together():
            imported = open_source(graph, _of_files(given))
        for note in imported.notes if team.rank == 0 else ():
            warnings.warn(printable(note), stacklevel=2)
        return write_store(imported, out, seed=seed, comm=ours, **further)


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
    regression: bool = False, default_split: str | None = None, dtype: str = "float32", targets: bool = True,
    backend: Backend | None = None,
) -> Imported:  # fmt: skip
    """Return the source of a store from arrays; :func:`prepare` documents the arguments.

    `default_split`: shares of the parts if no split is given. `dtype`: of the matrix. `targets`: whether
    labels and split are taken. `backend`: dense features on its GPU stay there, with memory of their own;
    without one they are refused. What else is on a GPU is copied to the host.
    """
    y, split = (y, split) if targets else ((), ())  # so that those of the graph are not looked at
    given = of_tables(unpacked(Given(graph, X, y, split, ids, nodes, weights, directed)))
    if not targets:
        given, default_split = dataclasses.replace(given, y=None, split=None), None
    names = None if given.ids is None else names_of(given.ids)
    free = given.X is None and given.y is None and given.nodes is None
    edges = edges_of(given.graph, given.weights, names, free)
    table = None if given.X is None else _table(given.X, backend)
    labels = None if given.y is None else array_labels.values_of(given.y, regression)
    n = _nodes(edges, given.nodes, table, labels)
    weighted = edges.weights is not None
    options = ImportOptions(directed=given.directed, weights=weighted, seed=seed, multilabel=multilabel)
    options.regression = regression
    source = Imported("arrays", "graph", n, edges.stream, options)  # type: ignore[arg-type]
    source.edge_count, source.notes = len(edges.src), edges.notes
    source.left += [f"{edges.zeros} zeros that graph stores"] if edges.zeros else []
    if edges.names is not None:
        source.set_ids(edges.names, listed=True)
    if table is not None:
        source.feature_type = _feature_type(table, dtype)
        source.set_features(_rows(table, source.feature_type, given.feature_names))
    if labels is not None:
        array_labels.take(source, labels)
    source.settle_direction(directed=True)
    split = default_split if given.split is None else given.split
    if split is not None:
        source.set_split(split_of(split, n, seed, source.labels, edges.names), "split")
    return source


def _nodes(edges: ArrayEdges, nodes: int | None, table: Any, labels: np.ndarray | None) -> int:
    """Return the number of nodes; ArgumentError where arrays do not agree in it."""
    sizes = {"nodes": nodes, "graph": edges.square, "X": None if table is None else table.shape[0]}
    sizes |= {"y": None if labels is None else len(labels)}
    sizes |= {"ids": None if edges.names is None else len(edges.names)}
    known = {name: size for name, size in sizes.items() if size is not None}
    if len(set(known.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in known.items())
        raise ArgumentError("graph", "arrays", f"do not agree in the number of nodes: {listed}")
    n = next(iter(known.values()), edges.nodes())
    edges.check(n, known)
    return n


def _table(X: Any, backend: Backend | None) -> Any:
    """Return features as a dense array or a sparse matrix, whose entries are those that were given."""
    X = sparse("X", X)
    if not sp.issparse(X) and foreign.gpu_of(X) is not None:
        if backend is None:
            raise ArgumentError("X", foreign.kind(X), f"is on a GPU: pass {foreign.copy('X', X)}")
        with foreign.borrowed("X", X, backend) as there:
            table = there.copy()
    else:
        table = X if sp.issparse(X) else array("X", X)
    if table.ndim != 2 or table.dtype.kind not in "biuf":
        given = f"{table.dtype} of shape {table.shape}"
        raise ArgumentError("X", given, "expected real numbers, nodes by width")
    if not table.shape[1]:
        raise ArgumentError("X", f"{table.dtype} of shape {table.shape}", "has no columns")
    return table


def _feature_type(table: Any, dtype: str) -> np.dtype:
    """Return float64 where that is asked for and float32 would change a feature, else float32."""
    narrow = np.dtype(np.float32)
    if dtype != "float64" or np.can_cast(table.dtype, narrow):
        return narrow
    numbers = table.data if sp.issparse(table) else table
    with np.errstate(over="ignore", invalid="ignore"):
        same = bool((numbers.astype(narrow).astype(numbers.dtype) == numbers).all())
    return narrow if same else np.dtype(dtype)


def _rows(table: Any, kind: np.dtype, names: list[str] | None) -> FeatureRows:
    """Return a table of features in memory, read as numbers of a dtype, with the names of its columns."""
    if not sp.issparse(table):
        return _Rows(table, kind, names)
    if table.format == "csr":
        listed = slice(int(table.indptr[-1]))  # its arrays may be longer
        rows = SparseRows.compressed(
            table.indptr, table.indices[listed], table.data[listed], table.shape, "X"
        )
    else:
        entries = table.tocoo()  # adds none up
        rows = SparseRows.of_entries(entries.row, entries.col, entries.data, table.shape, "X")
    rows.kind, rows.names = kind, names
    return rows


class _Rows:
    """A dense table of features in memory, read as numbers of a dtype; the names of its columns, if any."""

    listed: np.ndarray | None = None

    def __init__(self, table: Any, kind: np.dtype, names: list[str] | None) -> None:
        self.table, self.kind, self.names, (self.nodes, self.width) = table, kind, names, table.shape
        as_it_is = known(table) is not None and table.dtype == kind and table.flags.c_contiguous
        self.given = table if as_it_is else None  # what a copy of all rows would equal

    def rows(self, ids: np.ndarray) -> np.ndarray:
        return finite(self.table[ids], ids, "X", self.kind)
