"""R-MAT graphs (Chakrabarti, Zhan, Faloutsos, SDM'04) with the Graph500 probabilities, of any size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.gallery.graph import DrawnGraph, Edges, check
from distgnn.gallery.streams import AliasTable, stream, unit_rows

GRAPH500 = (0.57, 0.19, 0.19, 0.05)
LEVELS_AT_ONCE = 6  # 4**6 joint quadrants: the table stays in the first-level cache
DRAWS_AT_ONCE = 1 << 16  # the draws stay in the second-level cache
STATES, DIMENSIONS, UNIT = 256, 4, 10_000
AVERAGES = 2
NODES_AT_ONCE = 1 << 18


class RMat(DrawnGraph):
    """A graph whose edges descend through quadrants a, b, c, d (row-major) of the matrix to one entry.

    If the number of nodes is no power of two, edges are drawn in the next one, and an endpoint beyond
    the last node loses its highest bit, as if its first quadrant had been the upper or the left one.

    R-MAT has no communities, and none are added, since that would flatter partitioners. Every node has one of
    256 hidden states, a random direction in 4 dimensions, which its features show through noise. The states
    are averaged twice over the node and the sources of its edges, and the label is the closest class
    direction. So graph convolutions recover the label. (Test accuracy on 5000 nodes: 63 % for a GCN of two
    layers, 43 % for the same network without the graph, 23 % for the largest class.)
    """

    kind = "rmat"

    def __init__(
        self, nodes: int | None = None, *, scale: int | None = None, edges: int | None = None,
        degree: float | None = None, probabilities: Sequence[float] = GRAPH500, scramble: bool = True,
        directed: bool = False, classes: int = 8, noise: float = 0.1, **common: Any,
    ):  # fmt: skip
        """Take `nodes` or `scale` (2**scale nodes), and `edges` listed or `degree`.

        `degree`: non-zeros per node (default 16).
        """
        if scale is not None:
            check(nodes is None, "scale", scale, f"excludes nodes={nodes}; give one of them")
            check(0 <= scale <= 40, "scale", scale, "expected 0 to 40")
            nodes = 1 << scale
        if nodes is None:
            raise UserError("rmat needs nodes=N or scale=S")
        common |= {"directed": directed, "classes": classes, "noise": noise}
        super().__init__(nodes, edges=edges, degree=degree, scramble=scramble, **common)
        self.quadrants = _checked(probabilities)
        self.levels = (self.n - 1).bit_length()
        self.parameters |= {"probabilities": self.quadrants.tolist(), "scramble": scramble}

    def _draw(self, rng: np.random.Generator, size: int) -> Edges:
        ends = np.empty((2, size), np.int64)
        for lo in range(0, size, DRAWS_AT_ONCE):
            hi = min(lo + DRAWS_AT_ONCE, size)
            self._descend(rng, ends[0, lo:hi], ends[1, lo:hi])
        for end in ends:
            end -= np.where(end >= self.n, 1 << max(self.levels - 1, 0), 0)
        return ends[0], ends[1]

    def _descend(self, rng: np.random.Generator, src: np.ndarray, dst: np.ndarray) -> None:
        src[:] = 0
        dst[:] = 0
        remaining = self.levels
        while remaining:
            levels = min(LEVELS_AT_ONCE, remaining)
            table, row_bits, column_bits = self._tables[levels]
            entry = table.draw(rng, len(src))
            for end, bits in ((src, row_bits), (dst, column_bits)):
                end <<= levels
                end |= bits[entry]
            remaining -= levels

    @cached_property
    def _tables(self) -> dict[int, tuple[AliasTable, np.ndarray, np.ndarray]]:
        return {levels: _joint_quadrants(self.quadrants, levels) for levels in range(1, LEVELS_AT_ONCE + 1)}

    @cached_property
    def _hidden(self) -> np.ndarray:
        return stream(self.seed, "states").integers(0, STATES, self.n, dtype=np.uint8)

    @cached_property
    def _directions(self) -> np.ndarray:
        """UNIT times a unit vector for every state, int32 (STATES, DIMENSIONS)."""
        return np.rint(unit_rows(stream(self.seed, "code"), STATES, DIMENSIONS) * UNIT).astype(np.int32)

    def _signals(self) -> np.ndarray:
        return self._directions / UNIT @ unit_rows(stream(self.seed, "embed"), DIMENSIONS, self.width)

    def _labels(self, edges: Callable[[], Iterable[Edges]]) -> np.ndarray:
        """Return the class closest to a node's averaged signal, in integers.

        So no order of summation changes a label.
        """
        directions = unit_rows(stream(self.seed, "classes"), self.classes, DIMENSIONS)
        classes = np.rint(directions * 1000).astype(np.int64)
        signal = self._directions[self._hidden]
        for _ in range(AVERAGES):
            signal = self._neighbourhood_means(signal, edges())
        labels = np.empty(self.n, np.int32)
        for lo in range(0, self.n, NODES_AT_ONCE):
            labels[lo : lo + NODES_AT_ONCE] = (signal[lo : lo + NODES_AT_ONCE] @ classes.T).argmax(axis=1)
        return labels

    def _neighbourhood_means(self, signal: np.ndarray, edges: Iterable[Edges]) -> np.ndarray:
        """Return means of `signal` over a node and the sources of its edges, rounded down.

        int32 (n, DIMENSIONS).
        """
        total, count = signal.astype(np.int64), np.ones(self.n, np.int64)  # a node is its own neighbour
        for src, dst in edges:
            for source, target in ((src, dst),) if self.directed else ((src, dst), (dst, src)):
                _add_by_target(total, count, signal, source, target)
        total //= count[:, None]
        return total.astype(np.int32)


def _add_by_target(
    total: np.ndarray, count: np.ndarray, signal: np.ndarray, source: np.ndarray, target: np.ndarray
) -> None:
    """Add: total[target] += signal[source] and count[target] += 1, grouped by target.

    np.add.at takes seven times as long. Sorting (target, position) packed into one word takes a quarter of an
    argsort's time.
    """
    if not len(target):
        return
    bits = len(target).bit_length()
    order = (target << bits) | np.arange(len(target))
    order.sort()
    target = order >> bits
    order &= (1 << bits) - 1
    starts = np.flatnonzero(np.diff(target, prepend=-1))
    nodes = target.take(starts)
    rows = signal.take(source.take(order), axis=0)
    total[nodes] += np.add.reduceat(rows, starts, axis=0, dtype=np.int64)
    count[nodes] += np.diff(starts, append=len(target))


def _checked(probabilities: Sequence[float]) -> np.ndarray:
    values = np.asarray(probabilities, np.float64)
    shown = ",".join(f"{p:g}" for p in values.ravel())
    check(values.shape == (4,), "probabilities", shown, "expected four numbers a,b,c,d")
    valid = bool((values >= 0).all()) and math.isclose(values.sum(), 1.0, abs_tol=1e-6)
    problem = f"expected four numbers >= 0 that sum to 1, not {values.sum():g}"
    check(valid, "probabilities", shown, problem)
    return values


def _joint_quadrants(quadrants: np.ndarray, levels: int) -> tuple[AliasTable, np.ndarray, np.ndarray]:
    """Return the distribution over the 4**levels entries of `levels` quadrants, and the entries' bits."""
    probabilities = np.ones(1)
    rows = columns = np.zeros(1, np.int64)
    for _ in range(levels):
        probabilities = np.outer(probabilities, quadrants).ravel()
        rows = np.add.outer(rows << 1, [0, 0, 1, 1]).ravel()
        columns = np.add.outer(columns << 1, [0, 1, 0, 1]).ravel()
    return AliasTable(probabilities / probabilities.sum()), rows, columns
