"""The comparison of a run's losses with those of a serial training beside it, epoch by epoch, on rank 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from distgnn.comm.group import Comm
from distgnn.errors import TrainingError
from distgnn.nn.finite import NotFiniteError
from distgnn.train.serial import Serial

#: Relative differences that are taken for rounding, by dtype (benchmarks/results/check.md).
TOLERANCES = {"float32": 1e-5, "float64": 1e-11}
#: Smaller losses are compared like one of this size: theirs are differences of logits, which are larger.
LEAST = 1e-3
#: Compared epochs after which rounding of float32 may have grown beyond that.
LATE = 10


class CheckFailedError(TrainingError):
    """The distributed loss is not the serial one; raised on every rank."""


class SerialCheck:
    """The reference for a run. All of the graph and its features must fit on rank 0. Collective.

    Args:
        comm: the ranks of the run.
        reference: makes the serial training. Called on rank 0 only; must not communicate. What the call
            raises is raised on every rank.
        epochs: how many to compare, from the first that is given on; None: all.
        dtype: of the run, by which TOLERANCES has the largest relative difference that is no error.

    Attributes:
        first, last: the epochs that were compared; None before.
        largest: the largest relative difference so far, on rank 0.
    """

    def __init__(
        self, comm: Comm, reference: Callable[[], Serial], epochs: int | None = None, dtype: str = "float32"
    ) -> None:
        self.comm, self.epochs, self.dtype, self.tolerance = comm, epochs, dtype, TOLERANCES[dtype]
        self.first: int | None = None
        self.last: int | None = None
        self.largest = 0.0
        self._reference: Serial | None = None
        with comm.together():
            if comm.rank == 0:
                self._reference = reference()

    def compare(self, record: Mapping[str, Any]) -> None:
        """Train this record's epoch serially and compare the losses, if it is one to compare. Collective.

        Raises:
            CheckFailedError: they differ by more than the tolerance (on every rank).
        """
        epoch = record["epoch"]
        self.first = epoch if self.first is None else self.first
        if self.epochs is not None and epoch - self.first >= self.epochs:
            self._reference = None  # its memory is of use elsewhere
            return
        message = None
        with self.comm.together():
            if self._reference is not None:
                message = self._differs(self._reference, epoch, record["loss"], record["lr"])
        message = self.comm.share(message)
        if message is not None:
            raise CheckFailedError(message, epoch)
        self.last = epoch

    def record(self) -> dict[str, Any]:
        """For the last line of a log: what was compared, and how it went, of rank 0."""
        epochs = {"first": self.first, "last": self.last}
        return {"check": epochs | {"largest_difference": self.largest, "allowed": self.tolerance}}

    def verdict(self) -> str:
        """How it went, in one line, on rank 0."""
        epochs = f"epochs {self.first} to {self.last}" if self.first != self.last else f"epoch {self.last}"
        found = f"largest relative difference {self.largest:.1e}, allowed {self.tolerance:.0e}"
        return f"check: the losses of {epochs} equal those of a serial training; {found}"

    def _differs(self, reference: Serial, epoch: int, loss: float, lr: float) -> str | None:
        """The problem, if there is one."""
        found = f"epoch {epoch}: loss {loss:.9g}"
        try:
            expected = reference.epoch(epoch, lr)
        except NotFiniteError as error:
            return f"{found}, but serially {error}"
        difference = abs(loss - expected) / max(abs(expected), LEAST)
        self.largest = max(self.largest, difference)
        if difference <= self.tolerance:  # and not its negation, so that NaN fails
            return None
        apart = f"relative difference {difference:.2g}, allowed {self.tolerance:.0e}"
        late = self.dtype == "float32" and epoch - (self.first or 0) >= LATE
        hint = "; by now it may be rounding: compare with --dtype float64" if late else ""
        return f"{found}, expected {expected:.9g}, as trained serially; {apart}{hint}"
