"""Sparsity-aware 1.5D product (sparsity-aware paper, section 4.2, Algorithm 2)."""

from __future__ import annotations

from distgnn import local
from distgnn.comm.halo import Halo
from distgnn.operators import summed
from distgnn.operators.block_15d import Block15D
from distgnn.operators.block_rows import SparsityAwareRows
from distgnn.operators.dense import DistDense


class SparsityAware15D(SparsityAwareRows):
    """``1.5d``, but of the ``H_q`` of its stages a rank receives only the rows that its ``A_iq`` has
    non-zeros for.

    Cost per product and rank: exactly Σ_{q≠i} NnzCols(i, q) f words over its stages q, point to point within
    the process column; then an all-reduce of n f c/P words over c ranks.
    """

    name = Block15D.name
    axes = Block15D.axes
    share = staticmethod(Block15D.share)  # Alg. 2, lines 2-4
    grids = staticmethod(Block15D.grids)

    def _block_row(self, A_i: Halo, H: DistDense, T: DistDense) -> DistDense:
        row = self.grid.along("reps")
        # lines 5-12: ISend H[NnzCols(l, q)], Recv Ĥ[NnzCols(i, q)]
        for stage, (A_iq, H_q) in enumerate(A_i.blocks(H.block)):
            if stage < A_i.pairs - 1:
                local.spmm(A_iq, H_q, out=T.block, accumulate=stage > 0)  # line 13: Ẑ = Ẑ + SpMM(A_iq, Ĥ)
            else:
                summed.multiply(self.grid, row, A_iq, H_q, T.block, accumulate=stage > 0)  # lines 13 and 15
        return T
