"""Facts that an operator and the algorithm below it share."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.arrays.csr import Shape
from distgnn.layout import Layout


class LinearMap:
    """A matrix that takes dense matrices, cut over a grid one way, to products that are cut another way.

    Attributes:
        shape: the global shape; dtype: of the values; symmetric: A == Aᵀ to the last bit.
        input_layout: how ``H`` of ``A @ H`` must be cut; output_layout: how the product is.
        weights: the products of ``A H`` with the weights of a layer, cut as this algorithm cuts them.
    """

    name: str
    grid: Any  # of several ranks, or of one for itself
    shape: Shape
    dtype: np.dtype
    symmetric: bool
    #: The axis among whose ranks the columns of a product are shared, where that is all that they share.
    column_axis: str | None = None
    #: How ``H`` and the product are cut while A multiplies, where that is not how they come and go.
    inner_layouts: tuple[Layout[Any], ...] = ()
    input_layout: Layout[Any]
    output_layout: Layout[Any]
    weights: Any
    number = 0  #: among the matrices of its grid, where ranks compare calls

    def __repr__(self) -> str:
        m, n = self.shape
        taken, given = self.input_layout.words(), self.output_layout.words()
        return f"<{self.name} {m} x {n} {self.dtype}; input: {taken}; output: {given}; on {self.grid!r}>"

    def as_operand(self) -> str:
        """Return what ranks compare of an operand."""
        m, n = self.shape
        return f"{self.name} {m} x {n} {self.dtype}, matrix {self.number}"

    @property
    def self_adjoint(self) -> bool:
        """True where the adjoint is the map itself: a symmetric matrix, cut alike both ways."""
        return self.symmetric and self.input_layout.same(self.output_layout, (self.shape[0], 0))
