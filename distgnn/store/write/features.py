"""Features on their way into node files: read in blocks, checked, kept sparse where that is smaller.

Sparse features go the way of a matrix's entries (see ``adjacency``): into one bucket per file, on disk, then
one file after another is sorted and written as CSR. So no more than LIMITS.row_bytes of them, or
LIMITS.sorted_entries entries, are in memory at a time, in any order of the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.backend import as_array, of
from distgnn.arrays.canonical import check_real
from distgnn.errors import UserError
from distgnn.layout import block, partition
from distgnn.stages import followed
from distgnn.store.format import hdf5
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.shards import ShardGrid
from distgnn.store.source import Source
from distgnn.store.team import Team
from distgnn.store.write.adjacency import bucket_entries, merged_ranges, write_rows
from distgnn.store.write.content import Content
from distgnn.store.write.orders import Side
from distgnn.store.write.spill import Spill

Rows = Any  # of features: an array, or a csr_array


@dataclass(frozen=True)
class Sparse:
    """Facts of features that are kept sparse: entries that are not 0; whether all of them are 1."""

    nnz: int
    ones: bool


def sparse_bytes(source: Source, nnz: int) -> int:
    """Return the bytes of features in memory as CSR: pointers and column numbers have four each."""
    return 4 * source.n + nnz * (4 + source.feature_type.itemsize)


def dense_bytes(source: Source) -> int:
    """Return the bytes of features with all their zeros."""
    return source.n * source.width * source.feature_type.itemsize


def kept_bytes(source: Source, sparse: Sparse | None) -> int:
    """Return the bytes of features in the form that they are kept in."""
    return dense_bytes(source) if sparse is None else sparse_bytes(source, sparse.nnz)


def sparse_form(source: Source, team: Team) -> Sparse | None:
    """Decide whether features are kept sparse: if CSR takes at most half the bytes. Collective.

    That is a quarter of float32 numbers that are not 0, at most. Dense features of which a sample of rows has
    more than three eighths are not counted: their kind follows from LIMITS.sampled_rows rows.
    """
    n, counts, likely = source.n, np.zeros(2, np.int64), False
    with team.together():
        if 2 * sparse_bytes(source, 0) <= dense_bytes(source):
            likely = source.feature_entries is not None or _sampled(source)
        if likely:
            mine = block(partition(n, team.size), team.rank)
            read = feature_blocks(source, *mine)
            for _, rows in followed(read, "count features", mine[1] - mine[0], "nodes", _height):
                numbers = rows.data if sp.issparse(rows) else rows
                counts += np.count_nonzero(numbers), np.count_nonzero(numbers == 1)
    nnz, ones = team.total(counts).tolist()
    fits = likely and 2 * sparse_bytes(source, nnz) <= dense_bytes(source)
    return Sparse(nnz, nnz == ones) if fits else None


def _sampled(source: Source) -> bool:
    """Return whether at most three eighths of dense features are not 0, by evenly spread rows."""
    count = min(source.n, LIMITS.sampled_rows, max(1, LIMITS.row_bytes * source.n // dense_bytes(source)))
    rows = source.features(np.linspace(0, source.n - 1, count).astype(np.int64))
    if of(rows).on_device:  # where they stay, as they are
        return False
    return 8 * int(np.count_nonzero(rows)) <= 3 * rows.size


def feature_blocks(source: Source, lo: int, hi: int) -> Iterator[tuple[int, Rows]]:
    """Yield (first id, rows) of the features of ids lo..hi as they come: dense, or CSR.

    Every format reads consecutive ids fastest. Raises UserError for a number that is not finite.
    """
    entries = source.feature_entries
    row = dense_bytes(source) // source.n if entries is None else 16 * (entries // source.n + 1)
    step = max(1, min(LIMITS.row_bytes // row, LIMITS.entries))
    for start in range(lo, hi, step):
        ids = np.arange(start, min(start + step, hi))
        rows: Rows = as_array(source.features(ids)) if entries is None else source.sparse_features(ids)
        check_real("features", rows.dtype)
        rows = rows.astype(source.feature_type, copy=False)
        finite = np.isfinite(rows.data if sp.issparse(rows) else rows)
        if not finite.all():
            bad = int(finite.argmin())
            ends = rows.indptr[1:] if sp.issparse(rows) else source.width * np.arange(1, len(ids) + 1)
            node = ids[np.searchsorted(ends, bad, side="right")]
            raise UserError(f"{source.name}: node {node} has a feature that is not a finite number")
        yield start, rows


def kept_blocks(
    source: Source, lo: int, hi: int, sparse: Sparse | None, content: Content
) -> Iterator[tuple[int, Rows]]:
    """Yield blocks of features in the form that they are kept in, and add them to the `content`."""
    for start, rows in feature_blocks(source, lo, hi):
        if (sparse is not None) != sp.issparse(rows):
            rows = rows.toarray() if sparse is None else sp.csr_array(rows)
        content.add_features(start, rows)
        yield start, rows


def _height(read: tuple[int, Rows]) -> int:
    return int(read[1].shape[0])


class FeatureWriter:
    """A writer of all features into files cut by `parts`, in an order of the nodes.

    Each rank reads a share of the features; after `collect`, any rank may write any file.
    """

    def __init__(
        self, scratch: Path, parts: np.ndarray, source: Source, sparse: Sparse | None, order: Side,
        team: Team, content: Content,
    ) -> None:  # fmt: skip
        self.parts, self.source, self.sparse, self.order, self.team = parts, source, sparse, order, team
        self.content = content
        self.grid = ShardGrid(parts, np.array([0, source.width]))
        self.nnz = np.zeros(len(parts) - 1, np.int64)  # of each file that was written
        kind: Any = [("row", np.int64), ("features", source.feature_type, (source.width,))]
        if sparse is not None:
            kind = np.int64 if sparse.ones else [("key", np.int64), ("weight", source.feature_type)]
        straight = not source.width or (sparse is None and order.identity)
        self.spill = None if straight else Spill(scratch / "features", len(parts) - 1, kind, team)

    def collect(self) -> None:
        """Read all features once, from front to back, into one bucket per file. Collective.

        Reading file by file would be random access to more than fits in memory. Dense features in the order
        of the nodes need no buckets.
        """
        if self.spill is None:
            return
        with self.team.together():
            mine = block(partition(self.source.n, self.team.size), self.team.rank)
            read = kept_blocks(self.source, *mine, self.sparse, self.content)
            for start, rows in followed(read, "read features", mine[1] - mine[0], "nodes", _height):
                positions = self.order.places(start, start + rows.shape[0])
                if self.sparse is None:
                    self._add_dense(self.spill, positions, rows)
                else:
                    row = np.repeat(positions, np.diff(rows.indptr))
                    bucket_entries(self.spill, self.grid, row, rows.indices, rows.data)
        self.spill.pool()

    def _add_dense(self, spill: Spill, positions: np.ndarray, features: np.ndarray) -> None:
        buckets = np.searchsorted(self.parts, positions, side="right") - 1
        records = np.empty(len(features), spill.dtype)
        records["row"], records["features"] = positions - self.parts[buckets], features
        spill.add(buckets, records)

    def write(self, file: Any, index: int) -> None:
        """Write the features of one file."""
        lo, hi = block(self.parts, index)
        shape = hi - lo, self.source.width
        if self.sparse is not None:
            self._write_sparse(file.create_group("features"), index, shape)
            return
        features = hdf5.create(file, "features", shape, self.source.feature_type, len(self.nnz))
        if self.spill is not None:
            features[...] = _assembled(self.spill, index, shape)
            return
        for start, rows in kept_blocks(self.source, lo, hi, None, self.content):
            features[start - lo : start - lo + len(rows)] = rows

    def _write_sparse(self, group: Any, index: int, shape: tuple[int, int]) -> None:
        assert self.spill is not None
        expected, kind = int(self.spill.lengths[index]), np.min_scalar_type(shape[1] - 1)
        merged, take = merged_ranges(self.spill, index, shape[0], self.grid.bits), lambda run, some: None
        if self.spill.dtype.names is not None:
            values = hdf5.Growing(group, "values", self.source.feature_type, expected, len(self.nnz))
            take = lambda run, some: values.append(some["weight"])  # noqa: E731
        self.nnz[index] = write_rows(
            group, merged, shape, self.grid.bits, expected, kind, take, len(self.nnz)
        )
        self.spill.drop(index)

    def close(self) -> None:
        """Free what is left. Collective."""
        if self.spill is not None:
            self.spill.close()
        self.team.total(self.nnz)


def _assembled(spill: Spill, index: int, shape: tuple[int, int]) -> np.ndarray:
    """Return the features of one row file, in order."""
    features = np.empty(shape, spill.dtype["features"].base)
    for rows in spill.read(index, max(1, LIMITS.row_bytes // spill.dtype.itemsize)):
        features[rows["row"]] = rows["features"]
    spill.drop(index)
    return features
