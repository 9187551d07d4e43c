"""Panels: the blocks that ranks of a group broadcast to each other, stage by stage.

An algorithm iterates over panels, which broadcasts them one by one; it never sees buffers, and how far ahead panels travel is
decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from distgnn.comm import Comm
from distgnn.layout import Range
from distgnn.matrix import CSR


def broadcast_rows(comm: Comm, block: Any, stages: Sequence[tuple[int, Range]]) -> Iterator[Any]:
    """For each stage ``(root, rows)``: those local rows of rank ``root``'s ``block``, on every rank of ``comm``.

    A panel is valid until the next one is asked for. Every rank passes a block of the same width and dtype.
    """
    width = block.shape[1]
    most = max((bottom - top for root, (top, bottom) in stages if root != comm.rank), default=0)
    room = comm.backend.empty((most, width), block.dtype)
    for root, (top, bottom) in stages:
        panel = block[top:bottom] if root == comm.rank else room[: bottom - top]
        yield comm.bcast(panel, root)


class SparsePanels:
    """CSR panels of a stationary sparse matrix; which rank has which is agreed on once, at construction (collective).

    Args:
        comm: the group that shares the panels.
        roots: the owner of each stage's panel.
        mine: this rank's panels by stage.
    """

    def __init__(self, comm: Comm, roots: Sequence[int], mine: Mapping[int, CSR]) -> None:
        self.comm, self.roots, self.mine = comm, list(roots), dict(mine)
        headers = comm.gather_objects({stage: panel.header() for stage, panel in self.mine.items()})
        self.headers = [headers[root][stage] for stage, root in enumerate(self.roots)]
        away = [CSR.nbytes(*header) for header, root in zip(self.headers, self.roots, strict=True) if root != comm.rank]
        room = comm.backend.empty((max(away, default=0),), np.uint8)
        # One object per stage for good, though they share their memory: what a kernel plans for a block is kept with it.
        pairs = enumerate(zip(self.roots, self.headers, strict=True))
        self.panels = [self.mine[k] if root == comm.rank else CSR(*header, room) for k, (root, header) in pairs]

    def broadcast(self) -> Iterator[CSR]:
        """The panel of each stage, one after another, on every rank of the group; valid until the next one is asked for."""
        for root, panel in zip(self.roots, self.panels, strict=True):
            self.comm.bcast(panel.buffer, root, words=panel.words)
            yield panel
