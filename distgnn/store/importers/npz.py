"""Single .npz files: a matrix saved by `scipy.sparse.save_npz`, or the adjacency, attributes and labels of a
co-authorship or citation graph (`adj_data`, `adj_indices`, `adj_indptr`, `adj_shape`, `attr_*`, `labels`).

Entry (i, j) of a SciPy matrix is A[i, j]. In the second kind row i lists the nodes to which i points: edges i
-> j.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.arrays import Npz
from distgnn.store.importers.compressed import StoredMatrix
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.tables import DenseRows, Features
from distgnn.store.source import Edges, ImportOptions

ADJACENCY_PREFIXES = ("adj_", "adj_matrix.")
ATTRIBUTE_PREFIXES = ("attr_", "attr_matrix.")
ATTRIBUTE_NAMES = ("attr_matrix", "attr", "features")


def open_source(path: Path, options: ImportOptions) -> Imported:
    """Recognise which of the two kinds it is by the names of its arrays."""
    archive = Npz(path, options.scratch)
    for prefix in ADJACENCY_PREFIXES:
        if f"{prefix}indptr" in archive:
            return _attributed(archive, prefix, path, options)
    if "format" in archive:
        return scipy_matrix(archive, path, options)
    expected = "a SciPy matrix (format, shape, data, ...) or adj_data, adj_indices, adj_indptr, adj_shape"
    raise UserError(f"{path}: holds {', '.join(archive.names) or 'nothing'}; expected {expected}")


def scipy_matrix(archive: Npz, path: Path, options: ImportOptions) -> Imported:
    """The graph of a matrix saved by SciPy."""
    source = _graph(StoredMatrix(archive, archive.text("format")), path, options, transposed=True)
    source.settle_direction(directed=True)
    return source


def _graph(matrix: StoredMatrix, path: Path, options: ImportOptions, transposed: bool) -> Imported:
    """The graph of a matrix: row i has the edges from i, `transposed` those to i."""

    def stream() -> Iterator[Edges]:
        for row, column, value in matrix:
            src, dst = (column, row) if transposed else (row, column)
            yield src, dst, value.astype(np.float64)

    source = Imported(path.stem, path, matrix.square(), stream, options)
    source.edge_count = matrix.entries
    return source


def _attributed(archive: Npz, prefix: str, path: Path, options: ImportOptions) -> Imported:
    source = _graph(StoredMatrix(archive, "csr", prefix), path, options, transposed=False)
    table = _attributes(archive)
    if table and table.nodes != source.n:
        raise UserError(f"{path}: attributes of {table.nodes} nodes for an adjacency matrix of {source.n}")
    source.set_features(table)
    if "labels" in archive:
        source.set_labels(archive.integers("labels"), archive.where("labels"))
    source.settle_direction(directed=True)
    return source


def _attributes(archive: Npz) -> Features | None:
    for prefix in ATTRIBUTE_PREFIXES:
        if f"{prefix}indptr" in archive:
            return StoredMatrix(archive, "csr", prefix).rows()
    for name in ATTRIBUTE_NAMES:
        if name in archive:
            return DenseRows(archive.stored(name), archive.where(name))
    return None
