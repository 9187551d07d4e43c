"""Matrices whose nodes were permuted, as a stored order has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.layout import NodeOrder
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
