"""Test accuracies of training on minibatches over seeds, beside the full graph, in as many updates.

    distgnn prepare PLANETOID/cora cora.dg
    distgnn prepare MUSAE/facebook facebook.dg --split 0.6/0.2/0.2
    python benchmarks/minibatch_accuracy.py cora.dg --out benchmarks/results/minibatch-accuracy.md

Recipe kipf-welling; the weights of the epoch with the best validation. p: of Welch's t-test of the test
accuracies of a sampler and of the first way here with the same network, which is the full graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import ttest_ind

import table
from distgnn.train import Run, Settings

SINGLE = {"batch_size": 512, "batches_per_update": 1}
PARTS = {"sampler": "cluster", "parts": "metis:50"} | SINGLE | {"batch_size": 10}
WAYS: dict[str, dict[str, Any]] = {
    "full graph": {},
    "sage, 10,10": {"sampler": "sage", "model": "gcn", "fanout": [10, 10], **SINGLE},
    "ladies, 1024,1024": {"sampler": "ladies", "fanout": [1024, 1024], **SINGLE},
    "fastgcn, 1024,1024": {"sampler": "fastgcn", "fanout": [1024, 1024], **SINGLE},
    "saint, 2000 nodes": {"sampler": "saint", "fanout": [2000], **SINGLE},
    "shadow, 10,5": {"sampler": "shadow", "fanout": [10, 5], **SINGLE},
    "vertices, a quarter": {"sampler": "vertices"},
    "cluster, 10 of 50 parts": PARTS,
    "cluster, values of A": PARTS | {"renormalize": False},
    "cluster, rescaled": PARTS | {"rescale": True},
    "cluster, both": PARTS | {"rescale": True, "renormalize": True},
    "cluster, an epoch an update": PARTS | {"batches_per_update": 5},
    "sage, 25,25": {"sampler": "sage", "model": "gcn", "fanout": [25, 25], **SINGLE},
    "ladies, 8192,8192": {"sampler": "ladies", "fanout": [8192, 8192], **SINGLE},
    "fastgcn, 12000,12000": {"sampler": "fastgcn", "fanout": [12000, 12000], **SINGLE},
    "fastgcn, 18000,18000": {"sampler": "fastgcn", "fanout": [18000, 18000], **SINGLE},
    "saint, 12000 nodes": {"sampler": "saint", "fanout": [12000], **SINGLE},
    "shadow, 20,10": {"sampler": "shadow", "fanout": [20, 10], **SINGLE},
    "vertices, 11235 nodes": {"sampler": "vertices", "batch_size": 11235},
    "cluster, 25 of 50 parts": PARTS | {"batch_size": 25},
    "full graph, GraphSAGE": {"model": "sage"},
    "sage, 10,10, GraphSAGE": {"sampler": "sage", "model": "sage", "fanout": [10, 10], **SINGLE},
}


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("store")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--plain", action="store_true", help="train without dropout and weight decay")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--raw-features", action="store_true", help="counts are not divided by their sums")
    args = parser.parse_args()
    lines = [*table.columns("training", "epochs", "validation, %", "test, %", "p", "by seed")]
    full: dict[str, np.ndarray] = {}
    for name in args.ways:
        settings = WAYS[name] | ({"normalize_features": False} if args.raw_features else {})
        settings |= {"dropout": 0.0, "weight_decay": (0.0,)} if args.plain else {}
        epochs = -(-args.updates // updates_of_an_epoch(args.store, settings))
        by_seed = [accuracies(args.store, epochs, settings | {"seed": seed}) for seed in range(args.seeds)]
        val, test = 100 * np.array(by_seed).T
        beside = full.setdefault(settings.get("model", "gcn"), test)
        same = ttest_ind(test, beside, equal_var=False).pvalue
        listed = ", ".join(f"{value:.1f}" for value in test)
        spread = f"{test.mean():.2f} ± {test.std():.2f}"
        lines.append(f"| {name} | {epochs} | {val.mean():.2f} | {spread} | {same:.2f} | {listed} |")
        print(lines[-1], flush=True)
    table.publish(args, "\n".join([table.heading(args), "", *lines]))


def updates_of_an_epoch(store: str, settings: dict[str, Any]) -> int:
    """Count the updates of an epoch."""
    run = Run(store, Settings(**settings))
    turns = [] if run.minibatches is None else run.minibatches.turns
    run.grid.free()
    return sum(turn.updates for turn in turns) or 1


def accuracies(store: str, epochs: int, settings: dict[str, Any]) -> tuple[float, float]:
    """Return the accuracies (validation, test) of the weights that a run keeps."""
    run = Run(store, Settings(epochs=epochs, **settings))
    for _ in run.train():
        pass
    kept = run.end.get("best", run.end)
    run.grid.free()
    return kept["val_acc"], kept["test_acc"]


if __name__ == "__main__":
    main()
