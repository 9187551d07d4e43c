"""The costs of a partition, counted on the matrix without running a product."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from distgnn.partition.pattern import Pattern


@dataclass(frozen=True)
class Quality:
    """Counts per part, and the numbers of Table 2 (``sparsity-aware.txt`` section 7).

    Attributes:
        sends, receives: int64 (parts,): rows of H that a part sends and receives in a sparsity-aware 1D
            product of A. One row is ``width`` words. Their sums are equal: the total volume.
        nonzeros, nodes: int64 (parts,): entries and rows of A of each part.
        edge_cut: entries of A in a row and a column of different parts; of a symmetric pattern, half of them.
    """

    sends: np.ndarray
    receives: np.ndarray
    nonzeros: np.ndarray
    nodes: np.ndarray
    edge_cut: int

    @property
    def volume(self) -> int:
        """Rows that all parts send together."""
        return int(self.sends.sum())

    @property
    def empty(self) -> int:
        """Parts without a node."""
        return int(np.count_nonzero(self.nodes == 0))


def largest_over_mean(counts: np.ndarray) -> float:
    """Return the largest count over the mean: 1 is perfect. Return 1 if all counts are 0."""
    return float(counts.max() / counts.mean()) if counts.sum() else 1.0


def measure(pattern: Pattern, part: np.ndarray, parts: int) -> Quality:
    """Count the costs of parts, part int (n,) in 0..parts-1, as cheaply as a sparse product with n ones."""
    owner = sp.csr_array((np.ones(pattern.n, np.int32), part, np.arange(pattern.n + 1)), (pattern.n, parts))
    reached = sp.csr_array(pattern.nets @ owner)
    nodes = np.bincount(part, minlength=parts)
    cut = int(np.count_nonzero(np.repeat(part, pattern.row_nonzeros) != part[pattern.indices]))
    return Quality(
        sends=np.bincount(part, np.diff(reached.indptr) - 1, parts).astype(np.int64),
        receives=np.bincount(reached.indices, minlength=parts) - nodes,
        nonzeros=np.bincount(part, pattern.row_nonzeros, parts).astype(np.int64),
        nodes=nodes,
        edge_cut=cut // 2 if pattern.symmetric else cut,
    )
