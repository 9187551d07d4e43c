"""Rows of a graph that a host holds whole, in one pass: neighbours drawn and numbered, edges kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import ledger
from distgnn.local import host
from distgnn.local.relabel import Relabelling
from distgnn.local.stack import Stack

Array = Any


def draw(
    A: sp.csr_array, indptr: Array, rows: Stack, fanout: int, keys: Array, labels: Relabelling, alike: bool
) -> tuple[Array, Stack, Array, Stack]:  # fmt: skip
    """Draw at most `fanout` entries of every row, by its minibatch's key; number columns after the rows.

    ``alike``: all values of A are equal. Returns row pointers, places (int32) in the lists of columns,
    values, and these lists.
    """
    built = host.built()
    graph = built.Rows(indptr, A.indices, None if alike else A.data, labels.table)
    ends, bounds = np.empty(len(rows.ids) + 1, np.int64), np.empty_like(rows.bounds)
    neighbours = built.Neighbours(graph, built.Lists(*rows.arrays, graph), ends, min(fanout, labels.n))
    total, longest = int(ends[-1]), neighbours.longest
    numbers, columns = np.empty(total, np.int32), np.empty(len(rows.ids) + total, np.int64)
    values = np.full(total, A.data[0]) if alike else np.empty(total, A.dtype)
    room = np.zeros(longest, np.uint8), np.empty(longest)
    neighbours.draw(keys, *room, numbers, None if alike else values, columns, bounds)
    columns.resize(int(bounds[-1]), refcheck=False)
    return ends, Stack(numbers, ends[rows.bounds]), values, Stack(columns, bounds)


def edges(
    A: sp.csr_array, indptr: Array, rows: Stack, columns: Stack, scale: Array | None, labels: Relabelling
) -> tuple[Array, Stack, Array]:  # fmt: skip
    """Keep the entries of rows in their minibatch's columns, each value times the scale of its column.

    Returns row pointers, places (int32) in the lists of columns, values.
    """
    built = host.built()
    graph = built.Rows(indptr, A.indices, A.data, labels.table)
    lengths = indptr[rows.ids + 1] - indptr[rows.ids]
    ledger.charge("spmm", "spgemm", flops=2 * int(lengths.sum()))  # as the product with Q that it stands for
    room = int(np.minimum(lengths, np.repeat(columns.sizes, rows.sizes)).sum())
    ends = np.empty(len(rows.ids) + 1, np.int64)
    numbers, values = np.empty(room, np.int32), np.empty(room, A.dtype)
    lists = [built.Lists(*stack.arrays, graph) for stack in (rows, columns)]
    built.keep_edges(graph, *lists, scale, ends, numbers, values)
    for array in (numbers, values):
        array.resize(int(ends[-1]), refcheck=False)
    return ends, Stack(numbers, ends[rows.bounds]), values
