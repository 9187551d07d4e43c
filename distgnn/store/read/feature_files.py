"""Sparse features in the files of the nodes' rows: windows and rows of a CSR matrix that is cut by rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays import backend as backends
from distgnn.arrays.backend import Backend
from distgnn.arrays.csr import CSR
from distgnn.layout import Range, block
from distgnn.store.format.facts import check_types
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.members import Members
from distgnn.store.format.shards import overlaps
from distgnn.store.read.windows import Strip, Tile, assemble
from distgnn.store.team import Alone


class FeatureFiles:
    """Sparse features, n x width, in files that a partition vector cuts.

    Args:
        facts: the manifest's entry ``sparse_features``; entries: their number in each file.
        dtype: of the values.

    Raises:
        ValueError: facts that do not fit each other.
    """

    def __init__(
        self, members: Members, partition: np.ndarray, files: Sequence[str], width: int, dtype: np.dtype,
        facts: Mapping[str, Any], entries: Sequence[int],
    ) -> None:  # fmt: skip
        check_types(facts, {"nnz": (int,), "ones": (bool,)}, "sparse_features.")
        self.members, self.partition, self.files, self.dtype = members, partition, files, dtype
        self.shape, self.nnz, self.ones = (int(partition[-1]), width), int(facts["nnz"]), bool(facts["ones"])
        self.entries = [int(count) for count in entries]
        if len(self.entries) != len(files) or min(self.entries) < 0 or sum(self.entries) != self.nnz:
            raise ValueError(f"{self.nnz} entries of features, but {sum(self.entries)} in the files")

    def block(self, rows: Range, cols: Range, dtype: Any, backend: Backend) -> CSR:
        """Read these rows and columns onto ``backend``'s device. Local to a rank."""
        strips: list[Strip] = []
        for k, part in overlaps(self.partition, rows):
            tiles = [self._tile(k, part, cols)] if cols[0] < cols[1] else []
            strips.append((part[1] - part[0], tiles))
        return assemble(strips, cols[1] - cols[0], dtype, backend, Alone(), "features")

    def window(self, rows: Range, cols: Range) -> sp.csr_array:
        """Read these rows and columns into a SciPy matrix with sorted rows. Local to a rank."""
        block = self.block(rows, cols, self.dtype, backends.get("numpy")).to_scipy()
        block.has_sorted_indices = block.has_canonical_format = True
        return block

    def gather(self, positions: np.ndarray, cols: Range) -> sp.csr_array:
        """Read the rows at `positions`, in this order; from front to back. Local to a rank."""
        arrangement = np.argsort(positions, kind="stable")
        ascending = positions[arrangement]
        n, step = self.shape[0], self.rows_at_a_time
        parts = [sp.csr_array((0, cols[1] - cols[0]), dtype=self.dtype)]
        for lo in range(0, n, step):
            a, b = np.searchsorted(ascending, [lo, min(lo + step, n)])
            if a < b:
                start = int(ascending[a])
                parts.append(self.window((start, int(ascending[b - 1]) + 1), cols)[ascending[a:b] - start])
        inverse = np.empty(len(positions), np.int64)
        inverse[arrangement] = np.arange(len(positions))
        return sp.vstack(parts, format="csr")[inverse]

    @property
    def rows_at_a_time(self) -> int:
        """Rows that have about LIMITS.entries entries."""
        return max(1, LIMITS.entries * self.shape[0] // max(self.nnz, self.shape[0]))

    def _tile(self, k: int, rows: Range, cols: Range) -> Tile:
        top, bottom = block(self.partition, k)
        shape, local = (bottom - top, self.shape[1]), (rows[0] - top, rows[1] - top)
        kinds = (np.min_scalar_type(self.shape[1] - 1),)
        where = self.members, self.files[k], shape, self.entries[k], self.dtype
        return Tile(*where, local, cols, -cols[0], group="features/", kinds=kinds, ones=self.ones)
