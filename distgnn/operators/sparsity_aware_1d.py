"""Sparsity-aware 1D product (sparsity-aware paper, section 4.1, Algorithm 1)."""

from __future__ import annotations

from distgnn import local
from distgnn.comm.halo import Halo
from distgnn.operators.block_1d import Block1D
from distgnn.operators.block_rows import SparsityAwareRows
from distgnn.operators.dense import DistDense


class SparsityAware1D(SparsityAwareRows):
    """``1d``, but of each ``H_j`` a rank receives only the rows that its ``A_ij`` has non-zeros for.

    Cost per product and rank: exactly Σ_{j≠i} NnzCols(i, j) f words received, in one all-to-allv of at most P
        - 1 messages.
    """

    name = Block1D.name
    axes = Block1D.axes
    share = staticmethod(Block1D.share)
    grids = staticmethod(Block1D.grids)

    def _block_row(self, A_i: Halo, H: DistDense, T: DistDense) -> DistDense:
        # Alg. 1: T[j] = H[NnzCols(i, j)], AllToAllv
        for stage, (A_ij, H_j) in enumerate(A_i.blocks(H.block)):
            local.spmm(A_ij, H_j, out=T.block, accumulate=stage > 0)  # Z = Z + SpMM(A_ij, Ĥ)
        return T
