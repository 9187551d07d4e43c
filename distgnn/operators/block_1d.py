"""1D block-row product (CAGNET section IV-A, Algorithm 1; sparsity-aware paper, section 4.1, Algorithm 1)."""

from __future__ import annotations

from distgnn import local
from distgnn.layout import Axes
from distgnn.local.epilogue import Epilogue
from distgnn.operators.block_rows import Array, BlockRows, CoveredRows, NeededRows, WholeBlocks
from distgnn.operators.dense import DistDense


class Block1D(BlockRows):
    """``A`` and ``H`` in block rows over ``rows``.

    Rank ``i`` of ``P`` holds row block ``A_i`` (about n/P x n, cut into column blocks ``A_ij``) and ``H_i``
    (n/P x f).

    Cost per product and rank, in words received: n f (P-1)/P in P - 1 broadcasts (all of ``H`` but the own
    block). Sparsity-aware: exactly Σ_{j≠i} NnzCols(i, j) f in one all-to-allv of at most P - 1 messages,
    where NnzCols(i, j) are the columns of A_ij with a non-zero; and Σ_{j≠i} NnzCols(j, i) f in the adjoint of
    a directed graph. At construction, a row number for each of those rows. Covers: exactly
    Σ_{j≠i} cover(A_ij) f, and Σ_{j≠i} cover(A_ji) f in the adjoint, where cover is the size of a minimum
    vertex cover of a block.
    """

    name = "1d"
    axes: tuple[str, ...] = ("rows",)

    @staticmethod
    def share(grid: Axes, parts: int) -> range:
        return range(parts)

    def _multiply_then(self, H: DistDense, T: DistDense, then: Epilogue) -> None:
        self._block_row(self.A, H.block, T.block, then)

    def _block_row(
        self, A_i: WholeBlocks | NeededRows | CoveredRows, H: Array, Z: Array, then: Epilogue | None = None
    ) -> None:  # fmt: skip
        # CAGNET, lines 3-4: BROADCAST(H_j). Sparsity-aware: T[j] = H[NnzCols(i, j)], AllToAllv.
        begun = A_i.begin_sum(H, Z)
        with A_i.rows_of(H) as pairs:
            for stage, (A_ij, H_j) in enumerate(pairs):
                # line 5: Z_i = Z_i + A_ij H_j
                read, end = self.grid.rounded(H_j), then if stage == len(A_i) - 1 else None
                local.spmm(A_ij, read, out=Z, accumulate=begun or stage > 0, then=end)

    def _block_column(self, A_i: NeededRows | CoveredRows, G: Array, F: Array) -> None:
        # The AllToAllv reversed: rank j gets rows NnzCols(i, j) of A_ijᵀ G_i and adds them to F_j.
        read = self.grid.rounded(G)
        with A_i.sums_in(F) as pairs:
            for At_ij, C_j in pairs:
                local.spmm(At_ij, read, out=C_j)
        A_i.end_sum(G, F)

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        return [{"rows": ranks}]
