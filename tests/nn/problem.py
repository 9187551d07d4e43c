"""A small directed graph with features, labels and splits, put on a grid, and its reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

import distgnn as dg
from distgnn.nn.optim import make
from distgnn.nn.whole_weights import collect
from distgnn.operators import ALGORITHMS
from distgnn.train.full_graph import train
from oracle import GCNReference


@dataclass
class Problem:
    """53 nodes (a prime), 11 features, 5 classes; weights of either sign; one training node unlabelled."""

    n: int = 53
    width: int = 11
    classes: int = 5
    seed: int = 0
    A: sp.csr_array = field(init=False)
    X: np.ndarray = field(init=False)
    labels: np.ndarray = field(init=False)
    split: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        r = np.random.default_rng(self.seed)
        dense = np.where(r.random((self.n, self.n)) < 0.1, r.uniform(-0.5, 1, (self.n, self.n)), 0)
        self.A = sp.csr_array(dense + np.eye(self.n))
        self.X = r.standard_normal((self.n, self.width))
        self.labels = r.integers(0, self.classes, self.n).astype(np.int32)
        self.split = r.integers(0, 4, self.n).astype(np.uint8)
        self.labels[np.flatnonzero(self.split == 1)[2]] = -1

    def model(
        self, grid: dg.Grid, algorithm: str, hidden: Any = (8, 7), dtype: Any = np.float64,
        matrix: Any = None, **options: Any,
    ) -> Any:  # fmt: skip
        """Make a network on this graph, its features and targets; `matrix`: the graph's, maybe permuted."""
        A = dg.distribute(self.A.astype(dtype) if matrix is None else matrix, grid, algorithm)
        model = dg.nn.GCN(A, [self.width, *hidden, self.classes], **options)
        targets = model.targets(self.labels, self.split)
        return model, dg.scatter(self.X.astype(dtype), model.input_layout), targets

    def reference(self, hidden: Any = (8, 7), dtype: Any = np.float64, **options: Any) -> GCNReference:
        known = {name: value for name, value in options.items() if name != "product_order"}
        return GCNReference(self.A, [self.width, *hidden, self.classes], dtype=dtype, **known)

    def compare(
        self, grid: dg.Grid, algorithm: str, epochs: int = 3, optimizer: str = "adam", lr: float = 0.05,
        weight_decay: Any = 0.0, momentum: float = 0.0, train_features: bool = False, rtol: float = 1e-9,
        dtype: Any = np.float64, clip: float | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """Train on the grid and serially: losses, accuracies, weights, biases and features must be equal to
        rounding.
        """
        model, X, targets = self.model(grid, algorithm, dtype=dtype, **options)
        update = make(optimizer, lr, weight_decay, momentum, clip)
        rates: Any = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        rates |= {"train_features": train_features}
        got = list(train(model, X, targets, update, epochs, train_features=train_features))
        reference = self.reference(dtype=dtype, **options)
        expected = list(
            reference.train(self.X, self.labels, self.split, epochs, optimizer, **rates, clip=clip)
        )
        for name in ("epoch", "loss", "train_acc", "val_acc", "test_acc"):
            np.testing.assert_allclose(
                [record[name] for record in got],
                [record[name] for record in expected],
                rtol=rtol,
                err_msg=name,
            )
        close = {"rtol": 100 * rtol, "atol": 100 * rtol}
        trained = [collect(p.matrix) for p in model.parameters]
        groups = reference.weights, reference.biases, reference.gains, reference.shifts
        for ours, theirs in zip(trained, [one for group in groups for one in group], strict=True):
            np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, **close)
        features = dg.gather(X)
        if grid.rank == 0:
            np.testing.assert_allclose(features, reference.features, **close)


DIFFERENCES: dict[tuple[str, bytes], list[dict[int, float]]] = {}


def received(A: dg.DistSparse, width: int) -> int:
    """Return the bytes that a product of this width borrows at a time, beside its operands."""
    X, live, most = np.ones((A.shape[1], width)), dict[int, int](), 0
    with A.grid.workspace.noted() as notes:
        A @ dg.scatter(X, A.input_layout, A.dtype)
    for address, size in notes:
        live[address] = size
        most = max(most, sum(live.values()))
    A.grid.workspace.clear()
    return most


def central_differences(
    name: str, loss: Callable[[list[np.ndarray]], float], arrays: list[np.ndarray]
) -> list[dict[int, float]]:  # fmt: skip
    """Return the derivative of a loss by some places of each array: place -> derivative.

    Computed once for a name and arrays, which are the same on every algorithm.
    """
    key = name, b"".join(array.tobytes() for array in arrays)
    if key not in DIFFERENCES:
        DIFFERENCES[key] = [dict[int, float]() for _ in arrays]
        for number, array in enumerate(arrays):
            for place in range(0, array.size, max(array.size // 4, 1)):
                ends = []
                for step in (1e-6, -1e-6):
                    nudged = [value.copy() for value in arrays]
                    nudged[number].reshape(-1)[place] += step
                    ends.append(loss(nudged))
                DIFFERENCES[key][number][place] = (ends[0] - ends[1]) / 2e-6
    return DIFFERENCES[key]


__all__ = ["ALGORITHMS", "Problem", "central_differences"]
