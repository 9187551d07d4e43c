"""Choice of the fastest form of a dense product for a shape (Plexus section 5.3; ``local/forms.py``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays import timing
from distgnn.arrays.backend import Backend
from distgnn.arrays.tuning import TUNING
from distgnn.comm.group import Comm
from distgnn.local.forms import FORMS, Array, Form, as_given

ROUNDS = 3


def fastest(
    backend: Backend, world: Comm, m: int, k: int, n: int, trans_a: bool, trans_b: bool, dtype: Any
) -> Form:
    """Time the forms for this rank's (m, k) times (k, n), and return the fastest. Collective.

    Shapes may differ between ranks. The form is the same on all ranks, so that copies are rounded alike. The
    slowest rank's seconds count.
    """
    usual = as_given(trans_a, trans_b)
    trial = TUNING.gemm_trial_on_device if backend.on_device else TUNING.gemm_trial
    most = max(int(trial / max(2 * min(m, k) * n, 1)), 1)
    m, k = (min(m, most), k) if m >= k else (m, min(k, most))  # the longer one is along nodes
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
    seconds[0] *= TUNING.gemm_gain
    return forms[int(np.argmin(seconds))]


def _operand(backend: Backend, shape: tuple[int, int], transposed: bool, dtype: Any) -> Array:
    stored = backend.empty(shape[::-1] if transposed else shape, dtype)
    stored[...] = 1
    return stored.T if transposed else stored


def _seconds(backend: Backend, form: Form, A: Array, B: Array, out: Array) -> float:
    return timing.seconds(lambda: local.gemm(A, B, out=out, form=form), backend)
