"""Milliseconds per epoch on one GPU, beside PyTorch and PyTorch Geometric.

    python benchmarks/gpu_epoch.py --out results/gpu.md                                        a GCN
    python benchmarks/gpu_epoch.py --networks gat-8-1 gat-8-8 gatv2-8-1 gatv2-8-8 --graphs rmat-16-32

One rank, every node a training node, Adam. All have the same normalised graph, features and first weights,
and losses of the first ten epochs are compared: later ones drift apart by rounding, as ``--drift`` shows on
the host. The GCN has widths 128-128-128-40; it multiplies the features by A in every epoch, as its peers do.
Attention has 8 heads of 8 columns, and then one head, or the mean of eight, of 16. Peers run after all of
ours, in a process of their own (``gpu_epoch_peers.py``), one after the other. An epoch is timed between two
moments at which the device is idle, so the host is in it; medians leave out those to warm up, in which
distgnn chooses kernels.

Ways of ours are words joined by `+`: plain; graphs (as CUDA graphs); tf32; bfloat16, float16 (what products
read); mixed (precision, of bfloat16); dropout (of 0.5, with bias, evaluated in every epoch: losses are not
compared); fit (`dg.fit`, a run as `distgnn train` makes it, with its defaults: epochs are timed from one to
the next, with all that is logged).
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
import gpu_timing
import table
from distgnn.arrays import backend
from distgnn.nn import NETWORKS
from distgnn.nn.optim import Adam
from distgnn.train.full_graph import train
from gpu_graphs import kept
from gpu_timing import Report, milliseconds

PEERS = Path(__file__).with_name("gpu_epoch_peers.py")
GRAPHS = ["rmat-14-16", "rmat-20-16", "rmat-16-492"]
COMPARED = 10  # epochs
EXACT, ROUNDED = 1e-3, 1e-2  # largest relative differences of losses
HEADER = "graph", "network", "by", "ms per epoch", "ours takes less by", "losses differ by"
#: What words of a way change.
WORDS: dict[str, dict[str, Any]] = {
    "plain": {}, "graphs": {"cuda_graph": True}, "tf32": {"tf32": True}, "fit": {"fit": True},
    "bfloat16": {"wire": "bfloat16"}, "float16": {"wire": "float16"},
    "mixed": {"wire": "bfloat16", "mixed_precision": True},
    "dropout": {"dropout": 0.5, "bias": True, "eval_every": 1},
}  # fmt: skip
WAYS = ["plain", "graphs", "fit", "graphs+tf32", "graphs+bfloat16", "graphs+tf32+bfloat16", "graphs+mixed",
        "graphs+dropout"]  # fmt: skip


@dataclass
class Problem:
    """A graph of this name, features, labels, and a network: gcn, or MODEL-HEADS-HEADS of attention."""

    name: str
    network: str
    A: sp.csr_array

    @property
    def model(self) -> str:
        return self.network.partition("-")[0]

    @property
    def heads(self) -> list[int]:
        return [int(count) for count in self.network.split("-")[1:]]

    @property
    def widths(self) -> list[int]:
        return [64, 64, 16] if self.heads else [128, 128, 128, 40]

    @cached_property
    def X(self) -> np.ndarray:
        return np.random.default_rng(0).standard_normal((self.A.shape[0], self.widths[0]), np.float32)

    @cached_property
    def labels(self) -> np.ndarray:
        return np.random.default_rng(1).integers(0, self.widths[-1], self.A.shape[0]).astype(np.int32)

    def save(self, folder: Path, model: Any) -> None:
        """Save it for the peers, with the first weights of a model."""
        arrays = {"indptr": self.A.indptr, "indices": self.A.indices, "data": self.A.data}
        arrays |= {"X": self.X, "labels": self.labels.astype(np.int64)}
        arrays |= {f"_{p.name}": p.matrix.grid.backend.to_host(p.block) for p in model.parameters}
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        (folder / "network.json").write_text(json.dumps({"model": self.model, "heads": self.heads}))


def asked(way: str) -> dict[str, Any]:
    """Return what the words of a way change."""
    return {name: value for word in way.split("+") for name, value in WORDS[word].items()}


class Training:
    """A training of a problem, an epoch at a time.

    Args:
        how: what words of a way change, of `train` or of the network; dtype; product_order.
    """

    def __init__(self, problem: Problem, on: Any, epochs: int, how: dict[str, Any]) -> None:
        self.on, A = on, problem.A.astype(how.get("dtype", np.float32))
        net: dict[str, Any] = {k: how[k] for k in ("dropout", "bias", "product_order") if k in how}
        net |= {"heads": problem.heads} if problem.heads else {"keep_aggregate": False}
        grid = dg.Grid(MPI.COMM_SELF, backend=on, wire=how.get("wire"), rows=1)
        grid.mixed = how.get("mixed_precision", False)
        if on.on_device:
            on.use_tf32(how.get("tf32", False))
        self.model = NETWORKS[problem.model](dg.distribute(A, grid, "1d"), problem.widths, **net)
        self.model.tune()  # as ``distgnn train`` does
        targets = self.model.targets(problem.labels, np.ones(A.shape[0], np.uint8))
        X = dg.scatter(problem.X.astype(A.dtype), self.model.input_layout)
        options: Any = {name: how.get(name, 0) for name in ("eval_every", "cuda_graph")}
        self.epochs = train(self.model, X, targets, Adam(0.01), epochs, **options)

    def run(self, epochs: int) -> dict[str, list[float]]:
        """Train so many epochs more; return their losses and seconds."""
        losses, seconds = [], []
        for _ in range(epochs):
            self.on.synchronize()
            started = time.perf_counter()
            losses.append(next(self.epochs)["loss"])
            self.on.synchronize()
            seconds.append(time.perf_counter() - started)
        return {"losses": losses, "seconds": seconds}


class Captures(logging.Handler):
    """Messages about CUDA graphs of epochs, while this is open; `made`: whether there were any."""

    log = logging.getLogger("distgnn.train.epoch_graph")
    made = False

    def emit(self, record: logging.LogRecord) -> None:
        self.made = self.made or "two CUDA graphs" in record.getMessage()

    def __enter__(self) -> Captures:
        self.log.addHandler(self)
        self.log.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        self.log.removeHandler(self)


def ours(problem: Problem, on: Any, epochs: int, how: dict[str, Any]) -> dict[str, Any]:
    """Train; return losses and seconds of the epochs, and whether they were CUDA graphs."""
    run = by_fit if how.get("fit") else by_loop
    try:
        with Captures() as captures:
            return {**run(problem, on, epochs, how), "graphs": captures.made}
    finally:
        if on.on_device:
            on.use_tf32(False)
            on.xp.get_default_memory_pool().free_all_blocks()


def by_loop(problem: Problem, on: Any, epochs: int, how: dict[str, Any]) -> dict[str, list[float]]:
    return Training(problem, on, epochs, how).run(epochs)


def by_fit(problem: Problem, on: Any, epochs: int, how: dict[str, Any]) -> dict[str, list[float]]:
    """Train by `dg.fit`; an epoch lasts from the end of the one before to its own."""
    ends: list[float] = []
    settings: dict[str, Any] = {"layers": len(problem.widths) - 1, "hidden": problem.widths[1]}
    attention: dict[str, Any] = {"model": problem.model, "heads": problem.heads}
    settings |= attention if problem.heads else {"keep_aggregate": False}
    words = "wire", "mixed_precision", "tf32", "cuda_graph", "dropout", "bias"
    settings |= {k: how[k] for k in words if k in how}
    model = dg.fit(
        problem.A, problem.X, problem.labels, np.full(problem.A.shape[0], "train"), weights=True,
        normalize="none", self_loops=False, comm=MPI.COMM_SELF, recipe="plain", epochs=epochs, lr=0.01,
        keep_best="none", eval_every=how.get("eval_every", 0), backend=on.name,
        on_epoch=lambda _: ends.append(time.perf_counter()), **settings,
    )  # fmt: skip
    seconds = [ends[0], *np.diff(ends)]  # of the first there is no beginning
    return {"losses": [record["loss"] for record in model.history], "seconds": seconds}


def answers(problem: Problem, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Train in all ways of ours; give each answer as soon as it is known."""
    on, epochs = backend.get("cupy"), args.warm_up + args.epochs
    for way in args.ways:
        how, words = asked(way), (word for word in way.split("+") if word not in ("plain", "graphs"))
        name, graphs = ", ".join(["distgnn", *words]), bool(how.get("cuda_graph"))
        try:
            answer = ours(problem, on, epochs, how)
            made = ", CUDA graphs" if answer["graphs"] else ", no CUDA graphs came about" * graphs
            yield {"name": name + made, "how": how, **answer}
        except (dg.UserError, ValueError) as error:  # CUDA graphs of a network that has none
            yield {"name": name + ", CUDA graphs" * graphs, "reason": str(error).splitlines()[0]}


def of_peers(folders: list[Path], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Train the problems in these folders by the peers, in one process: PyG takes seconds to import."""
    words = [str(args.warm_up + args.epochs), *map(str, folders), "--", *args.peers]
    command = [sys.executable, "-W", "ignore", str(PEERS), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield from map(json.loads, process.stdout)
    if process.returncode:
        reason = f"ended with exit status {process.returncode}"
        yield {"name": "peers", "folder": str(folders[-1]), "reason": reason}


class Rows:
    """Rows of one problem; `wrong`: those whose losses are another's than the first one's."""

    def __init__(self, problem: Problem, args: argparse.Namespace, report: Report) -> None:
        self.cells = [f"{problem.name}, {problem.A.nnz / 1e6:.3g} M entries", problem.network]
        self.problem, self.args, self.report = f"{problem.name}, {problem.network}", args, report
        self.first: dict[str, Any] | None = None
        self.wrong: list[str] = []

    def tell(self, answer: dict[str, Any]) -> None:
        cells = " | ".join([*self.cells, answer["name"]])
        if "reason" in answer:
            self.report.say(f"| {cells} | {answer['reason']} | | |")
            return
        self.first = first = self.first or answer
        ms, least = (1e3 * float(np.median(x["seconds"][self.args.warm_up :])) for x in (answer, first))
        how, apart = answer.get("how", answer), difference(answer["losses"], first["losses"])
        allowed = ROUNDED if how.get("wire") or how.get("tf32") else EXACT
        told = "" if how.get("dropout") else f"{apart:.1e}"
        if told and apart > allowed:
            told += ", **WRONG**"
            self.wrong.append(f"{self.problem}, {answer['name']}")
        self.report.say(f"| {cells} | {milliseconds(ms)} | {ms / least:.2f} | {told} |")


def compare(problems: Iterator[Problem], args: argparse.Namespace, report: Report) -> list[str]:
    """Tell the rows of ours for all problems, then those of the peers; return what is wrong."""
    rows: dict[str, Rows] = {}
    on = backend.get("cupy")
    with tempfile.TemporaryDirectory() as scratch:
        for number, problem in enumerate(problems):
            folder = Path(scratch, str(number))
            rows[str(folder)] = one = Rows(problem, args, report)
            for answer in answers(problem, args):
                one.tell(answer)
            folder.mkdir()
            problem.save(folder, Training(problem, on, 1, {}).model)
            on.xp.get_default_memory_pool().free_all_blocks()
        for answer in of_peers([*map(Path, rows)], args):
            rows[answer["folder"]].tell(answer)
    return [row for one in rows.values() for row in one.wrong]


def difference(losses: list[float], others: list[float], epochs: int = COMPARED) -> float:
    """Return the largest relative difference in the first epochs; infinite where a loss is not a number."""
    apart = np.abs(np.subtract(losses, others)[:epochs]) / np.abs(others[:epochs])
    return float(np.nan_to_num(apart, nan=np.inf).max())


def drift(args: argparse.Namespace) -> Iterator[str]:
    """Give the table of trainings in float32, with A X W in either order, beside one in float64."""
    on, epochs = backend.get("numpy"), args.warm_up + args.epochs
    yield from table.columns("graph", "order", f"apart in {COMPARED} epochs", f"in {epochs} epochs")
    for name in args.graphs:
        problem = Problem(name, "gcn", kept(name, args.kept_in))
        exact = ours(problem, on, epochs, {"dtype": np.float64})["losses"]
        for order in ("transform-first", "aggregate-first"):
            losses = ours(problem, on, epochs, {"product_order": order})["losses"]
            apart = [f"{difference(losses, exact, some):.1e}" for some in (COMPARED, epochs)]
            yield f"| {name} | {order} | {' | '.join(apart)} |"


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of what is trained."""
    parser = table.arguments(doc)
    add = parser.add_argument
    add("--graphs", nargs="+", default=GRAPHS, metavar="rmat-K-D", help="of gpu_graphs.py")
    add("--networks", nargs="+", default=["gcn"], metavar="NETWORK", help="gcn, gat-8-1, gatv2-8-8 ...")
    add("--epochs", type=int, default=20, help="timed, after those to warm up")
    add("--warm-up", type=int, default=20, help="epochs")
    add("--kept-in", type=Path, metavar="FOLDER", help="read graphs from here, or save them")
    return parser


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--ways", nargs="*", default=WAYS, help=f"of ours (default: {' '.join(WAYS)})")
    parser.add_argument("--peers", nargs="*", default=["all"], help="parts of their names (default: all)")
    parser.add_argument("--drift", action="store_true", help="float32 beside float64, on the host")
    args = parser.parse_args()
    if args.drift:
        table.publish(args, "\n".join((f"{table.heading(args)}\n", *drift(args))))
        return 0
    on, report = gpu_timing.bound("gpu_epoch"), Report(args)
    report.begin(args, gpu_timing.device_name(on.xp))
    report.say(*table.columns(*HEADER))
    matrices = ((name, kept(name, args.kept_in)) for name in args.graphs)
    problems = (Problem(name, network, A) for name, A in matrices for network in args.networks)
    wrong = compare(problems, args, report)
    verdict = f"losses of {COMPARED} epochs at most {EXACT:.0e} apart, of rounded products {ROUNDED:.0e}"
    report.say("", *(f"**WRONG**: {row}" for row in wrong), f"Allowed: {verdict}.", "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
