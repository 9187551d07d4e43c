"""Public names of the package: present, documented, with errors for swapped arguments."""

from __future__ import annotations

import doctest
import importlib
import inspect
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


def public() -> Iterator[tuple[str, Any]]:
    """Yield the classes and functions that the package and its public rooms name."""
    for name in dg.__all__:
        thing = getattr(dg, name)
        if not inspect.ismodule(thing):
            yield f"distgnn.{name}", thing
            continue
        assert thing.__doc__, name
        own = [name for name, value in vars(thing).items() if _of(value) == thing.__name__ and name[0] != "_"]
        for inner in getattr(thing, "__all__", own):
            yield f"{thing.__name__}.{inner}", getattr(thing, inner)


def _of(value: Any) -> str | None:
    return getattr(value, "__module__", None)


def undocumented(name: str, thing: Any) -> Iterator[str]:
    """Yield the thing itself, or its public members, if they have no docstring."""
    if inspect.isfunction(thing) and not thing.__doc__:
        yield name
    if not inspect.isclass(thing) or not thing.__module__.startswith("distgnn"):
        return
    if not thing.__doc__ or thing.__doc__.startswith(f"{thing.__name__}("):  # what dataclasses make up
        yield name
    for base in thing.__mro__:
        for member, value in vars(base).items() if base.__module__.startswith("distgnn") else ():
            function = getattr(value, "__func__", getattr(value, "fget", getattr(value, "func", value)))
            if member[0] != "_" and inspect.isfunction(function):
                if not inspect.getdoc(getattr(thing, member)):
                    yield f"{name}.{member}"


def test_public_members_have_docstrings() -> None:
    found = dict(public())
    assert {"distgnn.DistDense", "distgnn.sampling.Ladies"} <= set(found)
    assert [lacking for name, thing in found.items() for lacking in undocumented(name, thing)] == []


def test_examples_in_docstrings_hold() -> None:
    """Examples that need no files."""
    runner, finder = doctest.DocTestRunner(), doctest.DocTestFinder()
    for name in ("comm.grid", "layout.blocks", "ledger", "operators.registry"):
        for example in finder.find(importlib.import_module(f"distgnn.{name}"), globs=None):
            example.globs |= {"np": np, "MPI": MPI}
            runner.run(example)
    assert runner.summarize(verbose=False) == (0, runner.tries) and runner.tries >= 8


def test_a_member_without_docstring_is_found() -> None:
    class Some:
        """Has one."""

        __module__ = "distgnn"

        @property
        def lacks(self) -> int:
            return 1

    assert list(undocumented("Some", Some)) == ["Some.lacks"]


def test_names_of_the_package_are_reachable() -> None:
    assert {"sampling", "nn", "train", "plan", "store", "distribute", "prepare"} <= set(dg.__all__)
    for name in dg.__all__:
        assert getattr(dg, name) is not None and name in dir(dg)


def swapped() -> dict[str, tuple[str, Callable[[], Any]]]:
    comm = MPI.COMM_SELF
    grid = dg.Grid(comm, backend="numpy", rows=1)
    A = dg.distribute(S, grid, "1d")
    return {
        "scatter": ("layout=DistSparse", lambda: dg.scatter(X, A)),
        "scatter turned": ("layout=ndarray", lambda: dg.scatter(A.input_layout, X)),
        "gather": ("Y=DistSparse", lambda: dg.gather(A)),
        "DistDense": ("layout=DistSparse", lambda: dg.DistDense(X, A, X.shape)),
        "distribute": ("grid=csr_array", lambda: dg.distribute(grid, S, "1d")),
        "distributed": ("matrix=DistSparse", lambda: dg.distribute(A, grid, "1d")),
        "Grid": ("comm=int", lambda: dg.Grid(4)),
        "axes": ("rows=float", lambda: dg.Grid(comm, rows=1.0)),
        "make_grid": ("comm=str", lambda: dg.make_grid("1d", comm)),
        "sizes": ("sizes=str", lambda: dg.make_grid(comm, "1d", sizes="rows=1")),
        "graph": ("graph=int", lambda: dg.make_grid(comm, "1d", 1)),
        "load": ("grid=str", lambda: dg.load("graph.dg", "1d", grid)),
        "loaded": ("store=Grid", lambda: dg.load(grid, grid, "1d")),
        "load_features": ("layout=DistSparse", lambda: dg.load_features("graph.dg", A)),
        "load_targets": ("layout=DistSparse", lambda: dg.store.load_targets("graph.dg", A)),
        "Store": ("path=Grid", lambda: dg.Store(grid)),
        "team": ("team=Grid", lambda: dg.Store("graph.dg", grid)),
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
