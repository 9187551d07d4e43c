"""1.5D block-row product with c copies.

CAGNET section IV-B, Algorithm 2; sparsity-aware paper, section 4.2, Algorithm 2.
"""

from __future__ import annotations

from distgnn import local
from distgnn.layout import Axes
from distgnn.operators import summed
from distgnn.operators.block_rows import Array, BlockRows, CoveredRows, NeededRows, WholeBlocks


class Block15D(BlockRows):
    """``A`` and ``H`` in P/c block rows over ``rows``, each held by the c ranks of a process row (``reps``).

    Process column ``j`` adds up its share of the stages, s = ⌈(P/c)/c⌉ of the P/c column blocks (the last
    columns take what remains, perhaps nothing), and an all-reduce over the process row completes the sum.
    Rank (i, j) holds only the column blocks of its own stages.

    The sum travels while the last panel of ``H`` is multiplied, the blocks of ``H`` during the products
    before. That panel is so large that both have time in proportion to their words.

    Cost per product and rank, in words received: its stages' blocks of ``H``, n f c/P each, but for one it
    owns. Sparsity-aware: exactly Σ_{q≠i} NnzCols(i, q) f over its stages q, point to point within the process
    column. Then an all-reduce of n f c/P over c ranks.

    The sparsity-aware adjoint of a directed graph: rank (q, j) of stage q receives Σ_{i≠q} NnzCols(i, q) f,
    which sums block row q; then a broadcast of n f c/P over its process row, as other columns add nothing.
    """

    name = "1.5d"
    axes = ("rows", "reps")

    @staticmethod
    def share(grid: Axes, parts: int) -> range:
        s = -(-parts // grid.shape["reps"])  # CAGNET, line 3; sparsity-aware, line 2
        first = min(grid.coords["reps"] * s, parts)
        return range(first, min(first + s, parts))  # lines 4-5; lines 3-4

    @staticmethod
    def last_panel(grid: Axes) -> float:
        c, stages = grid.shape["reps"], -(-grid.shape["rows"] // grid.shape["reps"])
        summed = 2 * (c - 1) / c  # words of the sum, in those of a block
        return min(stages * summed / (stages + summed), 1.0)

    def _block_row(self, A_i: WholeBlocks | NeededRows | CoveredRows, H: Array, Z: Array) -> None:
        row, last = self.grid.along("reps"), len(A_i) - 1
        # CAGNET, line 6: BCAST(H_q, P(:, j)). Sparsity-aware, lines 5-12: ISend, Recv of rows NnzCols(i, q).
        begun = A_i.begin_sum(H, Z)
        with A_i.rows_of(H) as pairs:
            for stage, (A_iq, H_q) in enumerate(pairs):
                if stage < last:  # line 7; line 13: Z = Z + A_iq H_q
                    local.spmm(A_iq, self.grid.rounded(H_q), out=Z, accumulate=begun or stage > 0)
                else:  # and with it line 8; line 15: ALLREDUCE(Z, +, P(i, :))
                    summed.multiply(self.grid, row, A_iq, H_q, Z, accumulate=begun or stage > 0)
        if last < 0:  # a process column without stages, or whose rows of H need not travel
            if not begun:
                Z[...] = 0
            summed.add_up(self.grid, row, Z)

    def _block_column(self, A_i: NeededRows | CoveredRows, G: Array, F: Array) -> None:
        # Lines 5-13 reversed: rank (q, j) gets rows NnzCols(i, q) of A_iqᵀ G_i and adds them to F_q.
        read = self.grid.rounded(G)
        with A_i.sums_in(F) as pairs:
            for At_iq, C_q in pairs:
                local.spmm(At_iq, read, out=C_q)
        A_i.end_sum(G, F)
        # Line 15 reversed: F_i is summed in the one process column j that has the stage i.
        s = -(-self.grid.shape["rows"] // self.grid.shape["reps"])
        self.grid.along("reps").bcast(F, self.grid.coords["rows"] // s, matrix="sums", narrow=True)

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

    c for each of its stages' blocks of ``H``, less the own one where a process column has all stages, and 2
    (c-1) in the all-reduce. Where c² divides P and c > 1, that is n f/c + 2 (c-1)/P n f words.
    """
    rows = ranks // c
    stages = -(-rows // c)
    return c * (stages - (stages == rows)) + 2 * (c - 1)
