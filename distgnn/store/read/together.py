"""Rows of node arrays, read by all ranks of a grid together: each chunk of a file by one of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.comm.grid import Grid
from distgnn.comm.rows import Rows, all_to_all, by_owner
from distgnn.layout import Range


def gather(
    grid: Grid, files: Any, name: str, positions: np.ndarray, cols: Range | None = None
) -> np.ndarray:  # fmt: skip
    """Read the rows at different ``positions``, each rank its own, in this order. Collective.

    ``files``: the `NodeFiles` of the array. A rank reads whole chunks, about as many as every other, and
    sends rows to the ranks that want them.

    Cost: an all-to-allv of as many row numbers as rows come from other ranks, and one of these rows.
    """
    comm = grid.along_on_host(*grid.shape)
    bounds = files.shares(name, comm.size, cols)
    order = np.argsort(positions, kind="stable")
    rows = Rows(grid, comm, by_owner(positions[order], bounds))
    windows = comm.gather_objects(cols or (0, 1))
    wide = [windows[r] for r in rows.asked if windows[r][0] < windows[r][1]]
    left, right = min((w[0] for w in wide), default=0), max((w[1] for w in wide), default=0)
    first, last = (int(end) for end in bounds[comm.rank : comm.rank + 2])
    with comm.together():
        read = files.rows(name, (first, last if wide else first), cols and (left, right))
        flat = read.reshape(len(read), right - left) if wide else read.reshape(0, 0)
        own = {r: slice(windows[r][0] - left, windows[r][1] - left) for r in rows.asked}
        sent = {r: np.ascontiguousarray(flat[numbers, own[r]]) for r, numbers in rows.asked.items() if wide}
        lo, hi = windows[comm.rank]
        came = np.empty((len(positions), hi - lo), read.dtype)
    into = {q: came[place] for q, place in rows.places.items()} if came.size else {}
    all_to_all(comm, sent, into, name)
    result = np.empty_like(came)
    result[order] = came
    return result if cols else result[:, 0]
