"""The named axes of a grid of ranks, and the position of a rank on them."""

from __future__ import annotations

import math
from collections.abc import Mapping


def written(sizes: Mapping[str, int]) -> str:
    """Return sizes by axis in their order, ``z=2,x=2,y=2``, as settings write them."""
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


class Axes:
    """Ranks arranged in named axes, the first axis slowest, and the position of one rank.

    Attributes:
        shape: the sizes by name; size: their product; coords: the position of the rank on each axis.
    """

    def __init__(self, sizes: Mapping[str, int], rank: int) -> None:
        self.shape = dict(sizes)
        self.size, self.rank = math.prod(sizes.values()), rank
        self.coords = dict.fromkeys(sizes, 0)
        for name in reversed(list(sizes)):
            rank, self.coords[name] = divmod(rank, sizes[name])

    def count(self, *axes: str) -> int:
        """Return the number of blocks of a dimension that is cut over ``axes``."""
        return math.prod(self.shape[axis] for axis in axes)

    def sharing(self, *axes: str) -> list[int]:
        """Return the ranks that differ from this one only in ``axes``, in the order of their blocks there."""
        strides, step = {}, 1
        for name in reversed(list(self.shape)):
            strides[name], step = step, step * self.shape[name]
        ranks = [self.rank - sum(strides[axis] * self.coords[axis] for axis in axes)]
        for axis in axes:
            ranks = [rank + strides[axis] * place for rank in ranks for place in range(self.shape[axis])]
        return ranks

    def index(self, *axes: str) -> int:
        """Return this rank's block of a dimension cut over ``axes``, the first axis slowest."""
        position = 0
        for axis in axes:
            position = position * self.shape[axis] + self.coords[axis]
        return position
