"""`distgnn prepare` by one rank and by several: seconds of each stage, and memory (Plexus section 5.4).

    python benchmarks/prepare.py --out benchmarks/results/prepare.md

Runs are launched in turns, `--repeats` of each, and the fastest is told: what else the machine does only
slows runs down. Beside the seconds on the clock stand those of the processor, of the rank that needed most of
them: what would be left if every rank had a core of its own and the disk were never waited for. Every store
    is compared with the first by the checksums of all files.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import table
from distgnn import gallery
from distgnn.store import Store

# Stages of the table: what their names in `Summary.stages` begin with.
STAGES = {
    "features": ("features",),
    "edges into buckets": ("bucket",),
    "sort, merge, write structure": ("sort",),
    "degrees, write values": ("values",),
    "checksums, sync": ("count", "finish"),
}
RUN = """
import json, sys, time
from mpi4py import MPI
from distgnn.store import prepare
from distgnn.store.write.steps import Preparation
from distgnn.store.importers import open_source

comm, source, stage = MPI.COMM_WORLD, open_source(sys.argv[1]), Preparation.stage
processor = [time.process_time()]
def timed(self, name):
    stage(self, name)
    processor.append(time.process_time())
Preparation.stage = timed
done = prepare(source, sys.argv[2], order=sys.argv[3].split(","), comm=comm)
busiest = [max(times) for times in zip(*comm.allgather([b - a for a, b in zip(processor, processor[1:])]))]
if comm.rank == 0:
    print(json.dumps([(*clock, cpu) for clock, cpu in zip(done.stages, busiest)]))
"""


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--scale", type=int, default=21, help="2**scale nodes")
    parser.add_argument("--degree", type=float, default=16)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--order", default="random")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--scratch", type=Path, help="where to make graph and stores (default: the system's temporary folder)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        text = results(args, Path(folder))
    table.publish(args, text)


def results(args: argparse.Namespace, folder: Path) -> str:
    graph = gallery.RMat(1 << args.scale, degree=args.degree, features=args.features, classes=8)
    gallery.write(graph, folder / "graph")
    runs: dict[int, list[list[Any]]] = {ranks: [] for ranks in args.ranks}
    facts: dict[str, Any] = {}
    for _ in range(args.repeats):
        for ranks, found in runs.items():
            found.append(run(ranks, folder, args.order))
            manifest = Store(folder / "graph.dg").manifest
            shutil.rmtree(folder / "graph.dg")
            facts = facts or manifest
            if manifest != facts:
                raise SystemExit(f"the store of {ranks} ranks differs from the first")
            print(f"{ranks} ranks: {total(found[-1]):.1f} s", file=sys.stderr, flush=True)
    best = {ranks: min(found, key=total) for ranks, found in runs.items()}
    shards = "x".join(
        str(len(facts["orders"][args.order.split(",")[0]][side]) - 1) for side in ("rows", "cols")
    )
    lines = [
        table.heading(args)
        + f". R-MAT, {facts['n']:,} nodes, {facts['edges']:,} edges, {facts['nnz']:,} non-zeros, "
        f"{args.features} features; order {args.order}, {shards} shards. Seconds; the fastest of "
        f"{args.repeats} runs in turns; "
        "all stores equal to the byte.",
        "",
        "| stage | "
        + " | ".join(f"{clock}{counted(ranks)}" for clock in ("", "processor, ") for ranks in best)
        + " | speedup in processor time |",
        "|---|" + "---:|" * (2 * len(best) + 1),
    ]
    for stage, names in {**STAGES, "all": ("",)}.items():
        lines.append(
            row(stage, [[one for one in stages if one[0].startswith(names)] for stages in best.values()])
        )
    peaks = [
        f"{counted(ranks)} {max(stage[2] for stage in stages) / 2**20:.0f} MiB"
        for ranks, stages in best.items()
    ]
    lines += ["", f"Peak memory of a rank: {', '.join(peaks)}."]
    return "\n".join(lines) + "\n\n"


def run(ranks: int, folder: Path, order: str) -> list[Any]:
    """Return the stages of one launch: [name, seconds, peak bytes of a rank, processor seconds of the busiest
    rank] each.
    """
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    words = [
        mpiexec,
        "-n",
        str(ranks),
        sys.executable,
        "-c",
        RUN,
        str(folder / "graph"),
        str(folder / "graph.dg"),
        order,
    ]
    stages: list[Any] = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    return stages


def total(stages: list[Any]) -> float:
    return sum(stage[1] for stage in stages)


def row(name: str, runs: list[list[Any]]) -> str:
    """Return a line of the table: some stages of every number of ranks."""
    clock, processor = (
        [total(stages) for stages in runs],
        [sum(stage[3] for stage in stages) for stages in runs],
    )
    gain = processor[0] / processor[-1]
    return f"| {name} | {' | '.join(f'{one:.2f}' for one in clock + processor)} | {gain:.2f} |"


def counted(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


if __name__ == "__main__":
    main()
