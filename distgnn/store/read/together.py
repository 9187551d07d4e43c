"""Rows of node arrays, read by all ranks of a grid together: each chunk of a file by one of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.comm.grid import Grid
from distgnn.comm.rows import Rows, all_to_all
from distgnn.layout import Range


def gather(
    grid: Grid, files: Any, name: str, positions: np.ndarray, cols: Range | None = None
) -> np.ndarray:  # fmt: skip
    """Read the rows at different ``positions``, each rank its own, in this order. Collective.

    ``files``: the `NodeFiles` of the array. A rank reads whole chunks, about as many as every other, and
    sends rows to the ranks that want them, about LIMITS.row_bytes at a time.

    Cost: all-to-allvs of as many row numbers as rows come from other ranks, and of these rows.
    """
    comm = grid.along_on_host(*grid.shape)
    with comm.together():
        turns = files.turns(name, grid.size, cols)
    windows, order = comm.gather_objects(cols or (0, 1)), np.argsort(positions, kind="stable")
    rising, result = positions[order], np.empty(0)
    for turn in turns:
        starts, stops = np.searchsorted(rising, turn)
        needed = {q: rising[starts[q] : stops[q]] - turn[0, q] for q in range(comm.size)}
        came = _fetched(Rows(grid, comm, needed), files, name, turn[:, comm.rank], windows, cols)
        if turn is turns[0]:
            result = np.empty((len(positions), *came.shape[1:]), came.dtype)
        result[np.concatenate([order[starts[q] : stops[q]] for q in range(comm.size)])] = came
    return result if cols else result[:, 0]


def _fetched(
    rows: Rows, files: Any, name: str, own: np.ndarray, windows: list[Range], cols: Range | None
) -> np.ndarray:  # fmt: skip
    """Read this rank's rows of a turn for those that want them; return those that this rank wants."""
    comm, (first, last) = rows.comm, own.tolist()
    wide = [windows[r] for r in rows.asked if windows[r][0] < windows[r][1]]
    left, right = min((w[0] for w in wide), default=0), max((w[1] for w in wide), default=0)
    with comm.together():
        read = files.rows(name, (first, last if wide else first), cols and (left, right))
        flat = read.reshape(len(read), right - left) if wide else read.reshape(0, 0)
        part = {r: slice(windows[r][0] - left, windows[r][1] - left) for r in rows.asked}
        sent = {r: np.ascontiguousarray(flat[numbers, part[r]]) for r, numbers in rows.asked.items() if wide}
        lo, hi = windows[comm.rank]
        came = np.empty((rows.received, hi - lo), read.dtype)
    into = {q: came[place] for q, place in rows.places.items()} if came.size else {}
    all_to_all(comm, sent, into, name)
    return came
