"""Oracles of the kernels of ``extract.cu``, and of two of ``sample.cu``: see ``_oracles.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def row_lengths(types: list[str], selected: Any, pointers: Array, rows: Array, lengths: Array) -> None:
    lengths[...] = pointers[rows + 1] - pointers[rows]


def row_keys(
    types: list[str], count: Any, blocks: Any, bounds: Array, ids: Array, block_keys: Array, keys: Array
) -> None:
    from distgnn.rng import splitmix64

    keys[...] = splitmix64(splitmix64(ids.astype(np.uint64)) ^ block_keys[_part(bounds, np.arange(ids.size))])


def row_entries(
    types: list[str], count: Any, selected: Any, offsets: Array, pointers: Array, rows: Array,
    positions: Array, owners: Array,
) -> None:  # fmt: skip
    at = np.arange(positions.size)
    owners[...] = _part(offsets, at)
    positions[...] = pointers[rows[owners]] + at - offsets[owners]


def expand_products(
    types: list[str], count: Any, m: Any, entries: Any, offsets: Array, Q_pointers: Array, Q_columns: Array,
    Q_values: Array, pointers: Array, columns: Array, values: Array, width: Any, keys: Array, products: Array,
) -> None:  # fmt: skip
    at = np.arange(keys.size)
    q = _part(offsets, at)
    i = pointers[Q_columns[q]] + at - offsets[q]
    keys[...] = _part(Q_pointers, q) * width + columns[i]
    products[...] = Q_values[q] * values[i]


def sum_runs(
    types: list[str], count: Any, keys: Array, order: Array, values: Array, sums: Array, kept: Array
) -> None:
    heads = np.flatnonzero(np.diff(keys, prepend=-1))
    runs, sums[...] = np.cumsum(np.diff(keys, prepend=-1) != 0) - 1, 0
    totals = np.zeros(heads.size, values.dtype)
    np.add.at(totals, runs, values[order])  # one after the other
    sums[heads] = totals
    kept[...] = sums != 0


def compact(types: list[str], count: Any, pointers: Array, positions: Array) -> None:
    positions[...] = np.flatnonzero(np.diff(pointers))


def find_columns(
    types: list[str], count: Any, blocks: Any, row_bounds: Array, owners: Array, entries: Array,
    columns: Array, bounds: Array, ids: Array, labels: Array, kept: Array,
) -> None:  # fmt: skip
    block = _part(row_bounds, owners)
    for b in range(bounds.size - 1):
        mine, own = block == b, ids[bounds[b] : bounds[b + 1]]
        column = columns[entries[mine]]
        at = np.searchsorted(own, column)
        found = np.append(own, -1)[at] == column
        labels[mine], kept[mine] = np.where(found, at, -1), found


def keep_entries(
    types: list[str], count: Any, blocks: Any, row_bounds: Array, owners: Array, entries: Array,
    labels: Array, places: Array, values: Array, bounds: Array, scale: Array, kept_labels: Array,
    kept_values: Array,
) -> None:  # fmt: skip
    found = np.flatnonzero(labels >= 0)
    kept_labels[places[found]] = labels[found]
    chosen = values[entries[found]]
    if scale is not None:
        chosen *= scale[bounds[_part(row_bounds, owners[found])] + labels[found]].astype(values.dtype)
    kept_values[places[found]] = chosen


def enter_ids(
    types: list[str], known: Any, count: Any, blocks: Any, n: Any, known_bounds: Array, known_ids: Array,
    bounds: Array, ids: Array, mask: Any, table: Array, slots: Array,
) -> None:  # fmt: skip
    keys = [_part(known_bounds, np.arange(known)) * n + known_ids, _part(bounds, np.arange(count)) * n + ids]
    entered, first, where = np.unique(np.concatenate(keys), return_index=True, return_inverse=True)
    table[: entered.size] = entered
    table[int(mask) + 1 :][: entered.size] = first
    slots[...] = where[known:]


def mark_first(
    types: list[str], known: Any, count: Any, mask: Any, table: Array, slots: Array, added: Array
) -> None:
    added[...] = table[int(mask) + 1 + slots] == np.arange(known, known + count)


def number_ids(
    types: list[str], known: Any, count: Any, blocks: Any, n: Any, known_bounds: Array, known_ids: Array,
    bounds: Array, ids: Array, mask: Any, table: Array, slots: Array, before: Array, labels: Array,
    extended: Array,
) -> None:  # fmt: skip
    first = np.concatenate((np.arange(known), table[int(mask) + 1 + slots].astype(np.int64)))
    block = np.concatenate((_part(known_bounds, np.arange(known)), _part(bounds, np.arange(count))))
    tops, added = known_bounds[block], before[bounds[block]]
    new = known_bounds[block + 1] - tops + before[np.maximum(first - known, 0)] - added
    numbers = np.where(first < known, first - tops, new)
    labels[...] = numbers[known:]
    extended[tops + added + numbers] = np.concatenate((known_ids, ids))


def ring_times(types: list[str], rows: Any, steps: Any, keys: Array, remaining: Array, tau: Array) -> None:
    from distgnn.local.array_draw import ring_times

    tau[...] = ring_times(remaining, keys)


def inclusion(
    types: list[str], count: Any, rows: Any, bounds: Array, weights: Array, tau: Array, p: Array
) -> None:
    p[...] = -np.expm1(-weights * tau[_part(bounds, np.arange(weights.size))])


def _part(pointers: Array, at: Array) -> Array:
    """Return the number of the part, of those that begin at the pointers, in which each position lies."""
    return np.searchsorted(pointers, at, side="right") - 1
