"""Keyword arguments of rmat, sbm and road, for type checkers; ``tests/keywords.py`` writes this file."""

# ruff: noqa: F401

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import numpy as np

    from distgnn.partition import Wanted


class RMatOptions(TypedDict, total=False):
    scale: int | None
    edges: int | None
    degree: float | None
    probabilities: Sequence[float]
    scramble: bool
    directed: bool
    classes: int
    noise: float
    features: int
    split: str
    seed: int


class RoadOptions(TypedDict, total=False):
    spacing: int
    missing_roads: float
    missing_nodes: float
    tile: int
    features: int
    classes: int
    noise: float
    split: str
    seed: int


class SbmOptions(TypedDict, total=False):
    communities: int | None
    edges: int | None
    degree: float | None
    mixing: float | None
    size_exponent: float | None
    degree_exponent: float | None
    classes: int | None
    scramble: bool
    directed: bool
    features: int
    noise: float
    split: str
    seed: int
