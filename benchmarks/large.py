"""The main job at size: generate, prepare and train an R-MAT graph, with the peak memory of every stage.

    python benchmarks/large.py --folder /scratch/large

A folder that is made is removed again unless ``--keep`` is given; a store in one that is there is trained.
Prints a Markdown table, with the largest resident set of each process, and what all hold together at a time,
where memory that processes share counts once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import table

MIB, DISTGNN = 2**20, [sys.executable, "-m", "distgnn"]


def family(pid: int) -> list[int]:
    """List a process and all that descend from it."""
    try:
        below = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended
        return []
    return [pid, *(other for child in below for other in family(child))]


def held(pid: int) -> int:
    """Return the bytes that a process holds, its share of what it maps with others; 0 of one that ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


class Together:
    """The most that a process and its descendants hold at one time, looked at twice a second."""

    def __init__(self, pid: int) -> None:
        self.pid, self.most, self.over = pid, 0, threading.Event()
        self.thread = threading.Thread(target=self._look)

    def __enter__(self) -> Together:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def _look(self) -> None:
        while not self.over.wait(0.5):
            self.most = max(self.most, sum(map(held, family(self.pid))))


def run(words: list[str]) -> tuple[float, int, int, str]:
    """Run a command.

    Returns:
        Seconds; the largest resident set of it or one of its children, and what all held together, in bytes;
        the last line printed.
    """
    print("$", " ".join(words), file=sys.stderr, flush=True)
    start = time.perf_counter()
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with Together(child.pid) as together:
        lines = child.stdout.read().strip().splitlines()
    _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"failed: {' '.join(words)}")
    return time.perf_counter() - start, usage.ru_maxrss * 1024, together.most, lines[-1] if lines else ""


def disk(path: Path) -> float:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / MIB


def line(stage: str, seconds: float, memory: str, rest: str) -> None:
    print(f"| {stage} | {seconds:.0f} | {memory} | {rest} |", flush=True)


def prepare(args: argparse.Namespace, store: Path) -> None:
    graph = args.folder / "graph"
    sizes = [f"--{name}={getattr(args, name)}" for name in ("nodes", "edges", "features")]
    seconds, peak, *_ = run([*DISTGNN, "generate", "rmat", str(graph), *sizes])
    line("generate", seconds, f"{peak / MIB:.0f}", f"{disk(graph):.0f} MiB written")
    seconds, peak, *_ = run([*DISTGNN, "prepare", str(graph), str(store)])
    line("prepare", seconds, f"{peak / MIB:.0f}", f"{disk(store):.0f} MiB written")


def train(args: argparse.Namespace, store: Path, algorithm: str) -> None:
    """Train by an algorithm, or on a grid of it that follows a colon, as 3d:1x2x2."""
    name, _, grid = algorithm.partition(":")
    log, mpiexec = args.folder / f"{algorithm}.jsonl", Path(sys.executable).with_name("mpiexec")
    network = [f"--{option}={getattr(args, option)}" for option in ("layers", "hidden", "epochs")]
    command = [str(mpiexec), "-n", str(args.ranks), *DISTGNN, "train", str(store), "--recipe=plain"]
    more = ["--algorithm", name, "--eval-every=0", "--log", str(log), *(["--grid", grid] if grid else [])]
    seconds, _, together, _ = run([*command, *network, *more])
    events = [json.loads(event) for event in log.read_text().splitlines()]
    end, epochs = events[-1], [event for event in events if event["event"] == "epoch"]
    peaks = ", ".join(f"{peak / MIB:.0f}" for peak in end["peak_bytes"])
    losses = ", ".join(f"{event['loss']:.4f}" for event in epochs)
    rest = f"{end['epoch_seconds_median']:.1f} s per epoch, losses {losses}"
    line(f"train `{algorithm}`", seconds, f"{together / MIB:.0f} together ({peaks})", rest)


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=4_000_000)
    parser.add_argument("--edges", type=int, default=32_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--algorithm", nargs="+", default=["1d"])
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    made = not args.folder.exists()
    args.folder.mkdir(parents=True, exist_ok=True)
    store = args.folder / "graph.dg"
    print(
        f"R-MAT, {args.nodes:,} nodes, {args.edges:,} undirected edges drawn, {args.features} features, "
        f"hidden {args.hidden},"
    )
    print(
        f"{args.layers} layers; {args.ranks} ranks; {platform.processor() or platform.machine()}, "
        f"{os.cpu_count()} cores.\n"
    )
    print("| stage | seconds | peak memory, MiB | |\n| --- | ---: | ---: | --- |", flush=True)
    try:
        if not store.exists():
            prepare(args, store)
        for algorithm in args.algorithm:
            train(args, store, algorithm)
    finally:
        if made and not args.keep:
            shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
