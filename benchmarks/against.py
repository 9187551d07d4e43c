"""Speed of this checkout beside another one's, both with their own compiled kernels.

    python benchmarks/against.py --other PATH --cases spmm minibatches epochs-1 products-4

A process of each (``mpiexec`` for more ranks) keeps the same data and is asked for one measurement after
another, in turns, so that whatever else the machine does hits both alike. Ratios are old over new, so over 1
is faster: of the least processor time of all ranks (of one rank only, as waiting ranks poll), and the median
over the turns of the ratio of wall times. A process may be lucky or not with its memory for as long as it
lives (by 30 % where rows of B are 64 bytes), so rows are medians over several launches.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import distgnn as dg
from distgnn.bench import spmm

ALGORITHMS = "1d", "1.5d", "2d", "3d-split", "3d"
Runs = dict[str, Callable[[], object]]


def main() -> None:
    import table

    parser = table.arguments(__doc__)
    parser.add_argument("--other", type=Path, required=True, help="root of the other checkout")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--only", default="", help="measure only names that contain this")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument(
        "--launches", type=int, default=3, help="processes of each checkout, one after another"
    )
    mpiexec = f"{Path(sys.executable).with_name('mpiexec')} -n"
    parser.add_argument("--launcher", default=mpiexec, help="of several ranks, whose number follows it")
    args = parser.parse_args()
    lines = table.columns("", "seconds before", "after", "processor time, ratio", "wall time, ratio")
    for case in args.cases:
        for row in compare(case, args):
            print(row, file=sys.stderr, flush=True)
            lines.append(row)
    table.publish(
        args, "\n".join([f"{table.heading(args)}. {args.turns} turns, {args.launches} launches.", "", *lines])
    )


def compare(case: str, args: Any) -> Iterator[str]:
    """Return rows of the table, each the medians over the launches."""
    found = [launch(case, args) for _ in range(args.launches)]
    for name in found[0]:
        old, new, processor, wall = np.median([times[name] for times in found], axis=0)
        yield f"| {case}: {name} | {old:.5f} | {new:.5f} | {processor:.3f} | {wall:.3f} |"


def launch(case: str, args: Any) -> dict[str, tuple[float, ...]]:
    """Launch one process of each checkout; return the least processor time of both, its ratio, and that of
    wall times.
    """
    ranks = CASES[case][0]
    launcher = [*args.launcher.split(), str(ranks)] if ranks > 1 else []
    workers = []
    for root in (args.other, Path(__file__).parents[1]):
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
        environment = os.environ | threads | {"PYTHONPATH": str(root.resolve())}
        command = [*launcher, sys.executable, __file__, "--work", case]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers.append(subprocess.Popen(command, env=environment, **pipes))  # type: ignore[call-overload]
    names = [json.loads(worker.stdout.readline()) for worker in workers]
    assert names[0] == names[1]
    found = {}
    for name in filter(lambda name: args.only in name, names[0]):
        samples = []
        for turn in range(args.turns):
            asked = workers if turn % 2 else workers[::-1]
            samples.append([ask(worker, name) for worker in asked][:: 1 if turn % 2 else -1])
        wall, cpu = (np.array(samples)[:, :, k] for k in (0, 1))  # (turns, before and after)
        old, new = cpu.min(axis=0)
        found[name] = old, new, old / new, statistics.median(wall[:, 0] / wall[:, 1])
    for worker in workers:
        worker.communicate("\n")
    return found


def ask(worker: Any, name: str) -> list[float]:
    """Ask a launch for its [wall, processor] seconds."""
    worker.stdin.write(name + "\n")
    worker.stdin.flush()
    return json.loads(worker.stdout.readline())


def work(case: str) -> None:
    """Measure what is asked for. Ranks that are not asked sleep."""
    comm = MPI.COMM_WORLD
    runs = CASES[case][1]()
    for run in runs.values():
        run()
    say = partial(print, flush=True) if comm.rank == 0 else lambda text: None
    say(json.dumps(list(runs)))
    while name := hear(comm):
        comm.Barrier()
        wall, cpu, calls = time.perf_counter(), time.process_time(), 0
        while calls < 1 or (comm.size == 1 and time.perf_counter() - wall < 0.03):
            runs[name]()
            calls += 1
        cpu, wall = (time.process_time() - cpu) / calls, (time.perf_counter() - wall) / calls
        say(json.dumps([comm.allreduce(wall, MPI.MAX), comm.allreduce(cpu)]))


def hear(comm: MPI.Comm) -> str:
    """Return the next line of standard input, on all ranks."""
    if comm.rank == 0:
        name = sys.stdin.readline().strip()
        for rank in range(1, comm.size):
            comm.send(name, rank)
        return name
    while not comm.Iprobe(0):
        time.sleep(0.001)
    return comm.recv(source=0)


def rmat(scale: int = 16) -> Any:
    A = dg.gallery.rmat(1 << scale, degree=32).A.astype(np.float32)
    A.data[:] = 1 / 32
    return A


def of_products() -> Runs:
    """Multiply A H and its adjoint on all ranks."""
    A, runs = rmat(), {}
    for algorithm in ALGORITHMS:
        grid = dg.operators.make_grid(MPI.COMM_WORLD, algorithm)
        op = dg.distribute(A, grid, algorithm)
        for f in (16, 128):
            H, T = (
                dg.DistDense(
                    grid.backend.empty(layout.local_shape((op.shape[0], f)), np.float32),
                    layout,
                    (op.shape[0], f),
                )
                for layout in (op.input_layout, op.output_layout)
            )
            H.block[...] = T.block[...] = 1
            F = H.like(grid.backend.empty(H.block.shape, np.float32))
            for name, step in {
                "A H": partial(op.multiply, H, T),
                "Aᵀ G": partial(op.T.multiply, T.like(T.block.copy()), F),
            }.items():
                runs[f"{algorithm}, {name}, f = {f}"] = step
    return runs


def of_epochs(scale: int = 15, algorithms: Sequence[str] = ALGORITHMS) -> Runs:
    """Train full-graph epochs."""
    A, runs = rmat(scale), {}
    for algorithm in algorithms:
        grid = dg.operators.make_grid(MPI.COMM_WORLD, algorithm)
        op = dg.distribute(A, grid, algorithm)
        for dropout in (0.0, 0.5):
            runs[f"{algorithm}, dropout {dropout}"] = partial(next, training(op, dropout))
    return runs


def of_attention(algorithms: Sequence[str] = ALGORITHMS) -> Runs:
    """Train full-graph epochs of graph attention with eight heads."""
    A, runs = rmat(14), {}
    for algorithm in algorithms:
        op = dg.distribute(A, dg.operators.make_grid(MPI.COMM_WORLD, algorithm), algorithm)
        for kind in (dg.nn.GAT, dg.nn.GATv2):
            epochs = training(op, 0.5, partial(kind, heads=8))
            runs[f"{algorithm}, {kind.__name__}"] = partial(next, epochs)
    return runs


def training(op: Any, dropout: float = 0.0, network: Callable[..., Any] = dg.nn.GCN) -> Iterator[object]:
    """Train epochs without end on random features and labels."""
    rng, widths, n = np.random.default_rng(0), [128, 128, 128, 32], op.shape[0]
    X, labels = rng.standard_normal((n, 128)).astype(np.float32), rng.integers(0, 32, n).astype(np.int32)
    model = network(op, widths, dropout=dropout)
    H = dg.scatter(X, model.input_layout)
    targets = model.targets(labels, np.ones(n, np.uint8))
    return dg.train.train(model, H, targets, dg.nn.Adam(), 1 << 30, eval_every=0)


def of_minibatches() -> Runs:
    """Train epochs of minibatches."""
    rng, (n, f, classes) = np.random.default_rng(0), (20000, 64, 16)
    A = spmm.uniform(n, 14).astype(np.float32)
    X, labels = rng.standard_normal((n, f)).astype(np.float32), rng.integers(0, classes, n)
    split = np.where(rng.random(n) < 0.3, 1, 2).astype(np.uint8)
    graph = dg.sampling.Replicated(A)
    samplers = {
        "GraphSAGE": (dg.nn.SageMean, dg.sampling.GraphSage(graph, [10, 5, 5]), 512, 0.3),
        "LADIES": (dg.nn.GCN, dg.sampling.Ladies(graph, [512, 512]), 256, 0.0),
        "GraphSAINT": (
            dg.nn.GCN,
            dg.sampling.Saint(graph, 2000, 2, training=np.flatnonzero(split == 1)),
            512,
            0.3,
        ),
    }
    runs = {}
    op = dg.distribute(A, dg.operators.make_grid(MPI.COMM_WORLD, "1.5d", {"reps": 1}), "1.5d")
    for name, (kind, sampler, size, dropout) in samplers.items():
        hidden = [128] * (2 if name == "GraphSAGE" else 1)
        model = kind(op, [f, *hidden, classes], dropout=dropout, bias=True)
        targets, H = model.targets(labels, split), dg.scatter(X, model.input_layout)
        training = dg.train.MinibatchTraining(model, H, targets, sampler, size, 8, 4)
        runs[name] = partial(next, training.train(dg.nn.Adam(), 1 << 30, eval_every=0))
    return runs


def of_spmm(graphs: Sequence[str], widths: Sequence[int]) -> Runs:
    on, runs = dg.backend.get("numpy"), {}
    for graph in graphs:
        A = spmm.graph(graph)
        block = dg.CSR.from_scipy(A, on)
        for f in widths:
            B, C = on.empty((A.shape[1], f), np.float32), on.empty((A.shape[0], f), np.float32)
            B[...] = 1
            runs[f"{graph}, f = {f}"] = partial(dg.local.spmm, block, B, out=C)
    return runs


CASES: dict[str, tuple[int, Callable[[], Runs]]] = {
    "minibatches": (1, of_minibatches),
    "spmm": (1, partial(of_spmm, ("rmat-15", "uniform-17", "road-18"), (8, 16, 41, 64, 128, 602))),
    "spmm-large": (1, partial(of_spmm, ("rmat-18", "rmat-20", "planted-17", "uniform-20"), (16, 64, 128))),
    **{f"epochs-{ranks}": (ranks, of_epochs) for ranks in (1, 2, 4)},
    "epoch-host": (1, partial(of_epochs, 16, ("1d",))),
    **{f"attention-{ranks}": (ranks, of_attention) for ranks in (1, 4)},
    **{f"products-{ranks}": (ranks, of_products) for ranks in (1, 2, 4)},
}

if __name__ == "__main__":
    if sys.argv[1] == "--work":
        work(sys.argv[2])
    else:
        main()
