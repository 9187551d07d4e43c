"""Sums of rows over minibatches, by the ranks that hold the rows: a reduce-scatter over the minibatches."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.arrays.csr import index_type
from distgnn.comm.steps import Steps, swap_numbers
from distgnn.local import csr_rows, extract
from distgnn.local.csr_rows import row_pointers
from distgnn.sampling.owners import Block, Questions

Array = Any
_WORDS = 1, 2  # of a row's length; of an entry


def sums(questions: Questions, block: Block) -> Steps[Any]:
    """Sum the rows of each of a rank's lists: (lists, columns), as a product of ``extract``.

    Collective, two steps.

    Every owner sends the sums of its rows, or these rows, each once, where they are fewer words. What comes
    is added in the order of the owners.

    Cost, in words received: one for each sum or row that another rank sends, two for each of its entries.
    """
    given, packed = _sums_or_rows(questions, block)
    got = yield from swap_numbers(questions.comm, given)
    (own_rows, own_entries, _), (rows, entries, _) = map(_ends, (given, got))
    ends = (own_rows, rows), *[(own_entries, entries)] * 2
    parts = [(array, *of, "sums") for array, of in zip(packed, ends, strict=True)]
    lengths, columns, values = yield from questions.swap(*parts)
    indptr = row_pointers(lengths)
    A = extract.rows_of(indptr, columns, values, (int(rows[-1]), block.A.shape[1]))
    return extract.multiply(_summands(questions, rows, got[:, 2], values.dtype), A, indptr)


def _sums_or_rows(questions: Questions, block: Block) -> tuple[np.ndarray, tuple[Array, ...]]:
    """Make what the ranks get: of each the numbers of rows and entries, and 1 for rows of A; all, packed."""
    on, asked = questions.comm.backend, questions.asked.ids - block.first
    xp, height, ends = on.xp, block.A.shape[0], questions.list_ends
    ones = xp.ones(len(asked), block.A.dtype)
    Q = extract.rows_of(questions.asked.bounds, asked, ones, (int(ends[-1]), height))
    S = extract.multiply(Q, block.A, block.indptr)
    keys = xp.unique(questions.apart(asked, height))
    read = keys % max(height, 1)
    tops = on.to_host(xp.searchsorted(keys, xp.arange(len(ends)) * height))
    pointers = row_pointers(extract.row_lengths(block.indptr, read))
    sizes = [np.diff((ends, questions.at(S.indptr, ends))), np.diff((tops, questions.at(pointers, tops)))]
    whole = _WORDS @ sizes[1] < _WORDS @ sizes[0]
    picked = [
        csr_rows.gather(block.A, read[tops[r] : tops[r + 1]])
        if whole[r]
        else csr_rows.gather(S, slice(int(ends[r]), int(ends[r + 1])))
        for r in range(len(whole))
    ]
    lengths, columns, values = (xp.concatenate(part) for part in zip(*picked, strict=True))
    kind = index_type(*block.A.shape)
    given = np.column_stack((*np.where(whole, sizes[1], sizes[0]), whole))
    return given, (lengths.astype(kind), columns.astype(kind, copy=False), values)


def _summands(questions: Questions, ends: np.ndarray, whole: np.ndarray, dtype: Any) -> Any:
    """Make the matrix that adds what came: of each question, its list's sum of the owner, or its row."""
    on, lists, total = questions.comm.backend, len(questions.lists.bounds) - 1, max(int(ends[-1]), 1)
    xp, owner, batch = on.xp, questions.owner, questions.batch
    distinct, place = xp.unique(questions.vertices, return_inverse=True)
    place = place - xp.searchsorted(distinct, on.asarray(questions.parts))[owner]
    rows = on.asarray(ends)[owner] + xp.where(on.asarray(whole)[owner] != 0, place, batch)
    keys = xp.unique(batch * total + rows)
    pointers = xp.searchsorted(keys, xp.arange(lists + 1) * total)
    return extract.rows_of(pointers, keys % total, xp.ones(len(keys), dtype), (lists, int(ends[-1])))


def _ends(sizes: np.ndarray) -> np.ndarray:
    """Return where parts of these sizes end, from 0 on, by column."""
    return np.vstack((np.zeros(sizes.shape[1], np.int64), np.cumsum(sizes, axis=0))).T
