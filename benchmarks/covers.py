"""Rows that the busiest rank receives in a product: needed rows, and covers, in every order for these ranks.

    distgnn prepare FACEBOOK facebook.dg --split 0.6/0.2/0.2 --order random --partition metis:4,volume:4
    mpiexec -n 4 python benchmarks/covers.py facebook.dg --out benchmarks/results/covers.md

FACEBOOK has the three CSV and JSON files of the page-page graph. Products of 1D with one column, forward and
adjoint; rows are the ledger's words. `rdm` with all of A on each rank sends 2 (P-1)/P of a rank's rows,
whatever the order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("store", type=Path)
    args = parser.parse_args()
    comm, store, rows = MPI.COMM_WORLD, dg.Store(args.store), []
    for name in store.orders:
        parts = store.order(name).partition
        if parts is None or len(parts) == comm.size + 1:
            needed, covered = (received(comm, args.store, name, aware) for aware in (True, "cover"))
            ratio = f"{covered.max() / needed.max():.2f}"
            counts = needed.max(), covered.max(), needed.sum(), covered.sum()
            rows.append(f"| {name} | {' | '.join(f'{count:,}' for count in counts)} | {ratio} |")
    if comm.rank == 0:
        columns = 2 * (comm.size - 1) * store.n / comm.size**2
        graph = f"{store.n:,} nodes, {store.nnz:,} non-zeros. `rdm` with r = 1: {columns:,.0f} rows"
        heads = table.columns(
            "order", "needed rows, busiest", "covers, busiest", "needed rows, all", "covers, all",
            "covers / needed rows, busiest",
        )  # fmt: skip
        table.publish(args, "\n".join([f"{table.heading(args, comm.size)}. {graph}.", "", *heads, *rows]))


def received(comm: MPI.Intracomm, store: Path, order: str, aware: bool | str) -> np.ndarray:
    """Return the rows that each rank receives, of forward and adjoint the more. Collective."""
    grid = dg.Grid(comm, rows=comm.size)
    A, counts = dg.load(store, grid, "1d", order, sparsity_aware=aware), []
    X = np.ones((A.shape[1], 1), np.float32)
    H = dg.scatter(X, A.input_layout)
    for operator in (A, dg.operators.operator.Adjoint(A)):
        with dg.Ledger() as ledger:
            operator @ H
        counts.append(ledger.words)
    grid.free()
    return np.array(comm.allgather(max(counts)))


if __name__ == "__main__":
    main()
