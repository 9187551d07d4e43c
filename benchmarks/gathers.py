"""Rows gathered per second from each level of the memory, and by the host's SpMM: what bounds the product.

    OMP_NUM_THREADS=1 python benchmarks/gathers.py --out benchmarks/results/spmm-host.md

B fills half of a cache, or four times the last of them, and rows of B are whole cache lines, in random order.
The bound reads one number of each line (``gathers.c``, compiled by ``cc``), with the best of some distances
of prefetching. The product has 16 non-zeros a row. Seconds of processor, lower quartiles of short turns.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import table
from distgnn.arrays import backend
from distgnn.bench import timing
from distgnn.local import host

COUNT, DEGREE, LINE = 1 << 18, 16, 16
AHEAD = (0, 8, 32, 128)


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each line")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(folder))
    names = (
        "half of",
        "KiB",
        "f",
        "bound, M rows/s",
        "GB/s",
        "at distance",
        "product, M rows/s",
        "share",
        "noise",
    )
    rows = table.columns(*names)
    for level, size in levels().items():
        rows += [row(args, library, level, size, width) for width in args.widths]
    what = f"{table.heading(args)}; {host.built().isas()[host.isa()]} kernels."
    noise = "Noise: the median of the product's turns over the lower quartile."
    table.publish(args, "\n".join([f"{what} {noise}", "", *rows]))


def compiled(folder: Path) -> ctypes.CDLL:
    """Compile the bound."""
    source, made = Path(__file__).with_suffix(".c"), folder / "gathers.so"
    flags = "-O3", "-ffast-math", "-shared", "-fPIC"
    subprocess.run([os.environ.get("CC", "cc"), *flags, str(source), "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


def levels() -> dict[str, int]:
    """Return the bytes of B by the level that it is to be read from."""
    sizes = timing.caches()
    return {f"L{level}": size // 2 for level, size in sizes.items()} | {"memory": 4 * max(sizes.values())}


def row(args: Namespace, library: ctypes.CDLL, level: str, size: int, width: int) -> str:
    """Measure one level at one width."""
    lines, rng = width // LINE, np.random.default_rng(0)
    B = backend.get("numpy").zeros((size // (4 * width), width), np.float32)
    B += 1
    indices = rng.integers(0, len(B), COUNT + max(AHEAD), dtype=np.int32)
    C = backend.get("numpy").empty((COUNT // DEGREE, width), np.float32)
    indptr, values = np.arange(0, COUNT + 1, DEGREE, dtype=np.int32), np.ones(COUNT, np.float32)
    address = [ctypes.c_void_p(array.ctypes.data) for array in (B, indices)]
    counts = ctypes.c_int64(COUNT), ctypes.c_int64(lines)
    runs: dict[str, Callable[[], object]] = {
        f"bound {ahead}": partial(library.gather, *address, *counts, ctypes.c_int64(ahead)) for ahead in AHEAD
    }
    of_product = indptr, indices[:COUNT], values, B, C
    for ahead in host.DISTANCES:
        runs[f"product {ahead}"] = partial(host.multiply, *of_product, prefetch=ahead)
    samples = timing.in_turns(runs, args.seconds, 9, "cpu", most=1)
    took = {name: float(np.percentile(times, 25)) for name, times in samples.items()}
    names = list(runs)
    best, ours = (
        min(some, key=lambda name: took[name]) for some in (names[: len(AHEAD)], names[len(AHEAD) :])
    )
    noise = float(np.percentile(samples[ours], 50)) / took[ours]
    rates = COUNT / took[best] / 1e6, COUNT / took[ours] / 1e6
    cells = f"{rates[0]:.1f}", f"{rates[0] * 4e-3 * width:.1f}", best.split()[1], f"{rates[1]:.1f}"
    last = f"{rates[1] / rates[0]:.2f}", f"{noise:.2f}"
    return f"| {level} | {size >> 10} | {width} | {' | '.join(map(str, (*cells, *last)))} |"


if __name__ == "__main__":
    main()
