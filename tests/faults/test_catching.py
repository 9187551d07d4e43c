"""A short run of the programs that catch errors, and what they say: see the program."""

from __future__ import annotations

import pytest

from . import catching


@pytest.mark.programs
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_all_ranks_learn_of_errors_and_the_next_training_is_right() -> None:
    good, said = catching.job(3, first=0, tries=8, seconds=120)
    assert good, said


def test_an_error_is_planted_where_it_is_asked_for() -> None:
    from distgnn.layout import partition

    def calls() -> None:
        for _ in range(3):
            partition(10, 2)

    with catching.Planted() as counted:
        calls()
    assert counted.calls >= 3
    with pytest.raises(ZeroDivisionError), catching.Planted(counted.calls, ZeroDivisionError()) as planted:
        calls()
    assert planted.where.startswith("layout/")
