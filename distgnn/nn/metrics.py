"""Scores of logits, exactly over all ranks.

Accuracy; of several classes of a node micro F1 or ROC-AUC; of numbers R² and the mean absolute error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.arrays import backend, blocking
from distgnn.local import elementwise
from distgnn.nn.loss import Targets
from distgnn.operators.dense import DistDense
from distgnn.split import SPLITS, TEST

Array = Any


def scores(Z: DistDense, targets: Targets) -> dict[str, float]:
    """Score the logits by the targets' metric in each part of the split. Collective.

    The names are such as "val_acc", "val_f1", "val_rocauc" or "val_r2", beside which there is "val_mae".

    NaN for a part that has no labelled nodes. Equal on every rank.

    FloatingPointError: a labelled node has a logit that is NaN or infinite (on every rank).
    """
    known = {"accuracy": accuracies, "f1": micro_f1, "rocauc": macro_rocauc, "r2": determination}
    return known[targets.metric](Z, targets)


def accuracies(Z: DistDense, targets: Targets) -> dict[str, float]:
    """Return train_acc, val_acc and test_acc of the logits `Z`. Collective.

    The prediction is the class of the largest logit, the smallest class where several are equal. NaN for a
    part that has no labelled nodes. Equal on every rank.

    FloatingPointError: a labelled node has a logit that is NaN or infinite (on every rank).

    Cost: two all-reduces of one word per local labelled node over the axes that cut the classes, one of four
    words.
    """
    targets.check(Z)
    layout, known = Z.layout, (targets.rows, targets.labels, targets.parts)
    whole = layout.grid.count(*layout.col_axes) == 1
    hits = elementwise.count_hits(Z.block, *known) if whole else None
    hits = _hits(Z, targets) if hits is None else hits
    layout.grid.along(*layout.row_axes).allreduce(hits, matrix="loss")
    hits = hits.tolist()
    if hits[0]:
        raise FloatingPointError(f"the logits of {hits[0]} labelled nodes are not finite")
    return {
        f"{name}_acc": hits[part] / targets.counts[part] if targets.counts[part] else float("nan")
        for name, part in SPLITS.items()
    }


def _hits(Z: DistDense, targets: Targets) -> Array:
    """Count, of own rows, those predicted right by part, and first those that are not finite. Collective."""
    xp, across = backend.module(Z.block), Z.layout.grid.along(*Z.layout.col_axes)
    best, choice, wrong = _best(Z, targets)
    if across.size > 1:
        overall = across.allreduce(best.copy(), "max", "loss")
        choice[best != overall] = targets.classes
        choice[wrong] = -1  # the lowest, so that all ranks of the row learn of it
        across.allreduce(choice, "min", "loss")
    right = targets.parts[choice == targets.labels]
    counts = xp.bincount(right, minlength=TEST + 1) if right.size else xp.zeros(TEST + 1)  # CuPy wants one
    hits = counts.astype(np.int64)
    hits[0] = xp.count_nonzero(wrong if across.size == 1 else choice < 0)  # no node has part 0
    return hits


def _best(Z: DistDense, targets: Targets) -> tuple[Array, Array, Array]:
    """Find each labelled node's largest logit here, its class, and whether a logit is not finite."""
    logits, rows, xp = Z.block, targets.rows, backend.module(Z.block)
    best = xp.full(len(rows), -np.inf, dtype=logits.dtype)
    choice = xp.full(len(rows), targets.classes, dtype=np.int64)  # past the last class: none
    wrong = xp.zeros(len(rows), bool)
    for part in blocking.passes(logits, len(rows)):
        block = logits[rows[part]]
        choice[part] = block.argmax(axis=1) + Z.col_range[0]
        best[part] = block.max(axis=1)
        wrong[part] = ~((best[part] < np.inf) & (block.min(axis=1) > -np.inf))  # of NaN both are false
    return best, choice, wrong


def micro_f1(Z: DistDense, targets: Targets) -> dict[str, float]:
    """Return train_f1, val_f1 and test_f1: 2 TP / (2 TP + FP + FN). Collective; see :func:`scores`.

    Each is counted over all nodes and classes, as for PPI (Hamilton et al., NIPS 2017) and Yelp (Zeng et al.,
    ICLR 2020). A node is said to have the classes of positive logits. 0 where there is no such class and none
    is said.

    Cost: an all-reduce of twelve words.
    """
    logits, layout = Z.block, Z.layout
    targets.check(Z)
    xp = backend.module(logits)
    counts = xp.zeros((4, 3), np.int64)  # by part: true positives, said ones, those that there are
    of_rows = xp.zeros((3, len(targets.rows)), np.int64)
    for part in blocking.passes(logits, len(targets.rows)):
        z, there = logits[targets.rows[part]], targets.labels[part] > 0
        said = z > 0
        for row, mask in zip(of_rows, (said & there, said, there), strict=True):
            row[part] = mask.sum(axis=1)
        counts[0, 0] += (~xp.isfinite(z)).sum()  # no node has part 0
    for number in SPLITS.values():
        counts[number] = (of_rows * (targets.parts == number)).sum(axis=1)
    layout.grid.along(*layout.row_axes, *layout.col_axes).allreduce(counts, matrix="loss")
    counted = counts.tolist()
    _refuse(counted[0][0])
    return {
        f"{name}_f1": 2 * hits / max(said + there, 1) if targets.counts[part] else float("nan")
        for name, part in SPLITS.items()
        for hits, said, there in [counted[part]]
    }


def macro_rocauc(Z: DistDense, targets: Targets) -> dict[str, float]:
    """Return train_rocauc, val_rocauc and test_rocauc. Collective; see :func:`scores`.

    Each is the mean over classes of the probability that a node with the class has a higher logit than one
    without, half where they are equal. Classes that all nodes of the part have, or none, are left out, as
    OGB's evaluator does (Hu et al., NeurIPS 2020); NaN where no class is left.

    Cost: an all-to-allv of the labelled nodes' logits among the ranks that share columns, and an all-reduce
    of eight words.
    """
    layout, columns = Z.layout, targets.columns
    targets.check(Z)
    assert columns is not None
    on, logits = layout.grid.backend, columns.take(Z.block)
    sums = np.zeros((4, 2))  # by part: areas, and of how many classes
    for number in SPLITS.values():
        sums[number] = _areas(logits, columns.labels, columns.places[number])
    sums[0, 0] = float((~on.xp.isfinite(logits)).sum())  # no node has part 0
    total = on.asarray(sums)
    layout.grid.along(*layout.row_axes, *layout.col_axes).allreduce(total, matrix="loss")
    totals = on.to_host(total).tolist()
    _refuse(totals[0][0])
    return {
        f"{name}_rocauc": totals[part][0] / totals[part][1] if totals[part][1] else float("nan")
        for name, part in SPLITS.items()
    }


def _areas(logits: Array, labels: Array, rows: Array) -> tuple[float, int]:
    """Sum the areas under the ROC curves of columns that have both labels in these rows, and count them."""
    xp, area, count = backend.module(logits), 0.0, 0
    columns = (xp.ascontiguousarray(block[rows].T) for block in (logits, labels))
    for z, y in zip(*columns, strict=True):
        there = y > 0
        with_it, without = xp.sort(z[there]), xp.sort(z[~there])
        if with_it.size and without.size:
            below = sum(xp.searchsorted(without, with_it, side).sum() for side in ("left", "right"))
            area += int(below) / (2 * with_it.size * without.size)  # in whole numbers: pairs, ties half
            count += 1
    return area, count


def determination(Z: DistDense, targets: Targets) -> dict[str, float]:
    """Compute R² and the mean absolute error. Collective; see :func:`scores`.

    train_r2, val_r2 and test_r2: the mean over columns of 1 - Σ(y - z)² / Σ(y - mean of y)², over the
    nodes of the part; then train_mae, val_mae and test_mae: the mean of |y - z|, over nodes and columns. A
    column whose y are all equal counts 1 where z are these numbers, else 0, as in scikit-learn; R² of fewer
    than two nodes is NaN. Sums are of float64.

    Cost: an all-reduce of eight words for each column of this rank over the axes that cut the rows, and one
    of eight words over those that cut the columns.
    """
    logits, layout = Z.block, Z.layout
    targets.check(Z)
    xp = backend.module(logits)
    sums = xp.zeros((2, TEST + 1, logits.shape[1]))  # squares, absolutes; by part and column
    for part in blocking.passes(logits, len(targets.rows)):
        far = logits[targets.rows[part]].astype(np.float64) - targets.labels[part]
        sums[0, 0] += (~xp.isfinite(far)).sum(axis=0)  # no node has part 0
        for number in SPLITS.values():
            some = far[targets.parts[part] == number]
            sums[0, number] += (some * some).sum(axis=0)
            sums[1, number] += abs(some).sum(axis=0)
    layout.grid.along(*layout.row_axes).allreduce(sums, matrix="loss")
    squares, spread = sums[0], targets.spread
    exact = 1.0 * (squares == 0)
    shares = xp.where(spread > 0, 1 - squares / xp.where(spread > 0, spread, 1), exact)
    shares[0] = squares[0]
    total = xp.stack([shares.sum(axis=1), sums[1].sum(axis=1)])
    layout.grid.along(*layout.col_axes).allreduce(total, matrix="loss")
    by_part = backend.of(total).to_host(total).tolist()
    _refuse(by_part[0][0])
    return _means(by_part, targets)


def _means(sums: list[list[float]], targets: Targets) -> dict[str, float]:
    """Divide sums over columns, of R², and over nodes and columns, of absolute errors, both by part."""
    named = {}
    for row, (short, least) in enumerate((("r2", 2), ("mae", 1))):
        for name, part in SPLITS.items():
            count = targets.counts[part]
            divisor = targets.classes * (count if short == "mae" else 1)
            named[f"{name}_{short}"] = sums[row][part] / divisor if count >= least else float("nan")
    return named


def _refuse(count: float) -> None:
    if count:
        raise FloatingPointError(f"{int(count)} logits of labelled nodes are not finite")
