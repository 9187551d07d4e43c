"""`--check`: the serial reference trained beside the distributed network, epoch by epoch, on rank 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from distgnn.comm import Comm
from distgnn.matrix import BlockSource
from distgnn.reference import GCNReference

TOLERANCE = 1e-4


class CheckFailedError(Exception):
    """The distributed loss is not the serial one; raised on every rank."""


class SerialCheck:
    """The reference for a run. All of the graph and its features must fit on rank 0.

    Args:
        comm: the ranks of the run.
        source: the adjacency matrix in the run's node order.
        X, labels, split: of all nodes in that order; None for X on all ranks but 0.
        settings: arguments of `GCNReference`; training: of its `train`.
    """

    def __init__(
        self, comm: Comm, source: BlockSource, X: np.ndarray | None, labels: np.ndarray, split: np.ndarray,
        settings: Mapping[str, Any], training: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.comm = comm
        self.largest = 0.0
        self._records: Iterator[dict[str, float]] = iter(())
        with comm.together():
            if X is not None:
                n = source.shape[0]
                reference = GCNReference(source.block((0, n), (0, n)), **settings)
                self._records = reference.train(X, labels, split, **training, evaluate=False)

    def compare(self, record: Mapping[str, Any]) -> None:
        """Train the reference up to this record's epoch and compare the losses. Collective.

        Raises:
            CheckFailedError: they differ by more than 1e-4 relative (on every rank).
        """
        message = None
        if self.comm.rank == 0:
            message = self._differs(record["epoch"], record["loss"])
        message = self.comm.share(message)
        if message is not None:
            raise CheckFailedError(message)

    def _differs(self, epoch: int, loss: float) -> str | None:
        serial = next(r["loss"] for r in self._records if r["epoch"] == epoch)
        difference = abs(loss - serial) / max(abs(serial), np.finfo(np.float32).tiny)
        self.largest = max(self.largest, difference)
        if difference <= TOLERANCE:  # and not its negation, so that NaN fails
            return None
        return f"epoch {epoch}: loss {loss:.9g}, serially {serial:.9g}; relative difference {difference:.2g}"
