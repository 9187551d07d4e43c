"""Reading lists of edges between words: processor seconds, beside those of another version of distgnn.

    git worktree add /tmp/before COMMIT
    python benchmarks/imports.py --before /tmp/before --out benchmarks/results/imports.md

The lists are made in a temporary folder. A run opens a list and reads its edges once more, as `prepare` does,
in a process of its own; versions take turns, and the fastest of `--repeats` runs is told.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import table

RUN = """
import json, sys, time
from distgnn.store.importers import open_source
start = time.process_time()
source = open_source(sys.argv[1])
count = sum(len(edges[0]) for edges in source.edges())
print(json.dumps([time.process_time() - start, source.n, count]))
"""
KINDS: dict[str, Callable[[np.ndarray], str]] = {
    "source,target": lambda ends: "source,target\n" + joined(ends, "{},{}\n"),
    "no header": lambda ends: joined(ends, "{} {}\n"),
    "src,dst,weight,when": lambda ends: "src,dst,weight,when\n" + joined(ends, "{},{},0.5,2020-01-01\n"),
}


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--before", type=Path, help="checkout of the version to compare with")
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=800_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table.publish(args, results(args, Path(folder)))


def results(args: argparse.Namespace, folder: Path) -> str:
    """Return a table with a line for each kind of list."""
    rng = np.random.default_rng(0)
    names = np.array([f"user-{k:x}" for k in rng.permutation(args.nodes) * 7919])
    ends = names[rng.integers(0, args.nodes, (2, args.edges))].T
    versions = {"now": Path(__file__).parents[1]} | ({"before": args.before} if args.before else {})
    sizes = f"{args.edges:,} edges between {args.nodes:,} words"
    about = f"{table.heading(args)}. {sizes}. Processor seconds, the least of {args.repeats}."
    lines = [about, "", *table.columns("list", *versions, "before / now")]
    for kind, text in KINDS.items():
        (path := folder / "edges.csv").write_text(text(ends))
        seconds = measured(path, versions, args.repeats)
        ratio = f"{seconds['before'] / seconds['now']:.1f}" if seconds.get("before") else ""
        cells = [f"{seconds[name]:.2f}" if seconds[name] else "refused" for name in versions]
        lines.append(f"| {kind} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


def joined(ends: np.ndarray, line: str) -> str:
    """Return a line for each edge."""
    return "".join(line.format(source, target) for source, target in ends.tolist())


def measured(path: Path, versions: dict[str, Path], repeats: int) -> dict[str, float]:
    """Read the list with every version in turns; return the least seconds of each, 0 where it is refused.
    SystemExit where versions find different graphs.
    """
    seconds: dict[str, list[float]] = {name: [] for name in versions}
    graphs = set()
    for _ in range(repeats):
        for name, root in versions.items():
            environ = os.environ | {"PYTHONPATH": str(root)}
            words = [sys.executable, "-c", RUN, str(path)]
            done = subprocess.run(words, env=environ, cwd=root, capture_output=True, text=True)
            if done.returncode == 0:
                spent, *graph = json.loads(done.stdout)
                seconds[name].append(spent)
                graphs.add(tuple(graph))
    if len(graphs) != 1:
        raise SystemExit(f"versions find different graphs: {graphs}")
    return {name: min(spent, default=0.0) for name, spent in seconds.items()}


if __name__ == "__main__":
    main()
