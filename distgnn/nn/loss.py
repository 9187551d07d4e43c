"""Masked softmax cross-entropy and accuracy, with rows cut over some grid axes and classes over others.

The logits are never gathered: of every training node two numbers travel over the axes that cut the classes,
the largest logit and the sum of exponentials; the loss itself is summed over the axes that cut the rows, and
not over replicas. Labels are never written; logits only where the caller gives them up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import ledger, rng
from distgnn.arrays import backend
from distgnn.layout import Layout
from distgnn.local import cuda, host
from distgnn.local.elementwise import compiled, on_gpu
from distgnn.operators.dense import DistDense

Array = Any

TRAIN, VAL, TEST = 1, 2, 3
PARTS = {"train_acc": TRAIN, "val_acc": VAL, "test_acc": TEST}


class LossRows:
    """The rows of the logits whose loss counts, as far as this rank holds them.

    Attributes:
        train_rows: int64, rising; train_labels: int64, the class of each.
        count: by which the sum of losses is divided, at least 1.
        weights: by which each row's loss is multiplied, of the dtype of the logits; None for ones.
    """

    def __init__(self, rows: Array, labels: Array, count: int = 1, weights: Array = None) -> None:
        self.train_rows, self.train_labels, self.count, self.weights = rows, labels, max(count, 1), weights
        self._position: Array = None

    def position(self, height: int) -> Array:
        """int32[height]: where each row of this rank stands in `train_rows`, or -1."""
        if self._position is None:
            xp = backend.module(self.train_rows)
            self._position = xp.full(height, -1, dtype=np.int32)
            self._position[self.train_rows] = xp.arange(len(self.train_rows), dtype=np.int32)
        return self._position


class Targets(LossRows):
    """Labels and splits of the nodes whose logits this rank holds; the loss is the mean over training nodes.
    Collective.

    Args:
        layout: of the logits; every rank gives the labels of its own `layout.row_range`.
        classes: number of classes, the global width of the logits.
        labels: int[rows], -1 for unlabelled nodes, which belong to no part of the split; copied.
        split: uint8[rows], 0 none, 1 train, 2 val, 3 test; copied.

    Attributes:
        counts: labelled nodes of the whole graph per part of the split, by its number.
        rows, labels, parts: the labelled nodes of this rank that are in some part: local row, class, part.

    Raises:
        ValueError: wrong lengths, a label that is no class, a part that is none (on every rank).
    """

    def __init__(self, layout: Layout, classes: int, labels: Array, split: Array) -> None:
        self.layout, self.classes = layout, classes
        grid, on = layout.grid, layout.grid.backend
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
        self.rows, self.labels, self.parts = map(
            on.asarray, (rows, *(a[rows].astype(np.int64) for a in (labels, split)))
        )
        totals = on.asarray(np.bincount(split[rows], minlength=TEST + 1).astype(np.int64))
        grid.along(*layout.row_axes).allreduce(totals, matrix="loss")
        self.counts: list[int] = on.to_host(totals).tolist()
        train = rows[split[rows] == TRAIN]
        super().__init__(on.asarray(train), on.asarray(labels[train].astype(np.int64)), self.counts[TRAIN])


def softmax_cross_entropy(
    Z: DistDense, targets: LossRows, overwrite: bool = False
) -> tuple[float, DistDense]:
    """Cross-entropy summed over the rows of `targets`, times their weights, over their count; and its
    gradient by `Z`. Collective.

    Args:
        Z: logits, n x classes, cut as the targets are.
        overwrite: put the gradient where the logits were; otherwise `Z` is left alone.

    Returns:
        the loss, equal on every rank, and G, cut like Z: weight (softmax(Z) - onehot) / count in training
        rows, 0 elsewhere.

    Cost: two all-reduces of one word per local training node over the axes that cut the classes, one of one
    word.
    """
    layout, xp = Z.layout, backend.module(Z.block)
    with ledger.timed("loss", "softmax cross-entropy", synchronize=layout.grid.backend.synchronize):
        sums, own, gradient = _softmax(Z, targets, overwrite)
        losses = -own.astype(np.float64)
        if layout.grid.index(*layout.col_axes) == 0:  # all ranks of a row have the sums, one counts them
            losses += xp.log(sums.astype(np.float64))
        if targets.weights is not None:
            losses *= targets.weights
            gradient[targets.train_rows] *= targets.weights[:, None]
        loss = losses.sum().reshape(1)
        layout.grid.along(*layout.row_axes, *layout.col_axes).allreduce(loss, matrix="loss")
        return float(loss[0]) / targets.count, Z.like(gradient)


def _softmax(Z: DistDense, targets: LossRows, overwrite: bool) -> tuple[Array, Array, Array]:
    """Of each training row the sum of the exponentials of its logits less their largest, over all classes,
    and the logit of its own class less the largest, 0 where another rank holds that class; and the gradient
    without weights.
    """
    logits, share = Z.block, 1 / targets.count
    rows, labels = targets.train_rows, targets.train_labels
    across, xp = Z.layout.grid.along(*Z.layout.col_axes), backend.module(logits)
    if across.size == 1 and compiled(logits):
        gradient = logits if overwrite else xp.empty_like(logits)
        return *host.cross_entropy(logits, rows, labels, gradient, share), gradient
    if across.size == 1 and on_gpu(logits):
        losses, gradient = cuda.softmax_cross_entropy(
            logits, targets.position(len(logits)), labels, logits if overwrite else None, targets.count
        )
        return xp.ones_like(losses), -losses, gradient
    return _in_phases(Z, targets, logits if overwrite else xp.zeros_like(logits), share)


def _in_phases(Z: DistDense, targets: LossRows, gradient: Array, share: float) -> tuple[Array, Array, Array]:
    """The same by array operations, with all-reduces; `gradient` is zero, or the logits themselves."""
    logits = Z.block
    xp = backend.module(logits)
    across = Z.layout.grid.along(*Z.layout.col_axes)
    rows, labels = targets.train_rows, targets.train_labels
    blocks = _row_blocks(len(rows), logits.shape[1], xp)
    highest = xp.full(len(rows), -np.inf, dtype=logits.dtype)
    for part in blocks:
        highest[part] = logits[rows[part]].max(axis=1)
    across.allreduce(highest, "max", "loss")

    first, last = Z.col_range
    here = xp.flatnonzero((labels >= first) & (labels < last))  # nodes whose own class is in this block
    place = rows[here], labels[here] - first
    own = xp.zeros(len(rows), dtype=logits.dtype)
    own[here] = logits[place] - highest[here]  # read before they may be overwritten

    sums = xp.zeros(len(rows), dtype=logits.dtype)
    for part in blocks:
        E = logits[rows[part]]
        E -= highest[part, None]
        xp.exp(E, out=E)
        sums[part] = E.sum(axis=1)
        gradient[rows[part]] = E
    across.allreduce(sums, matrix="loss")
    if gradient is logits:
        others = xp.ones(len(logits), dtype=bool)
        others[rows] = False
        logits[others] = 0

    for part in blocks:
        gradient[rows[part]] *= (share / sums[part])[:, None]
    gradient[place] -= logits.dtype.type(share)
    return sums, own, gradient


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
    for part in _row_blocks(len(rows), logits.shape[1], xp):
        block = logits[rows[part]]
        choice[part] = block.argmax(axis=1) + Z.col_range[0]
        best[part] = block.max(axis=1)
    if across.size > 1:
        overall = across.allreduce(best.copy(), "max", "loss")
        choice[best != overall] = targets.classes
        across.allreduce(choice, "min", "loss")
    hits = xp.bincount(targets.parts[choice == targets.labels], minlength=TEST + 1).astype(np.int64)
    layout.grid.along(*layout.row_axes).allreduce(hits, matrix="loss")
    hits = hits.tolist()
    return {
        name: hits[part] / targets.counts[part] if targets.counts[part] else float("nan")
        for name, part in PARTS.items()
    }


def _row_blocks(count: int, width: int, xp: Any) -> list[slice]:
    """Row blocks that stay in cache; none where this rank has no classes."""
    if width == 0:
        return []
    step = rng.block_rows(width, xp)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]
