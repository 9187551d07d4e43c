"""Dense products with the weights: ``Z = T W``, ``dT = G Wᵀ`` and ``dW = Tᵀ G`` for every way the operands
are cut.

CAGNET sections IV-A4, IV-B4, IV-C (Algorithm 3, second phase) and IV-D with replicated weights; Plexus
Algorithm 1 with weights cut over a plane of the grid and once more over the third axis. The sparse products
know nothing of weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from distgnn import local
from distgnn.comm.panels import broadcast
from distgnn.layout import Cut, Layout, Range, block
from distgnn.local.forms import Form
from distgnn.operators import summed
from distgnn.operators.dense import DistDense
from distgnn.operators.gemm_tuning import fastest

#: The products of a layer with its weights, as logs name them.
FORWARD, WEIGHTS, INPUT = "T W", "TᵀG", "G Wᵀ"


class DenseProducts(ABC):
    """The products of one layer with its weights.

    Attributes:
        input_layout: how ``T`` (n, f) is cut.
        output_layout: how ``Z`` and ``G`` (n, f') are.
        weight_layout: how ``W`` (f, f') is.
    """

    grid: Any
    input_layout: Layout
    output_layout: Layout
    weight_layout: Layout

    def tune(self, n: int, fan_in: int, fan_out: int, dtype: Any) -> dict[str, str]:
        """Time the forms of this rank's three products of a layer with these widths, and take the fastest
        from now on (see ``gemm.py``). Collective.

        Returns:
            product -> form.
        """
        rows, k = self.input_layout.local_shape((n, fan_in))
        m = self.output_layout.local_shape((n, fan_out))[1]
        shapes = {
            FORWARD: (rows, k, m, False, False),
            WEIGHTS: (k, rows, m, True, False),
            INPUT: (rows, m, k, False, True),
        }
        for product, shape in shapes.items():
            if (product, fan_in, fan_out) not in self.forms:
                self.forms[product, fan_in, fan_out] = fastest(
                    self.grid.backend, self.grid.world, *shape, dtype
                )
        return {product: str(self.forms[product, fan_in, fan_out]) for product in shapes}

    @cached_property
    def forms(self) -> dict[tuple[str, int, int], Form]:
        """(product, fan in, fan out) -> its form, where it was tuned."""
        return {}

    @abstractmethod
    def times(self, T: DistDense, W: DistDense, out: DistDense | None = None) -> DistDense:
        """``Z = T W``, in ``out`` where that is given; it shares no memory with ``T``."""

    @abstractmethod
    def backward(
        self, T: DistDense, G: DistDense, W: DistDense | None = None, out: DistDense | None = None
    ) -> tuple[DistDense, DistDense | None]:
        """``(dW, dT) = (Tᵀ G, G Wᵀ)`` in one go, so that what both need travels once; no ``dT`` without
        ``W``; ``dT`` in ``out`` where that is given, which shares no memory with ``T`` and ``G``.
        """

    def check(self, T: DistDense | None, Z: DistDense | None, W: DistDense | None) -> None:
        """Raise ValueError, on every rank alike, unless shapes and layouts fit together."""
        for name, X, layout in (
            ("T", T, self.input_layout),
            ("G", Z, self.output_layout),
            ("W", W, self.weight_layout),
        ):
            if X is not None and not X.layout.same(layout, X.shape):
                raise ValueError(f"{name} is not cut as this product needs it")
        if T is not None and W is not None and T.shape[1] != W.shape[0]:
            raise ValueError(f"shapes {T.shape} and {W.shape} don't multiply")
        if T is not None and Z is not None and T.shape[0] != Z.shape[0]:
            raise ValueError(f"T {T.shape} and G {Z.shape} have different numbers of rows")
        if Z is not None and W is not None and Z.shape[1] != W.shape[1]:
            raise ValueError(f"G {Z.shape} and W {W.shape} have different widths")


class ReplicatedWeights(DenseProducts):
    """Every rank holds all of ``W``; ``T`` is cut over row axes and, in 2D and Split-3D, over one column
    axis.

    Without a column axis, ``times`` and ``dT`` need no communication and ``dW`` one all-reduce of f·f' words
    over the row axes (never over replicas, which hold the same rows). With one, panels of ``T`` (of ``G`` in
    backward) are broadcast along it as in CAGNET Algorithm 3, lines 12-18: nf/pr words; the paper's backward
    broadcasts twice, sharing the panels of ``G`` between both products makes it once.
    """

    def __init__(self, layout: Layout) -> None:
        if len(layout.col_axes) > 1:
            raise ValueError("columns cut over several axes are not what replicated weights are for")
        self.input_layout = self.output_layout = layout
        self.grid = layout.grid
        self.weight_layout = Layout(self.grid, Cut(), Cut())
        self.along_row = self.grid.along(*layout.col_axes)
        self.along_rows = self.grid.along(*layout.row_axes)

    def _broadcast(self, X: DistDense) -> Iterator[tuple[int, Range, Any]]:
        """The column blocks of ``X`` one after another on all ranks of the row, each with its number and
        global columns.
        """
        if self.along_row.size == 1:
            yield 0, (0, X.shape[1]), X.block
            return
        columns = X.layout.cols.vector(self.grid, X.shape[1])
        ranges = [block(columns, c) for c in range(self.along_row.size)]
        shapes = [(X.block.shape[0], right - left) for left, right in ranges]
        panels = broadcast(self.grid, self.along_row, range(len(ranges)), lambda c: X.block, shapes, X.dtype)
        for c, panel in enumerate(panels):
            yield c, ranges[c], panel

    def times(self, T: DistDense, W: DistDense, out: DistDense | None = None) -> DistDense:
        self.check(T, None, W)
        Z = DistDense.empty(self.output_layout, (T.shape[0], W.shape[1]), T.dtype) if out is None else out
        left, right = Z.col_range
        form = self.forms.get((FORWARD, *W.shape))
        for c, (top, bottom), T_c in self._broadcast(T):  # Alg. 3, lines 12-16
            # line 18
            local.gemm(T_c, W.block[top:bottom, left:right], out=Z.block, accumulate=c > 0, form=form)
        return Z

    def backward(
        self, T: DistDense, G: DistDense, W: DistDense | None = None, out: DistDense | None = None
    ) -> tuple[DistDense, DistDense | None]:
        self.check(T, G, W)
        backend = self.grid.backend
        top, bottom = T.col_range
        dW = backend.empty((bottom - top, G.shape[1]), T.dtype)
        dT = None if W is None else out or T.like(backend.empty(T.block.shape, T.dtype))
        widths = T.shape[1], G.shape[1]
        of_weights, of_input = self.forms.get((WEIGHTS, *widths)), self.forms.get((INPUT, *widths))
        for c, (left, right), G_c in self._broadcast(G):
            dW[:, left:right] = local.gemm(T.block, G_c, trans_a=True, form=of_weights)
            if dT is not None and W is not None:
                W_c = W.block[top:bottom, left:right]
                local.gemm(G_c, W_c, out=dT.block, accumulate=c > 0, trans_b=True, form=of_input)
        dW = self.along_rows.allreduce(dW)
        dW = self.along_row.allgather_rows(dW, T.layout.cols.vector(self.grid, T.shape[1]))
        return DistDense(dW, self.weight_layout, (T.shape[1], G.shape[1])), dT


class ShardedWeights(DenseProducts):
    """Plexus Algorithm 1: ``T`` is cut over (out, feature), ``W`` over (feature, contract) and its rows once
    more over out, ``Z`` over (out, contract). Line numbers are the paper's.
    """

    def __init__(self, grid: Any, rows: Cut, out: str, contract: str, feature: str) -> None:
        self.grid = grid
        self.input_layout = Layout(grid, rows, Cut((feature,)))
        self.output_layout = Layout(grid, rows, Cut((contract,)))
        self.weight_layout = Layout(grid, Cut((feature, out)), Cut((contract,)))
        self.out, self.contract, self.feature = grid.along(out), grid.along(contract), grid.along(feature)

    def _shares(self, height: int) -> Any:
        """How the rows of this rank's plane block of ``W`` are cut over the out axis."""
        vector = self.weight_layout.rows.vector(self.grid, height)
        first = self.feature.rank * self.out.size
        return vector[first : first + self.out.size + 1] - vector[first]

    def _whole(self, W: DistDense) -> Any:
        return self.out.allgather_rows(W.block, self._shares(W.shape[0]))

    def times(self, T: DistDense, W: DistDense, out: DistDense | None = None) -> DistDense:
        self.check(T, None, W)
        Z = DistDense.empty(self.output_layout, (T.shape[0], W.shape[1]), T.dtype) if out is None else out
        W_block = self._whole(W)  # line 6
        form = self.forms.get((FORWARD, *W.shape))
        summed.gemm(self.grid, self.feature, T.block, W_block, Z.block, form=form)  # lines 7-8
        return Z

    def backward(
        self, T: DistDense, G: DistDense, W: DistDense | None = None, out: DistDense | None = None
    ) -> tuple[DistDense, DistDense | None]:
        self.check(T, G, W)
        shape = (T.shape[1], G.shape[1])
        dW = local.gemm(T.block, G.block, trans_a=True, form=self.forms.get((WEIGHTS, *shape)))  # line 15
        dW = self.out.reduce_scatter_rows(dW, self._shares(shape[0]))  # line 16
        dT = None
        if W is not None:
            dT = out or T.like(self.grid.backend.empty(T.block.shape, T.dtype))
            form = self.forms.get((INPUT, *shape))
            # lines 18-20
            summed.gemm(self.grid, self.contract, G.block, self._whole(W), dT.block, trans_b=True, form=form)
        return DistDense(dW, self.weight_layout, shape), dT
