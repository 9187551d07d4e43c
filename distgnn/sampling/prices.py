"""Prices of minibatches: the words that a rank receives in the mean, from what samplers ask of a whole graph.

A sampler that draws a few minibatches from :class:`Watched` says which rows of A it asks for. What m of them
ask for together follows from how many of those few ask for each row: of f among M, t are among m of them with
probability C(f, t) C(M - f, m - t) / C(M, m).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from distgnn import local
from distgnn.arrays.kernels import Kernel
from distgnn.comm.steps import Steps
from distgnn.layout import partition
from distgnn.local.relabel import Relabelling
from distgnn.local.stack import Stack
from distgnn.operators.prices import FREE, Price
from distgnn.sampling.edges import Edges
from distgnn.sampling.graph import Drawn, indicator
from distgnn.sampling.owners import picked_by_owners
from distgnn.sampling.spgemm import Replicated

DRAWS, EDGES, SUMS = "draws", "edges", "sums"


class Question(NamedTuple):
    """A question of a sampler to a graph, for a minibatch.

    Attributes:
        kind: draws from rows, edges between rows and columns, or sums of rows; vertices: int64, each once;
            lengths: of their rows; columns: how many there are.
        fanout: entries of a draw; partial: edges, or non-zeros of the sums by owners, all together.
    """

    kind: str
    vertices: np.ndarray
    lengths: np.ndarray
    fanout: int
    partial: int = 0
    columns: int = 0


class Watched(Replicated):
    """A whole graph that notes what samplers ask of it; see :class:`Replicated`.

    Args:
        ranks: among which the graph would be cut.

    Attributes:
        asked: what was asked since the list was emptied, also of graphs that :meth:`map` made of this one.
    """

    def __init__(self, A: Any, ranks: int) -> None:
        super().__init__(A)
        self.ends, self.asked = partition(self.n, ranks), list[Question]()

    def kernel(self, operation: str) -> Kernel | None:
        """Return the kernel of the graph, whose draws are noted."""
        kernel = super().kernel(operation)

        def noted(A: Any, indptr: Any, vertices: Stack, fanout: int, *others: Any) -> Any:
            assert kernel is not None and operation == "neighbours"
            self._note(DRAWS, vertices.ids, fanout)
            return kernel(A, indptr, vertices, fanout, *others)

        return kernel and noted

    def edges(self, rows: Stack, cols: Stack, scale: Any, labels: Relabelling) -> Steps[Edges]:
        edges = yield from super().edges(rows, cols, scale, labels)
        self._note(EDGES, rows.ids, self.n, len(edges[-1]), len(cols.ids))
        return edges

    def draw(self, vertices: Stack, fanout: int, keys: Any) -> Steps[Drawn]:
        self._note(DRAWS, vertices.ids, fanout)
        return super().draw(vertices, fanout, keys)

    def sums(self, lists: Stack) -> Steps[Any]:
        cuts = np.searchsorted(np.sort(lists.ids), self.ends)
        own = (Stack.of([np.sort(lists.ids)[first:last]]) for first, last in pairwise(cuts) if first < last)
        partial = sum(local.spgemm(indicator(vertices, self.n), self.A).nnz for vertices in own)
        self._note(SUMS, lists.ids, self.n, partial)
        return super().sums(lists)

    def _note(self, kind: str, vertices: np.ndarray, fanout: int, partial: int = 0, columns: int = 0) -> None:
        lengths = self.indptr[vertices + 1] - self.indptr[vertices]
        self.asked.append(Question(kind, vertices, lengths, fanout, partial, columns))


class Asked(NamedTuple):
    """The questions of m minibatches together, in the mean.

    Attributes:
        kind: as of :class:`Question`; minibatches: m; vertices: with repeats; distinct: without.
        entries: of rows, each once, or of draws where these are fewer; partial, columns: as of `Question`.
        degree: entries of a row of A.
    """

    kind: str
    minibatches: int
    vertices: float
    distinct: float
    entries: float
    partial: float
    columns: float
    degree: float


class Expected:
    """One call of a sampler, for any number of minibatches.

    Args:
        questions: of some minibatches, one each.
        n: vertices of the graph; nonzeros: entries of A.
    """

    def __init__(self, questions: Sequence[Question], n: int, nonzeros: int) -> None:
        self.number, self.kind, self.most = len(questions), questions[0].kind, (n, nonzeros)
        self.vertices = float(np.mean([question.vertices.size for question in questions]))
        self.partial, self.columns = np.mean([question[4:] for question in questions], axis=0).tolist()
        vertices, lengths = (np.concatenate(part) for part in zip(*(q[1:3] for q in questions), strict=True))
        _, first, times = np.unique(vertices, return_index=True, return_counts=True)
        self.lengths = [lengths[first[times == f]] for f in range(self.number + 1)]
        self.drawn = [np.minimum(some, questions[0].fanout) for some in self.lengths]
        self.known: dict[int, tuple[float, float]] = {}

    def of(self, m: int) -> Asked:
        """Return what m minibatches ask. Beyond those that are known it grows as it does from half to all."""
        distinct, entries = self._together(min(m, self.number))
        if m > self.number:
            half = self._together(-(-self.number // 2))
            doublings = math.log2(m / self.number)
            grown = (b * (b / a) ** doublings for a, b in zip(half, (distinct, entries), strict=True))
            distinct, entries = (min(most, some) for most, some in zip(self.most, grown, strict=True))
        counts = m, m * self.vertices, distinct, entries, m * self.partial, m * self.columns
        return Asked(self.kind, *counts, self.most[1] / max(self.most[0], 1))

    def _together(self, m: int) -> tuple[float, float]:
        """Return how many vertices m of the minibatches ask for, and the entries that are sent for them."""
        if m not in self.known:
            M, distinct, entries = self.number, 0.0, 0.0
            for f, (lengths, drawn) in enumerate(zip(self.lengths, self.drawn, strict=True)):
                for t in range(max(m - M + f, 1), min(f, m) + 1):
                    share = math.comb(f, t) * math.comb(M - f, m - t) / math.comb(M, m)
                    distinct += share * lengths.size
                    entries += share * float(np.minimum(t * drawn, lengths).sum())
            self.known[m] = distinct, entries
        return self.known[m]


def answered(asked: Asked, ranks: int) -> Price:
    """Price a call for the minibatches of each rank, see :class:`~distgnn.sampling.spgemm.Partitioned`.

    In the mean of all ranks, of which each holds as many of the rows.
    """
    others, away = ranks - 1, 1 - 1 / ranks
    each, vertices, entries = asked.minibatches, asked.vertices, asked.entries
    price = FREE
    if asked.kind == EDGES:
        totals = round(ranks * asked.columns), round(ranks * vertices)
        if picked_by_owners(ranks, *totals, asked.degree):
            entries = asked.partial
            price = Price({("world", "columns"): (others * (asked.columns + each), 2 * others)})
        else:
            each, vertices = 1, asked.distinct
    questions = 2 * others * each + away * vertices
    if asked.kind == SUMS:
        rows = (asked.distinct + 2 * entries) / ranks
        sums = min(each + 2 * asked.partial / ranks, rows)
        summed = {("world", "sums"): (others * sums, 3 * others)}
        return Price({("world", "rows"): (questions, 2 * others), **summed})
    return price + Price({
        ("world", "rows"): (questions + away * vertices, 3 * others),
        ("world", "adjacency"): (2 * away * entries, 2 * others),
    })  # fmt: skip


def fetched(inputs: float, words: float, rows: int, sparse: bool = False) -> Price:
    """Price the features of a minibatch, see :class:`~distgnn.sampling.fetch.Features`.

    ``words``: of a row, of a sparse one those of its entries; ``rows``: in which block rows they are cut.
    """
    distinct, calls = inputs * (1 - 1 / rows), 2 if sparse else 1
    return Price({
        ("rows", "rows"): (calls * distinct, calls * (rows - 1)),
        ("rows", "features"): (distinct * words, calls * (rows - 1)),
    })  # fmt: skip
