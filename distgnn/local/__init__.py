"""Computation on one rank: sparse and dense products of its own blocks, by the kernels for its device."""

from distgnn.local.gemm import gemm
from distgnn.local.narrow import memory_of, narrow, narrow_rows, rounded_room, widen
from distgnn.local.product import product, some_rows
from distgnn.local.rows import gather_rows, scatter_add
from distgnn.local.spgemm import spgemm, spgemm_row_blocks
from distgnn.local.spmm import reads_rounded, rounded, spmm, spmm_transposed, transposes

__all__ = [
    "gather_rows", "gemm", "memory_of", "narrow", "narrow_rows", "product", "reads_rounded", "rounded",
    "rounded_room", "scatter_add", "some_rows", "spgemm", "spgemm_row_blocks", "spmm",
    "spmm_transposed", "transposes", "widen",
]  # fmt: skip
