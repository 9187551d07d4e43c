"""Memory that a workspace lets go of after an error, while the device still copies."""

from __future__ import annotations

import gc

import numpy as np

from distgnn.arrays import backend as backends
from distgnn.arrays.cupy_backend import DONE, PAGE
from distgnn.comm.staging import Staging


def test_copies_end_before_pinned_memory_is_let_go(stand_in):
    backend = backends.get("cupy")
    staging = Staging(backend)
    host, array = staging.borrow((1 << 16,), np.float32), backend.empty((1 << 16,), np.float32)
    host[...] = 1
    backend.carry(host, array, DONE)
    del host
    staging.memory.retire()
    gc.collect()
    assert float(array.sum()) == 1 << 16
    assert not stand_in.hazards()


def test_pinned_memory_is_not_rounded_to_a_power_of_two(stand_in):
    """A page more at most; and it is let go where nobody needs it any more."""
    on = backends.get("cupy")
    pool = on.xp.get_default_pinned_memory_pool()
    before = pool.used_bytes()
    array = on.pinned((300, 1000), np.float32)
    assert array.shape == (300, 1000) and array.nbytes <= pool.used_bytes() - before < array.nbytes + PAGE
    del array
    assert pool.used_bytes() == before
    assert on.pinned((0, 5), np.float32).shape == (0, 5)
