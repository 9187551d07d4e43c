"""Distinct numbers among those that a minibatch reads, by the rank that holds each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from distgnn.arrays import backend
from distgnn.local.csr_rows import row_pointers
from distgnn.local.extract import compact

Array = Any


class Distinct(NamedTuple):
    """Distinct numbers, rising, by the parts of a partition vector in which they lie.

    Attributes:
        rows: by part, its numbers, counted from where it begins: int64, on the backend of all.
        runs: by part, these as a slice where each follows the one before, else None.
        places: of all numbers among the distinct ones of all parts: int64.
        rising: the numbers came as the distinct ones are.
    """

    rows: dict[int, Array]
    runs: dict[int, slice | None]
    places: Array
    rising: bool


def distinct(numbers: Array, parts: np.ndarray) -> Distinct:
    """Find the distinct numbers of each part. A GPU is waited for once."""
    on, count, starts = backend.of(numbers), len(numbers), parts.tolist()
    if count == 0:
        return Distinct({}, {}, numbers, True)
    xp = on.xp
    order = xp.argsort(numbers)
    ranked, new = numbers[order], xp.ones(count, np.int64)
    new[1:] = ranked[1:] != ranked[:-1]
    before = row_pointers(new)
    at = xp.searchsorted(ranked, on.asarray(parts))
    ends = ranked[xp.minimum(at, count - 1)], ranked[xp.maximum(at - 1, 0)]
    falls = (numbers[1:] <= numbers[:-1]).any().astype(np.int64).reshape(1)
    facts = on.to_host(xp.concatenate((before[at], *ends, falls)))
    bounds, firsts, lasts = facts[:-1].reshape(3, len(parts)).tolist()
    ids = ranked[compact(before, bounds[-1])]
    rows = {q: ids[slice(*span)] - starts[q] for q, span in enumerate(pairwise(bounds))}
    spans = {q: (firsts[q] - starts[q], lasts[q + 1] + 1 - starts[q]) for q in rows}
    places = xp.empty_like(order)
    places[order] = before[1:] - 1
    return Distinct(rows, {q: _run(spans[q], rows[q]) for q in rows}, places, not facts[-1])


def _run(span: Sequence[int], rows: Array) -> slice | None:
    return slice(*span) if len(rows) and span[1] - span[0] == len(rows) else None
