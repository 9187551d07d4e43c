"""The end of a layer's product: what becomes of Z, in the pass that writes it or in one of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Array = Any
Mask = tuple[Any, Array, Array, float]


@dataclass
class Epilogue:
    """The numbers of Z become dropout(relu(Z + bias)), in its place.

    A product that can does so where it writes Z; :func:`~distgnn.local.elementwise.apply` does what is left.

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
