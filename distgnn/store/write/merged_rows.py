"""The rows of a matrix, merged from the edges of a source in memory: a range of rows after another.

The edges are gone through once to count them, and once for each range of rows. A range has an eighth of the
entries, so that keys, which take eight bytes, and the room in which they are sorted take little beside the
matrix, which has four bytes an entry, and those of its values where edges have weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from distgnn.arrays.blocking import bounded
from distgnn.arrays.csr import index_type
from distgnn.layout import Range
from distgnn.local.entries import keys_of, merged_records, rows_of
from distgnn.store.format.limits import LIMITS
from distgnn.store.read.graph_matrix import GraphMatrix
from distgnn.store.source import Source
from distgnn.store.write.arguments import check_edges
from distgnn.store.write.degrees import Factors

#: Ranges of rows in which the entries of a large matrix are merged.
RANGES = 8

#: Takes the first row of some, how many entries each has, their columns and weights, as ``Degrees.count``.
Count = Callable[[int, np.ndarray, np.ndarray, "np.ndarray | None"], object]


class Counted(NamedTuple):
    """Counts of one pass over the edges.

    Attributes:
        entries: of each row, before repeated ones are merged; loops: the nodes whose self-loop is listed;
        weighted: whether edges have weights.
    """

    entries: np.ndarray
    loops: int
    weighted: bool


class MergedRows:
    """Entries of a square matrix, merged, by ranges of rows.

    Attributes:
        loops, weighted: as of :class:`Counted`; nnz: the number of entries.
    """

    def __init__(self, n: int, ranges: list[Range], counted: Counted) -> None:
        self.loops, self.weighted, self.nnz = counted.loops, counted.weighted, 0
        self.ranges, self._parts = ranges, list[tuple[np.ndarray, "np.ndarray | None"]]()
        self._lengths = np.zeros(n, np.int64)

    def add(self, first: int, counts: np.ndarray, cols: np.ndarray, weights: np.ndarray | None) -> None:
        """Add the next range of rows, of which ``first`` is the first one with entries."""
        self._lengths[first : first + len(counts)] = counts
        self._parts.append((cols, weights))
        self.nnz += len(cols)

    def matrix(self, dtype: np.dtype, factors: Factors | None) -> GraphMatrix:
        """Make the matrix, and let the entries go. ``factors``: of its values; None for the weights alone."""
        kind, parts, lengths = index_type(len(self._lengths), self.nnz), self._parts[::-1], self._lengths
        self._parts = []
        pointers = np.zeros(len(lengths) + 1, kind)
        np.cumsum(lengths, out=pointers[1:])
        columns, values = np.empty(self.nnz, kind), np.empty(self.nnz if self.weighted else 0, dtype)
        for lo, hi in self.ranges:
            entries, (cols, weights) = slice(*pointers[[lo, hi]].tolist()), parts.pop()
            columns[entries] = cols
            if weights is not None:
                counts = lengths[lo:hi]
                values[entries] = weights if factors is None else factors(weights, lo, counts, cols)
        ones = np.ones(len(lengths)), None
        of_ones = ones if factors is None else (factors.left, factors.right)
        return GraphMatrix(pointers, columns, values if self.weighted else of_ones, dtype)


def merged_rows(source: Source, self_loops: bool, dtype: np.dtype, count: Count) -> MergedRows:
    """Merge the entries of A, ``A[dst, src]`` of an edge from src to dst; ``count`` gets them, by rows.

    An undirected source has the reverse of every edge. Of equal entries the largest weight stays. With
    ``self_loops`` every node has one, of weight 1 where none is listed.

    UserError: an edge that cannot be, as of ``check_edges``.
    """
    counted, n = _counted(source, self_loops, dtype), source.n
    most = max(LIMITS.entries, -(-int(counted.entries.sum()) // RANGES))
    merged = MergedRows(n, bounded(counted.entries, most), counted)
    bits, kind = max(n - 1, 1).bit_length(), index_type(n, int(counted.entries.sum()))
    for lo, hi in merged.ranges:
        records = merged_records(_records(source, (lo, hi), bits, self_loops, counted.weighted))
        if not len(records):
            merged.add(lo, np.zeros(0, np.int64), np.zeros(0, kind), None)
            continue
        first, counts, cols = rows_of(keys_of(records), bits, kind)
        weights = None
        if counted.weighted:
            weights = np.where(np.isneginf(records["weight"]), 1.0, records["weight"])
        del records
        merged.add(lo + first, counts, cols, weights)
        count(lo + first, counts, cols, weights)
    return merged


def _entries(source: Source) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Yield rows, columns and weights of entries, some at a time."""
    for src, dst, weight in source.edges():
        yield dst, src, weight
        if not source.directed:
            yield src, dst, weight


def _counted(source: Source, self_loops: bool, dtype: np.dtype) -> Counted:
    """Check all edges, and count them."""
    entries, looped = np.full(source.n, int(self_loops), np.int64), np.zeros(source.n, bool)
    before, weighted = 0, False
    for src, dst, weight in source.edges():
        check_edges(source, before, (src, dst, weight), dtype)
        before += len(src)
        weighted |= weight is not None
        looped[src[src == dst]] = True
        for rows in (dst,) if source.directed else (dst, src):
            np.add.at(entries, rows, 1)
    return Counted(entries, int(np.count_nonzero(looped)), weighted)


def _records(source: Source, rows: Range, bits: int, self_loops: bool, weighted: bool) -> np.ndarray:
    """Return the entries in a range of rows, as :func:`merged_records` takes them.

    A key is ``row << bits | column``, of rows within the range. The self-loop that every node has weighs
    -inf, less than one that is listed.
    """
    (lo, hi), keys, weights = rows, [np.zeros(0, np.int64)], [np.zeros(0)]
    for row, col, weight in _entries(source):
        own = np.flatnonzero((row >= lo) & (row < hi))
        keys.append((row[own].astype(np.int64) - lo << bits) + col[own])
        if weighted:
            weights.append(np.ones(len(own)) if weight is None else weight[own])
    if self_loops:
        nodes = np.arange(lo, hi, dtype=np.int64)
        keys.append((nodes - lo << bits) + nodes)
        weights.append(np.full(hi - lo, -np.inf))
    joined = np.concatenate(keys)
    if not weighted:
        return joined
    records = np.empty(len(joined), np.dtype([("key", np.int64), ("weight", np.float64)]))
    records["key"], records["weight"] = joined, np.concatenate(weights)
    return records
