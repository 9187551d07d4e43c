"""Colours, the same for the same thing in all drawings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Colours of ways to train, by their names (see :func:`way`).
ALGORITHMS = {
    "1d": "#4269d0", "1d aware": "#97bbf5", "1.5d": "#3ca951", "1.5d aware": "#a0d39a", "2d": "#efb118",
    "3d-split": "#a463f2", "3d": "#ff725c", "rdm": "#6cc5b0", "rdm aware": "#b5e3d8", "1d cover": "#2b4a9e",
    "1.5d cover": "#26733a", "rdm cover": "#3f8a7e",
}  # fmt: skip
PHASES = {
    "spmm": "#4269d0", "gemm": "#6cc5b0", "activation": "#3ca951", "loss": "#ff8ab7", "optimizer": "#9c6b4e",
    "comm": "#efb118", "sampling": "#a463f2", "other": "#9c9c9c", "under way": "#f6dd9a",
}  # fmt: skip
OTHERS = ("#4269d0", "#efb118", "#3ca951", "#a463f2", "#ff725c", "#6cc5b0", "#9c6b4e", "#ff8ab7", "#97bbf5",
          "#9c9c9c")  # fmt: skip


def way(config: Mapping[str, Any]) -> str:
    """Name the way that a run with these settings trains: ``1d``, ``1d aware``, ``1d cover``, ..."""
    aware = config.get("sparsity_aware")
    sends = "" if aware in (None, False, "None", "False") else " cover" if aware == "cover" else " aware"
    return f"{config['algorithm']}{sends}"


def of_way(config: Mapping[str, Any]) -> str:
    return ALGORITHMS.get(way(config), PHASES["other"])


def by_name(names: list[str], known: Mapping[str, str]) -> dict[str, str]:
    """Give a colour to each name: its own, or the next one that no name has."""
    free = [colour for colour in OTHERS if colour not in {known.get(name) for name in names}] or [*OTHERS]
    unknown = [name for name in names if name not in known]
    return {name: known.get(name) or free[unknown.index(name) % len(free)] for name in names}
