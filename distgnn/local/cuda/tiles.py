"""Tiles of dense products on the tensor cores of Hopper, and the parts of TF32 that their numbers have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distgnn.local.cuda.narrow import Rounded

#: The type of 16 bits that dense products read.
READ = "bfloat16"


@dataclass(frozen=True)
class Tile:
    """A tile of a product: 8 ``fragments`` columns, and ``stages`` chunks in shared memory.

    Args:
        kernel: the name of the template.
    """

    kernel: str
    fragments: int
    stages: int

    def name(self, *arguments: Any) -> str:
        """Return the C++ name of the kernel with these arguments behind the tile's own."""
        return f"{self.kernel}<{','.join(map(str, (self.fragments, self.stages, *arguments)))}>"

    @property
    def width(self) -> int:
        return 8 * self.fragments


def parts(X: Any, exact: bool) -> int:
    """Return how many numbers of TF32 a number of X is split into; one that has 16 bits is one already."""
    return 2 if exact and not isinstance(X, Rounded) else 1


def readable(X: Any) -> bool:
    """Tell whether dense products read X: float32, or rows of whole vectors of 16 bits."""
    return not isinstance(X, Rounded) or (X.kind == READ and X.bits.shape[-1] % 8 == 0)
