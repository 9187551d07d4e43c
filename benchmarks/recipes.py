"""Test accuracies of each recipe of `distgnn train` over seeds, beside PyTorch Geometric's example of a GCN.

Needs torch and torch-geometric. PyG's side is its `examples/gcn.py`: two GCNConv of width 16, dropout 0.5,
row-normalised features, Adam 0.01, weight decay 5e-4 on the first layer, 200 epochs, the test accuracy where
validation was best.

    distgnn prepare PLANETOID/cora cora.dg
    python benchmarks/recipes.py cora.dg --out benchmarks/results/recipes.md
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import distgnn as dg
import table
from distgnn.split import TEST, TRAIN, VAL
from distgnn.train import Run, Settings
from distgnn.train.settings import RECIPES

LR, DECAY, EPOCHS, HIDDEN, DROPOUT = 0.01, 5e-4, 200, 16, 0.5


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("store")
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    ways: dict[str, Callable[[int], tuple[float, float]]] = {
        f"distgnn, recipe {name}": lambda seed, name=name: ours(args.store, name, seed) for name in RECIPES
    }
    ways["PyG, examples/gcn.py"] = pyg(dg.Store(args.store))
    lines = [*table.columns("training", "validation, %", "test, %", "test by seed")]
    for name, accuracies in ways.items():
        by_seed = 100 * np.array([accuracies(seed) for seed in range(args.seeds)])
        (val, test), spread = by_seed.mean(axis=0), by_seed[:, 1].std()
        listed = ", ".join(f"{value:.1f}" for value in by_seed[:, 1])
        lines.append(f"| {name} | {val:.2f} | {test:.2f} ± {spread:.2f} | {listed} |")
    table.publish(args, "\n".join([table.heading(args), "", *lines]))


def ours(store: str, recipe: str, seed: int) -> tuple[float, float]:
    """Return the accuracies (validation, test) of the weights that a run keeps."""
    run = Run(store, Settings(recipe=recipe, seed=seed))
    for _ in run.train():
        pass
    kept = run.end.get("best", run.end)
    run.grid.free()
    return kept["val_acc"], kept["test_acc"]


def pyg(store: dg.Store) -> Callable[[int], tuple[float, float]]:
    """Return a function that trains PyG's example with a seed."""
    import torch
    from torch_geometric.nn import GCNConv

    order = store.order()
    X = store.features(order)
    X = torch.tensor(X / np.maximum(X.sum(axis=1, keepdims=True), 1))
    entries = order.block((0, store.n), (0, store.n)).tocoo()
    edges = entries.row != entries.col  # GCNConv adds the loops
    edge_index = torch.tensor(np.stack([entries.col[edges], entries.row[edges]]).astype(np.int64))
    y, split = torch.tensor(store.labels(order).reshape(-1).astype(np.int64)), store.split(order).reshape(-1)
    masks = {part: torch.tensor(split == part) for part in (TRAIN, VAL, TEST)}

    def trained(seed: int) -> tuple[float, float]:
        torch.manual_seed(seed)
        convs = torch.nn.ModuleList(
            [GCNConv(store.width, HIDDEN, cached=True), GCNConv(HIDDEN, store.classes, cached=True)]
        )
        rates = [
            {"params": conv.parameters(), "weight_decay": decay}
            for conv, decay in zip(convs, (DECAY, 0.0), strict=True)
        ]
        optimizer, best = torch.optim.Adam(rates, lr=LR), (0.0, 0.0)

        def logits(training: bool) -> torch.Tensor:
            drop = torch.nn.functional.dropout
            H = convs[0](drop(X, DROPOUT, training), edge_index).relu()
            return convs[1](drop(H, DROPOUT, training), edge_index)

        for _ in range(EPOCHS):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits(True)[masks[TRAIN]], y[masks[TRAIN]]).backward()
            optimizer.step()
            with torch.no_grad():
                right = logits(False).argmax(dim=1) == y
            val, test = (float(right[masks[part]].float().mean()) for part in (VAL, TEST))
            best = (val, test) if val > best[0] else best
        return best

    return trained


if __name__ == "__main__":
    main()
