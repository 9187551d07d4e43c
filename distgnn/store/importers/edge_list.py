"""Lists of edges in text, Parquet or JSON lines: two columns of node ids, and perhaps one of weights."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distgnn.errors import ArgumentError, UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.arrays import scratch_file
from distgnn.store.importers.arrow import as_bytes, numpy_of, places
from distgnn.store.importers.coded import Coder
from distgnn.store.importers.features import attach_features, feature_ids
from distgnn.store.importers.imported import HIGHEST_ID, Imported, Scan, Stream, scan, sparse_limit
from distgnn.store.importers.labels import attach_labels, label_ids
from distgnn.store.importers.made import Made
from distgnn.store.importers.names import LONGEST, Names, Seen, distinct, integer, is_number, shown
from distgnn.store.importers.node_lists import read_nodes
from distgnn.store.importers.node_table import is_array, most_bytes, no_id, open_array
from distgnn.store.importers.roles import END_NAMES, comments, edge_roles
from distgnn.store.importers.table import (
    ID_NAMES,
    JSON_LINES,
    MISSING,
    PARQUET,
    TextTable,
    Wanted,
    WrongValue,
    open_table,
)
from distgnn.store.source import IDS, Edges, ImportOptions

SUFFIXES = (".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el", ".tab", *PARQUET, *JSON_LINES)
NO_NAMES = {*MISSING, "#", "%", "->", "<-", "--"}


class EdgeTable:
    """A table of edges: its columns of sources, targets and perhaps weights, and the kind of its ids.

    `words`: ids are words, else whole numbers; `unsure`: the header may be an edge; `why`: the text by which
    ids are words where others are numbers.
    """

    def __init__(self, path: Path, options: ImportOptions) -> None:
        if options.ids not in (None, *IDS):
            raise ArgumentError("ids", options.ids, f"unknown; expected one of {', '.join(IDS)}")
        self.path, self.options, self.why = path, options, ""
        self.table = open_table(path, options, by_node=False)
        if self.table.konect == "bip":
            what = f"line 1 {self.table.comments[0][:40]!r} says that sources and targets are numbered apart"
            raise UserError(f"{path}: {what}; expected ids of which no target has that of a source")
        *ends, self.weight = edge_roles(self.table, options)
        self.ends = ends
        self.coded: CodedEdges | None = None
        kinds = {self.table.kinds[k] for k in ends if k < len(self.table.kinds)}
        self.words = options.ids == "text" or (options.ids is None and "words" in kinds)
        for column in ends if self.table.names else ():
            numbers = ("integers", "numbers")
            given = (*numbers, "words") if options.ids == "text" else ("words",) if self.words else numbers
            self.table.require(column, given, "node ids, whole numbers or strings")
        if self.words and options.ids is None and isinstance(self.table, TextTable):
            some = [row[k] for row in self.table.text.dialect.rows for k in ends if k < len(row)]
            others = (text for text in some if integer(text) is None and text not in NO_NAMES)
            self.why = next(others, "") if any(integer(text) is not None for text in some) else ""
        self.unsure = self.words and not self.why and self._maybe_no_header()

    def _maybe_no_header(self) -> bool:
        """Return True if the header may be an edge between words: it has no usual name and no chosen one."""
        if not self.table.named or not isinstance(self.table, TextTable) or len(self.table.names) > 2:
            return False
        names = {self.table.names[k] for k in self.ends}
        usual = {name.lower() for name in names} & {*END_NAMES, *ID_NAMES, ""}
        return not usual and not {self.options.source_column, self.options.target_column} & names

    def _batches(self, kind: str, expected: str) -> Iterator[tuple[list[pa.Array], np.ndarray | None]]:
        wanted, done = [Wanted(column, kind, expected) for column in self.ends], 0
        weighted = self.options.weights and self.weight is not None
        if weighted and self.weight is not None:
            wanted.append(Wanted(self.weight, "numbers", "a finite number as weight"))
        for columns in self.table.batches(wanted) if self.table.names else ():
            weight = None
            if weighted:
                weight = numpy_of(columns[2]).astype(np.float64, copy=False)
                if not (good := np.isfinite(weight)).all():
                    row = int(np.argmin(good))
                    text = "" if np.isnan(weight[row]) else weight[row]
                    raise self.table.bad(done + row, wanted[2].column, text, wanted[2].expected)
            yield columns[:2], weight
            done += len(columns[0])

    def numbers(self, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> Iterator[Edges]:
        """Yield edges between whole numbers; the UserError for one outside low..high names its line."""
        advice = " of at least 0, or ids=integers" if not low else ""
        expected, done = f"a node id, a whole number{advice}, or ids=text", 0
        for columns, weight in self._batches("integers", expected):
            ends = [numpy_of(column) for column in columns]
            for column, ids in zip(self.ends, ends, strict=True):
                if len(ids) and (ids.min() < low or ids.max() > high):
                    row = int(np.argmax((ids < low) | (ids > high)))
                    above = "" if ids[row] < low else f", at most {high}"
                    raise self.table.bad(done + row, column, ids[row], expected + above)
            yield ends[0], ends[1], weight
            done += len(ends[0])

    def take_words(self, error: WrongValue) -> bool:
        """Take ids for words after one that is no whole number; return False for what cannot be a word."""
        text = error.text
        if (
            self.options.ids is not None
            or not isinstance(self.table, TextTable)
            or error.column not in self.ends
        ):
            return False
        if text in NO_NAMES or text[:2] in ("# ", "% ") or (is_number(text) and not text.isdecimal()):
            return False
        if self.table.named and text == self.table.names[error.column]:
            place = str(error).partition(", column")[0]
            raise UserError(f"{place}: repeats the header; expected one header, in the first line")
        self.words, self.why = True, text
        return True

    def leading_zeros(self) -> bool:
        """Return True if an id has a leading zero: 7 and 007 may be two nodes."""
        if not isinstance(self.table, TextTable) or not self.table.leading_zeros:
            return False
        done, pattern = 0, r"^\s*-?0[xX]" if self.options.ids else r"^\s*-?0[0-9xX]"
        for columns, _ in self._batches("words", "a node id"):
            for end, column in zip(self.ends, columns, strict=True):
                rows = places(pc.match_substring_regex(column, pattern))
                if len(rows) and self.options.ids:
                    raise self.table.bad(done + rows[0], end, "", "a whole number in digits, or ids=text")
                if len(rows):
                    self.why = column[rows[0]].as_py().strip()
                    return True
            done += len(columns[0])
        return False

    def read_words(self) -> CodedEdges:
        """Read the edges between words, unless that was done."""
        self.coded = self.coded or CodedEdges(self)
        return self.coded

    def settle_header(self, ids: Names) -> bool:
        """Take the header as an edge if one of its words is an id; return True if it was one."""
        was_edge = self.unsure and ids.has(*(self.table.names[k] for k in self.ends))
        if was_edge and isinstance(self.table, TextTable):
            self.table.take_header()
            self.unsure, self.coded = False, None
        return was_edge

    def note(self, ids: str, source: Imported) -> None:
        """Note for the summary the columns that were read as edges; `ids`: the kind of ids."""
        taken = [*self.ends, *([self.weight] if self.weight is not None and self.options.weights else [])]
        columns = ", ".join(map(self.table.called, taken if self.table.names else []))
        lines = comments(self.table)
        source.note_table(f"{self.path.name} (edges in {columns}, ids are {ids}{lines})", self.table, taken)
        if self.why:
            others = "of which some are whole numbers; ids=integers would refuse others"
            source.notes.append(f"{self.path}: ids are words, such as {self.why[:40]!r}, {others}")
        source.weighted = self.weight is not None and self._some_weight()

    def _some_weight(self) -> bool:
        """Return True if one of the first weights is another number than 1."""
        for columns in self.table.batches([Wanted(self.weight or 0, "words", "a number")]):
            return any(
                is_number(text or "1") and float(text or "1") != 1 for text in columns[0][:1000].to_pylist()
            )
        return False


class CodedEdges:
    """A list of edges, read once, with a number in place of each word, and perhaps weights.

    Disk: 8 bytes for every edge, 16 with weights, as long as this object lives.
    """

    def __init__(self, edges: EdgeTable) -> None:
        self.table, self.ends = edges.table, edges.ends
        weighted = edges.options.weights and edges.weight is not None
        self.dtype = np.dtype([("ends", np.int32, 2), *([("weight", np.float64)] if weighted else [])])
        with scratch_file(edges.options.scratch) as file:

            def write(codes: np.ndarray, weight: np.ndarray | None) -> None:
                rows = np.empty(len(codes), self.dtype)
                rows["ends"] = codes
                if weight is not None:
                    rows["weight"] = weight
                file.write(rows.data)

            coder = Coder(edges.path, most_bytes(edges.path), write)
            for columns, weight in edges._batches("words", "a node id"):
                coder.add(columns, weight)
            coder.flush()
            file.flush()
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self.words = as_bytes(coder.words)
        self.wrong = self._wrong_words(coder.words)

    def _wrong_words(self, words: pa.Array) -> np.ndarray:
        """Find words that are no ids."""
        nothing, rule_of_a_table = MISSING, r"\x00"
        if isinstance(self.table, TextTable):  # in other files marks are values
            nothing, rule_of_a_table = sorted(NO_NAMES), r"\x00|\A:?-{2,}:?\z"
        listed = "|".join(map(re.escape, nothing))
        bad = places(pc.match_substring_regex(words, rf"\A({listed})\z|{rule_of_a_table}"))
        long = np.flatnonzero(numpy_of(pc.binary_length(words)) > LONGEST)
        return np.union1d(bad, long)

    def check(self, known: Names | None, unsure: bool) -> None:
        """Raise UserError for words that are no ids unless they are `known`, and for a second header."""
        wrong = self.wrong if known is None else self.wrong[known.find(self.words[self.wrong]) < 0]
        if len(wrong):
            row, end = self.find(wrong)
            table, word = self.table, self.words[self._codes(row)[end]].decode()
            advice = no_id(word) or ", or node_list=FILE that lists it"
            if word in ("#", "%"):
                advice = f"; comments={word} would skip such lines"
            raise table.bad(row, self.ends[end], word, f"a node id{advice}")
        names = [self.table.names[k].encode() for k in self.ends] if self.table.named else []
        codes = [np.flatnonzero(self.words == name) for name in names]
        if names and all(map(len, codes)) and not unsure:
            row = self._first(lambda ends: np.all(ends == [codes[0][0], codes[1][0]], axis=1))
            if row >= 0:
                place = self.table.place(row)
                raise UserError(f"{place}: repeats the header; expected one header, in the first line")

    def find(self, words: np.ndarray) -> tuple[int, int]:
        """Find the first row and end that have one of these words, given by number."""
        row = self._first(lambda ends: np.isin(ends, words).any(axis=1))
        return row, int(np.argmax(np.isin(self._codes(row), words)))

    def _codes(self, row: int) -> np.ndarray:
        size = self.dtype.itemsize
        return np.frombuffer(os.pread(self._file, size, row * size), self.dtype)["ends"][0]

    def _first(self, which: Callable[[np.ndarray], Any]) -> int:
        done = 0
        for rows in self._rows():
            if (wrong := which(rows["ends"])).any():
                return done + int(np.argmax(wrong))
            done += len(rows)
        return -1

    def _rows(self) -> Iterator[np.ndarray]:
        size, start = LIMITS.window_entries * self.dtype.itemsize, 0
        while data := os.pread(self._file, size, start):
            yield np.frombuffer(data, self.dtype)
            start += len(data)

    def between(self, ids: Names) -> Stream:
        """Make the function that yields edges between these nodes; UserError names the line of others."""
        places = ids.find(self.words)
        if (places < 0).any():
            row, end = self.find(np.flatnonzero(places < 0))
            word, name = shown(self.words[self._codes(row)[end]]), ("source", "target")[end]
            raise UserError(f"{self.table.place(row)}: {name} {word} is not in {ids.path}")

        def stream() -> Iterator[Edges]:
            for rows in self._rows():
                src, dst = places[rows["ends"].T]
                yield src, dst, rows["weight"].copy() if "weight" in (self.dtype.names or ()) else None

        return stream


def open_source(path: Path, options: ImportOptions) -> Imported:
    """Open the graph of a list of edges and its companions: undirected unless `directed` says otherwise.

    Nodes are numbers from 0, or have ids that are numbered here in ascending order; `node_list` lists them in
    another order. Tables of features and labels with ids may have nodes without edges. If nodes are numbers,
    their number is one more than the largest in edges and tables; dense features without ids fix it.
    """
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
        edges.words = True
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
    has_row = table is not None and table.listed is None and not isinstance(table, Made)
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
        edges.read_words().check(listed, edges.unsure)
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
