"""Sparse times dense on one rank: the host kernels beside SciPy, MKL and torch."""

from __future__ import annotations

import contextlib
import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import _sparsetools

from distgnn import gallery
from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.arrays.timing import seconds as seconds_of
from distgnn.bench import aocl, timing
from distgnn.errors import ArgumentError, offered
from distgnn.local import host
from distgnn.store import Store

Run = Callable[[], object]

OURS = "host"
LONG, HOPELESS = 0.5, 3.0


def uniform(nodes: int, degree: int, seed: int = 0) -> sp.csr_array:
    """Make rows of `degree` non-zeros (minus duplicates) in columns drawn uniformly: no locality, no hubs."""
    columns = np.random.default_rng(seed).integers(0, nodes, nodes * degree)
    rows = np.repeat(np.arange(nodes), degree)
    return sp.coo_array((np.ones(len(rows), np.float32), (rows, columns)), shape=(nodes, nodes)).tocsr()


def _rmat(scale: int) -> sp.csr_array:
    return gallery.rmat(1 << scale, degree=32 if scale < 17 else 16).A


#: Name -> generator of the adjacency matrix.
GRAPHS: dict[str, Callable[[], sp.csr_array]] = {
    **{f"rmat-{scale}": partial(_rmat, scale) for scale in range(15, 21)},
    "uniform-17": lambda: uniform(1 << 17, 16),
    "uniform-20": lambda: uniform(1 << 20, 16),
    "planted-17": lambda: gallery.sbm(1 << 17).A,
    "road-18": lambda: gallery.road(1 << 18).A,
}


def graph(name: str) -> sp.csr_array:
    """Make a graph of `GRAPHS` or read a store: float32 CSR of random values; ArgumentError otherwise."""
    if name in GRAPHS:
        A = GRAPHS[name]()
    elif name.rstrip("/").endswith(".dg"):
        store = Store(Path(name))
        A = store.order().block((0, store.n), (0, store.n))
    else:
        raise ArgumentError("graph", name, f"no store NAME.dg; {offered(name, GRAPHS)}")
    A = sp.csr_array(A, dtype=np.float32)
    A.sort_indices()
    A.indptr, A.indices = A.indptr.astype(np.int32), A.indices.astype(np.int32)
    A.data[:] = np.random.default_rng(1).uniform(0.5, 1.5, A.nnz)
    return A


@dataclass
class Timing:
    """The measurement of one graph at one width."""

    graph: str
    nnz: int
    width: int
    bytes: int  # bytes that a product moves if no row of B is ever reused
    seconds: dict[str, float]  # candidate -> the best call
    roof: float  # seconds that the ceilings allow at best

    def gflops(self, name: str) -> float:
        """Return billions of operations per second of one of the compared products."""
        return 2 * self.nnz * self.width / self.seconds[name] / 1e9

    def ratio(self, *names: str) -> float:
        """Return how many times faster ours is than the fastest of these, or of all; NaN without any."""
        seconds = self.seconds
        others = [seconds[name] for name in names or seconds if name in seconds and name != OURS]
        return min(others, default=math.nan) / seconds[OURS]


def measure(
    name: str, A: sp.csr_array, width: int, ceilings: tuple[float, float], seconds: float = 1.0,
    clock: str = "wall", plain_memory: bool = False,
) -> Timing:  # fmt: skip
    """Time every candidate on `A` times a random float32 matrix, all on the same arrays.

    A candidate whose first call takes over `LONG` seconds and `HOPELESS` times as long as ours is not called
    again.

    Args:
        ceilings: bytes per second of a copy through memory and of reading the last-level cache.
        plain_memory: use NumPy's own arrays instead of arrays that start at a cache line.

    Raises:
        AssertionError: a candidate computes something else.
    """
    make = np.empty if plain_memory else backend.get("numpy").empty
    B, C = make((A.shape[1], width), np.float32), make((A.shape[0], width), np.float32)
    B[...] = np.random.default_rng(2).random(B.shape, dtype=np.float32)
    runs = candidates(A, B, C)
    first = _first_calls(runs, C, f"on {name} at width {width}", timing.CLOCKS[clock])
    longest = max(LONG, HOPELESS * first[OURS])
    quick = {other: run for other, run in runs.items() if other == OURS or first[other] <= longest}
    samples = timing.in_turns(quick, seconds, clock=clock)
    best = {other: min(samples.get(other, [first[other]])) for other in runs}
    moved = A.nnz * (8 + 4 * width) + 4 * A.shape[0] * width + 8 * A.shape[0]
    return Timing(name, A.nnz, width, moved, best, roof(A, width, *ceilings))


def _first_calls(
    runs: dict[str, Run], C: np.ndarray, where: str, read: Callable[[], float]
) -> dict[str, float]:
    """Time a call of each candidate; AssertionError if one's result differs from the first's."""
    want, seconds = None, {}
    for name, run in runs.items():
        C[...] = np.nan
        seconds[name] = seconds_of(run, clock=read)
        want = C.copy() if want is None else want
        assert np.allclose(C, want, rtol=1e-4, atol=1e-4), f"{name} disagrees with {OURS} {where}"
    return seconds


def roof(A: sp.csr_array, width: int, copy: float, cache: float) -> float:
    """Return the seconds that no kernel should beat without locality.

    All bytes go once through memory, and gathered rows come from the cache if B fits it, else from memory.
    """
    gathered, held = A.nnz * (8 + 4 * width), 4 * A.shape[1] * width
    if held > timing.last_level_cache():
        return (gathered + 4 * A.shape[0] * width) / copy
    once = 8 * A.nnz + 8 * A.shape[0] * width + 8 * A.shape[0]
    streamed = once - held if once > timing.last_level_cache() else 0
    return max(gathered / cache, streamed / copy)


def candidates(A: sp.csr_array, B: np.ndarray, C: np.ndarray) -> dict[str, Run]:
    """Map names to calls that compute C = A B into the existing C; handles are made before the calls."""
    block = CSR.from_scipy(A, backend.get("numpy"))
    runs: dict[str, Run] = {OURS: lambda: host.spmm(block, B, C, False), "scipy": _scipy(A, B, C)}
    for _ in range(host.TRIALS):  # until the prefetch distance is chosen
        runs[OURS]()
    for make in (_mkl, _torch, aocl.product):
        with contextlib.suppress(ImportError):
            runs |= make(A, B, C)
    return runs


def _scipy(A: sp.csr_array, B: np.ndarray, C: np.ndarray) -> Run:
    def run() -> None:
        C[...] = 0  # the routine adds; without A @ B's allocation it is SciPy at its best
        _sparsetools.csr_matvecs(*A.shape, B.shape[1], A.indptr, A.indices, A.data, B.ravel(), C.ravel())

    return run


def _mkl(A: sp.csr_array, B: np.ndarray, C: np.ndarray) -> dict[str, Run]:
    import sparse_dot_mkl  # type: ignore[import-not-found,unused-ignore]

    sparse_dot_mkl.mkl_set_num_threads(host.threads())
    matrix = sp.csr_matrix(A)
    return {"mkl": lambda: sparse_dot_mkl.dot_product_mkl(matrix, B, out=C, out_scalar=0.0)}


def _torch(A: sp.csr_array, B: np.ndarray, C: np.ndarray) -> dict[str, Run]:
    import torch  # type: ignore[import-not-found,unused-ignore]

    def matrix(index: Any) -> Any:
        indices = (array.astype(index, copy=False) for array in (A.indptr, A.indices))
        arrays = map(torch.from_numpy, (*indices, A.data))
        return torch.sparse_csr_tensor(*arrays, size=A.shape, check_invariants=False)

    warnings.filterwarnings("ignore", "Sparse CSR tensor support")
    torch.set_num_threads(host.threads())
    dense, out = torch.from_numpy(B), torch.from_numpy(C)
    narrow, wide = matrix(np.int32), matrix(np.int64)
    return {
        "torch": lambda: torch.mm(narrow, dense, out=out),
        # PyTorch Geometric calls this function; it has no `out`, so copying its result is not timed.
        "torch-reduce": lambda: _made(torch.sparse.mm(wide, dense, "sum"), out),
    }


def _made(result: Any, out: Any) -> None:
    """Copy the result for the check, which fills C with NaN before, and not in the timed calls after it."""
    if out.numel() and out[0, 0].isnan():
        out.copy_(result)


def table(points: Sequence[Timing], ceilings: tuple[float, float]) -> str:
    """Write the points in Markdown, one line for each."""
    names = [OURS, *dict.fromkeys(name for p in points for name in p.seconds if name != OURS)]
    head = ["graph", "f", *names, "GB/s", "of copy", "of roof", "/ best other", "/ mkl"]
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    for p in points:
        rate = p.bytes / p.seconds[OURS]
        cells = [p.graph, str(p.width), *(f"{p.gflops(n):.1f}" if n in p.seconds else "" for n in names)]
        cells += [f"{rate / 1e9:.1f}", f"{rate / ceilings[0]:.2f}", f"{p.roof / p.seconds[OURS]:.2f}"]
        ratios = p.ratio(), p.ratio("mkl")
        cells += [f"{ratio:.2f}" if math.isfinite(ratio) else "" for ratio in ratios]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(points: Sequence[Timing]) -> str:
    """Write geometric means and worst cases of the ratios, in Markdown."""
    lines = []
    for name in ("best other", "mkl", "scipy", "torch", "torch-reduce"):
        ratios = [point.ratio(*([] if name == "best other" else [name])) for point in points]
        known = [ratio for ratio in ratios if math.isfinite(ratio)]
        if known:
            mean = f"geometric mean {statistics.geometric_mean(known):.2f}"
            lines.append(f"- times faster than {name}: {mean}, {min(known):.2f} to {max(known):.2f}")
    return "\n".join(lines)
