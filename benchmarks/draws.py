"""Draws of samplers against exact probabilities, and convergence of the mean of LADIES' estimates (sections
4.1.2 and 4.2).

    python benchmarks/draws.py --out benchmarks/results/draws.md

A vertex or a batch is sampled many times, each a minibatch of its own. χ² of the sets that were drawn against
the exact probabilities of drawing one vertex after another in proportion to weight, and of how often each
vertex was among them (`tests/sampling/exact.py`). Weights up to a thousand times another's; in LADIES and
FastGCN their squares count.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import table
from distgnn.gallery import rmat
from distgnn.nn.reference import normalize
from distgnn.sampling import FastGCN, GraphSage, Ladies, Replicated, Saint, Sample
from distgnn.train import Minibatches

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sampling"))
from exact import p_value, p_value_inclusion, subset_probabilities

COLUMNS = (
    "sampler",
    "largest weight / smallest",
    "drawn of",
    "p of sets, by seed",
    "p of inclusions",
    "repeats",
    "wrong sizes",
)
COUNTS = (1, 2, 4)
BATCH = np.array([1, 3, 4])


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    lines = [
        table.heading(args) + f". {args.draws:,} draws each, {args.seeds} seeds.", "",
        *table.columns(*COLUMNS), *frequencies(args.draws, args.seeds), "",
        "Mean of so many samples of a LADIES layer, `Z = A H` of a batch of 64 of an R-MAT graph, 64 "
        "vertices drawn among their",
        "neighbours: relative difference (Frobenius) from the full product, which falls as one over the root "
        "of their number if",
        "there is no bias.", "",
        *table.columns("draws", "rescaled (default), zou", "rescaled, counts", "not rescaled"),
        *convergence(), "", "",
    ]  # fmt: skip
    text = "\n".join(lines)
    table.publish(args, text)


def graph() -> sp.csr_array:
    """Make a graph of eight vertices, with weights of three orders of magnitude."""
    generator = np.random.default_rng(2)
    A = np.where(generator.random((8, 8)) < 0.7, 10.0 ** generator.uniform(-3, 0, (8, 8)), 0)
    A[0] = 10.0 ** generator.uniform(-3, 0, 8)
    return sp.csr_array(A)


def frequencies(draws: int, seeds: int) -> Iterator[str]:
    A = graph()
    G, dense = Replicated(A), A.toarray()
    rows = dense[BATCH]
    cases = {
        "GraphSAGE": (
            lambda s, seed: GraphSage(G, [s], seed=seed),
            np.array([0]),
            (dense[0] != 0).astype(float),
        ),
        "LADIES, zou": (lambda s, seed: Ladies(G, [s], seed=seed), BATCH, (rows**2).sum(axis=0)),
        "LADIES, counts": (
            lambda s, seed: Ladies(G, [s], seed=seed, importance="counts"),
            BATCH,
            (rows != 0).sum(axis=0) ** 2.0,
        ),
        "FastGCN": (lambda s, seed: FastGCN(G, [s], seed=seed), BATCH, (dense**2).sum(axis=0)),
        "SAINT": (lambda s, seed: Saint(G, s, 1, seed=seed), BATCH, (dense**2).sum(axis=0)),
    }
    for name, (make, batch, weights) in cases.items():
        for count in COUNTS:
            exact = subset_probabilities(weights.tolist(), count)
            sets, inclusions, repeats, wrong = [], [], 0, 0
            for seed in range(seeds):
                found = make(count, seed).sample([batch] * draws)
                drawn = [picked(sample, name) for sample in found]
                inside = np.zeros((draws, 8), bool)
                for row, columns in zip(inside, drawn, strict=True):
                    row[columns] = True
                repeats += sum(len(set(columns.tolist())) < len(columns) for columns in drawn)
                wrong += sum(len(columns) != min(count, np.count_nonzero(weights)) for columns in drawn)
                sets.append(f"{p_value(inside, exact):.3f}")
                inclusions.append(f"{p_value_inclusion(inside, exact):.3f}")
            positive = weights[weights > 0]
            ratio, of = f"{positive.max() / positive.min():.3g}", f"{count} of {positive.size}"
            cells = name, ratio, of, " ".join(sets), " ".join(inclusions), repeats, wrong
            yield f"| {' | '.join(map(str, cells))} |"


def picked(sample: Sample, name: str) -> np.ndarray:
    """Return the vertices that were drawn for the last layer."""
    block = sample.blocks[-1]
    return block.cols[block.indices] if name == "GraphSAGE" else sample.blocks[0].cols


def convergence() -> Iterator[str]:
    A = normalize(rmat(1 << 12, degree=16, features=0, classes=0).A, dtype=np.float64)
    batch = Minibatches(np.flatnonzero(np.diff(A.indptr) > 1), 64).epoch(1)[0]
    H = np.random.default_rng(0).standard_normal((A.shape[0], 8)) + 1
    full, G = (A @ H)[batch], Replicated(A)
    samplers = [Ladies(G, [64]), Ladies(G, [64], importance="counts"), Ladies(G, [64], rescale=False)]
    sums, done = [np.zeros_like(full) for _ in samplers], 0
    for draws in (10, 100, 1_000, 10_000, 100_000):
        for first in range(done, draws, 1_000):
            bulk = [batch] * min(1_000, draws - first)
            for total, sampler in zip(sums, samplers, strict=True):
                for sample in sampler.sample(bulk, first=first):
                    total += sample.blocks[0].A @ H[sample.inputs]
        done = draws
        off = [np.linalg.norm(total / draws - full) / np.linalg.norm(full) for total in sums]
        yield f"| {draws:,} | " + " | ".join(f"{one:.4f}" for one in off) + " |"


if __name__ == "__main__":
    main()
