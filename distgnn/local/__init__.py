"""What a rank computes: sparse and dense products of its own blocks, by the kernels for its device."""

from distgnn.local.gemm import gemm
from distgnn.local.spgemm import spgemm, spgemm_pieces
from distgnn.local.spmm import add_rows, gather_rows, spmm

__all__ = ["add_rows", "gather_rows", "gemm", "spgemm", "spgemm_pieces", "spmm"]
