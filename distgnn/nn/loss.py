"""Masked softmax cross-entropy and accuracy, with rows cut over some grid axes and classes over others.

The logits are never gathered: of every training node two numbers travel over the axes that cut the classes,
    the largest logit and the sum of exponentials; the loss itself is summed over the axes that cut the rows,
    and not over replicas. Labels are never written; logits only where the caller gives them up.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from distgnn import rng
from distgnn.arrays import backend
from distgnn.layout import Layout
from distgnn.local import cuda, host
from distgnn.nn.dispatch import compiled, on_gpu
from distgnn.operators.dense import DistDense

Array = Any

TRAIN, VAL, TEST = 1, 2, 3
PARTS = {"train_acc": TRAIN, "val_acc": VAL, "test_acc": TEST}


class Targets:
    """Labels and splits of the nodes whose logits this rank holds. Collective.

    Args:
        layout: of the logits; every rank gives the labels of its own `layout.row_range`.
        classes: number of classes, the global width of the logits.
        labels: int[rows], -1 for unlabelled nodes, which belong to no part of the split; copied.
        split: uint8[rows], 0 none, 1 train, 2 val, 3 test; copied.

    Attributes:
        counts: labelled nodes of the whole graph per part of the split, by its number.
        rows, labels, parts: the labelled nodes of this rank that are in some part: local row, class, part.
        train_rows, train_labels: those in the training part.

    Raises:
        ValueError: wrong lengths, a label that is no class, a part that is none (on every rank).
    """

    def __init__(self, layout: Layout, classes: int, labels: Array, split: Array) -> None:
        self.layout, self.classes = layout, classes
        grid = layout.grid
        on = grid.backend
        with grid.world.together():
            labels, split = np.asarray(on.to_host(labels)), np.asarray(on.to_host(split))
            first, last = layout.row_range
            if labels.shape != (last - first,) or split.shape != labels.shape:
                raise ValueError(
                    f"labels {labels.shape} and split {split.shape} given for {last - first} rows"
                )
            if labels.size and (labels.max() >= classes or labels.min() < -1):
                wrong = labels.max() if labels.max() >= classes else labels.min()
                raise ValueError(f"label {wrong} where there are {classes} classes")
            if split.size and (split.max() > TEST or split.min() < 0):
                raise ValueError("a split holds 0 (none), 1 (train), 2 (val) and 3 (test) only")
        rows = np.flatnonzero((split > 0) & (labels >= 0))
        self.rows = on.asarray(rows)
        self.labels = on.asarray(labels[rows].astype(np.int64))
        self.parts = on.asarray(split[rows].astype(np.int64))
        train = rows[split[rows] == TRAIN]
        self.train_rows = on.asarray(train)
        self.train_labels = on.asarray(labels[train].astype(np.int64))
        totals = on.asarray(np.bincount(split[rows], minlength=TEST + 1).astype(np.int64))
        self.counts: list[int] = on.to_host(grid.along(*layout.row_axes).allreduce(totals)).tolist()

    @cached_property
    def position(self) -> Array:
        """int32[rows]: where each row of this rank stands in `train_rows`, or -1."""
        xp = self.layout.grid.backend.xp
        first, last = self.layout.row_range
        position = xp.full(last - first, -1, dtype=np.int32)
        position[self.train_rows] = xp.arange(len(self.train_rows), dtype=np.int32)
        return position


def softmax_cross_entropy(Z: DistDense, targets: Targets, overwrite: bool = False) -> tuple[float, DistDense]:
    """Mean cross-entropy over the training nodes of the whole graph, and its gradient by `Z`. Collective.

    Args:
        Z: logits, n x classes, in `targets.layout`.
        overwrite: put the gradient where the logits were; otherwise `Z` is left alone.

    Returns:
        the loss, equal on every rank, and G, cut like Z: (softmax(Z) - onehot) / count in training rows, 0
            elsewhere.

    Cost: two all-reduces of one word per local training node over the axes that cut the classes, one of one
        word.
    """
    layout = Z.layout
    grid, count = layout.grid, max(targets.counts[TRAIN], 1)
    across = grid.along(*layout.col_axes)
    xp = backend.module(Z.block)
    if across.size == 1 and compiled(Z.block):
        gradient = Z.block if overwrite else backend.of(Z.block).empty(Z.block.shape, Z.block.dtype)
        sums, own = host.cross_entropy(Z.block, targets.train_rows, targets.train_labels, gradient, 1 / count)
    elif across.size == 1 and on_gpu(Z.block):
        losses, gradient = cuda.softmax_cross_entropy(
            Z.block, targets.position, targets.train_labels, Z.block if overwrite else None, count
        )
        sums, own = xp.ones_like(losses), -losses
    else:
        gradient = Z.block if overwrite else xp.zeros_like(Z.block)
        sums, own = _in_phases(Z, targets, gradient, 1 / count)

    total = -own.sum(dtype=np.float64)
    if grid.index(*layout.col_axes) == 0:  # all ranks of a row have the sums, one counts them
        total = total + xp.log(sums.astype(np.float64)).sum()
    loss = xp.asarray(total, dtype=np.float64).reshape(1)
    grid.along(*layout.row_axes, *layout.col_axes).allreduce(loss)
    return float(loss[0]) / count, Z.like(gradient)


def _in_phases(Z: DistDense, targets: Targets, gradient: Array, share: float) -> tuple[Array, Array]:
    """Fill `gradient` (zero, or the logits themselves), with all-reduces over the axes that cut the classes.

    Returns:
        of each training node the sum of the exponentials of its logits less their largest, over all classes;
        and the logit of its
            own class less the largest, for the nodes whose class this rank holds.
    """
    logits = Z.block
    xp = backend.module(logits)
    across = Z.layout.grid.along(*Z.layout.col_axes)
    rows, labels = targets.train_rows, targets.train_labels
    pieces = _pieces(len(rows), logits.shape[1], xp)

    highest = xp.full(len(rows), -np.inf, dtype=logits.dtype)
    for part in pieces:
        highest[part] = logits[rows[part]].max(axis=1)
    across.allreduce(highest, "max")

    first, last = Z.col_range
    here = xp.flatnonzero((labels >= first) & (labels < last))  # nodes whose own class is in this block
    own = rows[here], labels[here] - first
    true_logits = logits[own] - highest[here]  # read before they may be overwritten

    sums = xp.zeros(len(rows), dtype=logits.dtype)
    for part in pieces:
        E = logits[rows[part]]
        E -= highest[part, None]
        xp.exp(E, out=E)
        sums[part] = E.sum(axis=1)
        gradient[rows[part]] = E
    across.allreduce(sums)
    if gradient is logits:
        _zero_other_rows(logits, rows, xp)

    for part in pieces:
        gradient[rows[part]] *= (share / sums[part])[:, None]
    gradient[own] -= logits.dtype.type(share)
    return sums, true_logits


def accuracies(Z: DistDense, targets: Targets) -> dict[str, float]:
    """train_acc, val_acc and test_acc of the logits `Z`. Collective.

    The prediction is the class of the largest logit, the smallest class where several are equal. NaN for a
    part that has no labelled nodes. Equal on every rank.

    Cost: two all-reduces of one word per local labelled node over the axes that cut the classes, one of four
        words.
    """
    logits, layout = Z.block, Z.layout
    xp = backend.module(logits)
    across = layout.grid.along(*layout.col_axes)
    rows = targets.rows
    best = xp.full(len(rows), -np.inf, dtype=logits.dtype)
    choice = xp.full(len(rows), targets.classes, dtype=np.int64)  # past the last class: none
    for part in _pieces(len(rows), logits.shape[1], xp):
        block = logits[rows[part]]
        choice[part] = block.argmax(axis=1) + Z.col_range[0]
        best[part] = block.max(axis=1)
    if across.size > 1:
        overall = across.allreduce(best.copy(), "max")
        choice[best != overall] = targets.classes
        across.allreduce(choice, "min")
    hits = xp.bincount(targets.parts[choice == targets.labels], minlength=TEST + 1).astype(np.int64)
    layout.grid.along(*layout.row_axes).allreduce(hits)
    hits = hits.tolist()
    return {
        name: hits[part] / targets.counts[part] if targets.counts[part] else float("nan")
        for name, part in PARTS.items()
    }


def _zero_other_rows(block: Array, rows: Array, xp: Any) -> None:
    others = xp.ones(len(block), dtype=bool)
    others[rows] = False
    block[others] = 0


def _pieces(count: int, width: int, xp: Any) -> list[slice]:
    """Row blocks that stay in cache; none where this rank has no classes."""
    if width == 0:
        return []
    step = rng.block_rows(width, xp)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]
