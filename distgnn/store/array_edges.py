"""Edges in arrays: a matrix, whose entries add up and whose zeros are none, or a list of ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.canonical import canonical
from distgnn.errors import ArgumentError
from distgnn.store.adapters import array, ends, sparse
from distgnn.store.array_ids import as_ids, wrapped
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.names import Names, shown
from distgnn.store.importers.table import MISSING
from distgnn.store.source import Edges


@dataclass
class ArrayEdges:
    """Edges from `src` to `dst`, numbers of nodes, with `weights`, or None where all are 1.

    `square`: the nodes of a matrix, else None. `names`: the ids of the nodes, if they have some. `zeros`: the
    zeros that a matrix stores. `notes`: one line for each oddity.
    """

    src: np.ndarray
    dst: np.ndarray
    weights: np.ndarray | None
    square: int | None = None
    names: Names | None = None
    zeros: int = 0
    notes: list[str] = field(default_factory=list)

    def stream(self) -> Iterator[Edges]:
        """Yield the edges, some at a time."""
        weights = self.weights
        for lo in range(0, len(self.src), LIMITS.entries):
            some = slice(lo, lo + LIMITS.entries)
            yield self.src[some], self.dst[some], None if weights is None else weights[some]

    def nodes(self) -> int:
        """Return one more than the highest number."""
        return int(max(self.src.max(initial=-1), self.dst.max(initial=-1))) + 1

    def check(self, n: int, known: dict[str, int]) -> None:
        """Raise ArgumentError for an end that is none of `n` nodes, which the `known` arguments tell."""
        wrong = [end[(end < 0) | (end >= n)] for end in (self.src, self.dst)]
        if not any(map(len, wrong)):
            return
        number = int(np.concatenate(wrong)[0])
        if number < 0:
            advice = "expected numbers from 0, or what nodes are called in ids=IDS"
            raise ArgumentError("graph", number, f"is no node; {advice}")
        name, size = next(iter(known.items()))
        has = f"{name} is {size}" if name == "nodes" else f"{name} has {size} rows"
        lowest = min(int(self.src.min()), int(self.dst.min()))
        from_one = number == n and lowest == 1
        advice = "subtract 1 from ids that begin at 1" if from_one else "ids=IDS says which node is in each"
        raise ArgumentError("graph", number, f"is no node, {has}; {advice}")


def edges_of(graph: Any, weights: Any, names: Names | None, free: bool) -> ArrayEdges:
    """Return the edges of a matrix or of ends, given by id where nodes have `names`.

    With `free`, nothing else says which nodes there are. Strings, and numbers that leave more than half of
    their range empty, are then the ids of the nodes.
    """
    graph = sparse("graph", graph)
    if sp.issparse(graph):
        return _of_matrix(graph, weights, names)
    given, notes = _checked(ends(graph), free or names is not None), list[str]()
    flat = as_ids("graph", given.reshape(-1))
    if names is None and flat.dtype.kind == "S":
        if (missing := np.isin(flat, np.array(MISSING, "S"))).any():
            word = shown(flat[np.argmax(missing)])
            raise ArgumentError("graph", word, "stands for nothing; expected a node, or ids=IDS that has it")
        names = wrapped("graph", np.unique(flat))
    elif names is None and free:
        names, notes = _scattered(flat)
    if names is not None:
        if names.words != (flat.dtype.kind == "S"):
            problem = "ends of edges and ids are numbers, or both are strings"
            raise ArgumentError("graph", given.dtype, problem)
        numbers = names.find(flat)
        if len(numbers) and numbers.min() < 0:
            unknown = shown(flat[np.flatnonzero(numbers < 0)[0]])
            raise ArgumentError("graph", unknown, "is no node; ids=IDS has others")
        flat = numbers
    src, dst = flat.reshape(2, -1)
    return ArrayEdges(src, dst, _weights(weights, src.shape), names=names, notes=notes)


def _of_matrix(graph: Any, weights: Any, names: Names | None) -> ArrayEdges:
    """Return the entries of a matrix: duplicates are summed, as in SciPy, and zeros are none."""
    if not isinstance(weights, (bool, np.bool_, type(None))):
        problem = "a matrix has weights as its values: weights=True takes them"
        raise ArgumentError("weights", type(weights).__name__, problem)
    if graph.ndim != 2 or graph.shape[0] != graph.shape[1]:
        raise ArgumentError("graph", f"a matrix {graph.shape}", "must be square, nodes by nodes")
    matrix = canonical(graph).tocoo()
    kept = matrix.data != 0
    src, dst = (ends[kept].astype(np.int64) for ends in (matrix.col, matrix.row))
    values = matrix.data[kept].astype(np.float64) if weights else None
    return ArrayEdges(src, dst, values, matrix.shape[0], names, int(np.count_nonzero(~kept)))


def _checked(given: np.ndarray, words: bool) -> np.ndarray:
    """Return ends of edges, (2, edges); ArgumentError for another array."""
    if given.ndim == 2 and given.shape[0] == 2 and given.dtype.kind in ("OUSTiu" if words else "iu"):
        return given
    expected = "a SciPy sparse matrix, or whole numbers (2, edges), or strings with their ids=IDS"
    if given.ndim == 2 and given.shape[0] == given.shape[1] and given.dtype.kind in "biuf":
        expected = "whole numbers (2, edges); scipy.sparse.csr_array(graph) makes a matrix of an array"
    raise ArgumentError("graph", f"{given.dtype} of shape {given.shape}", f"expected {expected}")


def _scattered(ids: np.ndarray) -> tuple[Names | None, list[str]]:
    """Return the ids of the nodes where they leave more than half of their range empty, and a note."""
    lowest, highest = int(ids.min(initial=0)), int(ids.max(initial=-1))
    if lowest < 0 or not len(ids):
        return None, []
    if highest < 2 * len(ids):  # a mark for each number is no waste
        there = np.zeros(highest + 1, bool)
        there[ids] = True
        distinct = np.flatnonzero(there)
    else:
        distinct = np.unique(ids)
    if 2 * len(distinct) >= highest + 1:
        from_one = "graph: ids begin at 1, and node 0 has no edges: subtract 1 from them, unless it is meant"
        return None, [from_one] if distinct[0] == 1 else []
    advice = f"nodes={highest + 1} takes them as numbers of nodes"
    what = f"graph: its {len(distinct)} numbers from {distinct[0]} to {highest} are ids, in ascending order"
    return wrapped("graph", distinct), [f"{what}; {advice}"]


def _weights(taken: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    if taken is None or taken is False:
        return None
    values = array("weights", taken)
    if values.shape != shape or values.dtype.kind not in "biuf":
        problem = f"expected a number for each of the {shape[0]} edges"
        raise ArgumentError("weights", f"{values.dtype} of shape {values.shape}", problem)
    return values.astype(np.float64)
