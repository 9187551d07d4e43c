"""What every generated graph has in common: sizes, checks, features and split; its edges come in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.gallery.streams import stream
from distgnn.store.source import EDGE_CHUNK, parse_split, random_split

MOST_NODES = 1 << 40
FEATURE_CHUNK = 1 << 21  # entries, 8 MiB

Edges = tuple[np.ndarray, np.ndarray]  # source and target, int64


class GeneratedGraph:
    """A graph that is a function of its parameters and a seed; nothing is drawn before it is asked for.

    Node-sized arrays may be held; edges and features come in chunks that don't depend on each other. An edge
    src -> dst is the entry A[dst, src] = 1; undirected graphs (`directed` False) list each edge once.
    Self-loops and duplicates may occur where the model has them: the store merges duplicates.

    Features are `table[hidden[v]] + noise * N(0, 1)` for every node v, where the rows of `table` have length
    1. So `noise` is the ratio of one feature's noise to the whole signal: at 1 a single node says little, its
        neighbourhood together says a lot.

    A subclass gives `kind`, `m`, `edge_chunks`, `edge_chunk`, `_hidden_states` and `_labels`, and adds to
    `parameters` what it was made with.
    """

    kind: str
    m: int | None  # listed edges, None where only drawing them tells
    edge_chunks: int

    def __init__(
        self,
        n: int,
        *,
        directed: bool = False,
        features: int = 64,
        classes: int = 16,
        noise: float = 1.0,
        split: str = "0.6/0.2/0.2",
        seed: int = 0,
    ):
        """Raises UserError for numbers that make no sense, in the words of the command line's flags."""
        check(1 <= n <= MOST_NODES, f"--nodes {n}: expected 1 to 2**40 nodes")
        check(features >= 0, f"--features {features}: expected 0 (none) or a positive width")
        check(classes >= 0, f"--classes {classes}: expected 0 (no labels) or a positive number")
        check(math.isfinite(noise) and noise >= 0, f"--noise {noise}: expected a number >= 0")
        check(0 <= seed < 1 << 63, f"--seed {seed}: expected 0 to 2**63 - 1")
        parse_split(split)
        self.n, self.directed = n, directed
        self.width, self.classes, self.noise = features, classes, noise
        self.seed = seed
        self._split = split
        self.parameters: dict[str, Any] = {"noise": noise, "split": split}

    # -- edges --

    def edge_chunk(self, index: int) -> Edges:
        """Edges of chunk `index`, a function of (parameters, seed, index)."""
        raise NotImplementedError

    def edges(self) -> Iterator[Edges]:
        """All chunks in order, about a million edges each."""
        for index in range(self.edge_chunks):
            yield self.edge_chunk(index)

    # -- nodes --

    def labels(self, edges: Callable[[], Iterable[Edges]] | None = None) -> np.ndarray | None:
        """int32 (n,) classes, or None. `edges()`: all chunks in any order, if the caller has them; else they
        are drawn again.
        """
        return self._labels(edges or self.edges) if self.classes else None

    def split(self) -> np.ndarray | None:
        """uint8 (n,): 0 none, 1 train, 2 validation, 3 test; None without labels."""
        return random_split(self.n, self._split, self.seed) if self.classes else None

    def features(self) -> Iterator[np.ndarray]:
        """float32 (k, width) rows in node order, about two million entries each; nothing when the width is 0."""
        if not self.width:
            return
        rows = max(1, FEATURE_CHUNK // self.width)
        hidden, table = self._hidden_states()
        for chunk, lo in enumerate(range(0, self.n, rows)):
            size = min(rows, self.n - lo)
            block = stream(self.seed, "features", chunk).standard_normal((size, self.width), np.float32)
            block *= np.float32(self.noise)
            block += table[hidden[lo : lo + size]]
            yield block

    def _hidden_states(self) -> tuple[np.ndarray, np.ndarray]:
        """(integer (n,) state of every node, float32 (states, width) signal of every state)."""
        raise NotImplementedError

    def _labels(self, edges: Callable[[], Iterable[Edges]]) -> np.ndarray:
        raise NotImplementedError


def check(condition: bool, message: str) -> None:
    """Raise UserError(message) unless the condition holds (NaN parameters never satisfy one)."""
    if not condition:
        raise UserError(message)


def edge_count(n: int, edges: int | None, degree: float | None, default_degree: float, directed: bool) -> int:
    """Number of listed edges from `--edges`, or from `--degree`: the mean number of non-zeros per row of A
    before merging.
    """
    check(edges is None or degree is None, "--edges and --degree exclude each other: give one of them")
    if edges is not None:
        check(edges >= 0, f"--edges {edges}: expected a number >= 0")
        return edges
    degree = default_degree if degree is None else degree
    check(math.isfinite(degree) and degree >= 0, f"--degree {degree}: expected a number >= 0")
    return round(n * degree / (1 if directed else 2))


def chunk_size(m: int, index: int) -> int:
    """Edges in chunk `index` when `m` edges are cut into chunks of EDGE_CHUNK."""
    return min(EDGE_CHUNK, m - index * EDGE_CHUNK)


def chunk_count(m: int) -> int:
    return -(-m // EDGE_CHUNK)


def node_permutation(n: int, seed: int) -> np.ndarray:
    """A seeded permutation of the node ids, 4 bytes per node where they suffice."""
    ids = np.arange(n, dtype=np.int32 if n < 1 << 31 else np.int64)
    stream(seed, "scramble").shuffle(ids)
    return ids
