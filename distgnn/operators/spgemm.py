"""Products of two sparse matrices in block rows: Gustavson's algorithm, with the rows of B that A reads.

Matrix-based sampling paper, section 5.2, Algorithm 2, on one process column; `sampling/spgemm.py` has it on
several, of matrices that samplers make.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import local
from distgnn.arrays.canonical import canonical
from distgnn.comm.rows import Rows, by_owner
from distgnn.comm.steps import at_once
from distgnn.layout import block
from distgnn.local import csr_rows
from distgnn.operators.sources import LocalBlocks, blocks


def multiply_sparse(A: Any, B: Any) -> Any:
    """Compute ``A B`` of matrices in block rows, on as many ranks: an operator of A's kind. Collective.

    Rank i asks the others for the rows of B in the columns of its A_i, on hosts. The product sends needed
    rows, or as A does what is fewer.

    Cost, in words received: as ``rows``, a number for each row that others ask for, and a length for each
    that this rank asks for; as ``adjacency``, two words for each entry of the latter.

    Raises:
        ValueError: on every rank, two grids or dtypes, or shapes, parts or orders that don't multiply.
    """
    grid = A.grid
    alike = grid is B.grid and A.dtype == B.dtype and A.shape[1] == B.shape[0]
    if not alike or not A.input_layout.rows.same(B.output_layout.rows, grid, A.shape[1]):
        raise ValueError(f"{A!r} @ {B!r}: columns and rows are not cut alike, on one grid, in one dtype")
    A_i, B_i = _block_row(A), _block_row(B)
    read = np.unique(A_i.indices).astype(np.int64)
    rows = Rows(grid, grid.along_on_host("rows"), by_owner(read, A.col_parts))
    B_hat = csr_rows.unpack(at_once(rows.fetch_ragged(B_i)), B.shape[1], B_i)
    with grid.world.together():
        C_i = local.spgemm(csr_rows.keep_columns(A_i, read), B_hat)
        own = block(A.row_parts, A.column.rank), (0, B.shape[1]), C_i
        source: Any = LocalBlocks((A.shape[0], B.shape[1]), [own], dtype=A.dtype)
        source.row_order, source.col_order = A.row_order, B.col_order
    return type(A)(grid, source, A.row_parts, B.col_parts, A.sparsity_aware or True)


def _block_row(A: Any) -> sp.csr_array:
    """Return this rank's rows of the matrix, all columns. Collective."""
    given = blocks(A.source, A._windows(), A.grid)
    with A.grid.world.together():
        row: sp.csr_array = canonical(sp.hstack(list(given), format="csr"), A.dtype)
    return row
