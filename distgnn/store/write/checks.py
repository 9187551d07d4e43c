"""What a Source must keep to, whoever made it."""

from __future__ import annotations

import numpy as np

from distgnn.errors import UserError
from distgnn.store.source import Source


def check_source(source: Source) -> None:
    """UserError for a source without nodes, or with labels or a split that do not fit them."""
    if source.n < 1:
        raise UserError(f"{source.name}: has no nodes")
    for what, array, least, most in (
        ("label", source.labels, -1, source.classes - 1),
        ("split", source.split, 0, 3),
    ):
        if array is None:
            continue
        if len(array) != source.n:
            raise UserError(f"{source.name}: {len(array)} {what} values for {source.n} nodes")
        if array.min() < least or array.max() > most:
            node = int(np.flatnonzero((array < least) | (array > most))[0])
            raise UserError(f"{source.name}: node {node} has {what} {array[node]}; expected {least}..{most}")


def check_edges(
    source: Source, before: int, src: np.ndarray, dst: np.ndarray, weights: np.ndarray | None
) -> None:
    """UserError for the first of these edges, with `before` others before them, that is impossible."""
    for ids in (src, dst):
        if len(ids) and (ids.min() < 0 or ids.max() >= source.n):
            at = int(np.flatnonzero((ids < 0) | (ids >= source.n))[0])
            what = f"names node {ids[at]}; node ids must be 0..{source.n - 1}"
            raise UserError(f"{source.name}: edge {before + at + 1} {what}")
    if weights is not None and not np.isfinite(weights).all():
        at = int(np.flatnonzero(~np.isfinite(weights))[0])
        what = f"has weight {weights[at]}; weights must be finite"
        raise UserError(f"{source.name}: edge {before + at + 1} {what}")
