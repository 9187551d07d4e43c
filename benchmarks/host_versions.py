"""Gains of the parts of the host kernels: distance of prefetching, start of arrays, padded rows; passes
beside NumPy's.

python benchmarks/host_versions.py --out benchmarks/results/host-versions.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.arrays import backend
from distgnn.bench import spmm, timing
from distgnn.layout import Cut, Layout, partition
from distgnn.local import elementwise, host
from distgnn.nn import dropout, loss, optim

DISTANCES = (0, 16, 32, 64, 128, 256, -1)
PADDED = {41: 48, 100: 112}
ON = backend.get("numpy")


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument(
        "--graph", nargs="+", default=["rmat-15", "rmat-17", "rmat-20", "uniform-20", "road-18"]
    )
    parser.add_argument("--seconds", type=float, default=0.4, help="for each line, all its columns in turns")
    parser.add_argument("--clock", choices=list(timing.CLOCKS), default="wall")
    args = parser.parse_args()
    lines = [
        table.heading(args) + f"; {host.built().isas()[host.isa()]} kernels, {host.threads()} thread(s), "
        "float32; the best of calls in turns.",
        "",
        "GFLOP/s by the non-zeros that a product prefetches ahead (0: kernels without prefetching, up to two",
        "vectors a row):",
        "",
        "| graph | f | " + " | ".join("by width" if d < 0 else str(d) for d in DISTANCES) + " |",
        "|---|---:|" + "---:|" * len(DISTANCES),
    ]
    graphs = {name: spmm.graph(name) for name in args.graph}
    for name, A in graphs.items():
        for width in (8, 16, 32, 41, 64, 128):
            lines.append(line(name, A, width, ahead(A, width), args))
    lines += [
        "",
        "GFLOP/s with B where NumPy's large arrays begin, 16 bytes after a cache line; at a cache line;",
        "there with rows padded to cache lines; and with such a copy of B made in the product:",
        "",
        *table.columns("graph", "f", "off a line", "at a line", "padded", "copied"),
    ]
    for name, A in graphs.items():
        for width in (16, 32, 64, *PADDED):
            lines.append(line(name, A, width, placed(A, width), args))
    lines += [
        "",
        "Milliseconds of passes over 65,536 x 128 numbers (Adam: 16,384 x 128; loss: x 32, a third of the",
        "rows), and the memory that the kernel reads and writes per second:",
        "",
        *table.columns("pass", "NumPy", "kernel", "GB/s"),
    ]
    for name, (run, moved) in passes().items():
        times = timing.in_turns({"NumPy": without_kernels(run), "kernel": run}, args.seconds, 5, args.clock)
        numpy, kernel = min(times["NumPy"]), min(times["kernel"])
        lines.append(f"| {name} | {1e3 * numpy:.1f} | {1e3 * kernel:.1f} | {moved / kernel / 1e9:.0f} |")
    text = "\n".join(lines) + "\n\n"
    table.publish(args, text)


def line(
    name: str, A: sp.csr_array, width: int, runs: dict[str, Callable[[], Any]], args: argparse.Namespace
) -> str:
    """Return one line of a table of GFLOP/s."""
    times = timing.in_turns(runs, args.seconds, 3, args.clock)
    rates = [f"{2 * A.nnz * width / min(times[run]) / 1e9:.1f}" if run in times else "" for run in runs]
    print(name, width, *rates, file=sys.stderr, flush=True)
    return f"| {name} | {width} | " + " | ".join(rates) + " |"


def multiplied(A: sp.csr_array, B: np.ndarray, out: np.ndarray, ahead: int = -1) -> Callable[[], None]:
    return lambda: host.multiply(A.indptr, A.indices, A.data, B, out, prefetch=ahead)


def copied(source: np.ndarray, target: np.ndarray, run: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        np.copyto(target, source)
        run()

    return both


def ones(count: int) -> np.ndarray:
    """Return ones: all pages of an array of zeros that nobody wrote to are one page."""
    x: np.ndarray = ON.empty((count,), np.float32)
    x[...] = 1
    return x


def ahead(A: sp.csr_array, width: int) -> dict[str, Callable[[], Any]]:
    B, out = ones(A.shape[1] * width).reshape(-1, width), ON.empty((A.shape[0], width), np.float32)
    return {str(distance): multiplied(A, B, out, distance) for distance in DISTANCES}


def placed(A: sp.csr_array, width: int) -> dict[str, Callable[[], Any]]:
    n, out = A.shape[1], ON.empty((A.shape[0], width), np.float32)
    lead = PADDED.get(width, width)
    off, at, padded = (
        ones(n * width + 4)[4:].reshape(n, width),
        ones(n * width).reshape(n, width),
        ones(n * lead).reshape(n, lead),
    )
    padded = padded[:, :width]
    runs: dict[str, Callable[[], Any]] = {"off": multiplied(A, off, out), "at": multiplied(A, at, out)}
    source = at if width in PADDED else at.copy()
    product = multiplied(A, padded, out)
    runs |= {"padded": product, "copied": copied(source, padded, product)}
    return runs


def passes() -> dict[str, tuple[Callable[[], Any], int]]:
    """Name -> (a call, bytes that it reads and writes)."""
    n, width, classes = 1 << 16, 128, 32
    random = np.random.default_rng(0)
    x, y = (ON.empty((n, width), np.float32) for _ in range(2))
    x[...], y[...] = random.standard_normal((n, width)), 1
    bits = elementwise.positive_bits(x)
    mask = dropout.Dropout(0.5, 0, 0, np.arange(n), np.arange(width))
    adam = optim.Adam()
    adam.steps = 1
    w, g, m, v = (ON.zeros(((1 << 14) * 128,), np.float32) for _ in range(4))
    grid = dg.Grid(MPI.COMM_SELF, rows=1)
    Z = dg.scatter(
        random.standard_normal((n, classes)).astype(np.float32),
        Layout(grid, Cut(("rows",), partition(n, 1)), Cut()),
    )
    targets = loss.Targets(
        Z.layout, classes, random.integers(0, classes, n), random.integers(1, 4, n).astype(np.uint8)
    )
    logits = Z.block.nbytes
    return {
        "dropout": (lambda: mask.apply(x, 0, y), 2 * x.nbytes),
        "ReLU and dropout": (lambda: mask.apply(x, 0, y, relu=True), 2 * x.nbytes),
        "bits of what is positive": (lambda: elementwise.positive_bits(x), x.nbytes),
        "backward of both": (lambda: elementwise.keep_positive(y, bits, 1.0), 2 * y.nbytes),
        "Adam": (lambda: adam._update(w, g, m, v, decay=0.0), 7 * w.nbytes),
        "softmax cross-entropy": (lambda: loss.softmax_cross_entropy(Z, targets), logits // 3 + logits),
    }


def without_kernels(run: Callable[[], Any]) -> Callable[[], Any]:
    """Call the code that serves any array library."""

    def numpy_only() -> None:
        with mock.patch.object(elementwise, "compiled", lambda block: False):
            run()

    return numpy_only


if __name__ == "__main__":
    main()
