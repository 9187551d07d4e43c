"""A short run of the program that forges stores and checkpoints."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from . import forged_files

pytestmark = pytest.mark.programs

EVERY = 11


@pytest.mark.slow
def test_forged_files_are_refused_in_a_line(tmp_path: Path) -> None:
    table = forged_files.forged(tmp_path, EVERY)
    total = sum(table.values(), Counter())
    assert total["traceback"] == total["waited"] == 0 and total["refused"] > 573, table
    arrays = sum((ended for row, ended in table.items() if "an array" in row), Counter())
    assert set(arrays) == {"refused"} and arrays["refused"] > 60, table
