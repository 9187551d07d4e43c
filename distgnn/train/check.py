"""`--check`: the serial reference trained beside the distributed network, epoch by epoch, on rank 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from distgnn.comm.group import Comm

TOLERANCE = 1e-4


class CheckFailedError(Exception):
    """The distributed loss is not the serial one; raised on every rank."""


class SerialCheck:
    """The reference for a run. All of the graph and its features must fit on rank 0. Collective.

    Args:
        comm: the ranks of the run.
        reference: makes the reference and yields its record of every epoch; called on rank 0 only, so that
            only rank 0 reads what that takes. Must not communicate.

    Raises:
        whatever `reference` raises, on every rank.
    """

    def __init__(self, comm: Comm, reference: Callable[[], Iterator[dict[str, float]]]) -> None:
        self.comm = comm
        self.largest = 0.0
        self._records: Iterator[dict[str, float]] = iter(())
        with comm.together():
            if comm.rank == 0:
                self._records = reference()

    def compare(self, record: Mapping[str, Any]) -> None:
        """Train the reference up to this record's epoch and compare the losses. Collective.

        Raises:
            CheckFailedError: they differ by more than 1e-4 relative (on every rank).
        """
        message = None
        with self.comm.together():
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
