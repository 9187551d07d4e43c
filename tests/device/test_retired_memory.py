"""Memory that a workspace lets go of after an error, while the device still copies."""

from __future__ import annotations

import gc

import numpy as np

from distgnn.arrays import backend as backends
from distgnn.arrays.backend import DONE
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
