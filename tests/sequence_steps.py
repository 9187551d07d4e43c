"""Operations of random sequences: inputs on a grid, and what SciPy and NumPy make of the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

import distgnn as dg
from distgnn.layout import Cut, Layout
from distgnn.nn import GCN, SGD, SageMean
from distgnn.sampling import Features, GraphSage, Ladies, Partitioned, Replicated
from distgnn.train import train
from oracle import GCNReference, SageReference

EPOCHS = 2


@dataclass
class Field:
    """A grid with its matrices, and what draws operations on them, alike on all ranks.

    Attributes:
        matrices: (operator, the same on one rank, in double precision); the last is on the same grid.
        widths: from which widths are drawn; aware, wire: of the matrices and the grid.
    """

    grid: dg.Grid
    algorithm: str
    matrices: list[tuple[dg.DistSparse, sp.csr_array]]
    dtype: np.dtype
    widths: np.ndarray
    rng: np.random.Generator
    aware: bool | str
    wire: str | None

    def width(self) -> int:
        return int(self.rng.choice(self.widths))

    def numbers(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(self.dtype)

    def one(self) -> tuple[Any, sp.csr_array]:
        """Draw a matrix; for a square one, any layer's operator."""
        operator, A = self.matrices[int(self.rng.integers(len(self.matrices)))]
        layer = int(self.rng.integers(4))
        return (operator.layer(layer) if A.shape[0] == A.shape[1] else operator), A

    def square(self) -> tuple[Any, sp.csr_array] | None:
        return next((pair for pair in self.matrices if pair[1].shape[0] == pair[1].shape[1]), None)


@dataclass
class Step:
    """An operation of a sequence.

    Attributes:
        inputs: which the operation reads or changes, and nobody after it.
        run: does it; gives matrices and edges on the grid, arrays of this rank, and texts.
        expected: one array for each, of a matrix all of it, of edges (rows, columns, heads); words of a text.
        alike: what is expected is the same on all ranks.
    """

    name: str
    inputs: list[dg.DistDense | dg.DistEdges]
    run: Callable[[], list[Any]]
    expected: Callable[[], list[np.ndarray]]
    alike: bool = True
    kept: list[np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        self.kept = [array_of(X).copy() for X in self.inputs]

    def results(self) -> list[Any]:
        """Return the results of a run with fresh inputs, of which nothing is left afterwards."""
        for X, block in zip(self.inputs, self.kept, strict=True):
            array_of(X)[...] = block
        found = self.run()
        copies = [Y.like(array_of(Y).copy()) if hasattr(Y, "like") else Y for Y in found]
        for X in self.inputs:
            array_of(X)[...] = np.nan
        return copies


def array_of(X: Any) -> np.ndarray:
    """Return what this rank holds of a matrix, or of edges; an array as it is."""
    if isinstance(X, dg.DistEdges):
        return X.data
    return X.block if isinstance(X, dg.DistDense) else np.asarray(X)


def product(on: Field) -> Step:
    """Multiply ``A @ H``, into memory that is there or not."""
    (A, whole), f = on.one(), on.width()
    X = on.numbers(whole.shape[1], f)
    H, out = dg.scatter(X, A.input_layout), None
    if on.rng.random() < 0.5:
        out = dg.DistDense.empty(A.output_layout, (whole.shape[0], f), on.dtype)
        out.block[...] = np.nan
    inputs = [H] if out is None else [H, out]
    return Step(f"{A!r} @ {f}", inputs, lambda: [A.multiply(H, out)], lambda: [whole @ X])


def adjoint(on: Field) -> Step:
    """Multiply ``A.T @ G``."""
    (A, whole), f = on.one(), on.width()
    X = on.numbers(whole.shape[0], f)
    G = dg.scatter(X, A.output_layout)
    return Step(f"{A!r}.T @ {f}", [G], lambda: [A.T @ G], lambda: [whole.T @ X])


def times(on: Field) -> Step:
    """Multiply ``T W``."""
    (A, whole), f, g = on.one(), on.width(), on.width()
    left, right = on.numbers(whole.shape[0], f), on.numbers(f, g)
    T, W = dg.scatter(left, A.weights.input_layout), dg.scatter(right, A.weights.weight_layout)
    return Step(f"{A!r}: T W, {f} x {g}", [T, W], lambda: [A.weights.times(T, W)], lambda: [left @ right])


def backward(on: Field) -> Step:
    """Multiply ``T W``, and directly after it ``Tᵀ G`` and ``G Wᵀ``."""
    (A, whole), f, g = on.one(), on.width(), on.width()
    left, right, above = on.numbers(whole.shape[0], f), on.numbers(f, g), on.numbers(whole.shape[0], g)
    T, G = dg.scatter(left, A.weights.input_layout), dg.scatter(above, A.weights.output_layout)
    W = dg.scatter(right, A.weights.weight_layout)

    def run() -> list[Any]:
        return [A.weights.times(T, W), *A.weights.backward(T, G, W)]

    expected = [left @ right, left.T @ above, above @ right.T]
    return Step(f"{A!r}: T W, TᵀG and G Wᵀ, {f} x {g}", [T, G, W], run, lambda: expected)


def moved(on: Field) -> Step:
    """Move a matrix from a layout to another, and its gradient back."""
    n, f = int(on.rng.integers(1, 200)), on.width()
    source, target = _any_layout(on), _any_layout(on)
    X = on.numbers(n, f)
    H = dg.scatter(X, source)
    name = f"{n} x {f}: {source.words()} to {target.words()}"

    def run() -> list[dg.DistDense]:
        there = H.redistribute(target)
        return [there, there.redistribute(source)]

    return Step(name, [H], run, lambda: [X, X])


def gathered(on: Field) -> Step:
    """Gather a matrix, and scatter it over another layout."""
    n, f = int(on.rng.integers(1, 200)), on.width()
    source, target = _any_layout(on), _any_layout(on)
    X = on.numbers(n, f)
    H = dg.scatter(X, source)
    return Step(f"gather and scatter {n} x {f}", [H], lambda: [dg.scatter(dg.gather(H), target)], lambda: [X])


def _any_layout(on: Field) -> Layout:
    axes = [str(axis) for axis in on.rng.permutation(list(on.grid.shape))]
    rows, cols = sorted(int(cut) for cut in on.rng.integers(0, len(axes) + 1, 2))
    return Layout(on.grid, Cut(tuple(axes[:rows])), Cut(tuple(axes[rows:cols])))


def gcn(on: Field) -> Step | None:
    """Forward, backward and a step of a GCN, twice."""
    options = {"bias": bool(on.rng.random() < 0.5), "layer_norm": bool(on.rng.random() < 0.3)}
    return trained(on, GCN, GCNReference, options)


def sage(on: Field) -> Step | None:
    """Train a network of GraphSAGE."""
    return None if on.algorithm == "3d" else trained(on, SageMean, WeightedSage, {})


def trained(
    on: Field, network: Any, serial: Any, options: dict[str, Any], widths: list[int] | None = None
) -> Step | None:
    """Train a network, of any widths or these; losses and all parameters are those of one process."""
    if (pair := on.square()) is None:
        return None
    (A, whole), n = pair, pair[1].shape[0]
    widths = widths or [min(on.width(), 64) for _ in range(int(on.rng.integers(2, 5)))]
    if options.get("layer_norm"):
        widths = [max(width, 4) for width in widths]  # of a width of 1 nothing is left
    options |= {"seed": int(on.rng.integers(1 << 30)), "dropout": float(on.rng.choice([0, 0.4]))}
    rates: Any = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
    rules: Any = {"train_features": bool(on.rng.random() < 0.5)}
    labels, split = on.rng.integers(-1, widths[-1], n), on.rng.integers(0, 4, n)
    values = on.numbers(n, widths[0])
    labels[0], split[0] = 0, 1
    X = dg.scatter(values, A.input_layout)

    def run() -> list[Any]:
        model = network(A, widths, **options)
        targets = model.targets(labels.astype(np.int32), split.astype(np.uint8))
        records = list(train(model, X, targets, SGD(**rates), EPOCHS, eval_every=0, **rules))
        by_name = sorted((p.name, p.matrix) for p in model.parameters)
        return [np.array([r["loss"] for r in records]), *(matrix for _, matrix in by_name), X]

    def expected() -> list[np.ndarray]:
        model = serial(whole, widths, dtype=np.float64, **options)
        records = list(model.train(values, labels, split, EPOCHS, "sgd", **rates, **rules, evaluate=False))
        by_name = sorted(model.parameters().items())
        arrays = [np.atleast_2d(array) for _, array in by_name]
        return [np.array([r["loss"] for r in records]), *arrays, model.features]

    return Step(f"{network.__name__} {widths} {options} {rules} on {A!r}", [X], run, expected)


class WeightedSage(SageReference):
    """GraphSAGE on one process whose means are weighted by all values of A."""

    def operator(self, A: sp.csr_array) -> sp.csr_array:
        sums = np.asarray(A.sum(axis=1)).reshape(-1, 1)
        return sp.csr_array(A / np.where(sums == 0, 1, sums))


def minibatches(on: Field) -> Step | None:
    """Sample a graph, partitioned on a grid of 1.5D, and fetch the features that the samples read."""
    pair = on.square()
    if pair is None or on.algorithm not in ("1d", "1.5d"):
        return None
    whole, n, f = pair[1], pair[1].shape[0], on.width()
    entries = int(on.rng.choice([8 * n, 1 << 18]))
    graph = Partitioned(on.grid, whole, entries=entries) if on.algorithm == "1.5d" else Replicated(whole)
    kind, fanout, seed = (GraphSage, Ladies)[int(on.rng.integers(2))], [3, 4], int(on.rng.integers(1 << 30))
    first = 2 * on.grid.rank
    all_batches = [on.rng.permutation(n)[: n // 3 + 1] for _ in range(2 * on.grid.size)]
    batches, sampler = all_batches[first : first + 2], kind(graph, fanout, seed=seed)
    X = on.numbers(n, f)
    H = dg.scatter(X, Layout(on.grid, Cut(("rows",)), Cut()))

    def run() -> list[Any]:
        samples = sampler.sample(batches, epoch=1, first=first)
        features = Features(H)
        return _parts(samples) + [features.fetch(sample.inputs) for sample in samples]

    def expected() -> list[np.ndarray]:
        samples = kind(Replicated(whole), fanout, seed=seed).sample(batches, epoch=1, first=first)
        return _parts(samples) + [X[sample.inputs] for sample in samples]

    return Step(f"{kind.__name__} of {n} nodes, {entries} entries, {f} features", [H], run, expected, False)


def _parts(samples: list[Any]) -> list[np.ndarray]:
    blocks = [block for sample in samples for block in sample.blocks]
    return [part for b in blocks for part in (b.rows, b.cols, b.indptr, b.indices, b.data)]


#: What sequences are made of; those that are drawn more often are there more than once.
STEPS: list[Callable[[Field], Step | None]] = [
    product, product, adjoint, adjoint, times, times, backward, backward,
    moved, gathered, gcn, gcn, sage, minibatches, minibatches,
]  # fmt: skip
