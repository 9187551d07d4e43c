"""Reads of B in a sparse product that a cache answers, by how much of B it keeps.

The working set of a sequence of reads (Denning, "The working set model for program behavior", 1968): a read
finds its row among those of the last w reads if the row was read less than w reads ago, and w reads in a row
touch as many different rows as reads were younger than they, added up. Both follow from the gaps between
reads of the same row. A random graph finds as large a share as is kept of B; hubs, and neighbours that are
near in the order, let more be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

WINDOWS, READ = 4, 1 << 20  # places of a matrix that are looked at, and entries of each
FEWEST = 64  # entries of a place, fewer than which say nothing


@dataclass(frozen=True)
class Reuse:
    """Curve of a matrix: reads that are found in a cache.

    Attributes:
        kept: shares of the rows of B that are kept, of those read last, ascending from 0 to 1.
        answered: the share of reads that these answer.
    """

    kept: Sequence[float] = (0.0, 1.0)
    answered: Sequence[float] = (0.0, 1.0)

    def share(self, nbytes: float, of: float) -> float:
        """Return the share of reads that a cache of so many bytes answers, of a B of so many."""
        return 1.0 if nbytes >= of else float(np.interp(nbytes / of, self.kept, self.answered))


EVEN = Reuse()  #: Of non-zeros that stand anywhere.


def of_rows(windows: Sequence[np.ndarray], columns: int) -> Reuse:
    """Return the curve of a matrix with so many columns.

    Args:
        windows: columns of entries, row by row, at some places of the matrix.
    """
    gaps = [_gaps(window) for window in windows if len(window) >= FEWEST]
    if not gaps or not columns:
        return EVEN
    every = np.sort(np.concatenate(gaps))
    lengths = np.unique(np.geomspace(1, min(map(len, gaps)), 40).astype(np.int64))
    younger = np.searchsorted(every, lengths, side="right")  # reads found among the last so many
    rows = (np.append(0, np.cumsum(every))[younger] + (len(every) - younger) * lengths) / len(every)
    inside = rows < columns
    kept, answered = rows[inside] / columns, younger[inside] / len(every)
    return Reuse([0.0, *kept.tolist(), 1.0], [0.0, *answered.tolist(), 1.0])


def _gaps(columns: np.ndarray) -> np.ndarray:
    """Return how many reads ago each row was read before, in the second half of a window.

    A row that is new in it counts as one of the window's length: how far back it was read is not known.
    """
    order = np.argsort(columns, kind="stable")
    same = columns[order[1:]] == columns[order[:-1]]
    gaps = np.full(len(columns), len(columns), np.int64)
    gaps[order[1:][same]] = np.diff(order)[same]
    return gaps[len(columns) // 2 :]


def of_source(source: Any, nnz: int) -> Reuse:
    """Return the curve of a block source with so many entries, of which some rows are read."""
    n, k = source.shape
    rows = min(max(READ * n // max(nnz, 1), 1), n)
    middles = ((2 * place + 1) * n // (2 * WINDOWS) for place in range(WINDOWS * (n > 0)))
    firsts = sorted({min(max(middle - rows // 2, 0), n - rows) for middle in middles})
    blocks = [source.block((first, first + rows), (0, k)) for first in firsts]
    return of_rows([block.indices for block in blocks if sp.issparse(block)], k)
