"""Entries of a sparse matrix on their way into a file: keys, their order, hashes and scales.

A record begins with a key, int64 and 0 or more. It is the key alone, or a key and a weight, float32 or
float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from distgnn import rng
from distgnn.arrays.kernels import Kernels, KernelTable
from distgnn.local import host

PIECE = 1 << 14  # numbers at a time in passes over arrays, which stay in cache


class Cells(NamedTuple):
    """The blocks of positions 0..stop-1, two of them at most in each cell of 2**shift positions.

    Attributes:
        first: int64, the first block in each cell; next: int64, where the block after it begins.
    """

    first: np.ndarray
    next: np.ndarray
    shift: int
    stop: int

    def of(self, positions: np.ndarray) -> np.ndarray:
        """Return the block of each position, int64."""
        cells = positions >> self.shift
        blocks: np.ndarray = self.first.take(cells)
        blocks += positions >= self.next.take(cells)
        return blocks


def add_parts(out: np.ndarray, positions: np.ndarray, cells: Cells, shifts: np.ndarray, bits: int) -> None:
    """Add to ``out``, int64, the positions shifted by ``bits``, and what ``shifts`` has for their blocks."""
    KERNELS.kernel("parts", positions)(out, positions, cells, shifts, bits)


def keys_of(records: np.ndarray) -> np.ndarray:
    """Return the keys of records, in their place."""
    return records if records.dtype.names is None else records["key"]


def sorted_records(records: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return records by ascending bits low..high-1 of their keys, stably; what was given is lost."""
    return KERNELS.kernel("sort", keys_of(records))(records, low, high)


def merged_records(records: np.ndarray) -> np.ndarray:
    """Return records by ascending keys, of equal keys the one with the largest weight; the given are lost."""
    return KERNELS.kernel("merge", keys_of(records))(records)


def rows_of(keys: np.ndarray, bits: int, kind: Any) -> tuple[int, np.ndarray, np.ndarray]:
    """Take apart ascending keys, at least one, ``row << bits | column``.

    Returns the first row, how many keys each row from there has, int64, and the columns, of a dtype.
    """
    wanted = np.empty(len(keys), kind)
    first, rows = int(keys[0] >> bits), int((keys[-1] >> bits) - (keys[0] >> bits)) + 1
    return first, KERNELS.kernel("rows", wanted)(keys, bits, first, rows, wanted), wanted


def hashed(
    counts: np.ndarray, cols: np.ndarray, ids: tuple[np.ndarray, np.ndarray], weights: np.ndarray | None,
    n: int, key: int, both: bool,
) -> tuple[int, int, np.ndarray]:  # fmt: skip
    """Hash entries of an (n, n) matrix, in rows of so many, by the ids of rows and columns.

    weights: float64, hashed too, or None. Returns the sum of the hashes modulo 2**64; with ``both`` that of
    the transpose; and the entries of each row that are on the diagonal.
    """
    return KERNELS.kernel("hash", cols)(counts, cols, ids, weights, n, key, both)


def scaled(
    counts: np.ndarray, cols: np.ndarray, left: np.ndarray, right: np.ndarray | None,
    weights: np.ndarray | None, dtype: Any,
) -> np.ndarray:  # fmt: skip
    """Return the weights of entries, or ones, times what their rows have and, if given, their columns.

    float64, rounded to the dtype at last.
    """
    out = np.empty(len(cols), dtype)
    KERNELS.kernel("scale", cols)(counts.astype(np.int64, copy=False), cols, left, right, weights, out)
    return out


def _parts_compiled(
    out: np.ndarray, positions: np.ndarray, cells: Cells, shifts: np.ndarray, bits: int
) -> None:
    how = {"shift": cells.shift, "stop": cells.stop, "bits": bits}
    host.built().entry_parts(np.ascontiguousarray(positions), cells.first, cells.next, shifts, out, **how)


def _parts_numpy(out: np.ndarray, positions: np.ndarray, cells: Cells, shifts: np.ndarray, bits: int) -> None:
    for lo in range(0, len(positions), PIECE):
        some = positions[lo : lo + PIECE].astype(np.int64, copy=False)
        out[lo : lo + PIECE] += (some << bits) + shifts.take(cells.of(some))


def _sorted_compiled(records: np.ndarray, low: int, high: int) -> np.ndarray:
    room, size = np.empty_like(records), records.dtype.itemsize
    arrays = records.view(np.uint8), room.view(np.uint8)
    return room if host.built().entry_sort(*arrays, size=size, low=low, high=high) else records


def _sorted_numpy(records: np.ndarray, low: int, high: int) -> np.ndarray:
    digits = keys_of(records) >> low & (1 << high - low) - 1
    narrow = digits.astype(np.uint16) if high - low <= 16 else digits  # NumPy sorts 16 bits by radix
    return records[np.argsort(narrow, kind="stable")]


def _merged_compiled(records: np.ndarray) -> np.ndarray:
    records = _sorted_compiled(records, 0, int(keys_of(records).max(initial=0)).bit_length())
    left = host.built().entry_merge(records.view(np.uint8), size=records.dtype.itemsize)
    return records[:left]


def _merged_numpy(records: np.ndarray) -> np.ndarray:
    weighted = records.dtype.names is not None
    records = records[np.argsort(keys_of(records).copy())] if weighted else np.sort(records)
    keys, first = keys_of(records), np.ones(len(records), bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    merged = records[first]
    if weighted and len(records):
        merged["weight"] = np.maximum.reduceat(records["weight"], np.flatnonzero(first))
    return merged


def _rows_compiled(keys: np.ndarray, bits: int, first: int, rows: int, cols: np.ndarray) -> np.ndarray:
    counts = np.zeros(rows, np.int64)
    host.built().entry_rows(np.ascontiguousarray(keys), counts, cols, first=first, bits=bits)
    return counts


def _rows_numpy(keys: np.ndarray, bits: int, first: int, rows: int, cols: np.ndarray) -> np.ndarray:
    cols[:] = keys & (1 << bits) - 1
    return np.bincount((keys >> bits) - first, minlength=rows)


def _hash_compiled(counts: Any, cols: Any, ids: Any, weights: Any, n: int, key: int, both: bool) -> Any:
    loops = np.empty_like(counts)
    return *host.built().entry_hash(counts, cols, *ids, weights, loops, n=n, key=key, both=both), loops


def _hash_numpy(counts: Any, cols: Any, ids: Any, weights: Any, n: int, key: int, both: bool) -> Any:
    heads, tails = np.repeat(ids[0], counts), ids[1].take(cols)
    rows = np.searchsorted(np.cumsum(counts), np.flatnonzero(heads == tails), side="right")
    total = np.zeros(2, np.uint64)  # NumPy warns if a scalar wraps
    for lo in range(0, len(cols), PIECE):
        some = slice(lo, lo + PIECE)
        for side, (row, col) in enumerate(((heads, tails), (tails, heads))[: 1 + both]):
            words = rng.hashes(key, row[some].astype(np.int64) * n + col[some])
            if weights is not None:
                words = rng.splitmix64(words ^ weights[some].view(np.uint64))
            total[side : side + 1] += words.sum(dtype=np.uint64)
    return *total.tolist(), np.bincount(rows, minlength=len(counts))


def _scale_compiled(counts: Any, cols: Any, left: Any, right: Any, weights: Any, out: np.ndarray) -> None:
    host.built().entry_scale(counts, cols, left, right, weights, out)


def _scale_numpy(counts: Any, cols: Any, left: Any, right: Any, weights: Any, out: np.ndarray) -> None:
    factors = np.repeat(left, counts)
    for lo in range(0, len(cols), PIECE):
        some = slice(lo, lo + PIECE)
        if right is not None:
            factors[some] *= right[cols[some].astype(np.int64, copy=False)]  # of (i, j) as of (j, i)
        out[some] = factors[some] if weights is None else weights[some] * factors[some]


KERNELS = KernelTable(
    numpy=[
        Kernels(
            {"parts": _parts_compiled, "sort": _sorted_compiled, "merge": _merged_compiled,
             "rows": _rows_compiled, "hash": _hash_compiled, "scale": _scale_compiled},
            types="ilq", usable=host.usable,
        ),
        Kernels({"parts": _parts_numpy, "sort": _sorted_numpy, "merge": _merged_numpy,
                 "rows": _rows_numpy, "hash": _hash_numpy, "scale": _scale_numpy}),
    ],
)  # fmt: skip
