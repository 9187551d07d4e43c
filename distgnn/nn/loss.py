"""Losses of labelled nodes, with rows cut over some grid axes and classes over others.

Where a node has one class, the loss is softmax cross-entropy; where it may have several, the mean over nodes
and classes of the binary cross-entropy of each; where labels are floats, numbers to predict, the mean over
nodes and columns of the squared difference. The logits are never gathered: for softmax two numbers of
every training node travel over the axes that cut the classes, the largest logit and the sum of exponentials.
The loss is summed over the axes that cut the rows, not over replicas. Logits are overwritten only where the
caller gives them up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from distgnn import ledger
from distgnn.arrays import backend, blocking
from distgnn.arrays.backend import Backend
from distgnn.arrays.workspace import Borrow
from distgnn.comm.staging import read_later
from distgnn.errors import ArgumentError
from distgnn.layout import Cut, Layout, Range
from distgnn.ledger import holds
from distgnn.local import elementwise
from distgnn.nn.columns import Columns
from distgnn.operators.dense import DistDense, scatter
from distgnn.split import TEST, TRAIN, labelled

Array = Any
Loss = Callable[[], float]  # waits for it on a device

#: Metrics by loss, the default first. With "r2" comes the mean absolute error.
METRICS = {"softmax": ("accuracy",), "binary": ("f1", "rocauc"), "mse": ("r2",)}
NAMES = {"softmax": "softmax cross-entropy", "binary": "binary cross-entropy", "mse": "squared error"}
LABELS = {"softmax": "one class of a node", "binary": "several classes of a node", "mse": "numbers of a node"}


class Total(NamedTuple):
    """The sum of the losses of all rows, (1), where it was computed; and what makes the loss of it."""

    on: Backend
    array: Array
    loss: Callable[[float], float]

    def begin_reading(self) -> Loss:
        """Begin to read it; return a function that waits for it, while a device does what is queued."""
        read = read_later(self.on, self.array)
        return lambda: self.loss(float(read()[0]))


class LossRows:
    """The rows of the logits whose loss counts, as far as this rank holds them.

    Attributes:
        train_rows: int64, rising; train_labels: int64, the class of each; or uint8 (rows, this rank's columns
            of the logits), 1 for each class that a node has and 0 for the others; or numbers to predict,
            float (rows, this rank's columns).
        count: by which the sum of losses is divided, at least 1.
        weights: by which each row's loss is multiplied, of the dtype of the logits; None for ones.
    """

    def __init__(self, rows: Array, labels: Array, count: int = 1, weights: Array = None) -> None:
        self.train_rows, self.train_labels, self.count, self.weights = rows, labels, max(count, 1), weights
        self._position: Array = None

    @property
    def loss(self) -> str:
        """The loss that the labels have: "softmax", "binary" or "mse"."""
        return loss_of(self.train_labels.dtype, self.train_labels.ndim)

    def position(self, height: int) -> Array:
        """Return where each row of this rank stands in `train_rows`, or -1: int32[height]."""
        if self._position is None:
            xp = backend.module(self.train_rows)
            self._position = xp.full(height, -1, dtype=np.int32)
            self._position[self.train_rows] = xp.arange(len(self.train_rows), dtype=np.int32)
        return self._position

    def check(self, Z: DistDense) -> None:
        """Raise ValueError unless these are rows of logits that are cut like Z."""


class Targets(LossRows):
    """Labels and splits of the nodes whose logits this rank holds. Collective.

    The loss is the mean over training nodes.

    Args:
        layout: of the logits.
        classes: number of classes, the global width of the logits.
        labels: int[n], that of node i in place i, -1 for unlabelled nodes, which belong to no part of the
            split; or int[n, classes], 1 for each class that a node has, else 0, and -1 in all of the row of
            an unlabelled one; or numbers to predict, float[n] or float[n, classes], NaN in all of the row of
            an unlabelled node. Rank 0 has them, others pass anything; or all pass n x 1, or n x classes, in
            rows like the logits.
        split: uint8[n], 0 none, 1 train, 2 val, 3 test, given likewise.
        metric: what to measure, one of METRICS; default: by the labels.

    Attributes:
        counts: labelled nodes of the whole graph per part of the split, by its number.
        rows, labels, parts: the labelled nodes of this rank that are in some part: local row, class, part; or
            for several classes uint8, for numbers float (rows, this rank's columns of the logits).
        metric: "accuracy", "f1", "rocauc" or "r2". columns: what brings whole columns of the logits for
            "rocauc". spread: for "r2" float64 (4, this rank's columns), by part of the split the sum over its
            nodes of the squared difference of a label from the part's mean.

    Raises:
        ValueError: wrong lengths or rows, a label that is no class, an infinite number, a part that is none
            (on every rank).
        ArgumentError: a metric that these labels do not have (on every rank).
    """

    columns: Columns | None = None
    spread: Array = None

    def __init__(
        self, layout: Layout, classes: int, labels: Array, split: Array, metric: str | None = None
    ) -> None:  # fmt: skip
        self.layout, self.classes = layout, classes
        grid, on = layout.grid, layout.grid.backend
        grid.world.agree({"metric": metric})
        labels = _own_rows("labels", labels, layout, classes)
        split = _own_rows("split", split, layout)[:, 0]
        loss = loss_of(labels.dtype, 1 + (labels.shape[1] > 1))
        self.metric = checked_metric(metric, loss)
        with grid.world.together():
            (check_numbers if loss == "mse" else _check_labels)(labels, classes)
            if split.size and (split.max() > TEST or split.min() < 0):
                raise ValueError("a split holds 0 (none), 1 (train), 2 (val) and 3 (test) only")
        rows = np.flatnonzero((split > 0) & labelled(labels))
        own = 0 if loss == "softmax" else slice(*layout.cols.range(grid, classes))
        kinds = {"softmax": np.int64, "binary": np.uint8, "mse": labels.dtype}
        own_labels = np.ascontiguousarray(labels[rows, own], kinds[loss])
        self.rows, self.labels, self.parts = map(on.asarray, (rows, own_labels, split[rows].astype(np.int64)))
        totals = on.asarray(np.bincount(split[rows], minlength=TEST + 1).astype(np.int64))
        grid.along(*layout.row_axes).allreduce(totals, matrix="loss")
        self.counts: list[int] = on.to_host(totals).tolist()
        train = split[rows] == TRAIN
        super().__init__(on.asarray(rows[train]), on.asarray(own_labels[train]), self.counts[TRAIN])
        self.prepare(own_labels, split[rows])

    def prepare(self, labels: np.ndarray, parts: np.ndarray) -> None:
        """Make what the metric needs, of `labels` and `parts` on the host. Collective."""
        if self.loss != "softmax":
            holds(self, "labels", self.labels.nbytes + self.train_labels.nbytes)
        if self.metric == "r2":
            self.spread = self._spread(labels, parts)
        if self.metric == "rocauc":
            self.columns = Columns(self.layout, self.classes, self.rows, self.parts, self.labels)

    def _spread(self, labels: np.ndarray, parts: np.ndarray) -> Array:
        """Make `spread`, of differences from the means of all ranks. Collective."""
        on, across = self.layout.grid.backend, self.layout.grid.along(*self.layout.row_axes)
        means = np.zeros((TEST + 1, labels.shape[1]))
        for power in (1, 2):  # sums first, then sums of squares around their means
            here = [((labels[parts == k] - means[k]) ** power).sum(axis=0) for k in range(TEST + 1)]
            total = on.asarray(np.array(here, np.float64))
            across.allreduce(total, matrix="loss")
            means = on.to_host(total) / np.maximum(self.counts, 1)[:, None]
        return total

    def check(self, Z: DistDense) -> None:
        if not Z.layout.same(self.layout, Z.shape):
            problem = f"logits are cut over {Z.layout.words()}"
            raise ValueError(f"{problem}, their targets over {self.layout.words()}")


def loss_of(dtype: Any, ndim: int) -> str:
    """Return the loss of labels of this dtype: of numbers, of rows of zeros and ones, or of a class each."""
    return "mse" if np.dtype(dtype).kind == "f" else "binary" if ndim == 2 else "softmax"


def checked_loss(loss: str | None, own: str, class_names: Any = None) -> str:
    """Return the loss, or by default the labels' `own`; ArgumentError where the labels have no such loss.

    Whole numbers without names may be numbers to predict.
    """
    if loss is None or loss == own:
        return own
    if loss != "mse":
        raise ArgumentError("loss", loss, f"{LABELS[own]} {_have(own)} the loss {own}")
    if class_names:
        problem = f"the classes have names, such as {class_names[0]!r}, and names are no numbers to predict"
        raise ArgumentError("loss", loss, f"{problem}; prepare with regression=True takes numbers")
    return loss


def outputs(loss: str, own: str, classes: int) -> int:
    """Return the width of the logits: `classes`, or 1 where a class is predicted as a number."""
    return 1 if (loss, own) == ("mse", "softmax") else classes


def as_numbers(labels: Array) -> Array:
    """Convert labels to numbers to predict: floats unchanged; others to float64, NaN for those below 0."""
    return labels if labels.dtype.kind == "f" else np.where(labels < 0, np.nan, labels.astype(np.float64))


def _have(loss: str) -> str:
    return "have" if LABELS[loss].split()[0] != "one" else "has"


def checked_metric(metric: str | None, loss: str) -> str:
    """Return the metric, or by default the first; ArgumentError where labels of this loss have no such."""
    known = METRICS[loss]
    if metric is None or metric in known:
        return metric or known[0]
    equal = "; its micro F1 is the accuracy" if (metric, loss) == ("f1", "softmax") else ""
    raise ArgumentError("metric", metric, f"{LABELS[loss]} {_have(loss)} {' and '.join(known)}{equal}")


def check_numbers(labels: Array, columns: int) -> None:
    """Raise ValueError for infinite numbers, rows that have some only, or another width."""
    if labels.shape[1] != columns:
        raise ValueError(f"labels of {labels.shape[1]} columns where the network has {columns} outputs")
    if np.isinf(labels).any():
        raise ValueError("a label is infinite; expected finite numbers to predict, or NaN for none")
    if (np.isnan(labels) != np.isnan(labels[:, :1])).any():
        raise ValueError("a node has NaN in some columns only; an unlabelled one has NaN in all its row")


def _check_labels(labels: Array, classes: int) -> None:
    """Raise ValueError for labels that are none, or for a row that has some only."""
    below = 2 if labels.shape[1] > 1 else classes
    if labels.size and (labels.max() >= below or labels.min() < -1):
        wrong = labels.max() if labels.max() >= below else labels.min()
        expected = f"{classes} classes" if labels.shape[1] == 1 else "0 and 1 for each class"
        raise ValueError(f"label {wrong} where there are {expected}")
    if ((labels < 0) != (labels[:, :1] < 0)).any():
        raise ValueError("a node has labels of some classes only; an unlabelled one has -1 in all its row")


def _own_rows(name: str, values: Any, layout: Layout, width: int = 1) -> Array:
    """Return the values of this rank's rows, one column or so many, on the host. Collective."""
    rows, world, on = Layout(layout.grid, layout.rows, Cut()), layout.grid.world, layout.grid.backend
    cut = world.share(isinstance(values, DistDense))
    with world.together():
        if cut:
            fits = isinstance(values, DistDense) and values.shape[1] in (1, width)
            if not (fits and values.layout.same(rows, values.shape)):
                raise ValueError(f"{name} must be cut like the logits on all ranks, or an array on rank 0")
        elif world.rank == 0:
            values, parts = np.asarray(on.to_host(values)), layout.rows.parts
            wide = values.ndim == 2 and 1 < values.shape[1] == width
            if not (values.ndim == 1 or wide) or parts is None or len(values) != parts[-1]:
                nodes = "rows of any number" if parts is None else f"{parts[-1]} nodes"
                raise ValueError(f"{name} of shape {values.shape} given for {nodes}")
            values = values if wide else values[:, None]
        if (cut or world.rank == 0) and values.dtype.kind not in ("iub" if name == "split" else "iubf"):
            expected = "whole numbers" if name == "split" else "real numbers"
            raise ValueError(f"{name} must be {expected}, got {values.dtype}")
    return on.to_host((values if cut else scatter(values, rows)).block)


def cross_entropy(Z: DistDense, targets: LossRows, overwrite: bool = False) -> tuple[float, DistDense]:
    """Compute the loss of the targets and its gradient. Collective.

    The loss is the squared error of numbers, binary where nodes have several classes, else softmax
    cross-entropy; arguments and results are those of each.
    """
    total, G = queue_loss(Z, targets, overwrite)
    return total.begin_reading()(), G


def queue_loss(
    Z: DistDense, targets: LossRows, overwrite: bool = False, out: DistDense | None = None
) -> tuple[Total, DistDense]:
    """Compute as :func:`cross_entropy`, but leave the loss where it is. Collective.

    out: room in 16 bits for the gradient, of a loss that :func:`rounds` on a GPU that has all classes.
    """
    if targets.loss == "softmax":
        return _of_rows(Z, targets, overwrite, out)
    kernels = {"mse": elementwise.squared_error, "binary": elementwise.binary_cross_entropy}
    return _of_entries(Z, targets, overwrite, NAMES[targets.loss], kernels[targets.loss])


def rounds(targets: LossRows) -> bool:
    """Tell whether a kernel writes the gradient of this loss in 16 bits."""
    return targets.loss == "softmax" and targets.weights is None


def squared_error(Z: DistDense, targets: LossRows, overwrite: bool = False) -> tuple[float, DistDense]:
    """Compute (z - y)², the mean over columns, and its gradient by `Z`. Collective.

    Rows of `targets` are summed, times their weights, over their count. Arguments, results and cost are those
    of :func:`binary_cross_entropy`, G with 2 weight (Z - labels) / (count columns) in training rows.
    """
    total, G = _of_entries(Z, targets, overwrite, NAMES["mse"], elementwise.squared_error)
    return total.begin_reading()(), G


def binary_cross_entropy(Z: DistDense, targets: LossRows, overwrite: bool = False) -> tuple[float, DistDense]:
    """Compute the binary cross-entropy over the rows of `targets`, and its gradient by `Z`. Collective.

    A node's loss is the mean over classes of -log σ(z) where the node has the class and -log(1 - σ(z)) where
    it has not. The losses are summed over the rows, times their weights, over their count.

    Args: as of :func:`softmax_cross_entropy`.

    Returns:
        the loss, equal on every rank, and G, cut like Z: weight (σ(Z) - labels) / (count classes) in training
        rows, 0 elsewhere.

    Cost: an all-reduce of one word.
    """
    total, G = _of_entries(Z, targets, overwrite, NAMES["binary"], elementwise.binary_cross_entropy)
    return total.begin_reading()(), G


def _of_entries(
    Z: DistDense, targets: LossRows, overwrite: bool, name: str, kernel: Any
) -> tuple[Total, DistDense]:
    """Compute a loss that is a mean over entries, and its gradient, by a kernel. Collective."""
    layout = Z.layout
    targets.check(Z)
    ledger.charge("loss", name, touched=3 * Z.block.nbytes)
    with ledger.timed("loss", name, on=layout.grid.backend):
        share = 1 / (targets.count * Z.shape[1])
        known = targets.train_rows, targets.train_labels, targets.position, share
        losses, gradient = kernel(Z.block, *known, Z.block if overwrite else None)
        if targets.weights is not None:
            losses *= targets.weights
            gradient[targets.train_rows] *= targets.weights[:, None]
        loss = losses.sum().reshape(1)
        layout.grid.along(*layout.row_axes, *layout.col_axes).allreduce(loss, matrix="loss")
    return Total(layout.grid.backend, loss, lambda total: total * share), Z.like(gradient)


def softmax_cross_entropy(
    Z: DistDense, targets: LossRows, overwrite: bool = False
) -> tuple[float, DistDense]:
    """Compute the cross-entropy over the rows of `targets`, and its gradient by `Z`. Collective.

    The losses are summed over the rows, times their weights, over their count.

    Args:
        Z: logits, n x classes, cut as the targets are.
        overwrite: put the gradient where the logits were; otherwise `Z` is left alone.

    Returns:
        the loss, equal on every rank, and G, cut like Z: weight (softmax(Z) - onehot) / count in training
        rows, 0 elsewhere.

    Cost: two all-reduces of one word per local training node over the axes that cut the classes, one of one
    word.
    """
    total, G = _of_rows(Z, targets, overwrite)
    return total.begin_reading()(), G


def _of_rows(
    Z: DistDense, targets: LossRows, overwrite: bool, out: DistDense | None = None
) -> tuple[Total, DistDense]:
    """Compute softmax cross-entropy and its gradient. Collective."""
    layout = Z.layout
    targets.check(Z)
    ledger.charge("loss", NAMES["softmax"], touched=3 * Z.block.nbytes)
    timed = ledger.timed("loss", NAMES["softmax"], on=layout.grid.backend)
    with timed, layout.grid.workspace.lending() as borrow:
        known = targets.train_rows, targets.train_labels, targets.position, targets.count
        whole = layout.grid.count(*layout.col_axes) == 1
        place = out.block if out is not None else Z.block if overwrite else None
        fused = elementwise.cross_entropy(Z.block, *known, place) if whole else None
        losses, gradient = fused or _in_phases(Z, targets, overwrite, borrow)
        if targets.weights is not None:
            losses *= targets.weights
            gradient[targets.train_rows] *= targets.weights[:, None]
        loss = losses.sum().reshape(1)
        layout.grid.along(*layout.row_axes, *layout.col_axes).allreduce(loss, matrix="loss")
    return Total(layout.grid.backend, loss, lambda total: total / targets.count), Z.like(gradient)


def _in_phases(
    Z: DistDense, targets: LossRows, overwrite: bool, borrow: Borrow
) -> tuple[Array, Array]:  # fmt: skip
    """Compute the gradient without weights, and the rows' losses, in shares where classes are cut.

    ``borrow``: as of a workspace, for what there is of a row.
    """
    logits, layout, share = Z.block, Z.layout, 1 / targets.count
    xp, across = backend.module(logits), layout.grid.along(*layout.col_axes)
    gradient = logits if overwrite else xp.zeros_like(logits)
    rows, own_class = targets.train_rows, partial(_own_class, xp, Z.col_range, targets)
    blocks = blocking.passes(logits, len(rows))
    highest, sums, losses = (borrow((len(rows),), dtype) for dtype in (logits.dtype, logits.dtype, float))
    for array, begun in ((highest, -np.inf), (sums, 0), (losses, 0)):
        array[...] = begun
    for part in blocks:
        highest[part] = logits[rows[part]].max(axis=1)
    across.allreduce(highest, "max", "loss")

    for part in blocks:
        here, place = own_class(part)
        losses[part][here] -= logits[place] - highest[part][here]  # read before they may be overwritten
        E = logits[rows[part]]
        E -= highest[part, None]
        xp.exp(E, out=E)
        sums[part] = E.sum(axis=1)
        gradient[rows[part]] = E
    across.allreduce(sums, matrix="loss")
    if layout.grid.index(*layout.col_axes) == 0:  # all ranks of a row have the sums, one counts them
        for part in blocking.passes(losses):
            losses[part] += xp.log(sums[part].astype(np.float64))
    if overwrite:
        elementwise.clear_others(logits, rows)
    for part in blocks:
        gradient[rows[part]] *= (share / sums[part])[:, None]
        gradient[own_class(part)[1]] -= logits.dtype.type(share)
    return losses, gradient


def _own_class(xp: Any, columns: Range, targets: LossRows, part: slice) -> tuple[Array, tuple[Array, Array]]:
    """Return which of some training rows have their class among these columns, and where in the block."""
    rows, labels = targets.train_rows[part], targets.train_labels[part]
    here = xp.flatnonzero((labels >= columns[0]) & (labels < columns[1]))
    return here, (rows[here], labels[here] - columns[0])
