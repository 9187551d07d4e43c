"""Counts of blocks of a SciPy matrix that prices are made of, and the comparison of a ledger with a price."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import maximum_bipartite_matching

import distgnn as dg


def column_shares(n, rows, c, vector=None):
    """Return of each process column the partition vector of its share of the ``rows`` blocks of n nodes.

    That is rows/c blocks, from the first on: whole ones, and parts of the first and the last.
    """
    vector, ends = [int(end) for end in (dg.layout.partition(n, rows) if vector is None else vector)], []
    for j in range(c + 1):
        at = Fraction(j * rows, c)
        q = min(int(at), rows - 1)
        ends.append(vector[q] + int((at - q) * (vector[q + 1] - vector[q])))
    return [np.array([min(max(end, first), last) for end in vector]) for first, last in pairwise(ends)]


def shares_of(operator):
    """Return the partition vector of the columns of this rank's process column."""
    grid, parts = operator.grid, operator.algorithm.col_parts
    c, j = grid.shape.get("reps", 1), grid.coords.get("reps", 0)
    return column_shares(parts[-1], len(parts) - 1, c, parts)[j]


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


def rows_returned(A, tops, lefts, j, count=needed):
    """Return Σ count(A_ij) over all block rows i but j."""
    mine = A[:, lefts[j] : lefts[j + 1]]
    others = [i for i in range(len(tops) - 1) if i != j]
    return sum(count(sp.csr_array(mine[tops[i] : tops[i + 1]])) for i in others)


def crossing(A, c, j):
    """Return of one process row how many columns and rows of A rank j and all ranks share with others."""
    entries = A.tocoo()
    of_row, of_column = (
        np.searchsorted(np.cumsum(np.diff(dg.layout.partition(n, c))), numbers, side="right")
        for n, numbers in zip(A.shape, (entries.row, entries.col), strict=True)
    )
    away = of_row != of_column
    columns, rows = np.unique(entries.col[away]), np.unique(entries.row[away])
    mine = np.unique(entries.col[away & (of_column == j)]), np.unique(entries.row[away & (of_row == j)])
    return mine[0].size, columns.size, mine[1].size, rows.size


def by_matrix(ledger):
    """Count the words of each matrix of which some are received."""
    words = Counter()
    for entry in ledger.entries():
        words[entry["matrix"]] += entry["words"]
    return {matrix: count for matrix, count in words.items() if count}


def check_price(run, price, label=""):
    """Check that the ledger charges ``run()`` its price: words, by matrix, and messages."""
    with dg.Ledger() as ledger:
        run()
    said = {matrix: words for matrix, words in price.by_matrix().items() if words}
    found = by_matrix(ledger)
    assert ledger.words == round(price.words) and ledger.messages == price.messages, (label, found, said)
    assert {m: round(w) for m, w in said.items() if round(w)} == found, label
    return ledger
