"""Timing of kernels beside all installed libraries that compute the same: `distgnn bench`."""
