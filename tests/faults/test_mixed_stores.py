"""A short run of the program that mixes stores and edits manifests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from . import mixed_stores

pytestmark = pytest.mark.programs

EDITS = 90


@pytest.mark.slow
def test_mixed_stores_are_refused(tmp_path: Path) -> None:
    table = mixed_stores.mixed(tmp_path, every=5)
    total = sum(table.values(), Counter())
    assert total["silent"] == total["traceback"] == 0, table
    assert total["refused"] > 38 and total["harmless"] == 0, table


@pytest.mark.slow
def test_edited_manifests_are_refused_or_harmless(tmp_path: Path) -> None:
    table = mixed_stores.edited(tmp_path, EDITS)
    total = sum(table.values(), Counter())
    assert total["silent"] == total["traceback"] == 0, table
    assert total["refused"] + total["harmless"] == EDITS and total["refused"] > 0.9 * EDITS, table
