"""Keyword arguments of prepare, for type checkers; ``tests/keywords.py`` writes this file."""

# ruff: noqa: F401

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import numpy as np

    from distgnn.partition import Wanted


class PrepareOptions(TypedDict, total=False):
    order: Sequence[str]
    shards: tuple[int, int] | None
    normalize: str
    self_loops: bool
    dtype: Literal["float32", "float64"] | type[np.floating[Any]] | np.dtype[Any]
    force: bool
    partitions: Sequence[Wanted]
    format: str | None
    node_list: str | None
    id_column: str | None
    label_column: str | None
    source_column: str | None
    target_column: str | None
    separator: str | None
    comments: str | None
    feature_columns: str | None
    weight_column: str | None
    missing: str
    categorical: str | None
    scratch: str | None
