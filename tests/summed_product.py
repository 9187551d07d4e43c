"""A product that is summed over a group of ranks, its row blocks while the next ones are multiplied."""

from __future__ import annotations

from typing import Any

from distgnn import local
from distgnn.operators.summed import SUM


def multiply(grid: Any, group: Any, A: Any, B: Any, out: Any, accumulate: bool = False) -> None:
    """Compute in ``out`` the sum over the group of ``A B``, or of ``out + A B`` with ``accumulate``."""
    for rows in SUM.turns(grid, group, out):
        local.spmm(A.rows(*rows), B, out[slice(*rows)], accumulate)
