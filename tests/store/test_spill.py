"""Buckets on disk: what is missing is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distgnn.store.format.limits import LIMITS
from distgnn.store.write import spill


def test_lost_records_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared file system may not show a file yet: a store without its records would look whole."""
    monkeypatch.setattr(LIMITS, "spilled_bytes", 0)
    buckets = spill.Spill(tmp_path / "buckets", 2, np.int64)
    buckets.add(np.array([0, 1, 1]), np.array([5, 6, 7]))
    assert [piece.tolist() for piece in buckets.read(1, 10)] == [[6, 7]]
    for path in (tmp_path / "buckets").rglob("*"):
        if path.is_file() and path.stat().st_size == 16:
            path.unlink()
    with pytest.raises(RuntimeError, match="bucket 1 has 0 of 2 records"):
        list(buckets.read(1, 10))
    assert [piece.tolist() for piece in buckets.read(0, 10)] == [[5]]
