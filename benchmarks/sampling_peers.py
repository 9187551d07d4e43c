"""Sampling and training on minibatches beside DGL on the host, and LADIES beside its authors' scheme.

    OMP_NUM_THREADS=1 python benchmarks/sampling_peers.py --out benchmarks/results/sampling.md

Tables with DGL need torch, and DGL with its samplers (1.1.3). All run in turns on one thread, on an R-MAT
graph of 2**scale nodes.

- samplers: GraphSAGE's neighbours without replacement, beside DGL's int64 graph, `sample_neighbors` and
  `to_block`: of a graph whose values are all alike, and of one with weights, which blocks take along and
  DGL's do not.
- ladies: layers of as many vertices as a batch has. The authors' scheme is written with SciPy as their paper
  has it (Zou et al., Algorithm 1): rows of the vertices above, sums of squares by column, draws by NumPy,
  columns of those that were drawn, divided by probabilities.
- epochs: GraphSAGE with means, three layers, ReLU, Adam, on the same batches: seconds of an epoch with
  sampling and features, and how far the process rises above graph and features, each in its own processes;
  and of distgnn the seconds of dense products, which are left whatever becomes of all the rest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse as sp

import high_water
import table
from distgnn import Ledger, gallery
from distgnn.bench import timing
from distgnn.nn.reference import normalize
from distgnn.sampling import GraphSage, Ladies, Replicated
from distgnn.train import Minibatches

FANOUT, HIDDEN, FEATURES, CLASSES = (15, 10, 5), 128, 100, 16
Runs = dict[str, Callable[[], object]]


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--scale", type=int, default=19, help="log2 of the nodes")
    parser.add_argument("--degree", type=int, default=32, help="non-zeros of a row, on average")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=8, help="that are drawn in a turn, or make an epoch")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--one", choices=list(TRAININGS), help="be one of the processes that train")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(TRAININGS[args.one](args)))
        return
    lines = [table.heading(args)]
    for name in args.tables:
        lines.append("")
        for line in TABLES[name](args):
            print(line, file=sys.stderr, flush=True)
            lines.append(line)
    table.publish(args, "\n".join(lines))


def graph(args: argparse.Namespace) -> sp.csr_array:
    A = gallery.rmat(scale=args.scale, degree=args.degree, features=0, classes=0).A
    A.data[:] = 1
    return A


def batches(A: sp.csr_array, size: int, count: int) -> list[np.ndarray]:
    """Return batches of vertices with neighbours."""
    return Minibatches(np.flatnonzero(np.diff(A.indptr) > 0), size).epoch(1)[:count]


def compared(runs: Runs, edges: dict[str, int], label: str, args: argparse.Namespace) -> Iterator[str]:
    """Time the runs in turns, and set the first beside the others."""
    spent = {name: min(times) for name, times in timing.in_turns(runs, 0, args.turns, "cpu", 1).items()}
    (ours, first), *others = spent.items()
    yield f"| {label}, {ours} | {1e3 * first / args.batches:.1f} | {edges[ours] / first / 1e6:.1f} | |"
    for name, seconds in others:
        rate, ratio = edges[name] / seconds / 1e6, seconds / first
        yield f"| {label}, {name} | {1e3 * seconds / args.batches:.1f} | {rate:.1f} | {ratio:.2f} |"


HEADS = "sampler", "ms of a minibatch", "million edges per second", "distgnn is faster by"


# -- samplers ------------------------------------------------------------------------------------------------


def samplers(args: argparse.Namespace) -> Iterator[str]:
    """Draw GraphSAGE's minibatches, one at a time."""
    A = graph(args)
    yield from table.columns(*HEADS)
    theirs, seeds = of_dgl(A), batches(A, args.batch, args.batches)
    for label, matrix in (("values alike", A), ("weights", normalize(A).astype(np.float32))):
        sampler = GraphSage(Replicated(matrix), FANOUT)

        def ours(sampler: GraphSage = sampler) -> int:
            return sum(sampler.sample([s], first=b)[0].edges for b, s in enumerate(seeds))

        def dgl() -> int:
            return sum(sum(block.num_edges() for block in theirs(s)[1]) for s in seeds)

        yield from compared({"distgnn": ours, "DGL": dgl}, {"distgnn": ours(), "DGL": dgl()}, label, args)


def of_dgl(A: sp.csr_array) -> Callable[[np.ndarray], tuple[Any, list[Any]]]:
    """Return what samples with DGL: the inputs, and blocks in the order of layers."""
    import dgl
    import torch

    torch.set_num_threads(1)
    parts = (torch.from_numpy(part.astype(np.int64)) for part in (A.indptr, A.indices))
    whole = dgl.graph(("csc", (*parts, torch.empty(0, dtype=torch.int64))), num_nodes=A.shape[0])

    def sample(seeds: np.ndarray) -> tuple[Any, list[Any]]:
        nodes, blocks = torch.from_numpy(seeds), []
        for size in FANOUT:
            blocks.insert(0, dgl.to_block(dgl.sampling.sample_neighbors(whole, nodes, size), nodes))
            nodes = blocks[0].srcdata[dgl.NID]
        return nodes, blocks

    return sample


def ladies(args: argparse.Namespace) -> Iterator[str]:
    """Draw LADIES' minibatches, one at a time."""
    A = normalize(graph(args) + sp.eye_array(1 << args.scale, dtype=np.float32)).astype(np.float32)
    yield from table.columns(*HEADS)
    for size in (512, args.batch):
        sampler, seeds = Ladies(Replicated(A), [size] * 3), batches(A, size, args.batches)

        def ours(sampler: Ladies = sampler, seeds: list[np.ndarray] = seeds) -> int:
            return sum(sampler.sample([s], first=b)[0].edges for b, s in enumerate(seeds))

        def theirs(size: int = size, seeds: list[np.ndarray] = seeds) -> int:
            return sum(authors_ladies(A, s, [size] * 3, np.random.default_rng(0)) for s in seeds)

        edges = {"distgnn": ours(), "the authors' scheme": theirs()}
        runs: Runs = {"distgnn": ours, "the authors' scheme": theirs}
        yield from compared(runs, edges, f"LADIES, 3 x {size}", args)


def authors_ladies(A: sp.csr_array, seeds: np.ndarray, sizes: list[int], random: Any) -> int:
    """Sample by the authors' scheme; return the entries of all layers."""
    nodes, edges = seeds, 0
    for size in sizes:
        rows = A[nodes]
        weights = np.asarray(rows.multiply(rows).sum(axis=0)).ravel().astype(np.float64)
        p = weights / weights.sum()
        drawn = random.choice(A.shape[0], min(size, np.count_nonzero(p)), p=p, replace=False)
        drawn = np.unique(drawn)
        layer = rows[:, drawn].multiply(1 / p[drawn]).tocsr()
        nodes, edges = drawn, edges + layer.nnz
    return edges


# -- epochs --------------------------------------------------------------------------------------------------


def epochs(args: argparse.Namespace) -> Iterator[str]:
    """Train on minibatches, in turns of processes."""
    yield from table.columns(
        "training", "seconds of an epoch", "MiB above graph and features", "distgnn is faster by"
    )
    found: dict[str, list[list[Any]]] = {name: [] for name in TRAININGS}
    for _ in range(3):
        for name, runs in found.items():
            command = [sys.executable, __file__, "--one", name, *(sys.argv[1:])]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    first = min(run[0] for run in found["distgnn"])
    for name, runs in found.items():
        seconds, rises = min(run[0] for run in runs), [run[1] for run in runs if run[1] is not None]
        memory = high_water.mib(min(rises, default=None))
        yield f"| {name} | {seconds:.2f} | {memory} | {seconds / first:.2f} |"
    seconds, flops = min(run[2:] for run in found["distgnn"])
    yield ""
    yield f"Dense products of distgnn: {seconds:.2f} s of an epoch, at {flops / seconds / 1e9:.0f} GFlop/s."


def problem(args: argparse.Namespace) -> tuple[sp.csr_array, np.ndarray, np.ndarray, np.ndarray]:
    """Make the graph, features, labels, and training nodes for so many batches."""
    A, random = graph(args), np.random.default_rng(0)
    X = random.standard_normal((A.shape[0], FEATURES), dtype=np.float32)
    y = random.integers(0, CLASSES, A.shape[0]).astype(np.int32)
    return A, X, y, np.concatenate(batches(A, args.batch, args.batches))


def measured(epoch: Callable[[], object], args: argparse.Namespace) -> list[Any]:
    """Return processor seconds of the fastest epoch, and the bytes by which the process rises."""
    before = high_water.begin()
    spent = timing.in_turns({"epoch": epoch}, 0, args.turns, "cpu", 1)["epoch"]
    return [min(spent), high_water.above(before)]


def of_products(epoch: Callable[[], object], args: argparse.Namespace) -> tuple[float, int]:
    """Return processor seconds and operations of an epoch's dense products, of the epoch with the least."""
    found = []
    for _ in range(args.turns):
        with mock.patch("time.perf_counter", time.process_time), Ledger(timing=True) as counted:
            epoch()
        flops = sum(entry["flops"] for entry in counted.entries() if entry["phase"] == "gemm")
        found.append((counted.seconds["gemm"], flops))
    return min(found)


def train_distgnn(args: argparse.Namespace) -> list[Any]:
    from mpi4py import MPI

    import distgnn as dg
    from distgnn.nn import Adam, SageMean
    from distgnn.split import TRAIN
    from distgnn.train import MinibatchTraining

    A, X, y, training = problem(args)
    grid = dg.make_grid(MPI.COMM_SELF, "1.5d", backend="numpy")
    model = SageMean(dg.distribute(A, grid, "1.5d"), [FEATURES, HIDDEN, HIDDEN, CLASSES])
    split = np.zeros(len(y), np.uint8)
    split[training] = TRAIN
    targets, features = model.targets(y, split), dg.scatter(X, model.input_layout)
    sampler = GraphSage(Replicated(A), FANOUT)
    loop = MinibatchTraining(model, features, targets, sampler, args.batch, 1)
    records = loop.train(Adam(0.01), 1000, eval_every=0)
    epoch = lambda: next(records)  # noqa: E731
    return [*measured(epoch, args), *of_products(epoch, args)]


def train_dgl(args: argparse.Namespace) -> list[Any]:
    import torch
    from dgl.nn import SAGEConv

    A, X, y, training = problem(args)
    sample, H0, labels = of_dgl(A), torch.from_numpy(X), torch.from_numpy(y.astype(np.int64))
    widths = [FEATURES, HIDDEN, HIDDEN, CLASSES]
    layers = torch.nn.ModuleList(
        SAGEConv(a, b, "mean", bias=False) for a, b in zip(widths, widths[1:], strict=False)
    )
    optimizer, counted = torch.optim.Adam(layers.parameters(), 0.01), iter(range(1, 1 << 30))

    def epoch() -> None:
        for seeds in Minibatches(training, args.batch).epoch(next(counted)):
            inputs, blocks = sample(seeds)
            H = H0[inputs]
            for number, (layer, block) in enumerate(zip(layers, blocks, strict=True)):
                H = layer(block, H)
                H = torch.relu(H) if number < len(layers) - 1 else H
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(H, labels[torch.from_numpy(seeds)]).backward()
            optimizer.step()

    return measured(epoch, args)


TABLES = {"samplers": samplers, "ladies": ladies, "epochs": epochs}
TRAININGS = {"distgnn": train_distgnn, "DGL": train_dgl}

if __name__ == "__main__":
    main()
