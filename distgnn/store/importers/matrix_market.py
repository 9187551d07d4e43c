"""Matrix Market coordinate files, `.mtx` and `.mtx.gz`: the entry in row i and column j is A[i, j]."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.files import check_declared, lines
from distgnn.store.importers.imported import Imported, table_edges
from distgnn.store.importers.names import whole
from distgnn.store.importers.tables import check_square
from distgnn.store.importers.text import Table, within
from distgnn.store.source import Edges, ImportOptions

FIELDS, SYMMETRIES = ("pattern", "real", "integer"), ("general", "symmetric")
SUPPORTED = f"coordinate {'|'.join(FIELDS)} {'|'.join(SYMMETRIES)}"


def read_banner(path: Path) -> tuple[bool, bool, int, int, int]:
    """Read (pattern?, symmetric?, n, entries, lines up to the size line); UserError for another matrix."""
    head = lines(path)
    words = next(head, (1, ""))[1].lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        expected = f"expected %%MatrixMarket matrix {SUPPORTED}"
        raise UserError(f"{path}, line 1: not a Matrix Market file; {expected}")
    form, field, symmetry = words[2:]
    if form != "coordinate" or field not in FIELDS or symmetry not in SYMMETRIES:
        kind = f"a matrix of kind {form} {field} {symmetry}"
        raise UserError(f"{path}, line 1: {kind} is no graph; expected {SUPPORTED}")
    number, text = next(((k, text) for k, text in head if text.strip() and text[0] != "%"), (0, ""))
    if not number:
        raise UserError(f"{path}: ends before the size line; expected ROWS COLUMNS ENTRIES")
    sizes, where = [whole(size) for size in text.split()], f"{path}, line {number}"
    if len(sizes) != 3 or None in sizes:
        raise UserError(f"{where}: bad size line {text.strip()[:80]!r}; expected ROWS COLUMNS ENTRIES")
    rows, columns, entries = (size or 0 for size in sizes)
    check_declared(check_square(rows, columns, where), path)
    return field == "pattern", symmetry == "symmetric", rows, entries, number


def open_source(path: Path, options: ImportOptions) -> Imported:
    """Open the matrix as a graph: directed if it is `general`, unless every entry has its mirror image."""
    pattern, symmetric, n, entries, skip = read_banner(path)
    fields = [("row", np.int64), ("column", np.int64), ("value", np.float64)][: 2 if pattern else 3]
    expected = " ".join(name.upper() for name, _ in fields)
    table = Table(path, np.dtype(fields), expected, comments="%", skip=skip, check=within(1, n))

    def stream() -> Iterator[Edges]:
        for row, column, value in table_edges(table, path, (entries, f"line {skip}")):
            yield column - 1, row - 1, value

    source = Imported(path.name.removesuffix(".gz").removesuffix(".mtx"), path, n, stream, options)
    source.edge_count = entries
    if symmetric and options.directed:
        stored = "is stored as a symmetric matrix, which lists each edge once"
        raise UserError(f"{path}: {stored}; it cannot be read as directed")
    if not symmetric:
        source.settle_direction(directed=True)
    return source
