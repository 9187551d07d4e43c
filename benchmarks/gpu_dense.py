"""Dense products and element-wise passes on one GPU, kernel by kernel, beside cuBLAS and bytes of memory.

    python benchmarks/gpu_dense.py --out results/gpu.md
    python benchmarks/gpu_dense.py --tables passes --columns 40 128

Matrices of many rows, as CUDA graphs of eight calls, medians in turns (before a `*` the host is in the time).
Products: those of ``kernels/gemm.cu``, in float32's accuracy and rounding to TF32, beside cuBLAS's two, and
the bytes that must move over a copy's bandwidth; then one of them with each of its ends. Passes: the loss,
activations, what becomes of gradients, and sums of columns.

Products are compared with float64's; a wrong one is named, and the exit status is 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import gpu_timing
import table
from distgnn import rng
from distgnn.arrays.tuning import TUNING
from distgnn.local import cuda
from distgnn.local.cuda.cublas import Cublas
from distgnn.local.epilogue import Epilogue, Kept
from gpu_spmm import Ceilings
from gpu_timing import Work, medians, milliseconds

#: Columns of both matrices of a product, by rows and transposed.
BY_ROWS = "128x128 128x40 40x128 64x64 64x16 256x64 256x256 41x41".split()
BY_COLUMNS = "128x128 128x40 40x128 64x16 602x128 256x256".split()
COLUMNS = [7, 40, 41, 128, 172]
WAYS = {"ours": 1e-5, "ours, TF32": 5e-3, "cuBLAS": 1e-5, "cuBLAS, TF32": 5e-3}  # the largest error, by name


def operands(on: Any, kind: str, m: int, sizes: str) -> tuple[Any, Any]:
    """Make the two operands of X W, of G Wᵀ or of Xᵀ G."""
    first, second = map(int, sizes.split("x"))
    X = drawn(on, m, first)
    if kind == "Xᵀ G":
        return X.T, drawn(on, m, second)
    return X, drawn(on, second, first).T if kind == "G Wᵀ" else drawn(on, first, second)


def drawn(on: Any, m: int, f: int) -> Any:
    """Draw numbers between -0.5 and 0.5."""
    X, columns = on.empty((m, f), np.float32), on.xp.arange(f)
    for start in range(0, m, 1 << 16):
        rows = on.xp.arange(start, min(m, start + (1 << 16)))
        X[start : start + len(rows)] = rng.uniform(0, rows, columns) - 0.5
    return X


def products(A: Any, B: Any, out: Any, on: Any) -> dict[str, Work]:
    """Return the products of A and B by their ways, those that there are."""
    works: dict[str, Work] = {}
    for name, exact in (("ours", True), ("ours, TF32", False)):
        if cuda.gemm(A, B, out, exact=exact):
            works[name] = partial(cuda.gemm, A, B, out, exact=exact)
    for name, tf32 in (("cuBLAS", False), ("cuBLAS, TF32", True)):
        try:
            works[name] = partial(Cublas(on.xp, tf32).matmul, A, B, out)
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
    return works


def of_products(args: Any, on: Any, wrong: list[str]) -> Iterator[str]:
    """Yield the rows of the table of products."""
    copy = Ceilings.measured(on, args.rows / 2**20).copy
    given = [("X W", s) for s in args.by_rows] + [("G Wᵀ", s) for s in args.by_rows]
    for kind, sizes in given + [("Xᵀ G", s) for s in args.by_columns]:
        A, B = operands(on, kind, args.rows, sizes)
        (m, k), n = A.shape, B.shape[1]
        out, exact = on.empty((m, n), np.float32), A.astype(np.float64) @ B.astype(np.float64)
        works = products(A, B, out, on)
        for name, work in works.items():
            out.fill(0)
            work()
            if not float(abs(out - exact).max()) <= WAYS[name] * float(abs(exact).max()):
                wrong.append(f"{kind}, {m} x {k} x {n}, {name}")
        times = medians(on, works, args.rounds, args.least_ms)
        told = {name.rstrip("*"): milliseconds(ms) + "*" * name.endswith("*") for name, ms in times.items()}
        cells = [told.get(name, "") for name in WAYS]
        floor = milliseconds(1e3 * (A.nbytes + B.nbytes + out.nbytes) / copy)
        yield f"| {kind} | {m} | {k} | {n} | {' | '.join(cells)} | {floor} |"


def ended(A: Any, W: Any, out: Any, end: Callable[[], Any]) -> bool:
    """Multiply with an end of its own, which is done once; tell whether the product did it."""
    then = end()
    return cuda.gemm(A, W, out, then=then) and (then is None or then.done)


def of_ends(args: Any, on: Any, wrong: list[str]) -> Iterator[str]:
    """Yield the rows of a product with each of its ends."""
    A, W = operands(on, "X W", args.rows, "128x128")
    out, bias = on.empty(A.shape, np.float32), on.zeros((1, 128), np.float32)
    mask = 1, on.xp.arange(args.rows), on.xp.arange(128), 0.5
    bits = on.xp.full(out.size // 8, 0x55, np.uint8)
    ends: dict[str, Any] = {
        "none": lambda: None, "bias, ReLU and bits": lambda: Epilogue(bias, relu=True, remember=True),
        "with dropout": lambda: Epilogue(bias, mask, relu=True, remember=True),
        "a gradient's mask": lambda: Kept(bits),
    }  # fmt: skip
    works: dict[str, Work] = {}
    for name, end in ends.items():
        works[name] = partial(ended, A, W, out, end)
    wrong += [f"no product with {name}" for name, work in works.items() if not work()]
    for name, ms in medians(on, works, args.rounds, args.least_ms).items():
        yield f"| {name} | {milliseconds(ms)} |"


def passes(on: Any, m: int, f: int) -> dict[str, tuple[Work, float]]:
    """Return the passes over m rows of f columns, and how many arrays of that size each reads and writes."""
    xp = on.xp
    Z, out = drawn(on, m, f), on.empty((m, f), np.float32)
    places, labels = xp.arange(m, dtype=np.int32), xp.arange(m) % f
    bits, bias = cuda.positive_bits(Z), on.zeros((1, f), np.float32)
    mask = 1, xp.arange(m), xp.arange(f), 0.5
    return {
        "`softmax_cross_entropy`": (partial(cuda.softmax_cross_entropy, Z, places, labels, out), 2),
        "`activate`, ReLU and bits": (partial(cuda.activate, Z, out, None, True, True), 2),
        "`activate`, with bias and dropout": (partial(cuda.activate, Z, out, mask, True, True, bias), 2),
        "`keep_positive`": (partial(cuda.keep_positive, Z.copy(), bits), 2),
        "`column_sums`": (partial(cuda.column_sums, Z), 1),
    }


def of_passes(args: Any, on: Any, wrong: list[str]) -> Iterator[str]:
    """Yield the rows of the table of passes."""
    for f in args.columns:
        known = passes(on, args.rows, f)
        works = {name: work for name, (work, _) in known.items()}
        for name, ms in medians(on, works, args.rounds, args.least_ms).items():
            moved = known[name.rstrip("*")][1] * 4 * args.rows * f
            yield f"| {name} | {f} | {milliseconds(ms)} | {moved / ms / 1e9:.2f} |"


TABLES = {
    "products": (of_products, ("product", "m", "k", "n", *WAYS, "floor")),
    "ends": (of_ends, ("end of X W, 128 by 128", "ms")),
    "passes": (of_passes, ("kernel", "columns", "ms", "TB/s")),
}


def main() -> int:
    parser = table.arguments(__doc__)
    add = parser.add_argument
    add("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    add("--rows", type=int, default=1 << 20)
    add("--by-rows", nargs="+", default=BY_ROWS, metavar="KxN", help="of X W and G Wᵀ")
    add("--by-columns", nargs="+", default=BY_COLUMNS, metavar="KxN", help="of Xᵀ G")
    add("--columns", nargs="+", type=int, default=COLUMNS, help="of passes")
    add("--rounds", type=int, default=5)
    add("--least-ms", type=float, default=10, help="of a turn")
    args = parser.parse_args()
    on, report, wrong = gpu_timing.bound("gpu_dense"), gpu_timing.Report(args), list[str]()
    TUNING.long_dimension = min(TUNING.long_dimension, args.rows)  # few rows by the same kernels
    report.begin(args, gpu_timing.device_name(on.xp))
    for name in args.tables:
        rows, heads = TABLES[name]
        report.say(*table.columns(*heads))
        for row in rows(args, on, wrong):
            report.say(row)
        report.say("")
    if wrong:
        report.say(*(f"**WRONG**: {one}" for one in wrong), "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
