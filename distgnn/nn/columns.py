"""Whole columns of the logits, for what must be ranked over all nodes.

The rows of the logits are cut over some axes. Among the ranks that share its columns, each rank gets some of
them whole, about as many numbers as it has:

    rank 0     a0 a1 a2 a3        a0 a1  b0 b1
    rank 1     b0 b1 b2 b3        a2 a3  b2 b3
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from distgnn.comm.rows import all_to_all
from distgnn.layout import Layout, partition
from distgnn.ledger import holds

Array = Any


class Columns:
    """Columns of labelled nodes' logits. Collective.

    Args:
        layout: of the logits; classes: their global width.
        rows: local rows of the labelled nodes; parts: their part of the split; labels: uint8 (rows, this
            rank's columns), 0 or 1.

    Attributes:
        labels: uint8 (labelled nodes, columns): of all nodes, by the rank that has them.
        places: by part of the split, the rows of the labelled nodes among these.

    Cost: an all-to-allv of the labels and an all-gather of the parts.
    """

    def __init__(self, layout: Layout, classes: int, rows: Array, parts: Array, labels: Array) -> None:
        self.grid, self.rows = layout.grid, rows
        self.group = layout.grid.along(*layout.row_axes)
        first, last = layout.cols.range(layout.grid, classes)
        self.cuts = partition(last - first, self.group.size)
        self.ends = np.cumsum([0, *self.group.gather_objects(len(rows))])
        self.labels = self._swapped(labels, slice(None))
        parts = self.group.allgather_rows(parts.astype(np.uint8), self.ends, matrix="loss")
        self.places = [self.grid.backend.xp.flatnonzero(parts == part) for part in range(4)]
        holds(self, "labels", self.labels.nbytes + 8 * int(self.ends[-1]))  # each has one place

    def take(self, logits: Array) -> Array:
        """Take this rank's columns of everybody's logits, a share: (labelled nodes, columns). Collective.

        Cost: as many words as it returns, less those of own rows, in one all-to-allv.
        """
        return self._swapped(logits, self.rows)

    def _swapped(self, block: Array, rows: Any) -> Array:
        on, me = self.grid.backend, self.group.rank
        whole = on.empty((int(self.ends[-1]), int(self.cuts[me + 1] - self.cuts[me])), block.dtype)
        sent = {r: on.asarray(block[:, lo:hi][rows]) for r, (lo, hi) in enumerate(pairwise(self.cuts))}
        into = {q: whole[lo:hi] for q, (lo, hi) in enumerate(pairwise(self.ends))}
        all_to_all(self.group, sent, into, "loss")
        return whole
