"""Small total volume without a part that sends or receives much more than another: refinement of a good
start.

Volume-balancing models put these costs into recursive bisection (Acer, Selvitopi and Aykanat, Parallel
Computing 59, 2016: Graph-VB of ``sparsity-aware.txt`` section 5.2). Here all parts are refined together
    (``kernels/host/volume.c``), from a good
start: METIS's parts, or those of the hypergraph partitioner where few nodes are on boundaries and cells are
    many, as on a mesh.

Where many nodes are on boundaries, rows move. Where few are, as on a road map, whole interfaces between two
parts do, across crossings, each with its roads, which are few: first for the smallest total; then so that
nobody sends much. Then they move in the neighbourhoods of the parts that send most, across crossings and then
across roads and crossings. Where that is not even enough, all but the first is done again, with less work
across crossings where parts are many, and the better of the two is kept. At last single rows move.

What the busiest part sends is as small then as it gets. Parts at the edge of the map have fewer neighbours
and send less. The last step lets these send more, until the busiest sends `OF_AVERAGE` of the average or the
total is `LEVELLED` of the smallest. It makes nobody faster: it is there because the bound is relative to the
average. Where it can, it moves rows to parts with fewer non-zeros.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from scipy.sparse.csgraph import reverse_cuthill_mckee

from distgnn.errors import ArgumentError, UserError
from distgnn.local import host
from distgnn.partition import hypergraph, metis
from distgnn.partition.cells import chains, contracted, crossings, streets, taken_apart
from distgnn.partition.pattern import Pattern
from distgnn.partition.quality import measure

#: Where a smaller share of the nodes is on boundaries, these move as a whole.
FEW_ON_BOUNDARIES = 0.1


class Moves(enum.IntEnum):
    """What moves: VOLUME_... of ``volume.h``."""

    ROWS = 0
    INTERFACES = 1
    NEIGHBOURHOODS = 2
    LEVEL = 3


@dataclass(frozen=True)
class Annealing:
    """How to refine a start.

    Attributes:
        moves: single rows, or whole boundaries between two parts, everywhere or in one neighbourhood after
            another.
        heat: rows by which a move may worsen the objective at first, for a row of one non-zero; it grows with
            their square root.
        work: visits of every net by every row of it, for a number of parts.
        send, receive: most of a part relative to the average; aimed at, not promised. 0: the number of rows
            in `Within`.
        each: visits for every part, besides.
    """

    moves: Moves
    heat: float
    work: Callable[[int], int]
    send: float
    receive: float
    each: int = 0


@dataclass(frozen=True)
class Within:
    """Rows that may be sent in total (by LEVEL: that should be), and by a part, whatever the averages are."""

    total: int = 0
    part: int = 0


ROWS = Annealing(Moves.ROWS, 0.6, lambda parts: max(400, 3 * parts), 1.095, 1.3)
LEAST = Annealing(Moves.INTERFACES, 4.6, lambda parts: 75 + parts // 6, 0, 1.4)
CROSSINGS = Annealing(Moves.INTERFACES, 4.6, lambda parts: 260, 0, 1.4)
AGAIN = Annealing(Moves.INTERFACES, 4.6, lambda parts: min(260, max(100, 420 - 5 * parts // 2)), 0, 1.4)
QUARTERS = Annealing(Moves.NEIGHBOURHOODS, 4.6, lambda parts: 35 + 13 * parts // 10, 0, 1.4, 1_300_000)
ROADS = Annealing(Moves.NEIGHBOURHOODS, 4.6, lambda parts: 75 + 13 * parts // 10, 0, 1.4, 1_200_000)
LAST_ROWS = Annealing(Moves.ROWS, 0.1, lambda parts: 10, 0, 1.4)
LEVEL = Annealing(Moves.LEVEL, 0, lambda parts: 0, 0, 0)

#: What a part may send of the average of the start, where interfaces move for the total alone, and of its own
#: in the end.
OF_START, OF_AVERAGE = 1.6, 1.10

#: The price of evenness, total volume relative to the one that was annealed for nothing else: what is aimed
#: at, what LEVEL may go up to, and below what CROSSINGS (as AGAIN), QUARTERS and ROADS are not done again;
#: and how often they are.
OF_LEAST, LEVELLED, GOOD, ROUNDS = 1.10, 1.15, 1.04, 2

#: Where there are more cells for a node, as on a mesh or in parts of few nodes, interfaces move too slowly to
#: make up for a worse start.
FEW_CELLS = 0.25

#: Most non-zeros of a cell that moves as a whole, relative to those of an average part.
HEAVIEST = 0.1


def kernels() -> ModuleType:
    """The compiled kernels.

    Raises:
        UserError: they are not built.
    """
    try:
        return host.built()
    except UserError:
        problem = "needs the compiled host kernels; install with a C compiler at hand"
        raise ArgumentError("partition", "volume", problem) from None


def partition(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """Small total volume, and no part far above the average send and receive volume.

    Time: that of METIS and at least 400 visits per node and non-zero, each of as many steps as the net has
    parts. Where few nodes are on boundaries, up to 815 visits and 6 per part of cells and their non-zeros,
    and 5 million per part; and that of the hypergraph partitioner where cells are many.
    Memory of the kernels: 60 bytes per node (there 110), 9 to 17 (22) per non-zero, and 4 per part for every
    column of more than 11 non-zeros; of the cells about 80 per non-zero.
    """
    kernels()
    part = _few_edges(pattern, parts, seed, imbalance)
    if parts == 1 or not pattern.nnz:
        return part
    rows = np.repeat(part, pattern.row_nonzeros) != part[pattern.indices]
    if np.unique(pattern.indices[rows]).size <= FEW_ON_BOUNDARIES * pattern.n:
        return _by_interfaces(pattern, part, parts, seed, imbalance)
    return _refine(
        pattern, pattern.row_nonzeros, part, ROWS, Within(), parts=parts, seed=seed, imbalance=imbalance
    )


def _by_interfaces(pattern: Pattern, part: np.ndarray, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """From `part` or a better start: least total volume, then rounds that even it out, then single rows and
    levelling.
    """
    refine = functools.partial(_refine, parts=parts, imbalance=imbalance)
    roads, heaviest = streets(pattern), HEAVIEST * pattern.nnz / parts
    of_crossings = taken_apart(pattern, crossings(roads), heaviest)
    if of_crossings.max() >= FEW_CELLS * pattern.n and _installed(hypergraph.package):
        part = hypergraph.partition(pattern, parts, seed, imbalance)
    start = measure(pattern, part, parts).volume
    within = Within(part=max(1, int(OF_START * start / parts)))
    part = refine(*contracted(pattern, of_crossings, part), LEAST, within, seed=seed)[of_crossings]
    least = min(start, measure(pattern, part, parts).volume)
    within = Within(int(OF_LEAST * least), max(1, int(OF_AVERAGE * OF_LEAST * least / parts)))
    found = []
    for again in range(ROUNDS):
        for how in (AGAIN if again else CROSSINGS, QUARTERS, ROADS):
            cell = taken_apart(pattern, chains(roads, part), heaviest) if how is ROADS else of_crossings
            part = refine(*contracted(pattern, cell, part), how, within, seed=seed + again)[cell]
        found.append((_even_total(pattern, part, parts), -again, part))
        if found[-1][0] <= GOOD * least:
            break
    part = min(found, key=lambda each: each[:2])[2]
    busiest = Within(part=int(measure(pattern, part, parts).sends.max()))
    part = refine(pattern, pattern.row_nonzeros, part, LAST_ROWS, busiest, seed=seed)
    level = Within(min(int(LEVELLED * least), _even_total(pattern, part, parts)))
    return refine(pattern, pattern.row_nonzeros, part, LEVEL, level, seed=seed)


def _even_total(pattern: Pattern, part: np.ndarray, parts: int) -> int:
    """What is sent in total, or what must be for the busiest part to send no more than OF_AVERAGE."""
    q = measure(pattern, part, parts)
    return max(q.volume, math.ceil(q.sends.max() * parts / OF_AVERAGE))


def _refine(
    pattern: Pattern,
    weights: np.ndarray,
    part: np.ndarray,
    how: Annealing,
    within: Within,
    *,
    parts: int,
    seed: int,
    imbalance: float,
) -> np.ndarray:
    """`part` made better, with `weights` for the non-zeros of the rows."""
    nonzeros, volumes = int(weights.sum()), np.empty((2, parts), np.int64)
    kernels().volume_refine(
        pattern.indptr, pattern.indices, weights, part, *volumes, capacity=int(imbalance * nonzeros / parts),
        send_bound=how.send, send_least=within.part, receive_bound=how.receive, total_bound=within.total,
        moves=how.moves, heat=how.heat * (nonzeros / pattern.n) ** 0.5,
        work=how.work(parts) * (pattern.n + nonzeros) + how.each * parts, seed=seed % 2**63,
    )  # fmt: skip
    return part


def _few_edges(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """METIS's parts, or without METIS an even cut of the reverse Cuthill-McKee order."""
    if _installed(metis.package):
        return metis.edge_cut(pattern, parts, seed, imbalance)
    order = reverse_cuthill_mckee(pattern.neighbours, symmetric_mode=True)
    part = np.empty(pattern.n, np.int32)
    part[order] = metis.even_cut(np.maximum(pattern.row_nonzeros, 1)[order], parts)
    return part


def _installed(package: Callable[[], ModuleType]) -> bool:
    try:
        package()
    except UserError:
        return False
    return True
