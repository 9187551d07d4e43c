"""The named axes of a grid of ranks, and where a rank stands on them."""

from __future__ import annotations

import math
from collections.abc import Mapping


def written(sizes: Mapping[str, int]) -> str:
    """``z=2,x=2,y=2``: sizes by axis in their order, as settings have them."""
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
        """How many blocks a dimension cut over ``axes`` has."""
        return math.prod(self.shape[axis] for axis in axes)

    def sharing(self, *axes: str) -> list[int]:
        """The ranks that differ from this one only in ``axes``, in the order of their blocks there."""
        strides, step = {}, 1
        for name in reversed(list(self.shape)):
            strides[name], step = step, step * self.shape[name]
        found = [self.rank - sum(strides[axis] * self.coords[axis] for axis in axes)]
        for axis in axes:
            found = [rank + strides[axis] * place for rank in found for place in range(self.shape[axis])]
        return found

    def index(self, *axes: str) -> int:
        """This rank's block of a dimension cut over ``axes``, the first axis slowest."""
        position = 0
        for axis in axes:
            position = position * self.shape[axis] + self.coords[axis]
        return position
