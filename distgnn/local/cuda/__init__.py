"""The CUDA kernels of ``kernels/*.cu``, loaded through CuPy and compiled by NVRTC when they are first needed.

They work on CuPy arrays of the current device and queue on the current stream. Runs repeat to the bit.
"""

from distgnn.local.cuda.csr import Variant, candidates, spmm
from distgnn.local.cuda.cusparse import spmm_cusparse
from distgnn.local.cuda.elementwise import adam, dropout, keep_positive, softmax_cross_entropy
from distgnn.local.cuda.rows import gather_rows, scatter_add
from distgnn.local.cuda.sample import sample_ones, sample_weighted

__all__ = [
    "Variant", "adam", "candidates", "dropout", "gather_rows", "keep_positive", "sample_ones",
    "sample_weighted", "scatter_add", "softmax_cross_entropy", "spmm", "spmm_cusparse",
]  # fmt: skip
