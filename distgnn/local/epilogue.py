"""The end of a product: what becomes of its numbers, in the pass that writes them or in one of its own.

A product that can does it where it writes; :func:`~distgnn.local.elementwise.apply` does what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

Array = Any
Mask = tuple[Any, Array, Array, float]


@dataclass
class Epilogue:
    """The numbers of Z become dropout(relu(Z + bias)), in its place: the end of a layer, forward.

    Args:
        bias: (1, f), or None; mask, relu, remember: see :func:`~distgnn.local.elementwise.activate`.

    Attributes:
        done: whether that has been done; bits: of what is positive, then, with ``remember``.
    """

    bias: Array = None
    mask: Mask | None = None
    relu: bool = False
    remember: bool = False
    done: bool = False
    bits: Array = None

    @property
    def any(self) -> bool:
        """Tell whether anything becomes of Z."""
        return self.relu or self.mask is not None or self.bias is not None


@dataclass
class Kept:
    """The numbers of a gradient are multiplied by ``scale`` where their bit is 1, and are 0 elsewhere.

    See :func:`~distgnn.local.elementwise.keep_positive`: the way back through ReLU and dropout.

    Args:
        bits: uint8, those that :class:`Epilogue` remembered.

    Attributes:
        done: whether that has been done.
    """

    bits: Array
    scale: float = 1.0
    done: bool = False
    any: ClassVar[bool] = True
    remember: ClassVar[bool] = False


Ending = Epilogue | Kept
