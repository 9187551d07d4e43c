"""Dense products with the weights: ``Z = T W``, ``dT = G Wᵀ`` and ``dW = Tᵀ G`` for any cut of the operands.

CAGNET sections IV-A4, IV-B4, IV-C (Algorithm 3, second phase) and IV-D with replicated weights; Plexus
Algorithm 1 with weights cut over a plane of the grid and once more over the third axis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays.csr import Shape
from distgnn.arrays.tuning import TUNING
from distgnn.comm.checks import compare
from distgnn.comm.grid import Grid
from distgnn.comm.panels import broadcast
from distgnn.comm.panels import summed as summed_panels
from distgnn.layout import Cut, Layout, within
from distgnn.local.epilogue import Ending
from distgnn.local.forms import Form
from distgnn.operators import summed
from distgnn.operators.dense import DistDense
from distgnn.operators.gemm_tuning import fastest
from distgnn.operators.later import Later, summed_over
from distgnn.operators.prices import FREE, Price, gathered, reduced, summed_rows, whole
from distgnn.operators.sparse_features import SparseFeatures

#: The products of a layer with its weights, as logs name them.
FORWARD, WEIGHTS, INPUT = "T W", "TᵀG", "G Wᵀ"
TwoPrices = tuple[Price, Price]
Features = DistDense | SparseFeatures


class DenseProducts(ABC):
    """The products of one layer with its weights. ``T`` is dense, or the sparse features of a first layer.

    Attributes:
        input_layout: how ``T`` (n, f) is cut; output_layout: how ``Z`` and ``G`` (n, f') are; weight_layout:
            how ``W`` (f, f') is; replicated: every rank holds all of W.
        in_place: ``dT`` may be made where ``T`` is, as ``dW`` is complete by then.
        forms: (product, fan in, fan out) -> its form, where it was tuned.
    """

    replicated = in_place = False

    def __init__(self, T: Layout[Grid], Z: Layout[Grid], W: Layout[Grid]) -> None:
        self.grid = T.grid
        self.input_layout, self.output_layout, self.weight_layout = T, Z, W
        self.forms: dict[tuple[str, int, int], Form] = {}

    def tune(self, n: int, fan_in: int, fan_out: int, dtype: Any) -> dict[str, str]:
        """Time the forms of a layer's three products with these widths, and take the fastest from now on.

        See ``gemm_tuning.py``. Collective. Returns product -> form.
        """
        rows, k = self.input_layout.local_shape((n, fan_in))
        m = self.output_layout.local_shape((n, fan_out))[1]
        shapes = (rows, k, m, False, False), (k, rows, m, True, False), (rows, m, k, False, True)
        taken = {}
        for product, shape in zip((FORWARD, WEIGHTS, INPUT), shapes, strict=True):
            key = product, fan_in, fan_out
            if key not in self.forms:
                self.forms[key] = fastest(self.grid.backend, self.grid.world, *shape, dtype)
            taken[product] = str(self.forms[key])
        return taken

    def times(
        self, T: Features, W: DistDense, out: DistDense | None = None, then: Ending | None = None
    ) -> DistDense:
        """Compute ``Z = T W``, in ``out`` where that is given; it shares no memory with ``T``. Collective.

        ``then``: what becomes of Z, which is done where a product on this rank ends its rows; it says so.
        """
        self.check(T, None, W)
        compare(FORWARD, T=T, W=W)
        Z = DistDense.empty(self.output_layout, (T.shape[0], W.shape[1]), T.dtype) if out is None else out
        self._times(T, W, Z, then)
        return Z

    def add(self, T: Features, W: DistDense, Z: DistDense) -> None:
        """Compute ``Z += T W``. Collective."""
        with self.grid.workspace.lend(Z.block.shape, Z.dtype) as room:
            Z.block += self.times(T, W, Z.like(room)).block

    def backward(
        self, T: Features, G: DistDense, W: DistDense | None = None, out: DistDense | None = None
    ) -> tuple[DistDense, DistDense | None]:
        """Compute ``(dW, dT) = (Tᵀ G, G Wᵀ)`` in one go, so that what both need travels once. Collective.

        No ``dT`` without ``W``, nor of sparse features; ``dT`` in ``out`` if given, which shares no memory
        with ``G``, and with ``T`` only :attr:`in_place`.
        """
        share, dT = self.shares(T, G, W, out)
        return DistDense(self.sum(share, T), self.weight_layout, (T.shape[1], G.shape[1])), dT

    def shares(
        self, T: Features, G: DistDense, W: DistDense | None = None, out: DistDense | None = None,
        then: Ending | None = None,
    ) -> tuple[Any, DistDense | None]:  # fmt: skip
        """Compute this rank's share of dW, which :meth:`sum` takes, and dT, as :meth:`backward` does.

        ``then``: what becomes of dT, as of :meth:`times`.
        """
        self.check(T, G, W)
        compare("backward of T W", T=T, G=G)
        if W is not None and isinstance(T, SparseFeatures):
            raise ValueError("sparse features have no gradient; X.to_dense() has one")
        if out is not None and out.block is T.block and not self.in_place:
            raise ValueError("dT cannot be made where T is: T is read again when a part is written")
        if W is not None and out is None:
            out = DistDense.empty(T.layout, T.shape, T.dtype)
        dT = None if W is None else out
        return self._backward(T, G, W, dT, then), dT

    @abstractmethod
    def sum(self, share: Any, T: Features, later: Later | None = None) -> Any:
        """Sum the ranks' shares of dW; return this rank's block, or with ``later`` perhaps a :class:`Sum`.

        Shares for several matrices like T may stand below each other. Collective.
        """

    def _form(self, product: str, below: Features, above: DistDense) -> Form | None:
        """Return the form for these operands' widths, of the layer below and of the layer."""
        return self.forms.get((product, below.shape[1], above.shape[1]))

    @abstractmethod
    def _times(self, T: Features, W: DistDense, Z: DistDense, then: Ending | None) -> None:
        """Compute ``T W`` in ``Z``."""

    @abstractmethod
    def _backward(
        self, T: Features, G: DistDense, W: DistDense | None, dT: DistDense | None, then: Ending | None
    ) -> Any:
        """Return this rank's share of ``Tᵀ G``; compute ``G Wᵀ`` in ``dT`` if there is ``W``."""

    @abstractmethod
    def prices(
        self, n: int, widths: Shape, itemsize: int, need_input: bool = True, sparse: bool = False
    ) -> TwoPrices:
        """Return the prices of :meth:`times`, and of :meth:`backward` with or without ``dT``, on this rank.

        Args:
            n: rows of T; widths: columns of T and of Z; itemsize: of their numbers; sparse: T is.
        """

    def check(self, T: Features | None, G: DistDense | None, W: DistDense | None) -> None:
        """Raise ValueError, on every rank alike, unless shapes and layouts fit together."""
        layouts = self.input_layout, self.output_layout, self.weight_layout
        for name, X, layout in zip("TGW", (T, G, W), layouts, strict=True):
            if X is not None and not X.layout.same(layout, X.shape):
                raise ValueError(f"{name} is not cut as this product needs it")
        rows, below, above = (T, 0, G, 0), (T, 1, W, 0), (G, 1, W, 1)
        for what, (X, i, Y, j) in {"nodes": rows, "input widths": below, "output widths": above}.items():
            if X is not None and Y is not None and X.shape[i] != Y.shape[j]:
                raise ValueError(f"shapes {X.shape} and {Y.shape} don't multiply: different {what}")


class ReplicatedWeights(DenseProducts):
    """Every rank holds all of ``W``; ``T`` is cut over row axes and, in 2D and Split-3D, a column axis.

    Without a column axis, ``times`` and ``dT`` need no communication and ``dW`` one all-reduce of f·f' words
    over the row axes (never over replicas, which hold the same rows). With one, panels of ``T`` (of ``G`` in
    backward) are broadcast along it as in CAGNET Algorithm 3, lines 12-18: nf/pr words. The paper's backward
    broadcasts twice; here both products share the panels of ``G``. Of sparse features no panel travels: each
    rank multiplies its own columns, and column blocks of ``Z`` are summed along the row, nf'/pr words.
    """

    replicated = True

    def __init__(self, layout: Layout[Grid]) -> None:
        if len(layout.col_axes) > 1:
            raise ValueError(f"replicated weights: one axis may cut the columns, not {layout.col_axes}")
        super().__init__(layout, layout, Layout(layout.grid, Cut(), Cut()))
        self.along_row = self.grid.along(*layout.col_axes)
        self.in_place = self.along_row.size <= 2  # then all panels of G are there at a time
        self.along_rows = self.grid.along(*layout.row_axes)

    @contextmanager
    def _broadcast(self, X: Features) -> Iterator[Iterator[tuple[int, slice, Any]]]:
        """Give all ranks of the row the column blocks of ``X``, last first: (number, columns, block)."""
        if self.along_row.size == 1:
            yield iter([(0, slice(0, X.shape[1]), X.block)])
            return
        columns = X.layout.cols.vector(self.grid, X.shape[1]).tolist()
        roots = range(self.along_row.size)[::-1]  # descending, see relay.py
        blocks = [slice(columns[c], columns[c + 1]) for c in roots]
        shapes = [(X.block.shape[0], block.stop - block.start) for block in blocks]
        how = roots, lambda stage: X.block, shapes, X.dtype
        with broadcast(self.grid, self.along_row, "T", *how) as panels:
            yield zip(range(len(blocks)), blocks, panels, strict=True)

    def _times(self, T: Features, W: DistDense, Z: DistDense, then: Ending | None) -> None:
        if isinstance(T, SparseFeatures) and self.along_row.size > 1:
            self._times_own_columns(T, W, Z)
            return
        own, form = slice(*Z.col_range), self._form(FORWARD, T, W)  # own: Alg. 3, line 17
        with self._broadcast(T) as blocks:
            for k, actv, T_c in blocks:  # lines 12-16
                end = then if self._is_last(k) else None
                local.product(T_c, W.block[actv, own], Z.block, k > 0, end, form=form)  # line 18

    def add(self, T: Features, W: DistDense, Z: DistDense) -> None:
        if self.along_row.size > 1:
            super().add(T, W, Z)
            return
        self.check(T, None, W)
        compare(FORWARD, T=T, W=W)
        local.product(T.block, W.block, Z.block, True, form=self._form(FORWARD, T, W))

    def _is_last(self, k: int) -> bool:
        """Tell whether panel ``k`` of those that :meth:`_broadcast` gives ends the rows of a product."""
        return k == self.along_row.size - 1

    def _times_own_columns(self, T: SparseFeatures, W: DistDense, Z: DistDense) -> None:
        """Compute the column blocks of Z, each the sum of what the ranks of the row make of own columns."""
        own, ends = slice(*T.col_range), Z.layout.cols.vector(self.grid, Z.shape[1]).tolist()
        roots = range(self.along_row.size)[::-1]
        shapes = [(len(Z.block), ends[c + 1] - ends[c]) for c in roots]
        how = roots, lambda stage: Z.block, shapes, Z.dtype
        with summed_panels(self.grid, self.along_row, *how) as rooms:
            for c, room in zip(roots, rooms, strict=True):
                local.product(T.block, W.block[own, ends[c] : ends[c + 1]], room)

    def _backward(
        self, T: Features, G: DistDense, W: DistDense | None, dT: DistDense | None, then: Ending | None
    ) -> Any:
        own, of_weights, of_input = slice(*T.col_range), self._form(WEIGHTS, T, G), self._form(INPUT, T, G)
        in_place = dT is not None and dT.block is T.block
        panels, turns = [], []  # of dW; of G, not yet multiplied by W
        with self._broadcast(G) as blocks:
            for k, actv, G_c in blocks:
                panels.append(_transposed_times(T, G_c, of_weights))
                turns.append((k, actv, G_c))
                if dT is None or W is None or (in_place and not self._is_last(k)):
                    continue
                for number, columns, panel in turns:
                    end = then if self._is_last(number) else None
                    how: Any = {"trans_b": True, "form": of_input, "then": end}
                    local.gemm(panel, W.block[own, columns], dT.block, number > 0, **how)
                turns.clear()
        return panels[0] if len(panels) == 1 else self.grid.backend.xp.concatenate(panels[::-1], axis=1)

    def prices(
        self, n: int, widths: Shape, itemsize: int, need_input: bool = True, sparse: bool = False
    ) -> TwoPrices:
        layout, row, above = self.input_layout, self.along_row, widths[1]
        height, own = layout.local_shape((n, widths[0]))
        cuts = [np.diff(layout.cols.vector(self.grid, width)).tolist() for width in widths]
        times, back = (gathered(row, "T", cut, height) for cut in cuts)
        if sparse:
            times = whole(row, "sums", [cuts[1][c] * height for c in row.others()])
        dW = reduced(self.along_rows, "gradients", own * above)
        return times, back + dW + gathered(row, "gradients", cuts[0], above)

    def sum(self, share: Any, T: Features, later: Later | None = None) -> Any:
        columns = T.layout.cols.vector(self.grid, T.shape[1])

        def whole(rows: Any) -> Any:
            return self.along_row.allgather_rows(rows, columns, matrix="gradients")

        return summed_over(later, self.along_rows, share, whole)


class ShardedWeights(DenseProducts):
    """Weights of Plexus Algorithm 1: ``W`` is cut over (feature, contract), its rows once more over out.

    ``T`` is cut over (out, feature), ``Z`` over (out, contract). Line numbers are the paper's.
    """

    in_place = True

    def __init__(self, grid: Grid, rows: Cut, out: str, contract: str, feature: str) -> None:
        super().__init__(
            Layout(grid, rows, Cut((feature,))),
            Layout(grid, rows, Cut((contract,))),
            Layout(grid, Cut((feature, out)), Cut((contract,))),
        )
        self.out, self.contract, self.feature = grid.along(out), grid.along(contract), grid.along(feature)

    def _shares(self, height: int) -> Any:
        """Return the cut of the rows of this rank's plane block of ``W`` over the out axis."""
        return within(self.weight_layout.rows.vector(self.grid, height), self.feature.rank, self.out.size)

    def _whole(self, W: DistDense) -> Any:
        return self.out.allgather_rows(W.block, self._shares(W.shape[0]), matrix="weights")

    def _times(self, T: Features, W: DistDense, Z: DistDense, then: Ending | None) -> None:
        W_block, form = self._whole(W), self._form(FORWARD, T, W)  # line 6
        summed.gemm(self.grid, self.feature, T.block, W_block, Z.block, then, form=form)  # lines 7-8

    def _backward(
        self, T: Features, G: DistDense, W: DistDense | None, dT: DistDense | None, then: Ending | None
    ) -> Any:
        dW = _transposed_times(T, G.block, self._form(WEIGHTS, T, G))  # line 15
        dW = self.out.reduce_scatter_rows(dW, self._shares(T.shape[1]), matrix="gradients")  # line 16
        if dT is not None and W is not None:
            W_block, form = self._whole(W), self._form(INPUT, T, G)  # line 18
            summed.gemm(  # lines 19-20
                self.grid, self.contract, G.block, W_block, dT.block, then, trans_b=True, form=form
            )  # fmt: skip
        return dW

    def prices(
        self, n: int, widths: Shape, itemsize: int, need_input: bool = True, sparse: bool = False
    ) -> TwoPrices:
        rows, below = self.input_layout.local_shape((n, widths[0]))
        above = self.output_layout.local_shape((n, widths[1]))[1]
        W = gathered(self.out, "weights", np.diff(self._shares(widths[0])).tolist(), above)
        how = itemsize, TUNING.gemm_rows
        times = W + summed_rows(self.grid, self.feature, (rows, above), *how)
        dT = W + summed_rows(self.grid, self.contract, (rows, below), *how) if need_input else FREE
        return times, dT + reduced(self.out, "gradients", below * above, scattered=True)

    def sum(self, share: Any, T: Features, later: Later | None = None) -> Any:
        return share  # summed already, as its parts are scattered


def _transposed_times(T: Features, G: Any, form: Form | None) -> Any:
    """Compute ``Tᵀ G`` of this rank's blocks."""
    if isinstance(T, SparseFeatures):
        return local.spmm(T.transposed, G)
    return local.gemm(T.block, G, trans_a=True, form=form)
