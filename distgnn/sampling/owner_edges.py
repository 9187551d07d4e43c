"""Edges between rows and columns of minibatches, picked by the ranks that hold the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.arrays.csr import index_type
from distgnn.comm.steps import Steps, gather
from distgnn.local import extract
from distgnn.local.csr_rows import row_pointers
from distgnn.local.relabel import Relabelling
from distgnn.local.stack import Stack
from distgnn.sampling.edges import Edges, edges
from distgnn.sampling.owners import Block, Questions

Array = Any


def owner_edges(
    questions: Questions, block: Block, cols: Stack, sizes: Sequence[int], labels: Relabelling,
    entries: int | None,
) -> Steps[Edges]:  # fmt: skip
    """Pick the entries in the rows that were asked for and in these columns, as :func:`edges`.

    Collective, three steps.

    Args:
        cols: of each of the lists; sizes: of every rank, how many columns.

    Cost, in words received: the columns of all other ranks, and one for each of their minibatches; one for
    each vertex whose row is elsewhere, and two for each entry that is kept of it.
    """
    comm, kind, lists = questions.comm, index_type(*block.A.shape), questions.lists
    own = (cols.sizes.astype(kind), questions.list_ends), (cols.ids.astype(kind), np.cumsum([0, *sizes]))
    counts, ids = yield from gather(comm, "columns", *own)
    asked = Stack(questions.asked.ids - block.first, questions.asked.bounds)
    everybody = Stack(ids.astype(np.int64), row_pointers(counts))
    pointers, places, values = edges(block.A, block.indptr, asked, everybody, None, labels, entries)
    counts = (pointers[1:] - pointers[:-1]).astype(kind)
    (counts,) = yield from questions.swap((counts, questions.asked_ends, questions.ends, "rows"))
    indptr = row_pointers(counts)
    columns, values = yield from questions.answered((places.ids.astype(kind), values), pointers, indptr)
    numbers = questions.in_lists(comm.backend.xp.arange(len(lists.ids)))
    positions, indptr = extract.row_entries(indptr, numbers)
    bounds = indptr[lists.bounds]
    places = Stack(columns[positions].astype(np.int64), bounds, comm.backend.to_host(bounds))
    return indptr, places, values[positions]
