"""1D block-row product (CAGNET section IV-A, Algorithm 1)."""

from __future__ import annotations

from distgnn import local
from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.operators.block_rows import BroadcastRows
from distgnn.operators.dense import DistDense


class Block1D(BroadcastRows):
    """``A`` and ``H`` in block rows over the axis ``rows``; the blocks of ``H`` are broadcast one after
    another.

    Rank ``i`` of ``P`` holds row block ``A_i`` (about n/P x n, cut into the column blocks ``A_ij``) and
    ``H_i`` (n/P x f).

    Cost per product and rank: n f (P-1)/P words received in P - 1 broadcasts (all of ``H`` but the own
        block).
    """

    name = "1d"
    axes = ("rows",)

    @staticmethod
    def share(grid: Grid, parts: int) -> range:
        return range(parts)

    def _block_row(self, blocks: list[CSR], H: DistDense, T: DistDense) -> DistDense:
        # Alg. 1, lines 3-4
        for stage, (A_ij, H_j) in enumerate(zip(blocks, self._broadcast(H), strict=True)):
            local.spmm(A_ij, H_j, out=T.block, accumulate=stage > 0)  # line 5
        return T

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        return [{"rows": ranks}]
