"""Graphs as a dry run knows them: exactly, or how many non-zeros stand where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.csr import Shape
from distgnn.layout import Layout, Range
from distgnn.nn.loss import LossRows, Targets, as_numbers, checked_loss, checked_metric, loss_of, outputs
from distgnn.operators.sources import BlockSource, MatrixSource
from distgnn.plan.dry.shapes import ShapeMatrix
from distgnn.plan.reuse import Reuse, of_source
from distgnn.split import TEST, TRAIN, labelled
from distgnn.store.read.neighbours import Neighbours
from distgnn.store.read.store import Store

#: (first, last) -> int labels and uint8 parts of the split of these nodes, by position.
Labels = Callable[[int, int], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Graph:
    """A graph to plan for.

    Attributes:
        source: of the adjacency matrix, n x n, of the values' dtype; odd: of odd layers, where an order has
            two versions.
        width: of the features; classes: number of them, or of the numbers to predict.
        labels: of nodes by position, or None where none are known; counts: of labelled nodes per part of the
            split, by its number.
        parts: the partition vector of an order that was made by partition, or None.
        loss: of the labels, as ``nn.loss.METRICS`` names it; labels are floats or rows accordingly.
        feature_nnz: entries of sparse features, taken to be evenly spread; None: they are dense.
        loops: entries on the diagonal, evenly spread, where the source is a histogram; directed: whether an
            edge (i, j) may lack its reverse.
        entries: the matrix itself, of which some rows may be read, where the source is a histogram; or None.
    """

    source: BlockSource
    width: int
    classes: int
    labels: Labels | None
    counts: Sequence[int]
    odd: BlockSource | None = None
    parts: np.ndarray | None = None
    loss: str = "softmax"
    loops: int = 0
    directed: bool = True
    feature_nnz: int | None = None
    entries: BlockSource | None = None

    @property
    def n(self) -> int:
        """Nodes."""
        return self.source.shape[0]

    @property
    def multilabel(self) -> bool:
        """True if a node may have several of the classes."""
        return self.loss == "binary"

    @property
    def even(self) -> bool:
        """True if nothing but their number is known of the non-zeros."""
        return isinstance(self.source, Histogram) and self.source.nnz.size == 1

    @property
    def nnz(self) -> int:
        """Non-zeros of the adjacency matrix."""
        known = getattr(self.source, "nnz", None)
        return int(np.sum(known)) if known is not None else int(self.source.block(*[(0, self.n)] * 2).nnz)

    @cached_property
    def reuse(self) -> Reuse:
        """Reads of a dense matrix that a cache answers, when this graph multiplies it."""
        source = self.entries or self.source
        return of_source(source, self.nnz * source.shape[0] // max(self.n, 1))

    @cached_property
    def neighbours(self) -> Graph:
        """The graph without the diagonal of its matrix, as networks with `neighbours` multiply it."""
        if isinstance(self.source, Histogram):
            return replace(self, source=self.source.off_diagonal(self.loops, not self.directed), loops=0)
        return replace(self, source=Known(Neighbours(self.source, not self.directed)))

    def grown(self, factor: float) -> Graph:
        """Grow the graph to so many times the nodes and non-zeros, in the same places of the matrix.

        Its histogram, scaled.
        """
        source = _grown(self.source, self.nnz, factor)
        odd = None if self.odd is None else _grown(self.odd, self.nnz, factor)
        parts = None if self.parts is None else _times(self.parts, factor)
        trained = _trained(source.shape[0], self.counts[TRAIN] / max(self.n, 1))
        loops = round(self.loops * factor)
        made: Any = {"odd": odd, "parts": parts, "loops": loops, "entries": self.entries or self.source}
        made["feature_nnz"] = None if self.feature_nnz is None else round(self.feature_nnz * factor)
        return replace(self, source=source, labels=None, counts=trained, **made)

    @classmethod
    def known(
        cls, matrix: Any, width: int, classes: int, labels: np.ndarray, split: np.ndarray,
        dtype: Any = np.float32,
    ) -> Graph:  # fmt: skip
        """Make the graph of a matrix in memory, or of a block source, with all labels and splits."""
        source = matrix if hasattr(matrix, "block") else MatrixSource(matrix, dtype)
        own = lambda first, last: (labels[first:last], split[first:last])  # noqa: E731
        loss = loss_of(labels.dtype, labels.ndim)
        stored = sp.coo_array(source.block((0, source.shape[0]), (0, source.shape[1])))
        loops = np.count_nonzero(stored.row == stored.col)
        made: Any = {"loss": loss, "loops": int(loops), "directed": not source.symmetric}
        return cls(source, width, classes, own, _counts(labels, split), **made)

    @classmethod
    def of_size(
        cls, n: int, nnz: int, width: int, classes: int, trained: float = 0.1, symmetric: bool = True,
        dtype: Any = np.float32, multilabel: bool = False, loss: str | None = None,
    ) -> Graph:  # fmt: skip
        """Make a graph of n nodes, of which this share is in the training split, with as many non-zeros
        everywhere, and the diagonal among them.
        """
        ends = np.array([0, n])
        source = Histogram(ends, ends, np.array([[nnz]]), np.dtype(dtype), symmetric)
        loss = checked_loss(loss, "binary" if multilabel else "softmax")
        kind: Any = {"loss": loss, "loops": min(n, nnz), "directed": not symmetric}
        return cls(source, width, classes, None, _trained(n, trained), **kind)

    @classmethod
    def of_store(
        cls,
        store: Store,
        order: str | None = None,
        dtype: Any = np.float32,
        layers: int = 2,
        exact: bool = True,
        loss: str | None = None,
    ) -> Graph:
        """Make the graph of a store, for a network of so many layers.

        Itself, read when it is asked for and kept, with its labels; or its histogram of shards.
        """
        stored = store.order(order)
        output = stored.layer(layers - 1)
        sources: list[Any] = []
        for version in stored.versions:
            version.dtype = np.dtype(dtype)
            table = version.rows, version.cols, version.shard_nnz
            sources.append(Known(version) if exact else Histogram(*table, version.dtype, version.symmetric))
        loss = checked_loss(loss, store.loss, store.manifest["class_names"])
        width, classes = store.width, outputs(loss, store.loss, store.classes)
        made: Any = {"odd": sources[1] if len(sources) > 1 else None, "parts": stored.partition}
        made |= {"loss": loss, "directed": store.manifest["directed"], "feature_nnz": store.feature_nnz}
        made["entries"] = None if exact else stored.versions[0]
        made["loops"] = store.nnz - round(store.manifest["degrees"]["mean"] * store.n)
        if not exact:
            trained = (store.manifest["split"] or {}).get("train", 0)
            return cls(sources[0], width, classes, None, _trained(store.n, trained / max(store.n, 1)), **made)
        labels, split = store.labels(output), store.split(output)
        labels = as_numbers(labels) if loss == "mse" else labels
        own = lambda first, last: (labels[first:last], split[first:last])  # noqa: E731
        return cls(sources[0], width, classes, own, _counts(labels, split), **made)


class Known:
    """The blocks of a source one by one, each for the rank that asks: no ranks read them together. All of the
    matrix is read once, and kept.
    """

    def __init__(self, source: BlockSource) -> None:
        self.shape, self.dtype, self.symmetric = source.shape, source.dtype, source.symmetric
        self.source, self.nnz = source, getattr(source, "nnz", None)

    @cached_property
    def matrix(self) -> sp.csr_array:
        """The whole matrix, in memory."""
        return self.source.block((0, self.shape[0]), (0, self.shape[1]))

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        """Return rows and columns as CSR."""
        return self.matrix[rows[0] : rows[1], cols[0] : cols[1]]


@dataclass
class Histogram:
    """A block source that knows how many non-zeros stand between rows and columns, evenly within each cell.

    Attributes:
        rows, cols: partition vectors; nnz: int64, by cell.
    """

    rows: np.ndarray
    cols: np.ndarray
    nnz: np.ndarray
    dtype: np.dtype
    symmetric: bool

    def __post_init__(self) -> None:
        self.shape: Shape = int(self.rows[-1]), int(self.cols[-1])
        self.known: dict[tuple[Shape, int], ShapeMatrix] = {}  # by shape and entries

    def block(self, rows: Range, cols: Range) -> ShapeMatrix:
        """Return a matrix without numbers, with as many entries as the shards let expect."""
        key = (rows[1] - rows[0], cols[1] - cols[0]), self._entries(rows, cols)
        if key not in self.known:
            self.known[key] = ShapeMatrix(*key, self.dtype)
        return self.known[key]

    def _entries(self, rows: Range, cols: Range) -> int:
        if self.nnz.size == 1:
            height, width = (some[1] - some[0] for some in (rows, cols))
            n, m = (max(size, 1) for size in self.shape)
            return round(height / n * int(self.nnz[0, 0]) * (width / m))
        cells = [_shares(vector, some) for vector, some in ((self.rows, rows), (self.cols, cols))]
        (top, of_rows), (left, of_cols) = cells
        table = self.nnz[top : top + len(of_rows), left : left + len(of_cols)]
        return round(float(of_rows @ table @ of_cols))

    def off_diagonal(self, loops: int, symmetric: bool) -> Histogram:
        """Return the same without so many entries of the diagonal, evenly spread over it."""
        first = np.maximum.outer(self.rows[:-1], self.cols[:-1])
        last = np.minimum.outer(self.rows[1:], self.cols[1:])
        on_diagonal = np.rint(np.maximum(last - first, 0) * (loops / max(self.shape[0], 1)))
        others = np.maximum(self.nnz - on_diagonal.astype(np.int64), 0)
        return Histogram(self.rows, self.cols, others, self.dtype, symmetric)


def _grown(source: BlockSource, nnz: int, factor: float) -> Histogram:
    ends = np.array([0, source.shape[0]])
    cells = ends, ends, np.array([[nnz]])
    if isinstance(source, Histogram):
        cells = source.rows, source.cols, source.nnz
    rows, cols, counts = (_times(cell, factor) for cell in cells)
    return Histogram(rows, cols, counts, source.dtype, source.symmetric)


def _times(numbers: np.ndarray, factor: float) -> np.ndarray:
    return np.rint(numbers * factor).astype(np.int64)


def _shares(vector: np.ndarray, some: Range) -> tuple[int, np.ndarray]:
    """Return the first block that a range touches, and what share of it and of those after it lies in the
    range.
    """
    if some[0] >= some[1]:
        return 0, np.zeros(0)
    if len(vector) == 2:
        return 0, np.array([(some[1] - some[0]) / int(vector[1])])
    first = int(np.searchsorted(vector, some[0], side="right")) - 1
    last = int(np.searchsorted(vector, some[1], side="left"))
    inside = np.clip(vector[first : last + 1], *some)
    return first, np.diff(inside) / np.maximum(np.diff(vector[first : last + 1]), 1)


def _counts(labels: np.ndarray, split: np.ndarray) -> list[int]:
    return np.bincount(split[(split > 0) & labelled(labels)], minlength=TEST + 1).tolist()


class Spread(Targets):
    """Targets of which no more is known than how many there are, evenly spread over the nodes.

    Args:
        layout: of the logits; counts: of nodes by part of the split; only those for training are here.
        loss, metric: as in `Graph` and `Targets`.
    """

    def __init__(
        self, layout: Layout[Any], classes: int, counts: Sequence[int], loss: str = "softmax",
        metric: str | None = None,
    ) -> None:  # fmt: skip
        on, n = layout.grid.backend, max(int(layout.rows.parts[-1]), 1)  # type: ignore[index]
        first, last = (end * counts[TRAIN] // n for end in layout.row_range)
        rows = on.empty((last - first,), np.int64)
        width = len(range(*layout.cols.range(layout.grid, classes)))
        kinds = {"binary": np.uint8, "mse": np.float32}
        labels = on.empty((len(rows), width), kinds[loss]) if loss in kinds else rows
        LossRows.__init__(self, rows, labels, counts[TRAIN])
        self.layout, self.classes, self.counts = layout, classes, list(counts)
        self.metric = checked_metric(metric, loss)
        self.rows, self.labels, self.parts = rows, labels, rows
        totals = on.empty((TEST + 1,), np.int64)
        layout.grid.along(*layout.row_axes).allreduce(totals, matrix="loss")
        self.prepare(np.zeros((0, width)), np.zeros(0, np.int64))


def _trained(n: int, share: float) -> list[int]:
    """Count nodes by part of the split, of which this share, but at least one, is trained on."""
    return [0, max(round(n * share), 1), 0, 0]
