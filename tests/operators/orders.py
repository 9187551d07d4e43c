"""Matrices whose nodes were permuted, as a stored order has them; the grids that tests of algebra take."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.layout import NodeOrder
from distgnn.operators import grids
from distgnn.operators.sources import MatrixSource


def node_order(ids: np.ndarray) -> NodeOrder:
    """Return the order that has node ids[i] at position i."""
    return NodeOrder("of the test", ids.tobytes(), lambda first, last: ids[first:last])


class Permuted(MatrixSource):
    """A[rows][:, cols], and which nodes its rows and columns belong to; cols are in the order of the rows if
    left out.
    """

    def __init__(self, A: Any, rows: np.ndarray, cols: np.ndarray | None = None) -> None:
        cols = rows if cols is None else cols
        super().__init__(A[rows][:, cols])
        self.row_order, self.col_order = node_order(rows), node_order(cols)


def first_last_or_even(algorithm: str, ranks: int) -> list[dict[str, int]]:
    """Return the first grid and the one with the most copies; of more than 4 ranks the most even one."""
    possible = grids(algorithm, ranks)
    if ranks > 4:
        return [min(possible, key=lambda sizes: max(sizes.values()))]
    return possible[:: len(possible) - 1] if len(possible) > 1 else possible
