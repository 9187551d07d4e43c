"""Raw graph directories as `distgnn generate` writes them: graph.json and plain .npy arrays, read from where
they lie.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.arrays import CHUNK, Header, open_npy, read_header
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.tables import DenseRows
from distgnn.store.importers.text import reading
from distgnn.store.source import Edges, ImportOptions

FORMAT, VERSION = "distgnn-graph", 1


def read_description(path: Path) -> dict[str, Any]:
    """graph.json, its format, version and sizes checked."""
    with reading(path):
        text = path.read_text("utf-8")
    try:
        graph = json.loads(text)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    if not isinstance(graph, dict) or graph.get("format") != FORMAT:
        raise UserError(f'{path}: expected "format": "{FORMAT}", as `distgnn generate` writes it')
    if graph.get("version") != VERSION:
        raise UserError(
            f"{path}: schema version {graph.get('version')}; this program reads version {VERSION}: "
            "generate the graph again"
        )
    for key in ("n", "edges", "classes", "width"):
        if type(graph.get(key)) is not int or graph[key] < 0:
            raise UserError(f'{path}: "{key}" is {graph.get(key)!r}, expected an integer of at least 0')
    if not isinstance(graph.get("directed"), bool):
        raise UserError(f'{path}: "directed" is {graph.get("directed")!r}, expected true or false')
    return graph


def _edge_header(path: Path, edges: int) -> Header:
    with reading(path), open(path, "rb") as file:
        header = read_header(file, path.stat().st_size, str(path))
    if header.shape != (edges, 2) or header.fortran or header.dtype.kind not in "iu":
        raise UserError(
            f"{path}: {header.dtype} of shape {header.shape}, expected integers of shape ({edges}, 2)"
        )
    return header


def open_source(path: Path, options: ImportOptions) -> Imported:
    graph = read_description(path / "graph.json")
    n, edges = graph["n"], path / "edges.npy"
    header = _edge_header(edges, graph["edges"])

    def window(first: int, last: int) -> Iterator[Edges]:
        with reading(edges), open(edges, "rb") as file:
            file.seek(header.offset + 2 * header.dtype.itemsize * first)
            for lo in range(first, last, CHUNK):
                count = min(CHUNK, last - lo)
                pairs = np.fromfile(file, header.dtype, 2 * count)
                if len(pairs) < 2 * count:
                    raise EOFError("the file became shorter")
                pairs = pairs.reshape(count, 2).astype(np.int64, copy=False)
                yield np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]), None

    source = Imported(
        str(graph.get("kind") or path.name), edges, n, lambda: window(0, graph["edges"]), options
    )
    source.window = window
    source.directed = graph["directed"] if options.directed is None else options.directed
    source.edge_count = graph["edges"]
    if graph["width"]:
        table = DenseRows(open_npy(path / "features.npy"), path / "features.npy")
        if table.array.shape != (n, graph["width"]):
            raise UserError(f"{table.path}: shape {table.array.shape}, expected ({n}, {graph['width']})")
        source.set_features(table)
    if graph["classes"]:
        source.set_labels(_small(path / "labels.npy"), path / "labels.npy", graph["classes"])
    if (path / "split.npy").exists():
        source.set_split(_small(path / "split.npy"), path / "split.npy")
    return source


def _small(path: Path) -> np.ndarray:
    array = open_npy(path)
    if array.dtype.kind not in "iu":
        raise UserError(f"{path}: holds {array.dtype}, expected integers")
    return array.read()
