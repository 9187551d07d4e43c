"""The part of CuPy without public names that programs need all the same."""
