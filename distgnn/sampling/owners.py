"""Questions to the ranks that hold the rows of a graph cut in block rows, and the answers.

A question is a vertex of a minibatch. Its owner, the rank that holds its row, answers with the row or with a
draw from it, or adds the rows that a minibatch asks for. Arrays are where the graph is.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from distgnn.arrays import backend
from distgnn.arrays.csr import index_type
from distgnn.comm.group import Comm
from distgnn.comm.steps import Steps, Swap, swap, swap_numbers
from distgnn.local import extract
from distgnn.local.csr_rows import owners, row_pointers
from distgnn.local.draw import draw_selected, stack_keys
from distgnn.local.stack import Stack

Array = Any


class Block(NamedTuple):
    """The rows of a matrix that a rank holds: from number `first` on, and their row pointers (int64)."""

    A: Any
    indptr: Array
    first: int


class Answers(NamedTuple):
    """Answers of owners, as a matrix with a row for each question, by owner.

    Attributes:
        A, indptr: the matrix, most of it empty where several questions have one answer; its row pointers.
        rows: int64, of each vertex in the order of the lists, the row that answers it.
        degrees: int64, in the same order, the entries of the vertex's row.
    """

    A: Any
    indptr: Array
    rows: Array
    degrees: Array


class Segments(NamedTuple):
    """Draws or rows that answer questions, known to both sides from the degrees; int64, by question.

    Attributes:
        read: the question whose entries answer this one; lengths: of its own entries; drawn: it is a draw.
    """

    read: Array
    lengths: Array
    drawn: Array


def segments(vertices: Array, degrees: Array, fanout: int) -> Segments:
    """Choose draws or rows for the questions of one rank to one owner, or of several with numbers apart.

    A vertex that is asked for m times is answered by m draws, or once by its row, whose entries are then not
    more: min(fanout, degree) m >= degree.
    """
    xp = backend.module(vertices)
    _, first, place, times = xp.unique(vertices, return_index=True, return_inverse=True, return_counts=True)
    here, first = xp.arange(len(vertices)), first[place]
    drawn = times[place] * xp.minimum(degrees, fanout) < degrees
    whole = xp.where(first == here, degrees, 0)
    return Segments(xp.where(drawn, here, first), xp.where(drawn, fanout, whole), drawn)


def words(minibatches: int, asked: int, vertices: int, entries: int) -> int:
    """Count the words that a rank receives for its questions and those of others.

    Args:
        minibatches: of other ranks, in all; asked: vertices of this rank's rows in them.
        vertices: of this rank's minibatches whose rows are elsewhere; entries: that are sent for these,
            the sum of :attr:`Segments.lengths`.
    """
    return 2 * minibatches + asked + vertices + 2 * entries


def picked_by_owners(ranks: int, columns: int, rows: int, degree: float) -> bool:
    """Tell whether edges are picked by owners: all ranks' columns, sent to all, are fewer words than rows.

    Args:
        columns, rows: of all ranks' minibatches; degree: the mean number of entries of a row.
    """
    return ranks * columns < 2 * degree * rows


#: An array in parts for the ranks, where these end; where those end that come of the ranks; whose they are.
Parts = tuple[Array, np.ndarray, np.ndarray, str]


class Questions:
    """The vertices of each rank's minibatches, to be told to the ranks that hold their rows.

    Args:
        comm: its rank r holds rows ``parts[r]:parts[r + 1]`` of the graph.
        parts: int64, on the host.
        lists: this rank's vertices, a list for each of its minibatches.
        keys: uint64, of each of its minibatches, from which those of draws are made.

    Attributes:
        order: the vertices in the order in which they are asked for, by owner; ends: where those of each
            owner end, on the host, from 0 on.
        asked: the lists of all ranks, one rank after another, of this rank's rows; keys: uint64, of these
            lists; asked_ends, list_ends: where vertices and lists of each rank end, on the host. All are
            known when the questions are :meth:`told`.
    """

    def __init__(self, comm: Comm, parts: np.ndarray, lists: Stack, keys: Array) -> None:
        self.comm, self.parts, self.lists, self.own_keys, on = comm, parts, lists, keys, comm.backend
        xp = on.xp
        owner = xp.searchsorted(on.asarray(parts[1:]), lists.ids, side="right")
        self.order = xp.argsort(owner, kind="stable")
        self.owner, self.batch = owner[self.order], lists.owners[self.order]
        self.ends = on.to_host(xp.searchsorted(self.owner, xp.arange(comm.size + 1)))
        self.vertices = lists.ids[self.order]

    def told(self) -> Steps[Questions]:
        """Tell the ranks; return these questions. Collective, two steps.

        Cost, in words received: two for each minibatch of another rank, and the vertices that it asks for.
        """
        comm, on, batches = self.comm, self.comm.backend, len(self.lists.bounds) - 1
        xp, ranks, keys = on.xp, comm.size, self.own_keys
        tops = xp.searchsorted(self.owner * batches + self.batch, xp.arange(ranks * batches + 1))
        counts = (tops[1:] - tops[:-1]).reshape(ranks, batches)
        heads = xp.concatenate((counts, xp.broadcast_to(keys.view(np.int64), counts.shape)), axis=1)
        sizes = yield from swap_numbers(comm, np.column_stack((np.full(ranks, batches), np.diff(self.ends))))
        self.list_ends, self.asked_ends = (np.cumsum([0, *each]) for each in sizes.T)
        kind = index_type(int(self.parts[-1]))
        heads, asked = yield from self.swap(
            (heads.reshape(-1), np.arange(ranks + 1) * 2 * batches, 2 * self.list_ends, "rows"),
            (self.vertices.astype(kind), self.ends, self.asked_ends, "rows"),
        )
        pairs = [heads[2 * first : 2 * last].reshape(2, -1) for first, last in pairwise(self.list_ends)]
        counts, keys = (xp.concatenate(pairs, axis=1)[number] for number in (0, 1))
        self.asked, self.keys = Stack(asked.astype(np.int64), row_pointers(counts)), keys.view(np.uint64)
        return self

    def rows(self, block: Block, fanout: int | None = None) -> Steps[Answers]:
        """Fetch the rows of the vertices, or where they have fewer entries draws from them.

        Collective, two steps.

        Args:
            block: this rank's rows of the matrix.
            fanout: entries of a draw, under the keys of vertex and minibatch; None: rows only.

        Cost, in words received: one for each vertex whose row is elsewhere, and two for each entry sent.
        """
        fanout, asked = block.A.shape[1] if fanout is None else fanout, self.asked.ids - block.first
        degrees = extract.row_lengths(block.indptr, asked)
        sent = segments(self.apart(asked, len(block.indptr)), degrees, fanout)
        positions, pointers = self._drawn(block, asked, sent, fanout)
        kind = index_type(*block.A.shape)
        (degrees,) = yield from self.swap((degrees.astype(kind), self.asked_ends, self.ends, "rows"))
        degrees = degrees.astype(np.int64)
        read, lengths, _ = segments(self.vertices, degrees, fanout)
        indptr = row_pointers(lengths)
        entries = block.A.indices[positions].astype(kind, copy=False), block.A.data[positions]
        columns, values = yield from self.answered(entries, pointers, indptr)
        A = extract.rows_of(indptr, columns, values, (len(read), block.A.shape[1]))
        return Answers(A, indptr, self.in_lists(read), self.in_lists(degrees))

    def answered(self, entries: tuple[Array, Array], pointers: Array, indptr: Array) -> Steps[list[Array]]:
        """Send columns and values, which answer the questions asked, and return those that answer its own.

        pointers, indptr: where those of each question begin, of the questions asked and of its own.
        """
        given, got = self.at(pointers, self.asked_ends), self.at(indptr, self.ends)
        return (yield from self.swap(*((array, given, got, "adjacency") for array in entries)))

    def swap(self, *arrays: Parts) -> Steps[list[Array]]:
        """Send the ranks parts of arrays; return their parts of each, one after another. One step."""
        came = [self.comm.backend.empty((int(got[-1]),), array.dtype) for array, _, got, _ in arrays]
        swaps = [
            Swap(_cut(array, given), _cut(whole, got), matrix)
            for whole, (array, given, got, matrix) in zip(came, arrays, strict=True)
        ]
        yield from swap(self.comm, *swaps)
        return came

    def apart(self, rows: Array, height: int) -> Array:
        """Return numbers of the rows that ranks ask for, from 0 to height - 1, apart for each rank."""
        sizes = self.comm.backend.asarray(np.diff(self.asked_ends))
        return owners(sizes, len(rows)) * height + rows

    def at(self, pointers: Array, places: np.ndarray) -> np.ndarray:
        """Return these of some pointers, on the host, which waits."""
        on = self.comm.backend
        return on.to_host(pointers[on.asarray(places)])

    def _drawn(self, block: Block, asked: Array, sent: Segments, fanout: int) -> tuple[Array, Array]:
        """Return the positions of the entries that answer the questions, and where those of each begin."""
        xp, indptr = self.comm.backend.xp, row_pointers(sent.lengths)
        drawn = xp.flatnonzero(sent.drawn)
        whole = xp.flatnonzero((sent.read == xp.arange(len(asked))) & ~sent.drawn)
        keys = stack_keys(self.asked, self.keys)[drawn]
        draws = draw_selected(block.indptr, asked[drawn], fanout, keys).positions
        rows, _ = extract.row_entries(block.indptr, asked[whole])
        positions = xp.empty(len(draws) + len(rows), np.int64)
        for questions, entries in ((drawn, draws), (whole, rows)):
            positions[extract.row_entries(indptr, questions)[0]] = entries
        return positions, indptr

    def in_lists(self, numbers: Array) -> Array:
        """Return the questions' numbers in the order of the lists."""
        ordered = self.comm.backend.xp.empty_like(numbers)
        ordered[self.order] = numbers
        return ordered


def _cut(array: Array, ends: np.ndarray) -> dict[int, Array]:
    return {rank: array[first:last] for rank, (first, last) in enumerate(pairwise(ends.tolist()))}
