"""A window of a sharded matrix, put together in place (Plexus section 5.4, parallel data loading).

The tiles of one row of shards in a window are a *strip*. Its pointers say where each entry will stand, so
entries go from the file straight to their place in the block, LIMITS.window_entries at a time: shards are not
merged in memory, and a block on a GPU never exists on the host. Ranks that want the same window take turns at
its shards and broadcast what they read, so that each shard is read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from distgnn.arrays.backend import Backend
from distgnn.arrays.blocking import bounded
from distgnn.arrays.csr import CSR
from distgnn.errors import UserError
from distgnn.layout import Range
from distgnn.stages import Stage, stage
from distgnn.store.format import hdf5
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.members import Members
from distgnn.store.read.node_files import INDICES, all_finite
from distgnn.store.team import Alone

if TYPE_CHECKING:
    from distgnn.comm.group import Comm

Entries = tuple[np.ndarray, np.ndarray]
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass
class Tile:
    """A window's share of one shard file."""

    members: Members
    name: str  # the file's name
    shape: tuple[int, int]  # the shard's shape according to the manifest, as is nnz
    nnz: int
    dtype: np.dtype  # of its values in the file
    rows: Range  # wanted rows, local to the shard, as are the columns
    cols: Range
    shift: int  # added to a column number local to the shard to make it local to the window
    group: str = ""  # of the arrays in the file, with a slash
    kinds: tuple[Any, ...] = INDICES  # of column numbers
    ones: bool = False  # all values are 1, and none are in the file
    pointers: np.ndarray | None = None  # begin and end of the rows in the file, after `count`
    counts: np.ndarray | None = None  # the number of their entries in `cols`

    @property
    def all_columns(self) -> bool:
        """True if the tile is as wide as its shard."""
        return self.cols == (0, self.shape[1])

    @property
    def whole(self) -> bool:
        """True if the tile is all of the shard."""
        return self.all_columns and self.rows == (0, self.shape[0])

    def count(self) -> np.ndarray:
        """Return the entries per row, read once.

        If the tile has not all columns, this reads all column numbers of the rows.
        """
        if self.counts is None:
            with self.members.open(self.name) as file:
                indptr = file.array(f"{self.group}indptr", (self.shape[0] + 1,), *INDICES)
                indices = file.array(f"{self.group}indices", (self.nnz,), *self.kinds)
                pointers = hdf5.read(indptr, (self.rows[0], self.rows[1] + 1))
                self._check_pointers(pointers)
                self.counts = np.diff(pointers) if self.all_columns else self._count_inside(indices, pointers)
                self.pointers = pointers
        return self.counts

    def read(self, ranges: list[Range], kind: np.dtype) -> Iterator[Entries]:
        """Yield (columns, values) of one range of rows after another, columns local to the window.

        Columns have the dtype ``kind``. The datasets stay open in between: HDF5 keeps a chunk in which two
        ranges meet.
        """
        counts, pointers = self.count(), self.pointers
        assert pointers is not None
        with self.members.open(self.name) as file:
            shape = (self.nnz,)
            datasets = [file.array(f"{self.group}indices", shape, *self.kinds)]
            datasets += [] if self.ones else [file.array(f"{self.group}values", shape, self.dtype)]
            for dataset in datasets:
                hdf5.charge(dataset, (int(pointers[0]), int(pointers[-1])))
            for lo, hi in ranges:
                # bounded: the file may have many more entries of these rows than are wanted
                pieces = [self._entries(datasets, rows, kind) for rows in _parts(pointers[lo : hi + 1])]
                merged = pieces[0] if len(pieces) == 1 else map(np.concatenate, zip(*pieces, strict=True))
                columns, values = merged
                if len(columns) != counts[lo:hi].sum():
                    raise self._damaged("changed while it was read")
                yield columns, values

    def _count_inside(self, indices: h5py.Dataset, pointers: np.ndarray) -> np.ndarray:
        hdf5.charge(indices, (int(pointers[0]), int(pointers[-1])))
        counts = np.empty_like(pointers[1:])
        for lo, hi in bounded(np.diff(pointers), LIMITS.window_entries):
            columns = self._columns(indices, pointers[lo : hi + 1])
            before = np.concatenate([[0], np.cumsum(self._inside(columns))])
            counts[lo:hi] = np.diff(before[pointers[lo : hi + 1] - pointers[lo]])
        return counts

    def _entries(self, datasets: list[h5py.Dataset], pointers: np.ndarray, kind: np.dtype) -> Entries:
        columns = self._columns(datasets[0], pointers)
        numbers = np.ones(len(columns), self.dtype)
        if not self.ones:
            numbers = datasets[1][pointers[0] : pointers[-1]]
        if not all_finite(numbers):
            raise self._damaged("values has a number that is not finite; expected none")
        if not self.all_columns:
            inside = self._inside(columns)
            columns, numbers = columns[inside], numbers[inside]
        return np.add(columns, self.shift, dtype=kind), numbers

    def _columns(self, indices: h5py.Dataset, pointers: np.ndarray) -> np.ndarray:
        """Read column numbers of the rows between these pointers; raise UserError unless each row's rise."""
        columns = indices[pointers[0] : pointers[-1]]
        if len(columns) and not 0 <= columns.min() <= columns.max() < self.shape[1]:
            extent = f"column numbers {columns.min()}..{columns.max()}"
            raise self._damaged(f"{extent} in a shard of {self.shape[1]} columns")
        rising, starts = columns[1:] > columns[:-1], pointers[1:-1] - pointers[0]
        rising[starts[(starts > 0) & (starts < len(columns))] - 1] = True  # from one row to the next
        if not rising.all():
            raise self._damaged("the column numbers of a row are not ascending, or one is repeated")
        return columns

    def _inside(self, columns: np.ndarray) -> np.ndarray:
        return (columns >= self.cols[0]) & (columns < self.cols[1])

    def _check_pointers(self, pointers: np.ndarray) -> None:
        first, last = int(pointers[0]), int(pointers[-1])
        begin = first == 0 if self.rows[0] == 0 else first >= 0
        end = last == self.nnz if self.rows[1] == self.shape[0] else last <= self.nnz
        if not (begin and end) or np.any(pointers[1:] < pointers[:-1]):
            raise self._damaged(f"its row pointers do not rise from 0 to {self.nnz}")

    def _damaged(self, reason: str) -> UserError:
        return UserError(f"{self.members.root / self.name}: {reason}; copy it or make it again")


def _parts(pointers: np.ndarray) -> list[np.ndarray]:
    """Cut the pointers of rows into those of some rows with about LIMITS.window_entries at a time."""
    ranges = bounded(np.diff(pointers), LIMITS.window_entries)
    return [pointers[lo : hi + 1] for lo, hi in ranges]


Strip = tuple[int, list[Tile]]  # number of rows, and tiles from left to right


def assemble(
    strips: list[Strip], width: int, dtype: Any, backend: Backend, readers: Comm | Alone,
    purpose: str = "adjacency",
) -> CSR:  # fmt: skip
    """Assemble the window of these strips on ``backend``'s device. Collective over ``readers``.

    All ``readers`` get the same window. Every tile is read once in all; the column numbers of a tile without
    all columns are read twice. Memory: the block, and on the host the pointers of a strip and
    LIMITS.window_entries entries per reader. Raises UserError for a damaged file, on all ``readers``.
    """
    tiles = [tile for _, strip in strips for tile in strip]
    with readers.together():
        mine = sum(int(tile.count().sum()) for tile in tiles[readers.rank :: readers.size] if not tile.whole)
    nnz = sum(readers.gather_objects(mine)) + sum(tile.nnz for tile in tiles if tile.whole)
    shape = sum(height for height, _ in strips), width
    with readers.together():
        (block,) = backend.once(lambda: [CSR.empty(shape, nnz, dtype, backend, purpose)])
    with stage("load features" if purpose == "features" else "load matrix", nnz, "entries") as loaded:
        assembly = _Assembly(block, backend, readers, loaded)
        for height, strip in strips:
            assembly.add(height, strip)
    return block


@dataclass
class _Job:
    """A tile on its way into the block."""

    tile: Tile
    root: int  # the reader that reads the tile
    begins: np.ndarray  # the places in the block where its rows begin
    counts: np.ndarray  # entries of each row
    ranges: list[Range]  # ranges of rows that travel together


class _Assembly:
    """A block that is filled strip by strip. Rank k modulo the number of readers reads tile k."""

    def __init__(self, block: CSR, backend: Backend, readers: Comm | Alone, loaded: Stage) -> None:
        self.block, self.backend, self.readers, self.loaded = block, backend, readers, loaded
        self.kind = np.dtype(block.indices.dtype)
        self.tiles = self.rows = self.nnz = 0  # done so far
        block.indptr[:1] = 0

    def add(self, height: int, tiles: list[Tile]) -> None:
        """Read the next strip and put its entries into their places."""
        roots = [(self.tiles + k) % self.readers.size for k in range(len(tiles))]
        counts = self._count(height, tiles, roots)
        totals = counts.sum(axis=0, dtype=np.int64)
        begins = self.nnz + np.cumsum(totals) - totals
        self.nnz += int(totals.sum())
        pointers = self.block.indptr[self.rows + 1 : self.rows + 1 + height]
        self.backend.copy_in((begins + totals).astype(self.kind), pointers)
        jobs = []
        for tile, root, count in zip(tiles, roots, counts, strict=True):
            jobs.append(_Job(tile, root, begins, count, bounded(count, LIMITS.window_entries)))
            begins = begins + count
            if len(jobs) == self.readers.size or tile is tiles[-1]:  # every reader has at most one of them
                self._fill(jobs)
                jobs = []
        self.tiles, self.rows = self.tiles + len(roots), self.rows + height

    def _count(self, height: int, tiles: list[Tile], roots: list[int]) -> np.ndarray:
        """Count the entries of each tile and row, (tiles, rows), on all readers."""
        with self.readers.together():
            counts = np.empty((len(roots), height), self.kind)
            for k, root in enumerate(roots):
                if root == self.readers.rank:
                    counts[k] = tiles[k].count()
        for k, root in enumerate(roots):
            self.readers.bcast(counts[k], root, matrix="adjacency")
        return counts

    def _fill(self, jobs: list[_Job]) -> None:
        """Read one tile per reader, range by range; every reader broadcasts what it reads.

        Readers that share the block's memory need not.
        """
        mine = next((job for job in jobs if job.root == self.readers.rank), None)
        ranges = iter(()) if mine is None else mine.tile.read(mine.ranges, self.kind)
        arrived: list[Rows] = []
        travelling = jobs if self.backend.holders == 1 else [job for job in jobs if job is mine]
        for turn in range(max(len(job.ranges) for job in jobs)):
            with self.readers.together():
                self._place(arrived)
                entries = next(ranges, None)
            arrived = [self._exchange(job, turn, entries) for job in travelling if turn < len(job.ranges)]
        with self.readers.together():
            self._place(arrived)
        if mine is not None:
            mine.tile.pointers = mine.tile.counts = None  # frees them

    def _exchange(self, job: _Job, turn: int, entries: Any) -> Rows:
        """Broadcast a range of a tile's rows; return where each begins, its entries, columns and values."""
        rows = slice(*job.ranges[turn])
        counts = job.counts[rows]
        if job.root == self.readers.rank:
            columns, values = entries[0], entries[1].astype(self.block.dtype, copy=False)
        else:
            columns, values = (np.empty(int(counts.sum()), kind) for kind in (self.kind, self.block.dtype))
        for array in (columns, values) if self.backend.holders == 1 else ():
            self.readers.bcast(array, job.root, matrix="adjacency")
        return job.begins[rows], counts, columns, values

    def _place(self, arrived: list[Rows]) -> None:
        """Put rows of tiles where they begin in the block; empty the list to free its memory."""
        while arrived:
            begins, counts, columns, values = arrived.pop()
            self.loaded(len(columns))
            if not len(columns):
                continue
            first, last = int(begins[0]), int(begins[-1] + counts[-1])
            if last - first == len(columns):  # nothing comes in between
                self.backend.copy_in(columns, self.block.indices[first:last])
                self.backend.copy_in(values, self.block.data[first:last])
            else:
                shifts = begins + counts - np.cumsum(counts, dtype=np.int64)
                where = self.backend.asarray(np.repeat(shifts, counts) + np.arange(len(columns)))
                self.block.indices[where] = self.backend.asarray(columns)
                self.block.data[where] = self.backend.asarray(values)
