"""Charges of each algorithm, from the papers' formulas and the sizes of blocks alone: no code of the engine
but the partition function, and no walk through the algorithms' steps.

Every function returns the words this rank receives, as exact fractions, by the matrix that they belong to.
``g`` is the grid, ``A`` the global matrix (SciPy).
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import maximum_bipartite_matching

from distgnn.layout import partition

#: How nodes are cut; a test of other partitions puts its own function here. Feature widths are always cut
#: evenly.
cut_nodes = partition

#: Columns of A in a panel of SUMMA at most; None: all of a stage. A test of narrower panels says how many.
block_size = None


def sizes(n, parts):
    """Block sizes of an even partition, as widths have."""
    return np.diff(partition(n, parts)).tolist()


def heights(n, parts):
    """Return the numbers of nodes per block."""
    return np.diff(cut_nodes(n, parts)).tolist()


def csr_words(A, rows, cols):
    """Count the words of a block: an index and a value per non-zero, and the row pointers."""
    block = A[rows[0] : rows[1], cols[0] : cols[1]]
    return 2 * block.nnz + block.shape[0] + 1


def allreduce(p, m):
    return Fraction(2 * (p - 1), p) * m


def reduce_scatter(p, m):
    return Fraction(p - 1, p) * m


def words_1d(g, A, f):
    """Return n f (P-1)/P: all of H but the own block (CAGNET IV-A1)."""
    own = heights(A.shape[1], g.size)[g.rank]
    return {"H": (A.shape[1] - own) * f}


def column_shares(n, rows, c, vector=None):
    """Return of each process column the partition vector of its share of the ``rows`` blocks of n nodes.

    That is rows/c blocks, from the first on: whole ones, and parts of the first and the last.
    """
    vector, ends = [int(end) for end in (cut_nodes(n, rows) if vector is None else vector)], []
    for j in range(c + 1):
        at = Fraction(j * rows, c)
        q = min(int(at), rows - 1)
        ends.append(vector[q] + int((at - q) * (vector[q + 1] - vector[q])))
    return [np.array([min(max(end, first), last) for end in vector]) for first, last in pairwise(ends)]


def words_15d(g, A, f):
    """Return a process column's rows of H, but for own ones, and an all-reduce over copies (CAGNET IV-B1)."""
    rows, c = g.shape["rows"], g.shape["reps"]
    i, j = g.coords["rows"], g.coords["reps"]
    share = column_shares(A.shape[1], rows, c)[j]
    received = int(share[-1] - share[0] - (share[i + 1] - share[i])) * f
    return {"H": received, "sums": allreduce(c, heights(A.shape[0], rows)[i] * f)}


def needed(block):
    """Count the distinct columns of a block with a non-zero: NnzCols."""
    return np.unique(block.indices).size


def matched(block):
    """Return the size of a maximum matching of a pattern, and of a minimum vertex cover (König)."""
    pattern = sp.csr_array((np.ones(block.nnz), block.indices, block.indptr), shape=block.shape)
    return int((maximum_bipartite_matching(pattern) >= 0).sum())


def rows_fetched(A, tops, lefts, i, stages, count=needed):
    """Return Σ count(A_ij) over the stages j but i."""
    mine = A[tops[i] : tops[i + 1]]
    return sum(count(sp.csr_array(mine[:, lefts[j] : lefts[j + 1]])) for j in stages if j != i)


def words_1d_sparsity_aware(g, A, f, count=needed):
    """Return Σ_{j≠i} NnzCols(i, j) f (sparsity-aware paper, 4.1)."""
    tops, lefts = cut_nodes(A.shape[0], g.size), cut_nodes(A.shape[1], g.size)
    return {"H": rows_fetched(A, tops, lefts, g.rank, range(g.size), count) * f}


def rows_returned(A, tops, lefts, j, count=needed):
    """Return Σ count(A_ij) over all block rows i but j."""
    mine = A[:, lefts[j] : lefts[j + 1]]
    others = [i for i in range(len(tops) - 1) if i != j]
    return sum(count(sp.csr_array(mine[tops[i] : tops[i + 1]])) for i in others)


def adjoint_words_1d_sparsity_aware(g, A, f, count=needed):
    """Return Σ_{i≠j} NnzCols(i, j) f on rank j: its words sent in ``A @ H`` come back."""
    tops, lefts = cut_nodes(A.shape[0], g.size), cut_nodes(A.shape[1], g.size)
    return {"sums": rows_returned(A, tops, lefts, g.rank, count) * f}


def words_15d_sparsity_aware(g, A, f, count=needed):
    """Return the words over the share of a process column (sparsity-aware paper, 4.2).

    An all-reduce over the copies follows.
    """
    rows, c = g.shape["rows"], g.shape["reps"]
    i, j = g.coords["rows"], g.coords["reps"]
    tops, share = cut_nodes(A.shape[0], rows), column_shares(A.shape[1], rows, c)[j]
    received = rows_fetched(A, tops, share, i, range(rows), count) * f
    return {"H": received, "sums": allreduce(c, int(tops[i + 1] - tops[i]) * f)}


def adjoint_words_15d_sparsity_aware(g, A, f, count=needed):
    """Return the words of sums of this process column's rows of the block, and the others, which it gets."""
    rows, c = g.shape["rows"], g.shape["reps"]
    i, j = g.coords["rows"], g.coords["reps"]
    tops, lefts = cut_nodes(A.shape[0], rows), cut_nodes(A.shape[1], rows)
    share = column_shares(A.shape[1], rows, c)[j]
    others = int(lefts[i + 1] - lefts[i] - (share[i + 1] - share[i]))
    return {"sums": (rows_returned(A, tops, share, i, count) + others) * f}


def panels_of(first, last):
    """Return the panels of a stage, of equal width but for one column."""
    count = 1 if block_size is None else max(-(-(last - first) // block_size), 1)
    return list(pairwise((first + partition(last - first, count)).tolist()))


def stages_2d(n, pr, pc):
    bounds = sorted({*cut_nodes(n, pr).tolist(), *cut_nodes(n, pc).tolist()})
    return [panel for stage in pairwise(bounds) for panel in panels_of(*stage)]


def words_2d(g, A, f):
    """Return nnz/pr for the row's panels of A and n f/pc for the column's panels of H (CAGNET IV-C6).

    The rank's own panels do not count.
    """
    pr, pc, i, j = g.shape["rows"], g.shape["cols"], g.coords["rows"], g.coords["cols"]
    rows = cut_nodes(A.shape[0], pr)[i : i + 2]
    own_columns, own_rows = cut_nodes(A.shape[1], pc)[j : j + 2], cut_nodes(A.shape[1], pr)[i : i + 2]
    total = {"A": 0, "H": 0}
    for first, last in stages_2d(A.shape[1], pr, pc):
        if not own_columns[0] <= first < own_columns[1]:
            total["A"] += csr_words(A, rows, (first, last))
        if not own_rows[0] <= first < own_rows[1]:
            total["H"] += (last - first) * sizes(f, pc)[j]
    return total


def adjoint_words_2d(g, A, f):
    """Return the words of the same panels of A and of panels of the result, summed up the column.

    A is transposed in its place. Sums are charged like a broadcast.
    """
    pr, pc, i, j = g.shape["rows"], g.shape["cols"], g.coords["rows"], g.coords["cols"]
    rows = cut_nodes(A.shape[0], pr)[i : i + 2]
    own_columns, own_rows = cut_nodes(A.shape[1], pc)[j : j + 2], cut_nodes(A.shape[1], pr)[i : i + 2]
    total = {"A": 0, "sums": 0}
    for first, last in stages_2d(A.shape[1], pr, pc):
        if not own_columns[0] <= first < own_columns[1]:
            total["A"] += 2 * A[rows[0] : rows[1], first:last].nnz + (last - first) + 1
        if not own_rows[0] <= first < own_rows[1]:
            total["sums"] += (last - first) * sizes(f, pc)[j]
    return total


def split_3d_parts(g, A, f):
    """Return the rank's rows of A, the panels (owner of A's, of H's, first, last), the columns of H."""
    pr, pc, layers = g.shape["rows"], g.shape["cols"], g.shape["fibers"]
    i, j, k = g.coords["rows"], g.coords["cols"], g.coords["fibers"]
    tops = cut_nodes(A.shape[0], pr * layers)
    rows = (int(tops[i * layers]), int(tops[(i + 1) * layers]))
    lefts = cut_nodes(A.shape[1], pr * layers).tolist()
    blocks = [range(*lefts[s * layers + k : s * layers + k + 2]) for s in range(pr)]
    numbered = [(s, column) for s, block in enumerate(blocks) for column in block]
    shares = np.repeat(np.arange(pc), sizes(len(numbered), pc)).tolist()
    stages = {}
    for (r, column), share in zip(numbered, shares, strict=True):
        first, _ = stages.setdefault((r if pr == pc else share, r), (column, column))
        stages[r if pr == pc else share, r] = first, column + 1
    panels = [(*of, *panel) for of, stage in stages.items() for panel in panels_of(*stage)]
    return layers, i, j, k, rows, panels, sizes(f, pc)[j]


def words_3d_split(g, A, f):
    """Return nnz/(pr l) and n f/(pc l) within the layer, then (l-1)/l of n f/(pr pc) over the fiber.

    (CAGNET IV-D1.)
    """
    layers, i, j, _, rows, panels, width = split_3d_parts(g, A, f)
    sparse = sum(csr_words(A, rows, (first, last)) for c, _, first, last in panels if c != j)
    dense = sum((last - first) * width for _, r, first, last in panels if r != i)
    return {"A": sparse, "H": dense, "sums": reduce_scatter(layers, (rows[1] - rows[0]) * width)}


def adjoint_words_3d_split(g, A, f):
    layers, i, j, k, rows, panels, width = split_3d_parts(g, A, f)
    tops = cut_nodes(A.shape[0], g.shape["rows"] * layers)
    own = int(tops[i * layers + k + 1] - tops[i * layers + k])
    sparse = sum(
        2 * A[rows[0] : rows[1], first:last].nnz + last - first + 1 for c, _, first, last in panels if c != j
    )
    dense = sum((last - first) * width for _, r, first, last in panels if r != i)
    return {"A": sparse, "sums": dense, "G": (rows[1] - rows[0] - own) * width}


def words_3d(g, A, f):
    """Return an all-gather of n f/(Gx Gy) over z, and an all-reduce of n f/(Gz Gy) over x.

    (Plexus Algorithm 1, lines 2 and 4.)
    """
    height = heights(A.shape[1], g.shape["x"])[g.coords["x"]]
    own = sizes(height, g.shape["z"])[g.coords["z"]]
    width = sizes(f, g.shape["y"])[g.coords["y"]]
    out = heights(A.shape[0], g.shape["z"])[g.coords["z"]]
    return {"H": (height - own) * width, "sums": allreduce(g.shape["x"], out * width)}


def adjoint_words_3d(g, A, f):
    """Return a reduce-scatter of n f/(Gx Gy) over z (Plexus Algorithm 1, line 23)."""
    height = heights(A.shape[1], g.shape["x"])[g.coords["x"]]
    return {"sums": reduce_scatter(g.shape["z"], height * sizes(f, g.shape["y"])[g.coords["y"]])}


def swapped_rdm(g, A, f):
    """Return the rows of a process row's block of H, this rank's columns, and words of the two all-to-alls.

    The first brings the other ranks' rows in the own columns, the second the own rows of the product in the
    others' columns.
    """
    c, i, j = g.shape["cols"], g.coords["rows"], g.coords["cols"]
    width = sizes(f, c)[j]
    of_H, of_T = (heights(n, g.shape["rows"])[i] for n in (A.shape[1], A.shape[0]))
    return of_H, width, (of_H - sizes(of_H, c)[j]) * width, sizes(of_T, c)[j] * (f - width)


def words_rdm(g, A, f):
    """Return 2 n f/P (c-1)/c in the all-to-alls, n f/c (r-1)/r for the other block rows of H."""
    of_H, width, there, back = swapped_rdm(g, A, f)
    return {"H": there + (A.shape[1] - of_H) * width, "T": back}


def crossing(A, c, j):
    """Return of one process row how many columns and rows of A rank j and all ranks share with others."""
    entries = A.tocoo()
    of_row, of_column = (
        np.searchsorted(np.cumsum(sizes(n, c)), numbers, side="right")
        for n, numbers in zip(A.shape, (entries.row, entries.col), strict=True)
    )
    away = of_row != of_column
    columns, rows = np.unique(entries.col[away]), np.unique(entries.row[away])
    mine = np.unique(entries.col[away & (of_column == j)]), np.unique(entries.row[away & (of_row == j)])
    return mine[0].size, columns.size, mine[1].size, rows.size


def words_rdm_crossing(g, A, f, count=needed):
    """Return the words of the all-to-alls of the rows that cross, on one process row."""
    c, j = g.shape["cols"], g.coords["cols"]
    width = sizes(f, c)[j]
    columns, all_columns, rows, _ = crossing(A, c, j)
    return {"H": (all_columns - columns) * width, "T": rows * (f - width)}


def words_rdm_sparsity_aware(g, A, f, count=needed):
    """Return the words of `words_rdm` with the needed rows of the other blocks."""
    r, i = g.shape["rows"], g.coords["rows"]
    if r == 1:
        return words_rdm_crossing(g, A, f)
    _, width, there, back = swapped_rdm(g, A, f)
    tops, lefts = cut_nodes(A.shape[0], r), cut_nodes(A.shape[1], r)
    return {"H": there + rows_fetched(A, tops, lefts, i, range(r), count) * width, "T": back}


def adjoint_words_rdm_sparsity_aware(g, A, f, count=needed):
    """Return the words of the all-to-alls of Aᵀ; between them the words sent in ``A @ H`` come back."""
    r, i = g.shape["rows"], g.coords["rows"]
    if r == 1:
        words = words_rdm_crossing(g, A.T.tocsr(), f)
        return {"G": words["H"], "T": words["T"]}
    _, width, there, back = swapped_rdm(g, A.T.tocsr(), f)
    tops, lefts = cut_nodes(A.shape[0], r), cut_nodes(A.shape[1], r)
    return {"G": there, "sums": rows_returned(A, tops, lefts, i, count) * width, "T": back}


def transposed(words):
    """Return the words of the adjoint of a block-row algorithm: the algorithm on the block rows of Aᵀ."""

    def adjoint(g, A, f):
        adjoint_words = words(g, A.T.tocsr(), f)
        return {"G": adjoint_words.pop("H"), **adjoint_words}

    return adjoint


def add_up(parts):
    """Add up a table of the functions above: the words of all matrices together."""
    return {name: lambda g, A, f, words=words: sum(words(g, A, f).values()) for name, words in parts.items()}


PARTS = {
    "1d": words_1d,
    "1.5d": words_15d,
    "2d": words_2d,
    "3d-split": words_3d_split,
    "3d": words_3d,
    "rdm": words_rdm,
}
SPARSITY_AWARE_PARTS = {
    "1d": words_1d_sparsity_aware,
    "1.5d": words_15d_sparsity_aware,
    "rdm": words_rdm_sparsity_aware,
}
SPARSITY_AWARE_ADJOINT_PARTS = {
    "1d": adjoint_words_1d_sparsity_aware,
    "1.5d": adjoint_words_15d_sparsity_aware,
    "rdm": adjoint_words_rdm_sparsity_aware,
}
ADJOINT_PARTS = {
    "1d": transposed(words_1d),
    "1.5d": transposed(words_15d),
    "2d": adjoint_words_2d,
    "3d-split": adjoint_words_3d_split,
    "3d": adjoint_words_3d,
    "rdm": transposed(words_rdm),
}
WORDS, ADJOINT_WORDS = add_up(PARTS), add_up(ADJOINT_PARTS)
SPARSITY_AWARE_WORDS = add_up(SPARSITY_AWARE_PARTS)
SPARSITY_AWARE_ADJOINT_WORDS = add_up(SPARSITY_AWARE_ADJOINT_PARTS)
COVER_WORDS = add_up({name: partial(words, count=matched) for name, words in SPARSITY_AWARE_PARTS.items()})
COVER_ADJOINT_WORDS = add_up(
    {name: partial(words, count=matched) for name, words in SPARSITY_AWARE_ADJOINT_PARTS.items()}
)


def dense_words(g, name, n, widths):
    """Return words of ``Z = T W`` and of the backward pair ``(Tᵀ G, G Wᵀ)`` for T (n, f) and W (f, f')."""
    f, h = widths
    if name == "3d":
        rows = sizes(n, g.shape["z"])[g.coords["z"]]
        columns, out = sizes(f, g.shape["y"])[g.coords["y"]], sizes(h, g.shape["x"])[g.coords["x"]]
        own = np.diff(partition(f, g.shape["y"] * g.shape["z"]))[g.coords["y"] * g.shape["z"] + g.coords["z"]]
        gather = (columns - int(own)) * out  # W over z: lines 6 and 18
        forward = gather + allreduce(g.shape["y"], rows * out)  # line 8
        backward = (
            reduce_scatter(g.shape["z"], columns * out) + gather + allreduce(g.shape["x"], rows * columns)
        )
        return forward, backward
    across = 1 if name == "rdm" else g.shape.get("cols", 1)
    j = g.coords["cols"] if across > 1 else 0
    if name == "rdm":
        pieces = g.size
        rows = sizes(sizes(n, g.shape["rows"])[g.coords["rows"]], g.shape["cols"])[g.coords["cols"]]
    elif name == "3d-split":
        pieces = g.shape["rows"] * g.shape["fibers"]
        rows = sizes(n, pieces)[g.coords["rows"] * g.shape["fibers"] + g.coords["fibers"]]
    else:
        pieces = g.shape["rows"]
        rows = sizes(n, pieces)[g.coords["rows"]]
    own_in, own_out = sizes(f, across)[j], sizes(h, across)[j]
    forward = rows * (f - own_in)  # panels of T along the row: n f/pr
    backward = rows * (h - own_out) + allreduce(pieces, own_in * h) + (f - own_in) * h
    return forward, backward
