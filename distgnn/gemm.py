"""Dense products in every form that BLAS knows, and which is fastest for a shape (Plexus section 5.3).

``C = A B`` is *NN* where both operands lie in memory row by row, *TN* where A lies column by column, and so on; *reversed* is
``C = (Bᵀ Aᵀ)ᵀ``. The numbers are the same up to rounding, the speed of a BLAS is not: on one machine Plexus found the gradient of
the weights far slower as Hᵀ Q than as (Qᵀ H)ᵀ. An operand that lies the other way is copied first, which is part of the price.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from distgnn.backend import Backend
from distgnn.comm import Comm

Array = Any

#: Multiplications and additions of a trial on the host and on a GPU: milliseconds. Taller operands are cut to it.
TRIAL = {False: 3e8, True: 3e11}
ROUNDS = 3
GAIN = 0.9  # of the seconds of the form in which the operands come: others must do better, or noise would choose


@dataclass(frozen=True)
class Form:
    """How a product is computed: each operand "N" or "T" as said above, and whether reversed."""

    a: str
    b: str
    reversed: bool = False

    def __str__(self) -> str:
        return f"{self.a}{self.b}{' reversed' if self.reversed else ''}"

    def multiply(self, xp: Any, A: Array, B: Array, out: Array) -> None:
        """``out = A B``; A (m, k) and B (k, n) lie in memory as they like, ``out`` row by row."""
        A, B = _laid(xp, A, self.a), self.lay(xp, B)
        if self.reversed:
            out[...] = xp.matmul(B.T, A.T).T
        else:
            xp.matmul(A, B, out=out)

    def lay(self, xp: Any, B: Array) -> Array:
        """The second operand as :meth:`multiply` uses it, worth doing once where it is multiplied several times."""
        return _laid(xp, B, self.b)


FORMS = [Form(a, b, backwards) for backwards in (False, True) for a in "NT" for b in "NT"]


def _laid(xp: Any, X: Array, letter: str) -> Array:
    """X row by row (N) or column by column (T); itself where it lies so."""
    return xp.ascontiguousarray(X) if letter == "N" else xp.asfortranarray(X)


def as_given(trans_a: bool, trans_b: bool) -> Form:
    """The form without copies for operands that are row by row before they are transposed."""
    return Form("T" if trans_a else "N", "T" if trans_b else "N")


def fastest(backend: Backend, world: Comm, m: int, k: int, n: int, trans_a: bool, trans_b: bool, dtype: Any) -> Form:
    """The form in which this rank's (m, k) times (k, n) should be multiplied, the same on all ranks: rounding, and with it
    copies of the same numbers, must not differ between them. Collective.

    A product counts as long as it takes the slowest rank; shapes may differ between ranks.
    """
    usual = as_given(trans_a, trans_b)
    most = max(int(TRIAL[backend.on_device] / max(2 * m * k * n / max(m, k), 1)), 1)  # of the longer of m and k, along nodes
    m, k = (min(m, most), k) if m >= k else (m, min(k, most))
    A, B = (_operand(backend, shape, trans, dtype) for shape, trans in (((m, k), trans_a), ((k, n), trans_b)))
    out = backend.empty((m, n), dtype)
    forms = [usual, *(form for form in FORMS if form != usual)]
    seconds = np.full(len(forms), np.inf)
    for index, form in enumerate(forms):
        _seconds(backend, form, A, B, out)  # for warming up: libraries load, kernels are compiled
        for _ in range(ROUNDS):
            took = _seconds(backend, form, A, B, out)
            if took > 2 * seconds.min():
                break  # it won't win
            seconds[index] = min(seconds[index], took)
    seconds = np.max(world.gather_objects(seconds), axis=0)
    seconds[0] *= GAIN
    return forms[int(np.argmin(seconds))]


def _operand(backend: Backend, shape: tuple[int, int], transposed: bool, dtype: Any) -> Array:
    stored = backend.empty(shape[::-1] if transposed else shape, dtype)
    stored[...] = 1
    return stored.T if transposed else stored


def _seconds(backend: Backend, form: Form, A: Array, B: Array, out: Array) -> float:
    from distgnn import local  # which imports this module

    backend.synchronize()
    start = time.perf_counter()
    local.gemm(A, B, out=out, form=form)  # in pieces where products are
    backend.synchronize()
    return time.perf_counter() - start
