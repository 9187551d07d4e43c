"""Arguments of an optimiser's step on all parameters of a network together, as far as a rank holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

Array = Any
GROUP = 8  # parameters of a row of factors, and of a launch


class Part(NamedTuple):
    """A parameter in flat arrays of one type.

    Attributes:
        w: the parameter; gradient: of it, which may be used as scratch; slots: the optimiser's state.
        shrink: by which w is multiplied first; decay: times w is added to the gradient.
    """

    w: Array
    gradient: Array
    slots: tuple[Array, ...]
    shrink: float = 1.0
    decay: float = 0.0


@dataclass
class Update:
    """Numbers and arrays that all parameters of a step share.

    Attributes:
        rates: numbers of the step, as its optimiser has them.
        bad: int32 (2 parameters), where 1 is put in place i if a square in the gradient of parameter i is not
            finite, in place parameters + i if one of the parameter itself is not, after the step.
        square: float64 (1), the square of the norm of all gradients, which are scaled down to a norm of
            ``most``; None: they are not.
        factors: float64, a row for every GROUP of parameters, which has the ``rates`` and each one's
            ``shrink`` and is read when the step is made, in place of the numbers here; None: these count.
    """

    rates: tuple[float, ...]
    bad: Array
    square: Array = None
    most: float = 0.0
    factors: Array = None
