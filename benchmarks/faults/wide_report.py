"""The report of a run on thousands of ranks: how long does it take, and how large is the page?

    python benchmarks/faults/wide_report.py [--ranks 2048] [--epochs 100]

Writes a log as a run on so many ranks would: each rank received words from every other, and has eight rows in
the ledger. Prints the seconds of `distgnn report`, those of the processor among them, and the bytes of the
page; exits with 1 beyond 10 s of the processor or 3 MB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PHASES = ("spmm", "gemm", "activation", "loss", "optimizer", "comm", "rows", "draw")
SECONDS, BYTES = 10.0, 3_000_000


def log(path: Path, ranks: int, epochs: int) -> None:
    """Write the log."""
    config = {"algorithm": "1d", "widths": [128, 256, 40], "seed": 0}
    told = [{"host": f"node{rank // 64}", "nnz": 1_000_000 + rank} for rank in range(ranks)]
    lines: list[dict[str, Any]] = [{"event": "run", "config": config, "grid": {"rows": ranks}, "ranks": told}]
    for epoch in range(1, epochs + 1):
        phases = dict.fromkeys(("spmm", "gemm", "comm", "other"), 0.1 / epoch)
        scores = {"loss": 2.0 / epoch, "val_acc": 0.5, "seconds": 0.4, "flight": 0.2}
        lines.append({"event": "epoch", "epoch": epoch, "phases": phases} | scores)
    traffic = [[(7 * i + 13 * j) % 10_007 if i != j else 0 for j in range(ranks)] for i in range(ranks)]
    received = [sum(column) for column in zip(*traffic, strict=True)]
    end: dict[str, Any] = {"words": received, "bytes": [4 * words for words in received], "traffic": traffic}
    end |= {"messages": [ranks - 1] * ranks, "peak_bytes": [2**30 + rank for rank in range(ranks)]}
    end |= {"buffer_bytes": [{"layers": 2**29, "panel 0": 2**20}] * ranks, "test_acc": 0.75}
    spent = [{"rank": rank, "phase": phase, "seconds": 1.5} for rank in range(ranks) for phase in PHASES]
    lines.append({"event": "end", "ledger": spent} | end)
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, page = Path(folder) / "log", Path(folder) / "page.html"
        log(path, given.ranks, given.epochs)
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "distgnn", "report", path, "-o", page], check=True)
        seconds, used = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        size, read = page.stat().st_size, path.stat().st_size
    processor = used.ru_utime + used.ru_stime
    print("| ranks | log, MB | s | s of the processor | page, MB |\n|---:|---:|---:|---:|---:|")
    print(f"| {given.ranks:,} | {read / 1e6:.1f} | {seconds:.1f} | {processor:.1f} | {size / 1e6:.2f} |")
    return int(processor > SECONDS or size > BYTES)


if __name__ == "__main__":
    sys.exit(main())
