"""Minibatches sampled per second on a GPU beside the host's, of a graph that is whole or in parts.

    python benchmarks/gpu_sampling.py --out benchmarks/results/gpu.md
    mpiexec -n 2 python benchmarks/gpu_sampling.py --samplers sage ladies

Every rank samples a bulk of minibatches at a time, by each way in turns: on its cores or its GPU, of a graph
that it has whole or that ranks hold in parts, whose owners draw (one rank holds all parts). Quoted are
minibatches of all ranks per second, by the median turn of the slowest rank, and the edges of one. All ways
must draw as many edges, to the last. Ranks that share a GPU and send through the host take turns on it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import gpu_timing
import table
from distgnn.comm.launch import abort_on_error
from distgnn.operators import make_grid
from distgnn.sampling import Cluster, FastGCN, GraphSage, Ladies, Partitioned, Replicated, Saint, Shadow
from distgnn.sampling.sampler import Sampler
from distgnn.train.part_batches import minibatches_of
from gpu_graphs import kept

SAMPLERS: dict[str, Callable[[Any, int], Sampler]] = {
    "sage": lambda G, batch: GraphSage(G, (15, 10)),
    "ladies": lambda G, batch: Ladies(G, (batch, batch)),
    "fastgcn": lambda G, batch: FastGCN(G, (batch, batch)),
    "saint": lambda G, batch: Saint(G, 4 * batch, 2),
    "shadow": lambda G, batch: Shadow(G, (10, 5), 2),
    "cluster": lambda G, batch: Cluster(G, 2, np.arange(G.n) * max(2 * G.n // batch, 2) // G.n),
}


def main() -> int:
    parser = table.arguments(__doc__)
    parser.add_argument("--graph", default="rmat-20-16", help="a name of gpu_graphs.py")
    parser.add_argument("--samplers", nargs="+", choices=list(SAMPLERS), default=list(SAMPLERS))
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--bulk", type=int, default=16, help="minibatches that a rank samples at a time")
    parser.add_argument("--turns", type=int, default=5, help="after one to warm up")
    parser.add_argument("--kept-in", type=Path, help="folder where graphs are kept")
    args = parser.parse_args()
    comm, on = MPI.COMM_WORLD, gpu_timing.bound("gpu_sampling")
    A = kept(args.graph, args.kept_in).astype(np.float32)
    graphs = sources(comm, A)
    say = gpu_timing.Report(args).say if comm.rank == 0 else lambda *lines: None
    size = f"{args.graph}, {A.nnz:,} non-zeros; {args.bulk} minibatches of {args.batch} at a time"
    say(f"{table.heading(args, comm.size)}; {gpu_timing.device_name(on.xp)}. {size}.", "")
    say(*table.columns("sampler", "edges of a minibatch", *(f"{way}, per second" for way in graphs)))
    alike = [measured(comm, name, graphs, args, say) for name in args.samplers]
    say("")
    return 0 if all(alike) else 1


def sources(comm: MPI.Intracomm, A: sp.csr_array) -> dict[str, Any]:
    """Make the graph of each way. Collective."""
    made = {}
    for backend, where in (("numpy", "host"), ("cupy", "GPU")):
        grid = make_grid(comm, "1.5d", {"reps": 1}, backend=backend)
        made[where] = Replicated(A, backend=backend)
        made[f"{where}, in parts"] = Partitioned(grid, A, backend=backend)
    return made


def measured(
    comm: MPI.Intracomm, name: str, graphs: dict[str, Any], args: argparse.Namespace,
    say: Callable[..., None],
) -> bool:  # fmt: skip
    """Time a sampler by all ways, and write its row; return whether all drew alike. Collective."""
    runs, edges = {way: bulks(comm, SAMPLERS[name](G, args.batch), args) for way, G in graphs.items()}, {}
    seconds: dict[str, list[float]] = {way: [] for way in runs}
    for turn in range(args.turns + 1):
        for way, run in runs.items():
            comm.Barrier()
            start = time.perf_counter()
            samples = run(turn)
            graphs[way].backend.synchronize()
            comm.Barrier()
            seconds[way].append(time.perf_counter() - start)
            edges[way] = edges.get(way, 0) + comm.allreduce(sum(sample.edges for sample in samples))
    count = comm.size * args.bulk
    rates = [f"{count / np.median(times[1:]):.0f}" for times in seconds.values()]
    alike = len(set(edges.values())) == 1
    wrong = "" if alike else f" **WRONG**: {edges}"
    mean = next(iter(edges.values())) / count / (args.turns + 1)
    say(f"| {name} | {mean:.0f} | {' | '.join(rates)} |{wrong}")
    return alike


def bulks(comm: MPI.Intracomm, sampler: Sampler, args: argparse.Namespace) -> Callable[[int], list[Any]]:
    """Return what samples a bulk of this rank's, of each turn another one. Collective where the graph is."""
    size = 2 if isinstance(sampler, Cluster) else args.batch  # parts, or nodes
    batches = minibatches_of(sampler, np.arange(sampler.graph.n), size, 0).epoch(1)

    def run(turn: int) -> list[Any]:
        first = (turn * comm.size + comm.rank) * args.bulk
        numbers = [number % len(batches) for number in range(first, first + args.bulk)]
        return sampler.sample_at([batches[number] for number in numbers], epoch=1, first=numbers)

    return run


if __name__ == "__main__":
    abort_on_error()
    sys.exit(main())
