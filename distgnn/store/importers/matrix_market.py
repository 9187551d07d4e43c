"""Matrix Market coordinate files, `.mtx` and `.mtx.gz`: the entry in row i and column j is A[i, j]."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.imported import HIGHEST_ID, Imported
from distgnn.store.importers.text import Table, open_binary, reading
from distgnn.store.source import Edges, ImportOptions

SUPPORTED = "coordinate pattern|real|integer general|symmetric"


@dataclass
class Banner:
    """The banner, the size line and the number of lines up to it."""

    pattern: bool
    symmetric: bool
    n: int
    entries: int
    lines: int


def read_banner(path: Path) -> Banner:
    """UserError where this is not a square matrix of one of the supported kinds."""
    with reading(path), open_binary(path) as file:
        words = file.readline(1024).decode("latin1").lower().split()
        if len(words) != 5 or words[0] != "%%matrixmarket" or words[1] != "matrix":
            raise UserError(
                f"{path}, line 1: not a Matrix Market file; expected %%MatrixMarket matrix {SUPPORTED}"
            )
        form, field, symmetry = words[2:]
        if (
            form != "coordinate"
            or field not in ("pattern", "real", "integer")
            or symmetry not in ("general", "symmetric")
        ):
            raise UserError(
                f"{path}, line 1: a matrix of kind {form} {field} {symmetry} is no graph; expected {SUPPORTED}"
            )
        number = 1
        for line in file:
            number += 1
            if line.strip() and not line.startswith(b"%"):
                break
        else:
            raise UserError(f"{path}: ends before the size line; expected ROWS COLUMNS ENTRIES")
    text = line.decode("latin1").strip()
    sizes = text.split()
    if len(sizes) != 3 or not all(size.isdigit() for size in sizes):
        raise UserError(f"{path}, line {number}: bad size line {text!r}; expected ROWS COLUMNS ENTRIES")
    rows, columns, entries = map(int, sizes)
    if rows != columns:
        raise UserError(
            f"{path}, line {number}: the matrix is {rows} x {columns}; a graph needs as many rows as columns"
        )
    if rows > HIGHEST_ID:
        raise UserError(f"{path}, line {number}: {rows} rows; expected at most 2**40")
    return Banner(field == "pattern", symmetry == "symmetric", rows, entries, number)


def open_source(path: Path, options: ImportOptions) -> Imported:
    """The matrix as a graph: directed if it is `general`, unless every entry turns out to have its mirror
    image.
    """
    banner = read_banner(path)

    def outside(rows: np.ndarray) -> str | None:
        for side in ("row", "column"):
            if rows[side].min() < 1 or rows[side].max() > banner.n:
                return f"{side} outside 1..{banner.n}"
        if not banner.pattern and not np.isfinite(rows["value"]).all():
            return "value is not finite"
        return None

    fields = [("row", np.int64), ("column", np.int64)] + ([] if banner.pattern else [("value", np.float64)])
    table = Table(
        path,
        np.dtype(fields),
        "ROW COLUMN" + ("" if banner.pattern else " VALUE"),
        comments="%",
        skip=banner.lines,
        check=outside,
    )

    def stream() -> Iterator[Edges]:
        count = 0
        for rows in table:
            count += len(rows)
            yield rows["column"] - 1, rows["row"] - 1, None if banner.pattern else rows["value"]
        if count != banner.entries:
            raise UserError(
                f"{path}: {count} entries, but line {banner.lines} promises {banner.entries}; "
                "is the file truncated?"
            )

    source = Imported(path.name.removesuffix(".gz").removesuffix(".mtx"), path, banner.n, stream, options)
    source.edge_count = banner.entries
    if banner.symmetric and not options.directed:
        source.directed = False
    elif banner.symmetric:
        raise UserError(
            f"{path}: is stored as a symmetric matrix, which lists each edge once; it cannot be read as directed"
        )
    else:
        source.settle_direction(directed=True)
    return source
