"""Graphs of lists of edges and the tables beside them, between numbers or ids of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from distgnn.errors import ArgumentError, UserError
from distgnn.store.importers.edge_table import EdgeTable
from distgnn.store.importers.features import attach_features, feature_ids
from distgnn.store.importers.imported import HIGHEST_ID, Imported, Scan, Stream, scan, sparse_limit
from distgnn.store.importers.labels import attach_labels, label_ids
from distgnn.store.importers.names import Names, Seen, distinct, shown
from distgnn.store.importers.node_lists import read_nodes
from distgnn.store.importers.node_table import open_array
from distgnn.store.importers.roles import same_file
from distgnn.store.importers.table import WrongValue
from distgnn.store.importers.table_files import JSON_LINES, PARQUET, is_array
from distgnn.store.importers.text_table import TextTable
from distgnn.store.source import Edges, ImportOptions

SUFFIXES = (".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el", ".tab", *PARQUET, *JSON_LINES)


def open_source(path: Path, options: ImportOptions) -> Imported:
    """Open the graph of a list of edges and its companions: undirected unless `directed` says otherwise.

    Nodes are numbers from 0, or have ids that are numbered here in ascending order; `node_list` lists them in
    another order. Tables of features and labels with ids may have nodes without edges. If nodes are numbers,
    their number is one more than the largest in edges and tables; dense features without ids fix it.
    """
    for name in ("features", "labels", "split", "node_list"):
        if same_file(path, getattr(options, name)):
            raise ArgumentError(name, getattr(options, name), "is the list of edges; expected another file")
    edges, seen = EdgeTable(path, options), Seen()
    if edges.words:
        return named(edges, options, seen)
    low, high = (0, HIGHEST_ID - 1) if options.ids == "numbers" else (-(1 << 63), (1 << 63) - 1)
    low = 0 if options.ids is None and not options.node_list else low

    def marked() -> Iterator[Edges]:
        for src, dst, weight in edges.numbers(low, high):
            seen.add(src, dst)
            yield src, dst, weight

    try:
        counts = scan(marked, options.weights)
    except WrongValue as error:
        if not edges.take_words(error):
            raise
        return named(edges, options, Seen())
    if edges.leading_zeros():
        return named(edges, options, Seen())
    if options.ids == "integers" or options.node_list:
        return named(edges, options, seen)
    return numbered(edges, options, seen, counts)


def numbered(edges: EdgeTable, options: ImportOptions, seen: Seen, counts: Scan) -> Imported:
    """Open the graph of edges between numbers of nodes, or of ids that leave most numbers unused."""
    path, ids = edges.path, seen.ids()
    listed = [(file, some) for file, some in companion_ids(options, None) if len(some)]
    every = distinct(ids, *(some for _, some in listed)) if listed else ids
    highest = int(every.max(initial=-1))
    declared = declared_rows(options)
    if options.ids is None and highest >= declared and 2 * len(every) < highest + 1:
        unused = f"{len(every)} ids up to {highest} leave more than half of the numbers unused"
        return named(edges, options, seen, f"{unused}; ids=numbers keeps them as numbers of nodes")
    limit = sparse_limit(counts.count + sum(len(some) for _, some in listed))
    if not declared and counts.highest >= limit:
        for _ in edges.numbers(0, limit - 1):
            pass
    source = Imported(name_of(path), path, counts.highest + 1, lambda: edges.numbers(0, HIGHEST_ID), options)
    edges.note("numbers", source)
    grow_by(source, listed, declared)
    attach_features(source, options, grow=True, hint=from_one(counts, " and node_list=FILE"))
    attach_labels(source, options, grow=not declared)
    if not source.n:
        missing = "no features or table of labels that would say how many nodes there are"
        raise UserError(f"{path}: no edges, and {missing}")
    note_node_zero(source, counts)
    source.settle_direction(directed=False, counts=counts)
    return source


def grow_by(source: Imported, listed: list[tuple[str, np.ndarray]], declared: int) -> None:
    """Add the nodes that tables have and edges have not, unless dense features fix their number."""
    for file, ids in listed:
        note_isolated(source, file, ids[ids >= source.n])
    if not declared:
        source.n = max(source.n, *(int(ids.max(initial=-1)) + 1 for _, ids in listed), 0)


def note_isolated(source: Imported, path: str, nodes: np.ndarray) -> None:
    """Note the nodes that a table has and edges have not."""
    if len(nodes):
        what = f"{len(nodes)} of its nodes have no edges, such as {shown(nodes[0])}"
        source.notes.append(f"{path}: {what}; node_list=FILE would say which nodes there are")


def companion_ids(options: ImportOptions, names: Names | None) -> list[tuple[str, np.ndarray]]:
    """Read the ids, of the kind of `names`, in the tables of features and of labels."""
    tables = (options.features, feature_ids), (options.labels, label_ids)
    return [(path, read(options, names)) for path, read in tables if path]


def from_one(counts: Scan, more: str = "") -> str:
    """Return advice if ids begin at 1, so that no edge names node 0; else an empty text."""
    advice = "; ids here begin at 1, so there is a node 0: subtract 1 from them, or give ids=integers"
    return advice + more if counts.lowest == 1 else ""


def note_node_zero(source: Imported, counts: Scan) -> None:
    """Note a node 0 without edges, unless a file of features or labels has a row for it."""
    labels, table = source.labels, source.table
    has_row = table is not None and table.listed is None and not source.features_made
    has_label = labels is not None and not source.labels_made and labels[[0, counts.highest]].min() >= 0
    if (advice := from_one(counts)) and not has_row and not has_label:
        meant = "or ignore this if node 0 is meant"
        source.notes.append(f"{source.path}: node 0 has no edges{advice}, {meant}")


def declared_rows(options: ImportOptions) -> int:
    """Return the rows of an array of features or labels without ids; 0 without such an array."""
    for what, name in (("features", options.features), ("labels", options.labels)):
        if name and is_array(Path(name)) and Path(name).exists():
            shape: tuple[int, ...] = open_array(Path(name), what, options.scratch, "biufUS").shape
            return shape[0] if shape else 0
    return 0


def named(edges: EdgeTable, options: ImportOptions, seen: Seen, why: str = "") -> Imported:
    """Open the graph of edges between nodes that have ids of their own; `why`: note of a reason."""
    path, listed = edges.path, None
    if options.node_list:
        ends = lambda: np.sort(edges.read_words().words) if edges.words else seen.ids()  # noqa: E731
        listed = read_nodes(Path(options.node_list), options, edges.words, ends)
        listed.path = options.node_list
    ids, isolated = (listed, []) if listed is not None else all_ids(edges, options, seen)
    if edges.settle_header(ids) and listed is None:
        ids, isolated = all_ids(edges, options, seen)  # with the ids of the first line
    if edges.words:
        edges.read_words().check(listed)
    stream: Stream = edges.read_words().between(ids) if edges.words else partial(found, edges, ids)
    source = Imported(name_of(path), path, len(ids), stream, options)
    source.set_ids(ids, listed=listed is not None)
    source.compacted = why
    if why:
        source.notes.append(f"{path}: {why}; nodes are numbered in ascending order of their ids")
    edges.note("words" if ids.words else "whole numbers", source)
    if options.node_list:
        source.readings.append(f"{Path(options.node_list).name} (nodes)")
    for file, nodes in isolated:
        note_isolated(source, file, nodes)
    counts = scan(stream, options.weights)
    if not source.n:
        raise UserError(f"{path}: no edges; node_list=FILE would list nodes")
    if edges.unsure and isinstance(edges.table, TextTable):
        header = (
            f"line {edges.table.text.dialect.line} is taken for a header, as its words are in no other line"
        )
        source.notes.append(f"{path}: {header}")
    attach_features(source, options, grow=False)
    attach_labels(source, options, grow=False)
    source.settle_direction(directed=False, counts=counts)
    return source


def found(edges: EdgeTable, ids: Names) -> Iterator[Edges]:
    """Yield edges between whole numbers by the numbers of these ids; UserError names the line of others."""
    done = 0
    for src, dst, weight in edges.numbers():
        places = [ids.find(some) for some in (src, dst)]
        for end, (some, found_) in enumerate(zip((src, dst), places, strict=True)):
            if (found_ < 0).any():
                row = int(np.argmax(found_ < 0))
                where = f"{('source', 'target')[end]} {some[row]} is not in {ids.path}"
                raise UserError(f"{edges.table.place(done + row)}: {where}")
        yield places[0], places[1], weight
        done += len(src)


def all_ids(
    edges: EdgeTable, options: ImportOptions, seen: Seen
) -> tuple[Names, list[tuple[str, np.ndarray]]]:
    """Collect the ids of all nodes, and those that each table has and edges have not."""
    ids = Names(np.sort(edges.read_words().words) if edges.words else seen.ids(), edges.path)
    every, isolated = ids.names, []
    for file, listed in companion_ids(options, ids):
        new = distinct(listed[ids.find(listed) < 0])
        if len(new) and len(ids) and (ids.find(listed) < 0).all():
            raise UserError(f"{file}: none of its nodes, such as {shown(listed[0])}, is in {edges.path}")
        isolated.append((file, new))
        every = distinct(every, new) if len(new) else every
    return Names(every, edges.path), isolated


def name_of(path: Path) -> str:
    """Name the graph after its file."""
    name = path.name.removesuffix(".gz")
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return re.sub("_edges$", "", name) or path.name
