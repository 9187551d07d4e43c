"""Distributed products: the protocol, one file per algorithm, and the registry of what there is."""

from distgnn.operators.registry import ALGORITHMS, SPARSITY_AWARE, TABLE, distribute, get, grids, make_grid

__all__ = [
    "ALGORITHMS", "SPARSITY_AWARE", "TABLE", "distribute", "get", "grids", "make_grid",
]  # fmt: skip
