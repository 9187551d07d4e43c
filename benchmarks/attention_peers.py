"""GAT and GATv2 beside PyTorch Geometric's layers, for ``attention.py``: equal numbers, and accuracies.

The first compares logits and all gradients of two layers from equal weights, 8 heads side by side and then
the mean of 3, on a random directed graph: largest differences, relative to the largest number of the matrix.
The second trains both on a store by the paper's setting for Cora, with the weights that validate best: the
recipe `gat`, and GATConv or GATv2Conv with the same widths, dropout, decay and epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy, dropout, elu
from torch_geometric.nn import GATConv, GATv2Conv

import distgnn as dg
import table
from distgnn.nn import NETWORKS
from distgnn.split import TEST, TRAIN, VAL
from distgnn.train import Run, Settings
from distgnn.train.resolve import resolved
from gpu_epoch_peers import named

CONVOLUTIONS = {"gat": GATConv, "gatv2": GATv2Conv}
WIDTHS, HEADS, NODES = [33, 64, 7], [8, 3], 700


# -- equal numbers -------------------------------------------------------------------------------------------


def numbers(args: Any) -> Iterator[str]:
    """Compare logits and gradients."""
    yield from table.columns("network", "dtype", "logits", "gradient of the features", "of any weight")
    for model in CONVOLUTIONS:
        for dtype in ("float32", "float64"):
            found = [f"{difference:.1e}" for difference in compared(model, dtype)]
            yield f"| {' | '.join([model, dtype, *found])} |"


def compared(model: str, dtype: str) -> list[float]:
    """Return the largest relative differences: of logits, the features' gradient, any parameter's."""
    r = np.random.default_rng(0)
    dense = (r.random((NODES, NODES)) < 0.02).astype(dtype)
    np.fill_diagonal(dense, 0)
    edge_index = torch.tensor(np.stack(np.nonzero(dense))[::-1].copy())  # row i gathers from column j
    grid = dg.make_grid(MPI.COMM_SELF, "1d", backend="numpy")
    A = dg.distribute(sp.csr_array(dense + np.eye(NODES, dtype=dtype)), grid, "1d")
    network: Any = NETWORKS[model](A, WIDTHS, heads=HEADS, bias=True, seed=1)
    X = r.standard_normal((NODES, WIDTHS[0])).astype(dtype)
    y, split = r.integers(0, WIDTHS[-1], NODES).astype(np.int32), np.full(NODES, TRAIN, np.uint8)
    targets, features = network.targets(y, split), dg.scatter(X, network.input_layout)
    _, _, gradients, dX = network.gradients(features, targets, need_input=True)
    found = dict(zip((p.name for p in network.parameters), gradients, strict=True))
    convs, theirs = twins(model, network), torch.tensor(X, requires_grad=True)
    logits = convs[1](elu(convs[0](theirs, edge_index)), edge_index)
    cross_entropy(logits, torch.tensor(y.astype(np.int64))).backward()
    of_weights = [
        far(found[f"{name}{layer}"], like(parameter.grad, found[f"{name}{layer}"]))
        for layer, conv in enumerate(convs)
        for name, parameter in named(model, conv).items()
    ]
    ours = dg.gather(network.forward(features))
    return [far(ours, logits.detach().numpy()), far(dg.gather(dX), theirs.grad.numpy()), max(of_weights)]


def twins(model: str, network: Any) -> list[Any]:
    """Make PyG's layers with the weights of a network of two layers."""
    convs = []
    for layer, (heads, concat) in enumerate(zip(HEADS, (True, False), strict=True)):
        wide = WIDTHS[layer + 1] // (heads if concat else 1)
        conv = CONVOLUTIONS[model](WIDTHS[layer], wide, heads=heads, concat=concat)
        values = {p.name: dg.gather(p.matrix) for p in network.parameters}
        conv.to(getattr(torch, str(network.A.dtype)))
        for parameter in conv.parameters():
            torch.nn.init.zeros_(parameter)  # GATv2Conv's linear maps have biases, ours none
        for name, parameter in named(model, conv).items():
            value = torch.tensor(values[f"{name}{layer}"])
            value = value.T if parameter.dim() == 2 else value
            parameter.data.copy_(value.reshape(parameter.shape))
        convs.append(conv)
    return convs


def like(gradient: Any, ours: np.ndarray) -> np.ndarray:
    """Give a gradient of PyG's the shape of ours, in which weights are transposed."""
    whole = gradient.detach().numpy()
    return (whole.T if whole.ndim == 2 else whole).reshape(ours.shape)


def far(ours: Any, theirs: np.ndarray) -> float:
    return float(abs(ours - theirs).max() / abs(theirs).max())


# -- accuracies ----------------------------------------------------------------------------------------------


def accuracies(args: Any) -> Iterator[str]:
    """Train with each seed."""
    yield from table.columns("training", "validation, %", "test, %", "test by seed")
    for model in CONVOLUTIONS:
        ways: dict[str, Callable[[int], tuple[float, float]]] = {
            f"distgnn, recipe gat, {model}": lambda seed, model=model: ours(args.store, model, seed),
            f"PyG, {CONVOLUTIONS[model].__name__}": pyg(dg.Store(args.store), model),
        }
        for name, of_seed in ways.items():
            by_seed = 100 * np.array([of_seed(seed) for seed in range(args.seeds)])
            (val, test), spread = by_seed.mean(axis=0), by_seed[:, 1].std()
            listed = ", ".join(f"{value:.1f}" for value in by_seed[:, 1])
            yield f"| {name} | {val:.2f} | {test:.2f} ± {spread:.2f} | {listed} |"


def ours(store: str, model: str, seed: int) -> tuple[float, float]:
    """Return the accuracies (validation, test) of the weights that a run keeps."""
    run = Run(store, Settings(recipe="gat", model=model, seed=seed))
    for _ in run.train():
        pass
    run.grid.free()
    return run.end["best"]["val_acc"], run.end["best"]["test_acc"]


def pyg(store: dg.Store, model: str) -> Callable[[int], tuple[float, float]]:
    """Return a function that trains PyG's layers with a seed, as the recipe has it."""
    order, s = store.order(), resolved(Settings(recipe="gat"), 1)
    X = store.features(order)
    X = torch.tensor(X / np.maximum(X.sum(axis=1, keepdims=True), 1))
    entries = order.block((0, store.n), (0, store.n)).tocoo()
    edges = entries.row != entries.col  # the layers add the loops
    edge_index = torch.tensor(np.stack([entries.col[edges], entries.row[edges]]).astype(np.int64))
    y, split = torch.tensor(store.labels(order).reshape(-1).astype(np.int64)), store.split(order).reshape(-1)
    masks = {part: torch.tensor(split == part) for part in (TRAIN, VAL, TEST)}
    (hidden,), (heads, last), rate = s.hidden_widths, s.heads or (), s.dropout

    def forward(convs: Any, training: bool) -> Any:
        H = dropout(X, rate, training)
        H = dropout(elu(convs[0](H, edge_index)), rate, training)
        return convs[1](H, edge_index)

    def trained(seed: int) -> tuple[float, float]:
        torch.manual_seed(seed)
        kind, options = CONVOLUTIONS[model], {"dropout": s.attention_dropout}
        first = kind(store.width, hidden // heads, heads=heads, **options)
        convs = torch.nn.ModuleList([first, kind(hidden, store.classes, heads=last, concat=False, **options)])
        decayed = [p for name, p in convs.named_parameters() if not name.endswith("bias")]
        others = [p for name, p in convs.named_parameters() if name.endswith("bias")]
        groups = [{"params": decayed, "weight_decay": s.decays[0]}, {"params": others}]
        optimizer = torch.optim.Adam(groups, lr=s.lr)
        best = (0.0, 0.0)
        for _ in range(s.epochs):
            convs.train()
            optimizer.zero_grad()
            cross_entropy(forward(convs, True)[masks[TRAIN]], y[masks[TRAIN]]).backward()
            optimizer.step()
            convs.eval()
            with torch.no_grad():
                right = forward(convs, False).argmax(dim=1) == y
            val, test = (float(right[masks[part]].float().mean()) for part in (VAL, TEST))
            best = max(best, (val, test), key=lambda pair: pair[0])
        return best

    return trained
