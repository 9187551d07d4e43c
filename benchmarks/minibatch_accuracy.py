"""Test accuracies of training on subgraphs over seeds, beside training on the full graph, in as many updates.

    distgnn prepare PLANETOID/cora cora.dg
    distgnn prepare MUSAE/facebook facebook.dg --split 0.6/0.2/0.2
    python benchmarks/minibatch_accuracy.py cora.dg --out benchmarks/results/minibatch-accuracy.md

Recipe kipf-welling; the weights of the epoch with the best validation. p: of Welch's t-test of the test
accuracies of a sampler and of the full graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import ttest_ind

import table
from distgnn.train import Run, Settings

SINGLE = {"batches_per_update": 1}
WAYS: dict[str, dict[str, Any]] = {
    "full graph": {},
    "vertices, a quarter": {"sampler": "vertices"},
    "cluster, 10 of 50 parts": {"sampler": "cluster", "parts": "metis:50", "batch_size": 10, **SINGLE},
    "shadow, 10,5": {"sampler": "shadow", "fanout": [10, 5], "batch_size": 512, **SINGLE},
    "saint, 2000 nodes": {"sampler": "saint", "fanout": [2000], "batch_size": 512, **SINGLE},
}


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("store")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    args = parser.parse_args()
    lines, full = [*table.columns("training", "epochs", "validation, %", "test, %", "p", "by seed")], None
    for name in args.ways:
        settings = WAYS[name]
        epochs = -(-args.updates // updates_of_an_epoch(args.store, settings))
        by_seed = [accuracies(args.store, epochs, settings | {"seed": seed}) for seed in range(args.seeds)]
        val, test = 100 * np.array(by_seed).T
        full = test if full is None else full
        same = ttest_ind(test, full, equal_var=False).pvalue
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
