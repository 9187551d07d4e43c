"""Time that a person waits for `distgnn train` on one GPU: from the command to the first epochs.

    python benchmarks/gpu_start.py --out results/gpu.md

The graph is of communities, with 64 features. The first run has an empty cache of compiled kernels, the
second one finds them. "first epoch": from the command to the line of the first epoch in the log; "ms per
epoch": the median of the last half of the epochs, as the log has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gpu_timing
import table


def distgnn(words: str, **env: str) -> subprocess.Popen[str]:
    """Start the program."""
    command = [sys.executable, "-m", "distgnn", *words.split()]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True, env=os.environ | env)


def finished(process: subprocess.Popen[str]) -> None:
    """Wait for its end; SystemExit if it failed."""
    if code := process.wait():
        raise SystemExit(f"{' '.join(map(str, process.args))}: exit status {code}")


def epochs_of(log: Path) -> list[dict[str, Any]]:
    """Return the records of epochs that a log has so far."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [record for record in map(json.loads, lines) if record.get("event") == "epoch"]


def trained(store: Path, log: Path, epochs: int, cache: Path) -> tuple[float, float, float]:
    """Train; return the seconds to the first epoch and to the end, and the milliseconds of an epoch."""
    started = time.perf_counter()
    recipe = "--recipe plain --layers 3 --hidden 128 --backend cupy"
    process = distgnn(f"train {store} {recipe} --epochs {epochs} --log {log}", CUPY_CACHE_DIR=str(cache))
    while process.poll() is None and not epochs_of(log):
        time.sleep(0.005)
    first = time.perf_counter() - started
    finished(process)
    last = [record["seconds"] for record in epochs_of(log)[epochs // 2 :]]
    return first, time.perf_counter() - started, 1e3 * float(np.median(last))


def main() -> int:
    parser = table.arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    report = gpu_timing.Report(args)
    report.begin(args, gpu_timing.device_name(gpu_timing.bound("gpu_start").xp))
    heads = "kernels", "s to the first epoch", f"s to the end of {args.epochs}", "ms per epoch"
    with tempfile.TemporaryDirectory() as folder:
        graph, store = Path(folder) / "graph", Path(folder) / "graph.dg"
        started = time.perf_counter()
        finished(distgnn(f"generate sbm {graph} --nodes {args.nodes}"))
        finished(distgnn(f"prepare {graph} {store}"))
        prepared = time.perf_counter() - started
        report.say(*table.columns(*heads))
        for name in ("compiled meanwhile", "in the cache"):
            log = Path(folder) / f"{name[:2]}.jsonl"
            first, end, ms = trained(store, log, args.epochs, Path(folder) / "kernels")
            report.say(f"| {name} | {first:.2f} | {end:.2f} | {gpu_timing.milliseconds(ms)} |")
    report.say("", f"{args.nodes} nodes; generated and prepared in {prepared:.1f} s.", "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
