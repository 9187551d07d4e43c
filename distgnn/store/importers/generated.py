"""Raw graph directories in the format of `distgnn generate`: graph.json and plain .npy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.arrays import StoredArray, integers, open_npy
from distgnn.store.importers.files import check_declared, read_json
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.tables import DenseRows
from distgnn.store.source import Edges, ImportOptions

FORMAT, VERSION = "distgnn-graph", 1


def read_description(path: Path) -> dict[str, Any]:
    """Read graph.json and check format, version and sizes."""
    graph = read_json(path)
    if not isinstance(graph, dict) or graph.get("format") != FORMAT:
        raise UserError(f'{path}: expected "format": "{FORMAT}", as `distgnn generate` writes it')
    if graph.get("version") != VERSION:
        versions = f"schema version {graph.get('version')}; this program reads version {VERSION}"
        raise UserError(f"{path}: {versions}: generate the graph again")
    for key in ("n", "edges", "classes", "width"):
        if type(graph.get(key)) is not int or graph[key] < 0:
            raise UserError(f'{path}: "{key}" is {graph.get(key)!r}, expected an integer of at least 0')
    if not isinstance(graph.get("directed"), bool):
        raise UserError(f'{path}: "directed" is {graph.get("directed")!r}, expected true or false')
    return graph


def open_source(path: Path, options: ImportOptions) -> Imported:
    """Open a directory that ``gallery.write`` wrote."""
    graph = read_description(path / "graph.json")
    n, count, edges = graph["n"], graph["edges"], open_npy(path / "edges.npy")
    if edges.shape != (count, 2) or edges.fortran or edges.dtype.kind not in "iu":
        expected = f"expected integers of shape ({count}, 2)"
        raise UserError(f"{edges.path}: {edges.dtype} of shape {edges.shape}, {expected}")

    def window(first: int, last: int) -> Iterator[Edges]:
        for src, dst in read_edges(edges, first, last):
            yield src, dst, None

    check_declared(n, path)
    name = str(graph.get("kind") or path.name)[:80]
    source = Imported(name, path / "edges.npy", n, lambda: window(0, count), options)
    source.window, source.edge_count = window, count
    source.directed = graph["directed"] if options.directed is None else options.directed
    if graph["width"]:
        table = DenseRows(open_npy(path / "features.npy"), path / "features.npy")
        if table.array.shape != (n, graph["width"]):
            raise UserError(f"{table.path}: shape {table.array.shape}, expected ({n}, {graph['width']})")
        source.set_features(table)
    if graph["classes"]:
        labels = path / "labels.npy"
        source.set_labels(integers(open_npy(labels).read(), str(labels)), labels, graph["classes"])
    split = path / "split.npy"
    if split.exists():
        source.set_split(integers(open_npy(split).read(), str(split)), split)
    return source


def read_edges(edges: StoredArray, first: int, last: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield sources and targets of rows first..last-1 of an (m, 2) array, LIMITS.entries at a time."""
    for lo in range(first, last, LIMITS.entries):
        src, dst = edges.window(lo, min(lo + LIMITS.entries, last)).T.astype(np.int64, order="C")
        yield src, dst
