"""Graphs in .npz files.

A matrix saved by `scipy.sparse.save_npz`, alone or as NAME_graph.npz with NAME_data.npz (Reddit): A[i, j] is
entry (i, j). Or the adjacency, attributes and labels of a co-authorship or citation graph (`adj_data`,
`adj_indices`, `adj_indptr`, `adj_shape`, `attr_*`, `labels`): entry (i, j) is an edge i -> j. Or arrays with
the names of PyG, DGL and OGB (see `graph_arrays`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.arrays import Npz
from distgnn.store.importers.graph_arrays import has_graph, open_arrays
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.tables import DenseRows, FeatureRows, StoredMatrix
from distgnn.store.source import Edges, ImportOptions

ADJACENCY_PREFIXES, ATTRIBUTE_PREFIXES = ("adj_", "adj_matrix."), ("attr_", "attr_matrix.")
ATTRIBUTE_NAMES = ("attr_matrix", "attr", "features")
MATRIX = ("data", "indices", "indptr", "shape")


def open_source(path: Path, options: ImportOptions) -> Imported:
    """Open an archive; the names of its arrays decide its kind."""
    archive = Npz(path, options.scratch)
    for prefix in ADJACENCY_PREFIXES:
        if f"{prefix}indptr" in archive:
            return _attributed(archive, prefix, path, options)
    if "format" in archive:
        return _scipy_matrix(archive, path, options)
    if has_graph(archive):
        return open_arrays(archive, path, options)
    expected = "edge_index, a SciPy matrix (format, shape, data, ...)"
    expected += " or adj_data, adj_indices, adj_indptr, adj_shape"
    raise UserError(f"{path}: holds {archive.described()}; expected {expected}")


def _scipy_matrix(archive: Npz, path: Path, options: ImportOptions) -> Imported:
    """Open the graph of a matrix saved by SciPy."""
    source = _graph(StoredMatrix(archive, archive.text("format")), path, options, transposed=True)
    source.settle_direction(directed=True)
    return source


def _graph(matrix: StoredMatrix, path: Path, options: ImportOptions, transposed: bool) -> Imported:
    """Make the graph of a matrix: row i has the edges from i or, `transposed`, the edges to i."""

    def stream() -> Iterator[Edges]:
        for row, column, value in matrix:
            src, dst = (column, row) if transposed else (row, column)
            yield src, dst, value.astype(np.float64)

    source = Imported(path.stem, path, matrix.square(), stream, options)
    source.matrix, source.edge_count = True, matrix.entries
    return source


def _attributed(archive: Npz, prefix: str, path: Path, options: ImportOptions) -> Imported:
    source = _graph(StoredMatrix(archive, "csr", prefix), path, options, transposed=False)
    table = _attributes(archive)
    if table and table.nodes != source.n:
        raise UserError(f"{path}: attributes of {table.nodes} nodes for an adjacency matrix of {source.n}")
    source.set_features(table)
    if "labels" in archive:
        source.set_labels(archive.integers("labels"), archive.where("labels"))
    groups = (prefix, *(() if options.features else ATTRIBUTE_PREFIXES))
    known = [f"{group}{part}" for group in groups for part in MATRIX]
    known += [*(() if options.features else ATTRIBUTE_NAMES), *(() if options.labels else ("labels",))]
    source.note_arrays(archive, [name for name in known if name in archive])
    source.settle_direction(directed=True)
    return source


def _attributes(archive: Npz) -> FeatureRows | None:
    for prefix in ATTRIBUTE_PREFIXES:
        if f"{prefix}indptr" in archive:
            return StoredMatrix(archive, "csr", prefix).rows()
    for name in ATTRIBUTE_NAMES:
        if name in archive:
            return DenseRows(archive.stored(name), archive.where(name))
    return None


def find_pair(folder: Path) -> tuple[Path, Path] | None:
    """Find the only NAME_graph.npz of the folder that has its NAME_data.npz beside it."""
    graphs = sorted(folder.glob("*_graph.npz"))
    pairs = [(path, path.with_name(path.name.removesuffix("_graph.npz") + "_data.npz")) for path in graphs]
    pairs = [pair for pair in pairs if pair[1].exists()]
    return pairs[0] if len(pairs) == 1 else None


def open_pair(path: Path, options: ImportOptions) -> Imported:
    """Open a pair of archives.

    Row i of `feature`, `label`, `node_types` (1 train, 2 validation, 3 test) is node node_ids[i]'s.
    """
    pair = find_pair(path)
    if pair is None:
        raise UserError(f"{path}: expected exactly one pair NAME_graph.npz and NAME_data.npz")
    graph, data = pair
    source = _scipy_matrix(Npz(graph, options.scratch), graph, options)
    source.name = graph.name.removesuffix("_graph.npz")
    archive = Npz(data, options.scratch)
    places = _places(archive, source.n)
    table = DenseRows(archive.stored("feature"), archive.where("feature"), places)
    if len(table.array) != source.n:
        raise UserError(f"{table.path}: {len(table.array)} rows for {source.n} nodes")
    source.set_features(table)
    source.set_labels(_node_array(archive, "label", source.n)[places], data)
    if "node_types" in archive:
        source.set_split(_node_array(archive, "node_types", source.n)[places], data)
    return source


def _node_array(archive: Npz, name: str, n: int) -> np.ndarray:
    array = archive.integers(name).ravel()
    if len(array) != n:
        raise UserError(f"{archive.where(name)}: {len(array)} entries for {n} nodes")
    return array


def _places(archive: Npz, n: int) -> np.ndarray:
    """Invert `node_ids`: find the row of each node."""
    if "node_ids" not in archive:
        return np.arange(n)
    ids = _node_array(archive, "node_ids", n)
    places = np.full(n, -1, np.int64)
    if n and ids.min() >= 0 and ids.max() < n:
        places[ids] = np.arange(n)
    if (places < 0).any():
        raise UserError(f"{archive.where('node_ids')}: expected every node 0..{n - 1} once")
    return places
