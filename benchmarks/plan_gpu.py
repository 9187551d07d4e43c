"""Predicted beside measured seconds of epochs on one GPU.

    python benchmarks/plan_gpu.py --machine h200 --out benchmarks/results/plan-gpu.md
    python benchmarks/plan_gpu.py --machine FILE --measure --kept-in FOLDER       on a GPU

Networks, graphs and ways to train them are those of ``gpu_epoch.py``. Plans know how many nodes and
non-zeros a graph has and how soon rows of B are read again (``plan/reuse.py``). Without ``--measure``, the
measured milliseconds are those of one NVIDIA H200, see ``results/plan-gpu.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product

import numpy as np
import scipy.sparse as sp

import table
from distgnn.arrays import backend
from distgnn.plan.choices import plan
from distgnn.plan.clock import Estimate
from distgnn.plan.dry.graphs import Graph
from distgnn.plan.machine import Machine, read
from distgnn.train.settings import Settings
from gpu_epoch import Problem, arguments, asked, ours
from gpu_graphs import kept

MS = 1e3


#: Milliseconds of epochs on one NVIDIA H200: graph, network and way to train, as ``gpu_epoch.py`` has them.
KNOWN = {
    ("rmat-14-16", "gcn", "plain"): 4.48, ("rmat-14-16", "gcn", "graphs"): 0.397,
    ("rmat-14-16", "gcn", "graphs+tf32"): 0.292, ("rmat-14-16", "gcn", "graphs+bfloat16"): 0.363,
    ("rmat-14-16", "gcn", "graphs+tf32+bfloat16"): 0.321, ("rmat-16-492", "gcn", "plain"): 5.02,
    ("rmat-16-492", "gcn", "graphs"): 3.35, ("rmat-16-492", "gcn", "graphs+tf32"): 3.19,
    ("rmat-16-492", "gcn", "graphs+bfloat16"): 2.26, ("rmat-16-492", "gcn", "graphs+tf32+bfloat16"): 2.16,
    ("rmat-20-16", "gcn", "plain"): 8.51, ("rmat-20-16", "gcn", "graphs"): 8.43,
    ("rmat-20-16", "gcn", "tf32"): 8.80, ("rmat-20-16", "gcn", "graphs+bfloat16"): 8.64,
    ("rmat-20-16", "gcn", "tf32+bfloat16"): 8.66, ("rmat-16-32", "gat-8-1", "plain"): 6.01,
    ("rmat-16-32", "gat-8-1", "graphs"): 1.55, ("rmat-16-32", "gat-8-8", "plain"): 6.48,
    ("rmat-16-32", "gat-8-8", "graphs"): 2.22, ("rmat-16-32", "gatv2-8-1", "plain"): 6.17,
    ("rmat-16-32", "gatv2-8-1", "graphs"): 2.03, ("rmat-16-32", "gatv2-8-8", "plain"): 6.66,
    ("rmat-16-32", "gatv2-8-8", "graphs"): 3.23,
}  # fmt: skip
GRAPHS, NETWORKS, WAYS = (list(dict.fromkeys(names)) for names in zip(*KNOWN, strict=True))


def planned(problem: Problem, way: str, machine: Machine) -> Estimate:
    """Plan an epoch."""
    n, widths, how = problem.A.shape[0], problem.widths, asked(way)
    graph = Graph.known(problem.A, widths[0], widths[-1], problem.labels, np.ones(n, np.uint8))
    network = {"model": problem.model, "heads": problem.heads} if problem.heads else {"keep_aggregate": False}
    settings = Settings(
        recipe="plain", hidden=widths[1:-1], eval_every=0, algorithm="1d",
        **{"cuda_graph": False} | how | network,
    )  # fmt: skip
    return plan(settings, {None: graph}, 1, machine).best.estimate


def measured(problem: Problem, way: str, warm_up: int, epochs: int) -> float:
    """Return the median seconds of an epoch on the GPU here, after those to warm up."""
    answer = ours(problem, backend.get("cupy"), warm_up + epochs, asked(way))
    return float(np.median(answer["seconds"][warm_up:]))


def cases(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    """List graph, network and way of what is asked for; of graphs in ``KNOWN`` only what it has."""
    every = product(args.graphs, args.networks, args.ways)
    return [case for case in every if case in KNOWN or case[0] not in GRAPHS]


def rows(args: argparse.Namespace) -> Iterator[str]:
    """Give a line for each epoch."""
    machine, matrices = read(args.machine), dict[str, sp.csr_array]()
    yield from table.columns("graph", "network", "way", "sparse", "dense", "passes", "other", "kernels",
                             "planned, ms", "measured, ms", "planned / measured")  # fmt: skip
    for graph, network, way in cases(args):
        if graph not in matrices:
            matrices = {graph: kept(graph, args.kept_in)}
        problem = Problem(graph, network, matrices[graph])
        estimate = planned(problem, way, machine)
        phases = {name: MS * seconds for name, seconds in estimate.phases.items()}
        parts = [phases["spmm"], phases["gemm"], 0.0, phases["other"]]
        parts[2] = MS * estimate.seconds - sum(parts)
        ms = KNOWN.get((graph, network, way))
        if args.measure:
            ms = MS * measured(problem, way, args.warm_up, args.epochs)
        cells = [graph, network, way, *(f"{part:.3f}" for part in parts)]
        cells += [f"{estimate.kernels}", f"{MS * estimate.seconds:.3f}"]
        cells += [f"{ms:.3g}", f"{MS * estimate.seconds / ms:.2f}"] if ms else ["", ""]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(graphs=GRAPHS, networks=NETWORKS)
    add = parser.add_argument
    add("--ways", nargs="+", default=WAYS, help=f"of gpu_epoch.py (default: {' '.join(WAYS)})")
    add("--machine", default="h200", help="name, or TOML file")
    add("--measure", action="store_true", help="measure epochs on the GPU here")
    args = parser.parse_args()
    table.publish(args, "\n".join([table.heading(args), "", *rows(args)]))


if __name__ == "__main__":
    main()
