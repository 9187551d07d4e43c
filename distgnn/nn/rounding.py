"""Matrices between two layers, or a layer and the loss, in 16 bits, where none but sparse products read them.

A sparse product that reads 16 bits would round them in a pass of its own, to the same bits. In mixed
precision dense products may read them, too, and the sums of columns that are gradients of biases.
"""

from __future__ import annotations

from distgnn.nn.buffers import Buffers
from distgnn.nn.layers import GraphConvolution
from distgnn.nn.loss import LossRows, rounds
from distgnn.operators.dense import DistDense

Pass = tuple[GraphConvolution, Buffers]


def round_between(below: Pass, above: Pass) -> None:
    """Let a layer's output and its gradient have 16 bits where nothing else reads or changes them.

    A norm, ELU and residual connections take passes.
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
    if back and _sums_rounded(layer, buffers):
        after.rounded.add("dH")


def room_for_gradient(last: Pass, targets: LossRows) -> DistDense | None:
    """Make room in 16 bits for the gradient of the logits, the last layer's Z; None where it has float32.

    Gradients whose messages have float16 are scaled first.
    """
    layer, buffers = last
    narrow = buffers.plan.A.grid.narrow
    if narrow is None or narrow.kind != "bfloat16" or "G" not in buffers.plan.rounded:
        return None
    if not (rounds(targets) and _sums_rounded(layer, buffers)):  # the last layer has no residual connection
        return None
    with narrow.gradients():
        return buffers.plan.make("G", rounded=True)


def _sums_rounded(layer: GraphConvolution, buffers: Buffers) -> bool:
    """Tell whether no sum of the columns of the gradient of Z needs more than 16 bits."""
    return layer.b is None or bool(buffers.plan.A.grid.mixed)
