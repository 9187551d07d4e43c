"""Loading a rank's blocks from a store: memory, bytes and seconds, beside loading everything on every rank
(Plexus section 5.4).

    python benchmarks/loading.py --folder /scratch/loading --out benchmarks/results/loading.md

Makes an R-MAT graph in the folder and prepares it, unless that is there already. Every line of the table is a
job of its own, of which the median over `--repeat` is told, with the store's files put out of the page cache
before. Memory is the kernel's high-water mark of each process (Linux only), Python and MPI included; bytes
read are those that the ledger counts, chunks touched being read whole, and beside them what the kernel saw
the process read.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI

import distgnn as dg
import table
from distgnn.comm.launch import abort_on_error
from distgnn.operators.sources import LocalBlocks

MIB = 2**20


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help="where the graph and its store are, or will be made"
    )
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=34_000_000)
    parser.add_argument("--shards", default="16x16")
    parser.add_argument("--grid", default="2x2x2", help="x, y and z of algorithm 3d")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--one", choices=list(WAYS), help="be one of the jobs: print its measurements as JSON"
    )
    args = parser.parse_args()
    args.store = args.folder / f"graph-{args.nodes}-{args.edges}-{args.shards}.dg"
    if args.one:
        one(WAYS[args.one], args)
        return
    make(args)
    results = {way: [job(way, args) for _ in range(args.repeat)] for way in WAYS}
    text = report(results, args)
    table.publish(args, text)


def make(args: argparse.Namespace) -> None:
    """Make the store, unless it is there."""
    if args.store.exists():
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    graph = args.store.with_suffix("")
    sizes = ["--nodes", str(args.nodes), "--edges", str(args.edges), "--features", "0"]
    distgnn = [sys.executable, "-m", "distgnn"]
    subprocess.run([*distgnn, "generate", "rmat", str(graph), *sizes], check=True, stdout=sys.stderr)
    command = [*distgnn, "prepare", str(graph), str(args.store), "--shards", args.shards, "--order", "random"]
    subprocess.run(command, check=True, stdout=sys.stderr)


def job(way: str, args: argparse.Namespace) -> dict[str, list[float]]:
    """Measure in processes of their own; return each rank's results by name."""
    evict(args.store)
    ranks = str(sizes_of(args.grid)[0])
    store = [
        "--folder",
        str(args.folder),
        "--nodes",
        str(args.nodes),
        "--edges",
        str(args.edges),
        "--shards",
        args.shards,
    ]
    launcher = [os.environ.get("MPIEXEC", "mpiexec"), "-n", ranks]
    command = [*launcher, sys.executable, __file__, "--one", way, "--grid", args.grid, *store]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def sizes_of(text: str) -> tuple[int, dict[str, int]]:
    """Return (ranks, sizes by axis)."""
    x, y, z = map(int, text.split("x"))
    return x * y * z, {"x": x, "y": y, "z": z}


def evict(store: Path) -> None:
    """Put the store's files out of the page cache, so that they are read from the disk."""
    for path in store.rglob("*.h5"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def one(load: Callable[[dg.Grid, Path], dg.DistSparse], args: argparse.Namespace) -> None:
    """Print on rank 0 what loading the three shards of every rank takes."""
    comm = MPI.COMM_WORLD
    grid = dg.Grid(comm, backend="numpy", **sizes_of(args.grid)[1])
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    io = process_io()
    comm.Barrier()
    start, cpu = time.perf_counter(), time.process_time()
    with dg.Ledger() as ledger:
        A = load(grid, args.store)
        blocks = [A.layer(number).A for number in range(3)]  # type: ignore[attr-defined]
    cpu = time.process_time() - cpu
    comm.Barrier()
    measured = {
        "blocks": sum(block.buffer.nbytes for block in blocks),
        "peak": status("VmHWM"),
        "read": sum(ledger.loaded.values()),
        "pointers": ledger.loaded["indptr"],
        "rchar": process_io()["rchar"] - io["rchar"],
        "disk": process_io()["read_bytes"] - io["read_bytes"],
        "cpu": cpu,
        "seconds": time.perf_counter() - start,
    }
    ranks = comm.gather(measured)
    if ranks is not None:
        print(json.dumps({name: [rank[name] for rank in ranks] for name in measured}))


def together(grid: dg.Grid, store: Path) -> dg.DistSparse:
    """Read like the library: ranks that want the same shard read it together."""
    return dg.load(store, grid, "3d")


def apart(grid: dg.Grid, store: Path) -> dg.DistSparse:
    """Read like nodes of one rank each."""
    grid.node = grid.rank
    return dg.load(store, grid, "3d")


def everything(grid: dg.Grid, store: Path) -> dg.DistSparse:
    """Read the whole matrix on every rank and cut the rank's blocks out of it."""
    order = dg.Store(store).order()
    whole = (0, order.shape[0])
    A = order.block(whole, whole)
    operator = dg.distribute(LocalBlocks(order.shape, [(whole, whole, A)], order.symmetric), grid, "3d")
    for layer in [operator.layer(number) for number in range(3)]:
        layer.source = None  # type: ignore[assignment]  # so that the whole matrix is not kept
    return operator


WAYS: dict[str, Callable[[dg.Grid, Path], dg.DistSparse]] = {
    "everything": everything,
    "apart": apart,
    "together": together,
}
TITLES = {
    "everything": "everything on every rank",
    "apart": "own blocks, every rank a node",
    "together": "own blocks, one node",
}


def status(name: str) -> int:
    """Read a line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def process_io() -> dict[str, int]:
    """Read /proc/self/io: bytes that this process read by system calls (rchar) and had fetched from the disk
    (read_bytes).
    """
    pairs = (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return {name: int(value) for name, value in pairs}


def report(results: dict[str, list[dict[str, list[float]]]], args: argparse.Namespace) -> str:
    """Write the results as Markdown."""
    store = dg.Store(args.store)
    ranks, _ = sizes_of(args.grid)
    lines = [
        table.heading(args)
        + f". {store.n:,} nodes, {store.nnz:,} non-zeros, {args.shards} shards; {ranks} ranks in a grid of "
        f"{args.grid}, `3d`, three layers. All ranks share those cores, the disk and the page cache. Of each "
        "job, what the rank "
        f"with the most needs; of {args.repeat} jobs, the median.",
        "",
        "| | own blocks, MiB | peak memory, MiB | 1.3 blocks + 200 MiB | read / blocks | of it pointers | by "
        "the kernel | "
        "all ranks from disk, MiB | all ranks' CPU seconds | seconds |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(row(TITLES[way], jobs) for way, jobs in results.items()),
        "",
        comparison(results),
    ]
    return "\n".join(lines) + "\n\n"


def row(title: str, jobs: list[dict[str, list[float]]]) -> str:
    most = lambda name: statistics.median(max(job[name]) for job in jobs)  # noqa: E731

    def share(name: str) -> float:
        shares = (max(a / b for a, b in zip(job[name], job["blocks"], strict=True)) for job in jobs)
        return statistics.median(shares)

    total = lambda name: statistics.median(sum(job[name]) for job in jobs)  # noqa: E731
    cells = [
        f"{most('blocks') / MIB:.0f}",
        f"{most('peak') / MIB:.0f}",
        f"{1.3 * most('blocks') / MIB + 200:.0f}",
    ]
    cells += [f"{share('read'):.3f}", f"{share('pointers'):.3f}", f"{share('rchar'):.3f}"]
    cells += [f"{total('disk') / MIB:.0f}", f"{total('cpu'):.1f}", f"{most('seconds'):.1f}"]
    return f"| {title} | {' | '.join(cells)} |"


def comparison(results: dict[str, list[dict[str, list[float]]]]) -> str:
    """Return ratios, beside the paper's."""
    ratios = []
    for name in ("peak", "read", "seconds"):
        high, low = (
            statistics.median(max(job[name]) for job in results[way]) for way in ("everything", "together")
        )
        ratios.append(f"{high / low:.1f}")
    return (
        f"Everything on every rank needs {ratios[0]} times the memory, reads {ratios[1]} times the bytes and "
        f"takes {ratios[2]} "
        "times the seconds. Plexus reports 146 GB against 9 GB and 139 s against 7 s for ogbn-papers100M on "
        "64 GPUs."
    )


if __name__ == "__main__":
    abort_on_error()
    main()
