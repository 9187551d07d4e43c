"""Extraction of columns (sections 4.1.3 and 4.2.4): global vertex ids to positions in a minibatch's own list.

The paper multiplies by column extraction matrices of n rows, which only drop and renumber columns. Here one
table of n numbers stands for all of them in turn.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from distgnn.arrays import backend
from distgnn.arrays.kernels import Kernels, KernelTable
from distgnn.local import cuda, host
from distgnn.local.stack import Stack

Array = Any


class Relabelling:
    """Renumbering of ids in 0..n-1.

    Memory on the host: 4 bytes per vertex, from the first use on; on a GPU 32 to 64 bytes per id while it
    works.
    """

    def __init__(self, n: int) -> None:
        self.n = n

    @cached_property
    def table(self) -> Array:
        """The table of all ids, int32 (n) on the host: -1, but while a kernel works."""
        return np.full(self.n, -1, np.int32)

    def find(self, stack: Stack, known: Stack) -> Array:
        """Find the place of every id in its minibatch's list of `known` (distinct) ids, or -1.

        Returns int64, on the host.
        """
        return KERNELS.kernel("find", stack.ids)(self, stack, known)

    def extend(self, stack: Stack, known: Stack) -> tuple[Stack, Stack]:
        """Give numbers to all ids: those of `known` their position, others the next as they first occur.

        Returns the numbers (int64), and the lists of `known` with those added. A GPU is waited for, for the
        bounds of both.
        """
        return KERNELS.kernel("extend", stack.ids)(self, stack, known)


def _find_compiled(labels: Relabelling, stack: Stack, known: Stack) -> Array:
    places = np.empty(len(stack.ids), np.int64)
    host.built().relabel_blocks(*stack.arrays, *known.arrays, labels.table, places, None, None)
    return places


def _find_numpy(labels: Relabelling, stack: Stack, known: Stack) -> Array:
    keys, wanted = _keys(labels, known), _keys(labels, stack)
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys)
    at = order[np.searchsorted(keys, wanted, sorter=order).clip(max=len(keys) - 1)]
    return np.where(keys[at] == wanted, at - known.bounds[stack.owners], -1)


def _extend_compiled(labels: Relabelling, stack: Stack, known: Stack) -> tuple[Stack, Stack]:
    numbers, added, bounds = map(np.empty_like, (stack.ids, stack.ids, stack.bounds))
    host.built().relabel_blocks(*stack.arrays, *known.arrays, labels.table, numbers, added, bounds)
    return Stack(numbers, stack.bounds), known.extended(Stack(added[: bounds[-1]], bounds))


def _extend_numpy(labels: Relabelling, stack: Stack, known: Stack) -> tuple[Stack, Stack]:
    keys = np.concatenate((_keys(labels, known), _keys(labels, stack)))
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    new = np.sort(first[first >= len(known.ids)])
    added = Stack(stack.ids[new - len(known.ids)], np.searchsorted(new, stack.bounds + len(known.ids)))
    number = np.empty(len(keys), np.int64)  # by the place where an id first occurs
    number[: len(known.ids)] = np.arange(len(known.ids)) - known.bounds[known.owners]
    number[new] = np.arange(len(new)) - added.bounds[added.owners] + known.sizes[added.owners]
    return Stack(number[first[inverse[len(known.ids) :]]], stack.bounds), known.extended(added)


def _keys(labels: Relabelling, stack: Stack) -> Array:
    """Make a number for each (minibatch, id): the columns of the block-diagonal matrix."""
    return stack.owners * labels.n + stack.ids


def _extend_on_gpu(labels: Relabelling, stack: Stack, known: Stack) -> tuple[Stack, Stack]:
    on = backend.of(stack.ids)
    numbering = cuda.Numbering(stack.arrays, known.arrays, labels.n)
    ends, lists = on.to_host(on.xp.stack((stack.bounds, numbering.bounds)))
    numbers, ids = numbering.numbers(int(lists[-1]))
    return Stack(numbers, stack.bounds, ends), Stack(ids, numbering.bounds, lists)


KERNELS = KernelTable(
    numpy=[
        Kernels({"find": _find_compiled, "extend": _extend_compiled}, usable=host.usable),
        Kernels({"find": _find_numpy, "extend": _extend_numpy}),
    ],
    cupy=[Kernels({"extend": _extend_on_gpu})],
)
