"""The algorithms, the grids on which they run, and their places: paper section → file → command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distgnn.arrays import foreign
from distgnn.comm.agree import agree
from distgnn.comm.communicator import Communicator
from distgnn.comm.grid import Grid
from distgnn.comm.session import joined
from distgnn.errors import ArgumentError, check_type, offered
from distgnn.operators.algorithm import Algorithm
from distgnn.operators.block_1d import Block1D
from distgnn.operators.block_15d import Block15D
from distgnn.operators.block_rows import BlockRows
from distgnn.operators.device_matrix import DeviceMatrix
from distgnn.operators.operator import DistSparse
from distgnn.operators.plexus_3d import Plexus3D
from distgnn.operators.rdm import Rdm
from distgnn.operators.sources import BlockSource, MatrixSource, Parts, RootMatrix
from distgnn.operators.split_3d import Split3D
from distgnn.operators.summa_2d import Summa2D

_CLASSES: tuple[type[Algorithm], ...] = Block1D, Block15D, Summa2D, Split3D, Plexus3D, Rdm
ALGORITHMS = {cls.name: cls for cls in _CLASSES}

#: Those that can send only the rows that are needed.
SPARSITY_AWARE = tuple(name for name, cls in ALGORITHMS.items() if issubclass(cls, BlockRows))


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


def _row(cls: type[Algorithm], title: str, paper: str, section: str, options: str) -> Row:
    file = cls.__module__.replace(".", "/") + ".py"
    command = f"distgnn train STORE --algorithm {cls.name} {options}".rstrip()
    return Row(cls.name, title, paper, section, file, ", ".join(cls.axes), command)


def _sampler(
    name: str, title: str, section: str, file: str, options: str, axes: str = "",
    paper: str = "Matrix-based sampling, MLSys'24",
) -> Row:  # fmt: skip
    file = f"distgnn/{file if '/' in file else f'sampling/{file}'}.py"
    return Row(name, title, paper, section, file, axes, f"distgnn train STORE --sampler {options}")


_CAGNET, _AWARE, _PLEXUS = "CAGNET, SC'20", "Sparsity-aware, ICPP'24", "Plexus, 2025"
_RDM = "RDM, IPDPS'23; NeutronTP, VLDB'25"
TABLE = [
    _row(Block1D, "block rows, broadcasts", _CAGNET, "IV-A, Algorithm 1", ""),
    _row(Block1D, "block rows, sent while others are multiplied, A X made once", "MG-GCN, 2021", "4.1-4.4",
         "--recipe plain --overlap --keep-aggregate"),
    _row(Block15D, "block rows in c copies", _CAGNET, "IV-B, Algorithm 2", "--replication 2"),
    _row(Block1D, "block rows, only the rows needed", _AWARE, "4.1, Algorithm 1", "--sparsity-aware"),
    _row(Block15D, "block rows in c copies, only the rows needed", _AWARE, "4.2, Algorithm 2",
         "--replication 2 --sparsity-aware"),
    _row(Summa2D, "SUMMA on pr x pc", _CAGNET, "IV-C, Algorithm 3", "--grid 2x2"),
    _row(Split3D, "SUMMA in layers, reduce-scatter over fibers", _CAGNET, "IV-D", "--grid 2x2x2"),
    _row(Plexus3D, "one plane per matrix, roles rotate by layer", _PLEXUS, "3, 5.1-5.3, Algorithm 1",
         "--grid 2x2x2"),
    _row(Rdm, "features cut by columns while A multiplies", _RDM, "", "--grid 1x4"),
    _row(Rdm, "features cut by columns, only the rows needed", _RDM, "", "--grid 2x2 --sparsity-aware"),
    _sampler("sage", "minibatches: some neighbours of every node", "4.1, Algorithm 1", "sage",
             "sage --fanout 15,10"),
    _sampler("ladies", "minibatches: some neighbours of a whole layer", "4.2, Algorithm 1", "layerwise",
             "ladies --fanout 512,512"),
    _sampler("fastgcn", "minibatches: some of all nodes for every layer", "2.2.2", "layerwise",
             "fastgcn --fanout 512,512"),
    _sampler("saint", "minibatches: subgraphs", "2.2.3", "saint", "saint --fanout 2000"),
    _sampler("shadow", "minibatches: a subgraph for every node", "3", "shadow",
             "shadow --fanout 10,5 --layers 3", paper="ShaDow, NeurIPS'21"),
    _sampler("cluster", "minibatches: subgraphs of parts", "3.2", "cluster",
             "cluster --parts metis:50 --batch-size 2", paper="Cluster-GCN, KDD'19"),
    _sampler("vertices", "minibatches: subgraphs of drawn nodes, by any algorithm", "", "train/vertices",
             "vertices --algorithm 3d", paper="ScaleGNN, 2026"),
    _sampler("spgemm", "minibatches: any sampler, of a graph cut in block rows", "5.2, Algorithm 2", "spgemm",
             "sage --fanout 15,10 --partition-graph --replication 2", "rows, reps"),
]  # fmt: skip


def get(name: str, sparsity_aware: bool | str = False) -> type[Algorithm]:
    """Return the class of an algorithm. ArgumentError: there is none, or it can't be sparsity-aware."""
    if name not in ALGORITHMS:
        raise ArgumentError("algorithm", name, f"no such algorithm; {offered(name, ALGORITHMS)}")
    if sparsity_aware not in (False, True, "auto", "cover"):
        raise ArgumentError("sparsity_aware", sparsity_aware, "expected True, False, auto or cover")
    if sparsity_aware and name not in SPARSITY_AWARE:
        able = f"{', '.join(SPARSITY_AWARE[:-1])} and {SPARSITY_AWARE[-1]}"
        problem = f"algorithm {name} sends whole blocks; only {able} can send rows"
        raise ArgumentError("sparsity_aware", sparsity_aware, problem)
    return ALGORITHMS[name]


def grids(name: str, ranks: int) -> list[dict[str, int]]:
    """List every grid of ``ranks`` processes that an algorithm can use; the first is the default.

    The default receives the fewest words in a product, as far as that can be said without graph and machine.

    Examples:
        >>> grids("2d", 4)
        [{'rows': 2, 'cols': 2}, {'rows': 1, 'cols': 4}, {'rows': 4, 'cols': 1}]
    """
    return get(name).grids(ranks)


def make_grid(
    comm: Communicator, name: str, sizes: Mapping[str, int] | None = None, replication: int | None = None,
    backend: Any = None, wire: str | None = None,
) -> Grid:  # fmt: skip
    """Make the grid for an algorithm on ``comm``, with the sizes asked for or as :func:`grids` has it.

    Collective.

    Args:
        sizes: axis sizes by name, all or some. The grid has its axes in this order, the last one nearest: its
            ranks are next to each other, on one node as far as nodes hold consecutive ranks. Where some are
            named, these share the places that they have in the algorithm's order; the others keep theirs.
        replication: c of 1.5D, whatever the order of the axes.
        wire: the 16 bits in which features and gradients travel and, on a GPU, are multiplied by A, see
            :class:`Grid`.

    Raises:
        ArgumentError: no grid of this many ranks has these sizes; the message lists those that exist. Or
            ranks disagree in an argument.
    """
    check_type("comm", comm, Communicator, "an mpi4py communicator, then the algorithm")
    check_type("sizes", sizes or {}, Mapping, "axis sizes by name, such as {'rows': 4}")
    agree(joined(comm), {"algorithm": name, "grid": sizes, "replication": replication})
    cls, wanted = get(name), dict(sizes or {})
    if replication is not None:
        if "reps" not in cls.axes:
            raise ArgumentError("replication", replication, f"{name} keeps no copies; only 1.5d does")
        if wanted.setdefault("reps", replication) != replication:
            raise ArgumentError("replication", replication, f"the grid has reps={wanted['reps']}; give one")
    for grid in cls.grids(comm.Get_size()):
        if wanted.items() <= grid.items():
            return Grid(comm, backend=backend, wire=wire, **_in_order(grid, list(sizes or {})))
    refused = cls.no_grid(wanted, comm.Get_size())
    if replication is not None and not sizes:
        raise ArgumentError("replication", replication, refused.problem)
    raise refused


def _in_order(grid: Mapping[str, int], named: Sequence[str]) -> dict[str, int]:
    """Return the sizes with the named axes in this order, in the places of the grid that are theirs."""
    left = iter(named)
    order = (next(left) if axis in named else axis for axis in grid)
    return {axis: grid[axis] for axis in order}


def _source(matrix: Any, grid: Grid, root: int | None, dtype: Any, parts: Parts | None) -> BlockSource:
    """Return the block source of a matrix. Collective: one rank may have been given none."""
    if root is not None and root not in range(grid.size):
        raise ArgumentError("root", root, f"expected a rank, 0 to {grid.size - 1}")
    if parts is not None:
        return _in_parts(matrix, grid, root, dtype, parts)
    if grid.size == 1 and grid.backend.on_device and foreign.gpu_of(matrix) is not None:
        return DeviceMatrix(matrix, grid.backend, dtype)
    if root is not None:
        return RootMatrix(grid, matrix, root, dtype)
    with grid.world.together():
        if not hasattr(matrix, "block"):
            foreign.check_place("matrix", matrix, grid.backend)
            return MatrixSource(matrix, dtype)
        if dtype is not None and matrix.dtype != np.dtype(dtype):
            raise ArgumentError("dtype", np.dtype(dtype), f"the source of blocks gives {matrix.dtype}")
        return matrix
    raise AssertionError("unreachable: together() raises")


def _in_parts(matrix: Any, grid: Grid, root: int | None, dtype: Any, parts: Parts) -> BlockSource:
    """Return the source of the matrix in the order of the parts. Collective."""
    with grid.world.together():
        if root in (None, grid.rank):
            matrix = parts.permuted(matrix, dtype)
    source: Any = _source(matrix, grid, root, dtype, None)
    source.row_order = source.col_order = parts.order
    return source


def distribute(
    matrix: Any, grid: Grid, algorithm: str, sparsity_aware: bool | str = False, *, root: int | None = None,
    dtype: Any = None, parts: Any = None, **partitions: Any,
) -> DistSparse:  # fmt: skip
    """Distribute a matrix as an operator. Collective.

    Examples:
        >>> from mpi4py import MPI
        >>> A = distribute(np.array([[0, 2], [1, 0]]), Grid(MPI.COMM_SELF, rows=1), "1d")
        >>> A.nnz, A @ np.array([1.0, 10.0])
        (2, array([20.,  1.]))

    Args:
        matrix: SciPy sparse matrix (equal on all ranks), whose entries of one place add up and whose stored
            zeros are entries, unlike those of a graph of ``fit`` and ``prepare``; or a
            :class:`~distgnn.operators.sources.BlockSource`. Or a matrix on the GPU that the grid computes on,
            sparse or dense, of CuPy or with DLPack: one rank copies it there
            (:class:`~distgnn.operators.device_matrix.DeviceMatrix`), several by way of the host.
        sparsity_aware: True: send only the rows of dense matrices that are needed (``1d``, ``1.5d``); "auto":
            or whole blocks, whichever should be faster between two ranks.
        root: the one rank that has the matrix and sends the others their blocks; what they give, such as
            None, does not matter. It keeps the matrix, which the adjoint or further layers may need.
        dtype: of the values, float32 or float64; default: the shorter of them that holds the matrix's own,
            float64 for integers of 32 and 64 bits, as in SciPy.
        parts: the part of each node, (n,), on all ranks. Nodes are ordered by part, and layouts carry the
            order; block rows of ``1d``, ``1.5d`` and ``rdm`` are the parts, one for each, if there are
            several. The matrix is square, in memory.
        partitions: ``row_parts``, ``col_parts`` and whatever else the algorithm's class takes.

    Raises:
        ArgumentError: no such algorithm, or none that sends rows, or no such root, or parts that are not of
            these nodes; or ranks disagree in an argument, or in the matrix where all hold it.
    """
    check_type("grid", grid, Grid, "a Grid; distribute takes the matrix, the grid, the algorithm")
    vectors = {name: part for name, part in partitions.items() if not hasattr(part, "block")}
    arguments = {"algorithm": algorithm, "sparsity_aware": sparsity_aware, "root": root, "dtype": dtype}
    grid.world.agree(arguments | vectors | {"parts": parts})
    cls = get(algorithm, sparsity_aware)
    rows = grid.shape.get("rows", 1) if issubclass(cls, BlockRows) else 1
    order = None if parts is None else Parts(parts, rows if rows > 1 else None)
    if order is not None and rows > 1:
        partitions = {"row_parts": order.bounds, "col_parts": order.bounds} | partitions
    source = _source(matrix, grid, root, dtype, order)
    if sparsity_aware:
        partitions["sparsity_aware"] = sparsity_aware
    return DistSparse(cls(grid, source, **partitions))
