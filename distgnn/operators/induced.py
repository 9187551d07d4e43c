"""A sparse matrix of some nodes alone, made of the blocks that ranks hold of the whole matrix.

Every rank knows the nodes. It extracts their rows and columns from its own blocks, and the algorithm cuts
what is left at the boundaries of its blocks: no entry travels (ScaleGNN, Wei et al., arXiv 2604.02651).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from distgnn.errors import ArgumentError
from distgnn.layout import Range
from distgnn.local.induced import divide_off_diagonal, induced
from distgnn.operators.algorithm import Algorithm
from distgnn.operators.moves import Moves
from distgnn.operators.operator import DistSparse
from distgnn.operators.sources import BlockSource


class Strip(NamedTuple):
    """Blocks side by side that a rank holds of A, or with ``transposed`` of its transpose."""

    rows: Range
    columns: list[Range]
    blocks: list[sp.csr_array]
    transposed: bool = False

    @classmethod
    def of(cls, moves: Moves, transposed: bool = False) -> Strip:
        """Take the blocks of these moves; on a GPU, copies on the host."""
        windows = moves.windows()
        rows = windows[0][0] if windows else (0, 0)
        order = np.argsort([first for _, (first, _) in windows], kind="stable").tolist()
        blocks = moves.on_host()
        return cls(rows, [windows[k][1] for k in order], [blocks[k] for k in order], transposed)

    def extract(self, rows: np.ndarray, columns: np.ndarray) -> sp.csr_array | None:
        """Extract rows and columns, rising and not empty; None where the blocks do not have all of them."""
        if rows[0] < self.rows[0] or rows[-1] >= self.rows[1]:
            return None
        parts, covered = [], 0
        for (first, last), block in zip(self.columns, self.blocks, strict=True):
            own = columns[slice(*np.searchsorted(columns, (first, last)))]
            if own.size:
                covered += own.size
                parts.append(induced(block, rows - self.rows[0], own - first))
        if covered < columns.size:
            return None
        return parts[0] if len(parts) == 1 else sp.hstack(parts, format="csr")


class Subgraphs:
    """The source of the induced subgraphs of a matrix.

    Args:
        A: square, with rows and columns in one order, by whole blocks. Collective, as moves of the adjoint
            may be made.
        layers: of the network: those of `3d` hold different blocks.

    Extra memory: row pointers of thin blocks; on a GPU, the blocks on the host.

    Raises:
        ArgumentError: A sends needed rows alone, for which each subgraph would need a plan by messages.
    """

    def __init__(self, A: DistSparse, layers: int = 1) -> None:
        whole = A.algorithm
        if whole.sparsity_aware:
            problem = "subgraphs of drawn vertices are multiplied by whole blocks; leave it out"
            raise ArgumentError("sparsity_aware", whole.sparsity_aware, problem)
        if whole.shape[0] != whole.shape[1] or whole.row_order != whole.col_order:
            raise ValueError("subgraphs are of square matrices with rows and columns in one order")
        self.whole, self.grid = whole, copy.copy(whole.grid)
        self.grid.shares_memory = False  # blocks of a step are not worth communicators
        made = {id(layer.moves.blocks[0]) if layer.moves.blocks else 0: layer.moves for layer in
                map(whole.layer, range(layers))}  # fmt: skip
        self.strips = list(map(Strip.of, made.values()))
        if not whole.self_adjoint and whole.moves_of_transpose is not None:
            self.strips.append(Strip.of(whole.moves_of_transpose, transposed=True))
        if whole.self_adjoint:  # its own adjoint's blocks are its own
            self.strips += [strip._replace(transposed=True) for strip in self.strips]

    def of(self, nodes: np.ndarray, inclusion: float = 1.0) -> DistSparse:
        """Make the operator of these nodes, on the same grid, without their own copies in shared memory.

        Collective: ranks tell each other the sizes of blocks.

        Args:
            nodes: positions in the order of A, rising, the same on all ranks.
            inclusion: what entries off the diagonal are divided by.
        """
        return DistSparse(type(self.whole)(self.grid, Induced(self, nodes, inclusion)))


class Induced(BlockSource):
    """The block source of an induced subgraph, on a rank that holds these blocks of the whole matrix.

    Attributes:
        cuts: partition vectors by name, those of the whole matrix with these nodes alone.
    """

    def __init__(self, graph: Subgraphs, nodes: np.ndarray, inclusion: float) -> None:
        self.graph, self.nodes, self.inclusion = graph, nodes, inclusion
        whole = graph.whole
        self.shape, self.dtype, self.symmetric = (nodes.size, nodes.size), whole.dtype, whole.symmetric
        self.cuts = {name: np.searchsorted(nodes, vector) for name, vector in whole.cuts.items()}

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        """Return rows and columns of the subgraph. ValueError: this rank does not hold them."""
        above, across = self.nodes[slice(*rows)], self.nodes[slice(*cols)]
        if not above.size or not across.size:
            return sp.csr_array((above.size, across.size), dtype=self.dtype)
        for strip in self.graph.strips:
            sides = (across, above) if strip.transposed else (above, across)
            if (block := strip.extract(*sides)) is not None:
                if self.inclusion != 1:
                    shift = cols[0] - rows[0] if strip.transposed else rows[0] - cols[0]
                    divide_off_diagonal(block, self.inclusion, shift)
                return block.T if strip.transposed else block
        raise ValueError(f"this rank was given no block that covers rows {rows} and columns {cols}")


def dissolve(operators: Sequence[Any]) -> None:
    """Let the memory of operators go at once: algorithms and moves refer to each other."""
    for A in operators:
        for owner in (getattr(A, "algorithm", None), A):
            if isinstance(owner, (Algorithm, DistSparse)):
                vars(owner).clear()
