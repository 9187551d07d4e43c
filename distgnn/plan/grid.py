"""The grid of an algorithm: planned for a graph where there is one, else by the algorithm's own rule."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mpi4py import MPI

from distgnn import operators
from distgnn.comm.agree import agree, together
from distgnn.comm.grid import Grid
from distgnn.comm.session import task
from distgnn.errors import ArgumentError, check_type
from distgnn.operators.sources import MatrixSource
from distgnn.plan.choices import plan
from distgnn.plan.dry.graphs import Graph
from distgnn.plan.machine import Machine, read
from distgnn.plan.probe import probe
from distgnn.plan.settle import EXACT, on_first_rank, settle_together
from distgnn.store.read.store import Store
from distgnn.train.resolve import to_plan
from distgnn.train.settings import Settings

EXPECTED = "a store or its path, a SciPy matrix, a plan.Graph, or axis sizes by name"


def make_grid(
    comm: MPI.Intracomm, name: str, graph: Any = None, replication: int | None = None, backend: Any = None, *,
    sizes: Mapping[str, int] | None = None, settings: Settings | None = None,
    machine: Machine | str | os.PathLike[str] | None = None, wire: str | None = None,
) -> Grid:  # fmt: skip
    """Make the grid of an algorithm on all ranks of ``comm``. Collective.

    With a graph, a plan chooses among the grids of this many ranks, and the order of their axes, as for
    ``distgnn train --algorithm NAME``: the grid on which an epoch is predicted to be shortest. Without one,
    the grid is the first of ``operators.grids``, which receives the fewest words as far as that can be said
    without a graph and a machine. The two may differ.

    Args:
        name: of the algorithm.
        graph: a store or its path; a square SciPy matrix that all ranks have, whose features and classes are
            taken to be as many as the first hidden width of ``settings``; a :class:`~distgnn.plan.Graph`; or,
            in place of a graph, the ``sizes``.
        replication: c of 1.5D, which the grid keeps.
        backend: of the grid's arrays; default: a GPU where there is one.
        sizes: axis sizes by name, all or some, which the grid keeps; their order is explained at
            ``operators.make_grid``.
        settings: of the network and the training that are planned; default: those of ``distgnn train``.
        machine: to plan for; default: measured, see :func:`~distgnn.plan.probe.probe`.
        wire: "bfloat16" or "float16": features and gradients travel in 16 bits, see :class:`~distgnn.Grid`.

    Raises:
        UserError: no grid of this many ranks has these sizes; a store, matrix or machine that can't be
            planned; no way to train that fits into the machine's memory; or ranks that disagree.
    """
    if isinstance(graph, Mapping):
        if sizes is not None:
            raise ArgumentError("sizes", sizes, "is given twice; give a graph before it, or None")
        graph, sizes = None, graph
    if graph is not None:
        check_type("comm", comm, MPI.Comm, "an mpi4py communicator, then the algorithm")
    with task(comm) as comm:
        if graph is None:
            return operators.make_grid(comm, name, sizes, replication, backend, wire)
        kind = {"graph": getattr(graph, "shape", type(graph).__name__)}
        agree(comm, {"algorithm": name, "grid": sizes, "replication": replication} | kind)
        name_of_backend = backend if isinstance(backend, str) else getattr(backend, "name", None)
        given = {"grid": sizes, "replication": replication, "backend": name_of_backend, "wire": wire}
        asked = replace(settings or Settings(), algorithm=name, **given)  # type: ignore[arg-type]
        if isinstance(graph, (Store, str, os.PathLike)):
            with together(comm):
                store = graph if isinstance(graph, Store) else Store(graph)
            chosen = settle_together(comm, asked, store, machine).settings
        else:
            chosen = _settled(comm, asked, graph, machine)
        if isinstance(chosen.grid, Mapping):
            sizes, replication = chosen.grid, None
        return operators.make_grid(comm, name, sizes, replication, backend, wire)


def _settled(comm: MPI.Intracomm, asked: Settings, graph: Any, machine: Any) -> Settings:
    """Plan the grid for a graph in memory on the first rank, for all ranks. Collective."""
    ranks = comm.Get_size()
    agree(comm, asked.shared() | {"machine": getattr(machine, "name", machine)})
    with together(comm):
        on = None if machine is None else read(machine)
        known = graph if isinstance(graph, Graph) else _of_matrix(graph, asked)
    wanted = to_plan(asked, ranks)
    if wanted is None:
        return asked
    on = on or probe(comm, asked.backend).machine
    way = on_first_rank(comm, lambda: plan(wanted, known, ranks, on, complete=False).best.way)
    return way.settings(asked)


def _of_matrix(matrix: Any, asked: Settings) -> Graph:
    """Return the graph of a matrix in memory, itself or, where it is large, as evenly filled."""
    check_type("graph", matrix, object if hasattr(matrix, "shape") else (), EXPECTED)
    source = matrix if hasattr(matrix, "block") else MatrixSource(matrix, asked.dtype)
    (n, columns), width = source.shape, next(iter(asked.hidden), 1)
    if n != columns:
        raise ArgumentError("graph", f"{n} x {columns}", "a matrix to plan for must be square")
    nnz = int(source.block((0, n), (0, n)).nnz)
    even = Graph.of_size(n, nnz, width, width, symmetric=source.symmetric, dtype=asked.dtype)
    return even if nnz > EXACT else replace(even, source=source)
