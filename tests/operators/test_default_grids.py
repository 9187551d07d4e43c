"""The first grid of an algorithm receives the fewest words in a product that can be had without the graph."""

from __future__ import annotations

from distgnn import ledger
from distgnn.arrays.tuning import TUNING
from distgnn.operators import distribute, grids, make_grid
from distgnn.operators.by_columns import column_parts
from distgnn.plan import Graph
from distgnn.plan.dry.absent import OneOfMany
from distgnn.plan.dry.backend import SHAPES
from loops import each

WIDTH = 48


def received(name: str, ranks: int) -> list[float]:
    """Return, by grid, the words of the rank that receives the most; as many of A as of H.

    A counts indices and values.
    """
    graph = Graph.of_size(48 * ranks, 48 * ranks * WIDTH // 2, WIDTH, 2)

    def words(sizes: dict[str, int], rank: int) -> float:
        grid = make_grid(OneOfMany(ranks, rank), name, sizes, backend=SHAPES)
        return float(distribute(graph.source, grid, name).prices.product(WIDTH).words)

    # In SUMMA, the first and the last ranks have most, or nearly.
    some = range(ranks) if name == "1.5d" or ranks <= 4 else [*range(2), *range(ranks - 2, ranks)]
    with ledger.apart():
        return [max(words(sizes, rank) for rank in some) for sizes in grids(name, ranks)]


@each("ranks", [*range(1, 17), 24, 36, 45, 64])
def test_15d_has_the_fewest_copies_within_ten_percent_of_the_fewest_words(ranks):
    copies = [grid["reps"] for grid in grids("1.5d", ranks)]
    found = dict(zip(copies, received("1.5d", ranks), strict=True))
    near = [c for c in copies if found[c] <= 1.1 * min(found.values())]
    assert copies[: len(near)] == sorted(near)
    rest = [found[c] for c in copies[len(near) :]]
    assert rest == sorted(rest)


@each("ranks", [4, 12, 16, 36])
@each("name", ["2d", "3d-split"])
def test_summa_receives_about_the_fewest_words_where_A_has_as_many_as_H(name, ranks):
    words = received(name, ranks)
    assert words[0] <= 1.1 * min(words) < max(words)


def test_of_grids_of_rdm_with_equal_words_the_one_with_the_fewest_copies_comes_first():
    """On two ranks both grids receive 2 n f/P words; 2 x 1 holds A once."""
    assert len(set(received("rdm", 2))) == 1
    assert grids("rdm", 2) == [{"rows": 2, "cols": 1}, {"rows": 1, "cols": 2}]


@each("ranks", [2, 3, 4, 8])
@each("width", [1, 31, 62, 63, 64, 100, 127, 128, 200, 257, 602])
def test_columns_travel_in_parts_that_are_wide_enough(ranks, width):
    parts = column_parts(width, ranks)
    assert len(parts) <= TUNING.column_parts and {len(part) for part in parts} == {ranks}
    columns = [k for own in zip(*parts, strict=True) for part in own for k in range(part.start, part.stop)]
    assert columns == list(range(width))
    if len(parts) > 1:
        assert min(part.stop - part.start for own in parts for part in own) >= TUNING.part_columns
