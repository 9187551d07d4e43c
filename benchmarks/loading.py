"""Bytes that ranks read of a store and hold of A, counted on ranks that take turns in one process.

    distgnn generate rmat /tmp/graph --nodes 250000 --degree 8 --features 64
    distgnn prepare /tmp/graph /tmp/graph.dg --order random,original
    python benchmarks/loading.py /tmp/graph.dg --ranks 4,16,64,256 --out benchmarks/results/loading.md

Each rank is a node of its own. A: what a rank holds of it, and the bytes of the chunks that it reads, both
in the mean, beside 8 bytes for each of its entries and 4 for each of its rows, and beside what is read of its
rows and columns in one window. Features, in the order of the files and in another: what the busiest rank
reads, and the bytes that all ranks read by those that they hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import distgnn as dg
import table
from distgnn import ledger, operators
from distgnn.plan.dry.ranks import run_all
from distgnn.store import Store, load, load_features

WAYS = ("1d", False), ("1d", True), ("1d", "cover"), ("1.5d", False), ("2d", False), ("3d", False)
HEADS = (
    "P", "algorithm", "A: own MiB", "held", "read", "read / one window", "features: own MiB",
    "busiest reads", "all / own", "other order: busiest", "all / own",
)  # fmt: skip


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--ranks", default="4,16,64")
    parser.add_argument("--algorithms", default="1d,1.5d,2d,3d")
    args = parser.parse_args()
    store = Store(args.store)
    graph = f"{store.n:,} nodes, {store.nnz:,} non-zeros, {store.width} features"
    ways = [way for way in WAYS if way[0] in args.algorithms.split(",")]
    rows = [row(args.store, P, *way) for P in map(int, args.ranks.split(",")) for way in ways]
    table.publish(args, "\n".join([f"{table.heading(args)}. {graph}.", "", *table.columns(*HEADS), *rows]))


def row(path: Path, P: int, algorithm: str, aware: Any) -> str:
    """Load with each order on so many ranks, and return the row of the table."""
    first, other = Store(path).orders[:2]
    given = run_all(P, lambda comm: counted(comm, path, algorithm, aware, first), node=1)
    own, held, read, window, block, features = np.array(given).T / 2**20
    again = run_all(P, lambda comm: counted(comm, path, algorithm, aware, other), node=1)
    moved = np.array(again)[:, -1] / 2**20
    ends = [f"{one.max():.2f} | {one.sum() / block.sum():.2f}" for one in (features, moved)]
    name = f"{algorithm} {'needed' if aware is True else aware or ''}".rstrip()
    entries = f"{own.mean():.2f} | {held.mean():.2f} | {read.mean():.2f} | {read.sum() / window.sum():.2f}"
    return f"| {P} | {name} | {entries} | {block.mean():.2f} | {' | '.join(ends)} |"


def counted(comm: Any, path: Path, algorithm: str, aware: Any, order: str) -> tuple[int, ...]:
    """Return bytes of A: own, held, read, and read of one window; of features: own and read."""
    grid = operators.make_grid(comm, algorithm, backend="numpy")
    store = Store(path, grid.world)
    before = ledger.books().held["adjacency"]
    with dg.Ledger() as entries:
        A = load(store, grid, algorithm, order, sparsity_aware=aware)
    held = ledger.books().held["adjacency"] - before
    rows, columns = spanned(A)
    with dg.Ledger() as window:
        store.order(order).block(rows, columns)
    with dg.Ledger() as features:
        X = load_features(store, A.input_layout)
    own = 8 * grid.nonzeros + 4 * (rows[1] - rows[0])
    read = [sum(one.loaded.values()) for one in (entries, window, features)]
    return own, held, *read[:2], X.block.nbytes, read[2]


def spanned(A: Any) -> tuple[Any, Any]:
    """Return the rows and the columns from the first to the last of a rank's blocks."""
    if A.name in ("1d", "1.5d", "rdm"):
        windows = A.algorithm._windows()
        return windows[0][0], (windows[0][1][0], windows[-1][1][1])
    if A.name == "3d":
        return A.algorithm.plane.window
    ends = [end for k in A.algorithm.plane.A.mine for end in A.algorithm.plane.panels[k].columns]
    return A.output_layout.row_range, (min(ends, default=0), max(ends, default=0))


if __name__ == "__main__":
    main()
