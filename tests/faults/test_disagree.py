"""34 ways in which the ranks of a job disagree, and 7 in which one dies early: named, and no hang."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import disagree

pytestmark = [pytest.mark.programs, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("disagree")
    disagree.made(path)
    return path


def test_ranks_that_disagree_are_named(folder: Path) -> None:
    rows = disagree.together(folder)
    assert [row for row in rows if not row.ok] == []
    assert [row.name for row in rows] == [case.name for case in disagree.TOGETHER]
    assert disagree.DISAGREEMENTS == 34


@pytest.mark.slow
@pytest.mark.parametrize("name", disagree.LAUNCHES)
def test_a_rank_of_its_own_kind_ends_the_job(folder: Path, name: str) -> None:
    row = disagree.alone(folder, name)
    assert row.ok, row
