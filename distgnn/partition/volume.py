"""Small total volume without a part that sends or receives much more than another: refinement of a good start.

Volume-balancing models put these costs into recursive bisection (Acer, Selvitopi and Aykanat, Parallel Computing 59, 2016:
Graph-VB of ``sparsity-aware.txt`` section 5.2). Here all parts are refined together (``kernels/host/volume.c``), from the best
start that is installed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee

from distgnn import hostkernels
from distgnn.errors import UserError
from distgnn.partition import hypergraph, metis
from distgnn.partition.pattern import Pattern
from distgnn.partition.quality import measure

#: Where a smaller share of the nodes is on boundaries, the start decides: it should be the best. Then boundaries move as a whole.
FEW_ON_BOUNDARIES = 0.1


@dataclass(frozen=True)
class Annealing:
    """How to refine a start.

    Attributes:
        heat: rows by which a move may worsen the objective at first, for a row of one non-zero; it grows with their square root.
        work: visits of every net by every row of it, at least; `per_part`: as many for each part, where that is more.
        send, receive: most of a part relative to the average; aimed at, not promised.
        interfaces: do whole boundaries between two parts move, or rows?
    """

    heat: float
    work: int
    per_part: int
    send: float
    receive: float
    interfaces: bool = False


ROWS = Annealing(0.6, 400, 3, 1.095, 1.3)
INTERFACES, LAST_ROWS = Annealing(4.6, 600, 14, 1.03, 1.4, interfaces=True), Annealing(0.1, 100, 0, 1.03, 1.4)

#: Rows that a part may send in any case, where interfaces move, relative to the average of the start. That is the best known:
#: with 3 per cent more in total, evened out to 1.10 of the average, a part would send 1.13 times that.
OF_START = 1.1


def kernels() -> ModuleType:
    """The compiled kernels.

    Raises:
        UserError: they are not built.
    """
    try:
        return hostkernels.built()
    except UserError:
        raise UserError("--partition volume: needs the compiled host kernels; install with a C compiler at hand") from None


def partition(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """Small total volume, and no part far above the average send and receive volume.

    Time: that of METIS, where few nodes are on boundaries that of the hypergraph partitioner too, and at least 400 (600) visits
    per node and non-zero, each of as many steps as the net has parts. Memory: 80 bytes per node, 9 to 17 per non-zero, and 4 per
    part for every column of more than 11 non-zeros.
    """
    kernels()
    part = _few_edges(pattern, parts, seed, imbalance)
    rows = np.repeat(part, pattern.row_nonzeros) != part[pattern.indices]
    if parts == 1 or not pattern.nnz:
        return part
    refine = functools.partial(_refine, parts=parts, seed=seed, imbalance=imbalance)
    if np.unique(pattern.indices[rows]).size > FEW_ON_BOUNDARIES * pattern.n:
        return refine(pattern, pattern.row_nonzeros, part, ROWS, 0)
    if _installed(hypergraph.package):
        part = hypergraph.partition(pattern, parts, seed, imbalance)
    least = OF_START * measure(pattern, part, parts).volume / parts
    cell = chains(pattern, part)
    coarse, weights, of_cells = contracted(pattern, cell, part)
    part = refine(coarse, weights, of_cells, INTERFACES, least)[cell]
    return refine(pattern, pattern.row_nonzeros, part, LAST_ROWS, least)


def _refine(
    pattern: Pattern, weights: np.ndarray, part: np.ndarray, how: Annealing, least: float, parts: int, seed: int, imbalance: float
) -> np.ndarray:
    """`part` made better, with `weights` for the non-zeros of the rows; a part may always send `least` rows."""
    nonzeros, volumes = int(weights.sum()), np.empty((2, parts), np.int64)
    kernels().volume_refine(
        pattern.indptr, pattern.indices, weights, part, *volumes, capacity=int(imbalance * nonzeros / parts),
        send_bound=how.send, send_least=least, receive_bound=how.receive, interfaces=how.interfaces,
        heat=how.heat * (nonzeros / pattern.n) ** 0.5, work=max(how.work, how.per_part * parts) * (pattern.n + nonzeros),
        seed=seed % 2**63,
    )  # fmt: skip
    return part


def chains(pattern: Pattern, part: np.ndarray) -> np.ndarray:
    """int32 (n,): the cell of every node. Nodes with at most two neighbours share one with those of them in their part.

    Most nodes of a road map are such, and where on a road between two crossings a boundary is makes no difference to the volume.
    """
    graph = pattern.neighbours
    degrees = np.diff(graph.indptr)
    rows = np.repeat(np.arange(pattern.n), degrees)
    joined = (degrees[rows] <= 2) & (degrees[graph.indices] <= 2) & (part[rows] == part[graph.indices])
    links = sp.csr_array((joined[joined], (rows[joined], graph.indices[joined])), shape=graph.shape)
    return connected_components(links, directed=False)[1]


def contracted(pattern: Pattern, cell: np.ndarray, part: np.ndarray) -> tuple[Pattern, np.ndarray, np.ndarray]:
    """The pattern of the cells without their own entries, their non-zeros and their parts."""
    rows, columns = np.repeat(cell, pattern.row_nonzeros), cell[pattern.indices]
    apart, cells = rows != columns, cell.max() + 1
    entries = sp.coo_array((apart[apart], (rows[apart], columns[apart])), shape=(cells, cells))
    of_cells = np.empty(cells, np.int32)
    of_cells[cell] = part
    return Pattern.of(entries), np.bincount(cell, pattern.row_nonzeros).astype(np.int64), of_cells


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
