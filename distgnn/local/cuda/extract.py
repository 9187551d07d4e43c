"""Rows of sparse matrices picked and multiplied, columns picked and renumbered: ``kernels/extract.cu``.

Lists of ids, one per minibatch, are ``ids[bounds[b]:bounds[b + 1]]``; all numbers are int64. A size that a
kernel's result has is given by the caller, who has it from the device: nothing here waits, but for
:func:`entries_of` and :func:`spgemm`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from distgnn.arrays import backend
from distgnn.local.csr_rows import row_pointers
from distgnn.local.cuda.launch import Array, blocks_for, c_type, check, launch, library

FILE = "extract.cu"
Lists = tuple[Array, Array]  # bounds, ids


class Product(NamedTuple):
    """A CSR matrix on a GPU: canonical.

    Attributes:
        indptr, indices: int64. ends: the row pointers on the host, where they are known there.
        sums: float64, the prefix sums of every row, where they are known and all values are positive.
    """

    indptr: Array
    indices: Array
    data: Array
    shape: tuple[int, int]
    ends: np.ndarray | None = None
    sums: Array = None


def row_lengths(indptr: Array, rows: Array) -> Array:
    """Count the entries of these rows."""
    check("row_lengths", indptr.shape[:1], np.int64, indptr=indptr)
    check("row_lengths", rows.shape[:1], np.int64, rows=rows)
    lengths = library(rows).empty(rows.size, np.int64)
    _launch("row_lengths", rows.size, rows.size, indptr, rows, lengths)
    return lengths


def row_keys(lists: Lists, keys: Array) -> Array:
    """Make the keys of draws, uint64, one per id, from those of the minibatches.

    See ``local.array_draw.row_keys``.
    """
    bounds, ids = lists
    _check_lists("row_keys", lists=lists)
    check("row_keys", (bounds.size - 1,), np.uint64, keys=keys)
    made = library(ids).empty(ids.size, np.uint64)
    _launch("row_keys", ids.size, ids.size, bounds.size - 1, bounds, ids, keys, made)
    return made


def entries_of(indptr: Array, rows: Array) -> tuple[Array, Array, Array]:
    """Locate the entries of some rows of a matrix, one row after another. Waits for their number.

    Returns where each stands in the matrix, the number of its row in `rows`; and where each row begins
    (len(rows) + 1).
    """
    xp = library(rows)
    offsets = row_pointers(row_lengths(indptr, rows))
    count = int(offsets[-1])
    positions, owners = xp.empty(count, np.int64), xp.empty(count, np.int64)
    _launch("row_entries", count, count, rows.size, offsets, indptr, rows, positions, owners)
    return positions, owners, offsets


def compact(places: Array, count: int) -> Array:
    """List the `count` numbers i for which places[i] < places[i + 1], which are places of their own."""
    check("compact", places.shape[:1], np.int64, places=places)
    numbers = library(places).empty(count, np.int64)
    _launch("compact", places.size - 1, places.size - 1, places, numbers)
    return numbers


def spgemm(Q: Any, A: Any, indptr: Array) -> tuple[Product, int]:
    """Compute ``Q A`` and how many multiplications it took.

    Sums are in the order of Q's entries, as by SciPy.

    Args:
        Q: (m, n); A: (n, k), both with ``indptr, indices, data, shape`` on the device, values of one type.
        indptr: A's, int64.

    Every product of an entry of Q and one of A is written down, all are sorted, and equal ones summed. Takes
    some 60 bytes for each. Waits for their number, and for the row pointers of the result.
    """
    xp, (m, k), kinds = library(Q.data), (Q.shape[0], A.shape[1]), f"{c_type(A.data)},{c_type(A.indices)}"
    tops, columns = Q.indptr.astype(np.int64, copy=False), Q.indices.astype(np.int64, copy=False)
    offsets = row_pointers(row_lengths(indptr, columns))
    count = int(offsets[-1])
    keys, products = xp.empty(count, np.int64), xp.empty(count, A.data.dtype)
    check("spgemm", columns.shape, A.data.dtype, Q=Q.data)
    factors = tops, columns, Q.data, indptr, A.indices, A.data, k
    _launch(f"expand_products<{kinds}>", count, count, m, columns.size, offsets, *factors, keys, products)
    order = xp.argsort(keys, kind="stable")
    keys = keys[order]
    sums, kept = xp.empty(count, A.data.dtype), xp.empty(count, np.uint8)
    _launch(f"sum_runs<{c_type(sums)}>", count, count, keys, order, products, sums, kept)
    places = row_pointers(kept)
    tops = places[xp.searchsorted(keys, xp.arange(m + 1, dtype=np.int64) * k)]
    ends = backend.of(tops).to_host(tops)
    firsts = compact(places, int(ends[-1]))
    return Product(tops, keys[firsts] % k, sums[firsts], (m, k), ends), count


def find_columns(
    rows: Lists, cols: Lists, entries: tuple[Array, Array], columns: Array
) -> tuple[Array, Array]:
    """Find the column of each entry among the ids of its minibatch in `cols`, which rise.

    Returns its place there, or -1; and how many were found before each entry (one more than there are
    entries).

    Args:
        entries: positions in `columns`, and numbers in `rows`, as of :func:`entries_of`.
    """
    positions, owners = entries
    count, xp = positions.size, library(positions)
    _check_lists("find_columns", rows=rows, cols=cols)
    labels, kept = xp.empty(count, np.int64), xp.empty(count, np.uint8)
    arrays = rows[0], owners, positions, columns, *cols, labels, kept
    _launch(f"find_columns<{c_type(columns)}>", count, count, rows[0].size - 1, *arrays)
    return labels, row_pointers(kept)


def keep_entries(
    rows: Lists, cols: Lists, entries: tuple[Array, Array], labelled: tuple[Array, Array], count: int,
    values: Array, scale: Array = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Keep the labels and values of the `count` entries that :func:`find_columns` labelled.

    Values are multiplied by the scale of their column (float64, one per id of `cols`), if there is one.
    """
    (positions, owners), (labels, places), xp = entries, labelled, library(values)
    check("keep_entries", cols[1].shape, np.float64, scale=scale)
    kept = xp.empty(count, np.int64), xp.empty(count, values.dtype)
    arrays = rows[0], owners, positions, labels, places, values, cols[0], scale, *kept
    _launch(f"keep_entries<{c_type(values)}>", labels.size, labels.size, rows[0].size - 1, *arrays)
    return kept


class Numbering:
    """Ids of minibatches, numbered: known ids by their places, others after them as they first occur.

    Args:
        lists, known: bounds and ids of as many minibatches; known ids are distinct. n: above all ids.

    Attributes:
        before: (ids + 1), how many are added before each id. bounds: of the known ids with those added.

    Memory: 32 to 64 bytes per id while this lives.
    """

    def __init__(self, lists: Lists, known: Lists, n: int) -> None:
        _check_lists("Numbering", lists=lists, known=known)
        (bounds, ids), (tops, seeds), xp = lists, known, library(lists[1])
        total = ids.size + seeds.size
        slots = 1 << (2 * total).bit_length()
        self.sizes = seeds.size, ids.size, bounds.size - 1, n
        self.arrays = tops, seeds, bounds, ids
        nothing = xp.full(2 * slots, -1, np.int64).view(np.uint64)
        self.table = np.uint64(slots - 1), nothing, xp.empty(ids.size, np.int64)
        _launch("enter_ids", total, *self.sizes, *self.arrays, *self.table)
        added = xp.empty(ids.size, np.uint8)
        _launch("mark_first", ids.size, *self.sizes[:2], *self.table, added)
        self.before = row_pointers(added)
        self.bounds = tops + self.before[bounds]

    def numbers(self, total: int) -> tuple[Array, Array]:
        """Return the number of every id, and the lists of known ids with those added.

        `total`: ``bounds[-1]``, the length of these lists.
        """
        xp, (seeds, count, *_) = library(self.before), self.sizes
        labels, extended = xp.empty(count, np.int64), xp.empty(total, np.int64)
        arrays = *self.arrays, *self.table, self.before, labels, extended
        _launch("number_ids", seeds + count, *self.sizes, *arrays)
        return labels, extended


def _check_lists(caller: str, **lists: Lists) -> None:
    for name, (bounds, ids) in lists.items():
        check(caller, bounds.shape[:1], np.int64, **{f"the bounds of {name}": bounds})
        check(caller, ids.shape[:1], np.int64, **{f"the ids of {name}": ids})


def _launch(name: str, threads: int, *arguments: Any) -> None:
    """Launch a kernel of a thread for each of so many; Python's integers are its 64-bit ones."""
    xp = library(next(argument for argument in arguments if hasattr(argument, "shape") and argument.shape))
    packed = (np.int64(argument) if type(argument) is int else argument for argument in arguments)
    launch(xp, FILE, name, blocks_for(threads), *packed)
