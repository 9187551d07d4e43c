"""Products of arrays that every rank has whole, for SciPy's solvers, which know of no ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from distgnn.layout import Cut, Layout
from distgnn.operators.dense import DistDense
from distgnn.operators.kept import cached_property

SAME = "a solver's vector, for which a start that all ranks have, such as v0 or X, may be missing,"


class ReplicatedProduct:
    """A product ``A x`` of arrays (n,) or (n, k) that every rank has whole. Collective.

    All ranks run the same solver on the same numbers. Before each product they compare the arrays.

    Cost beside the product's: the m k (P-1)/P words of the result that a rank lacks, in one all-to-allv.

    Raises:
        DisagreementError: ranks give different arrays, as from starts drawn at random. ValueError: another
            dtype than A has. On every rank.
    """

    def __init__(self, A: Any) -> None:
        self.A = A

    @cached_property
    def ids(self) -> tuple[np.ndarray, np.ndarray]:
        """The nodes of this rank's rows of the input, and of all rows of the output."""
        rows, out = self.A.input_layout.rows, self.A.output_layout.rows
        with self.A.grid.world.together():
            return rows.ids(*rows.range(self.A.grid, self.A.shape[1])), out.ids(0, self.A.shape[0])
        raise AssertionError("unreachable: together() raises")

    def __call__(self, x: np.ndarray) -> np.ndarray:
        A, X = self.A, np.asarray(x)
        A.grid.world.agree({SAME: X})
        if X.dtype != A.dtype:
            raise ValueError(f"{A.name}: A holds {A.dtype}, the solver {X.dtype}; distribute takes dtype")
        flat = X.reshape(len(X), -1)
        layout, (own, all_rows) = A.input_layout, self.ids
        _, (left, right) = layout.ranges(flat.shape)
        H = DistDense(A.grid.backend.asarray(flat[own, left:right]), layout, flat.shape)
        Y = A @ H
        everywhere = Layout(A.grid, Cut(order=Y.layout.rows.order), Cut())
        product = np.empty(Y.shape, Y.dtype)
        product[all_rows] = A.grid.backend.to_host(Y.redistribute(everywhere).block)
        return product.reshape(A.shape[0], *X.shape[1:])


def linear_operator(A: Any) -> LinearOperator:
    """Make the operator; see :meth:`~distgnn.operators.operator.DistSparse.aslinearoperator`."""
    alone = A.grid.size == 1
    forward, back = (
        (A.__matmul__, A.T.__matmul__) if alone else (ReplicatedProduct(A), ReplicatedProduct(A.T))
    )
    return LinearOperator(A.shape, forward, back, forward, A.dtype, back)
