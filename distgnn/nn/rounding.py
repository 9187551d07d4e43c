"""Matrices between two layers, or a layer and the loss, in 16 bits, where none but sparse products read them.

A sparse product that reads 16 bits would round them in a pass of its own, to the same bits. In mixed
precision dense products may read them, too, and the sums of columns that are gradients of biases.
"""

from __future__ import annotations

from distgnn.local import memory_of
from distgnn.nn.buffers import Buffers
from distgnn.nn.layers import GraphConvolution
from distgnn.nn.loss import LossRows, Total, queue_loss, rounds
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


def loss_of(last: Pass, Z: DistDense, targets: LossRows) -> tuple[Total, DistDense]:
    """Compute the loss and its gradient, in the place of the logits Z or in 16 bits. Collective.

    ``last``: the layer that made Z, in memory of the workspace. Raises as :func:`queue_loss`.
    """
    room, workspace = room_for_gradient(last, targets), Z.grid.workspace
    try:
        total, G = queue_loss(Z, targets, room is None, room)
    except ValueError:  # targets of another graph
        for X in (Z,) if room is None else (Z, room):
            workspace.give_back(memory_of(X.block))
        raise
    if room is not None:
        workspace.give_back(Z.block)
    return total, G


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
