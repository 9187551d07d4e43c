"""Data of one rank: arrays of NumPy or CuPy, CSR blocks, buffers that are used again."""
