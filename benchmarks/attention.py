"""Graph attention beside DGL and PyTorch Geometric on one core: kernels over entries, epochs, memory.

Needs torch, torch-geometric and dgl. Tables, in one process and in turns, so that whatever else the machine
does hits all alike; medians:

- kernels: of 8 heads of 8 columns and of one of 64 on R-MAT 2^16, with DGL's operators beside them. DGL's
  `edge_softmax` takes scores; that of sums of both ends is three of its operators, and one pass of ours.
- epochs: full-graph training by Adam of two layers, 8 heads of 8 columns, then one head or the mean of 8 with
  a column for each class: Cora, and R-MAT 2^16 with 64 random features and 16 classes.
- memory: how far resident memory rises in two epochs, with and without dropout of attention, beside a GCN of
  the same widths, and the bound of nnz (heads + 1) numbers for each layer.
- numbers, accuracies: of `attention_peers.py`; they need a store of Cora.

    distgnn prepare PLANETOID/cora cora.dg
    OMP_NUM_THREADS=1 python benchmarks/attention.py cora.dg --out benchmarks/results/attention.md
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import scipy.sparse as sp
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy, elu, leaky_relu

import attention_peers
import distgnn as dg
import high_water
import table
from distgnn import gallery
from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.bench import timing
from distgnn.local import edges
from distgnn.nn import NETWORKS
from distgnn.nn.optim import Adam
from distgnn.split import TRAIN
from distgnn.train.full_graph import train

SLOPE, RATE, HIDDEN = 0.2, 0.01, 64
Runs = dict[str, Callable[[], Any]]
Problem = tuple[sp.csr_array, np.ndarray, np.ndarray, np.ndarray]  # A, features, labels, split


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("store", help="of Cora")
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--models", nargs="+", default=["gat", "gatv2"], help="of the epochs")
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=list(GRAPHS))
    parser.add_argument("--clock", choices=list(timing.CLOCKS), default="cpu", help="cpu: of one thread")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--scale", type=int, default=16, help="log2 of the R-MAT graph's nodes")
    parser.add_argument("--seeds", type=int, default=10, help="of the accuracies")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [table.heading(args)]
    for name in args.tables:
        lines.append("")
        for line in TABLES[name](args):
            print(line, file=sys.stderr, flush=True)
            lines.append(line)
    table.publish(args, "\n".join(lines))


def dgl() -> ModuleType:
    """Import DGL without its samplers, whose library is for older versions of torch."""
    for name in ("dgl.graphbolt", "dgl.graphbolt.impl", "torchdata.datapipes", "torchdata.datapipes.iter",
                 "torchdata.dataloader2", "torchdata.dataloader2.graph"):  # fmt: skip
        sys.modules.setdefault(name, MagicMock())
    for name in ("dgl.ops", "dgl.nn"):
        importlib.import_module(name)
    return sys.modules["dgl"]


def dgl_graph(A: sp.csr_array) -> Any:
    """Make DGL's graph, in which row i gathers from column j, with all its formats."""
    coo = A.tocoo()
    ends = (torch.tensor(x.astype(np.int64)) for x in (coo.col, coo.row))
    graph = dgl().graph(tuple(ends), num_nodes=A.shape[0]).formats(["csc", "csr", "coo"])
    graph.create_formats_()
    return graph


def medians(runs: Runs, args: Any) -> dict[str, float]:
    samples = timing.in_turns(runs, 0, args.turns, args.clock)
    return {name: float(np.median(times)) for name, times in samples.items()}


# -- kernels -------------------------------------------------------------------------------------------------


def kernels(args: Any) -> Iterator[str]:
    """Time each pass over the entries and DGL's way."""
    A = rmat(args)[0]
    yield from table.columns(f"pass, {A.nnz} entries", "ms", "ms, DGL", "faster by")
    for heads, columns in ((8, 8), (1, HIDDEN)):
        for name, (ours, theirs) in passes(A, heads, columns).items():
            a, b = medians({"ours": ours, "DGL": theirs}, args).values()
            yield f"| {name}, {heads} x {columns} | {1e3 * a:.1f} | {1e3 * b:.1f} | {b / a:.1f} |"


def passes(matrix: sp.csr_array, heads: int, columns: int) -> dict[str, tuple[Callable[[], Any], ...]]:
    """Return our call and DGL's for each pass."""
    ops, graph, on = dgl().ops, dgl_graph(matrix), backend.get("numpy")
    A, n = CSR.from_scipy(matrix, on, np.float32), matrix.shape[0]
    bounds = list(range(0, heads * columns + 1, columns))
    U, V = (torch.randn(n, heads, columns) for _ in range(2))
    u, v, scores = torch.randn(n, heads, 1), torch.randn(n, heads, 1), torch.randn(A.nnz, heads, 1)
    flat = [X.numpy().reshape(len(X), -1) for X in (U, V, u, v, scores)]
    products, numbers = np.empty((n, heads * columns), np.float32), np.empty((A.nnz, heads), np.float32)
    weights = ops.edge_softmax(graph, scores).requires_grad_()
    P, wanted = weights.detach().numpy().reshape(-1, heads), torch.randn(A.nnz, heads, 1)
    signs = edges.signs_for(numbers.size, on)

    def softmax(ends: Any = None) -> None:
        maxima, sums = np.full((n, heads), -np.inf, np.float32), np.zeros((n, heads), np.float32)
        if ends is None:
            numbers[...] = flat[4]
            edges.softmax(A, numbers, maxima, sums)
        else:
            signs[:] = 0
            edges.softmax(A, numbers, maxima, sums, ends=ends, slope=SLOPE, signs=signs)

    def softmax_back() -> None:
        sums = np.zeros((n, heads), np.float32)
        numbers[...] = wanted.numpy().reshape(-1, heads)
        edges.softmax_back(A, P, numbers, sums, None)

    def of_sums() -> Any:
        return ops.edge_softmax(graph, leaky_relu(ops.v_add_u(graph, u, v), SLOPE))

    ready = ops.edge_softmax(graph, scores.requires_grad_())
    return {
        "SDDMM; u_dot_v": (
            lambda: edges.dots(A, *flat[:2], bounds, numbers),
            lambda: ops.v_dot_u(graph, U, V),
        ),
        "softmax; edge_softmax": (softmax, lambda: ops.edge_softmax(graph, scores.detach())),
        "its adjoint": (softmax_back, lambda: torch.autograd.grad(ready, scores, wanted, retain_graph=True)),
        "u + v, leaky ReLU, softmax": (lambda: softmax((flat[2], flat[3])), of_sums),
        "SpMM; u_mul_e_sum": (
            lambda: edges.multiply(A, P, flat[1], bounds, products),
            lambda: ops.u_mul_e_sum(graph, V, weights.detach()),
        ),
    }  # fmt: skip


# -- epochs --------------------------------------------------------------------------------------------------


def rmat(args: Any) -> Problem:
    """Make a graph with loops, random features, labels and split."""
    A = gallery.rmat(1 << args.scale, degree=32).A
    A = sp.csr_array(A + sp.eye_array(A.shape[0]), dtype=np.float32)
    r, n = np.random.default_rng(0), A.shape[0]
    X = r.standard_normal((n, 64)).astype(np.float32)
    return A, X, r.integers(0, 16, n).astype(np.int32), r.integers(1, 4, n).astype(np.uint8)


def cora(args: Any) -> Problem:
    """Read the store, with loops."""
    store = dg.Store(args.store)
    order = store.order()
    A = order.block((0, store.n), (0, store.n))
    A = sp.csr_array(A + sp.eye_array(A.shape[0]), dtype=np.float32)
    A.data[:] = 1
    labels, split = (np.asarray(x).reshape(-1) for x in (store.labels(order), store.split(order)))
    return A, store.features(order), labels.astype(np.int32), split.astype(np.uint8)


def epochs(args: Any) -> Iterator[str]:
    """Time epochs of all networks."""
    yield from table.columns("graph, network, heads", "ms", "PyG", "DGL", "faster than PyG", "than DGL")
    for graph in args.graphs:
        problem = GRAPHS[graph](args)
        for model in args.models:
            for heads in ((8, 1), (8, 8)):
                runs: Runs = {
                    "ours": ours(problem, model, heads),
                    "PyG": of_pyg(problem, model, heads),
                    "DGL": of_dgl(problem, model, heads),
                }
                took = medians(runs, args)
                cells = [f"{1e3 * seconds:.1f}" for seconds in took.values()]
                cells += [f"{took[name] / took['ours']:.2f}" for name in ("PyG", "DGL")]
                yield f"| {graph}, {model}, {heads[0]} and {heads[1]} | {' | '.join(cells)} |"


def ours(problem: Problem, model: str, heads: tuple[int, int], dropped: float = 0) -> Callable[[], Any]:
    """Return a call that trains one epoch."""
    A, X, labels, split = problem
    operator = dg.distribute(A, dg.Grid(MPI.COMM_SELF, rows=1), "1d")
    of_attention: Any = {"heads": heads, "attention_dropout": dropped}
    options = of_attention if model != "gcn" else {"activation": "elu"}
    network = NETWORKS[model](operator, [X.shape[1], HIDDEN, int(labels.max()) + 1], bias=True, **options)
    features, targets = dg.scatter(X, network.input_layout), network.targets(labels, split)
    records = train(network, features, targets, Adam(RATE), 1 << 30, eval_every=0)
    return lambda: next(records)


def theirs(problem: Problem, modules: list[Any], apply: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    """Return a call that trains one epoch of two modules of torch, which ``apply`` applies."""
    _, X, labels, split = problem
    optimizer = torch.optim.Adam([p for module in modules for p in module.parameters()], lr=RATE)
    features, classes = torch.from_numpy(X), torch.from_numpy(labels.astype(np.int64))
    rows = torch.from_numpy(np.flatnonzero(split == TRAIN))

    def epoch() -> None:
        optimizer.zero_grad()
        H = apply(modules[1], elu(apply(modules[0], features)))
        cross_entropy(H[rows], classes[rows]).backward()
        optimizer.step()

    return epoch


def widths(problem: Problem, heads: tuple[int, int]) -> list[tuple[int, int, int]]:
    """Return fan in, columns of a head, and heads, of each layer."""
    fan_in, classes = problem[1].shape[1], int(problem[2].max()) + 1
    return [(fan_in, HIDDEN // heads[0], heads[0]), (HIDDEN, classes, heads[1])]


def of_pyg(problem: Problem, model: str, heads: tuple[int, int]) -> Callable[[], Any]:
    coo = problem[0].tocoo()
    index = torch.tensor(np.stack([coo.col, coo.row]).astype(np.int64))
    kind: Any = attention_peers.CONVOLUTIONS[model]
    modules = [
        kind(fan_in, columns, heads=count, concat=layer == 0, add_self_loops=False)
        for layer, (fan_in, columns, count) in enumerate(widths(problem, heads))
    ]
    return theirs(problem, modules, lambda module, H: module(H, index))


def of_dgl(problem: Problem, model: str, heads: tuple[int, int]) -> Callable[[], Any]:
    graph = dgl_graph(problem[0])
    kind = getattr(dgl().nn, attention_peers.CONVOLUTIONS[model].__name__)
    modules = [kind(fan_in, columns, count) for fan_in, columns, count in widths(problem, heads)]

    def apply(module: Any, H: Any) -> Any:
        Z = module(graph, H)
        return Z.flatten(1) if module is modules[0] else Z.mean(dim=1)

    return theirs(problem, modules, apply)


# -- memory --------------------------------------------------------------------------------------------------


def memories(args: Any) -> Iterator[str]:
    """Compare the rise of resident memory with that of a GCN and the bound."""
    bound_of = "nnz (heads + 1) of both layers"
    yield from table.columns("R-MAT, heads", "dropout of attention", "MiB", "GCN", "more", bound_of)
    problem = rmat(args)

    def rise(*given: Any) -> int:
        return high_water.rise(partial(twice, partial(ours, problem, *given)))

    rise("gcn", (1, 1))  # so that what the libraries keep for themselves is there
    gcn = rise("gcn", (1, 1))
    for heads in ((8, 1), (8, 8)):
        for dropped in (0.0, 0.6):
            gat, bound = rise("gat", heads, dropped), 4 * problem[0].nnz * (sum(heads) + 2)
            cells = [f"{x / 2**20:.0f}" for x in (gat, gcn, gat - gcn, bound)]
            yield f"| {heads[0]} and {heads[1]} | {dropped} | {' | '.join(cells)} |"


def twice(make: Callable[[], Callable[[], Any]]) -> None:
    """Train two epochs."""
    epoch = make()
    epoch(), epoch()


GRAPHS: dict[str, Callable[[Any], Problem]] = {"Cora": cora, "R-MAT": rmat}
TABLES: dict[str, Callable[[Any], Iterator[str]]] = {
    "kernels": kernels, "epochs": epochs, "memory": memories,
    "numbers": attention_peers.numbers, "accuracies": attention_peers.accuracies,
}  # fmt: skip


if __name__ == "__main__":
    main()
