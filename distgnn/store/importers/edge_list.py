"""Lists of edges in text or Parquet: two columns of node ids, and perhaps one of weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from distgnn.errors import ArgumentError, UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import parquet
from distgnn.store.importers.coded import CodedEdges
from distgnn.store.importers.columns import ID_NAMES, Check, Columns, Field
from distgnn.store.importers.features import attach_features, feature_ids, note_isolated
from distgnn.store.importers.imported import (
    HIGHEST_ID,
    Imported,
    Scan,
    Stream,
    scan,
    sparse_limit,
    table_edges,
)
from distgnn.store.importers.labels import attach_labels
from distgnn.store.importers.made import Made
from distgnn.store.importers.names import Collected, Names, shown
from distgnn.store.importers.node_lists import read_nodes
from distgnn.store.importers.node_table import is_array, open_array, open_columns
from distgnn.store.importers.parquet import ParquetColumns
from distgnn.store.importers.roles import LABEL_NAMES
from distgnn.store.importers.text import TextColumns, within
from distgnn.store.source import IDS, Edges, ImportOptions

SUFFIXES = (".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el", ".tab", *parquet.SUFFIXES)
WEIGHT_NAMES = ("weight", "weights", "w", "value")
ENDS = (("source", "target"), ("src", "dst"), ("from", "to"), ("u", "v"), ("id1", "id2"), ("id_1", "id_2"),
        ("node1", "node2"), ("node_1", "node_2"), ("source_id", "target_id"))  # fmt: skip
END_NAMES = ("head", "tail", *(name for pair in ENDS for name in pair))


@dataclass
class EdgeFile:
    """A file of edges: its fields are source, target and perhaps weight.

    `kind`: node ids are integers or text; `unsure`: the header may be an edge; `ragged`: as in
    `Columns.blocks`; `coded`: edges between words, once they have been read.
    """

    table: Columns
    fields: list[Field]
    kind: str
    ragged: bool = False
    expected: str = ""
    unsure: bool = False
    coded: CodedEdges | None = None

    def rows(self, check: Check) -> Iterator[np.ndarray]:
        """Yield the edges as structured rows of these fields, in whichever order the columns are."""
        names = [name for name, _, _ in self.fields]
        ordered = lambda rows: check(rows[names])  # noqa: E731
        for rows in self.table.blocks(self.fields, self.expected, ordered, self.ragged):
            yield rows[names]

    def settle_header(self, ids: Names) -> bool:
        """Take the header as an edge if one of its words is an id; return True if it was one."""
        ends = [column for _, column, _ in self.fields[:2]]
        was_edge = self.unsure and self.table.settle_header(ids, *ends)
        self.unsure = self.unsure and not was_edge
        self.coded = None if was_edge else self.coded
        return was_edge

    def read_once(self, options: ImportOptions) -> CodedEdges:
        """Read the edges between words, unless that was done."""
        path, rows = self.table.path, self.rows(finite_weights)
        self.coded = self.coded or CodedEdges(rows, path, most_bytes(path), options.scratch)
        return self.coded

    def note(self, ids: str, source: Imported) -> None:
        """Note for the summary the columns that were read as edges; `ids`: the kind of ids."""
        fields = self.fields if source.options.weights else self.fields[:2]
        taken = [column for _, column, _ in fields]
        columns = ", ".join(map(self.table.called, taken))
        source.note_table(f"{self.table.path.name} (edges in {columns}, ids are {ids})", self.table, taken)


def open_source(path: Path, options: ImportOptions) -> Imported:
    """Open the graph of a list of edges and its companions: undirected unless `directed` says otherwise.

    Nodes are numbers from 0, or have ids that are numbered here in ascending order; `node_list` lists them in
    another order. If nodes are numbers, the number of nodes is one more than the largest in edges and
    features. A table that labels each of 0..k-1 once may add isolated nodes at the end; dense features
    without ids fix the number of nodes.
    """
    edges = open_edges(path, options)
    if edges.kind == "text" or options.ids == "integers" or options.node_list:
        return named(edges, path, options)

    def stream(limit: int = HIGHEST_ID if options.ids else 1 << 63) -> Iterator[Edges]:
        """Yield edges whose ids lie below the limit; the UserError for a higher id names its line."""
        return table_edges(edges.rows(within(0, limit - 1)), path)

    counts = scan(stream, options.weights)
    if options.ids is None and counts.highest >= sparse_limit(counts.count):
        if counts.highest >= declared_rows(options):
            return far_apart(edges, path, options, counts.highest)
    source = Imported(name_of(path), path, counts.highest + 1, stream, options)
    edges.note("numbers", source)
    attach_features(source, options, grow=True, hint=from_one(counts, " and node_list=FILE"))
    declared = source.table is not None and source.table.listed is None
    limit = sparse_limit(counts.count + (source.table.nodes if source.table else 0))
    if not declared and counts.highest >= limit:
        for _ in stream(limit):
            pass
    attach_labels(source, options, grow=not declared)
    if not source.n:
        missing = "no features or table of labels that would say how many nodes there are"
        raise UserError(f"{path}: no edges, and {missing}")
    note_node_zero(source, counts)
    source.settle_direction(directed=False, counts=counts)
    return source


def from_one(counts: Scan, more: str = "") -> str:
    """Return advice if ids begin at 1, so that no edge names node 0; else an empty text."""
    advice = "; ids here begin at 1, so there is a node 0: subtract 1 from them, or give ids=integers"
    return advice + more if counts.lowest == 1 else ""


def note_node_zero(source: Imported, counts: Scan) -> None:
    """Note a node 0 without edges, unless a file of features or labels has a row for it."""
    labels, table = source.labels, source.table
    has_row = table is not None and table.listed is None and not isinstance(table, Made)
    has_label = labels is not None and not source.labels_made and labels[[0, counts.highest]].min() >= 0
    if (advice := from_one(counts)) and not has_row and not has_label:
        meant = "or ignore this if node 0 is meant"
        source.notes.append(f"{source.path}: node 0 has no edges{advice}, {meant}")


def declared_rows(options: ImportOptions) -> int:
    """Return the rows of an array of features or labels without ids; 0 without such an array."""
    for name in (options.features, options.labels):
        if name and is_array(Path(name)) and Path(name).exists():
            shape: tuple[int, ...] = open_array(Path(name), "numbers", options.scratch, "biufUS").shape
            return shape[0] if shape else 0
    return 0


def far_apart(edges: EdgeFile, path: Path, options: ImportOptions, highest: int) -> Imported:
    """Open the graph of edges between whole numbers too far apart for numbers of nodes; note this."""
    source = named(edges, path, options)
    above = f"ids up to {highest} are too far apart to be numbers of nodes"
    source.notes.append(f"{path}: {above}; nodes are numbered in ascending order of their ids")
    return source


def named(edges: EdgeFile, path: Path, options: ImportOptions) -> Imported:
    """Open the graph of edges between nodes that have ids of their own."""
    listed = None
    if options.node_list:
        ends = partial(collected, edges, path, options)
        listed = read_nodes(Path(options.node_list), options, edges.kind, ends)
    ids, isolated = (listed, np.zeros(0)) if listed is not None else all_ids(edges, path, options)
    if edges.settle_header(ids) and listed is None:
        ids, isolated = all_ids(edges, path, options)  # with the ids of the first line

    stream = named_edges(edges, ids, path, options)
    source = Imported(name_of(path), path, len(ids), stream, options)
    source.set_ids(ids, listed=listed is not None)
    edges.note("words" if ids.words else "whole numbers", source)
    if options.node_list:
        source.readings.append(f"{Path(options.node_list).name} (nodes)")
    note_isolated(source, options, isolated)
    counts = scan(stream, options.weights)
    if not source.n:
        raise UserError(f"{path}: no edges; node_list=FILE would list nodes")
    if edges.unsure:
        header = f"line {edges.table.skip} is taken for a header, as its words are in no other line"
        source.notes.append(f"{path}: {header}")
    attach_features(source, options, grow=False)
    attach_labels(source, options, grow=False)
    source.settle_direction(directed=False, counts=counts)
    return source


def named_edges(edges: EdgeFile, ids: Names, path: Path, options: ImportOptions) -> Stream:
    """Make the function that yields edges by the numbers of these ids; UserError names the line of others."""

    def stream() -> Iterator[Edges]:
        check = known(ids, str(options.node_list or path))
        for src, dst, weight in table_edges(edges.rows(check), path):
            yield ids.find(src), ids.find(dst), weight

    return (edges.read_once(options).stream(ids) if edges.kind == "text" else None) or stream


def all_ids(edges: EdgeFile, path: Path, options: ImportOptions) -> tuple[Names, np.ndarray]:
    """Collect the ids of all nodes, and those of them that a table of features has and edges have not."""
    ids = Names(collected(edges, path, options), path)
    listed = feature_ids(options, ids)
    isolated = np.unique(listed[ids.find(listed) < 0])
    if not len(isolated):
        return ids, isolated
    if len(ids) and (ids.find(listed) < 0).all():
        raise UserError(f"{options.features}: none of its nodes, such as {shown(listed[0])}, is in {path}")
    return Names(np.sort(np.concatenate([ids.names, isolated])), path), isolated


def most_bytes(path: Path) -> int:
    """Return the bytes that the ids of a file may take."""
    return max(LIMITS.unpacked_bytes, LIMITS.unpacked_ratio * os.path.getsize(path))


def collected(edges: EdgeFile, path: Path, options: ImportOptions) -> np.ndarray:
    """Collect all ids at the ends of edges, in ascending order."""
    if edges.kind == "text":
        return edges.read_once(options).names()
    ids = Collected(path, most_bytes(path))
    for rows in edges.rows(finite_weights):
        ids.add(rows["source"], rows["target"])
    return ids.names()


def finite_weights(rows: np.ndarray) -> str | None:
    """Return the fault of edges with a weight that is not finite, or None."""
    wrong = "weight" in (rows.dtype.names or ()) and not np.isfinite(rows["weight"]).all()
    return "weight is not finite" if wrong else None


def known(ids: Names, where: str) -> Check:
    """Make a check that the ends of edges are among these ids."""

    def check(rows: np.ndarray) -> str | None:
        for end in ("source", "target"):
            unknown = ids.find(rows[end]) < 0
            if unknown.any():
                return f"{end} {shown(rows[end][unknown][0])} is not in {where}"
        return finite_weights(rows)

    return check


def name_of(path: Path) -> str:
    """Name the graph after its file."""
    name = path.name.removesuffix(".gz")
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name.removesuffix("_edges") or path.name


def open_edges(path: Path, options: ImportOptions) -> EdgeFile:
    """Open the file: find its columns and the kind of its node ids."""
    if options.ids not in (None, *IDS):
        raise ArgumentError("ids", options.ids, f"unknown; expected one of {', '.join(IDS)}")
    table, chosen = open_columns(path, by_node=False), bool(options.source_column or options.target_column)
    columns = edge_columns(table, options, chosen)
    text = (options.ids or table.ids_like(columns[:2])) == "text"
    kind, expected = ("words", "strings") if text else ("integers", "whole numbers, or strings with ids=text")
    for column in columns[:2]:
        table.require(column, ("integers", kind), f"node ids, {expected}")
    for column in columns[2:]:
        table.require(column, ("integers", "numbers"), "weights")
    named = (("source", kind), ("target", kind), ("weight", "numbers"))
    fields = [(name, column, form) for (name, form), column in zip(named, columns, strict=False)]
    edges = EdgeFile(table, fields, "text" if text else "integers", chosen)
    if isinstance(table, TextColumns):
        edges.expected = expected_line(table, edges, options)
        edges.unsure = text and len(columns) < 3 and maybe_no_header(table, columns, options)
    return edges


def expected_line(table: TextColumns, edges: EdgeFile, options: ImportOptions) -> str:
    """Describe a line of edges for errors."""
    ids = "node ids" if edges.kind == "text" or options.node_list else "node ids from 0"
    ids = "whole numbers" if options.ids == "integers" else ids
    line = (table.delimiter or " ").join(name.upper() for name, _, _ in edges.fields)
    return f"{line} with {ids}" + ("" if options.ids or edges.kind == "text" else ", or ids=text")


def maybe_no_header(table: TextColumns, columns: list[int], options: ImportOptions) -> bool:
    """Return True if the header may be an edge between words: it has no usual name and no chosen one."""
    usual = {table.names[k].lower() for k in columns[:2] if table.named} & {*END_NAMES, *ID_NAMES}
    return table.named and not usual and not {options.source_column, options.target_column} & {*table.names}


def edge_columns(table: Columns, options: ImportOptions, chosen: bool) -> list[int]:
    """Find the columns of sources, of targets, and of weights if they are read.

    Sources and targets have one of the pairs of names in `ENDS`, or are the first two of at most three
    columns, unless the user has `chosen` them.

    Sources and targets are the first two of at most three columns, unless the user has `chosen` them.

    Raises UserError if the columns cannot be told, for a table of labels, and for weights that the options
    ask for and that the file has not.
    """
    path, width = table.path, len(table.names)
    called = [places for pair in ENDS if None not in (places := [*map(table.position, pair)])]
    by_name = not chosen and len(called) == 1
    defaults = called[0] if by_name else (0, 1)
    ends = [table.find(f"{name}_column", getattr(options, f"{name}_column"), default or 0)
            for default, name in zip(defaults, ("source", "target"), strict=True)]  # fmt: skip
    choice = "source_column=S and target_column=T"
    if width and (ends[0] == ends[1] or max(ends) >= width or (not chosen and not by_name and width > 3)):
        expected = f"two columns of node ids and perhaps one of weights, or {choice}"
        raise UserError(f"{path}: cannot tell source and target among {width} columns; expected {expected}")
    names = [table.names[k].lower() for k in ends] if table.named and not chosen else []
    if names and names[0] in ID_NAMES and names[1] in LABEL_NAMES:
        problem = f"columns {names[0]} and {names[1]} are those of a table of labels"
        raise UserError(f"{path}: {problem}; give it as labels=FILE, or {choice}")
    weights = weight_column(table, ends)
    if options.weights and width and not weights:
        expected = "a third column, or one called weight"
        raise UserError(f"{path}: weights=True, but it has no column of weights; expected {expected}")
    left_out = not options.weights and (chosen or isinstance(table, ParquetColumns))
    return ends if left_out else ends + weights


def weight_column(table: Columns, ends: list[int]) -> list[int]:
    """Find the column called weight, or the third of three, unless words are in it, if any."""
    others = [k for k in range(len(table.names)) if k not in ends]
    named = [k for k in others if table.named and table.names[k].lower() in WEIGHT_NAMES]
    return named[:1] or (others if len(table.names) == 3 and table.ids_like(others) != "text" else [])
