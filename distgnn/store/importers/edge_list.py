"""Edge lists in text: two columns of node ids, separated by commas, tabs, semicolons or blanks, perhaps with
weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.companions import attach_features, attach_labels
from distgnn.store.importers.imported import HIGHEST_ID, Imported, scan, sparse_ids, sparse_limit
from distgnn.store.importers.text import Heading, Table
from distgnn.store.source import Edges, ImportOptions

SUFFIXES = (".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el", ".tab")
WEIGHT_NAMES = ("weight", "weights", "w", "value")


def open_source(path: Path, options: ImportOptions) -> Imported:
    """The graph of an edge list: undirected unless `directed` says otherwise, with the companions the options
    name.

    The number of nodes is one more than the largest id in edges and features. A complete table of labels
    (each of 0..k-1 once) may add isolated nodes at the end; dense features without ids fix the number.
    """
    table = edge_table(path, options)

    def stream(limit: int = HIGHEST_ID) -> Iterator[Edges]:
        """Edges whose ids lie below the limit, or a UserError that names the line."""
        table.check = lambda rows: outside(rows, limit)
        for rows in table:
            yield rows["src"], rows["dst"], rows["weight"] if "weight" in (rows.dtype.names or ()) else None

    found = scan(stream, options.weights)
    source = Imported(data_name(path), path, found.highest + 1, stream, options)
    attach_features(source, options, grow=True)
    declared = source.table is not None and source.table.complete
    known = source.table.nodes if source.table else 0
    if not declared and sparse_ids(found.highest, found.count + known):
        for _ in stream(sparse_limit(found.count + known)):
            pass
    attach_labels(source, options, grow=not declared)
    if not source.n:
        raise UserError(
            f"{path}: no edges, and no features or table of labels that would say how many nodes there are"
        )
    source.settle_direction(directed=False, found=found)
    return source


def edge_table(path: Path, options: ImportOptions) -> Table:
    """The table of the file's edges with fields src, dst and, where there is such a column, weight."""
    heading = Heading.of(path)
    width = len(heading.columns)
    chosen = options.source_column is not None or options.target_column is not None
    src = 0 if options.source_column is None else heading.find(options.source_column, "--source-column", path)
    dst = 1 if options.target_column is None else heading.find(options.target_column, "--target-column", path)
    if width and (src == dst or max(src, dst) >= width or (not chosen and width > 3)):
        raise UserError(
            f"{path}: cannot tell source and target among {width} columns; expected two columns of node ids "
            "and perhaps one of weights, or --source-column and --target-column"
        )
    columns = [src, dst, *weight_column(heading, src, dst)]
    if options.weights and width and len(columns) < 3:
        raise UserError(
            f"{path}: --weights, but it has no column of weights; expected a third column, or one called weight"
        )
    if chosen and not options.weights:
        columns = columns[:2]
    fields = [("src", np.int64), ("dst", np.int64), ("weight", np.float64)][: len(columns)]
    mark = heading.delimiter or " "
    expected = (
        f"SOURCE{mark}TARGET" + (f"{mark}WEIGHT" if len(columns) == 3 else "") + " with node ids from 0"
    )
    return Table(
        path,
        np.dtype(fields),
        expected,
        heading.delimiter,
        tuple(columns) if chosen else None,
        skip=heading.skip,
    )


def weight_column(heading: Heading, src: int, dst: int) -> list[int]:
    """The column called weight, or the only one that is left of three; none otherwise."""
    others = [k for k in range(len(heading.columns)) if k not in (src, dst)]
    named = [k for k in others if heading.named and heading.columns[k].lower() in WEIGHT_NAMES]
    return named[:1] or (others if len(heading.columns) == 3 else [])


def outside(rows: np.ndarray, limit: int) -> str | None:
    """What is wrong with the values of these edges."""
    for side in ("src", "dst"):
        if rows[side].min() < 0:
            return "negative node id"
        if rows[side].max() >= limit:
            return f"node id above {limit - 1}"
    if "weight" in (rows.dtype.names or ()) and not np.isfinite(rows["weight"]).all():
        return "the weight is not finite"
    return None


def data_name(path: Path) -> str:
    """The file's name without its endings and without `_edges`."""
    name = path.name.removesuffix(".gz")
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name.removesuffix("_edges") or path.name
