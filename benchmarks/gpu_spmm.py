"""CSR times dense on one GPU: the kernels of ``kernels/csr_spmm.cu`` beside cached cuSPARSE and PyTorch.

    python benchmarks/gpu_spmm.py --out results/gpu.md                   float32, then bfloat16
    python benchmarks/gpu_spmm.py --tables variants --graphs rmat-17 --widths 16 128

Each figure is the median over rounds in which all kernels take turns, each a CUDA graph of eight calls, so
that the host is not in it (before a `*` it is: that call cannot be captured). Rows are written as they come.

- float32, float64: the variant that the tuner chose; cuSPARSE's algorithms row-major, whose descriptors,
  workspace and preprocessing are made once and not timed; PyTorch's CSR product; the product that ends with
  bias and ReLU, in the same launch. "vs": the faster of both algorithms over ours.
- bfloat16, float16: B found in 16 bits, the pass that rounds it, and the time of the same product in float32
  over this one; sums in float32. Peers read values in 16 bits, too.
- variants: every variant that the tuner tries.
- floor: the larger of the bytes that pass through memory at least, indices, weights, B and the result once,
  at the bandwidth of a copy, and of those from the L2 cache, a row of B for each non-zero, at the bandwidth
  of reads from it; both are measured first. Reuse in L1 may go below it. roof: bytes if no row of B were
  found in a cache, over the copy's bandwidth.

Results are compared with SciPy's on 256 rows; a wrong one is named, and the exit status is 1.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import gpu_timing
import table
from distgnn import rng
from distgnn.arrays.csr import CSR
from distgnn.local import cuda
from distgnn.local.cuda import csr, cusparse, launch
from distgnn.local.epilogue import Epilogue
from distgnn.local.narrow import KINDS, widen
from gpu_graphs import kept
from gpu_timing import Report, Work, medians, milliseconds

#: The widths of the table of results, by graph.
CELLS = {
    "road-19": (16, 32, 128), "rmat-18": (16, 32, 128), "reddit-15": (16, 32, 64, 128, 256),
    "rmat-20": (16, 64, 128, 256), "uniform-20": (16, 64, 128, 256),
}  # fmt: skip
CEILINGS = str(Path(__file__).resolve().with_name("ceilings.cu"))
CHECKED = 256  # rows
ALGORITHMS = tuple(cusparse.ALGORITHMS)
PYTORCH = "PyTorch"
ENDING, ROUNDING = "with its end", "rounding"


@dataclass
class Product:
    """A product on the device: A (n, n), B (n, f) and its result.

    Attributes:
        rows, expected: some rows, and A B there.
    """

    on: Any
    A: CSR
    B: Any
    out: Any
    rows: np.ndarray
    expected: np.ndarray

    @classmethod
    def of(cls, on: Any, matrix: sp.csr_array, A: CSR, f: int) -> Product:
        n = A.shape[0]
        B, columns = on.empty((n, f), A.dtype), on.xp.arange(f)
        for start in range(0, n, 1 << 16):
            ids = on.xp.arange(start, min(n, start + (1 << 16)))
            B[start : start + len(ids)] = rng.uniform(0, ids, columns) - 0.5
        rows = np.unique(np.linspace(0, n - 1, CHECKED).astype(np.int64))
        made = cls(on, A, B, on.empty((n, f), A.dtype), rows, np.empty(0))
        made.expected = made.answer(matrix, B)
        return made

    def answer(self, matrix: sp.csr_array, B: Any) -> np.ndarray:
        """Compute the rows on the host."""
        some = matrix[self.rows].astype(np.float64)
        used, some.indices = np.unique(some.indices, return_inverse=True)
        read = sp.csr_array((some.data, some.indices, some.indptr), shape=(len(self.rows), len(used)))
        return read @ self.on.to_host(B[self.on.asarray(used)]).astype(np.float64)

    def floor(self, limits: Ceilings, stored: int) -> float:
        """Return the least milliseconds, with numbers of so many bytes in B."""
        (n, f), item = self.B.shape, self.A.dtype.itemsize
        entries, result = self.A.nnz * (4 + item), n * f * item
        memory = (entries + result + n * f * stored) / limits.copy
        return 1e3 * max(memory, (entries + result + self.A.nnz * f * stored) / limits.cache)

    def no_reuse_bytes(self, stored: int) -> int:
        """Count the bytes that move if no row of B, of such numbers, is ever found in a cache."""
        (n, f), item = self.B.shape, self.A.dtype.itemsize
        return self.A.nnz * (4 + item + stored * f) + item * n * f + 8 * n


@dataclass
class Ceilings:
    """Bytes per second of a copy, of reads from memory and from the L2 cache."""

    copy: float
    read: float
    cache: float

    @classmethod
    def measured(cls, on: Any, scale: float = 1.0) -> Ceilings:
        """Measure them, on arrays of `scale` gigabytes."""
        xp, big = on.xp, max(int(scale * 2**30) // 4096, 1) * 4096
        x, y = xp.zeros(big // 4, np.float32), xp.zeros(big // 4, np.float32)
        blocks = max(1, int(scale * 132 * 8))
        sums = xp.empty(blocks * launch.THREADS, np.uint32)

        def seconds(work: Work) -> float:
            return min(medians(on, {"": work}, 5, 10 * scale).values()) / 1e3

        def copy() -> None:
            y[...] = x

        def read(nbytes: int, rounds: int) -> float:
            arguments = x, np.int64(nbytes // 16), np.int32(rounds), sums
            grid = max(1, min(nbytes // 16 // launch.THREADS, blocks))
            work: Work = lambda: launch.launch(xp, CEILINGS, "read_repeatedly", grid, *arguments)  # noqa: E731
            return nbytes * rounds / seconds(work)

        return cls(2 * big / seconds(copy), read(big, 1), read(int(scale * 2**24) // 16 * 16, 50))

    def __str__(self) -> str:
        rates = ((name, getattr(self, name) / 1e12) for name in ("copy", "read", "cache"))
        return "Terabytes per second of " + ", ".join(f"{name} {rate:.2f}" for name, rate in rates)


# -- what is timed, by name ----------------------------------------------------------------------------------


def in_full(product: Product) -> dict[str, Work]:
    """Return the products of the dtype that A has."""
    A, B, out = product.A, product.B, product.out
    bias = product.on.zeros((1, B.shape[1]), A.dtype)
    works: dict[str, Work] = {
        "ours": lambda: cuda.spmm(A, B, out),
        ENDING: lambda: cuda.spmm(A, B, out, then=Epilogue(bias, relu=True)),
    }
    peer = cusparse.Products(product.on.xp, A)
    works |= of_cusparse(product, peer, B)
    return works | of_pytorch(product, A.data, B)


def in_16_bits(product: Product, kind: str) -> dict[str, Work]:
    """Return the products that read B in 16 bits, and the rounding."""
    A, B, out, xp = product.A, product.B, product.out, product.on.xp
    beyond = xp.zeros(1, np.int32)
    read = cuda.rounded(B, kind, beyond)
    values = xp.empty(A.data.shape, np.uint16)
    cuda.narrow(A.data, values, kind, beyond)
    works: dict[str, Work] = {
        "float32": lambda: cuda.spmm(A, B, out),
        "ours": lambda: cuda.spmm(A, read, out),
        ROUNDING: lambda: cuda.rounded(B, kind, beyond),
    }
    if read.bits.shape == B.shape:
        peer = cusparse.Products(xp, A, values, kind)
        works |= of_cusparse(product, peer, read.bits) | of_pytorch(product, values, read.bits, kind)
    return works


class Captured:
    """CuPy's interface to cuSPARSE but for products, which are called past CuPy, as that refuses captures."""

    def __init__(self, xp: Any) -> None:
        self.xp, self.api = xp, xp.cuda.cusparse

    def __getattr__(self, name: str) -> Any:
        return getattr(self.api, name)

    def spMM(self, handle: int, *arguments: int) -> None:
        """Queue a product on the current stream."""
        direct, stream = cusparse.function("cusparseSpMM"), self.xp.cuda.get_current_stream()
        if direct is None:
            self.api.spMM(handle, *arguments)
            return
        if not stream.is_capturing():  # then it is set already
            self.api.setStream(handle, stream.ptr)
        if status := direct(handle, *arguments):
            raise RuntimeError(f"cusparseSpMM failed with status {status}")


def of_cusparse(product: Product, peer: cusparse.Products, B: Any) -> dict[str, Work]:
    """Return cuSPARSE's two algorithms."""
    if not hasattr(product.on.xp.cuda, "cusparse"):
        return {}
    peer.api = Captured(product.on.xp)
    multiply = lambda name: peer.multiply(product.on.xp, name, B, product.out, False)  # noqa: E731
    return {name: lambda name=name: multiply(name) for name in ALGORITHMS}  # type: ignore[misc]


def of_pytorch(product: Product, values: Any, B: Any, kind: str = "") -> dict[str, Work]:
    """Return PyTorch's CSR product on the same memory and stream, where PyTorch with CUDA is installed."""
    try:
        import torch

        if not torch.cuda.is_available():
            return {}
        block, dtype = product.A, getattr(torch, kind) if kind else None
        pointers, indices, data, dense = (
            torch.from_dlpack(array) for array in (block.indptr, block.indices, values, B)
        )
        data, dense = (x.view(dtype) if dtype else x for x in (data, dense))
        A = torch.sparse_csr_tensor(pointers, indices, data, size=block.shape)
    except (ImportError, RuntimeError, BufferError) as reason:
        print(f"without PyTorch: {reason}", file=sys.stderr)
        return {}
    stream = torch.cuda.ExternalStream(product.on.xp.cuda.get_current_stream().ptr)

    def multiply() -> None:
        with torch.cuda.stream(stream):
            A @ dense

    return {PYTORCH: multiply}


def variants(product: Product) -> dict[str, Work]:
    """Return the variants that the tuner tries."""
    A, B, out = product.A, product.B, product.out
    size = csr.RowFacts.of(product.on.xp, A).size(B.shape[1], B.dtype.itemsize)
    ways = csr.candidates(size, launch.address(B) & -launch.address(B) or csr.VECTOR_BYTES)
    return {str(way): lambda way=way: cuda.spmm(A, B, out, variant=way) for way in ways}  # type: ignore[misc]


# -- answers -------------------------------------------------------------------------------------------------


def wrong(product: Product, works: dict[str, Work], expected: np.ndarray, apart: float = 1e-3) -> list[str]:
    """Name the kernels whose result is wrong. Results of PyTorch and of rounding lie elsewhere."""
    bad, most = [], float(np.abs(expected).max(initial=0))
    for name, work in works.items():
        if name in (PYTORCH, ROUNDING):
            continue
        product.out[...] = np.nan
        work()
        answer = np.maximum(expected, 0) if name == ENDING else expected
        got = product.on.to_host(product.out[product.on.asarray(product.rows)])
        if not np.allclose(got, answer, rtol=apart, atol=apart * max(1.0, most)):
            bad.append(name)
    return bad


def rounded_answer(product: Product, matrix: sp.csr_array, kind: str) -> np.ndarray:
    """Compute the rows on the host, of the numbers of B that are left in 16 bits."""
    on, B = product.on, product.B
    bits = cuda.rounded(B, kind, on.xp.zeros(1, np.int32)).bits[:, : B.shape[1]]
    return product.answer(matrix, widen(on.asarray(bits), on.empty(B.shape, np.float32), kind))


def timed(product: Product, works: dict[str, Work], settings: Any) -> dict[str, float]:
    """Measure the calls, once the tuners have made up their minds."""
    for name in ("ours", ENDING, "float32"):
        for _ in range(40 if name in works else 0):
            works[name]()
    return medians(product.on, works, settings.rounds, settings.least_ms)


def of(times: dict[str, float], name: str) -> float:
    """Return the time of this name, captured or not; NaN where there is none."""
    return times.get(name, times.get(f"{name}*", math.nan))


def cell(times: dict[str, float], name: str) -> str:
    """Write the time, with the mark of one that was not captured."""
    return milliseconds(of(times, name)) + "*" * (f"{name}*" in times)


def ratio(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


# -- tables --------------------------------------------------------------------------------------------------

Row = tuple[list[str], list[float]]  # cells, and ratios that the last lines have the means of
PEERS = (*ALGORITHMS, PYTORCH)


def product_rows(
    product: Product, matrix: sp.csr_array, limits: Ceilings, settings: Any, kind: str = ""
) -> Iterator[Row]:
    """Yield the row of a product in A's dtype, or of one that reads 16 bits."""
    works, stored = (in_16_bits(product, kind), 2) if kind else (in_full(product), product.A.dtype.itemsize)
    loose = {name: works[name] for name in ALGORITHMS if kind and name in works}  # peers round A, too
    exact = {name: work for name, work in works.items() if name not in (*loose, "float32")}
    expected = rounded_answer(product, matrix, kind) if kind else product.expected
    check([*wrong(product, exact, expected), *wrong(product, loose, product.expected, 2e-2)])
    times = timed(product, works, settings)
    ms, peers = of(times, "ours"), [of(times, name) for name in ALGORITHMS]
    vs = min((peer for peer in peers if not math.isnan(peer)), default=math.nan) / ms
    rates = [f"{2 * product.A.nnz * product.B.shape[1] / ms / 1e6:.0f}",
             f"{product.no_reuse_bytes(stored) / ms * 1e3 / limits.copy:.2f}"]  # fmt: skip
    cells = [cell(times, "ours"), milliseconds(product.floor(limits, stored)), *rates]
    cells += [*(cell(times, name) for name in PEERS), ratio(vs)]
    gain = of(times, "float32") / ms
    yield cells + ([cell(times, ROUNDING), ratio(gain)] if kind else [cell(times, ENDING)]), [vs, gain]


def variant_rows(product: Product, matrix: sp.csr_array, limits: Ceilings, settings: Any) -> Iterator[Row]:
    works = variants(product)
    check(wrong(product, works, product.expected))
    times = medians(product.on, works, settings.rounds, settings.least_ms)
    best = min(times.values())
    for name, ms in times.items():
        yield [name, milliseconds(ms), ratio(ms / best)], []


HEADS = "ms", "floor", "GFLOP/s", "roof", *PEERS, "vs cuSPARSE"
MEANS = "cuSPARSE's time over ours", "float32's over ours"
TABLES: dict[str, tuple[tuple[str, ...], Callable[..., Iterator[Row]]]] = {
    **dict.fromkeys(("float32", "float64"), ((*HEADS, ENDING), product_rows)),
    **{kind: ((*HEADS, ROUNDING, "float32"), partial(product_rows, kind=kind)) for kind in KINDS},
    "variants": (("variant", "ms", "of the best"), variant_rows),
}


class Wrong(Exception):
    """Kernels whose results are wrong."""


def check(bad: list[str]) -> None:
    """Raise Wrong with the names, if there are any."""
    if bad:
        raise Wrong(", ".join(bad))


def block_of(A: sp.csr_array, dtype: Any, on: Any) -> CSR:
    """Return the matrix on the GPU, with 32-bit indices."""
    dtype = np.dtype(dtype)
    packed = np.empty(CSR.nbytes(A.shape, A.nnz, np.int32, dtype), np.uint8)
    host = CSR(A.shape, A.nnz, np.int32, dtype, packed)
    host.data[...], host.indices[...], host.indptr[...] = A.data, A.indices, A.indptr
    return CSR(A.shape, A.nnz, np.int32, dtype, on.asarray(packed))


def run(on: Any, name: str, limits: Ceilings, report: Report, settings: Any) -> bool:
    """Write a table. Returns whether all results are right."""
    names, rows = TABLES[name]
    report.say(f"### {name}", "", *table.columns("graph", "f", *names))
    ratios, right = list[list[float]](), True
    for graph, widths in settings.cells.items():
        matrix = kept(graph, settings.kept_in)
        A = block_of(matrix, "float64" if name == "float64" else np.float32, on)
        for f in widths:
            try:
                product = Product.of(on, matrix, A, f)
                for cells, numbers in rows(product, matrix, limits, settings):
                    report.say(f"| {graph} | {f} | {' | '.join(cells)} |")
                    ratios.append(numbers)
            except Wrong as error:
                report.say("", f"**WRONG: {graph}, f={f}: {error}**", "")
                right = False
    report.say("", *summary(ratios), "")
    return right


def summary(ratios: list[list[float]]) -> list[str]:
    """Give the means and the least of the ratios."""
    lines = []
    for title, column in zip(MEANS, zip(*ratios, strict=True), strict=False):
        values = [value for value in column if not math.isnan(value)]
        if values:
            mean = math.exp(sum(map(math.log, values)) / len(values))
            lines.append(f"- {title}: geometric mean {mean:.2f}, least {min(values):.2f}, of {len(values)}")
    return lines


def main() -> int:
    parser = table.arguments(__doc__)
    add = parser.add_argument
    add("--tables", nargs="+", default=["float32", "bfloat16"], choices=list(TABLES))
    add("--graphs", nargs="+", help=f"of gpu_graphs.py (default: {' '.join(CELLS)})")
    add("--widths", nargs="+", type=int, help="of B (default: those of the table of results)")
    add("--rounds", type=int, default=5)
    add("--least-ms", type=float, default=10, help="of a turn")
    add("--scale", type=float, default=1.0, help="gigabytes of the arrays that bandwidth is measured on")
    add("--kept-in", type=Path, metavar="FOLDER", help="read graphs from here, or save them")
    args = parser.parse_args()
    on = gpu_timing.bound("gpu_spmm")
    usual = {name: CELLS.get(name, (16, 64, 128)) for name in args.graphs or CELLS}
    args.cells = {name: args.widths or widths for name, widths in usual.items()}
    report = Report(args)
    report.begin(args, gpu_timing.device_name(on.xp))
    limits = Ceilings.measured(on, args.scale)
    report.say(f"{limits}; milliseconds of products.", "")
    right = [run(on, name, limits, report, args) for name in args.tables]
    if not cusparse.preprocesses():
        report.say("- cuSPARSE: CSR_ALG3 without preprocessing, which was not found", "")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
