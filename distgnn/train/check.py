"""The serial reference trained beside the distributed network, epoch by epoch, on rank 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from distgnn.comm.group import Comm
from distgnn.errors import TrainingError
from distgnn.nn.finite import NotFiniteError
from distgnn.nn.reference import GCNReference
from distgnn.store.read.order import Order
from distgnn.store.read.store import Store
from distgnn.train.rates import Schedule
from distgnn.train.settings import Settings

TOLERANCE = 1e-4


class CheckFailedError(TrainingError):
    """The distributed loss is not the serial one; raised on every rank."""


class SerialCheck:
    """The reference for a run. All of the graph and its features must fit on rank 0. Collective.

    Args:
        comm: the ranks of the run.
        reference: yields the reference's record of every epoch. Called on rank 0 only; must not communicate.
            What the call raises is raised on every rank.
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
            raise CheckFailedError(message, record["epoch"])

    def _differs(self, epoch: int, loss: float) -> str | None:
        try:
            serial = next(r["loss"] for r in self._records if r["epoch"] == epoch)
        except NotFiniteError as error:
            return f"loss {loss:.9g}, serially {error}"
        difference = abs(loss - serial) / max(abs(serial), np.finfo(np.float32).tiny)
        self.largest = max(self.largest, difference)
        if difference <= TOLERANCE:  # and not its negation, so that NaN fails
            return None
        return f"epoch {epoch}: loss {loss:.9g}, serially {serial:.9g}; relative difference {difference:.2g}"


def reference(
    store: Store, order: Order, widths: Sequence[int], settings: Settings
) -> Iterator[dict[str, float]]:
    """The epochs of the reference, from epoch 1 on. Reads all that it needs of the store."""
    s, n = settings, store.n
    inputs = order.layer(-1)  # features and labels as layer 0 takes them
    X = store.features(inputs).astype(s.dtype)
    if s.normalize_features:
        sums = np.abs(X).sum(axis=1, keepdims=True, dtype=np.float64)
        X *= (1 / np.where(sums == 0, 1, sums)).astype(X.dtype)
    ids = inputs.permutation(0, n)
    A = order.block((0, n), (0, n))[order.positions(ids)]  # rows in the order of the columns
    network = GCNReference(A, widths, s.seed, s.dropout, s.bias, s.dtype, ids, s.residual, s.layer_norm)
    schedule = Schedule.parse(s.schedule, s.warmup)
    steps = s.epochs, s.optimizer, s.lr, s.weight_decay, s.momentum, s.train_features
    more: Any = {"clip": s.clip, "schedule": lambda epoch: schedule.at(epoch, s.epochs), "evaluate": False}
    return network.train(X, store.labels(inputs), store.split(inputs), *steps, **more)
