"""Timing of kernels beside everything installed that computes the same: `distgnn bench`."""
