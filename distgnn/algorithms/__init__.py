"""The distributed products, one file each, and the table that maps paper section → file → command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from distgnn.algorithms.block_1d import Block1D
from distgnn.algorithms.block_15d import Block15D
from distgnn.algorithms.plexus_3d import Plexus3D
from distgnn.algorithms.split_3d import Split3D
from distgnn.algorithms.summa_2d import Summa2D
from distgnn.errors import UserError
from distgnn.grid import Grid
from distgnn.matrix import DistSparse

ALGORITHMS: dict[str, type[DistSparse]] = {
    cls.name: cls for cls in (Block1D, Block15D, Summa2D, Split3D, Plexus3D)
}  # fmt: skip


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


def _row(name: str, title: str, paper: str, section: str, grid: str) -> Row:
    cls = ALGORITHMS[name]
    file = cls.__module__.replace(".", "/") + ".py"
    return Row(name, title, paper, section, file, ", ".join(cls.axes), f"distgnn train STORE --algorithm {name} {grid}".rstrip())


TABLE = [
    _row("1d", "block rows, broadcasts", "CAGNET, SC'20", "IV-A, Algorithm 1", ""),
    _row("1.5d", "block rows in c copies", "CAGNET, SC'20", "IV-B, Algorithm 2", "--replication 2"),
    _row("2d", "SUMMA on pr x pc", "CAGNET, SC'20", "IV-C, Algorithm 3", "--grid 2x2"),
    _row("3d-split", "SUMMA in layers, reduce-scatter over fibers", "CAGNET, SC'20", "IV-D", "--grid 2x2x2"),
    _row("3d", "one plane per matrix, roles rotate by layer", "Plexus, 2025", "3.1-3.2, Algorithm 1", "--grid 2x2x2"),
]


def get(name: str) -> type[DistSparse]:
    """The class of an algorithm.

    Raises:
        UserError: there is no such algorithm.
    """
    if name not in ALGORITHMS:
        raise UserError(f"--algorithm {name}: no such algorithm; there is {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def grids(name: str, ranks: int) -> list[dict[str, int]]:
    """Every grid of ``ranks`` processes that an algorithm can use, the one to take by default first."""
    return get(name).grids(ranks)


def make_grid(
    comm: MPI.Intracomm, name: str, sizes: Mapping[str, int] | None = None, replication: int | None = None, backend: Any = None
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
            raise UserError(f"--replication {replication}: algorithm {name} keeps no copies; only 1.5d does")
        if wanted.get("reps", replication) != replication:
            raise UserError(f"--replication {replication}: --grid says reps={wanted['reps']}; give one of them")
        wanted["reps"] = replication
    unknown = set(wanted) - set(get(name).axes)
    if unknown:
        raise UserError(f"--grid: algorithm {name} has the axes {', '.join(get(name).axes)}, not {', '.join(sorted(unknown))}")
    for grid in possible:
        if all(grid[axis] == size for axis, size in wanted.items()):
            return Grid(comm, backend=backend, **grid)
    raise get(name).no_grid(" ".join(f"{axis}={size}" for axis, size in wanted.items()), comm.Get_size())


def distribute(matrix: Any, grid: Grid, algorithm: str, **partitions: Any) -> DistSparse:
    """A matrix that every rank holds, or any block source, as a distributed operator. Collective.

    Args:
        matrix: SciPy sparse matrix (equal on all ranks) or a :class:`~distgnn.matrix.BlockSource`.
        partitions: ``row_parts``, ``col_parts`` and whatever else the algorithm's class takes.
    """
    from distgnn.matrix import MatrixSource

    source = matrix if hasattr(matrix, "block") else MatrixSource(matrix)
    return get(algorithm)(grid, source, **partitions)  # type: ignore[call-arg]
