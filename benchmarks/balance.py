"""Balance of a grid of shards: original order, one random permutation, two (Plexus section 5.1, Table 3).

    python benchmarks/balance.py --out benchmarks/results/balance.md

Every graph goes the way of any other: generated into a folder, prepared in three orders, and described as
`distgnn info --shards` does. The folder is temporary, and made beneath ``--scratch``.

Two columns say what permutations cannot do. One, of rows and columns alike, leaves the diagonal where it is:
with G x G shards, n nodes and d neighbours each, the n self-loops lie in the G diagonal blocks, n/G in each,
and if everything else is spread evenly max/mean is (d + G) / (d + 1). And none cuts a row: the G shards that
share the row of the node with the highest degree, D, get D/G entries from it, which is G D / nnz of the mean
shard.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import table
from distgnn import gallery
from distgnn.store import Store, prepare
from distgnn.store.importers import open_source
from distgnn.store.read.inspect import describe
from distgnn.store.write.arguments import parse_shards

BARE = {"features": 0, "classes": 0}
MILD = (0.45, 0.22, 0.22, 0.11)  # R-MAT's quadrants without a hub
ORDERS = ("original", "random", "double")
GRAPHS: dict[str, tuple[str, Callable[[], gallery.GeneratedGraph]]] = {
    "road": ("road map, tiles of 32 x 32 cells", lambda: gallery.RoadMap(4_000_000, **BARE)),
    "sbm": (
        "planted partition, 16 communities in a row",
        lambda: gallery.PlantedPartition(1 << 20, degree=16, scramble=False, **BARE),
    ),
    "sbm-power": (
        "planted partition, power-law degrees and sizes",
        lambda: gallery.PlantedPartition(
            1 << 20, degree=16, degree_exponent=2.5, size_exponent=2.5, scramble=False, **BARE
        ),
    ),
    "rmat-20": ("R-MAT, scale 20", lambda: gallery.RMat(1 << 20, degree=16, scramble=False, **BARE)),
    "rmat-22": ("R-MAT, scale 22", lambda: gallery.RMat(1 << 22, degree=16, scramble=False, **BARE)),
    "rmat-24": ("R-MAT, scale 24", lambda: gallery.RMat(1 << 24, degree=4, scramble=False, **BARE)),
    "rmat-24-even": (
        "R-MAT, scale 24, quadrants 0.45, 0.22, 0.22, 0.11",
        lambda: gallery.RMat(1 << 24, degree=4, probabilities=MILD, scramble=False, **BARE),
    ),
}  # fmt: skip


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--grid", type=parse_shards, default=(8, 8))
    parser.add_argument(
        "--scratch",
        type=Path,
        help="where to make graphs and stores (default: the system's temporary folder)",
    )
    args = parser.parse_args()
    lines = [
        table.heading(args)
        + f". Non-zeros of the fullest of {args.grid[0]} x {args.grid[1]} shards over their mean; self-loops "
        "added. `double`: even layers / odd layers.",
        "",
        *table.columns(
            "graph",
            "nodes",
            "non-zeros",
            "original",
            "random",
            "with self-loops only uneven",
            "double",
            "largest row / mean shard",
        ),
    ]
    for name in args.graphs:
        lines.append(row(name, args.grid, args.scratch))
    text = "\n".join(lines) + "\n\n"
    table.publish(args, text)


def row(name: str, grid: tuple[int, int], scratch: Path | None) -> str:
    """Return a line of the table."""
    title, make = GRAPHS[name]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        gallery.write(make(), Path(folder) / "graph")
        prepare(open_source(Path(folder) / "graph"), Path(folder) / "graph.dg", order=ORDERS, shards=grid)
        facts = describe(Store(Path(folder) / "graph.dg"), cuts=[grid])
    print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    original, random, double = (facts["orders"][order] for order in ORDERS)
    n, nnz = facts["n"], facts["nnz"]
    even, odd = (version["cuts"][0]["balance"] for version in double["versions"])
    return (
        f"| {title} | {n:,} | {nnz:,} | {original['cuts'][0]['balance']:.2f} | "
        f"{random['cuts'][0]['balance']:.2f} "
        f"| {one_permutation(n, nnz, grid):.2f} | {even:.4f} / {odd:.4f} | "
        f"{max(grid) * facts['degrees']['max'] / nnz:.2%} |"
    )


def one_permutation(n: int, nnz: int, grid: tuple[int, int]) -> float:
    """Return max/mean of the diagonal blocks when all but the n self-loops is spread evenly over a square
    grid.
    """
    blocks = grid[0] * grid[1]
    return ((nnz - n) / blocks + n / max(grid)) / (nnz / blocks)


if __name__ == "__main__":
    main()
