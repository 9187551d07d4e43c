"""Timing of kernels side by side with everything else installed that computes the same; what `distgnn bench`
runs.
"""
