"""The source every importer makes: an edge stream, a feature table and the small node arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from distgnn.errors import UserError
from distgnn.layout import block, partition
from distgnn.rng import splitmix64
from distgnn.split import labelled
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.arrays import Archive, indices
from distgnn.store.importers.names import Names, whole
from distgnn.store.importers.tables import FeatureRows, SparseRows
from distgnn.store.source import Edges, ImportOptions, Source

if TYPE_CHECKING:
    from distgnn.store.importers.table import Table

UNLABELLED = ("", "-1", "-1.0", "nan", "na", "n/a", "null", "none")  # in lower case
NO_LABEL = "every label is empty; expected a class for some node"
MAY_BE_CLASSES = ("na", "n/a", "none")
LABEL_NAMES = ("label", "class", "target", "y", "labels", "page_type", "ml_target")  # two of MUSAE
SPLIT_NAMES = ("split", "part", "set", "mask")
_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.0+)?")  # a whole number, as pandas may have made it
HIGHEST_ID = 1 << 40
HIGHEST_CLASS = 1 << 20
HIGHEST_WIDTH = 1 << 24  # columns of features, which are rows of weights
Stream = Callable[[], Iterator[Edges]]
Window = Callable[[int, int], Iterator[Edges]]


@dataclass
class Scan:
    """Counts of one pass over the edges. `symmetric`: each edge is listed as often as its reverse."""

    count: int = 0
    loops: int = 0
    lowest: int = HIGHEST_ID
    highest: int = -1
    symmetric: bool = True
    weighted: bool = False


def scan(stream: Stream, weights: bool) -> Scan:
    """Read the stream once and count.

    The edges count as symmetric if 64-bit hashes of the edges and of their reverses have the same sum; for
    other lists that is as likely as a collision.
    """
    counts, difference = Scan(), np.zeros(1, np.uint64)
    for src, dst, weight in stream():
        counts.count += len(src)
        counts.loops += int(np.count_nonzero(src == dst))
        if len(src):
            counts.highest = max(counts.highest, int(src.max()), int(dst.max()))
            counts.lowest = min(counts.lowest, int(src.min()), int(dst.min()))
        s, t = splitmix64(src.view(np.uint64)), splitmix64(dst.view(np.uint64))
        changes = s * t * (t - s)  # of s t² and of s² t, for the edge and its reverse
        if weight is not None:
            counts.weighted = counts.weighted or bool(np.any(weight != 1))
            changes = changes * splitmix64(weight.astype(np.float64).view(np.uint64)) if weights else changes
        difference += changes.sum(dtype=np.uint64)
    counts.symmetric = not difference[0]
    return counts


class Imported(Source):
    """A source over `stream()`, which yields any number of edges at a time, ids not yet checked.

    `half`: both directions of every edge are listed, and only those with src <= dst are passed on.
    `window(lo, hi)` yields edges lo..hi of the stream, if it can without reading those before them.
    """

    window: Window | None = None
    matrix = False  # edges are entries of a matrix: zeros are none, and repeated ones add up
    zeros = 0  # entries of the matrix that were zero, when they were last read
    table: FeatureRows | None = None
    half = weighted = False
    names: Names | None = None  # the ids of nodes whose ids are not their numbers
    listed = True  # the user said in which order the nodes are
    compacted = ""  # the reason why numbers are ids

    def __init__(self, name: str, path: Path, n: int, stream: Stream, options: ImportOptions):
        self.name, self.path, self.n, self.stream, self.options = name, path, n, stream, options
        self.notes: list[str] = []
        self.readings: list[str] = []
        self.left: list[str] = []
        self.columns: dict[Path, tuple[list[str], set[str]]] = {}  # of each file: all columns, taken columns
        self.labels_made = False  # True if the labels are made of the degrees
        self.features_made = False  # True if the features are made of the graph
        self.of_degrees: list[Callable[[np.ndarray], None]] = []  # functions that take the degrees

    def note_table(self, reading: str, table: Table, columns: Iterable[int | None]) -> None:
        """Take down what the summary says of a table, and which of its columns were taken."""
        self.readings.append(reading)
        names = [table.called(k) for k in range(len(table.names))] + [*table.left_out]
        taken = self.columns.setdefault(table.path, (names, set()))[1]
        taken.update(table.called(k) for k in columns if k is not None)

    def note_arrays(self, archive: Archive, taken: list[str]) -> None:
        """Take down which arrays of a file were taken."""
        self.readings.append(f"{Path(archive.path).name} ({', '.join(taken)})")
        self.columns[Path(archive.path)] = archive.names, {*taken}

    def note_left(self, files: Iterable[Path]) -> None:
        """List columns of the tables that were read, and other files, which were not taken."""
        for path, (names, taken) in self.columns.items():
            if rest := [name for name in names if name not in taken]:
                more = f" and {len(rest) - 8} more" if len(rest) > 9 else ""
                self.left.append(f"{', '.join(rest[: 8 if more else 9])}{more} of {path.name}")
        self.left += [path.name for path in files]

    def set_features(self, table: FeatureRows | None) -> None:
        """Take a table of features; UserError for one that is too wide."""
        self.table, self.width = table, table.width if table else 0
        self.feature_names = getattr(table, "names", None)
        self.feature_entries = table.entries if isinstance(table, SparseRows) else None
        asked = (self.options.feature_columns or "").split(",")
        for name in self.feature_names or ():
            if name.lower() in (*LABEL_NAMES, *SPLIT_NAMES) and name not in asked:
                advice = "if it has labels or parts, leave it out; feature_columns=A,B,... says which are"
                where = f"{getattr(table, 'path', 'X')}: column {name}"
                self.notes.append(f"{where} is taken for a feature; {advice}")
        if self.width > HIGHEST_WIDTH:
            most = f"at most {HIGHEST_WIDTH} are possible"
            raise UserError(f"{self.path}: {self.width} features of a node; {most}")

    def set_ids(self, names: Names, listed: bool) -> None:
        """Take the ids of the nodes, in an order that the user `listed` or that was made here."""
        self.names, self.listed, ids = names, listed, names.names
        plain = not names.words and np.array_equal(ids, np.arange(len(ids)))
        self.ids = None if plain else ids
        self.listed = listed or plain

    def check_rows(self, path: object) -> None:
        """Raise UserError for rows without ids if the nodes have ids and no order was given."""
        if not self.listed:
            expected = "expected a table with a column of ids, or node_list=FILE with their order"
            if self.compacted:
                expected += f" ({self.compacted})"
            raise UserError(f"{path}: rows without ids, and nodes have ids of their own; {expected}")

    def described(self) -> str:
        """Describe the nodes of the graph, for errors."""
        if self.names is None:
            return f"{self.path} has nodes 0..{self.n - 1}"
        return f"{self.names.path} has {self.n} nodes, and node_list=FILE would list others"

    def take_degrees(self, degrees: np.ndarray) -> None:
        for take in self.of_degrees:
            take(degrees)

    def settle_direction(self, directed: bool, counts: Scan | None = None) -> None:
        """Decide whether the graph is directed; read the stream for it if there are no `counts`.

        The user's option decides. Otherwise a graph that lists both directions of every edge is undirected;
        any other is as `directed` says, unless the matrix of the merged edges turns out to be symmetric. The
        stream is not read if the user said that the graph is directed.
        """
        if self.options.directed and counts is None and not self.matrix:
            self.directed = True
            return
        counts = counts or self.counted()
        if (self.weighted or counts.weighted) and not self.options.weights:
            left_out = "its edges have weights, which are left out; weights=True takes them"
            self.notes.append(f"{self.path}: {left_out}")
        if self.options.directed:
            self.directed, self.edge_count = True, counts.count if self.matrix else self.edge_count
            return
        self.half = counts.symmetric
        self.directed = directed and not counts.symmetric and self.options.directed is None
        self.direction_open = self.directed
        self.edge_count = (counts.count + counts.loops) // 2 if self.half else counts.count

    def counted(self) -> Scan:
        """Read the edges once and count them; take the sums of a matrix's repeated entries, without zeros."""
        order = Ascending(self.n)
        counts = scan(partial(self._kept, seen=order.add), self.options.weights)
        if self.matrix and not any(order.ascends):
            self.stream = summed(self.stream, self.n)
            counts = scan(self._kept, self.options.weights)
        if self.zeros:
            self.left.append(f"{self.zeros} zeros of {self.path.name}, which are no edges")
        return counts

    def note_classes(self) -> None:
        """Note labels that look like numbers to predict."""
        if self.labels is None:
            return
        if self.multilabel or self.regression:
            return
        count = int(np.count_nonzero(labelled(self.labels)))
        if 10 * self.classes > count > 0:
            advice = "names, or numbers of a regression, are no classes; label_column=NAME takes another"
            advice = "some may be empty; give fewer" if self.labels_made else advice
            self.notes.append(
                f"{self.labels_path}: {self.classes} classes for {count} labelled nodes; {advice}"
            )

    def set_labels(self, labels: np.ndarray, path: object, classes: int | None = None) -> None:
        """Take the integer labels of `path`: one per node (below zero: unlabelled) or rows as in `Source`."""
        if len(labels) != self.n or labels.ndim > 2:
            expected = f"expected one for each of the {self.n} nodes"
            raise UserError(f"{path}: labels have shape {labels.shape}, {expected}")
        self.labels_path = path
        if labels.ndim == 2 and labels.shape[1] != 1:
            self._set_rows(labels, path, classes)
            return
        labels = labels.reshape(-1)
        highest, limit = int(labels.max(initial=-1)), classes or HIGHEST_CLASS
        if limit > HIGHEST_CLASS:
            raise UserError(f"{path}: {limit} classes; at most {HIGHEST_CLASS} are possible")
        if highest >= limit:
            raise UserError(f"{path}: label {highest} lies outside 0..{limit - 1}")
        self.labels = np.maximum(labels, -1).astype(np.int32)
        self.classes = classes or highest + 1

    def set_numbers(self, values: np.ndarray, path: object) -> None:
        """Take numbers to predict, (n) or (n, columns), NaN for nodes without.

        Raises UserError for infinite ones, or NaN in some columns of a node.
        """
        values = values.reshape(len(values), -1)
        if len(values) != self.n or not 0 < values.shape[1] <= HIGHEST_CLASS:
            expected = f"expected one or some for each of the {self.n} nodes"
            raise UserError(f"{path}: labels have shape {values.shape}, {expected}")
        with np.errstate(over="ignore"):
            labels = np.asarray(values, np.float32)
        missing = np.isnan(labels)
        for wrong, problem in (
            (np.isinf(labels), "expected finite numbers to predict, in the range of float32"),
            (missing != missing.all(axis=1, keepdims=True), "a node has all of its numbers or none"),
        ):
            if wrong.any():
                node, column = np.argwhere(wrong)[0]
                raise UserError(f"{path}: label {column} of node {node} is {values[node, column]}; {problem}")
        self.labels_path, self.labels, self.classes = path, labels, labels.shape[1]

    def set_classes(self, values: np.ndarray, path: object) -> None:
        """Take a string for each node, as objects: classes in sorted order, by value if all are integers."""
        if values.shape != (self.n,):
            expected = f"expected one for each of the {self.n} nodes"
            raise UserError(f"{path}: labels have shape {values.shape}, {expected}")
        distinct = set(values.tolist())
        named = {name for name in distinct if name.lower() not in UNLABELLED}
        if any(set(name) & set(".-") for name in named) and all(map(_WHOLE.fullmatch, named)):
            plain = {name: name.partition(".")[0] for name in named}  # numbers below 0 are no label
            plain = {name: "" if number[0] == "-" else number for name, number in plain.items()}
            self.set_classes(np.array([plain.get(name, name) for name in values.tolist()], object), path)
            return
        by_value = all(str(whole(name)) == name for name in named)
        names = sorted(named, key=int if by_value else str)
        if not names:
            raise UserError(f"{path}: {NO_LABEL}")
        words = sorted(name for name in distinct - named if name.lower() in MAY_BE_CLASSES)
        if words:
            advice = "write it otherwise if it is a class"
            self.notes.append(f"{path}: {' and '.join(words)} is taken for no label; {advice}")
        if any(";" in name for name in names):
            self._set_several(values, path)
            return
        if len(names) == 1 and len(distinct) > 1:
            self.notes.append(f"{path}: every label is {names[0]}, and nodes below 0, NaN or empty have none")
        number = dict.fromkeys(distinct, -1) | {name: k for k, name in enumerate(names)}
        numbers = np.fromiter((number[name] for name in values.tolist()), np.int64, len(values))
        self.set_labels(numbers, path, len(names))
        self.class_names = names

    def _set_several(self, values: np.ndarray, path: object) -> None:
        """Take strings that name several classes between semicolons."""
        listed = {text: [*filter(None, map(str.strip, text.split(";")))] for text in set(values.tolist())}
        every = {name for several in listed.values() for name in several}
        names = sorted(name for name in every if name.lower() not in UNLABELLED)
        if self.n * len(names) > LIMITS.unpacked_bytes:
            problem = f"{len(names)} classes between semicolons, of {self.n} nodes"
            raise UserError(f"{path}: {problem}; give fewer")
        number = {name: k for k, name in enumerate(names)}
        rows = np.full((self.n, len(names)), -1, np.int8)
        for node, text in enumerate(values.tolist()):
            if chosen := [number[name] for name in listed[text] if name in number]:
                rows[node] = 0
                rows[node, chosen] = 1
        self.notes.append(f"{path}: labels between semicolons are several classes of a node")
        self.set_labels(rows, path)
        self.class_names = names

    def _set_rows(self, labels: np.ndarray, path: object, classes: int | None) -> None:
        if classes not in (None, labels.shape[1]):
            raise UserError(f"{path}: {labels.shape[1]} labels of a node where there are {classes} classes")
        if labels.min(initial=0) < -1 or labels.max(initial=0) > 1:
            node, column = np.argwhere((labels < -1) | (labels > 1))[0]
            expected = "expected 0 or 1 for each class, or -1 for all"
            raise UserError(f"{path}: label {column} of node {node} is {labels[node, column]}; {expected}")
        self.labels, self.classes = labels.astype(np.int8, copy=False), labels.shape[1]
        if not self.options.multilabel and not (labels > 0).sum(axis=1).max(initial=0) > 1:
            self._take_one_hot(path)

    def _take_one_hot(self, path: object) -> None:
        """Take rows that have a single one each as classes, and note it."""
        rows = np.asarray(self.labels)
        nothing = int(np.count_nonzero(labelled(rows) & (rows.max(axis=1, initial=0) < 1)))
        unlabelled = f", {nothing} rows of zeros for unlabelled nodes" if nothing else ""
        advice = "multilabel=True keeps them as rows, of which a node may have several"
        taken = f"no row has several classes, so each is taken for a class{unlabelled}"
        self.notes.append(f"{path}: {taken}; {advice}")
        self.labels = np.where(rows.max(axis=1) > 0, rows.argmax(axis=1), -1).astype(np.int32)

    def set_split(self, split: np.ndarray, path: object) -> None:
        """Take a split, 0 to 3 for each node. Raises UserError for other numbers."""
        if split.shape != (self.n,) or split.min(initial=0) < 0 or split.max(initial=0) > 3:
            raise UserError(f"{path}: the split must hold one of 0, 1, 2, 3 for each of the {self.n} nodes")
        self.split = split.astype(np.uint8)

    def _kept(
        self, stream: Stream | None = None, seen: Callable[[np.ndarray, np.ndarray], None] | None = None
    ) -> Iterator[Edges]:  # fmt: skip
        """Yield the edges of a stream with checked ids, and checked weights if the options ask for them."""
        self.zeros = 0
        for src, dst, weight in (stream or self.stream)():
            src, dst = (indices(ends, self.n, self.path) for ends in (src, dst))
            if seen is not None:
                seen(src, dst)
            if self.matrix and weight is not None and not (edges := weight != 0).all():
                self.zeros += int(np.count_nonzero(~edges))
                src, dst, weight = src[edges], dst[edges], weight[edges]
            if not self.options.weights:
                self.weighted = self.weighted or (weight is not None and bool(np.any(weight != 1)))
                weight = None
            elif weight is not None and not np.isfinite(weight).all():
                bad = int(np.flatnonzero(~np.isfinite(weight))[0])
                problem = f"edge {src[bad]} -> {dst[bad]} has weight {weight[bad]}"
                raise UserError(f"{self.path}: {problem}; expected a finite number")
            yield src, dst, weight

    def edges(self) -> Iterator[Edges]:
        yield from self._chunks(self._kept())

    def edge_share(self, part: int, parts: int) -> Iterator[tuple[int, Edges]]:
        if self.window is None or self.half or self.edge_count is None:
            yield from super().edge_share(part, parts)
            return
        before, last = block(partition(self.edge_count, parts), part)
        stream = partial(self.window, before, last)
        for edges in self._chunks(self._kept(stream)):
            yield before, edges
            before += len(edges[0])

    def _chunks(self, kept: Iterator[Edges]) -> Iterator[Edges]:
        """Yield at most LIMITS.entries edges at a time, one direction of each if both are listed."""
        for src, dst, weight in kept:
            if weight is not None:
                weight = weight.astype(np.float64, copy=False)
            if self.half:
                keep = src <= dst
                src, dst, weight = src[keep], dst[keep], None if weight is None else weight[keep]
            for lo in range(0, len(src), LIMITS.entries):
                some = slice(lo, lo + LIMITS.entries)
                yield src[some], dst[some], None if weight is None else weight[some]

    def features(self, ids: np.ndarray) -> np.ndarray:
        if self.table is None:
            return super().features(ids)
        return self.table.rows(np.asarray(ids, np.int64))

    def sparse_features(self, ids: np.ndarray) -> sp.csr_array:
        table = self.table
        return table.sparse(ids) if isinstance(table, SparseRows) else super().sparse_features(ids)


class Ascending:
    """A check that entries ascend by row and column, or by column and row, so that none is repeated."""

    def __init__(self, n: int) -> None:
        self.n, self.ascends, self.last = n, [True, True], [-1, -1]

    def add(self, src: np.ndarray, dst: np.ndarray) -> None:
        for k, (first, second) in enumerate(((src, dst), (dst, src))):
            if self.ascends[k] and len(src):
                keys = first * self.n + second
                self.ascends[k] = bool(keys[0] > self.last[k] and (keys[1:] > keys[:-1]).all())
                self.last[k] = int(keys[-1])


def summed(stream: Stream, n: int) -> Stream:
    """Return the same stream if no entry is repeated, else one of sums, in memory: 24 bytes for each."""
    places = [dst * n + src for src, dst, _ in stream()]
    keys = np.sort(np.concatenate([np.zeros(0, np.int64), *places]))
    if len(keys) < 2 or (keys[1:] != keys[:-1]).all():
        return stream
    keys = keys[np.append(True, keys[1:] != keys[:-1])]
    values = np.zeros(len(keys))
    for src, dst, weight in stream():
        np.add.at(values, np.searchsorted(keys, dst * n + src), 1.0 if weight is None else weight)
    return lambda: iter([(keys % n, keys // n, values)])


def sparse_limit(count: int) -> int:
    """Return the least node id that is too high for a file with `count` ids: arrays of n would be waste."""
    return (count << 6) + (1 << 20)


def check_dense(highest: int, count: int, path: object) -> None:
    """Raise UserError for a file that gives `count` nodes far too high ids."""
    if highest >= sparse_limit(count):
        advice = "node ids must count from 0 without large gaps"
        raise UserError(f"{path}: node {highest} among {count}; {advice}")
