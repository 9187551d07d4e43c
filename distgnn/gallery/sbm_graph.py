"""Planted partitions: the degree-corrected stochastic block model (Karrer and Newman, PRE 83, 2011)."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from distgnn.gallery.graph import DrawnGraph, Edges, check
from distgnn.gallery.streams import power_law, stream


class PlantedPartition(DrawnGraph):
    """A graph of `communities` groups of nodes; a share `mixing` of the edges leaves its community.

    The first end of an edge is drawn with probability proportional to a node's weight, the second likewise
    among the other nodes of its community or all nodes outside. There are no self-loops, except on a node
    alone in the graph; all edges of the only node of a community leave. Sizes and weights are equal, or power
    laws (the LFR benchmark: Lancichinetti et al., Phys. Rev. E 78, 2008); weights are cut where the expected
    degree would exceed sqrt(n * degree), beyond which most of a hub's edges would be duplicates.

    The label is the community modulo `classes`; the features are the class's direction plus noise.
    """

    kind = "sbm"

    def __init__(
        self, nodes: int, *, communities: int | None = None, edges: int | None = None,
        degree: float | None = None, mixing: float | None = None, size_exponent: float | None = None,
        degree_exponent: float | None = None, classes: int | None = None, scramble: bool = True,
        directed: bool = False, **common: Any,
    ):  # fmt: skip
        """Take `edges` listed or `degree` non-zeros per node (default 16).

        Exponents are above 1; None makes sizes or weights equal. `classes` None: one per community;
        `communities` None: at most 16; `mixing` None: 0.2, or 0 for one community.
        """
        check(nodes >= 1, "nodes", nodes, "expected at least one node")
        communities = min(16, nodes) if communities is None else communities
        expected = f"expected 1 to {nodes}, the number of nodes"
        check(1 <= communities <= nodes, "communities", communities, expected)
        mixing = (0.2 if communities > 1 else 0.0) if mixing is None else mixing
        common |= {"directed": directed, "classes": communities if classes is None else classes}
        super().__init__(nodes, edges=edges, degree=degree, scramble=scramble, **common)
        expected = f"expected at most {communities}, the number of communities"
        check(self.classes <= communities, "classes", classes, expected)
        check(0 <= mixing <= 1, "mixing", mixing, "expected a share between 0 and 1")
        expected = "edges cannot leave the only community; expected 0"
        check(mixing == 0 or communities > 1, "mixing", mixing, expected)
        exponents = {"size_exponent": size_exponent, "degree_exponent": degree_exponent}
        for name, exponent in exponents.items():
            check(exponent is None or 1 < exponent < math.inf, name, exponent, "expected a number above 1")
        self.communities, self.mixing = communities, mixing
        self.size_exponent, self.degree_exponent = size_exponent, degree_exponent
        self.parameters |= {"communities": communities, "mixing": mixing, **exponents, "scramble": scramble}

    def _draw(self, rng: np.random.Generator, size: int) -> Edges:
        """Draw nodes from a line on which each is as long as its weight, community by community."""
        line, starts = self._line, self._starts
        # Sorted: the search goes through memory in order.
        src = self._at(np.sort(rng.random(size)) * line[-1])
        community = self._community[src]
        left, right = line[starts[community]], line[starts[community + 1]]
        leaves = rng.random(size) < self.mixing
        if self.communities > 1:
            leaves |= starts[community + 1] - starts[community] == 1
        place = rng.random(size)
        outside = self._at(_beside(place, 0.0, line[-1], left, right))
        inside = self._at(_beside(place, left, right, line[src], line[src + 1]))
        inside = np.clip(inside, starts[community], starts[community + 1] - 1)  # against rounding at its end
        return src, np.where(leaves, outside, inside)

    def _at(self, place: np.ndarray) -> np.ndarray:
        """Return the nodes at these places of the line."""
        return np.clip(np.searchsorted(self._line, place, side="right") - 1, 0, self.n - 1)

    @cached_property
    def _starts(self) -> np.ndarray:
        """The first node of every community, int64 (communities + 1,); no community is empty."""
        k = self.communities
        shares = np.ones(k)
        if self.size_exponent is not None:
            shares = power_law(stream(self.seed, "sizes"), k, self.size_exponent)
        ends = np.rint(np.cumsum(shares / shares.sum()) * (self.n - k)).astype(np.int64)
        ends[-1] = self.n - k
        return np.concatenate([[0], ends + np.arange(1, k + 1)])

    @cached_property
    def _community(self) -> np.ndarray:
        return np.repeat(np.arange(self.communities, dtype=np.int32), np.diff(self._starts))

    @cached_property
    def _line(self) -> np.ndarray:
        """The place on the line where every node's weight begins, and the end, float64 (n + 1,)."""
        line = np.arange(self.n + 1, dtype=np.float64)
        if self.degree_exponent is not None and self.m:
            weights = power_law(stream(self.seed, "degrees"), self.n, self.degree_exponent)
            degree = self.m * (1 if self.directed else 2) / self.n
            weights = np.minimum(weights, _cut(weights, math.sqrt(self.n / degree)))
            np.cumsum(weights, out=line[1:])
        return line

    @property
    def _hidden(self) -> np.ndarray:
        """The class of every node, int32 (n,)."""
        classes = np.empty(self.n, np.int32)
        classes[self._permutation if self.scramble else slice(None)] = self._community % max(self.classes, 1)
        return classes


def _beside(place: np.ndarray, left: Any, right: Any, hole_left: Any, hole_right: Any) -> np.ndarray:
    """Map `place` in [0, 1) uniformly onto left..right without the hole in it."""
    at = left + place * ((right - left) - (hole_right - hole_left))
    return np.where(at >= hole_left, at + (hole_right - hole_left), at)


def _cut(weights: np.ndarray, ratio: float) -> float:
    """Return the largest weight that stays below `ratio` times the mean, which falls as weights are cut."""
    limit = float(weights.max())
    for _ in range(32):
        limit = max(1.0, ratio * float(np.minimum(weights, limit).mean()))
    return limit
