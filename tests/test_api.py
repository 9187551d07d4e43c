"""What users see of the package: names that are there, documented, and errors for swapped arguments."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from distgnn.errors import ArgumentError
from distgnn.nn import GCN
from distgnn.sampling import Features, Ladies
from distgnn.train import Run, Settings

S, X = sp.eye_array(6, format="csr"), np.ones((6, 2))


def modules() -> list[Any]:
    names = [name for _, name, _ in pkgutil.walk_packages(dg.__path__, "distgnn.")]
    return [importlib.import_module(n) for n in names if not n.endswith(("__main__", "_host"))]


def undocumented(thing: Any, name: str) -> Iterator[str]:
    """A public function or class without a docstring, and the public members that a class defines itself;
    those that a base class documents are documented.
    """
    if not (thing.__doc__ or "").strip() or _generated(thing):
        yield name
    for member, value in vars(thing).items() if inspect.isclass(thing) else ():
        value = getattr(value, "__func__", value)
        value = getattr(value, "fget", None) or getattr(value, "func", None) or value
        if (
            not member.startswith("_")
            and inspect.isfunction(value)
            and not inspect.getdoc(getattr(thing, member))
        ):
            yield f"{name}.{member}"


def _generated(thing: Any) -> bool:
    """Dataclasses and named tuples get a docstring that says nothing."""
    return inspect.isclass(thing) and (thing.__doc__ or "").startswith(f"{thing.__name__}(")


@pytest.mark.slow  # imports everything
def test_public_members_have_docstrings() -> None:
    found = []
    for module in modules():
        assert module.__doc__, module.__name__
        for name in getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")]):
            thing = getattr(module, name)
            here = getattr(thing, "__module__", None) == module.__name__
            if here and (inspect.isclass(thing) or inspect.isfunction(thing)):
                found += undocumented(thing, f"{module.__name__}.{name}")
    assert found == []


def test_names_of_the_package_are_reachable() -> None:
    assert {"sampling", "nn", "train", "plan", "store", "distribute", "prepare"} <= set(dg.__all__)
    for name in dg.__all__:
        assert getattr(dg, name) is not None and name in dir(dg)


def swapped() -> dict[str, tuple[str, Callable[[], Any]]]:
    comm = MPI.COMM_SELF
    grid = dg.Grid(comm, backend="numpy", rows=1)
    A = dg.distribute(S, grid, "1d")
    return {
        "scatter": ("layout=Block1D", lambda: dg.scatter(X, A)),
        "scatter turned": ("layout=ndarray", lambda: dg.scatter(A.input_layout, X)),
        "gather": ("Y=Block1D", lambda: dg.gather(A)),
        "DistDense": ("layout=Block1D", lambda: dg.DistDense(X, A, X.shape)),
        "distribute": ("grid=csr_array", lambda: dg.distribute(grid, S, "1d")),
        "distributed": ("matrix=Block1D", lambda: dg.distribute(A, grid, "1d")),
        "Grid": ("comm=int", lambda: dg.Grid(4)),
        "axes": ("rows=float", lambda: dg.Grid(comm, rows=1.0)),
        "make_grid": ("comm=str", lambda: dg.make_grid("1d", comm)),
        "sizes": ("sizes=str", lambda: dg.make_grid(comm, "1d", "rows=1")),
        "load": ("grid=str", lambda: dg.load("graph.dg", "1d", grid)),
        "loaded": ("store=Grid", lambda: dg.load(grid, grid, "1d")),
        "load_features": ("layout=Block1D", lambda: dg.load_features("graph.dg", A)),
        "load_targets": ("layout=Block1D", lambda: dg.store.load_targets("graph.dg", A)),
        "Store": ("path=Grid", lambda: dg.Store(grid)),
        "GCN": ("A=list", lambda: GCN([2, 3], A)),
        "Features": ("H=ndarray", lambda: Features(X)),
        "Ladies": ("graph=csr_array", lambda: Ladies(S, fanout=[3])),
        "Run": ("settings=str", lambda: Run(Settings(), "graph.dg")),
    }


@pytest.mark.parametrize("case", swapped())
def test_an_argument_of_another_type_is_named(case: str) -> None:
    named, call = swapped()[case]
    with pytest.raises(ArgumentError, match="expected") as caught:
        call()
    assert str(caught.value).startswith(f"{named}: ")
