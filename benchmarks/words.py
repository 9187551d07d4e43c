"""Bytes that ranks receive in an epoch, by the way to train: whole blocks, needed rows, covers, rdm.

    # and the same under mpiexec -n 8
    mpiexec -n 4 python benchmarks/words.py --out benchmarks/results/words.md

An R-MAT graph in its own order. Bytes are the ledger's, in the second epoch; losses must agree.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

import table
from cases import epochs, rmat
from distgnn import Ledger
from distgnn.layout import written
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, grids, make_grid

HOW = {False: "whole blocks", True: "needed rows", "cover": "covers"}


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--scale", type=int, default=14, help="2^SCALE nodes")
    parser.add_argument("--degree", type=int, default=32)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 128, 128, 32])
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    A = rmat(1 << args.scale, args.degree).astype(np.float32)
    rows, losses = [], []
    for name, sizes, aware in ways(comm.size):
        records = epochs(make_grid(comm, name, sizes), A, name, args.widths, sparsity_aware=aware)
        next(records)
        with Ledger() as ledger:
            losses.append(next(records)["loss"])
        received = np.array(comm.allgather(ledger.bytes)) / 1e6
        busiest, mean = received.max(), received.mean()
        rows.append(f"| `{name}` | {written(sizes)} | {HOW[aware]} | {busiest:.2f} | {mean:.2f} |")
    if comm.rank == 0:
        graph = f"R-MAT, {A.shape[0]:,} nodes, {A.nnz:,} non-zeros, widths {'-'.join(map(str, args.widths))}"
        spread = np.ptp(losses) / losses[0]
        heads = table.columns("algorithm", "grid", "sends", "MB per epoch, busiest rank", "mean")
        agree = f"Losses of the second epoch differ by {spread:.1e} at most."
        lines = [f"{table.heading(args, comm.size)}. {graph}.", "", *heads, *rows, "", agree]
        table.publish(args, "\n".join(lines))


def ways(ranks: int) -> Iterator[tuple[str, dict[str, int], bool | str]]:
    """Give every algorithm on its grids, with needed rows and covers where it has them."""
    for name in ALGORITHMS:
        for sizes in grids(name, ranks):
            single = sizes.get("rows") == 1
            sends = (False, True) if name == "rdm" and single else (False, True, "cover")
            for aware in sends if name in SPARSITY_AWARE and (name == "rdm" or not single) else (False,):
                yield name, sizes, aware


if __name__ == "__main__":
    main()
