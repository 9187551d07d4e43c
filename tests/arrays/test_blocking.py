"""Blocks of rows: they cover all rows, in order, and are as large as they may be."""

from __future__ import annotations

import numpy as np

from distgnn.arrays.blocking import bounded, every, passes, rows_within
from distgnn.arrays.tuning import TUNING
from loops import each


@each(
    "counts, most, ranges",
    [
        ([3, 3, 3], 6, [(0, 2), (2, 3)]),
        ([3, 3, 3], 9, [(0, 3)]),
        ([3, 3, 3], 2, [(0, 1), (1, 2), (2, 3)]),
        ([3, 0, 2, 9, 1, 1], 5, [(0, 3), (3, 4), (4, 6)]),
        ([0, 9, 0, 0, 1], 1, [(0, 1), (1, 2), (2, 5)]),
        ([0, 0], 1, [(0, 2)]),
        ([5, 1], None, [(0, 2)]),
        ([], 4, []),
        ([], None, []),
    ],
)
def test_bounded(counts, most, ranges):
    assert bounded(np.array(counts, np.int64), most) == ranges


@each("shape, step", [((7, 3), 0), ((100, 7), 8), ((100, 3), 16), ((96, 3), 16), ((40,), 56), ((200,), 56)])
def test_passes_take_as_many_rows_as_stay_in_cache(shape, step, monkeypatch):
    monkeypatch.setattr(TUNING, "cached_numbers", 60)
    cut = passes(np.empty(shape))
    assert [(part.start, part.stop) for part in cut] == every(shape[0], step or 8)
    assert cut == passes(np.empty((5, *shape[1:])), shape[0])


def test_nothing_is_passed_over_where_nothing_is():
    assert passes(np.empty((5, 0))) == passes(np.empty((0, 5))) == passes(np.empty(0)) == []


def test_steps_and_widths():
    assert every(7, 3) == [(0, 3), (3, 6), (6, 7)] and every(0, 3) == []
    assert [rows_within(10, width) for width in (0, 1, 3, 10, 11)] == [10, 10, 3, 1, 1]
