"""Where the element-wise passes of an epoch run: in the host kernels, in the CUDA kernels, or as array
operations anywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.local import host


def compiled(block: Any) -> bool:
    """Whether the host kernels do this block: one pass over memory where array operations take several."""
    return isinstance(block, np.ndarray) and block.dtype.char in "fd" and host.module() is not None


def on_gpu(block: Any) -> bool:
    """Whether the CUDA kernels do this block."""
    return not isinstance(block, np.ndarray) and block.dtype.char in "fd" and block.size > 0
