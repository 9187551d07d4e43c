"""Steps of optimisers on all parameters of a network, and the norm of all gradients: a launch for each few.

What they compute is said in ``distgnn/local/elementwise.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.local.cuda.launch import THREADS, Array, blocks_for, c_type, check, launch, library
from distgnn.local.update import GROUP as PARTS
from distgnn.local.update import Part, Update

FILE = "optimizers.cu"


def adam(parts: Sequence[Part], update: Update, *, first: float, second: float, epsilon: float) -> None:
    """See ``local.elementwise.update_all``; ``update.rates`` are rate and correction."""
    # 1 - first and 1 - second in double: in float the last would be wrong by 1e-5 of itself.
    _launch("adam", parts, update, (first, second, 1 - first, 1 - second, epsilon))


def sgd(parts: Sequence[Part], update: Update, *, momentum: float) -> None:
    """See ``local.elementwise.update_all``; ``update.rates`` is the rate."""
    _launch("sgd", parts, update, (momentum,))


def _launch(kernel: str, parts: Sequence[Part], update: Update, constants: Sequence[float]) -> None:
    xp, number = library(parts[0].w), parts[0].w.dtype.type
    for part in parts:
        slots = dict(zip("mv"[2 - len(part.slots) :], part.slots, strict=True))
        check(kernel, part.w.shape, number, w=part.w, gradient=part.gradient, **slots)
    check(kernel, (2 * len(parts),), np.int32, bad=update.bad)
    rates, count = len(update.rates), len(parts)
    numbers = [number(x) for x in (*update.rates, *constants)]
    for begin in range(0, count, PARTS):
        some = parts[begin : begin + PARTS]
        factors = update.factors
        if factors is not None:
            factors = factors[begin // PARTS]
            check(kernel, (rates + PARTS,), np.float64, factors=factors)
        shared = factors, update.square, np.float64(update.most), np.int32(count), update.bad[begin:]
        blocks = sum(blocks_for(part.w.size) for part in some)
        arguments = *numbers, *shared, *_arguments(some, number)
        launch(xp, FILE, f"{kernel}<{c_type(parts[0].w)}>", blocks, *arguments)


def _arguments(parts: Sequence[Part], number: Any) -> list[Any]:
    """List what the kernels take of these parts, and of those that are not there."""
    listed: list[Any] = []
    for part in parts:
        slots = (None,) * (2 - len(part.slots)) + part.slots
        listed += [
            np.int64(part.w.size),
            number(part.shrink),
            number(part.decay),
            part.gradient,
            part.w,
            *slots,
        ]
    missing = [np.int64(0), number(1), number(0), None, None, None, None]
    return listed + missing * (PARTS - len(parts))


def sum_squares(arrays: Sequence[Array], square: Array) -> None:
    """See ``local.elementwise.sum_squares``."""
    xp, kind = library(square), c_type(arrays[0])
    check("sum_squares", (1,), np.float64, square=square)
    for array in arrays:
        check("sum_squares", array.shape, arrays[0].dtype, array=array)
    sums, arrived = xp.empty(THREADS, np.float64), xp.zeros(1, np.int32)
    for begin in range(0, len(arrays), PARTS):
        some = arrays[begin : begin + PARTS]
        blocks = min(max(1, blocks_for(-(-sum(array.size for array in some) // 4))), THREADS)
        pairs = [item for array in some for item in (np.int64(array.size), array)]
        pairs += [np.int64(0), None] * (PARTS - len(some))
        arguments = np.int32(begin > 0), sums, arrived, square, *pairs
        launch(xp, FILE, f"sum_squares<{kind}>", blocks, *arguments)
