"""Entries that join different ranks, in dry runs of graphs of which only numbers of non-zeros are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from distgnn.local.crossing import Crossing
from distgnn.plan.dry.shapes import ShapeArray, ShapeMatrix


def crossing(A: ShapeMatrix, rows: np.ndarray, columns: np.ndarray, rank: int) -> Crossing:
    """Divide a matrix whose non-zeros lie anywhere: as many rows and columns cross as do in the mean."""
    heights, widths = np.diff(rows), np.diff(columns)
    density = A.nnz / max(A.shape[0] * A.shape[1], 1)
    crossing_rows = _filled(heights, density * (A.shape[1] - widths))
    crossing_columns = _filled(widths, density * (A.shape[0] - heights))
    near = round(density * float(heights @ widths))
    shape = sum(own.size for own in crossing_rows), sum(own.size for own in crossing_columns)
    own = int(heights[rank]), int(widths[rank])
    return Crossing(
        replace(A, shape=own, nnz=round(density * own[0] * own[1]), filled=None),
        replace(A, shape=shape, nnz=A.nnz - near, filled=None), crossing_rows, crossing_columns,
    )  # fmt: skip


def _filled(sizes: np.ndarray, entries: np.ndarray) -> list[Any]:
    """Return as many rows of each rank as have an entry, where each has ``entries`` in the mean."""
    counts = np.round(sizes * -np.expm1(-entries)).astype(int).tolist()
    alike = {count: ShapeArray((count,), np.int64) for count in set(counts)}
    for count, rows in alike.items():
        rows.known = range(count)
    return [alike[count] for count in counts]
