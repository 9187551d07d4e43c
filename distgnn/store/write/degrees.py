"""The degrees of a matrix, counted while its shards are written, and the scaling that follows from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.arrays.csr import index_type
from distgnn.errors import ArgumentError
from distgnn.layout import block, partition
from distgnn.local.entries import scaled
from distgnn.store.format.shards import ShardGrid
from distgnn.store.team import Team
from distgnn.store.write.content import Content
from distgnn.store.write.cut import CutArray, fetch, own, pieces
from distgnn.store.write.orders import Version


@dataclass(frozen=True)
class Factors:
    """Factors of a shard's entries by row and, if any, by column; float64.

    Attributes:
        dtype: of the products. refuse: raises for an entry, its row, column, weight and product.
    """

    left: np.ndarray
    right: np.ndarray | None
    dtype: Any
    refuse: Callable[[int, int, Any, Any], object]

    def __call__(
        self, weights: np.ndarray | None, first: int, counts: np.ndarray, cols: np.ndarray
    ) -> np.ndarray:
        """Scale the weights, None for ones, of so many entries in each row from the ``first`` on.

        ArgumentError: the dtype cannot hold one then.
        """
        left = self.left[first : first + len(counts)]
        with np.errstate(over="ignore", invalid="ignore"):
            values = scaled(counts, cols, left, self.right, weights, self.dtype)
        if not (good := np.isfinite(values)).all():
            k = int(np.argmin(good))
            row = first + int(np.searchsorted(np.cumsum(counts), k, side="right"))
            self.refuse(row, int(cols[k]), 1.0 if weights is None else weights[k], values[k])
        return values


class Degrees:
    """Row sums and numbers of neighbours, without the node itself, of a version of the matrix.

    Sums of weights are rounded, so the shards of a row are added from left to right. All numbers by node are
    cut by rows of shards, and lie in files in `scratch`, or in memory without it. The entries are added to
    the graph's `content` too. Collective.
    """

    def __init__(
        self, version: Version, grid: ShardGrid, team: Team, scratch: Path | None, content: Content
    ) -> None:  # fmt: skip
        self.version, self.grid, self.team, self.content = version, grid, team, content
        self.scratch, columns = scratch, range(grid.shape[1])
        self._kind = index_type(int(grid.rows[-1]))
        self._parts = [(self._cut(f"sums-{j}"), self._cut(f"neighbours-{j}", self._kind)) for j in columns]
        self.sums, self.neighbours = self._cut("sums"), self._cut("neighbours", self._kind)
        self._twins = version.twins(self._path("twins"))

    def begin(self, i: int, j: int) -> None:
        """Begin to count shard (i, j)."""
        self.shard, rows, cols = (i, j), block(self.grid.rows, i), block(self.grid.cols, j)
        self._sums, self._others = np.zeros(rows[1] - rows[0]), np.zeros(rows[1] - rows[0], self._kind)
        self._ids = self._nodes(rows, cols)

    def count(
        self, first: int, counts: np.ndarray, cols: np.ndarray, weights: np.ndarray | None
    ) -> None:  # fmt: skip
        """Count entries of the shard: how many each row has, from the `first` on, their columns, weights."""
        rows, (row_ids, col_ids) = slice(first, first + len(counts)), self._ids
        if weights is None:
            self._sums[rows] += counts
        else:
            at = np.repeat(np.arange(len(counts)), counts)
            self._sums[rows] += np.bincount(at, weights, len(counts))
        self._others[rows] += counts
        self._others[rows] -= self.content.add_entries(counts, cols, (row_ids[rows], col_ids), weights)

    def end(self) -> None:
        """Keep the sums of a shard that is counted."""
        i, j = self.shard
        for array, counts in zip(self._parts[j], (self._sums, self._others), strict=True):
            array.write(i, counts)
        del self._sums, self._others, self._ids

    def collect(self) -> None:
        """Add up the counts of all ranks. Collective."""
        facts = []
        with self.team.together():
            for i in self.team.deal(np.diff(self.grid.rows)):
                rows = block(self.grid.rows, i)
                sums, others = np.zeros(rows[1] - rows[0]), np.zeros(rows[1] - rows[0], self._kind)
                for parts in self._parts:
                    for total, array in zip((sums, others), parts, strict=True):
                        total += array.read(*rows)
                        array.drop(i)
                self.sums.write(i, sums)
                self.neighbours.write(i, others)
                if len(sums):
                    isolated = np.count_nonzero(others == 0)
                    facts.append((sums.min(), sums.max(), others.min(), others.max(), others.sum(), isolated))
        every = np.array([some for rank in self.team.gather_objects(facts) for some in rank])
        self.least, self.most = every[:, 0].min(), every[:, 1].max()
        counts = every[:, 2:].astype(np.int64)
        mean = counts[:, 2].sum() / self.grid.rows[-1]
        self.statistics: dict[str, Any] = {
            "min": counts[:, 0].min(), "mean": mean, "max": counts[:, 1].max(), "isolated": counts[:, 3].sum()
        }  # fmt: skip

    def by_id(self) -> np.ndarray:
        """Return the neighbours of all nodes, int64 (n,)."""
        n = int(self.grid.rows[-1])
        result = np.empty(n, np.int64)
        for lo, hi in pieces(0, n):
            result[self.version.rows.ids(lo, hi)] = self.neighbours.read(lo, hi)
        return result

    def scaling(self, normalize: str, dtype: Any) -> Callable[[int, int], Factors] | None:
        """Return a function that gives the scale of shard (i, j) in this normalisation, or None for "none".

        Raises ArgumentError for a node whose weights sum to less than zero or to more than float64 holds.
        Collective.
        """
        if normalize == "none":
            return None
        if np.isinf([self.least, self.most]).any():
            raise ArgumentError("normalize", normalize, "a node's edge weights sum to inf; take smaller ones")
        if self.least < 0:
            problem = f"a node's edge weights sum to {self.least:g}; negative weights need normalize=none"
            raise ArgumentError("normalize", normalize, problem)
        rows = partial(_inverse, root=normalize == "gcn")
        cols = None if normalize == "row" else self.sums if self._twins is None else self._of_twins()

        def of_shard(i: int, j: int) -> Factors:
            ends = block(self.grid.rows, i), block(self.grid.cols, j)
            left = rows(self.sums.read(*ends[0]))
            same = cols is self.sums and ends[0] == ends[1]
            right = None if cols is None else left if same else rows(cols.read(*ends[1]))
            return Factors(left, right, dtype, partial(self._refuse, ends))

        return of_shard

    def _of_twins(self) -> CutArray:
        """Return the row sums of the nodes at each column. Collective."""
        n, team = int(self.grid.rows[-1]), self.team
        assert self._twins is not None
        bounds, (first, last) = partition(n, team.size), own(team, n)
        with team.together():
            sums, places = self.sums.read(first, last), self._twins.read(first, last)
        parts, most = [np.empty(0)], int(np.diff(bounds).max())
        parts += [fetch(team, n, sums, places[lo:hi]) for lo, hi in pieces(0, most)]
        of_cols = CutArray(bounds, np.float64, self._path("column-sums"))
        with team.together():
            of_cols.write(team.rank, np.concatenate(parts))
        return of_cols

    def _refuse(
        self, ends: tuple[tuple[int, int], tuple[int, int]], row: int, col: int, weight: Any, value: Any
    ) -> None:
        (dst,), (src,) = self._nodes(
            *((lo + at, lo + at + 1) for (lo, _), at in zip(ends, (row, col), strict=True))
        )
        edge = f"the edge from node {src} to node {dst} has weight {weight:g}"
        advice = "weights of a node that sum to next to nothing cannot be scaled; take larger ones"
        raise ArgumentError("weights", True, f"{edge}, and {value} when scaled; {advice}")

    def _nodes(self, rows: tuple[int, int], cols: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        ids = self.version.rows.ids(*rows)
        return ids, ids if self.version.alike and rows == cols else self.version.cols.ids(*cols)

    def _cut(self, name: str, dtype: Any = np.float64) -> CutArray:
        return CutArray(self.grid.rows, dtype, self._path(name))

    def _path(self, name: str) -> Path | None:
        return None if self.scratch is None else self.scratch / name


def _inverse(sums: np.ndarray, root: bool) -> np.ndarray:
    """Turn the sums, of 0 or more, into 1 over them or their roots, and 0 for 0, in place."""
    if root:
        np.sqrt(sums, out=sums)
    with np.errstate(over="ignore"):
        return np.divide(1.0, sums, out=sums, where=sums > 0)
