"""Edge lists in text: columns of node ids, perhaps of weights, between commas, tabs, semicolons or blanks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.companions import attach_features
from distgnn.store.importers.imported import HIGHEST_ID, Imported, scan, sparse_limit, table_edges
from distgnn.store.importers.label_rows import attach_labels
from distgnn.store.importers.text import Heading, Table, within
from distgnn.store.source import Edges, ImportOptions

SUFFIXES = (".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el", ".tab")
WEIGHT_NAMES = ("weight", "weights", "w", "value")


def open_source(path: Path, options: ImportOptions) -> Imported:
    """The graph of an edge list and its companions: undirected unless `directed` says otherwise.

    The number of nodes is one more than the largest id in edges and features. A table that labels each of
    0..k-1 once may add isolated nodes at the end; dense features without ids fix the number.
    """
    table = edge_table(path, options)

    def stream(limit: int = HIGHEST_ID) -> Iterator[Edges]:
        """Edges whose ids lie below the limit, or a UserError that names the line."""
        table.check = within(0, limit - 1)
        return table_edges(table)

    found = scan(stream, options.weights)
    name = path.name.removesuffix(".gz")
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    source = Imported(name.removesuffix("_edges") or path.name, path, found.highest + 1, stream, options)
    hint = "; ids here begin at 1, so there is a node 0: subtract 1 from them"
    one_based = hint if found.lowest == 1 else ""
    attach_features(source, options, grow=True, hint=one_based)
    declared = source.table is not None and source.table.complete
    limit = sparse_limit(found.count + (source.table.nodes if source.table else 0))
    if not declared and found.highest >= limit:
        for _ in stream(limit):
            pass
    attach_labels(source, options, grow=not declared)
    if not source.n:
        missing = "no features or table of labels that would say how many nodes there are"
        raise UserError(f"{path}: no edges, and {missing}")
    labels = source.labels
    if one_based and not declared and (labels is None or labels[[0, found.highest]].min() < 0):
        source.notes.append(f"{path}: node 0 has no edges{one_based}, or ignore this if node 0 is meant")
    source.settle_direction(directed=False, found=found)
    return source


def edge_table(path: Path, options: ImportOptions) -> Table:
    """The table of the file's edges with fields source, target and, where there is such a column, weight."""
    heading = Heading.of(path)
    width = len(heading.columns)
    chosen = options.source_column is not None or options.target_column is not None
    src, dst = (
        heading.find(f"{name}_column", getattr(options, f"{name}_column"), path, default)
        for default, name in enumerate(("source", "target"))
    )
    if width and (src == dst or max(src, dst) >= width or (not chosen and width > 3)):
        named = "source_column=S and target_column=T"
        expected = f"two columns of node ids and perhaps one of weights, or {named}"
        raise UserError(f"{path}: cannot tell source and target among {width} columns; expected {expected}")
    columns = [src, dst, *weight_column(heading, src, dst)]
    if options.weights and width and len(columns) < 3:
        expected = "a third column, or one called weight"
        raise UserError(f"{path}: weights=True, but it has no column of weights; expected {expected}")
    if chosen and not options.weights:
        columns = columns[:2]
    fields = [("source", np.int64), ("target", np.int64), ("weight", np.float64)][: len(columns)]
    words = (heading.delimiter or " ").join(name.upper() for name, _ in fields)
    return Table(
        path, np.dtype(fields), f"{words} with node ids from 0", heading.delimiter,
        tuple(columns) if chosen else None, skip=heading.skip,
    )  # fmt: skip


def weight_column(heading: Heading, src: int, dst: int) -> list[int]:
    """The column called weight, or the third of three, if any."""
    others = [k for k in range(len(heading.columns)) if k not in (src, dst)]
    named = [k for k in others if heading.named and heading.columns[k].lower() in WEIGHT_NAMES]
    return named[:1] or (others if len(heading.columns) == 3 else [])
