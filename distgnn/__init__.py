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

import atexit
import contextlib
import importlib
import sys
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Grid": "comm.grid",
    "Comm": "comm.group",
    "Ledger": "ledger",
    "Layout": "layout",
    "Cut": "layout",
    "CSR": "arrays.csr",
    "DistDense": "operators.dense",
    "DistEdges": "operators.edges",
    "DistSparse": "operators.operator",
    "MatrixSource": "operators.sources",
    "LocalBlocks": "operators.sources",
    "scatter": "operators.dense",
    "gather": "operators.dense",
    "redistribute": "operators.dense",
    "zeros": "operators.filled",
    "ones": "operators.filled",
    "random": "operators.filled",
    "from_function": "operators.filled",
    "I": "operators.base",
    "dottest": "operators.dottest",
    "distribute": "operators",
    "make_grid": "plan.grid",
    "abort_on_error": "comm.launch",
    "Store": "store",
    "load": "store",
    "prepare": "store.from_arrays",
    "fit": "train.fit",
    "Model": "train.model",
    "load_features": "store",
    "UserError": "errors",
    "TrainingError": "errors",
}
_MODULES = {
    "backend": "arrays.backend",
    "gallery": "gallery",
    "krylov": "krylov",
    "layout": "layout",
    "ledger": "ledger",
    "local": "local",
    "nn": "nn",
    "operators": "operators",
    "partition": "partition",
    "plan": "plan",
    "reference": "nn.reference",
    "rng": "rng",
    "sampling": "sampling",
    "store": "store",
    "train": "train",
}

__all__ = ["__version__", *sorted(_HOMES), *sorted(_MODULES)]


def _at_exit() -> None:
    """Tell the other ranks of the job, if there are any, that this one leaves the program."""
    if "mpi4py.MPI" in sys.modules:
        importlib.import_module("distgnn.comm.leaving").at_exit()


atexit.register(_at_exit)
if "mpi4py.MPI" not in sys.modules:
    with contextlib.suppress(Exception):  # of a damaged installation, which the next import raises
        importlib.import_module("distgnn.comm.launch").warn_of_shared_memory()


def __getattr__(name: str) -> Any:
    if name in __all__ and "scipy" not in sys.modules:
        importlib.import_module("distgnn.comm.launch").check_memory()
    if name in _HOMES:
        return getattr(_imported(_HOMES[name]), name)
    if name in _MODULES:
        return _imported(_MODULES[name])
    raise AttributeError(f"module 'distgnn' has no attribute '{name}'")


def _imported(name: str) -> Any:
    """Import a module of the package. UserError where there is no MPI library."""
    try:
        return importlib.import_module(f"distgnn.{name}")
    except RuntimeError as error:
        launch = importlib.import_module("distgnn.comm.launch")
        if not launch.no_library(error):
            raise
        problem = launch.NO_LIBRARY
    raise importlib.import_module("distgnn.errors").UserError(problem)


def __dir__() -> list[str]:
    return __all__
