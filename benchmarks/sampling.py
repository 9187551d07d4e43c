"""Sampling in bulk against one minibatch at a time, on one rank (Tripathy et al., MLSys 2024, Figure 5 and
section 4.1.4).

    python benchmarks/sampling.py --out benchmarks/results/sampling.md

Every candidate draws the same minibatches of one epoch, k at a time, so all of a row make the same samples.
What a bulk saves is what a call costs whatever it does, so it saves most where a minibatch is small. Edges
are the non-zeros of all blocks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

import table
from distgnn.bench import timing
from distgnn.gallery import RMat
from distgnn.ledger import Ledger
from distgnn.nn.reference import normalize
from distgnn.sampling import FastGCN, Graph, GraphSage, Ladies, Replicated, Saint, Sampler
from distgnn.sampling.sampler import DRAW, EXTRACT, PROBABILITY
from distgnn.train import Minibatches

KS = (1, 4, 16, 64)
REPEATS = 7
STEPS = (PROBABILITY, DRAW, EXTRACT)


class Multiplied(Graph):
    """A replicated graph that is only multiplied, as a partitioned one: GraphSAGE draws from Q A."""

    def __init__(self, G: Replicated) -> None:
        self.A, self.shape, self.dtype, self.row_blocks = G.A, G.shape, G.dtype, G.row_blocks


#: Name -> (batch sizes, sampler for a batch size). All but SAGE take as many vertices per layer as a batch
#: has.
KINDS: dict[str, tuple[tuple[int, ...], Callable[[Replicated, int], Sampler]]] = {
    "SAGE 15,10,5": ((1, 4, 16, 64, 256, 1024), lambda G, size: GraphSage(G, [15, 10, 5])),
    "SAGE 15,10,5 from Q A": ((1, 64, 1024), lambda G, size: GraphSage(Multiplied(G), [15, 10, 5])),
    "SAGE 5": ((1, 4, 16, 64, 256, 1024), lambda G, size: GraphSage(G, [5])),
    "LADIES": ((4, 16, 64, 256, 512), lambda G, size: Ladies(G, [size])),
    "LADIES, 2 layers": ((16, 64, 512), lambda G, size: Ladies(G, [size] * 2)),
    "FastGCN": ((512,), lambda G, size: FastGCN(G, [size])),
    "SAINT": ((512,), lambda G, size: Saint(G, size, 2)),
}


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--scale", type=int, default=17, help="2**scale nodes, 16 edges each")
    parser.add_argument("--minibatches", type=int, default=64)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seconds", type=float, default=2.0, help="per table row, at least")
    parser.add_argument("--clock", choices=timing.CLOCKS, default="cpu")
    args = parser.parse_args()
    G = Replicated(rmat(args.scale))
    rows = [row(G, kind, size, args) for kind in args.kinds for size in KINDS[kind][0]]
    rates = " | ".join(f"k = {k}" for k in KS)
    lines = [
        table.heading(args)
        + f". R-MAT, {G.n:,} nodes, {G.A.nnz:,} non-zeros, one thread; {args.minibatches} "
        f"minibatches of nodes with neighbours; {args.clock} seconds, best of all turns. Millions of sampled "
        "edges per second "
        "with k minibatches in "
        "bulk, and k = 64 beside k = 1; shares of the three steps at k = 1 → k = 64, the rest being keys and "
        "lists.",
        "",
        f"| sampler | batch | edges of a minibatch | {rates} | 64 / 1 | probability | sample | extract |",
        f"|---|{'---:|' * (len(KS) + 6)}",
        *rows,
    ]
    text = "\n".join(lines) + "\n\n"
    table.publish(args, text)


def rmat(scale: int) -> sp.csr_array:
    """Make a Graph500 graph with self-loops, normalised as GCN wants it."""
    graph = RMat(scale=scale, degree=16, features=0, classes=0)
    n = graph.n
    A = sp.csr_array((n, n), dtype=np.float32)
    for src, dst in graph.edges():
        A = A + sp.coo_array((np.ones(len(src), np.float32), (dst, src)), shape=(n, n)).tocsr()
    A = (A + A.T).tocsr()
    A.data[:] = 1
    return normalize(A).astype(np.float32)


def row(G: Replicated, kind: str, size: int, args: argparse.Namespace) -> str:
    """Return a row of the table."""
    sampler = KINDS[kind][1](G, size)
    connected = np.flatnonzero(np.diff(G.A.indptr) > 1)  # more than a self-loop
    batches = Minibatches(connected, size).epoch(0)[: args.minibatches]
    edges = sum(sample.edges for sample in sampler.sample(batches))

    def epoch(k: int) -> None:
        for first in range(0, len(batches), k):
            sampler.sample(batches[first : first + k], first=first)

    spent = timing.in_turns(
        {str(k): lambda k=k: epoch(k) for k in KS}, args.seconds, clock=args.clock, most=4
    )
    rates = [edges / min(spent[str(k)]) for k in KS]
    one, all_ = shares(lambda: epoch(1)), shares(lambda: epoch(64))
    steps = " | ".join(f"{a:.0%} → {b:.0%}" for a, b in zip(one, all_, strict=True))
    shown = " | ".join(f"{rate / 1e6:.3g}" for rate in rates)
    text = (
        f"| {kind} | {size} | {edges / len(batches):,.0f} | {shown} | {rates[-1] / rates[0]:.1f} | {steps} |"
    )
    print(text, file=sys.stderr)
    return text


def shares(run: Callable[[], None]) -> list[float]:
    """Divide the wall-clock time of the fastest run by step, with the products that are made in each."""
    found = []
    for _ in range(REPEATS):
        with Ledger(trace=True) as ledger:
            before = timing.CLOCKS["wall"]()
            run()
            total = timing.CLOCKS["wall"]() - before
        events = ledger.events or []
        found.append(
            (total, [sum(e.stop - e.start for e in events if e.operation == name) / total for name in STEPS])
        )
    return min(found)[1]


if __name__ == "__main__":
    main()
