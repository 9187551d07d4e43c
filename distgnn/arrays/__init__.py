"""Data of one rank: arrays of NumPy or CuPy, CSR blocks, buffers that are used again."""

from distgnn.arrays import backend

__all__ = ["backend"]
