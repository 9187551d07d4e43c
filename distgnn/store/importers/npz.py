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
from distgnn.store.importers.arrays import Npz, integers
from distgnn.store.importers.compressed import StoredMatrix
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.tables import DenseRows, Features, npz_rows
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
    raise UserError(
        f"{path}: holds {', '.join(archive.names) or 'nothing'}; expected a SciPy matrix "
        "(format, shape, data, ...) or adj_data, adj_indices, adj_indptr, adj_shape"
    )


def scipy_matrix(archive: Npz, path: Path, options: ImportOptions) -> Imported:
    """The graph of a matrix saved by SciPy: directed unless every entry has its mirror image."""
    matrix = StoredMatrix(archive, archive.text("format"))

    def stream() -> Iterator[Edges]:
        for row, column, value in matrix:
            yield column, row, value.astype(np.float64)

    source = Imported(path.stem, path, matrix.square(), stream, options)
    source.edge_count = matrix.entries
    source.settle_direction(directed=True)
    return source


def _attributed(archive: Npz, prefix: str, path: Path, options: ImportOptions) -> Imported:
    matrix = StoredMatrix(archive, "csr", prefix)

    def stream() -> Iterator[Edges]:
        for row, column, value in matrix:
            yield row, column, value.astype(np.float64)

    n = matrix.square()
    table = _attributes(archive)
    if table and table.nodes != n:
        raise UserError(f"{path}: attributes of {table.nodes} nodes for an adjacency matrix of {n}")
    source = Imported(path.stem, path, n, stream, options, table)
    if "labels" in archive:
        where = f"{path}, array 'labels'"
        source.set_labels(integers(archive.read("labels"), where), where)
    source.edge_count = matrix.entries
    source.settle_direction(directed=True)
    return source


def _attributes(archive: Npz) -> Features | None:
    for prefix in ATTRIBUTE_PREFIXES:
        if f"{prefix}indptr" in archive:
            return npz_rows(archive, prefix)
    for name in ATTRIBUTE_NAMES:
        if name in archive:
            return DenseRows(archive.stored(name), f"{archive.path}, array {name!r}")
    return None
