"""Cuts of matrices: axes, blocks, layouts, orders of nodes. Integers only."""

from distgnn.layout.axes import Axes, written
from distgnn.layout.blocks import Range, as_partition, block, nested, owner, partition, refine, shares, within
from distgnn.layout.layout import Cut, Layout
from distgnn.layout.order import NodeOrder

__all__ = [
    "Axes", "Cut", "Layout", "NodeOrder", "Range", "as_partition", "block", "nested", "owner", "partition",
    "refine", "shares", "within", "written",
]  # fmt: skip
