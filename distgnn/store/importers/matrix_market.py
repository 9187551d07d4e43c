"""Matrix Market coordinate files, `.mtx` and `.mtx.gz`: the entry in row i and column j is A[i, j]."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.imported import HIGHEST_ID, Imported, table_edges
from distgnn.store.importers.tables import check_square
from distgnn.store.importers.text import Table, open_binary, reading, within
from distgnn.store.source import Edges, ImportOptions

FIELDS, SYMMETRIES = ("pattern", "real", "integer"), ("general", "symmetric")
SUPPORTED = f"coordinate {'|'.join(FIELDS)} {'|'.join(SYMMETRIES)}"


def read_banner(path: Path) -> tuple[bool, bool, int, int, int]:
    """(pattern?, symmetric?, n, entries, lines up to the size line); UserError for no such square matrix."""
    with reading(path), open_binary(path) as file:
        words = file.readline(1024).decode("latin1").lower().split()
        if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
            expected = f"expected %%MatrixMarket matrix {SUPPORTED}"
            raise UserError(f"{path}, line 1: not a Matrix Market file; {expected}")
        form, field, symmetry = words[2:]
        if form != "coordinate" or field not in FIELDS or symmetry not in SYMMETRIES:
            kind = f"a matrix of kind {form} {field} {symmetry}"
            raise UserError(f"{path}, line 1: {kind} is no graph; expected {SUPPORTED}")
        number, text = _size_line(file, path)
    sizes, where = text.split(), f"{path}, line {number}"
    if len(sizes) != 3 or not all(size.isdigit() for size in sizes):
        raise UserError(f"{where}: bad size line {text!r}; expected ROWS COLUMNS ENTRIES")
    rows, columns, entries = map(int, sizes)
    check_square(rows, columns, where)
    if rows > HIGHEST_ID:
        raise UserError(f"{where}: {rows} rows; expected at most 2**40")
    return field == "pattern", symmetry == "symmetric", rows, entries, number


def _size_line(file: IO[bytes], path: Path) -> tuple[int, str]:
    """Number and text of the first line behind the banner that is neither blank nor a comment."""
    for number, line in enumerate(file, 2):
        if line.strip() and not line.startswith(b"%"):
            return number, line.decode("latin1").strip()
    raise UserError(f"{path}: ends before the size line; expected ROWS COLUMNS ENTRIES")


def open_source(path: Path, options: ImportOptions) -> Imported:
    """The matrix as a graph: directed if it is `general`, unless every entry has its mirror image."""
    pattern, symmetric, n, entries, lines = read_banner(path)
    fields = [("row", np.int64), ("column", np.int64), ("value", np.float64)][: 2 if pattern else 3]
    expected = " ".join(name.upper() for name, _ in fields)
    table = Table(path, np.dtype(fields), expected, comments="%", skip=lines, check=within(1, n))

    def stream() -> Iterator[Edges]:
        for row, column, value in table_edges(table, (entries, f"line {lines}")):
            yield column - 1, row - 1, value

    source = Imported(path.name.removesuffix(".gz").removesuffix(".mtx"), path, n, stream, options)
    source.edge_count = entries
    if symmetric and options.directed:
        stored = "is stored as a symmetric matrix, which lists each edge once"
        raise UserError(f"{path}: {stored}; it cannot be read as directed")
    if not symmetric:
        source.settle_direction(directed=True)
    return source
