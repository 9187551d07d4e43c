"""How matrices are cut: axes, blocks, layouts. Integers only."""

from distgnn.layout.axes import Axes
from distgnn.layout.blocks import Range, as_partition, block, nested, owner, partition, refine, within
from distgnn.layout.layout import Cut, Layout

__all__ = [
    "Axes", "Cut", "Layout", "Range", "as_partition", "block", "nested", "owner", "partition", "refine",
    "within",
]  # fmt: skip
