"""Masked softmax cross-entropy and accuracy, with rows cut over some grid axes and classes over others.

The logits are never gathered: of every training node two numbers travel over the axes that cut the classes,
the largest logit and the sum of exponentials. The loss is summed over the axes that cut the rows, not over
replicas. Logits are overwritten only where the caller gives them up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import ledger, rng
from distgnn.arrays import backend
from distgnn.layout import Cut, Layout
from distgnn.local import elementwise
from distgnn.operators.dense import DistDense, scatter

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

    def check(self, Z: DistDense) -> None:
        """ValueError unless these are rows of logits that are cut like Z."""


class Targets(LossRows):
    """Labels and splits of the nodes whose logits this rank holds; the loss is the mean over training nodes.
    Collective.

    Args:
        layout: of the logits.
        classes: number of classes, the global width of the logits.
        labels: int[n], that of node i in place i, -1 for unlabelled nodes, which belong to no part of the
            split. Rank 0 has them, others pass anything; or all pass n x 1 in rows like the logits.
        split: uint8[n], 0 none, 1 train, 2 val, 3 test, given likewise.

    Attributes:
        counts: labelled nodes of the whole graph per part of the split, by its number.
        rows, labels, parts: the labelled nodes of this rank that are in some part: local row, class, part.

    Raises:
        ValueError: wrong lengths or rows, no whole numbers, a label that is no class, a part that is none (on
            every rank).
    """

    def __init__(self, layout: Layout, classes: int, labels: Array, split: Array) -> None:
        self.layout, self.classes = layout, classes
        grid, on = layout.grid, layout.grid.backend
        labels, split = _own_rows("labels", labels, layout), _own_rows("split", split, layout)
        with grid.world.together():
            if labels.size and (labels.max() >= classes or labels.min() < -1):
                wrong = labels.max() if labels.max() >= classes else labels.min()
                raise ValueError(f"label {wrong} where there are {classes} classes")
            if split.size and (split.max() > TEST or split.min() < 0):
                raise ValueError("a split holds 0 (none), 1 (train), 2 (val) and 3 (test) only")
        rows = np.flatnonzero((split > 0) & (labels >= 0))
        known = rows, labels[rows].astype(np.int64), split[rows].astype(np.int64)
        self.rows, self.labels, self.parts = map(on.asarray, known)
        totals = on.asarray(np.bincount(split[rows], minlength=TEST + 1).astype(np.int64))
        grid.along(*layout.row_axes).allreduce(totals, matrix="loss")
        self.counts: list[int] = on.to_host(totals).tolist()
        train = split[rows] == TRAIN
        super().__init__(on.asarray(rows[train]), on.asarray(known[1][train]), self.counts[TRAIN])

    def check(self, Z: DistDense) -> None:
        if not Z.layout.same(self.layout, Z.shape):
            told = f"logits are cut over {Z.layout.words()}"
            raise ValueError(f"{told}, their targets over {self.layout.words()}")


def _own_rows(name: str, values: Any, layout: Layout) -> Array:
    """What belongs to the rows of this rank, on the host. Collective."""
    rows, world, on = Layout(layout.grid, layout.rows, Cut()), layout.grid.world, layout.grid.backend
    cut = world.share(isinstance(values, DistDense))
    with world.together():
        if cut:
            fits = isinstance(values, DistDense) and values.shape[1] == 1
            if not (fits and values.layout.same(rows, values.shape)):
                raise ValueError(f"{name} must be cut like the logits on all ranks, or an array on rank 0")
        elif world.rank == 0:
            values, parts = np.asarray(on.to_host(values)), layout.rows.parts
            if values.ndim != 1 or parts is None or len(values) != parts[-1]:
                nodes = "rows of any number" if parts is None else f"{parts[-1]} nodes"
                raise ValueError(f"{name} of shape {values.shape} given for {nodes}")
            values = values[:, None]
        if (cut or world.rank == 0) and values.dtype.kind not in "iub":
            raise ValueError(f"{name} must be whole numbers, got {values.dtype}")
    return on.to_host((values if cut else scatter(values, rows)).block)[:, 0]


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
    layout = Z.layout
    targets.check(Z)
    ledger.charge("loss", "softmax cross-entropy", touched=3 * Z.block.nbytes)
    with ledger.timed("loss", "softmax cross-entropy", synchronize=layout.grid.backend.synchronize):
        known = targets.train_rows, targets.train_labels, targets.position, targets.count
        whole = layout.grid.count(*layout.col_axes) == 1
        fused = elementwise.cross_entropy(Z.block, *known, overwrite) if whole else None
        losses, gradient = fused or _in_phases(Z, targets, overwrite)
        if targets.weights is not None:
            losses *= targets.weights
            gradient[targets.train_rows] *= targets.weights[:, None]
        loss = losses.sum().reshape(1)
        layout.grid.along(*layout.row_axes, *layout.col_axes).allreduce(loss, matrix="loss")
        return float(loss[0]) / targets.count, Z.like(gradient)


def _in_phases(Z: DistDense, targets: LossRows, overwrite: bool) -> tuple[Array, Array]:
    """The gradient without weights, and shares of the rows' losses that add up where classes are cut."""
    logits, layout, share = Z.block, Z.layout, 1 / targets.count
    xp, across = backend.module(logits), layout.grid.along(*layout.col_axes)
    gradient = logits if overwrite else xp.zeros_like(logits)
    rows, labels = targets.train_rows, targets.train_labels
    blocks = _row_blocks(len(rows), logits.shape[1], xp)
    highest = xp.full(len(rows), -np.inf, dtype=logits.dtype)
    for part in blocks:
        highest[part] = logits[rows[part]].max(axis=1)
    across.allreduce(highest, "max", "loss")

    first, last = Z.col_range
    here = xp.flatnonzero((labels >= first) & (labels < last))  # nodes whose own class is in this block
    place = rows[here], labels[here] - first
    losses = xp.zeros(len(rows))
    losses[here] -= logits[place] - highest[here]  # read before they may be overwritten
    sums = xp.zeros(len(rows), dtype=logits.dtype)
    for part in blocks:
        E = logits[rows[part]]
        E -= highest[part, None]
        xp.exp(E, out=E)
        sums[part] = E.sum(axis=1)
        gradient[rows[part]] = E
    across.allreduce(sums, matrix="loss")
    if layout.grid.index(*layout.col_axes) == 0:  # all ranks of a row have the sums, one counts them
        losses += xp.log(sums.astype(np.float64))
    if overwrite:
        others = xp.ones(len(logits), dtype=bool)
        others[rows] = False
        logits[others] = 0
    for part in blocks:
        gradient[rows[part]] *= (share / sums[part])[:, None]
    gradient[place] -= logits.dtype.type(share)
    return losses, gradient


def accuracies(Z: DistDense, targets: Targets) -> dict[str, float]:
    """train_acc, val_acc and test_acc of the logits `Z`. Collective.

    The prediction is the class of the largest logit, the smallest class where several are equal. NaN for a
    part that has no labelled nodes. Equal on every rank.

    FloatingPointError: a labelled node has a logit that is NaN or infinite (on every rank).

    Cost: two all-reduces of one word per local labelled node over the axes that cut the classes, one of four
    words.
    """
    logits, layout = Z.block, Z.layout
    targets.check(Z)
    xp = backend.module(logits)
    across = layout.grid.along(*layout.col_axes)
    best, choice = _best(Z, targets)
    wrong = ~(best < np.inf)
    if across.size > 1:
        overall = across.allreduce(best.copy(), "max", "loss")
        choice[best != overall] = targets.classes
        choice[wrong] = -1  # the lowest, so that all ranks of the row learn of it
        across.allreduce(choice, "min", "loss")
    hits = xp.bincount(targets.parts[choice == targets.labels], minlength=TEST + 1).astype(np.int64)
    hits[0] = xp.count_nonzero(wrong if across.size == 1 else choice < 0)  # no node has part 0
    layout.grid.along(*layout.row_axes).allreduce(hits, matrix="loss")
    hits = hits.tolist()
    if hits[0]:
        raise FloatingPointError(f"the logits of {hits[0]} labelled nodes are not finite")
    return {
        name: hits[part] / targets.counts[part] if targets.counts[part] else float("nan")
        for name, part in PARTS.items()
    }


def _best(Z: DistDense, targets: Targets) -> tuple[Array, Array]:
    """Of each labelled node the largest of this rank's logits, and its class."""
    logits, rows, xp = Z.block, targets.rows, backend.module(Z.block)
    best = xp.full(len(rows), -np.inf, dtype=logits.dtype)
    choice = xp.full(len(rows), targets.classes, dtype=np.int64)  # past the last class: none
    for part in _row_blocks(len(rows), logits.shape[1], xp):
        block = logits[rows[part]]
        choice[part] = block.argmax(axis=1) + Z.col_range[0]
        best[part] = block.max(axis=1)
    return best, choice


def _row_blocks(count: int, width: int, xp: Any) -> list[slice]:
    """Row blocks that stay in cache; none where this rank has no classes."""
    return rng.slices(count, width, xp) if width else []
