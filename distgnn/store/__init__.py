"""Graphs on disk: importers and generators give a `Source`, `prepare` makes a sharded `Store` of it,
operators load from that.

Names are imported on first use, so that reading and writing stores needs no MPI.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Store": "loader",
    "Order": "loader",
    "prepare": "writer",
    "Summary": "writer",
    "Source": "source",
    "load": "distributed",
    "load_features": "distributed",
    "load_targets": "distributed",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"distgnn.store.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'distgnn.store' has no attribute '{name}'")
