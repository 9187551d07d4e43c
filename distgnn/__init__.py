"""distgnn: distributed sparse linear algebra for graph neural networks, on MPI.

import distgnn as dg
grid = dg.Grid(comm, rows=4, reps=2)
A = dg.load("reddit.dg", grid, algorithm="1.5d")
H = dg.scatter(X, A.input_layout)
Y = A @ H
G = A.T @ Y

Names are imported on first use, so that `import distgnn` needs neither MPI nor a GPU.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Grid": "grid",
    "Comm": "comm",
    "Ledger": "ledger",
    "Layout": "layout",
    "Cut": "layout",
    "CSR": "matrix",
    "DistDense": "matrix",
    "DistSparse": "matrix",
    "MatrixSource": "matrix",
    "LocalBlocks": "matrix",
    "scatter": "matrix",
    "gather": "matrix",
    "distribute": "algorithms",
    "Store": "store",
    "load": "store",
    "load_features": "store",
    "UserError": "errors",
}
_MODULES = {"algorithms", "backend", "gallery", "gcn", "layout", "ledger", "local", "matrix", "reference", "rng", "store"}

__all__ = ["__version__", *sorted(_HOMES), *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"distgnn.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"distgnn.{name}")
    raise AttributeError(f"module 'distgnn' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
