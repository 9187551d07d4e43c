"""Matrices between two layers in 16 bits, where a product makes them and none but sparse products read them.

A sparse product that reads 16 bits would round them in a pass of its own, to the same bits. In mixed
precision dense products may read them, too.
"""

from __future__ import annotations

from distgnn.nn.buffers import Buffers
from distgnn.nn.layers import GraphConvolution

Pass = tuple[GraphConvolution, Buffers]


def round_between(below: Pass, above: Pass) -> None:
    """Let a layer's output and its gradient have 16 bits where nothing else reads or changes them.

    Whoever adds a bias sums the gradient's columns; a norm, ELU and residual connections take passes.
    """
    (layer, buffers), (following, after) = below, above
    forward = "Z" in buffers.plan.rounded and "H" in after.plan.rounded
    back = "G" in buffers.plan.rounded and "dH" in after.plan.rounded
    if not (forward or back) or not following.activation.all_in_products:
        return
    if layer.options.residual or following.options.residual:
        return
    if forward:
        buffers.rounded.add("Z")
    if back and layer.b is None:
        after.rounded.add("dH")
