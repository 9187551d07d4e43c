"""The best of all ranks' numbers: what sums over ranks become where the best neighbours are picked.

Numbers travel with the nodes they come from, straight from rank to rank, and of equals the smaller node is
the best wherever it stands, so that results depend neither on the order of ranks nor on when messages come.

    rank 0     a0 a1        max(a0, b0)  a1                max(a0, b0) max(a1, b1)
    rank 1     b0 b1        b0           max(a1, b1)       max(a0, b0) max(a1, b1)
                    to the rank of each part        from there to all
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from distgnn.comm.exchange import Exchange
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.layout import Range, partition
from distgnn.local.aggregate import Semiring, merge

Array = Any


def of_all(
    grid: Grid, group: Comm, T: Array, N: Array, how: Semiring, blocks: Sequence[Range]
) -> Iterator[Range]:  # fmt: skip
    """Give row blocks of T and N for the caller to make; in the end they are the best of the group.

    A row block travels while the next one is made. Collective.

    Cost: twice the words of an all-reduce of T, in two messages to every other rank for each block.
    """
    active: deque[Iterator[None]] = deque()
    try:
        for number, rows in enumerate(blocks):
            yield rows
            active = deque(steps for steps in active if next(steps, active) is None)
            if group.size > 1:
                own = slice(*rows)
                active.append(_shared(grid, group, T[own], N[own], how, number))
                next(active[-1])
        for steps in active:
            deque(steps, 0)
    finally:
        for steps in active:
            steps.close()  # type: ignore[attr-defined]


def of_rows(group: Comm, T: Array, N: Array, parts: np.ndarray, how: Semiring) -> tuple[Array, Array]:
    """Return the best of all ranks in this rank's rows, ``parts[rank]`` to ``parts[rank + 1]``. Collective.

    Cost: twice the words of a reduce-scatter of T.
    """
    rows = [slice(*ends) for ends in pairwise(parts.tolist())]
    own = rows[group.rank]
    t, n = T[own].copy(), N[own].copy()
    received = {q: group.backend.empty((2, *t.shape), t.dtype) for q in group.others()}
    with _exchange(group, received, True) as exchange:
        for r in reversed(group.others()):
            exchange.send(_pair(group, T[rows[r]], N[rows[r]]), r)
        exchange.wait(received)
        _take_best(t, n, received, how)
    return t, n


def _shared(
    grid: Grid, group: Comm, T: Array, N: Array, how: Semiring, number: int
) -> Iterator[None]:  # fmt: skip
    """Find the best in each rank's part of the rows, then give it to all. Yields while messages travel."""
    rows = [slice(*ends) for ends in pairwise(partition(len(T), group.size).tolist())]
    own, others = rows[group.rank], group.others()
    received = {q: group.backend.empty((2, *T[own].shape), T.dtype) for q in others}
    with _exchange(group, received, grid.overlap) as exchange:
        for r in reversed(others):
            exchange.send(_pair(group, T[rows[r]], N[rows[r]]), r)
        exchange.all_sent()
        with exchange.driven():
            yield
        exchange.wait(others)
        _take_best(T[own], N[own], received, how)
    received = {q: group.backend.empty((2, *T[rows[q]].shape), T.dtype) for q in others}
    with _exchange(group, received, grid.overlap) as exchange:
        best = _pair(group, T[own], N[own])
        for r in reversed(others):
            exchange.send(best, r)
        exchange.all_sent()
        with exchange.driven():
            yield
        exchange.wait(others)
        for q, pair in received.items():
            T[rows[q]], N[rows[q]] = pair[0], pair[1].view(N.dtype)


def _exchange(group: Comm, received: dict[int, Array], overlap: bool) -> Exchange:
    return group.exchange(list(received.items()), "sums", overlap, "alltoall")


def _pair(group: Comm, T: Array, N: Array) -> Array:
    """Put numbers and nodes into one array, the nodes as their bits."""
    pair = group.backend.empty((2, *T.shape), T.dtype)
    pair[0], pair[1].view(N.dtype)[...] = T, N
    return pair


def _take_best(T: Array, N: Array, received: dict[int, Array], how: Semiring) -> None:
    for pair in received.values():
        merge(T, N, pair[0], pair[1].view(N.dtype), how)
