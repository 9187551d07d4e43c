"""The common part of generated graphs: sizes, checks, features and split; edges come in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError
from distgnn.gallery.streams import stream, unit_rows
from distgnn.store.source import parse_split, random_split

MOST_NODES = 1 << 40
EDGE_CHUNK = 1 << 20  # edges that are drawn from one stream: another size makes another graph
FEATURE_CHUNK = 1 << 21  # entries (8 MiB) that are drawn from one stream

Edges = tuple[np.ndarray, np.ndarray]  # source and target, int64


class GeneratedGraph:
    """A graph that is a function of its parameters and a seed; nothing is drawn before it is asked for.

    Edges and features come in independent chunks. An edge src -> dst is the entry A[dst, src] = 1; undirected
    graphs (`directed` False) list each edge once. There may be self-loops and duplicates.

    Features are `table[hidden[v]] + noise * N(0, 1)` for every node v, where the rows of `table` have length
    1: at noise 1 a single node says little, its neighbourhood a lot.

    A subclass has `kind`, `m`, `edge_chunks`, `edge_chunk` and `_hidden`, integers (n,), which are the labels
    unless it overrides `_labels`. It adds its own arguments to `parameters`.
    """

    kind: str
    m: int | None  # listed edges, None if their number is known only after they are drawn
    edge_chunks: int
    _hidden: Any

    def __init__(
        self, n: int, *, directed: bool = False, features: int = 64, classes: int = 16, noise: float = 1.0,
        split: str = "0.6/0.2/0.2", seed: int = 0,
    ):  # fmt: skip
        """Check and keep the sizes; raise ArgumentError for numbers out of range."""
        check(1 <= n <= MOST_NODES, "nodes", n, "expected 1 to 2**40 nodes")
        check(features >= 0, "features", features, "expected 0 (none) or a positive width")
        check(classes >= 0, "classes", classes, "expected 0 (no labels) or a positive number")
        check(math.isfinite(noise) and noise >= 0, "noise", noise, "expected a number >= 0")
        check(0 <= seed < 1 << 63, "seed", seed, "expected 0 to 2**63 - 1")
        parse_split(split)
        self.n, self.directed = n, directed
        self.width, self.classes, self.noise = features, classes, noise
        self.seed, self._split = seed, split
        self.parameters: dict[str, Any] = {"noise": noise, "split": split}

    def edge_chunk(self, index: int) -> Edges:
        """Draw the edges of chunk `index`, a function of (parameters, seed, index)."""
        raise NotImplementedError

    def edges(self) -> Iterator[Edges]:
        """Yield all chunks in order, about a million edges each."""
        for index in range(self.edge_chunks):
            yield self.edge_chunk(index)

    def labels(self, edges: Callable[[], Iterable[Edges]] | None = None) -> np.ndarray | None:
        """Return the classes, int32 (n,), or None.

        `edges()` yields all chunks in any order; by default they are drawn again.
        """
        return self._labels(edges or self.edges) if self.classes else None

    def split(self) -> np.ndarray | None:
        """Return uint8 (n,): 0 none, 1 train, 2 validation, 3 test; None without labels."""
        return random_split(self.n, self._split, self.seed) if self.classes else None

    def features(self) -> Iterator[np.ndarray]:
        """Yield float32 (k, width) rows in node order, about two million entries each; none for width 0."""
        if not self.width:
            return
        rows = max(1, FEATURE_CHUNK // self.width)
        hidden, table = self._hidden, self._signals().astype(np.float32)
        for chunk, lo in enumerate(range(0, self.n, rows)):
            size = min(rows, self.n - lo)
            block = stream(self.seed, "features", chunk).standard_normal((size, self.width), np.float32)
            block *= np.float32(self.noise)
            block += table[hidden[lo : lo + size]]
            yield block

    def _signals(self) -> np.ndarray:
        """Return the signal of every hidden state, (states, width)."""
        return unit_rows(stream(self.seed, "table"), max(self.classes, 1), self.width)

    def _labels(self, edges: Callable[[], Iterable[Edges]]) -> np.ndarray:
        return self._hidden


class DrawnGraph(GeneratedGraph):
    """A graph of `m` edges that a subclass draws by `_draw`, and whose node ids may be scrambled."""

    m: int

    def __init__(self, nodes: int, *, edges: int | None, degree: float | None, scramble: bool, **common: Any):
        """Take the number of `edges`, or `degree`: mean non-zeros per row of A before merging (16)."""
        super().__init__(nodes, **common)
        if edges is not None:
            check(degree is None, "degree", degree, f"excludes edges={edges}; give one of them")
            check(edges >= 0, "edges", edges, "expected a number >= 0")
        degree = 16.0 if degree is None else degree
        check(math.isfinite(degree) and degree >= 0, "degree", degree, "expected a number >= 0")
        self.m = round(nodes * degree / (1 if self.directed else 2)) if edges is None else edges
        self.edge_chunks, self.scramble = -(-self.m // EDGE_CHUNK), scramble

    def edge_chunk(self, index: int) -> Edges:
        size = min(EDGE_CHUNK, self.m - index * EDGE_CHUNK)
        src, dst = self._draw(stream(self.seed, "edges", index), size)
        if self.scramble:
            src, dst = (self._permutation[end].astype(np.int64, copy=False) for end in (src, dst))
        return src, dst

    def _draw(self, rng: np.random.Generator, size: int) -> Edges:
        """Draw `size` edges, ids not scrambled."""
        raise NotImplementedError

    @cached_property
    def _permutation(self) -> np.ndarray:
        """A seeded permutation of the node ids, 4 bytes per node where they suffice."""
        ids = np.arange(self.n, dtype=np.int32 if self.n < 1 << 31 else np.int64)
        stream(self.seed, "scramble").shuffle(ids)
        return ids


def check(condition: bool, argument: str, value: object, problem: str) -> None:
    """Raise ArgumentError unless the condition holds (NaN parameters never satisfy one)."""
    if not condition:
        raise ArgumentError(argument, value, problem)
