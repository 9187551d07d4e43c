"""CSR times dense on one GPU: the kernels of ``kernels/csr_spmm.cu`` beside cached cuSPARSE and PyTorch,
graph by graph.

    python benchmarks/gpu_spmm.py --out results/gpu_spmm.md
    python benchmarks/gpu_spmm.py --graphs rmat-17 uniform-17 --widths 16 128 --variants

Every number is the median over rounds in which all kernels take turns, each timed by events around enough
launches to fill some milliseconds. What the columns say:

- GB/s: bytes if no row of B were ever found in a cache, nnz (8 + 4 f) + 4 n f + 8 n for float32, per second;
- roof: that rate over the copy bandwidth measured in the same run; more than 1 means that caches helped;
- vs cuSPARSE: its time (descriptors and buffers made once, the better of CSR_ALG2 and CSR_ALG3, row-major)
  over this one.
"""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import table
from distgnn import gallery
from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.local import cuda
from distgnn.local.cuda import csr, launch

WIDTHS = [8, 16, 32, 41, 64, 100, 128, 256, 602]
TARGETS = {
    "vs cuSPARSE, geometric mean": 1.3,
    "vs cuSPARSE, worst": 0.95,
    "roof, worst": 0.9,
    "roof on power-law graphs": 1.2,
}

CEILINGS = str(Path(__file__).resolve().with_name("ceilings.cu"))

Work = Callable[[], Any]


def uniform(n: int, degree: int) -> sp.csr_array:
    """Every row has ``degree`` columns drawn at random."""
    rng = np.random.default_rng(0)
    indices = np.sort(rng.integers(0, n, (n, degree)), axis=1).ravel()
    return sp.csr_array((np.ones(n * degree), indices, np.arange(n + 1) * degree), shape=(n, n))


def graph(name: str) -> sp.csr_array:
    """rmat-K, uniform-K, dense-K (degree 128), sbm-K or road-K of 2^K nodes, as a matrix of random values."""
    kind, _, exponent = name.partition("-")
    n = 1 << int(exponent)
    if kind in ("uniform", "dense"):
        A = uniform(n, 16 if kind == "uniform" else 128)
    else:
        A = {"rmat": gallery.rmat, "sbm": gallery.sbm, "road": gallery.road}[kind](n).A
    A.data = np.random.default_rng(1).uniform(0.5, 1, A.nnz)
    return A


GRAPHS = ["rmat-15", "rmat-17", "rmat-20", "uniform-17", "uniform-20", "dense-17", "sbm-17", "road-20"]


@dataclass
class Case:
    """One graph at one width: bytes and flops of the product."""

    name: str
    A: sp.csr_array
    f: int
    itemsize: int

    @property
    def flops(self) -> int:
        return 2 * self.A.nnz * self.f

    @property
    def no_reuse_bytes(self) -> int:
        """Bytes that move if no row of B is ever found in a cache."""
        n, nnz = self.A.shape[0], self.A.nnz
        return nnz * (4 + self.itemsize * (1 + self.f)) + self.itemsize * n * self.f + 8 * n


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
    """Median milliseconds of every kernel; in a round all take turns, so that clocks and heat treat them
    alike.
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


def ceilings(xp: Any, scale: float = 1.0) -> dict[str, float]:
    """Bytes per second of a copy, of reads from memory and of reads from the L2 cache."""
    big = int(scale * 2**30) // 4096 * 4096
    x, y = xp.zeros(big // 4, np.float32), xp.zeros(big // 4, np.float32)

    def copy() -> None:
        y[...] = x

    def read(nbytes: int, rounds: int) -> float:
        blocks = max(1, min(132 * 8, nbytes // 16 // launch.THREADS))
        sums = xp.empty(blocks * launch.THREADS, np.uint32)
        arguments = x, np.int64(nbytes // 16), np.int32(rounds), sums

        def work() -> None:
            launch.launch(xp, CEILINGS, "read_repeatedly", blocks, *arguments)

        return nbytes * rounds / medians(xp, {"read": work}, 5, 20 * scale)["read"] * 1e3

    return {
        "copy": 2 * big / medians(xp, {"copy": copy}, 5, 20 * scale)["copy"] * 1e3,
        "read": read(big, 1),
        "L2 read": read(int(min(scale, 1) * 2**24), 50),
    }


def kernels(xp: Any, block: CSR, B: Any, out: Any, variants: bool) -> dict[str, Work]:
    """What to compare, by name."""
    works: dict[str, Work] = {"raw": lambda: cuda.spmm(block, B, out)}
    if variants:
        alignment = launch.address(B) & -launch.address(B) or 256
        for way in csr.candidates(B.shape[1], B.dtype.itemsize, alignment, csr.Plan.of(xp, block).average):
            works[f"raw {way}"] = lambda way=way: cuda.spmm(block, B, out, variant=way)  # type: ignore[misc]
    if hasattr(xp.cuda, "cusparse"):
        for name in ("CSR_ALG2", "CSR_ALG3"):
            works[f"cuSPARSE {name}"] = lambda name=name: cuda.spmm_cusparse(block, B, out, algorithm=name)  # type: ignore[misc]
    return works | torch_kernel(block, B)


def torch_kernel(block: CSR, B: Any) -> dict[str, Work]:
    """PyTorch's CSR product on the same memory, where PyTorch with CUDA is installed."""
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
    """Names of kernels whose result is wrong; PyTorch's lies elsewhere."""
    wrong = []
    for name, work in works.items():
        if name == "PyTorch":
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


def rows_of(case: Case, times: dict[str, float], copy: float) -> list[list[Any]]:
    """Table rows of one case."""
    cusparse = min((ms for name, ms in times.items() if name.startswith("cuSPARSE")), default=math.nan)
    table = []
    for name, ms in times.items():
        rate = case.no_reuse_bytes / ms * 1e3
        table.append(
            [case.name, case.f, name, ms, case.flops / ms / 1e6, rate / 1e9, rate / copy, cusparse / ms]
        )
    return table


HEADER = ["graph", "f", "kernel", "ms", "GFLOP/s", "GB/s", "roof", "vs cuSPARSE"]


def markdown(table: list[list[Any]]) -> str:
    lines = ["| " + " | ".join(HEADER) + " |", "|---|---:|---|" + "---:|" * 5]
    for name, f, kernel, ms, gflops, gbytes, roof, ratio in table:
        compared = "" if math.isnan(ratio) else f"{ratio:.2f}"
        lines.append(
            f"| {name} | {f} | {kernel} | {ms:.4f} | {gflops:.0f} | {gbytes:.0f} | {roof:.2f} | {compared} |"
        )
    return "\n".join(lines)


def summary(table: list[list[Any]]) -> str:
    """The figures that there are targets for, of the kernel "raw"."""
    raw = [row for row in table if row[2] == "raw"]
    ratios = [row[7] for row in raw if not math.isnan(row[7])]
    found = {"roof, worst": min(row[6] for row in raw)}
    if ratios:
        found["vs cuSPARSE, geometric mean"] = math.exp(sum(map(math.log, ratios)) / len(ratios))
        found["vs cuSPARSE, worst"] = min(ratios)
    if power_law := [row[6] for row in raw if row[0].startswith("rmat")]:
        found["roof on power-law graphs"] = min(power_law)
    return "\n".join(
        f"- {name}: {found[name]:.2f} (target: at least {target})"
        for name, target in TARGETS.items()
        if name in found
    )


@dataclass
class Options:
    """How to measure; ``scale`` shrinks the arrays of the ceilings, for tests."""

    widths: list[int]
    dtype: Any = np.float32
    rounds: int = 7
    least_ms: float = 5
    variants: bool = False
    scale: float = 1.0


def run(
    xp: Any,
    asarray: Callable[[Any], Any],
    to_host: Callable[[Any], np.ndarray],
    cases: list[Any],
    options: Options,
) -> str:
    """The report on some (name, matrix) pairs."""
    dtype = np.dtype(options.dtype)
    limits = ceilings(xp, options.scale)
    print(
        ", ".join(f"{name} {rate / 1e9:.0f} GB/s" for name, rate in limits.items()),
        file=sys.stderr,
        flush=True,
    )
    table: list[list[Any]] = []
    problems = []
    for name, A in cases:
        n = A.shape[0]
        packed = np.empty(CSR.nbytes(A.shape, A.nnz, np.int32, dtype), np.uint8)
        host = CSR(A.shape, A.nnz, np.int32, dtype, packed)
        host.data[...], host.indices[...], host.indptr[...] = A.data, A.indices, A.indptr
        block = CSR(A.shape, A.nnz, np.int32, dtype, asarray(packed))
        first = A[: min(n, 4096)]
        for f in options.widths:
            B_host = np.random.default_rng(2).standard_normal((n, f)).astype(dtype)
            B, out = asarray(B_host), xp.zeros((n, f), dtype)
            works = kernels(xp, block, B, out, options.variants)
            wrong = check(works, out, first @ B_host.astype(np.float64), to_host)
            problems += [f"{name}, f={f}: {kernel} is wrong" for kernel in wrong]
            settle(works)
            times = medians(xp, works, options.rounds, options.least_ms)
            rows = rows_of(Case(name, A, f, dtype.itemsize), times, limits["copy"])
            table += rows
            print(markdown(rows).split("\n", 2)[2], file=sys.stderr, flush=True)
    measured = "\n".join(f"- {name}: {rate / 1e9:.0f} GB/s" for name, rate in limits.items())
    warnings = "".join(f"\n**WRONG: {problem}**\n" for problem in problems)
    return (
        f"### Ceilings\n\n{measured}\n\n### {dtype.name}\n{warnings}\n{markdown(table)}\n\n{summary(table)}\n"
    )


def device_name(xp: Any) -> str:
    properties = xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)
    runtime = xp.cuda.runtime
    versions = f"CUDA {runtime.runtimeGetVersion()}, driver {runtime.driverGetVersion()}"
    return f"{properties['name'].decode()}, {versions}"


def main() -> int:
    parser = table.arguments(__doc__)
    parser.add_argument(
        "--graphs", nargs="+", default=GRAPHS, help="rmat-K uniform-K dense-K sbm-K road-K: 2^K nodes"
    )
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--variants", action="store_true", help="also every variant that the tuner tries")
    arguments = parser.parse_args()
    if "cupy" not in backend.available():
        print("gpu_spmm: no GPU here, or no CuPy", file=sys.stderr)
        return 2
    on = backend.get("cupy")
    cases = [(name, graph(name)) for name in arguments.graphs]
    options = Options(arguments.widths, arguments.dtype, arguments.rounds, variants=arguments.variants)
    report = run(on.xp, on.asarray, on.to_host, cases, options)
    versions = f"CuPy {on.xp.__version__}, NumPy {np.__version__}, Python {platform.python_version()}"
    text = f"## CSR SpMM on {device_name(on.xp)}\n\n{versions}; `{' '.join(sys.argv)}`\n\n{report}\n"
    print(text)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with open(arguments.out, "a") as file:
            file.write(text)
    return 1 if "**WRONG" in report else 0


if __name__ == "__main__":
    sys.exit(main())
