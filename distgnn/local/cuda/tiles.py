"""Tiles of dense products on the tensor cores of Hopper, and the products of TF32 that make one of them."""

from __future__ import annotations

from dataclasses import dataclass

#: Products of TF32 for one: as exact as float32 by three, of the parts into which numbers are split; by one,
#: numbers are rounded to TF32.
EXACT, TF32 = 3, 1


@dataclass(frozen=True)
class Tile:
    """A tile of a product: 8 ``fragments`` columns, and ``stages`` chunks in shared memory.

    Args:
        kernel: the name of the template.
    """

    kernel: str
    fragments: int
    stages: int

    def name(self, products: int, *others: str) -> str:
        """Return the C++ name of the kernel for so many products; ``others``: its last arguments."""
        return f"{self.kernel}<{','.join(map(str, (self.fragments, self.stages, products, *others)))}>"

    @property
    def width(self) -> int:
        return 8 * self.fragments


def parts(products: int) -> int:
    """Return the numbers of TF32 that a number is held as."""
    return 2 if products > TF32 else 1
