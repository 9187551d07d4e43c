"""What a rank holds: arrays of NumPy or CuPy, CSR blocks, buffers that are used again."""
