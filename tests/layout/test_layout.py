"""The one block-range function and its relatives."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn.layout import Cut, as_partition, nested, owner, partition, refine, within
from distgnn.layout.axes import Axes
from loops import each


@each("n", [0, 1, 5, 17, 1000, 2**40 + 3])
@each("parts", [1, 2, 3, 7, 12])
def test_partition_covers_evenly(n, parts):
    vector = partition(n, parts)
    sizes = np.diff(vector)
    assert vector.dtype == np.int64 and vector[0] == 0 and vector[-1] == n
    assert sizes.min() >= 0 and sizes.max() - sizes.min() <= 1


def test_partition_refines_itself():
    for a, b in ((2, 3), (5, 2), (1, 7)):
        np.testing.assert_array_equal(partition(101, a * b)[::b], partition(101, a))


def test_partition_rejects_nonsense():
    with pytest.raises(ValueError):
        partition(-1, 2)
    with pytest.raises(ValueError):
        partition(3, 0)


@pytest.mark.parametrize("wrong", [[0, 5], [0, 3, 2, 10], [1, 5, 8, 10], [0, 5, 8, 9], [0, 5, 11, 10]])
def test_as_partition_rejects(wrong):
    with pytest.raises(ValueError):
        as_partition(wrong, 10, 3)


def test_as_partition_takes_empty_blocks():
    np.testing.assert_array_equal(as_partition([0, 0, 10, 10], 10, 3), [0, 0, 10, 10])


def test_nested_keeps_outer_boundaries():
    outer = np.array([0, 0, 7, 20])
    vector = nested(outer, 3)
    np.testing.assert_array_equal(vector[::3], outer)
    np.testing.assert_array_equal(vector, [0, 0, 0, 0, 2, 4, 7, 11, 15, 20])


def test_within_is_how_one_outer_block_is_cut():
    vector = nested(np.array([0, 0, 7, 20]), 3)
    for outer, cut in enumerate(([0, 0, 0, 0], [0, 2, 4, 7], [0, 4, 8, 13])):
        np.testing.assert_array_equal(within(vector, outer, 3), cut)


def test_refine_and_owner_agree():
    first, second = np.array([0, 4, 4, 9, 12]), np.array([0, 6, 12, 12])
    stages = refine(first, second)
    assert stages == [(0, 4), (4, 6), (6, 9), (9, 12)]
    assert [owner(first, lo) for lo, _ in stages] == [0, 2, 2, 3]
    assert [owner(second, lo) for lo, _ in stages] == [0, 0, 1, 1]
    assert refine(np.array([0, 0]), np.array([0, 0, 0])) == []


def test_cuts_are_the_same_where_axes_parts_and_order_are():
    """Axes of equal sizes are different ranks."""
    grid, n = Axes({"rows": 2, "cols": 2}, 1), 10
    even, order = np.array([0, 5, 10]), object()
    assert Cut(("rows",)).same(Cut(("rows",)), grid, n)
    assert Cut(("rows",)).same(Cut(("rows",), even), grid, n)
    assert not Cut(("rows",)).same(Cut(("cols",)), grid, n)
    assert not Cut(("rows",), even).same(Cut(("cols",), even), grid, n)
    assert not Cut(("rows",)).same(Cut(("rows",), np.array([0, 4, 10])), grid, n)
    assert not Cut(("rows",)).same(Cut(("rows",), None, order), grid, n)
