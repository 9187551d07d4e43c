"""Graphs on disk: importers and generators give a `Source`, `prepare` makes a `Store` of it.

    format/     what files look like
    source      what a graph gives to `prepare`
    from_arrays one call from arrays in memory to a store
    importers/  from files to a Source
    read/       from a store to blocks
    write/      from a Source to a store
    checkpoint  the state of a run
    rules       the rules by which graphs are read
    stages      progress of long work

Names are imported on first use: reading and writing stores needs no MPI.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Store": "read.store",
    "Order": "read.order",
    "prepare": "write.prepare",
    "of_arrays": "from_arrays",
    "Summary": "write.finish",
    "Source": "source",
    "load": "read.distributed",
    "load_features": "read.distributed",
    "load_targets": "read.distributed",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"distgnn.store.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'distgnn.store' has no attribute '{name}'")
