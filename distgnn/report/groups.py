"""Groups of consecutive ranks, so that a drawing of many ranks stays one that can be looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from distgnn.layout import partition

#: The most rows, and columns, that a drawing has.
MOST = 64


def groups(ranks: int) -> list[range]:
    """Cut ranks into at most MOST groups of consecutive ranks, of equal sizes but for one rank."""
    cuts = partition(ranks, min(ranks, MOST)).tolist() if ranks else []
    return [range(*ends) for ends in pairwise(cuts)]


def name_of(ranks: range) -> str:
    """Return "3" for a group of one rank, "32-63" for others."""
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def busiest(parts_by_rank: Sequence[Mapping[str, float]]) -> list[tuple[str, Mapping[str, float]]]:
    """Return, for each group, the rank whose parts have the largest sum, as (name, parts)."""
    totals = [sum(parts.values()) for parts in parts_by_rank]
    ranks = [max(group, key=totals.__getitem__) for group in groups(len(totals))]
    return [(f"rank {rank}", parts_by_rank[rank]) for rank in ranks]


def summed(numbers: Sequence[Sequence[float]]) -> list[list[float]]:
    """Add up the numbers of a square matrix between groups."""
    firsts = [group[0] for group in groups(len(numbers))]
    cells = np.add.reduceat(np.add.reduceat(np.array(numbers), firsts, axis=0), firsts, axis=1)
    return cells.tolist()
