"""1.5D block-row product with c copies (CAGNET section IV-B, Algorithm 2)."""

from __future__ import annotations

from distgnn import local
from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.operators import summed
from distgnn.operators.block_rows import BroadcastRows
from distgnn.operators.dense import DistDense


class Block15D(BroadcastRows):
    """``A`` and ``H`` in P/c block rows over the axis ``rows``, each held by the c ranks of a process row
    (axis ``reps``).

    Process column ``j`` adds up its share of the stages, s = ⌈(P/c)/c⌉ of the P/c column blocks (the last
    columns take what remains, perhaps nothing), and an all-reduce over the process row completes the sum.
    Rank (i, j) therefore needs only the column blocks of its own stages, not all of the block row.

    Cost per product and rank: its stages' blocks of ``H``, n f c/P words each, but for one it owns; then an
    all-reduce of n f c/P words over c ranks.
    """

    name = "1.5d"
    axes = ("rows", "reps")

    @staticmethod
    def share(grid: Grid, parts: int) -> range:
        s = -(-parts // grid.shape["reps"])  # Alg. 2, line 3
        first = min(grid.coords["reps"] * s, parts)
        return range(first, min(first + s, parts))  # lines 4-5

    def _block_row(self, blocks: list[CSR], H: DistDense, T: DistDense) -> DistDense:
        row, last = self.grid.along("reps"), len(blocks) - 1
        for stage, (A_iq, H_q) in enumerate(zip(blocks, self._broadcast(H), strict=True)):  # line 6
            if stage < last:
                local.spmm(A_iq, H_q, out=T.block, accumulate=stage > 0)  # line 7
            else:
                summed.multiply(self.grid, row, A_iq, H_q, T.block, accumulate=stage > 0)  # lines 7-8
        if not blocks:  # a process column without stages
            T.block[...] = 0
            summed.add_up(self.grid, row, T.block)  # line 8
        return T

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        """Every c that divides P, the memory-light ones that still pay first: c² ≤ P from the largest down,
        then the rest.
        """
        divisors = [c for c in range(1, ranks + 1) if ranks % c == 0]
        light = [c for c in divisors if c * c <= ranks]
        heavy = [c for c in divisors if c * c > ranks]
        return [{"rows": ranks // c, "reps": c} for c in [*reversed(light), *heavy]]
