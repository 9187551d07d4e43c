"""Pictures of every algorithm's blocks and messages in Y = A @ H on four ranks, from a real run of it.

    mpiexec -n 4 python docs/pictures.py docs/pictures

The entries of A and H are numbers that say where they stand, so each local product tells what it was given. A
rank's A is what it asked its source for; the sums and the words received are those of its ledger.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from distgnn import local
from distgnn.arrays.tuning import TUNING

N, F, CELL, GAP = 8, 4, 10, 16
COLOURS = "#4269d0", "#efb118", "#d6453d", "#3ca951"
DARK = {"#fff": "#15181c", "#333": "#e4e7eb", "#bbb": "#5b626c"}  # colours on dark screens
ALGORITHMS: dict[str, tuple[str, dict[str, int], bool]] = {
    "1d": ("1d", {"rows": 4}, False),
    "1d-needed-rows": ("1d", {"rows": 4}, True),
    "1.5d": ("1.5d", {"rows": 2, "reps": 2}, False),
    "1.5d-needed-rows": ("1.5d", {"rows": 2, "reps": 2}, True),
    "2d": ("2d", {"rows": 2, "cols": 2}, False),
    "3d-split": ("3d-split", {"rows": 1, "cols": 1, "fibers": 4}, False),
    "3d": ("3d", {"x": 2, "y": 1, "z": 2}, False),
    "rdm": ("rdm", {"rows": 2, "cols": 2}, False),
}
Cells = list[tuple[int, int]]


class Seen(NamedTuple):
    """A record of one rank: (row, column) of entries, and words."""

    coords: dict[str, int]
    A: Cells
    H: Cells
    Y: Cells
    products: list[tuple[Cells, Cells]]
    sums: list[str]
    words: dict[str, int]


def graph() -> sp.csr_array:
    """Make a ring with a few more edges; entry (i, j) is the number 1 + 8 i + j."""
    edges = {(i, j) for i in range(N) for j in (i, (i + 1) % N, (i - 1) % N)} | {(1, 6), (6, 1), (0, 4)}
    rows, cols = np.array(sorted(edges)).T
    return sp.csr_array((1.0 + N * rows + cols, (rows, cols)), shape=(N, N))


class Asked(dg.MatrixSource):
    """A matrix source that remembers the entries that were read."""

    def __init__(self, matrix: Any) -> None:
        super().__init__(matrix)
        self.given: Cells = []

    def block(self, rows: Any, cols: Any) -> Any:
        block = super().block(rows, cols)
        self.given += places(block.data, N)
        return block


def places(numbers: Any, width: int) -> Cells:
    """Return the places of these entries in a matrix of ``width`` columns."""
    return [divmod(int(number) - 1, width) for number in np.asarray(numbers).reshape(-1)]


def run(algorithm: str, sizes: dict[str, int], needed: bool) -> list[Seen]:
    """Run the product on all ranks."""
    grid = dg.Grid(MPI.COMM_WORLD, backend="numpy", **sizes)
    grid.shares_memory = False  # a rank is drawn with all that it multiplies
    source, products = Asked(graph()), []
    A = dg.distribute(source, grid, algorithm, needed)
    H = dg.scatter(1.0 + np.arange(N * F).reshape(N, F), A.input_layout)

    def spmm(A_ij: Any, H_j: Any, *arguments: Any, **options: Any) -> Any:
        products.append((places(A_ij.to_scipy().data, N), places(H_j, F)))
        return multiply(A_ij, H_j, *arguments, **options)

    multiply, local.spmm = local.spmm, spmm
    try:
        with dg.Ledger() as ledger:
            Y = A @ H
    finally:
        local.spmm = multiply
    right = dg.gather(Y)
    assert right is None or np.array_equal(right, graph() @ (1.0 + np.arange(N * F).reshape(N, F)))
    words: dict[str, int] = {}
    sums = []
    for entry in ledger.entries():
        if entry["phase"] == "comm" and entry["words"]:
            words[entry["matrix"]] = words.get(entry["matrix"], 0) + entry["words"]
            if entry["matrix"] == "sums":
                sums.append(f"{entry['operation'].replace('_', '-')} over {entry['group']}")
    held = [
        [(i, j) for i in range(*rows) for j in range(*cols)]
        for rows, cols in (A.input_layout.ranges(H.shape), A.output_layout.ranges(Y.shape))
    ]
    return grid.world.gather_objects(Seen(grid.coords, source.given, *held, products, sums, words))


def sender(ranks: list[Seen], own: int, matrix: str, cell: tuple[int, int]) -> int:
    """Return the rank that gave an entry: the rank itself, or the owner that differs in the fewest axes."""
    apart = {
        rank: sum(seen.coords[axis] != ranks[own].coords[axis] for axis in seen.coords)
        for rank, seen in enumerate(ranks)
        if cell in getattr(seen, matrix)
    }
    return min(apart, key=lambda rank: (apart[rank], rank))


def draw(ranks: list[Seen], title: str) -> str:
    """Draw the picture as SVG: a row for each rank; columns for blocks, products, sums and the result."""
    stages, summed = max(len(seen.products) for seen in ranks), any(seen.sums for seen in ranks)
    pair = (N + F) * CELL + GAP
    step, left, top, height = pair + 2 * GAP, 96, 64, N * CELL + 2 * GAP
    places_x = [left + k * step for k in range(stages + 2 + summed)]
    width, bottom = places_x[-1] + F * CELL + GAP, top + len(ranks) * height
    heads = ["before: A, H", *(f"product {k + 1}" for k in range(stages)), *["sum"] * summed, "after: Y"]
    out = [text(GAP, 24, title, 15, "bold")]
    out += [text(x, 50, head, 12) for x, head in zip(places_x, heads, strict=True)]
    for rank, seen in enumerate(ranks):
        y = top + rank * height
        where = ", ".join(f"{axis} {at}" for axis, at in seen.coords.items() if ranks[-1].coords[axis])
        out += [text(GAP, y + 20, f"rank {rank}", 13, "bold", COLOURS[rank]), text(GAP, y + 38, where, 10)]
        received = sum(seen.words.values())
        out += [text(GAP, y + 56, f"receives {received}", 10), text(GAP, y + 70, "words", 10)]
        for x, (A, H) in zip(places_x, [(seen.A, seen.H), *seen.products], strict=False):
            out.append(matrix(x, y, N, [(cell, sender(ranks, rank, "A", cell)) for cell in A]))
            x += N * CELL + GAP
            out.append(matrix(x, y, F, [(cell, sender(ranks, rank, "H", cell)) for cell in H]))
        if summed:
            out += [text(places_x[-2], y + 20 + 14 * k, line, 11) for k, line in enumerate(seen.sums)]
        out.append(matrix(places_x[-1], y, F, [(cell, rank) for cell in seen.Y]))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom}" role="img" '
    head += f'font-family="sans-serif"><title>{title}</title>'
    dark = "".join(f'[fill="{a}"]{{fill:{b}}}[stroke="{a}"]{{stroke:{b}}}' for a, b in DARK.items())
    head += f"<style>@media screen and (prefers-color-scheme:dark){{{dark}}}</style>"
    return "\n".join([head, f'<rect width="{width}" height="{bottom}" fill="#fff"/>', *out, "</svg>", ""])


def text(x: int, y: int, words: str, size: int, weight: str = "normal", colour: str = "#333") -> str:
    """Draw a line of text."""
    return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{colour}">{words}</text>'


def matrix(x: int, y: int, columns: int, cells: list[tuple[tuple[int, int], int]]) -> str:
    """Draw the frame of a matrix of N rows, with entries in the ranks' colours; one path for each colour."""
    frame = f'<rect x="{x}" y="{y}" width="{columns * CELL}" height="{N * CELL}" fill="none" stroke="#bbb"/>'
    paths = []
    for rank in sorted({rank for _, rank in cells}):
        squares = sorted({cell for cell, whose in cells if whose == rank})
        side = CELL - 1
        moves = (f"M{x + j * CELL + 1} {y + i * CELL + 1}h{side}v{side}h-{side}z" for i, j in squares)
        paths.append(f'<path fill="{COLOURS[rank]}" d="{"".join(moves)}"/>')
    return frame + "".join(paths)


def main(folder: str) -> None:
    """Draw all algorithms into a folder."""
    TUNING.joined_panels = 0  # else these small panels are one
    for name, (algorithm, sizes, needed) in ALGORITHMS.items():
        ranks = run(algorithm, sizes, needed)
        for rank, seen in enumerate(ranks):  # what the picture shows of H is what the ledger charged
            came = {cell for _, H in seen.products for cell in H if sender(ranks, rank, "H", cell) != rank}
            assert len(came) == seen.words.get("H", 0), (name, rank)
        if MPI.COMM_WORLD.Get_rank() == 0:
            grid = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1)
            title = f"{algorithm}{', needed rows only' if needed else ''} on four ranks: {grid}"
            Path(folder, f"{name}.svg").write_text(draw(ranks, title))


if __name__ == "__main__":
    main(sys.argv[1])
