"""What becomes of a layer's product, in the pass that writes it or in one of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distgnn import ledger
from distgnn.arrays import backend
from distgnn.local import elementwise

Array = Any


@dataclass
class Epilogue:
    """The numbers of Z become dropout(relu(Z + bias)), in its place.

    Args:
        bias: (1, f), or None; mask, relu, remember: see :func:`~distgnn.local.elementwise.activate`.

    Attributes:
        done: whether that has been done; bits: of what is positive, then, with ``remember``.
    """

    bias: Array = None
    mask: elementwise.Mask | None = None
    relu: bool = False
    remember: bool = False
    done: bool = False
    bits: Array = None

    def apply(self, Z: Array) -> None:
        """Do it in one pass over Z, unless it is done."""
        activates = self.relu or self.mask is not None
        if not self.done and (activates or self.bias is not None):
            ledger.charge("activation", "relu, dropout", touched=2 * Z.nbytes)
            with ledger.timed("activation", "relu, dropout", synchronize=backend.of(Z).synchronize):
                if activates:
                    how = self.mask, self.relu, self.remember, self.bias
                    self.bits = elementwise.activate(Z, Z, *how)
                else:
                    Z += self.bias
        self.done = True
