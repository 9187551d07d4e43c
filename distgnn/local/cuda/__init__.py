"""The CUDA kernels of ``kernels/*.cu``, loaded through CuPy and compiled by NVRTC when they are first needed.

They work on CuPy arrays of the current device and queue on the current stream. Runs repeat to the bit.
"""

from distgnn.local.cuda.additive import edge_scores, edge_slopes
from distgnn.local.cuda.aggregate import best, best_back
from distgnn.local.cuda.csr import Variant, candidates, spmm, writes_rounded
from distgnn.local.cuda.cusparse import spmm_cusparse
from distgnn.local.cuda.edges import edge_dots, edge_products, edge_softmax, edge_softmax_back
from distgnn.local.cuda.elementwise import (
    NORM_COLUMNS,
    activate,
    binary_cross_entropy,
    column_sums,
    count_hits,
    dropout,
    elu,
    elu_back,
    keep_positive,
    layer_norm,
    layer_norm_backward,
    positive_bits,
    softmax_cross_entropy,
)
from distgnn.local.cuda.extract import (
    Numbering,
    Product,
    compact,
    entries_of,
    find_columns,
    keep_entries,
    row_keys,
    row_lengths,
    spgemm,
)
from distgnn.local.cuda.gemm import gemm
from distgnn.local.cuda.heads import add_heads, head_dots, head_sums, scaled_dots
from distgnn.local.cuda.narrow import Rounded, narrow, narrow_rows, pitch, round_into, rounded, widen
from distgnn.local.cuda.optimizers import adam, sgd, sum_squares
from distgnn.local.cuda.rows import gather_rows, scatter_add
from distgnn.local.cuda.sample import draw_weighted, inclusion, sample_ones, sample_weighted

__all__ = [
    "NORM_COLUMNS", "Numbering", "Product", "Rounded", "Variant", "activate", "adam", "add_heads", "best",
    "best_back", "binary_cross_entropy", "candidates", "column_sums", "compact", "count_hits",
    "draw_weighted", "dropout", "edge_dots", "edge_products", "edge_scores", "edge_slopes",
    "edge_softmax", "edge_softmax_back", "elu", "elu_back", "entries_of", "find_columns", "gather_rows",
    "gemm", "head_dots", "head_sums",
    "inclusion", "keep_entries", "keep_positive", "layer_norm", "layer_norm_backward", "narrow",
    "narrow_rows", "pitch", "positive_bits", "round_into", "rounded", "row_keys", "row_lengths",
    "sample_ones", "sample_weighted", "scaled_dots", "scatter_add", "sgd", "softmax_cross_entropy",
    "spgemm", "spmm", "spmm_cusparse", "sum_squares", "widen", "writes_rounded",
]  # fmt: skip
