"""The input of a layer, forward and backward side by side: H = dropout(relu(norm(Z))), or with ELU.

Z is the output of the layer before; the norm is optional. The input of layer 0 is dropout(X). ReLU keeps a
bit for each entry of H, ELU keeps H.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from distgnn import ledger
from distgnn.local.elementwise import activate, apply, elu, elu_back
from distgnn.local.epilogue import Epilogue, Kept, Mask
from distgnn.nn.buffers import Buffers
from distgnn.nn.dropout import DeviceEpoch, Dropout
from distgnn.nn.norm import LayerNorm
from distgnn.operators.dense import DistDense
from distgnn.operators.sparse_features import SparseFeatures

Array = Any
RELU, ELU = "relu", "elu"
ACTIVATIONS = (RELU, ELU)


class Activation:
    """Layer norm, an activation and dropout before layer ``index``.

    Args:
        norm: layer norm of Z, or None. seed, rate: of dropout. kind: "relu" or "elu".

    Attributes:
        kept: names of matrices that backward needs.
    """

    def __init__(self, index: int, norm: LayerNorm | None, seed: int, rate: float, kind: str = RELU) -> None:
        self.index, self.norm, self.seed, self.rate = index, norm, seed, rate
        self.elu = kind == ELU
        self.kept: tuple[str, ...] = ("H",) if self.elu and index > 0 else ()

    @property
    def all_in_products(self) -> bool:
        """Tell whether :meth:`epilogue` makes all of H, and :meth:`ending` all of the gradient of Z."""
        return self.index > 0 and self.norm is None and not self.elu

    def epilogue(self, buffers: Buffers, bias: Array) -> Epilogue:
        """Return what makes H of Z - bias, which is scratch; with a norm or ELU, what makes Z of it.

        `forward`, with these buffers, does the rest.
        """
        if self.norm is not None or self.elu:
            return Epilogue(bias)
        mode = buffers.plan.mode
        remember = mode.keep or not mode.scratch  # this pass, or one that begins here again
        buffers.made = Epilogue(bias, self._mask(buffers), relu=True, remember=remember)
        return buffers.made

    def forward(self, Z: Any, buffers: Buffers, remember: bool) -> Any:
        """Compute H, in place of a Z that is scratch. Collective with a norm. Sparse features stay sparse.

        remember: keep one bit for each entry of H, 1 where it is positive; with ELU, all of it. Layer 0
                needs none.
        """
        if isinstance(Z, SparseFeatures):
            return buffers.hold("H", self._some_entries(Z, buffers))
        mode = buffers.plan.mode
        H, scratch = buffers.hold("H", Z), mode.scratch
        buffers.given = None if scratch else Z
        if buffers.made is not None:  # an epilogue, which has been applied
            buffers.positive = buffers.made.bits
            return H
        if self.index > 0 and not scratch:  # of which one is overwritten
            H, scratch = buffers.beside("H", "X"), True
            H.block[...] = Z.block
            Z = H
        if self.norm is not None:
            H = buffers.beside("H", "N") if mode.keep else Z
            buffers.scales = self.norm.forward(Z, H)  # N, in place of Z; H = gain N + shift
        relu, mask = self.index > 0 and not self.elu, self._mask(buffers)
        if self.elu and self.index > 0:
            with _timed(H):
                elu(H.block, mask)  # H = mask elu(H)
            mask = None
        Z = H
        if mask is not None:
            H = H if scratch else buffers.beside("H", "X")
        if mask is not None or relu:
            with _timed(H):  # H = mask max(Z, 0), or mask Z
                buffers.positive = activate(Z.block, H.block, mask, relu, relu and remember)
        if remember:
            buffers.kept += self.kept
        return H

    def ending(self, buffers: Buffers) -> Kept | None:
        """Return what becomes of the gradient of H where ReLU made H, for :meth:`backward`; else None."""
        if self.index == 0 or self.elu:
            return None
        return Kept(buffers.positive, 1 / self._share(buffers))

    def backward(self, G: DistDense, buffers: Buffers, then: Kept | None) -> list[Any]:
        """Put the gradient of Z in place of G, that of H; return those of the norm's gain and shift.

        Collective with a norm. ``then``: from :meth:`ending`, perhaps done.
        """
        epoch = buffers.epoch if self.rate > 0 else None
        if then is not None:
            apply(then, G.block)  # G = G / share where H > 0, else 0
        elif self.index > 0:
            with _timed(G):  # G = mask G elu', by elu's values
                elu_back(G.block, buffers.H.block, self._share(buffers), self._mask(buffers))
        elif epoch is not None:
            with _timed(G):
                self._masks(buffers).apply(G.block, epoch)  # G = mask G
        return [] if self.norm is None else [*self.norm.backward(buffers.N, buffers.scales, G, buffers.later)]

    def _some_entries(self, X: SparseFeatures, buffers: Buffers) -> SparseFeatures:
        """Compute dropout(X) of sparse features; the values of an epoch are over when the next begins."""
        plan = buffers.plan
        if buffers.epoch is None or self.rate == 0:
            return X
        assert not isinstance(buffers.epoch, DeviceEpoch)  # whose work is not captured
        plan.dropped = self._masks(buffers).of_entries(X, buffers.epoch, plan.dropped)
        return plan.dropped

    def _share(self, buffers: Buffers) -> float:
        """Return the share of H that dropout leaves."""
        return 1.0 if buffers.epoch is None else 1 - self.rate

    def _mask(self, buffers: Buffers) -> Mask | None:
        if buffers.epoch is None or self.rate == 0:
            return None
        return self._masks(buffers).mask(buffers.epoch)

    def _masks(self, buffers: Buffers) -> Dropout:
        plan = buffers.plan
        if plan.masks is None:
            (layout, (_, width)), on = plan.matrices["H"], plan.A.grid.backend
            columns = on.xp.arange(*layout.cols.range(layout.grid, width))
            plan.masks = Dropout(self.rate, self.seed, self.index, on.asarray(plan.nodes), columns)
        return plan.masks


def _timed(H: DistDense) -> AbstractContextManager[None]:
    ledger.charge("activation", "relu, dropout", touched=2 * H.block.nbytes)
    return ledger.timed("activation", "relu, dropout", on=H.grid.backend)
