"""Chunks of generated graphs."""

from __future__ import annotations

import pytest

from distgnn.gallery import graph, rmat_graph
from distgnn.store.format.limits import LIMITS


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Set chunks of at most a few thousand edges or features, so that small graphs have many."""
    monkeypatch.setattr(graph, "EDGE_CHUNK", 1 << 10)
    monkeypatch.setattr(LIMITS, "entries", 1 << 10)
    monkeypatch.setattr(graph, "FEATURE_CHUNK", 1 << 10)
    monkeypatch.setattr(rmat_graph, "DRAWS_AT_ONCE", 1 << 8)
    return 1 << 10
