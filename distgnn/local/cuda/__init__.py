"""The hand-written CUDA kernels of ``kernels/*.cu``, loaded through CuPy and compiled by NVRTC when they are
first needed.

Everything here works on CuPy arrays of the current device and queues on the current stream; results are
deterministic, to the bit, from run to run. CuPy itself is reached through :mod:`distgnn.backend` only.
"""

from distgnn.local.cuda.csr import Variant, candidates, spmm
from distgnn.local.cuda.cusparse import spmm_cusparse
from distgnn.local.cuda.elementwise import (
    CutSoftmax,
    Dropout,
    activate,
    adam,
    keep_positive,
    sgd,
    softmax_cross_entropy,
    to_bfloat16,
)
from distgnn.local.cuda.rows import ScatterAdd, add_rows, gather_rows
from distgnn.local.cuda.sample import sample_ones, sample_weighted

__all__ = [
    "CutSoftmax",
    "Dropout",
    "ScatterAdd",
    "Variant",
    "activate",
    "adam",
    "add_rows",
    "candidates",
    "gather_rows",
    "keep_positive",
    "sample_ones",
    "sample_weighted",
    "sgd",
    "softmax_cross_entropy",
    "spmm",
    "spmm_cusparse",
    "to_bfloat16",
]
