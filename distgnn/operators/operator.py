"""A sparse matrix cut over a grid, as an operator: ``Y = A @ H`` and ``G = A.T @ Y``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from distgnn.arrays.csr import CSR, Shape
from distgnn.comm.grid import Grid
from distgnn.errors import UserError
from distgnn.layout import Layout, Range
from distgnn.operators.dense import DistDense
from distgnn.operators.sources import BlockSource, SharedSource
from distgnn.operators.weights import DenseProducts


class DistSparse(ABC):
    """A sparse matrix cut over the grid by one of the algorithms, as an operator: ``Y = A @ H`` and ``G = A.T
    @ Y``.

    Attributes:
        grid: the process grid; shape: the global shape (rows, columns); dtype: of the values.
        input_layout: how ``H`` of ``A @ H`` must be cut; output_layout: how the product is.
    """

    name: str
    axes: tuple[str, ...]
    grid: Grid
    source: BlockSource
    shape: Shape
    dtype: np.dtype
    symmetric: bool
    input_layout: Layout
    output_layout: Layout
    dense: DenseProducts
    _adjoint: DistSparse | None = None

    @staticmethod
    @abstractmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        """The grids of this many ranks that the algorithm can use, the best first."""

    @abstractmethod
    def multiply(self, H: DistDense, out: DistDense | None = None) -> DistDense:
        """``A H``; ``H`` in ``input_layout``, the result in ``output_layout``, in ``out`` where that is
        given. Unlike ``A @ H``, nothing is checked; ``out`` shares no memory with ``H``.
        """

    @abstractmethod
    def multiply_adjoint(self, G: DistDense, out: DistDense | None = None) -> DistDense:
        """``Aᵀ G``; ``G`` in ``output_layout``, the result in ``input_layout``, in ``out`` where that is
        given.
        """

    def __matmul__(self, H: DistDense) -> DistDense:
        """``A H``. Collective.

        Raises:
            ValueError: shapes, layouts or dtypes don't fit (on every rank alike).
        """
        self._check(H, self.shape[1], self.input_layout)
        return self.multiply(H)

    @property
    def T(self) -> DistSparse:
        """The adjoint operator: ``A.T @ G``. A symmetric matrix cut alike in rows and columns is its own
        adjoint.
        """
        if self._adjoint is None:
            alike = self.symmetric and self.input_layout.same(self.output_layout, (self.shape[0], 0))
            self._adjoint = self if alike else Adjoint(self)
        return self._adjoint

    def layer(self, number: int) -> DistSparse:
        """The operator of GCN layer ``number``, whose ``input_layout`` is how the layer before leaves its
        output.
        """
        return self

    # Products with the weights of a layer, cut as this algorithm cuts them (see algorithms/dense.py).

    @property
    def weight_layout(self) -> Layout:
        """How the weights of a layer are cut."""
        return self.dense.weight_layout

    @property
    def next_layout(self) -> Layout:
        """How ``Z = (A H) W`` is cut: the ``input_layout`` of the next layer's operator."""
        return self.dense.output_layout

    def times(self, T: DistDense, W: DistDense, out: DistDense | None = None) -> DistDense:
        """``Z = T W``: ``T`` in ``output_layout``, ``W`` in ``weight_layout``, ``Z`` in ``next_layout``.
        Collective.
        """
        return self.dense.times(T, W, out)

    def backward(
        self, T: DistDense, G: DistDense, W: DistDense | None = None, out: DistDense | None = None
    ) -> tuple[DistDense, DistDense | None]:
        """``(dW, dT) = (Tᵀ G, G Wᵀ)`` for ``G`` in ``next_layout``, ``dT`` in ``out`` where that is given,
        which shares no memory with ``T`` and ``G``; without ``W``, only ``dW``. Collective.
        """
        return self.dense.backward(T, G, W, out)

    def tune(self, fan_in: int, fan_out: int) -> dict[str, str]:
        """Choose the forms of the dense products of a layer with these widths (``DenseProducts.tune``).
        Collective.
        """
        return self.dense.tune(self.shape[0], fan_in, fan_out, self.dtype)

    @property
    def associative(self) -> bool:
        """Can this operator compute ``A (H W)`` as well as ``(A H) W``? So it is where its input is cut like
        its output.
        """
        return self.shape[0] == self.shape[1] and all(
            self.input_layout.same(other, (self.shape[0], 0))
            for other in (self.output_layout, self.next_layout)
        )

    # For the algorithms' constructors.

    def _place(self, grid: Grid, source: BlockSource) -> None:
        """Take over what every algorithm takes from its arguments, checked: a grid it can use, one matrix on
        all ranks.
        """
        if tuple(grid.shape) != self.axes:
            raise UserError(
                f"algorithm {self.name} needs a grid with the axes {', '.join(self.axes)}; got {grid}"
            )
        if grid.shape not in self.grids(grid.size):
            raise self.no_grid(" ".join(f"{axis}={size}" for axis, size in grid.shape.items()), grid.size)
        self.grid, self.source = grid, source
        self.shape = (int(source.shape[0]), int(source.shape[1]))
        self.dtype, self.symmetric = np.dtype(source.dtype), bool(source.symmetric)
        kinds = grid.world.gather_objects((self.shape, str(self.dtype), self.symmetric))
        if len(set(kinds)) > 1:
            raise ValueError(
                f"the ranks hold blocks of different matrices (shape, dtype, symmetric): {kinds}"
            )

    @classmethod
    def no_grid(cls, asked: str, ranks: int) -> UserError:
        """The error that names the grids this algorithm can use instead of the one asked for."""
        listed = "; ".join("x".join(str(size) for size in grid.values()) for grid in cls.grids(ranks))
        axes = " x ".join(cls.axes)
        return UserError(
            f"--grid {asked}: not a grid for algorithm {cls.name} on {ranks} ranks; possible ({axes}): {listed}"
        )

    def _load(self, windows: Sequence[tuple[Range, Range]]) -> list[CSR]:
        """The blocks of A in these (rows, columns), on the grid's device. Collective: an error on one rank is
        raised on all.

        Ranks of a node that ask for the same windows of a store read them together, each shard once (Plexus
        section 5.4). That is charged to the ledger as the broadcasts it is: 2 words per non-zero and a little
        per row.
        """
        source, backend = self.source, self.grid.backend
        if not isinstance(source, SharedSource):
            return self._pack(lambda: (source.block(*window) for window in windows))
        # Inside, only ranks that read together communicate, and they leave together.
        with self.grid.on_node((source.key, windows)) as readers, self.grid.world.together():
            return [source.assemble(*window, backend, readers) for window in windows]
        raise AssertionError("unreachable: together() raises")

    def _pack(self, read: Callable[[], Iterable[Any]]) -> list[CSR]:
        """The SciPy blocks that ``read`` gives, on the grid's device. Collective: an error on one rank is
        raised on all.
        """
        with self.grid.world.together():
            return [CSR.from_scipy(block, self.grid.backend, self.dtype) for block in read()]
        raise AssertionError("unreachable: together() raises")

    def _result(self, layout: Layout, shape: Shape, out: DistDense | None) -> DistDense:
        return DistDense.empty(layout, shape, self.dtype) if out is None else out

    def _check(self, H: DistDense, rows: int, layout: Layout) -> None:
        if not isinstance(H, DistDense):
            raise TypeError(f"{self.name}: can multiply a DistDense (see scatter), got {type(H).__name__}")
        if H.shape[0] != rows:
            raise ValueError(f"{self.name}: shapes {self.shape} and {H.shape} don't multiply")
        if not H.layout.same(layout, H.shape):
            raise ValueError(
                f"{self.name}: H is cut over {_words(H.layout)}, this operator needs {_words(layout)}"
            )
        if H.dtype != self.dtype:
            raise ValueError(f"{self.name}: A holds {self.dtype}, H holds {H.dtype}; convert one of them")


def _words(layout: Layout) -> str:
    return f"rows over ({', '.join(layout.row_axes)}), columns over ({', '.join(layout.col_axes)})"


class Adjoint(DistSparse):
    """``Aᵀ`` as an operator of its own; holds no data."""

    def __init__(self, forward: DistSparse) -> None:
        self.forward = forward
        self.name = f"{forward.name} transposed"
        self.grid, self.dtype, self.symmetric = forward.grid, forward.dtype, forward.symmetric
        self.shape = (forward.shape[1], forward.shape[0])
        self.input_layout, self.output_layout = forward.output_layout, forward.input_layout

    @property
    def dense(self) -> DenseProducts:  # type: ignore[override]
        raise TypeError("an adjoint has no products with weights; the forward operator, its .T, has")

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        raise TypeError("an adjoint lives on the grid of its forward operator")

    def layer(self, number: int) -> DistSparse:
        return self.forward.layer(number).T

    def multiply(self, H: DistDense, out: DistDense | None = None) -> DistDense:
        return self.forward.multiply_adjoint(H, out)

    def multiply_adjoint(self, G: DistDense, out: DistDense | None = None) -> DistDense:
        return self.forward.multiply(G, out)

    @property
    def T(self) -> DistSparse:
        return self.forward
