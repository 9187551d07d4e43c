"""Extraction of columns (sections 4.1.3 and 4.2.4): global vertex ids to positions in a minibatch's own list.

The paper multiplies by column extraction matrices of n rows, which only drop and renumber columns. Here one
table of n numbers stands for all of them in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from distgnn.arrays import backend
from distgnn.arrays.backend import Backend
from distgnn.local import cuda, host
from distgnn.local.csr_rows import owners, row_pointers

Array = Any


class Stack(NamedTuple):
    """Lists of ids, one per minibatch: list b is ``ids[bounds[b]:bounds[b + 1]]``; both int64.

    Attributes:
        ends: the bounds once more, on the host; None where they are there anyway, or not known there yet.
    """

    ids: Array
    bounds: Array
    ends: Array = None

    @classmethod
    def of(cls, lists: Sequence[Array], on: Backend | None = None) -> Stack:
        """On this backend, whose arrays or the host's are given; default: the host."""
        on = on or backend.get("numpy")
        ids = on.xp.concatenate([on.xp.zeros(0, np.int64), *(on.asarray(one, np.int64) for one in lists)])
        return cls.cut(ids, row_pointers(np.array([len(one) for one in lists], np.int64)))

    @classmethod
    def cut(cls, ids: Array, bounds: Array) -> Stack:
        """Ids where they are, with bounds that are on the host."""
        on = backend.of(ids)
        return cls(ids, on.asarray(bounds), bounds) if on.on_device else cls(ids, bounds)

    @property
    def on_device(self) -> bool:
        """Whether the ids are on a GPU."""
        return backend.of(self.ids).on_device

    @property
    def slices(self) -> list[slice]:
        """Where each list stands."""
        ends = (self.bounds if self.ends is None else self.ends).tolist()
        return [slice(first, last) for first, last in pairwise(ends)]

    @property
    def arrays(self) -> tuple[Array, Array]:
        """Bounds and ids."""
        return self.bounds, self.ids

    @property
    def sizes(self) -> Array:
        """How many ids each minibatch has."""
        return self.bounds[1:] - self.bounds[:-1]

    @property
    def owners(self) -> Array:
        """Which minibatch each id belongs to."""
        return owners(self.sizes, len(self.ids))

    def extended(self, added: Stack) -> Stack:
        """Every list followed by the one of `added`."""
        ids = np.empty(len(self.ids) + len(added.ids), np.int64)
        ids[np.arange(len(self.ids)) + np.repeat(added.bounds[:-1], self.sizes)] = self.ids
        ids[np.arange(len(added.ids)) + np.repeat(self.bounds[1:], added.sizes)] = added.ids
        return Stack(ids, self.bounds + added.bounds)


class Relabelling:
    """Renumbers ids in 0..n-1. Memory on the host: 4 bytes per vertex, from the first use on; on a GPU 32 to
    64 bytes per id while it works.
    """

    def __init__(self, n: int) -> None:
        self.n = n

    @cached_property
    def _table(self) -> Array:
        return np.full(self.n, -1, np.int32)

    def find(self, stack: Stack, known: Stack) -> Array:
        """int64: position of every id in its minibatch's list of `known` (distinct) ids, or -1."""
        if (kernels := host.module()) is not None:
            labels = np.empty(len(stack.ids), np.int64)
            kernels.relabel_blocks(*stack.arrays, *known.arrays, self._table, labels, None, None)
            return labels
        keys, wanted = self._keys(known), self._keys(stack)
        if not len(keys):
            return np.full(len(wanted), -1, np.int64)
        order = np.argsort(keys)
        at = order[np.searchsorted(keys, wanted, sorter=order).clip(max=len(keys) - 1)]
        return np.where(keys[at] == wanted, at - known.bounds[stack.owners], -1)

    def extend(self, stack: Stack, known: Stack) -> tuple[Stack, Stack]:
        """int64 numbers of all ids: those of `known` by their position, others after them in the order in
        which they first occur; and the lists of `known` with those added. A GPU is waited for, for the bounds
        of both.
        """
        if stack.on_device:
            return self._extend_on_device(stack, known)
        if (kernels := host.module()) is not None:
            labels, added, bounds = map(np.empty_like, (stack.ids, stack.ids, stack.bounds))
            kernels.relabel_blocks(*stack.arrays, *known.arrays, self._table, labels, added, bounds)
            lists = known.extended(Stack(added[: bounds[-1]], bounds))
        else:
            labels, lists = self._extend_numpy(stack, known)
        return Stack(labels, stack.bounds), lists

    def _extend_on_device(self, stack: Stack, known: Stack) -> tuple[Stack, Stack]:
        on = backend.of(stack.ids)
        numbering = cuda.Numbering(stack.arrays, known.arrays, self.n)
        ends, lists = on.to_host(on.xp.stack((stack.bounds, numbering.bounds)))
        labels, ids = numbering.numbers(int(lists[-1]))
        return Stack(labels, stack.bounds, ends), Stack(ids, numbering.bounds, lists)

    def _extend_numpy(self, stack: Stack, known: Stack) -> tuple[Array, Stack]:
        keys = np.concatenate((self._keys(known), self._keys(stack)))
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        new = np.sort(first[first >= len(known.ids)])
        added = Stack(stack.ids[new - len(known.ids)], np.searchsorted(new, stack.bounds + len(known.ids)))
        lists = known.extended(added)
        number = np.empty(len(keys), np.int64)  # by the place where an id first occurs
        number[: len(known.ids)] = np.arange(len(known.ids)) - known.bounds[known.owners]
        number[new] = np.arange(len(new)) - added.bounds[added.owners] + known.sizes[added.owners]
        return number[first[inverse[len(known.ids) :]]], lists

    def _keys(self, stack: Stack) -> Array:
        """One number per (minibatch, id): the columns of the block-diagonal matrix."""
        return stack.owners * self.n + stack.ids
