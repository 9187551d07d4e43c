"""Partitioners compared (Table 2 of ``sparsity-aware.txt``): rows of H that are sent in total and by the
busiest part, and what finding the parts costs.

    python benchmarks/partitions.py --out benchmarks/results/partitions.md
    python benchmarks/partitions.py --matrix GRAPH.npz --parts 8 64             # or .mtx: a graph of your own

Graphs: `road` and `mesh`, with few nodes on boundaries; `community`, a degree-corrected planted partition;
`irregular`, one with smaller communities and more edges between them; `rmat`, of Graph500, where a hub's row
can have more non-zeros than a part should; `rmat-mild`, with milder quadrants. Nothing is multiplied: the
volumes are counts. Seconds are processor time on one thread.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

import table
from distgnn import gallery
from distgnn.bench import timing
from distgnn.partition import METHODS, Pattern, Quality, largest_over_mean, measure, partition

UNEVEN = {"size_exponent": 2.0, "degree_exponent": 2.5, "degree": 16, "features": 0, "seed": 1}


def mesh(side: int) -> sp.coo_array:
    path = sp.diags_array([np.ones(side - 1)] * 2, offsets=[-1, 1])
    return sp.kronsum(path, path)


GRAPHS: dict[str, Callable[[], Any]] = {
    "road": lambda: gallery.road(250_000, features=0, seed=1),
    "mesh": lambda: mesh(200),
    "community": lambda: gallery.sbm(10_000, communities=64, mixing=0.05, **UNEVEN),
    "irregular": lambda: gallery.sbm(10_000, communities=50, mixing=0.2, **UNEVEN),
    "rmat": lambda: gallery.rmat(1 << 13, degree=24, features=0, seed=1),
    "rmat-mild": lambda: gallery.rmat(
        1 << 13, degree=24, features=0, seed=1, probabilities=(0.45, 0.15, 0.15, 0.25)
    ),
}

HEADER = """\
| K | method | total, rows | of METIS's | of hypergraph's | busiest sender, rows | of METIS's \
| of hypergraph's | non-zeros, largest / mean | seconds |
|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"""


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), default=list(GRAPHS))
    parser.add_argument("--matrix", type=Path, help="SciPy .npz or Matrix Market .mtx instead of the graphs")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS)[1:])
    parser.add_argument("--parts", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for part vectors; those there are not made again")
    args = parser.parse_args()
    show(f"# {date.today()}: `python benchmarks/partitions.py {shlex.join(sys.argv[1:])}`\n", args.out)
    show(f"{timing.machine()}, one thread.\n", args.out)
    matrices = {args.matrix.name: lambda: read(args.matrix)} if args.matrix else GRAPHS
    for name in matrices if args.matrix else args.graphs:
        graph = matrices[name]()
        pattern = Pattern.of(getattr(graph, "A", graph))
        show(f"## {name}: {pattern.n:,} nodes, {pattern.nnz:,} non-zeros\n\n{HEADER}", args.out)
        for parts in args.parts:
            show("\n".join(compare(name, pattern, parts, args)), args.out)
        show("", args.out)


def show(text: str, out: Path | None) -> None:
    print(text, flush=True)
    if out:
        with out.open("a") as file:
            file.write(text + "\n")


def read(path: Path) -> sp.csr_array:
    return sp.csr_array(sp.load_npz(path) if path.suffix == ".npz" else scipy.io.mmread(path))


def compare(name: str, pattern: Pattern, parts: int, args: argparse.Namespace) -> list[str]:
    """Compare the methods; return a row for each."""
    made: dict[str, tuple[Quality, float]] = {}
    for method in args.methods:
        part, seconds = timed(name, pattern, parts, method, args)
        made[method] = (measure(pattern, part, parts), seconds)
    return [row(parts, method, made) for method in made]


def timed(
    name: str, pattern: Pattern, parts: int, method: str, args: argparse.Namespace
) -> tuple[np.ndarray, float]:
    """Return the part vector and the processor seconds it took to make it, all on one thread."""
    kept = None if args.keep is None else args.keep / f"{name}-{method}-{parts}-{args.seed}.npz"
    if kept is not None and kept.exists():
        with np.load(kept) as found:
            return found["part"], float(found["seconds"])
    before = time.process_time()
    part = partition(pattern, parts, method, args.seed)
    seconds = time.process_time() - before
    if kept is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
        np.savez(kept, part=part, seconds=seconds)
    return part, seconds


def row(parts: int, method: str, made: dict[str, tuple[Quality, float]]) -> str:
    q, seconds = made[method]
    total, busiest = (
        " | ".join(
            f"{rows(q) / max(rows(made[other][0]), 1):.3f}" if other in made else ""
            for other in ("metis", "hypergraph")
        )
        for rows in (lambda q: q.volume, lambda q: q.sends.max())
    )
    return (
        f"| {parts} | {method} | {q.volume:,} | {total} | {q.sends.max():,} | {busiest} | "
        f"{largest_over_mean(q.nonzeros):.3f} | {seconds:.1f} |"
    )


if __name__ == "__main__":
    main()
