"""The caller's partition by node, as an order of the nodes and block rows that are its parts."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from distgnn.arrays.canonical import as_matrix, canonical, value_type
from distgnn.errors import ArgumentError
from distgnn.layout import NodeOrder


class Parts:
    """An order of the nodes by part; within a part, by node.

    Args:
        part: the part of each node, whole numbers from 0.
        number: of parts, or None for as many as there are.

    Attributes:
        order: of the nodes; bounds: the partition vector of the parts in it.

    Raises:
        ArgumentError: no vector of whole numbers, or one outside 0..number-1.
    """

    def __init__(self, part: Any, number: int | None = None) -> None:
        vector = np.asarray(part)
        if vector.ndim != 1 or vector.dtype.kind not in "iu":
            problem = "expected the part of each node, a vector of whole numbers"
            raise ArgumentError("parts", f"{vector.dtype}{list(vector.shape)}", problem)
        number = int(vector.max(initial=-1)) + 1 if number is None else number
        wrong = np.flatnonzero((vector < 0) | (vector >= number))
        if len(wrong):
            node = int(wrong[0])
            raise ArgumentError("parts", int(vector[node]), f"of node {node}; expected 0..{number - 1}")
        self.nodes = np.argsort(vector, kind="stable").astype(np.int64)
        self.bounds = np.searchsorted(vector[self.nodes], np.arange(number + 1)).astype(np.int64)
        key = "parts", hashlib.sha256(self.nodes.tobytes()).hexdigest()
        self.order = NodeOrder("by parts", key, lambda first, last: self.nodes[first:last])

    def permuted(self, matrix: Any, dtype: Any) -> Any:
        """Return a SciPy matrix with rows and columns in this order. ArgumentError: it has other nodes."""
        matrix = as_matrix(matrix)
        n = len(self.nodes)
        if matrix.shape != (n, n):
            raise ArgumentError("parts", f"of {n} nodes", f"the matrix has shape {matrix.shape}")
        return canonical(matrix, value_type(matrix.dtype, dtype))[self.nodes][:, self.nodes]
