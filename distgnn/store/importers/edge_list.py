"""Lists of edges, in text between commas, tabs, semicolons or blanks, or in Parquet: columns of node ids,
perhaps of weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from distgnn.errors import ArgumentError, UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import parquet
from distgnn.store.importers.companions import attach_features
from distgnn.store.importers.imported import HIGHEST_ID, Imported, scan, sparse_limit, table_edges
from distgnn.store.importers.label_rows import attach_labels
from distgnn.store.importers.made import Made
from distgnn.store.importers.names import Collected, Names, looks_like, shown
from distgnn.store.importers.node_words import LABEL_NAMES, declared_rows, read_nodes
from distgnn.store.importers.parquet import ParquetTable
from distgnn.store.importers.text import ID_NAMES, Check, Heading, Table, within
from distgnn.store.source import IDS, Edges, ImportOptions

SUFFIXES = (".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el", ".tab", *parquet.SUFFIXES)
WEIGHT_NAMES = ("weight", "weights", "w", "value")
END_NAMES = ("source", "target", "src", "dst", "from", "to", "u", "v", "head", "tail", "id1", "id2", "id_1",
             "id_2", "node1", "node2", "node_1", "node_2", "source_id", "target_id")  # fmt: skip


@dataclass
class EdgeFile:
    """A file of edges: `table` has fields source, target and perhaps weight; `kind` is how nodes are named,
    integers or text. `first`: the words of a header that may be an edge."""

    table: Table | ParquetTable
    kind: str
    first: tuple[str, str] | None = None

    def settle_header(self, ids: Names) -> bool:
        """Take the first line as an edge if one of its words is an id; True if it is a header that could be
        an edge of two nodes that no other line has."""
        if self.first is None or not isinstance(self.table, Table):
            return False
        if not ids.has(*self.first):
            return True
        self.table = replace(self.table, skip=self.table.skip - 1)
        return False


def open_source(path: Path, options: ImportOptions) -> Imported:
    """The graph of a list of edges and its companions: undirected unless `directed` says otherwise.

    Nodes are numbers from 0, or have ids that are numbered here in ascending order; `nodes` lists them in
    another. Of numbers there are one more than the largest in edges and features. A table that labels each
    of 0..k-1 once may add isolated nodes at the end; dense features without ids fix the number.
    """
    edges = edge_file(path, options)
    if edges.kind == "text" or options.ids == "integers" or options.node_list:
        return named(edges, path, options)
    most = HIGHEST_ID if options.ids else 1 << 63
    table = edges.table

    def stream(limit: int = most) -> Iterator[Edges]:
        """Edges whose ids lie below the limit, or a UserError that names the line."""
        table.check = within(0, limit - 1)
        return table_edges(table)

    found = scan(stream, options.weights)
    if options.ids is None and found.highest >= max(sparse_limit(found.count), declared_rows(options)):
        return far_apart(edges, path, options, found.highest)
    source = Imported(name_of(path), path, found.highest + 1, stream, options)
    hint = "; ids here begin at 1, so there is a node 0: subtract 1 from them, or give ids=integers"
    one_based = hint if found.lowest == 1 else ""
    attach_features(source, options, grow=True, hint=one_based and one_based + " and node_list=FILE")
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
    given = declared and not isinstance(source.table, Made)  # a node 0 that a file of features has
    meant = labels is not None and not source.labels_made and labels[[0, found.highest]].min() >= 0
    if one_based and not given and not meant:
        source.notes.append(f"{path}: node 0 has no edges{one_based}, or ignore this if node 0 is meant")
    source.settle_direction(directed=False, found=found)
    return source


def far_apart(edges: EdgeFile, path: Path, options: ImportOptions, highest: int) -> Imported:
    """The graph of edges between whole numbers that are too far apart for numbers of nodes, with a note."""
    source = named(edges, path, options)
    above = f"ids up to {highest} are too far apart to be numbers of nodes"
    source.notes.append(f"{path}: {above}; nodes are numbered in ascending order of their ids")
    return source


def named(edges: EdgeFile, path: Path, options: ImportOptions) -> Imported:
    """The graph of edges between nodes that have ids of their own."""
    listed = None
    if options.node_list:
        listed = read_nodes(Path(options.node_list), options, edges.kind, lambda: collected(edges, path))
    ids = Names(collected(edges, path), path) if listed is None else listed
    before = edges.table
    taken = edges.settle_header(ids)
    if listed is None and edges.table is not before:
        ids = Names(collected(edges, path), path)  # with those of the first line
    table = edges.table

    def stream() -> Iterator[Edges]:
        for src, dst, weight in table_edges(table):
            yield ids.find(src), ids.find(dst), weight

    table.check = known(ids, str(options.node_list or path))
    source = Imported(name_of(path), path, len(ids), stream, options)
    source.set_ids(ids, listed=listed is not None)
    found = scan(stream, options.weights)
    if not source.n:
        raise UserError(f"{path}: no edges; node_list=FILE would list nodes")
    if taken and isinstance(table, Table):
        header = f"line {table.skip} is taken for a header, as its words are in no other line"
        source.notes.append(f"{path}: {header}")
    attach_features(source, options, grow=False)
    attach_labels(source, options, grow=False)
    source.settle_direction(directed=False, found=found)
    return source


def collected(edges: EdgeFile, path: Path) -> np.ndarray:
    """All ids at the ends of edges, in ascending order."""
    limit = max(LIMITS.unpacked_bytes, LIMITS.unpacked_ratio * os.path.getsize(path))
    found, edges.table.check = Collected(path, limit), finite_weights
    for rows in edges.table:
        found.add(rows["source"], rows["target"])
    return found.names()


def finite_weights(rows: np.ndarray) -> str | None:
    wrong = "weight" in (rows.dtype.names or ()) and not np.isfinite(rows["weight"]).all()
    return "weight is not finite" if wrong else None


def known(ids: Names, where: str) -> Check:
    """A check that ids are among these."""

    def check(rows: np.ndarray) -> str | None:
        for end in ("source", "target"):
            unknown = ids.find(rows[end]) < 0
            if unknown.any():
                return f"{end} {shown(rows[end][unknown][0])} is not in {where}"
        return finite_weights(rows)

    return check


def name_of(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name.removesuffix("_edges") or path.name


def edge_file(path: Path, options: ImportOptions) -> EdgeFile:
    """The file's edges: where the columns are, and what names nodes."""
    if options.ids not in (None, *IDS):
        raise ArgumentError("ids", options.ids, f"unknown; expected one of {', '.join(IDS)}")
    form = parquet.kinds(path) if parquet.is_parquet(path) else None
    heading = Heading.of(path) if form is None else parquet.heading(path)
    src, dst = end_columns(heading, path, options)
    columns = [src, dst, *weight_column(heading, src, dst)]
    chosen = options.source_column is not None or options.target_column is not None
    if options.weights and heading.columns and len(columns) < 3:
        expected = "a third column, or one called weight"
        raise UserError(f"{path}: weights=True, but it has no column of weights; expected {expected}")
    if (chosen or form is not None) and not options.weights:
        columns = columns[:2]
    if form is not None:
        return parquet_edges(path, [heading.columns[k] for k in columns], form, options)
    example = heading.example(path)
    seen = looks_like([example[src], example[dst]]) if len(example) > max(src, dst) else None
    kind = "text" if options.ids == "text" or (options.ids is None and seen == "text") else "integers"
    end = object if kind == "text" else np.int64
    fields = [("source", end), ("target", end), ("weight", np.float64)][: len(columns)]
    words = (heading.delimiter or " ").join(name.upper() for name, _ in fields)
    ids = "node ids" if kind == "text" or options.node_list else "node ids from 0"
    ids = "whole numbers" if options.ids == "integers" else ids
    expected = f"{words} with {ids}" + ("" if options.ids or kind == "text" else ", or ids=text")
    usecols = tuple(columns) if chosen else None
    table = Table(path, np.dtype(fields), expected, heading.delimiter, usecols, skip=heading.skip)
    header = {heading.columns[k].lower() for k in (src, dst)} if heading.named else set()
    unsure = heading.named and kind == "text" and len(columns) < 3 and not header & {*END_NAMES, *ID_NAMES}
    by_name = {options.source_column, options.target_column} & set(heading.columns)
    first = (heading.columns[src], heading.columns[dst]) if unsure and not by_name else None
    return EdgeFile(table, kind, first)


def parquet_edges(path: Path, columns: list[str], form: dict[str, str], options: ImportOptions) -> EdgeFile:
    """The edges of a Parquet file, in these columns."""
    ends = [form[name] for name in columns[:2]]
    text = options.ids == "text" or (options.ids is None and "words" in ends)
    kind = "words" if text else "integers"
    wrong = [name for name, found in zip(columns, ends, strict=False) if found not in ("integers", kind)]
    if wrong:
        expected = "whole numbers, or strings with ids=text" if kind == "integers" else "strings"
        raise UserError(f"{path}: column {wrong[0]} holds {form[wrong[0]]}; expected node ids, {expected}")
    fields = [("source", columns[0], kind), ("target", columns[1], kind)]
    fields += [("weight", name, "numbers") for name in columns[2:]]
    if columns[2:] and form[columns[2]] not in ("integers", "numbers"):
        raise UserError(f"{path}: column {columns[2]} holds {form[columns[2]]}; expected weights")
    return EdgeFile(ParquetTable(path, fields), "text" if text else "integers")


def end_columns(heading: Heading, path: Path, options: ImportOptions) -> tuple[int, int]:
    """Where source and target stand; UserError where that can't be told, or for a table of labels."""
    width = len(heading.columns)
    chosen = options.source_column is not None or options.target_column is not None
    src, dst = (
        heading.find(f"{name}_column", getattr(options, f"{name}_column"), path, default)
        for default, name in enumerate(("source", "target"))
    )
    named = "source_column=S and target_column=T"
    if width and (src == dst or max(src, dst) >= width or (not chosen and width > 3)):
        expected = f"two columns of node ids and perhaps one of weights, or {named}"
        raise UserError(f"{path}: cannot tell source and target among {width} columns; expected {expected}")
    names = [heading.columns[k].lower() for k in (src, dst)] if heading.named and not chosen else []
    if names and names[0] in ID_NAMES and names[1] in LABEL_NAMES:
        found = f"columns {names[0]} and {names[1]} are those of a table of labels"
        raise UserError(f"{path}: {found}; give it as labels=FILE, or {named}")
    return src, dst


def weight_column(heading: Heading, src: int, dst: int) -> list[int]:
    """The column called weight, or the third of three, if any."""
    others = [k for k in range(len(heading.columns)) if k not in (src, dst)]
    named = [k for k in others if heading.named and heading.columns[k].lower() in WEIGHT_NAMES]
    return named[:1] or (others if len(heading.columns) == 3 else [])
