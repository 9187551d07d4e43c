"""Parts of the nodes for minibatches: by a partitioner, of a file, or of the order of the nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError
from distgnn.partition import Pattern, Wanted, parse, read_part_vector
from distgnn.train.settings import Settings


def wanted(settings: Settings, order: Any) -> Wanted | None:
    """Return the partition that settings ask for; None for the parts of the order.

    ArgumentError: there is none, or several.
    """
    if settings.parts is None:
        if order.partition is None:
            problem = "order {} has no parts; give METHOD:K, such as metis:50, or an order by partition"
            raise ArgumentError("parts", None, problem.format(order.name))
        return None
    asked = parse(settings.parts, "parts")
    if len(asked) > 1:
        raise ArgumentError("parts", settings.parts, "expected one METHOD:K or FILE:K, such as metis:50")
    return asked[0]


def number_of(settings: Settings, order: Any) -> int:
    """Return how many parts there will be, some of them perhaps without nodes; ArgumentError: none."""
    asked = wanted(settings, order)
    if asked is not None and asked.parts < 1:
        asked.check()  # else rank 0 does, which reads the file
    return len(order.partition) - 1 if asked is None else asked.parts


def part_vector(settings: Settings, order: Any, matrix: Any) -> np.ndarray:
    """Return the part of the node at each position of the order. Local to a rank.

    ``matrix``: makes the stored entries at these positions, where they are needed.
    """
    asked, n = wanted(settings, order), int(order.shape[0])
    if asked is None:
        return np.repeat(np.arange(len(order.partition) - 1), np.diff(order.partition))
    asked.check(n)
    if asked.file:
        return read_part_vector(asked.method, n, asked.parts)[order.permutation(0, n)]
    return asked.make(Pattern.of(matrix()), settings.seed)


def shared_parts(settings: Settings, order: Any, grid: Grid, matrix: Any) -> np.ndarray:
    """Return :func:`part_vector` of rank 0 on every rank. Collective."""
    made: Any = None
    with grid.world.together():
        if grid.rank == 0:
            made = part_vector(settings, order, matrix)
    return grid.world.share(made)
