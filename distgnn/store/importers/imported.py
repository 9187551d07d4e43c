"""The source every importer makes: an edge stream, a feature table and the small node arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.layout import block, partition
from distgnn.rng import splitmix64
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.arrays import indices
from distgnn.store.importers.tables import Features
from distgnn.store.importers.text import Table
from distgnn.store.source import Edges, ImportOptions, Source, labelled

HIGHEST_ID = 1 << 40
HIGHEST_CLASS = 1 << 20
HIGHEST_WIDTH = 1 << 24  # of features, which stores keep with their zeros
Stream = Callable[[], Iterator[Edges]]
Window = Callable[[int, int], Iterator[Edges]]


@dataclass
class Scan:
    """What one pass found; `symmetric`: every edge and weight is listed as often as its reverse."""

    count: int = 0
    loops: int = 0
    lowest: int = HIGHEST_ID
    highest: int = -1
    symmetric: bool = True
    weighted: bool = False


def scan(stream: Stream, weights: bool) -> Scan:
    """Read the stream once. It is symmetric if 64-bit hashes of the edges and of their reverses sum to the
    same: for other lists this is as likely as a collision."""
    found, triple, difference = Scan(), np.uint64(3), np.zeros(1, np.uint64)
    for src, dst, weight in stream():
        found.count += len(src)
        found.loops += int(np.count_nonzero(src == dst))
        if len(src):
            found.highest = max(found.highest, int(src.max()), int(dst.max()))
            found.lowest = min(found.lowest, int(src.min()), int(dst.min()))
        s, t = splitmix64(src.view(np.uint64)), splitmix64(dst.view(np.uint64))
        found.weighted = found.weighted or (weight is not None and bool(np.any(weight != 1)))
        salt = np.zeros(1) if weight is None or not weights else weight.astype(np.float64)
        salt = salt.view(np.uint64)
        changes = splitmix64(s + triple * t + salt) - splitmix64(t + triple * s + salt)
        difference += changes.sum(dtype=np.uint64)
    found.symmetric = not difference[0]
    return found


class Imported(Source):
    """A source over `stream()`, which yields any number of edges at a time, ids not yet checked.

    `half`: both directions of every edge are listed, and only those with src <= dst are passed on.
    `window(lo, hi)` yields edges lo..hi of the stream, if it can without reading those before them.
    """

    window: Window | None = None
    table: Features | None = None
    half = weighted = False

    def __init__(self, name: str, path: Path, n: int, stream: Stream, options: ImportOptions):
        self.name, self.path, self.n, self.stream, self.options = name, path, n, stream, options
        self.notes: list[str] = []

    def set_features(self, table: Features | None) -> None:
        """Take a table of features. UserError: too wide."""
        self.table, self.width = table, table.width if table else 0
        if self.width > HIGHEST_WIDTH:
            most = f"at most {HIGHEST_WIDTH} are possible, as stores keep zeros too"
            raise UserError(f"{self.path}: {self.width} features of a node; {most}")

    def settle_direction(self, directed: bool, found: Scan | None = None) -> None:
        """Decide `directed`: what the user said, else undirected where both directions are listed, else
        `directed`. Reads the stream, unless `found` is given or the user said that the graph is directed."""
        if self.options.directed and found is None:
            self.directed = True
            return
        found = found or scan(self._kept, self.options.weights)
        if (self.weighted or found.weighted) and not self.options.weights:
            left_out = "its edges have weights, which are left out; weights=True takes them"
            self.notes.append(f"{self.path}: {left_out}")
        if self.options.directed:
            self.directed = True
            return
        self.half = found.symmetric
        self.directed = directed and not found.symmetric and self.options.directed is None
        self.edge_count = (found.count + found.loops) // 2 if self.half else found.count

    def note_classes(self) -> None:
        """Note labels that look like numbers to predict."""
        if self.labels is None:
            return
        if self.multilabel:
            rows = self.labels[labelled(self.labels)]
            if len(rows) and (rows.sum(axis=1) == 1).all():
                advice = "if there can't be more, give the number of the class instead of a row"
                self.notes.append(f"{self.labels_path}: every node has exactly one of its classes; {advice}")
            return
        count = int(np.count_nonzero(labelled(self.labels)))
        if 10 * self.classes > count > 0:
            advice = "names, or numbers of a regression, are no classes; label_column=NAME takes another"
            self.notes.append(
                f"{self.labels_path}: {self.classes} classes for {count} labelled nodes; {advice}"
            )

    def set_labels(self, labels: np.ndarray, path: object, classes: int | None = None) -> None:
        """Take the integer labels of `path`, one per node (below zero: unlabelled), or a row of them as in
        `Source`."""
        if len(labels) != self.n or labels.ndim > 2:
            expected = f"expected one for each of the {self.n} nodes"
            raise UserError(f"{path}: labels have shape {labels.shape}, {expected}")
        self.labels_path = path
        if labels.ndim == 2:
            self.labels, self.classes = labels.astype(np.int8, copy=False), labels.shape[1]
            return
        highest, limit = int(labels.max(initial=-1)), classes or HIGHEST_CLASS
        if limit > HIGHEST_CLASS:
            raise UserError(f"{path}: {limit} classes; at most {HIGHEST_CLASS} are possible")
        if highest >= limit:
            raise UserError(f"{path}: label {highest} lies outside 0..{limit - 1}")
        self.labels = np.maximum(labels, -1).astype(np.int32)
        self.classes = classes or highest + 1

    def set_split(self, split: np.ndarray, path: object) -> None:
        """Take a split, 0 to 3 for each node. UserError: anything else."""
        if split.shape != (self.n,) or split.min(initial=0) < 0 or split.max(initial=0) > 3:
            raise UserError(f"{path}: the split must hold one of 0, 1, 2, 3 for each of the {self.n} nodes")
        self.split = split.astype(np.uint8)

    def _kept(self, stream: Stream | None = None) -> Iterator[Edges]:
        """The stream (or another) with ids and weights checked, and weights if they are asked for."""
        for src, dst, weight in (stream or self.stream)():
            src, dst = (indices(ends, self.n, self.path) for ends in (src, dst))
            if not self.options.weights:
                self.weighted = self.weighted or (weight is not None and bool(np.any(weight != 1)))
                weight = None
            elif weight is not None and not np.isfinite(weight).all():
                bad = int(np.flatnonzero(~np.isfinite(weight))[0])
                found = f"edge {src[bad]} -> {dst[bad]} has weight {weight[bad]}"
                raise UserError(f"{self.path}: {found}; expected a finite number")
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
        """One direction of each edge where both are listed, at most LIMITS.entries at a time."""
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


def table_edges(table: Table, promised: tuple[int, str] | None = None) -> Iterator[Edges]:
    """Edges from the first column of a table to the second, the third their weight; UserError unless there
    are as many as `promised` (a number, and where it stands)."""
    src, dst, *weight = table.dtype.names or ()
    count = 0
    for rows in table:
        count += len(rows)
        yield rows[src], rows[dst], rows[weight[0]] if weight else None
    if promised and count != promised[0]:
        says = f"{promised[1]} promises {promised[0]}"
        raise UserError(f"{table.path}: {count} edges, but {says}; is the file truncated?")


def sparse_limit(count: int) -> int:
    """Ids from here on are too high among so many things: arrays of n would be waste."""
    return (count << 6) + (1 << 20)


def check_dense(highest: int, count: int, path: object) -> None:
    """UserError for a file that gives `count` nodes far too high ids."""
    if highest >= sparse_limit(count):
        advice = "node ids must count from 0 without large gaps"
        raise UserError(f"{path}: node {highest} among {count}; {advice}")
