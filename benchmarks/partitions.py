"""Partitioners compared (Table 2 of ``sparsity-aware.txt``): what is sent on average and at most, and what
finding out costs.

    python benchmarks/partitions.py --out benchmarks/results/partitions.md
    python benchmarks/partitions.py --matrix GRAPH.npz --parts 8 64             # or .mtx: a graph of your own

Graphs: `irregular`, a degree-corrected planted partition whose communities and degrees follow power laws;
`rmat`, of Graph500, where a hub's row can have more non-zeros than a part should; `rmat-large`, of Graph500,
too, with four times the nodes and fewer non-zeros in a row, and `rmat-mild`, with milder quadrants, where
none has; `road`, a regular one. Nothing is multiplied: the volumes are counts, a row of H is `--width`
float32 words.
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

from distgnn import gallery
from distgnn.bench import table, timing
from distgnn.partition import METHODS, Pattern, Quality, largest_over_mean, measure, partition

GRAPHS: dict[str, Callable[[], Any]] = {
    "irregular": lambda: gallery.sbm(
        100_000,
        communities=400,
        size_exponent=2.0,
        degree_exponent=2.5,
        degree=16,
        mixing=0.2,
        features=0,
        seed=1,
    ),
    "rmat": lambda: gallery.rmat(1 << 16, degree=28, features=0, seed=1),
    "rmat-large": lambda: gallery.rmat(1 << 18, features=0, seed=1),
    "rmat-mild": lambda: gallery.rmat(
        1 << 16, degree=28, features=0, seed=1, probabilities=(0.45, 0.15, 0.15, 0.25)
    ),
    "road": lambda: gallery.road(250_000, features=0, seed=1),
}


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), default=list(GRAPHS))
    parser.add_argument("--matrix", type=Path, help="SciPy .npz or Matrix Market .mtx instead of the graphs")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--parts", type=int, nargs="+", default=[16, 32, 64, 128, 256])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", type=Path, help="folder for part vectors and their seconds; those there are not made again"
    )
    args = parser.parse_args()
    show(f"# {date.today()}: `python benchmarks/partitions.py {shlex.join(sys.argv[1:])}`\n", args.out)
    show(
        f"{timing.machine()}, one thread; MB of float32 per part and product at width {args.width}.\n",
        args.out,
    )
    matrices = (
        {args.matrix.name: lambda: read(args.matrix)}
        if args.matrix
        else {name: GRAPHS[name] for name in args.graphs}
    )
    for name, make in matrices.items():
        pattern = Pattern.of(getattr(graph := make(), "A", graph))
        show(f"## {name}: {pattern.n:,} nodes, {pattern.nnz:,} non-zeros\n", args.out)
        show(
            "| K | method | average MB | max MB | max/average | received max/average | total, rows | of the best other | " "edge cut | non-zeros max/mean | max MB of METIS's | seconds | of hypergraph's |\n" "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
            args.out,
        )  # fmt: skip
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
    """A row per method."""
    made: dict[str, tuple[Quality, float]] = {}
    for method in args.methods:
        part, seconds = timed(name, pattern, parts, method, args)
        made[method] = (measure(pattern, part, parts), seconds)
    return [row(parts, method, made, args.width) for method in made]


def timed(
    name: str, pattern: Pattern, parts: int, method: str, args: argparse.Namespace
) -> tuple[np.ndarray, float]:
    """The part vector and the processor seconds it took to make it, all on one thread."""
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


def row(parts: int, method: str, made: dict[str, tuple[Quality, float]], width: int) -> str:
    q, seconds = made[method]
    size = 4 * width / 1e6
    others = [other.volume for name, (other, _) in made.items() if name != method]
    of_others = f"{q.volume / max(min(others), 1):.3f}" if others else ""
    of_metis = f"{q.sends.max() / max(made['metis'][0].sends.max(), 1):.2f}" if "metis" in made else ""
    of_hypergraph = f"{seconds / made['hypergraph'][1]:.2f}" if "hypergraph" in made else ""
    return (
        f"| {parts} | {method} | {q.sends.mean() * size:.3f} | {q.sends.max() * size:.3f} | "
        f"{largest_over_mean(q.sends):.3f} | "
        f"{largest_over_mean(q.receives):.3f} | {q.volume:,} | {of_others} | {q.edge_cut:,} | "
        f"{largest_over_mean(q.nonzeros):.3f} | {of_metis} | {seconds:.1f} | {of_hypergraph} |"
    )


if __name__ == "__main__":
    main()
