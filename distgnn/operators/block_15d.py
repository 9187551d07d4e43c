"""1.5D block-row product with c copies.

CAGNET section IV-B, Algorithm 2; sparsity-aware paper, section 4.2, Algorithm 2.
"""

from __future__ import annotations

from distgnn.layout import Axes
from distgnn.operators.block_rows import BlockRows


class Block15D(BlockRows):
    """``A`` and ``H`` in P/c block rows over ``rows``, each held by the c ranks of a process row (``reps``).

    Process column ``j`` adds up its share of the stages, P/c² of the P/c column blocks; an all-reduce over
    the process row completes the sum. Where c² does not divide P, process columns share blocks, in place of
    more stages for some of them: at P = 8, c = 4, each has a half of one of the two blocks. Rank (i, j) holds
    only its process column's columns of A_i.

    Algorithm 2 (lines of the sparsity-aware paper's in brackets), with its moves
    (:class:`~distgnn.operators.row_moves.RowMoves`) and a kernel:

        for q of column j's stages, or what is its own of block q:      lines 4-5 (3-4)
            BCAST(H_q, P(:, j)), or ISend, Recv of rows NnzCols(i, q)   line 6 (5-12): columns_read
            Z = Z + A_iq H_q                                            line 7 (13): local.spmm
        ALLREDUCE(Z, +, P(i, :))                                        line 8 (15): rows_written

    Backwards (columns_written), rank (q, j) gets rows NnzCols(i, q) of A_iqᵀ G_i and adds them to its rows of
    F_q; line 15 reversed is a broadcast over the process row, from each rank that has such rows.

    The sum travels while the last panel of ``H`` is multiplied, the blocks of ``H`` during the products
    before. That panel is so large that both have time in proportion to their words.

    Cost per product and rank, in words received: the n f/c of its process column, but for rows of its own
    block. Sparsity-aware: exactly Σ_{q≠i} NnzCols(i, q) f over its stages q, point to point within the
    process column. Then an all-reduce of n f c/P over c ranks.

    The sparsity-aware adjoint of a directed graph: rank (q, j) of stage q receives Σ_{i≠q} NnzCols(i, q) f,
    which sums its rows of block q; then the other rows of that block from its process row, n f c/P less its
    own, as other columns add nothing to these.
    """

    name = "1.5d"
    axes = ("rows", "reps")

    @staticmethod
    def last_panel(grid: Axes) -> float:
        rows, c = grid.shape["rows"], grid.shape["reps"]
        summed = 2 * (c - 1) / c  # words of the sum, in those of a block
        return min(-(-rows // c) * summed / (rows / c + summed), 1.0)

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        """List the grids of every c that divides P, by the words that a rank receives in a product at most.

        See `words`, which needs no graph. First comes the smallest c within 10 % of the least, as ``H`` is
        held in c copies.
        """
        received = {c: words(ranks, c) for c in range(1, ranks + 1) if ranks % c == 0}
        near = 1.1 * min(received.values())
        best = sorted(received, key=lambda c: (max(received[c], near), c))
        return [{"rows": ranks // c, "reps": c} for c in best]


def words(ranks: int, c: int) -> int:
    """Return the words that a rank receives at most in a product with c copies, in units of n f/P.

    P/c for the rows of ``H`` of a process column, less the own block where that has all rows, and 2 (c-1) in
    the all-reduce: n f/c + 2 (c-1)/P n f words where c > 1 and there are several process rows.
    """
    rows = ranks // c
    return rows - (1 in (rows, c)) + 2 * (c - 1)
