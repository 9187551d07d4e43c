"""The distributed products, one file each, and the table that maps paper section → file → command line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError
from distgnn.operators.block_1d import Block1D
from distgnn.operators.block_15d import Block15D
from distgnn.operators.block_rows import SparsityAwareRows
from distgnn.operators.operator import DistSparse
from distgnn.operators.plexus_3d import Plexus3D
from distgnn.operators.sparsity_aware_1d import SparsityAware1D
from distgnn.operators.sparsity_aware_15d import SparsityAware15D
from distgnn.operators.split_3d import Split3D
from distgnn.operators.summa_2d import Summa2D

ALGORITHMS: dict[str, type[DistSparse]] = {
    cls.name: cls for cls in (Block1D, Block15D, Summa2D, Split3D, Plexus3D)
}  # fmt: skip

#: Of these, what sends only the rows that are needed.
SPARSITY_AWARE: dict[str, type[SparsityAwareRows]] = {
    cls.name: cls for cls in (SparsityAware1D, SparsityAware15D)
}


@dataclass(frozen=True)
class Row:
    """One line of the table of algorithms."""

    name: str
    title: str
    paper: str
    section: str
    file: str
    axes: str
    command: str


def _row(cls: type[DistSparse], title: str, paper: str, section: str, options: str) -> Row:
    file = cls.__module__.replace(".", "/") + ".py"
    command = f"distgnn train STORE --algorithm {cls.name} {options}".rstrip()
    return Row(cls.name, title, paper, section, file, ", ".join(cls.axes), command)


def _sampler(name: str, title: str, section: str, file: str, options: str, axes: str = "") -> Row:
    command = f"distgnn train STORE --sampler {options}"
    return Row(
        name, title, "Matrix-based sampling, MLSys'24", section, f"distgnn/sampling/{file}.py", axes, command
    )


_CAGNET, _AWARE = "CAGNET, SC'20", "Sparsity-aware, ICPP'24"
TABLE = [
    _row(Block1D, "block rows, broadcasts", _CAGNET, "IV-A, Algorithm 1", ""),
    _row(Block15D, "block rows in c copies", _CAGNET, "IV-B, Algorithm 2", "--replication 2"),
    _row(SparsityAware1D, "block rows, only the rows needed", _AWARE, "4.1, Algorithm 1", "--sparsity-aware"),
    _row(SparsityAware15D, "the same in c copies", _AWARE, "4.2, Algorithm 2", "--replication 2 --sparsity-aware"),
    _row(Summa2D, "SUMMA on pr x pc", _CAGNET, "IV-C, Algorithm 3", "--grid 2x2"),
    _row(Split3D, "SUMMA in layers, reduce-scatter over fibers", _CAGNET, "IV-D", "--grid 2x2x2"),
    _row(Plexus3D, "one plane per matrix, roles rotate by layer", "Plexus, 2025", "3, 5.1-5.3, Algorithm 1", "--grid 2x2x2"),
    _sampler("sage", "minibatches: some neighbours of every node", "4.1, Algorithm 1", "sage", "sage --fanout 15,10"),
    _sampler("ladies", "minibatches: some nodes of every layer", "4.2, Algorithm 1", "layerwise", "ladies --fanout 512,512"),
    _sampler("fastgcn", "the same, from one distribution", "2.2.2", "layerwise", "fastgcn --fanout 512,512"),
    _sampler("saint", "minibatches: subgraphs", "2.2.3", "saint", "saint --fanout 2000"),
    _sampler(
        "spgemm", "any of them from a graph cut in block rows", "5.2, Algorithm 2", "spgemm",
        "sage --fanout 15,10 --partition-graph --replication 2", "rows, reps",
    ),
]  # fmt: skip


def get(name: str) -> type[DistSparse]:
    """The class of an algorithm.

    Raises:
        UserError: there is no such algorithm.
    """
    if name not in ALGORITHMS:
        raise ArgumentError("algorithm", name, f"no such algorithm; there is {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def grids(name: str, ranks: int) -> list[dict[str, int]]:
    """Every grid of ``ranks`` processes that an algorithm can use, the one to take by default first."""
    return get(name).grids(ranks)


def make_grid(
    comm: MPI.Intracomm,
    name: str,
    sizes: Mapping[str, int] | None = None,
    replication: int | None = None,
    backend: Any = None,
) -> Grid:
    """The grid for an algorithm on ``comm``, with the sizes asked for or the best ones. Collective.

    Args:
        sizes: axis sizes by name, all or some.
        replication: c of 1.5D; the same as ``sizes={"reps": c}``.

    Raises:
        UserError: no grid of this many ranks has these sizes; the message lists those that exist.
    """
    possible = grids(name, comm.Get_size())
    wanted = dict(sizes or {})
    if replication is not None:
        if "reps" not in get(name).axes:
            problem = f"algorithm {name} keeps no copies; only 1.5d does"
            raise ArgumentError("replication", replication, problem)
        if wanted.get("reps", replication) != replication:
            problem = f"the grid has reps={wanted['reps']}; give one of them"
            raise ArgumentError("replication", replication, problem)
        wanted["reps"] = replication
    unknown = set(wanted) - set(get(name).axes)
    if unknown:
        given = ",".join(f"{axis}={size}" for axis, size in wanted.items())
        axes = f"{', '.join(get(name).axes)}, not {', '.join(sorted(unknown))}"
        raise ArgumentError("grid", given, f"algorithm {name} has the axes {axes}")
    for grid in possible:
        if all(grid[axis] == size for axis, size in wanted.items()):
            return Grid(comm, backend=backend, **grid)
    raise get(name).no_grid(" ".join(f"{axis}={size}" for axis, size in wanted.items()), comm.Get_size())


def distribute(
    matrix: Any, grid: Grid, algorithm: str, sparsity_aware: bool | str = False, **partitions: Any
) -> DistSparse:
    """A matrix that every rank holds, or any block source, as a distributed operator. Collective.

    Args:
        matrix: SciPy sparse matrix (equal on all ranks) or a :class:`~distgnn.matrix.BlockSource`.
        sparsity_aware: True: send only the rows of dense matrices that are needed (``1d``, ``1.5d``); "auto":
            or whole blocks, from each rank to each other what is estimated to be faster.
        partitions: ``row_parts``, ``col_parts`` and whatever else the algorithm's class takes.

    Raises:
        UserError: no such algorithm, or none that sends rows.
    """
    from distgnn.operators.sources import MatrixSource

    cls = operator(algorithm, sparsity_aware)
    source = matrix if hasattr(matrix, "block") else MatrixSource(matrix)
    return cls(grid, source, **partitions)


def operator(algorithm: str, sparsity_aware: bool | str = False) -> Callable[..., DistSparse]:
    """What makes the operator of an algorithm from a grid, a block source and partition vectors (see
    :func:`distribute`).

    Raises:
        UserError: no such algorithm, or none that sends rows.
    """
    if sparsity_aware not in (False, True, "auto"):
        raise ArgumentError("sparsity_aware", sparsity_aware, "expected auto, True or False")
    if not sparsity_aware:
        return get(algorithm)
    if algorithm not in SPARSITY_AWARE:
        able = " and ".join(SPARSITY_AWARE)
        problem = f"algorithm {get(algorithm).name} sends whole blocks; only {able} can send rows"
        raise ArgumentError("sparsity_aware", sparsity_aware, problem)
    return functools.partial(SPARSITY_AWARE[algorithm], auto=sparsity_aware == "auto")
