"""Node ids to positions in the order of a stored graph, and back."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from distgnn.arrays import backend
from distgnn.arrays.csr import index_type
from distgnn.layout import NodeOrder


class Ids:
    """The nodes 0..n-1 and their places in an order; without an order node i stands at position i.

    Memory: 8 bytes per node from the first use on, 16 beyond 2³¹ nodes; nothing without an order.
    """

    def __init__(self, n: int, order: NodeOrder | None) -> None:
        self.n, self.order = n, order

    def positions(self, ids: Any) -> Any:
        """Return where these nodes stand: int64, on a GPU if the ids are.

        ValueError as of :func:`checked`.
        """
        ids = checked(ids, self.n)
        return ids if self.order is None else _taken(self._positions, ids)

    def at(self, positions: Any) -> Any:
        """Return the nodes at these positions: int64."""
        return positions if self.order is None else _taken(self._ids, positions)

    @cached_property
    def _ids(self) -> np.ndarray:
        if self.order is None:
            return np.arange(self.n)
        return self.order.permutation(0, self.n).astype(index_type(self.n))

    @cached_property
    def _positions(self) -> np.ndarray:
        positions = np.empty_like(self._ids)
        positions[self._ids] = np.arange(self.n, dtype=positions.dtype)
        return positions


def _taken(table: np.ndarray, numbers: Any) -> Any:
    """Take entries of a table on the host, to where the numbers are."""
    on = backend.of(numbers)
    return on.asarray(table[on.to_host(numbers)], np.int64)


def checked(ids: Any, n: int) -> Any:
    """Return the ids as int64; raise ValueError unless they are a list of integers in 0..n-1."""
    ids = backend.as_array(ids)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        hint = "" if ids.ndim else "; several minibatches are a list of such lists"
        raise ValueError(f"node ids must be a list of integers, got {ids.dtype} of shape {ids.shape}{hint}")
    if ids.size and not (0 <= ids.min() and ids.max() < n):
        raise ValueError(f"no node {ids[(ids < 0) | (ids >= n)][0]}: there are {n}, from 0 on")
    return ids.astype(np.int64, copy=False)
