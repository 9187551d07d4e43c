"""Grids whose axes are in any order: the same blocks on other ranks, the same results for the same words."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import distgnn as dg
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, grids, make_grid

from .test_products import MATRICES, WIDTH, check_product, check_words

NAMES = [name for name in ALGORITHMS if name != "1d"]  # which has one axis
WAYS = [(name, False) for name in NAMES] + [(name, True) for name in SPARSITY_AWARE if name in NAMES]


def other_orders(name: str, ranks: int) -> list[dict[str, int]]:
    """Return the best grid that cuts along two axes at least, in all orders but the algorithm's."""
    best = max(grids(name, ranks), key=lambda sizes: sum(size > 1 for size in sizes.values()))
    _, *orders = itertools.permutations(best.items())
    return [dict(order) for order in orders]


@pytest.mark.ranks(4, 6)
@pytest.mark.parametrize(("name", "aware"), WAYS)
def test_any_order_gives_the_product_for_its_price(comm, name, aware, backend):
    A = MATRICES["prime"]
    for sizes in other_orders(name, comm.Get_size()):
        grid = make_grid(comm, name, sizes, backend=backend)
        assert list(grid.shape) == list(sizes)
        check_words(*check_product(A, grid, name, WIDTH, label=str(sizes), sparsity_aware=aware), sizes)
        grid.free()


@pytest.mark.ranks(6)
@pytest.mark.parametrize("name", NAMES)
def test_the_last_axis_is_the_nearest_and_no_block_is_another(comm, name):
    """Ranks of the last axis are consecutive.

    The blocks of a rank depend on its coordinates alone.
    """
    A = MATRICES["prime"]

    def held(sizes: Any) -> dict[Any, Any]:
        grid = dg.Grid(comm, backend="numpy", **sizes)
        near = grid.along(list(sizes)[-1]).gather_objects(grid.rank)
        assert near == list(range(near[0], near[0] + len(near)))
        operator = dg.distribute(A, grid, name)
        cuts = operator.input_layout.ranges((A.shape[1], WIDTH)), operator.output_layout.ranges(A.shape)
        found = dict(comm.allgather((tuple(sorted(grid.coords.items())), cuts)))
        grid.free()
        return found

    for sizes in other_orders(name, comm.Get_size()):
        assert held(sizes) == held({axis: sizes[axis] for axis in ALGORITHMS[name].axes})
