"""The degrees of a matrix, counted while its shards are written, and the scaling that follows from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError
from distgnn.partition.orders import Version
from distgnn.store.format.shards import ShardGrid
from distgnn.store.team import Team
from distgnn.store.write.content import Content

Scale = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # of weights at these rows and columns


class Degrees:
    """Row sums and numbers of neighbours, without the node itself, of a version of the matrix.

    Sums of weights are rounded, so the shards of a row are added from left to right; a team, whose ranks
    write them at the same time, does this through files in `scratch` (None without weights). The entries are
    added to the graph's `content` too.
    """

    def __init__(
        self, n: int, version: Version, team: Team, scratch: Path | None, content: Content
    ) -> None:  # fmt: skip
        self.version, self.team, self.content = version, team, content
        self.scratch = scratch if team.size > 1 else None
        self.sums = np.zeros(n)
        self.neighbours = np.zeros(n, np.int64)

    def begin(self, i: int, j: int, rows: tuple[int, int]) -> None:
        """Begin to count shard (i, j), which has these rows. Shards further left come first."""
        self.shard, self.rows = (i, j), rows
        self.partial = np.zeros(rows[1] - rows[0])

    def count(self, rows: np.ndarray, cols: np.ndarray, weights: np.ndarray | None) -> None:
        """Count entries at these positions, the rows ascending."""
        lo, hi = rows[0], rows[-1] + 1
        self.partial[lo - self.rows[0] : hi - self.rows[0]] += np.bincount(rows - lo, weights)
        self.content.add_entries(self.version.rows.ids(rows), self.version.cols.ids(cols), weights)
        others = rows != self._rows_of(cols)
        self.neighbours[lo:hi] += np.bincount(rows - lo, others).astype(np.int64)

    def end(self) -> None:
        """Add the sums of a shard that is counted."""
        if self.scratch is None:
            self.sums[slice(*self.rows)] += self.partial
        else:
            self._file(*self.shard).write_bytes(self.partial.data)

    def collect(self, grid: ShardGrid) -> None:
        """Add up the counts of all ranks. Collective."""
        if self.scratch is not None:
            with self.team.together():
                for i in self.team.deal(np.diff(grid.rows)):
                    for path in [self._file(i, j) for j in range(grid.shape[1])]:
                        self.sums[grid.rows[i] : grid.rows[i + 1]] += np.fromfile(path)
                        path.unlink()
        self.team.total(self.sums)
        self.team.total(self.neighbours)

    def scaling(self, normalize: str, dtype: Any) -> Scale | None:
        """Return the function that scales weights by this normalisation, or None for "none".

        Raises ArgumentError for a node whose weights sum to less than zero or to more than float64 holds.
        """
        if normalize == "none":
            return None
        sums = self.sums
        if np.isinf(sums).any():
            raise ArgumentError("normalize", normalize, "a node's edge weights sum to inf; take smaller ones")
        if np.any(sums < 0):
            problem = f"a node's edge weights sum to {sums.min():g}; negative weights need normalize=none"
            raise ArgumentError("normalize", normalize, problem)
        if normalize == "row":
            with np.errstate(over="ignore"):
                inverse = np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)
            return lambda weights, rows, cols: self._finite(weights, inverse[rows], rows, cols, dtype)
        root = np.divide(1.0, np.sqrt(sums), out=np.zeros_like(sums), where=sums > 0)
        of_cols = root if self.version.alike else root[self._rows_of(np.arange(len(root)))]

        def scaled(weights: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
            with np.errstate(over="ignore"):
                factors = root[rows] * of_cols[cols]  # first: the same for (i, j) and (j, i)
            return self._finite(weights, factors, rows, cols, dtype)

        return scaled

    def _finite(
        self, weights: np.ndarray, factors: np.ndarray, rows: np.ndarray, cols: np.ndarray, dtype: Any
    ) -> np.ndarray:  # fmt: skip
        """Scale weights; ArgumentError for one that the dtype cannot hold then."""
        with np.errstate(over="ignore", invalid="ignore"):
            values = (weights * factors).astype(dtype)
        if not (good := np.isfinite(values)).all():
            k = int(np.argmin(good))
            src, dst = self.version.cols.ids(cols[k : k + 1])[0], self.version.rows.ids(rows[k : k + 1])[0]
            edge = f"the edge from node {src} to node {dst} has weight {weights[k]:g}"
            advice = "weights of a node that sum to next to nothing cannot be scaled; take larger ones"
            raise ArgumentError("weights", True, f"{edge}, and {values[k]} when scaled; {advice}")
        return values

    def statistics(self) -> dict[str, Any]:
        """Return minimum, mean and maximum of the numbers of neighbours, for the manifest."""
        d = self.neighbours
        return {"min": d.min(), "mean": d.mean(), "max": d.max(), "isolated": np.count_nonzero(d == 0)}

    def _rows_of(self, cols: np.ndarray) -> np.ndarray:
        """Return the row positions of the nodes at these columns."""
        return cols if self.version.alike else self.version.rows.positions(self.version.cols.ids(cols))

    def _file(self, i: int, j: int) -> Path:
        assert self.scratch is not None
        return self.scratch / f"sums-{i:04d}-{j:04d}"
