"""Epochs with communication hidden behind computation, beside the same epochs one after the other (MG-GCN
sections 4.3 and 6.4).

Run one rank per host, at several rates of their links, each a section of the results:

    mpiexec -n 4 -hosts h1,h2,h3,h4 python benchmarks/overlap.py --name "100 Mbit/s" --out
    benchmarks/results/overlap.md

Epochs alternate between the two, so that whatever else the machine does hits both alike; what is quoted are
medians, of each epoch the rank that took longest. Exposed communication is the time in which a rank waits for
messages or drives MPI. Losses of all epochs must be equal to the last bit.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from datetime import date
from typing import Any

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
import table
from cases import epochs, rmat
from distgnn.bench import timing
from distgnn.operators import make_grid
from distgnn.operators.sources import MatrixSource

TILE = 1 << 12


class UniformBlocks:
    """A symmetric matrix whose entries are all equally likely to be non-zero. Each rank makes the tiles that
    it asks for.
    """

    symmetric = True
    dtype = np.dtype(np.float32)

    def __init__(self, nodes: int, degree: float) -> None:
        self.shape = (nodes, nodes)
        self.degree = degree

    def block(self, rows: tuple[int, int], cols: tuple[int, int]) -> sp.csr_array:
        top, left = rows[0] // TILE, cols[0] // TILE
        tiles = [
            [self._tile(i, j) for j in range(left, -(-cols[1] // TILE))]
            for i in range(top, -(-rows[1] // TILE))
        ]
        whole = sp.block_array(tiles, format="csr")
        first = np.array([top, left]) * TILE
        return sp.csr_array(whole[slice(*np.subtract(rows, first[0])), slice(*np.subtract(cols, first[1]))])

    def _tile(self, i: int, j: int) -> sp.csr_array:
        if i > j:
            return sp.csr_array(self._tile(j, i).T)
        height, width = (min(TILE, self.shape[0] - TILE * k) for k in (i, j))
        density = self.degree / self.shape[0]
        expected = height * width * density
        rng = np.random.default_rng((i, j))
        cells = np.cumsum(rng.geometric(density, int(expected + 6 * expected**0.5 + 10))) - 1
        at, columns = np.divmod(cells[cells < height * width], width)
        values = np.full(len(at), 1 / self.degree, np.float32)
        tile = sp.csr_array(
            (values, columns.astype(np.int32), np.searchsorted(at, np.arange(height + 1))),
            shape=(height, width),
        )
        return tile if i < j else sp.csr_array(sp.triu(tile) + sp.triu(tile, 1).T)


GRAPHS = {
    "rmat": lambda n, degree: MatrixSource(rmat(n, degree).astype(np.float32)),
    "uniform": UniformBlocks,
}


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--graph", choices=list(GRAPHS), default="rmat")
    parser.add_argument("--scale", type=int, default=16, help="log2 of the nodes")
    parser.add_argument(
        "--degree", type=float, default=32, help="non-zeros per node, of rmat before duplicates are merged"
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 128, 128, 32])
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--algorithms", nargs="+", default=["1d", "1.5d"])
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs of each, after one to warm up")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    A = GRAPHS[args.graph](1 << args.scale, args.degree)
    rows = [measure(comm, A, name, args) for name in args.algorithms]
    if comm.rank == 0:
        text = report(rows, comm.size, args)
        table.publish(args, text)


def measure(comm: MPI.Intracomm, A: Any, name: str, args: argparse.Namespace) -> dict[Any, Any]:
    """Measure medians over epochs, with and without overlap, of one algorithm."""
    grid = make_grid(comm, name, {"reps": 2} if name == "1.5d" else None)
    runs = {overlap: timed(grid, A, name, overlap, args) for overlap in (False, True)}
    samples: dict[bool, list[np.ndarray]] = {False: [], True: []}
    losses: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(1 + args.epochs):
        for overlap, run in runs.items():
            loss, measured = next(run)
            slowest = np.array(measured)
            comm.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
            samples[overlap].append(slowest)
            losses[overlap].append(loss)
    assert losses[False] == losses[True], "overlap changes the result"
    medians = {overlap: np.median(found[1:], axis=0) for overlap, found in samples.items()}
    return {"name": f"{name} {'x'.join(map(str, grid.shape.values()))}"} | medians


def timed(
    grid: dg.Grid, A: Any, name: str, overlap: bool, args: argparse.Namespace
) -> Iterator[tuple[float, list[float]]]:
    """Train without end; yields the loss and (seconds, exposed communication, other than that, SpMM, words)
    of an epoch.
    """
    records = epochs(grid, A, name, args.widths, dropout=args.dropout)
    while True:
        grid.overlap = overlap
        grid.world.barrier()
        record = next(records)
        exposed = record["phases"]["comm"]
        spmm = record["phases"]["spmm"]
        yield (
            record["loss"],
            [record["seconds"], exposed, record["seconds"] - exposed, spmm, float(record["words"])],
        )


def report(rows: list[dict[Any, Any]], ranks: int, args: argparse.Namespace) -> str:
    """Write the results as Markdown."""
    widths = "-".join(map(str, args.widths))
    lines = [
        f"## {args.name or 'no name'}: {ranks} ranks, one per host ({date.today()})",
        "",
        f"`python benchmarks/overlap.py {shlex.join(sys.argv[1:])}`; {timing.machine()}. {args.graph} "
        f"2^{args.scale}, about "
        f"{args.degree:g} non-zeros per node, widths {widths}, dropout {args.dropout}; medians of "
        f"{args.epochs} epochs in turns, "
        "of the slowest rank.",
        "",
        "| algorithm | MB per rank | computation | of it SpMM | communication | one after the other | "
        "overlapped | ratio "
        "| bound | exposed | of communication |",
        "|---|" + "---:|" * 10,
    ]
    for row in rows:
        (plain, communication, computation, spmm, words), (seconds, exposed, *_) = row[False], row[True]
        bound = (communication + computation) / max(communication, computation)
        lines.append(
            f"| {row['name']} | {4e-6 * words:.1f} | {computation:.3f} s | {spmm:.3f} s | "
            f"{communication:.3f} s | {plain:.3f} s "
            f"| {seconds:.3f} s | {plain / seconds:.2f} | {bound:.2f} | {exposed:.3f} s | "
            f"{exposed / communication:.0%} |"
        )
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    main()
