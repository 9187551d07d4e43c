"""Matrix Market coordinate files, `.mtx` and `.mtx.gz`: the entry in row i and column j is A[i, j]."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.files import check_declared, check_line, reading, unpacked
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.names import whole
from distgnn.store.importers.table import WantedColumn, numbers_of
from distgnn.store.importers.tables import check_square
from distgnn.store.importers.text_table import TextTable
from distgnn.store.source import Edges, ImportOptions

FIELDS, SYMMETRIES = ("pattern", "real", "integer"), ("general", "symmetric")
SUPPORTED = f"coordinate {'|'.join(FIELDS)} {'|'.join(SYMMETRIES)}"


def read_banner(path: Path) -> tuple[bool, bool, int, int, int, int]:
    """Read (pattern?, symmetric?, n, entries, lines and bytes up to the size line); UserError for another."""
    with reading(path), unpacked(path) as file:
        head, number, begin = file.read(LIMITS.line_bytes >> 6), 0, 0
    lines = head.decode("utf-8", "replace").splitlines(keepends=True) or [""]
    if b"\n" not in head and len(head) > 1 << 12:
        check_line(LIMITS.line_bytes + 1, 1, path)
    words = lines[0].lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        expected = f"expected %%MatrixMarket matrix {SUPPORTED}"
        raise UserError(f"{path}, line 1: not a Matrix Market file; {expected}")
    form, field, symmetry = words[2:]
    if form != "coordinate" or field not in FIELDS or symmetry not in SYMMETRIES:
        kind = f"a matrix of kind {form} {field} {symmetry}"
        raise UserError(f"{path}, line 1: {kind} is no graph; expected {SUPPORTED}")
    while number < len(lines) and (not lines[number].strip() or lines[number][0] == "%"):
        number += 1
    if number == len(lines):
        raise UserError(f"{path}: ends before the size line; expected ROWS COLUMNS ENTRIES")
    begin = sum(len(line.encode()) for line in lines[: number + 1])
    sizes, where = [whole(size) for size in lines[number].split()], f"{path}, line {number + 1}"
    if len(sizes) != 3 or None in sizes:
        raise UserError(
            f"{where}: bad size line {lines[number].strip()[:80]!r}; expected ROWS COLUMNS ENTRIES"
        )
    rows, columns, entries = (size or 0 for size in sizes)
    check_declared(check_square(rows, columns, where), path)
    return field == "pattern", symmetry == "symmetric", rows, entries, number + 1, begin


def open_source(path: Path, options: ImportOptions) -> Imported:
    """Open the matrix as a graph: directed if it is `general`, unless every entry has its mirror image."""
    pattern, symmetric, n, entries, line, start = read_banner(path)
    kinds = ["integers", "integers", *([] if pattern else ["numbers"])]
    expected = ("a row", "a column", "a finite number")
    wanted = [WantedColumn(k, kind, expected[k]) for k, kind in enumerate(kinds)]
    table = TextTable.plain(path, kinds, separator=" ", start=start, line=line, comments="%")

    def stream() -> Iterator[Edges]:
        for row, column, *value in numbers_of(table, wanted, 1, n, (entries, f"line {line}")):
            yield column - 1, row - 1, value[0] if value else None

    source = Imported(path.name.removesuffix(".gz").removesuffix(".mtx"), path, n, stream, options)
    source.matrix, source.edge_count = True, entries
    if symmetric and options.directed:
        stored = "is stored as a symmetric matrix, which lists each edge once"
        raise UserError(f"{path}: {stored}; it cannot be read as directed")
    if symmetric:
        source.edge_count = source.counted().count
    else:
        source.settle_direction(directed=True)
    return source
