"""The papers' closed formulas for an epoch, to stand beside a dry run.

Sections are those of CAGNET (Tripathy, Yelick and Buluç, SC'20), of Sparsity-aware (Mukhopadhyay et al.,
ICPP'24) and of Plexus (2025). They count what arrives at one rank: a non-zero as one word, no row pointers,
and where (P-1)/P of something arrives, all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from distgnn.arrays.canonical import canonical
from distgnn.layout import block, partition
from distgnn.local.crossing import crossing
from distgnn.operators.plexus_3d import ROLES
from distgnn.plan.dry.graphs import Graph, Histogram
from distgnn.plan.dry.shapes import ShapeMatrix
from distgnn.plan.machine import Machine

Sizes = Mapping[str, int]
#: What products and their sums send of dense matrices; papers add them up.
DENSE = ("G", "H", "T", "sums")


@dataclass(frozen=True)
class Formula:
    """A paper's formula, evaluated.

    Attributes:
        section: of which paper; text: the formula; where: what its letters are, and what it leaves out.
        words: what a rank gets in an epoch, by the matrices that the ledger charges for it.
        messages: what α is multiplied by, 0 where the paper leaves it out.
        seconds: of all messages and words, one after the other.
    """

    section: str
    text: str
    where: str
    words: dict[tuple[str, ...], float]
    messages: float
    seconds: float


@dataclass(frozen=True)
class Case:
    """Arguments of the formulas.

    Attributes:
        widths: of the features, the hidden layers and the classes; nnz: of the adjacency matrix.
        grid: sizes by axis, the last the nearest in a node; itemsize: bytes of a word.
    """

    graph: Graph
    widths: Sequence[int]
    grid: Sizes
    machine: Machine
    itemsize: int

    @property
    def ranks(self) -> int:
        """Ranks of the grid."""
        return math.prod(self.grid.values())

    @property
    def nf(self) -> float:
        """The sum of n f over layers, f of a layer the mean of its input's and its output's width."""
        return self.graph.n * sum(below + above for below, above in pairwise(self.widths)) / 2

    @property
    def ff(self) -> int:
        """The sizes of all weights."""
        return sum(below * above for below, above in pairwise(self.widths))

    @property
    def layers(self) -> int:
        """Layers of the network."""
        return len(self.widths) - 1

    def seconds(self, messages: float, words: float) -> float:
        """Return seconds with α and β of the level that holds all ranks: CAGNET has one kind of link."""
        level = next(
            candidate
            for candidate in self.machine.levels
            if candidate.ranks is None or candidate.ranks >= self.ranks
        )
        return messages * level.alpha + words * self.itemsize / level.bandwidth

    def formula(
        self, section: str, text: str, where: str, messages: float, words: dict[tuple[str, ...], float]
    ) -> Formula:
        """Return a formula with the seconds that its messages and words take on the machine."""
        seconds = self.seconds(messages, sum(words.values()))
        return Formula(section, text, where, words, messages, seconds)


def evaluate(algorithm: str, sparsity_aware: bool | str, case: Case) -> Formula | None:
    """Evaluate the formula of an algorithm; return None where the papers have none."""
    formula = FORMULAS.get((algorithm, sparsity_aware))
    return formula(case) if formula else None


def _lg(x: float) -> float:
    return math.log2(max(x, 1.0))


_F = "f of a layer: the mean of its input's and output's width"


def _rows(case: Case) -> Formula:
    text = "sum over layers of a (lg P + 2 P) + b (n f(l-1) + n f(l) + f(l-1) f(l))"
    messages = case.layers * (_lg(case.ranks) + 2 * case.ranks)
    words: dict[tuple[str, ...], float] = {DENSE: 2 * case.nf, ("gradients",): case.ff}
    return case.formula("CAGNET, IV-A5", text, "(P-1)/P is taken as 1", messages, words)


def _copied_rows(case: Case) -> Formula:
    P, c = case.ranks, case.grid["reps"]
    text = "L (a 2 P/c^2 lg(P/c^2) + b (2 n f / c + 2 n f c / P))"
    messages = case.layers * 2 * P / c**2 * _lg(P / c**2)
    words: dict[tuple[str, ...], float] = {("G", "H"): 2 * case.nf / c, ("sums",): 2 * case.nf * c / P}
    where = f"{_F}; sums: an all-reduce gets 2 (c-1)/c of that; weights are left out"
    return case.formula("CAGNET, IV-B5", text, where, messages, words)


def _summa(case: Case) -> Formula:
    pr, pc = case.grid["rows"], case.grid["cols"]
    nonzeros = "A: the ledger counts index and value of a non-zero, and row pointers"
    if pr == pc:
        text = "L (a (5 sqrt P + 3 lg P) + b (8 n f / sqrt P + 2 nnz / sqrt P + f^2))"
        messages = case.layers * (5 * pr + 3 * _lg(case.ranks))
        words: dict[tuple[str, ...], float] = {
            ("A",): 2 * case.layers * case.graph.nnz / pr, DENSE: 8 * case.nf / pr, ("gradients",): case.ff
        }  # fmt: skip
        return case.formula("CAGNET, IV-C5", text, f"{_F}; {nonzeros}", messages, words)
    text = "2 L (a gcf(Pr, Pc) + b (nnz / Pr + n f / Pc + n f / Pr)), forward and, alike, backward"
    words = {("A",): 2 * case.layers * case.graph.nnz / pr, DENSE: 2 * case.nf * (1 / pr + 1 / pc)}
    messages = 2 * case.layers * math.gcd(pr, pc)
    return case.formula("CAGNET, IV-C6", text, f"{_F}; {nonzeros}; weights are left out", messages, words)


def _split(case: Case) -> Formula | None:
    """Evaluate 3d-split. The paper adds up the terms of IV-D1 to D4 for a cube.

    Here they are for l layers of q x q ranks; it has none for other layers.
    """
    if case.grid["rows"] != case.grid["cols"]:
        return None
    q, fibers = case.grid["rows"], case.grid["fibers"]
    text = "L (a 4 q + b (2 nnz / (q l) + n f (8 / (q l) + 4 / q^2)))"
    words: dict[tuple[str, ...], float] = {
        ("A",): 2 * case.layers * case.graph.nnz / (q * fibers),
        DENSE: case.nf * (8 / (q * fibers) + 4 / q**2),
    }
    where = f"{_F}; l layers of q x q, of a cube 2 nnz / P^(2/3) + 12 n f / P^(2/3); index, value and "
    where += "pointers of A count as one; weights are left out"
    return case.formula("CAGNET, IV-D1 to D5", text, where, case.layers * 4 * q, words)


def _needed_rows(case: Case) -> Formula:
    P, most = case.ranks, cut(case.graph, case.grid["rows"])
    text = "2 L (a (P-1) + b (P-1) cut f)"
    words: dict[tuple[str, ...], float] = {DENSE: 2 * (P - 1) * most * case.nf / case.graph.n}
    where = f"{_F}; cut: the most rows of H that a rank needs of one other, {most:.4g}; weights are left out"
    return case.formula("Sparsity-aware, 4.1", text, where, 2 * case.layers * (P - 1), words)


def _needed_copied_rows(case: Case) -> Formula:
    P, c = case.ranks, case.grid["reps"]
    most = cut(case.graph, case.grid["rows"])
    text = "2 L (a P/c^2 lg(P/c^2) + b P/c^2 cut f)"
    words: dict[tuple[str, ...], float] = {("G", "H"): 2 * P / c**2 * most * case.nf / case.graph.n}
    where = f"{_F}; cut: the most rows that a rank needs of one other, {most:.4g}; sums are left out"
    return case.formula("Sparsity-aware, 4.2", text, where, 2 * case.layers * P / c**2 * _lg(P / c**2), words)


def _planes(case: Case) -> Formula:
    """Evaluate 3d: section 4.2 with the matrices of Algorithm 1, layer by layer (section 3.2)."""
    words: dict[tuple[str, ...], float] = {(name,): 0.0 for name in ("H", "sums", "weights", "gradients")}
    seconds = 0.0
    for matrix, axis, times, size in _collectives(case.graph.n, case.widths, case.grid):
        count = case.grid[axis]
        got = times * (count - 1) / count * size
        words[matrix,] += got
        seconds += got * case.itemsize / bandwidth(case.machine, case.grid, axis)
    text = "all-reduce of M in a group of G: 2/b (G-1)/G M; all-gather and reduce-scatter: half of it"
    rates = ", ".join(f"{axis} {bandwidth(case.machine, case.grid, axis) / 1e9:.3g}" for axis in case.grid)
    where = f"b: GB/s along an axis, here {rates}; messages are left out; all features are trained"
    return Formula("Plexus, 4.2", text, where, words, 0.0, seconds)


def _collectives(n: int, widths: Sequence[int], grid: Sizes) -> list[tuple[str, str, int, float]]:
    """List the collectives of Algorithm 1.

    Matrix, axis of the group, 2 for an all-reduce and 1 for half of one, words.
    """
    listed = []
    for layer, (below, above) in enumerate(pairwise(widths)):
        z, x, y = ROLES[layer % 3]
        F, H = n * below / (grid[x] * grid[y]), n * below / (grid[z] * grid[y])
        W, Q = below * above / (grid[y] * grid[x]), n * above / (grid[z] * grid[x])
        listed += [("H", z, 1, F)] if layer == 0 else []  # line 2
        listed += [("sums", x, 2, H), ("weights", z, 1, W), ("sums", y, 2, Q)]  # lines 4, 6, 8
        listed += [("gradients", z, 1, W), ("weights", z, 1, W), ("sums", x, 2, H)]  # lines 16, 18, 20
        listed += [("sums", z, 2 if layer else 1, F)]  # line 23
    return listed


def bandwidth(machine: Machine, grid: Sizes, axis: str) -> float:
    """Return bytes per second of a rank in a group along this axis.

    Plexus's β, of the level that the group takes.

    Groups of one node share what the node injects: β_inter / min(G_node, ranks of the axes nearer).
    """
    axes = list(grid)
    near = math.prod(grid[nearer] for nearer in axes[axes.index(axis) + 1 :])
    inner = 1
    for level in machine.levels:
        if level.ranks is None or near * grid[axis] <= level.ranks:
            break
        inner = level.ranks
    return min(level.bandwidth, level.injection / min(inner, near))


def _swapped(case: Case) -> float:
    """Count words of the all-to-alls of products forward and backward."""
    c = case.grid["cols"]
    return 2 * 2 * case.nf / case.ranks * (c - 1) / c


def _columns_of_rows(case: Case) -> Formula:
    r, c = case.grid["rows"], case.grid["cols"]
    text = "2 L (a (2 (c-1) + lg r + 2 r) + b (2 n f/P (c-1)/c + n f/c (r-1)/r)) on r x c ranks"
    messages = 2 * case.layers * (2 * (c - 1) + (_lg(r) + 2 * r if r > 1 else 0))
    words: dict[tuple[str, ...], float] = {DENSE: _swapped(case) + 2 * case.nf / c * (r - 1) / r}
    return case.formula("RDM", text, f"{_F}; weights are left out", messages, words)


def _columns_of_needed_rows(case: Case) -> Formula:
    r, c = case.grid["rows"], case.grid["cols"]
    if r == 1:
        return _crossing_rows(case)
    most = cut(case.graph, r)
    text = "2 L (a (2 (c-1) + r-1) + b (2 n f/P (c-1)/c + (r-1) cut f/c)) on r x c ranks"
    needed = 2 * (r - 1) * most * case.nf / case.graph.n / c
    words: dict[tuple[str, ...], float] = {DENSE: _swapped(case) + needed}
    where = f"{_F}; cut: the most rows that a rank needs of one other, {most:.4g}; weights are left out"
    return case.formula("RDM", text, where, 2 * case.layers * (2 * (c - 1) + r - 1), words)


def _crossing_rows(case: Case) -> Formula:
    c, share = case.grid["cols"], crossing_share(case.graph, case.grid["cols"])
    text = "2 L (a 2 (c-1) + b 2 s n f/P (c-1)/c) on 1 x c ranks"
    where = f"{_F}; s: the nodes with neighbours of other ranks, a share of {share:.4g}; no weights"
    words: dict[tuple[str, ...], float] = {DENSE: share * _swapped(case)}
    return case.formula("RDM", text, where, 4 * case.layers * (c - 1), words)


def crossing_share(graph: Graph, ranks: int) -> float:
    """Return the share of the rows with entries in columns of other ranks, which share the nodes evenly.

    Of a graph of which only numbers of non-zeros are known, what is expected where they lie at random.
    """
    ends = partition(graph.n, ranks)
    whole = (0, graph.n)
    if isinstance(graph.source, Histogram):
        A = ShapeMatrix((graph.n, graph.n), int(graph.source.nnz.sum()), np.dtype(np.float32))
    else:
        A = canonical(graph.source.block(whole, whole), graph.source.dtype)
    return sum(rows.size for rows in crossing(A, ends, ends, 0).rows) / graph.n


def cut(graph: Graph, parts: int) -> float:
    """Count the most rows of H that one block row of A reads of another.

    Cut_P(G), Sparsity-aware section 4.1.

    Of a graph of which only numbers of non-zeros are known, what is expected where they lie at random.
    """
    ends = partition(graph.n, parts) if graph.parts is None else graph.parts
    if isinstance(graph.source, Histogram):
        heights = np.diff(ends)
        nonzeros = _spread_over(graph.source, ends)
        needed = heights * -np.expm1(-nonzeros / np.maximum(heights, 1))
    else:
        needed = np.array([_columns(graph.source, block(ends, i), ends) for i in range(len(ends) - 1)])
    np.fill_diagonal(needed, 0)
    return float(needed.max())


def _columns(source: Any, rows: Any, ends: np.ndarray) -> np.ndarray:
    """Count the columns that are not empty in these rows, by block of columns."""
    columns = np.unique(source.block(rows, (0, int(ends[-1]))).indices)
    return np.diff(np.searchsorted(columns, ends))


def _spread_over(source: Histogram, ends: np.ndarray) -> np.ndarray:
    """Return non-zeros by block of rows and of columns."""
    across = _overlaps(source.cols, ends)
    return _overlaps(source.rows, ends) @ source.nnz @ across.T


def _overlaps(vector: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the share of each range of a partition vector (columns) that lies in each of another (rows)."""
    low, high = np.maximum.outer(ends[:-1], vector[:-1]), np.minimum.outer(ends[1:], vector[1:])
    return np.maximum(high - low, 0) / np.maximum(np.diff(vector), 1)


FORMULAS: dict[tuple[str, bool | str], Callable[[Case], Formula | None]] = {
    ("1d", False): _rows,
    ("1d", True): _needed_rows,
    ("1.5d", False): _copied_rows,
    ("1.5d", True): _needed_copied_rows,
    ("2d", False): _summa,
    ("3d-split", False): _split,
    ("3d", False): _planes,
    ("rdm", False): _columns_of_rows,
    ("rdm", True): _columns_of_needed_rows,
}
