"""CSR times dense on one GPU: the kernels of ``kernels/csr_spmm.cu`` beside cached cuSPARSE and PyTorch,
graph by graph.

    python benchmarks/gpu_spmm.py --out results/gpu_spmm.md
    python benchmarks/gpu_spmm.py --quick --out results/gpu_spmm.md         three graphs, three widths
    python benchmarks/gpu_spmm.py --graphs rmat-17 uniform-17 --widths 16 128 --variants

Every number is the median over rounds in which all kernels take turns, each timed by events around enough
launches to fill some milliseconds. Results are written as they come. What the columns say:

- GB/s: bytes if no row of B were ever found in a cache, nnz (8 + 4 f) + 4 n f + 8 n for float32, per second;
- roof: that rate over the copy bandwidth measured in the same run; more than 1 means that caches helped;
- gathers: bytes of B gathered per second over the rate of random gathers measured in the same run, of rows as
  wide from as many bytes: more than 1 means that the graph has locality;
- "raw, KIND" rounds B to 16 bits and reads that; "raw, KIND read" finds it rounded; "rounding to KIND" is the
  pass alone, whose GB/s are of 6 n f bytes. In bytes and gathers a number of B then counts as 2 bytes;
- vs cuSPARSE: its time over this one: the better of CSR_ALG2 and CSR_ALG3, row-major. Descriptors, workspace
  and, for CSR_ALG3, preprocessing are made once and not timed.
"""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import table
from distgnn import gallery
from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.local import cuda, narrow, widen
from distgnn.local.cuda import csr, cusparse, launch
from distgnn.local.narrow import KINDS

WIDTHS = [16, 32, 64, 128, 256]
TARGETS = {
    "vs cuSPARSE, geometric mean": 1.3,
    "vs cuSPARSE, worst": 0.95,
    "roof, worst": 0.9,
    "roof on power-law graphs": 1.2,
}

#: Bytes of rows, and megabytes of the arrays that they are drawn from.
GATHERED_ROWS, GATHERED_FROM = (32, 64, 128, 512), (8, 16, 32, 64, 100, 200)

CEILINGS = str(Path(__file__).resolve().with_name("ceilings.cu"))

ROUNDING = "rounding to"

Work = Callable[[], Any]


def uniform(n: int, degree: int) -> sp.csr_array:
    """Make rows of ``degree`` columns drawn at random."""
    rng = np.random.default_rng(0)
    indices = np.sort(rng.integers(0, n, (n, degree)), axis=1).ravel()
    return sp.csr_array((np.ones(n * degree), indices, np.arange(n + 1) * degree), shape=(n, n))


def reddit(n: int, degree: int = 256) -> sp.csr_array:
    """Make a graph of degrees log-normal around ``degree``; a fifth of the columns get four fifths of the
    draws.
    """
    rng = np.random.default_rng(0)
    degrees = np.minimum(rng.lognormal(math.log(degree) - 0.5, 1, n).astype(np.int64) + 1, n)
    indptr = np.concatenate(([0], np.cumsum(degrees)))
    drawn = (n * rng.random(indptr[-1], np.float32) ** 7).astype(np.int64)  # 0.2^(1/7) = 0.8
    A = sp.csr_array((np.ones(len(drawn), np.float32), drawn * 40503 % n, indptr), shape=(n, n))
    A.sort_indices()
    return A


def graph(name: str) -> sp.csr_array:
    """Make rmat-K, uniform-K, dense-K (degree 128), reddit-K (degree 256), sbm-K or road-K of 2^K nodes, with
    random values.
    """
    kind, _, exponent = name.partition("-")
    n = 1 << int(exponent)
    if kind in ("uniform", "dense"):
        A = uniform(n, 16 if kind == "uniform" else 128)
    elif kind == "reddit":
        A = reddit(n)
    else:
        A = {"rmat": gallery.rmat, "sbm": gallery.sbm, "road": gallery.road}[kind](n).A
    A.data = np.random.default_rng(1).uniform(0.5, 1, A.nnz)
    return A


GRAPHS = ["road-20", "rmat-17", "rmat-20", "uniform-17", "uniform-20", "reddit-17"]
QUICK_GRAPHS, QUICK_WIDTHS = ["road-19", "rmat-18", "reddit-15"], [16, 32, 128]


@dataclass
class Case:
    """One graph at one width: bytes and flops of the product. ``stored``: bytes of a number of B, or 0."""

    name: str
    A: sp.csr_array
    f: int
    itemsize: int
    stored: int = 0

    @property
    def flops(self) -> int:
        return 2 * self.A.nnz * self.f

    @property
    def no_reuse_bytes(self) -> int:
        """Bytes that move if no row of B is ever found in a cache."""
        n, nnz = self.A.shape[0], self.A.nnz
        return nnz * (4 + self.itemsize + self.row_bytes) + self.itemsize * n * self.f + 8 * n

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of B."""
        return (self.stored or self.itemsize) * self.f


def milliseconds(xp: Any, work: Work, launches: int) -> float:
    """Time of one launch, from events around so many."""
    start, end = xp.cuda.Event(), xp.cuda.Event()
    start.record()
    for _ in range(launches):
        work()
    end.record()
    end.synchronize()
    return float(xp.cuda.get_elapsed_time(start, end)) / launches


def medians(xp: Any, works: dict[str, Work], rounds: int, least_ms: float) -> dict[str, float]:
    """Measure median milliseconds of every kernel; in a round all take turns, so that clocks and heat treat
    them alike.
    """
    launches = {}
    for name, work in works.items():
        for _ in range(3):
            work()
        launches[name] = max(1, min(1000, math.ceil(least_ms / max(milliseconds(xp, work, 1), 1e-3))))
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(milliseconds(xp, work, launches[name]))
    return {name: float(np.median(ms)) for name, ms in times.items()}


@dataclass
class Ceilings:
    """Bytes per second: of a copy, of reads from memory and from the L2 cache, and of random gathers, by
    bytes of a row and of the array.
    """

    copy: float
    read: float
    cache: float
    gathers: dict[tuple[int, int], float]

    def gather(self, row: int, array: int) -> float:
        """Return the rate of the next narrower measured rows, from the next larger measured array."""
        rows = max((r for r, _ in self.gathers if r <= row), default=min(r for r, _ in self.gathers))
        sizes = [size for _, size in self.gathers]
        return self.gathers[rows, min((size for size in sizes if size >= array), default=max(sizes))]

    def markdown(self) -> str:
        lines = [f"- copy: {self.copy / 1e9:.0f} GB/s", f"- read: {self.read / 1e9:.0f} GB/s"]
        lines.append(f"- L2 read: {self.cache / 1e9:.0f} GB/s")
        rows, sizes = (list(dict.fromkeys(key[i] for key in self.gathers)) for i in (0, 1))
        heads = " | ".join(f"{size / 1e6:.3g} MB" for size in sizes)
        lines += ["", f"| GB/s of random rows from | {heads} |", "|---|" + "---:|" * len(sizes)]
        for row in rows:
            rates = " | ".join(f"{self.gathers[row, size] / 1e9:.0f}" for size in sizes)
            lines.append(f"| {row} bytes | {rates} |")
        return "\n".join(lines)


def ceilings(xp: Any, scale: float = 1.0) -> Ceilings:
    """Measure the most that the memory of this GPU does; ``scale`` shrinks the arrays, for tests."""
    big = max(int(scale * 2**30) // 4096, 1) * 4096
    x, y = xp.zeros(big // 4, np.float32), xp.zeros(big // 4, np.float32)
    blocks = max(1, int(min(scale, 1) * 132 * 8 * 4))
    sums = xp.empty(blocks * launch.THREADS, np.uint32)

    def seconds(work: Work) -> float:
        return medians(xp, {"": work}, 5, 10 * scale)[""] / 1e3

    def copy() -> None:
        y[...] = x

    def read(nbytes: int, rounds: int) -> float:
        arguments = x, np.int64(nbytes // 16), np.int32(rounds), sums
        grid = max(1, min(132 * 8, nbytes // 16 // launch.THREADS, blocks))
        return (
            nbytes
            * rounds
            / seconds(lambda: launch.launch(xp, CEILINGS, "read_repeatedly", grid, *arguments))
        )

    def gather(row: int, nbytes: int) -> float:
        arguments = x, np.int32(max(nbytes // row, 1)), np.int32(row // 16), np.int32(64), sums
        taken = seconds(lambda: launch.launch(xp, CEILINGS, "gather_randomly", blocks, *arguments))
        return blocks * launch.THREADS * 16 * 64 / taken

    sizes = [max(512, int(min(scale, 1) * megabytes * 1e6)) for megabytes in GATHERED_FROM]
    gathers = {(row, size): gather(row, size) for row in GATHERED_ROWS for size in sizes}
    return Ceilings(2 * big / seconds(copy), read(big, 1), read(int(min(scale, 1) * 2**24), 50), gathers)


def kernels(xp: Any, block: CSR, B: Any, out: Any, variants: bool) -> dict[str, Work]:
    """Return the kernels to compare, by name."""
    works: dict[str, Work] = {"raw": lambda: cuda.spmm(block, B, out)}
    if variants:
        alignment = launch.address(B) & -launch.address(B) or 256
        plan = csr.RowFacts.of(xp, block)
        for way in csr.candidates(plan.size(B.shape[1], B.dtype.itemsize), alignment):
            works[f"raw {way}"] = lambda way=way: cuda.spmm(block, B, out, variant=way)  # type: ignore[misc]
    if hasattr(xp.cuda, "cusparse"):
        for name in ("CSR_ALG2", "CSR_ALG3"):
            works[f"cuSPARSE {name}"] = lambda name=name: cuda.spmm_cusparse(block, B, out, algorithm=name)  # type: ignore[misc]
    return works | torch_kernel(block, B)


def narrow_kernels(xp: Any, block: CSR, B: Any, out: Any, kind: str, variants: bool) -> dict[str, Work]:
    """Return the products that read B in 16 bits, and the rounding alone, by name."""
    beyond = xp.zeros(1, np.int32)
    read = cuda.rounded(B, kind, beyond)
    works: dict[str, Work] = {
        f"raw, {kind}": lambda: cuda.spmm(block, cuda.rounded(B, kind, beyond), out),
        f"raw, {kind} read": lambda: cuda.spmm(block, read, out),
        f"{ROUNDING} {kind}": lambda: cuda.rounded(B, kind, beyond),
    }
    if variants:
        plan = csr.RowFacts.of(xp, block)
        for way in csr.candidates(plan.size(B.shape[1], 2), csr.VECTOR_BYTES):
            works[f"raw, {kind} {way}"] = lambda way=way: cuda.spmm(block, read, out, variant=way)  # type: ignore[misc]
    return works


def in_16_bits(B: np.ndarray, kind: str) -> np.ndarray:
    """Return the numbers that are left of B."""
    bits = narrow(B, np.empty(B.shape, np.uint16), kind, np.zeros(1, np.int32))
    return widen(bits, np.empty_like(B), kind)


def torch_kernel(block: CSR, B: Any) -> dict[str, Work]:
    """Return PyTorch's CSR product on the same memory, where PyTorch with CUDA is installed."""
    try:
        import torch

        if not torch.cuda.is_available():
            return {}
        arrays = [torch.from_dlpack(array) for array in (block.indptr, block.indices, block.data)]
        A = torch.sparse_csr_tensor(*arrays, size=block.shape)
        dense = torch.from_dlpack(B)
    except (ImportError, RuntimeError, BufferError) as reason:
        print(f"without PyTorch: {reason}", file=sys.stderr)
        return {}
    return {"PyTorch": lambda: A @ dense}


def check(
    works: dict[str, Work], out: Any, expected: np.ndarray, to_host: Callable[[Any], np.ndarray]
) -> list[str]:
    """Return the names of kernels whose result is wrong; PyTorch's and rounding's lie elsewhere."""
    wrong = []
    for name, work in works.items():
        if name == "PyTorch" or name.startswith(ROUNDING):
            continue
        out[...] = np.nan
        work()
        got = to_host(out[: len(expected)])
        if not np.allclose(got, expected, rtol=1e-3, atol=1e-3 * max(1.0, float(np.abs(expected).max()))):
            wrong.append(name)
    return wrong


def settle(works: dict[str, Work]) -> None:
    """Let the tuners make up their minds before anything is timed."""
    for name, work in works.items():
        for _ in range(40 if name.startswith("raw") else 1):
            work()


def rows_of(case: Case, times: dict[str, float], limits: Ceilings) -> list[list[Any]]:
    """Return table rows of one case."""
    cusparse = min((ms for name, ms in times.items() if name.startswith("cuSPARSE")), default=math.nan)
    columns, nnz, rows = case.A.shape[1], case.A.nnz, []
    for name, ms in times.items():
        if name.startswith(ROUNDING):
            rate = 6 * columns * case.f / ms * 1e3
            shares = rate / limits.copy, math.nan, math.nan
            rows.append([case.name, case.f, name, ms, 0.0, rate / 1e9, *shares])
            continue
        one = replace(case, stored=2) if "float16" in name else case
        rate, gathered = one.no_reuse_bytes / ms * 1e3, nnz * one.row_bytes / ms * 1e3
        gather = limits.gather(one.row_bytes, columns * one.row_bytes)
        shares = rate / limits.copy, gathered / gather, cusparse / ms
        rows.append([case.name, case.f, name, ms, case.flops / ms / 1e6, rate / 1e9, *shares])
    return rows


HEADER = ["graph", "f", "kernel", "ms", "GFLOP/s", "GB/s", "roof", "gathers", "vs cuSPARSE"]
HEAD = "| " + " | ".join(HEADER) + " |\n|---|---:|---|" + "---:|" * 6


def markdown(rows: list[list[Any]]) -> str:
    """Return lines of the table."""
    lines = []
    for name, f, kernel, ms, gflops, gbytes, roof, gathers, ratio in rows:
        shares = f"{roof:.2f} | " + " | ".join("" if math.isnan(x) else f"{x:.2f}" for x in (gathers, ratio))
        lines.append(f"| {name} | {f} | {kernel} | {ms:.4f} | {gflops:.0f} | {gbytes:.0f} | {shares} |")
    return "\n".join(lines)


def summary(table: list[list[Any]]) -> str:
    """Return the figures that there are targets for, of the kernel "raw", and its time over 16 bits'."""
    raw = [row for row in table if row[2] == "raw"]
    ratios = [row[-1] for row in raw if not math.isnan(row[-1])]
    found = {"roof, worst": min(row[6] for row in raw)}
    if ratios:
        found["vs cuSPARSE, geometric mean"] = math.exp(sum(map(math.log, ratios)) / len(ratios))
        found["vs cuSPARSE, worst"] = min(ratios)
    if power_law := [row[6] for row in raw if row[0].startswith("rmat")]:
        found["roof on power-law graphs"] = min(power_law)
    lines = [
        f"- {name}: {found[name]:.2f} (target: at least {target})"
        for name, target in TARGETS.items()
        if name in found
    ]
    times = {(name, f): ms for name, f, _, ms, *_ in raw}
    for kernel in (f"raw, {kind}{read}" for kind in KINDS for read in ("", " read")):
        gains = [times[row[0], row[1]] / row[3] for row in table if row[2] == kernel]
        if gains:
            mean = math.exp(sum(map(math.log, gains)) / len(gains))
            lines.append(f"- raw over {kernel}: {mean:.2f} in the geometric mean, at least {min(gains):.2f}")
    return "\n".join(lines)


@dataclass
class Options:
    """Options of a measurement; ``scale`` shrinks the arrays of the ceilings, for tests."""

    widths: list[int]
    dtype: Any = np.float32
    rounds: int = 7
    least_ms: float = 5
    variants: bool = False
    scale: float = 1.0


def block_of(A: sp.csr_array, dtype: np.dtype, asarray: Callable[[Any], Any]) -> CSR:
    """Return the matrix on the GPU, with 32-bit indices."""
    packed = np.empty(CSR.nbytes(A.shape, A.nnz, np.int32, dtype), np.uint8)
    host = CSR(A.shape, A.nnz, np.int32, dtype, packed)
    host.data[...], host.indices[...], host.indptr[...] = A.data, A.indices, A.indptr
    return CSR(A.shape, A.nnz, np.int32, dtype, asarray(packed))


def run(
    xp: Any,
    asarray: Callable[[Any], Any],
    to_host: Callable[[Any], np.ndarray],
    cases: Iterable[tuple[str, sp.csr_array]],
    options: Options,
    write: Callable[[str], None],
) -> bool:
    """Write the report on some (name, matrix) pairs line by line. Returns whether all results are right."""
    dtype, table, right = np.dtype(options.dtype), [], True
    limits = ceilings(xp, options.scale)
    write(f"### Ceilings\n\n{limits.markdown()}\n\n### {dtype.name}\n\n{HEAD}\n")
    for name, A in cases:
        block, n = block_of(A, dtype, asarray), A.shape[0]
        first = A[: min(n, 4096)]
        for f in options.widths:
            B_host = np.random.default_rng(2).standard_normal((n, f), np.float32).astype(dtype)
            B, out = asarray(B_host), xp.zeros((n, f), dtype)
            works = kernels(xp, block, B, out, options.variants)
            wrong = check(works, out, first @ B_host.astype(np.float64), to_host)
            for kind in KINDS if dtype == np.float32 else ():
                of_kind = narrow_kernels(xp, block, B, out, kind, options.variants)
                wrong += check(of_kind, out, first @ in_16_bits(B_host, kind).astype(np.float64), to_host)
                works |= of_kind
            settle(works)
            times = medians(xp, works, options.rounds, options.least_ms)
            rows = rows_of(Case(name, A, f, dtype.itemsize), times, limits)
            table += rows
            write(markdown(rows) + "\n")
            for kernel in wrong:
                write(f"**WRONG: {name}, f={f}: {kernel} is wrong**\n")
            right = right and not wrong
    alone = (
        "" if cusparse.preprocesses() else "- cuSPARSE: CSR_ALG3 without preprocessing, which was not found\n"
    )
    write(f"\n{summary(table)}\n{alone}\n")
    return right


def device_name(xp: Any) -> str:
    properties = xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)
    runtime = xp.cuda.runtime
    versions = f"CUDA {runtime.runtimeGetVersion()}, driver {runtime.driverGetVersion()}"
    return f"{properties['name'].decode()}, {versions}"


def writer(path: Path | None) -> Callable[[str], None]:
    """Return a function that prints, and appends to the file at once."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(text: str) -> None:
        print(text, end="", flush=True)
        if path is not None:
            with open(path, "a") as file:
                file.write(text)

    return write


def main() -> int:
    parser = table.arguments(__doc__)
    parser.add_argument(
        "--graphs", nargs="+", help="rmat-K uniform-K dense-K reddit-K sbm-K road-K: 2^K nodes"
    )
    parser.add_argument("--widths", nargs="+", type=int)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="three graphs and widths, for about two minutes")
    parser.add_argument("--variants", action="store_true", help="also every variant that the tuner tries")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the arrays that bandwidth is measured on"
    )
    arguments = parser.parse_args()
    if "cupy" not in backend.available():
        print("gpu_spmm: no GPU here, or no CuPy", file=sys.stderr)
        return 2
    on, quick = backend.get("cupy"), arguments.quick
    graphs = arguments.graphs or (QUICK_GRAPHS if quick else GRAPHS)
    rounds = arguments.rounds or (3 if quick else 7)
    widths = arguments.widths or (QUICK_WIDTHS if quick else WIDTHS)
    least_ms = 5 * min(arguments.scale, 1)
    options = Options(widths, arguments.dtype, rounds, least_ms, arguments.variants, arguments.scale)
    write = writer(arguments.out)
    versions = f"CuPy {on.xp.__version__}, NumPy {np.__version__}, Python {platform.python_version()}"
    write(f"## CSR SpMM on {device_name(on.xp)}\n\n{versions}; `{table.command()}`\n\n")
    cases = ((name, graph(name)) for name in graphs)
    return 0 if run(on.xp, on.asarray, on.to_host, cases, options, write) else 1


if __name__ == "__main__":
    sys.exit(main())
