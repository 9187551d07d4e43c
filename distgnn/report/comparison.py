"""Predictions beside labels, by part of the split and by class: what a classifier takes for what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.nn.loss import as_numbers
from distgnn.report.text import aligned
from distgnn.split import SPLITS, labelled
from distgnn.terminal import printable

#: Classes up to which the table of :class:`ClassReport` has the confusion matrix, and characters of a name.
MATRIX, LONGEST = 12, 30


class Report:
    """Predictions beside the labels of a graph, by part of the split. Printed, it is a table.

    Attributes:
        classes: names of the classes, or of the columns of numbers.
        parts: "train", "val" and "test", as far as the part has labelled nodes. All else is by part.
        nodes: the number of labelled nodes.
    """

    def __init__(self, labels: np.ndarray, split: np.ndarray, classes: Sequence[Any]) -> None:
        known, self.classes = labelled(labels), np.asarray(classes)
        self._labels, self._done = labels, 0
        rows = {name: known & (split == number) for name, number in SPLITS.items()}
        self.nodes = {name: count for name in SPLITS if (count := int(rows[name].sum()))}
        self.parts, self._rows = [*self.nodes], rows

    def add(self, logits: np.ndarray) -> None:
        """Count the nodes that follow those before, by their logits (nodes, classes)."""
        here = slice(self._done, self._done + len(logits))
        self._done = here.stop
        for part in self.parts:
            rows = self._rows[part][here]
            self._count(part, logits[rows], self._labels[here][rows])

    def _count(self, part: str, logits: np.ndarray, labels: np.ndarray) -> None:
        raise NotImplementedError

    def _lines(self, part: str) -> Iterator[str]:
        raise NotImplementedError

    def _table(self, part: str, head: Sequence[str], columns: Sequence[np.ndarray]) -> list[str]:
        """Return the lines of a table with a row for each class, and its number of nodes."""
        rows = zip(self._names(), *columns, strict=True)
        cells = [[name, *(f"{number:.4f}" for number in row[:-1]), str(row[-1])] for name, *row in rows]
        return aligned([head, *cells], left=1)

    def _names(self) -> list[str]:
        texts = [printable(name) for name in self.classes.tolist()]
        return [text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…" for text in texts]

    def __str__(self) -> str:
        if not self.parts:
            return "no node of train, val or test has a label"
        return "\n\n".join("\n".join(self._lines(part)) for part in self.parts)

    def __repr__(self) -> str:
        said = ", ".join(f"{part} {count}" for part, count in self.nodes.items())
        return f"<{type(self).__name__} of {len(self.classes)} classes, nodes: {said or 'none'}>"


class ClassReport(Report):
    """Classes of nodes: confusion, precision, recall and F1 by part of the split. See :class:`Report`.

    A ratio of nothing to nothing is 0, as in scikit-learn.
    """

    def __init__(self, labels: np.ndarray, split: np.ndarray, classes: Sequence[Any]) -> None:
        super().__init__(labels, split, classes)
        count, self.several = len(self.classes), labels.ndim == 2
        self._right = dict.fromkeys(self.parts, 0)
        self._sums = {part: np.zeros((3, count), np.int64) for part in self.parts}  # hits, said, there
        self._pairs = {part: sp.csr_array((count, count), dtype=np.int64) for part in self.parts}

    def _count(self, part: str, logits: np.ndarray, labels: np.ndarray) -> None:
        if self.several:
            said, there = logits > 0, labels > 0
            self._right[part] += int((said == there).all(axis=1).sum())
            self._sums[part] += [both.sum(axis=0) for both in (said & there, said, there)]
            return
        said, count = logits.argmax(axis=1), len(self.classes)
        hits = labels[said == labels]
        self._right[part] += len(hits)
        self._sums[part] += [np.bincount(some, minlength=count) for some in (hits, said, labels)]
        ones = np.ones(len(said), np.int64)
        self._pairs[part] += sp.csr_array((ones, (labels, said)), shape=(count, count))

    @property
    def confusion(self) -> Mapping[str, np.ndarray]:
        """The nodes of class i that are taken for class j, int64 (classes, classes).

        Where a node may have several classes, (classes, 2, 2): whether it has the class, and whether it is
        said to have it.
        """
        if not self.several:
            return {part: pairs.toarray() for part, pairs in self._pairs.items()}
        matrices = {}
        for part, (hits, said, there) in self._sums.items():
            cells = [[self.nodes[part] - said - there + hits, said - hits], [there - hits, hits]]
            matrices[part] = np.array(cells).transpose(2, 0, 1)
        return matrices

    @property
    def support(self) -> Mapping[str, np.ndarray]:
        """The labelled nodes of each class, int64 (classes)."""
        return {part: there for part, (_, _, there) in self._sums.items()}

    @property
    def precision(self) -> Mapping[str, np.ndarray]:
        """Right ones among the nodes that are said to have the class, (classes)."""
        return {part: _ratio(hits, said) for part, (hits, said, _) in self._sums.items()}

    @property
    def recall(self) -> Mapping[str, np.ndarray]:
        """Right ones among the nodes that have the class, (classes)."""
        return {part: _ratio(hits, there) for part, (hits, _, there) in self._sums.items()}

    @property
    def f1(self) -> Mapping[str, np.ndarray]:
        """The harmonic mean of precision and recall, (classes)."""
        return {part: _ratio(2 * hits, said + there) for part, (hits, said, there) in self._sums.items()}

    @property
    def accuracy(self) -> Mapping[str, float]:
        """The share of nodes whose class, or all of whose classes, are right."""
        return {part: right / self.nodes[part] for part, right in self._right.items()}

    @property
    def macro_f1(self) -> Mapping[str, float]:
        """The mean F1 of the classes that some node has or is said to have."""
        there = {part: sums[1:].any(axis=0) for part, sums in self._sums.items()}
        return {part: float(f1[there[part]].mean()) if there[part].any() else 0.0
                for part, f1 in self.f1.items()}  # fmt: skip

    @property
    def micro_f1(self) -> Mapping[str, float]:
        """The F1 of all classes counted together; where a node has one class, the accuracy."""
        totals = {part: sums.sum(axis=1) for part, sums in self._sums.items()}
        return {part: float(_ratio(2 * hits, said + there)) for part, (hits, said, there) in totals.items()}

    def _lines(self, part: str) -> Iterator[str]:
        score = (
            f"micro F1 {self.micro_f1[part]:.4f}" if self.several else f"accuracy {self.accuracy[part]:.4f}"
        )
        yield f"{part}: {self.nodes[part]} nodes, {score}, macro F1 {self.macro_f1[part]:.4f}"
        columns = [by_part[part] for by_part in (self.precision, self.recall, self.f1, self.support)]
        yield from self._table(part, ["class", "precision", "recall", "F1", "nodes"], columns)
        if not self.several and 1 < len(self.classes) <= MATRIX:
            yield "nodes of a class, by row, that are taken for another, by column:"
            names, matrix = self._names(), self.confusion[part].tolist()
            rows = [[name, *map(str, row)] for name, row in zip(names, matrix, strict=True)]
            yield from aligned([["", *names], *rows], left=1)


class NumberReport(Report):
    """Numbers of nodes: R² and errors by part of the split and column, float64. See :class:`Report`."""

    def __init__(self, labels: np.ndarray, split: np.ndarray, classes: Sequence[Any]) -> None:
        numbers = as_numbers(labels)
        super().__init__(numbers.reshape(len(numbers), -1), split, classes)
        shape = (2, len(self.classes))
        self._sums = {part: np.zeros(shape) for part in self.parts}  # of squares and of absolute errors

    def _count(self, part: str, logits: np.ndarray, labels: np.ndarray) -> None:
        far = logits.astype(np.float64) - labels
        self._sums[part] += [(far * far).sum(axis=0), abs(far).sum(axis=0)]

    @property
    def mae(self) -> Mapping[str, np.ndarray]:
        """The mean absolute error of each column."""
        return {part: absolute / self.nodes[part] for part, (_, absolute) in self._sums.items()}

    @property
    def rmse(self) -> Mapping[str, np.ndarray]:
        """The root of the mean squared error of each column."""
        return {part: np.sqrt(squares / self.nodes[part]) for part, (squares, _) in self._sums.items()}

    @property
    def r2(self) -> Mapping[str, np.ndarray]:
        """1 - Σ(y - z)² / Σ(y - mean of y)² of each column; NaN of one node.

        Where all y are equal, 1 if z are these numbers, else 0.
        """
        shares = {}
        for part, (squares, _) in self._sums.items():
            numbers = self._labels[self._rows[part]].astype(np.float64)
            spread = ((numbers - numbers.mean(axis=0)) ** 2).sum(axis=0)
            share = np.where(spread > 0, 1 - squares / np.where(spread > 0, spread, 1), 1.0 * (squares == 0))
            shares[part] = share if len(numbers) > 1 else np.full_like(share, np.nan)
        return shares

    def _lines(self, part: str) -> Iterator[str]:
        yield f"{part}: {self.nodes[part]} nodes"
        counts = np.full(len(self.classes), self.nodes[part])
        columns = [by_part[part] for by_part in (self.r2, self.mae, self.rmse)]
        yield from self._table(part, ["column", "R²", "mean error", "root mean square", "nodes"],
                               [*columns, counts])  # fmt: skip


def empty(loss: str, labels: np.ndarray, split: np.ndarray, classes: Sequence[Any]) -> Report:
    """Make the report of a network with this loss, to which logits are to be added."""
    return (NumberReport if loss == "mse" else ClassReport)(labels, split, classes)


def _ratio(above: Any, below: Any) -> np.ndarray:
    return np.divide(above, below, out=np.zeros(np.shape(above)), where=np.asarray(below) > 0)
