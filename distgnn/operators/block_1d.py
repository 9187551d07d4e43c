"""1D block-row product (CAGNET section IV-A, Algorithm 1; sparsity-aware paper, section 4.1, Algorithm 1)."""

from __future__ import annotations

from distgnn.operators.block_rows import BlockRows


class Block1D(BlockRows):
    """``A`` and ``H`` in block rows over ``rows``.

    Rank ``i`` of ``P`` holds row block ``A_i`` (about n/P x n, cut into column blocks ``A_ij``) and ``H_i``
    (n/P x f).

    Algorithm 1, with ``columns`` of its moves (:class:`~distgnn.operators.row_moves.RowMoves`) and a kernel:

        Z_i = 0                                                         line 2
        for j = 1 to P:                                                 line 3
            BROADCAST(H_j), or AllToAllv of H_j[NnzCols(i, j)]          line 4: columns_read
            Z_i = Z_i + A_ij H_j                                        line 5: local.spmm

    Where all that comes is small (``TUNING.joined_panels``), its column blocks of A are one. Line 5 is two
    products then, A_ii H_i while the others travel, and that of all others, of the same words and messages
    (:class:`~distgnn.operators.joined_blocks.JoinedBlocks`).

    and backwards for needed rows: rank j gets rows NnzCols(i, j) of A_ijᵀ G_i and adds them to F_j
    (columns_written).

    Cost per product and rank, in words received: n f (P-1)/P in P - 1 broadcasts (all of ``H`` but the own
    block). Sparsity-aware: exactly Σ_{j≠i} NnzCols(i, j) f in one all-to-allv of at most P - 1 messages,
    where NnzCols(i, j) are the columns of A_ij with a non-zero; and Σ_{j≠i} NnzCols(j, i) f in the adjoint of
    a directed graph. At construction, a row number for each of those rows. Covers: exactly
    Σ_{j≠i} cover(A_ij) f, and Σ_{j≠i} cover(A_ji) f in the adjoint, where cover is the size of a minimum
    vertex cover of a block.

    ``H`` moves and A stays. Were A moved in place of ``H`` (IV-A1), rank j would make A_ij H_j, whose rows
    would travel: NnzRows(i, j) f words beside the entries, never fewer than a cover's. With ``H`` in block
    columns A alone travels: in each product of `2d` on a 1 x P grid, once for all in `rdm`.
    """

    name = "1d"
    axes: tuple[str, ...] = ("rows",)

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        return [{"rows": ranks}]
