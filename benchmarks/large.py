"""The main job at size: generate, prepare and train an R-MAT graph, with the peak memory of every stage.

    python benchmarks/large.py --folder /scratch/large

The folder is made, and removed again unless ``--keep`` is given. Prints a Markdown table.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import table

MIB = 2**20


def run(words: list[str]) -> tuple[float, int, str]:
    """Run a command; return (seconds, largest resident set of it or one of its children in bytes, last line
    printed).
    """
    print("$", " ".join(words), file=sys.stderr, flush=True)
    start = time.perf_counter()
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    lines = child.stdout.read().strip().splitlines()
    _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"failed: {' '.join(words)}")
    return time.perf_counter() - start, usage.ru_maxrss * 1024, lines[-1] if lines else ""


def disk(path: Path) -> float:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / MIB


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
    args.folder.mkdir(parents=True)
    graph, store = args.folder / "graph", args.folder / "graph.dg"
    distgnn = [sys.executable, "-m", "distgnn"]
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
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
        sizes = ["--nodes", str(args.nodes), "--edges", str(args.edges), "--features", str(args.features)]
        seconds, peak, _ = run([*distgnn, "generate", "rmat", str(graph), *sizes])
        print(f"| generate | {seconds:.0f} | {peak / MIB:.0f} | {disk(graph):.0f} MiB written |", flush=True)
        seconds, peak, _ = run([*distgnn, "prepare", str(graph), str(store)])
        print(f"| prepare | {seconds:.0f} | {peak / MIB:.0f} | {disk(store):.0f} MiB written |", flush=True)
        for algorithm in args.algorithm:
            log = args.folder / f"{algorithm}.jsonl"
            network = [
                "--layers",
                str(args.layers),
                "--hidden",
                str(args.hidden),
                "--epochs",
                str(args.epochs),
            ]
            command = [
                mpiexec,
                "-n",
                str(args.ranks),
                *distgnn,
                "train",
                str(store),
                "--recipe=plain",
                "--algorithm",
                algorithm,
            ]
            seconds, _, _ = run([*command, *network, "--eval-every", "0", "--log", str(log)])
            events = [json.loads(line) for line in log.read_text().splitlines()]
            end, epochs = events[-1], [event for event in events if event["event"] == "epoch"]
            peaks = [p / MIB for p in end["peak_bytes"]]
            losses = ", ".join(f"{event['loss']:.4f}" for event in epochs)
            print(
                f"| train `{algorithm}` | {seconds:.0f} | {sum(peaks):.0f} together "
                f"({', '.join(f'{p:.0f}' for p in peaks)}) | "
                f"{end['epoch_seconds_median']:.1f} s per epoch, losses {losses} |",
                flush=True,
            )
    finally:
        if not args.keep:
            shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
