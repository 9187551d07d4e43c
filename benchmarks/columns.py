"""Words that the busiest rank receives in a product A @ H, by algorithm and columns of H: exact prices.

    # and the same under mpiexec -n 16
    mpiexec -n 4 python benchmarks/columns.py --out benchmarks/results/columns.md

The product is cut as H afterwards, as the next one of a solver needs it, which costs something in 3d only.
Grids are the default ones, and the most even. An R-MAT graph in its own order. The prices are checked against
the ledger of a product by one column.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
import table
from cases import rmat
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, grids
from distgnn.operators.prices import relaid
from words import HOW

Way = tuple[str, tuple[int, ...], bool | str]


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--scale", type=int, default=14, help="2^SCALE nodes")
    parser.add_argument("--degree", type=int, default=32)
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 16, 256])
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    A = rmat(1 << args.scale, args.degree)
    words = {way: prices(comm, A, way, args.widths) for way in ways(comm.size)}
    if comm.rank == 0:
        table.publish(args, "\n".join(report(args, comm.size, A, words)))


def ways(ranks: int) -> Iterator[Way]:
    """Yield every algorithm on its default and its most even grid, with what it can send."""
    for name in ALGORITHMS:
        possible = grids(name, ranks)
        even = min(possible, key=lambda sizes: max(sizes.values()))
        for sizes in [even] if even == possible[0] else [possible[0], even]:
            for aware in (False, True, "cover") if name in SPARSITY_AWARE else (False,):
                yield name, tuple(sizes.values()), aware


def prices(comm: MPI.Intracomm, A: sp.csr_array, way: Way, widths: list[int]) -> list[float]:
    """Return the words of the busiest rank for each number of columns."""
    name, sizes, aware = way
    named = dict(zip(grids(name, comm.size)[0], sizes, strict=True))
    op = dg.distribute(A, dg.make_grid(comm, name, named, backend="numpy"), name, aware)
    cuts, n = (op.output_layout, op.input_layout), A.shape[0]
    own = [op.prices.product(width) + relaid(*cuts, (n, width)) for width in widths]
    H = dg.random(n, op.input_layout, A.dtype)
    with dg.Ledger() as ledger:
        (op @ H).redistribute(H.layout)
    assert widths[0] > 1 or ledger.words == round(own[0].words), f"{name}: words that are not as priced"
    busiest = [comm.allreduce(float(price.words), MPI.MAX) for price in own]
    op.grid.free()
    return busiest


def report(args: Namespace, ranks: int, A: sp.csr_array, words: dict[Way, list[float]]) -> Iterator[str]:
    """Yield the lines of the table; the fewest words of each number of columns are bold."""
    least = [min(column) for column in zip(*words.values(), strict=True)]
    heads = (f"{width} column{'s' if width > 1 else ''}" for width in args.widths)
    graph = f"R-MAT, {A.shape[0]:,} nodes, {A.nnz:,} non-zeros, in its own order"
    yield f"{table.heading(args, ranks)}. {graph}."
    yield ""
    yield from table.columns("algorithm, grid, sends", *heads)
    for (name, sizes, aware), row in words.items():
        both = zip(row, least, strict=True)
        cells = [f"**{words:,.0f}**" if words == fewest else f"{words:,.0f}" for words, fewest in both]
        yield f"| `{name}` {'x'.join(map(str, sizes))}, {HOW[aware]} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
