"""distgnn: distributed sparse linear algebra for graph neural networks, on MPI.

import distgnn as dg
grid = dg.Grid(comm, rows=4, reps=2)
A = dg.load("reddit.dg", grid, algorithm="1.5d")
H = dg.scatter(X, A.input_layout)
Y = A @ H
G = A.T @ Y

Names are imported on first use, so that `import distgnn` needs neither MPI nor a GPU. ``__init__.pyi`` lists
them, for type checkers too: a line there makes a name public.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import sys
from typing import Any

from distgnn import lazy

__version__ = "0.1.0"

_named, _, _public = lazy.names(__name__, __file__)
__all__ = ["__version__", *_public]


def _at_exit() -> None:
    """Tell the other ranks of the job, if there are any, that this one leaves the program."""
    if "mpi4py.MPI" in sys.modules:
        importlib.import_module("distgnn.comm.leaving").at_exit()


atexit.register(_at_exit)
if "mpi4py.MPI" not in sys.modules:
    with contextlib.suppress(Exception):  # of a damaged installation, which the next import raises
        importlib.import_module("distgnn.comm.launch").warn_of_shared_memory()


def __getattr__(name: str) -> Any:
    if name in _public and "scipy" not in sys.modules:
        importlib.import_module("distgnn.comm.launch").check_memory()
    try:
        return _named(name)
    except RuntimeError as error:
        launch = importlib.import_module("distgnn.comm.launch")
        if not launch.no_library(error):
            raise
        problem = launch.NO_LIBRARY
    raise importlib.import_module("distgnn.errors").UserError(problem)


def __dir__() -> list[str]:
    return __all__
