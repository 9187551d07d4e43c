"""Bytes, instructions and lanes of products on a GPU by counting, beside what a profiler counted.

    python benchmarks/gpu_count.py                                  the counts, which need no GPU
    ncu --csv --print-units base --clock-control none --profile-from-start off --log-file counted.csv \
        --metrics METRICS python benchmarks/gpu_count.py --launch   one product of each case, profiled
    python benchmarks/gpu_count.py --counted counted.csv            both, side by side

METRICS is what ``--metrics`` prints. Products are of float32, by the variant that ``candidates`` expects to
be best, with nothing in the caches before. What the counts assume:

- L2: every index, weight and row of B is fetched from the L2 cache for each non-zero, in sectors of 32 bytes;
  results are written once.
- DRAM: indices and weights in each panel, results once, and of B the rows that are read: once for those read
  most, as many as fill 0.7 of the cache; the others each time.
- instructions of warps: in a turn of U non-zeros U (4 + V) + 8; 30 before and after. A warp
  waits for the group that has most turns.
- lanes: those that work in a turn, of 32.
- ms: the longest of L2, DRAM and instructions, by rates measured on an H200 (``--rates``).
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import table
from distgnn.arrays import backend
from distgnn.local import cuda
from distgnn.local.cuda import csr
from distgnn.local.cuda.launch import WARP
from gpu_spmm import block_of, device_name, graph

GRAPHS, WIDTHS = ["rmat-20", "rmat-17", "road-20", "reddit-15"], [1, 4, 16, 32, 64, 128, 256]
METRICS = {
    "l2": "lts__t_bytes.sum",
    "dram": "dram__bytes.sum",
    "instructions": "smsp__inst_executed.sum",
    "lanes": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "ms": "gpu__time_duration.sum",
}
SECTOR, ITEM, INDEX = 32, 4, 4  # bytes
HOT = 0.7  # of the L2 cache


@dataclass
class Rates:
    """Bytes per second from memory and from the L2 cache, the cache's bytes, instructions per second."""

    dram: float
    l2: float
    cache: float
    instructions: float


@dataclass
class Count:
    """Bytes from L2 and from memory, instructions of warps, lanes at work of 32, milliseconds."""

    l2: float
    dram: float
    instructions: float
    lanes: float
    ms: float


def count(A: sp.csr_array, f: int, way: csr.Variant, rates: Rates) -> Count:
    """Count what a product with a matrix of this width takes."""
    panels, nnz, m = way.panels(f), A.nnz, A.shape[0]
    streamed = panels * nnz * (INDEX + ITEM) + m * (f * ITEM + 8)
    sectors = sum(math.ceil(min(way.width, f - at) * ITEM / SECTOR) for at in range(0, f, way.width))
    l2 = streamed + nnz * sectors * SECTOR
    dram = streamed + rows_from_memory(A, way, rates) * f * ITEM
    turns, warps = turns_of(np.diff(A.indptr).astype(np.int64), way)
    U = csr.in_flight(way.V, ITEM)
    instructions = panels * (turns * (U * (4 + way.V) + 8) + 30 * warps)
    working = nnz * -(-f // way.V) / (panels * U * turns)
    ms = 1e3 * max(l2 / rates.l2, dram / rates.dram, instructions / rates.instructions)
    return Count(l2, dram, instructions, working, ms)


def rows_from_memory(A: sp.csr_array, way: csr.Variant, rates: Rates) -> int:
    """Count the rows of B that come from memory in a panel."""
    reads = np.sort(np.bincount(A.indices, minlength=A.shape[1]))[::-1]
    kept = int(HOT * rates.cache / (way.width * ITEM))
    return int(np.count_nonzero(reads[:kept]) + reads[kept:].sum())


def turns_of(lengths: np.ndarray, way: csr.Variant) -> tuple[int, int]:
    """Count the turns of all warps of a panel, and the warps."""
    turns = warps = 0
    for entries, teams in tasks_of(lengths, way):
        needed = -(-entries // (csr.in_flight(way.V, ITEM) * teams))
        groups = WARP // (way.G * way.P)
        padded = np.zeros(-(-needed.size // groups) * groups, np.int64)
        padded[: needed.size] = needed
        turns += int(padded.reshape(-1, groups).max(1, initial=0).sum())
        warps += padded.size // groups
    return max(turns, 1), warps


def tasks_of(lengths: np.ndarray, way: csr.Variant) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the entries of every task of a kind, in the order of the grid, and the teams on each."""
    cut = lengths > way.S
    pieces = -(-lengths[cut] // way.S)
    yield np.repeat(lengths[cut] // np.maximum(pieces, 1), pieces), way.P
    if way.K > 1 and not way.sorted:
        yield bundles(np.where(cut, 0, lengths), way.K), 1
        return
    rows = np.where(cut, 0, lengths)
    if way.sorted:
        rows = rows[np.argsort(-(lengths + 3 >> 2), kind="stable")]
    short = rows.size - np.count_nonzero(lengths > csr.SHORT) if way.K > 1 else 0
    yield rows[: rows.size - short], way.P
    if short:
        yield bundles(np.where(lengths <= csr.SHORT, lengths, 0), way.K), 1


def bundles(lengths: np.ndarray, K: int) -> np.ndarray:
    """Add up the entries of every K rows."""
    return np.add.reduceat(lengths, np.arange(0, lengths.size, K))


def first_variant(A: sp.csr_array, f: int) -> csr.Variant:
    """Return the variant expected to be best."""
    return csr.candidates(csr.Size(*A.shape, A.nnz, f, ITEM), csr.VECTOR_BYTES)[0]


def launch(args: Any) -> None:
    """Launch every product once under the profiler, and once before, so that all is compiled and planned."""
    on = backend.get("cupy")
    xp, profiler = on.xp, on.xp.cuda.runtime
    print(device_name(xp), file=sys.stderr)
    for name in args.graphs:
        A = graph(name)
        block = block_of(A, np.dtype(np.float32), on.asarray)
        for f in args.widths:
            B, out = xp.ones((A.shape[1], f), np.float32), xp.empty((A.shape[0], f), np.float32)
            way = first_variant(A, f)
            cuda.spmm(block, B, out, variant=way)
            on.synchronize()
            profiler.profilerStart()
            cuda.spmm(block, B, out, variant=way)
            on.synchronize()
            profiler.profilerStop()


def counted(file: Path) -> list[Count]:
    """Read what Nsight Compute wrote of every launch."""
    launches: dict[str, dict[str, float]] = {}
    lines = [line for line in file.read_text().splitlines() if line.startswith('"')]
    for row in csv.DictReader(lines):
        launches.setdefault(row["ID"], {})[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    found = ({name: values[metric] for name, metric in METRICS.items()} for values in launches.values())
    return [Count(**values | {"ms": values["ms"] / 1e6}) for values in found]


def lines(args: Any, rates: Rates) -> Iterator[str]:
    """Yield the table's lines: per non-zero bytes and instructions, counted and (measured)."""
    measured = iter(counted(args.counted) if args.counted else [])
    heads = "L2 bytes", "DRAM bytes", "warp instructions", "lanes of 32", "ms"
    yield from table.columns("graph", "f", "variant", *(f"{head} / nnz" for head in heads[:3]), *heads[3:])
    for name in args.graphs:
        A = graph(name)
        for f in args.widths:
            way = first_variant(A, f)
            cells = [f"{x:.3g}" for x in per_entry(count(A, f, way, rates), A.nnz)]
            if args.counted:
                seen = per_entry(next(measured), A.nnz)
                cells = [f"{cell} ({x:.3g})" for cell, x in zip(cells, seen, strict=True)]
            yield f"| {name} | {f} | {way} | {' | '.join(cells)} |"


def per_entry(counts: Count, nnz: int) -> list[float]:
    l2, dram, instructions, lanes, ms = astuple(counts)
    return [l2 / nnz, dram / nnz, instructions / nnz, lanes, ms]


def main() -> None:
    if sys.argv[1:] == ["--metrics"]:
        print(",".join(METRICS.values()))
        return
    parser = table.arguments(__doc__)
    parser.add_argument("--graphs", nargs="+", default=GRAPHS, help="of gpu_spmm.py")
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS)
    parser.add_argument("--launch", action="store_true", help="launch every product once, to be profiled")
    parser.add_argument("--counted", type=Path, metavar="CSV", help="counts of Nsight Compute")
    parser.add_argument(
        "--rates", nargs=4, type=float, default=[4.3e12, 9.3e12, 60e6, 132 * 4 * 1.98e9],
        metavar=("DRAM", "L2", "CACHE", "ISSUE"), help="bytes/s, bytes/s, bytes, instructions/s",
    )  # fmt: skip
    args = parser.parse_args()
    if args.launch:
        launch(args)
    else:
        made = "\n".join(lines(args, Rates(*args.rates)))
        table.publish(args, f"{table.heading(args)}\n\n{made}")


if __name__ == "__main__":
    main()
