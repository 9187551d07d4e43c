"""Bytes, instructions and lanes of products on a GPU, counted by Nsight Compute.

    python benchmarks/gpu_count.py --out results/gpu.md        runs itself under ncu, and prints the table

One product of float32 for each graph and width, by the variant that ``candidates`` expects to be best, with
nothing in the caches before. L2 bytes are the sectors that the multiprocessors asked for; "floor" is what
must pass: indices, weights and a row of B for each non-zero, and the result once.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gpu_timing
import table
from distgnn.local import cuda
from distgnn.local.cuda import csr
from gpu_graphs import kept
from gpu_spmm import block_of

GRAPHS, WIDTHS = ["rmat-20", "rmat-17", "road-20", "reddit-15"], [1, 4, 16, 32, 64, 128, 256]
SECTOR = 32  # bytes
METRICS = {
    "L2 sectors": "lts__t_sectors_srcunit_tex.sum",
    "DRAM": "dram__bytes.sum",
    "instructions": "smsp__inst_executed.sum",
    "lanes": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "ns": "gpu__time_duration.sum",
}
NCU = "ncu --csv --print-units base --clock-control none --profile-from-start off --metrics"
HEADS = "L2 bytes / nnz", "floor", "DRAM bytes / nnz", "warp instructions / nnz", "lanes of 32", "ms"


def launch(args: Any) -> None:
    """Launch every product once under the profiler, and once before, so that all is compiled and planned.

    A line of each tells graph, width, variant, non-zeros and the floor of bytes.
    """
    on = gpu_timing.bound("gpu_count")
    xp, profiler = on.xp, on.xp.cuda.runtime
    for name in args.graphs:
        A = kept(name, args.kept_in)
        block, (n, _) = block_of(A, np.float32, on), A.shape
        for f in args.widths:
            B, out = xp.ones((A.shape[1], f), np.float32), xp.empty((n, f), np.float32)
            way = csr.candidates(csr.RowFacts.of(xp, block).size(f, 4), csr.VECTOR_BYTES)[0]
            cuda.spmm(block, B, out, variant=way)
            on.synchronize()
            profiler.profilerStart()
            cuda.spmm(block, B, out, variant=way)
            on.synchronize()
            profiler.profilerStop()
            print(f"CASE|{name}|{f}|{way}|{A.nnz}|{8 + 4 * f + (4 * f + 8) * n / A.nnz}", flush=True)


def counted(file: Path) -> list[dict[str, float]]:
    """Read what Nsight Compute wrote of every product, by metric."""
    launches: dict[str, dict[str, float]] = {}
    lines = [line for line in file.read_text().splitlines() if line.startswith('"')]
    for row in csv.DictReader(lines):
        if "spmm" not in row["Kernel Name"]:
            continue  # a padded copy of B
        launches.setdefault(row["ID"], {})[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    return [{name: values[metric] for name, metric in METRICS.items()} for values in launches.values()]


def rows(said: str, file: Path) -> Iterator[str]:
    """Yield the table's rows, from what the launches printed and what was counted of them."""
    cases = [line.split("|")[1:] for line in said.splitlines() if line.startswith("CASE|")]
    for (name, f, way, nnz, floor), seen in zip(cases, counted(file), strict=True):
        entries = int(nnz)
        numbers = (
            SECTOR * seen["L2 sectors"] / entries, float(floor), seen["DRAM"] / entries,
            seen["instructions"] / entries, seen["lanes"], seen["ns"] / 1e6,
        )  # fmt: skip
        yield f"| {name} | {f} | {way} | {' | '.join(f'{number:.3g}' for number in numbers)} |"


def main() -> int:
    parser = table.arguments(__doc__)
    add = parser.add_argument
    add("--graphs", nargs="+", default=GRAPHS, help="of gpu_graphs.py")
    add("--widths", nargs="+", type=int, default=WIDTHS)
    add("--kept-in", type=Path, metavar="FOLDER", help="read graphs from here, or save them")
    add("--launch", action="store_true", help="launch every product once, to be profiled")
    add("--ncu", default=NCU, help="the profiler, up to the names of metrics")
    args = parser.parse_args()
    if args.launch:
        launch(args)
        return 0
    if shutil.which(args.ncu.split()[0]) is None:
        print(f"gpu_count: no {args.ncu.split()[0]}", file=sys.stderr)
        return 2
    device = gpu_timing.device_name(gpu_timing.bound("gpu_count").xp)
    report = gpu_timing.Report(args)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counted.csv"
        program = [sys.executable, *sys.argv, "--launch"]
        command = [*args.ncu.split(), ",".join(METRICS.values()), "--log-file", str(log), *program]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not log.exists():
            print(done.stdout, done.stderr, log.read_text() if log.exists() else "", file=sys.stderr)
            return 1
        report.begin(args, device)
        report.say(*table.columns("graph", "f", "variant", *HEADS), *rows(done.stdout, log), "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
