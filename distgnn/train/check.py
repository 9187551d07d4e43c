"""The comparison of a run's losses with those of a serial training beside it, epoch by epoch, on rank 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from distgnn import records
from distgnn.comm.group import Comm
from distgnn.errors import TrainingError
from distgnn.nn.finite import NotFiniteError
from distgnn.train.serial import Serial
from distgnn.train.settings import Settings
from distgnn.train.stored import SampleError

#: Relative differences that are taken for rounding, by the type of numbers on their way between ranks or in
#: products (benchmarks/results/check.md; of 16 bits benchmarks/results/sixteen-bits.md).
TOLERANCES = {"float32": 2e-5, "float64": 1e-11, "bfloat16": 1e-2, "float16": 1e-2, "tf32": 1e-2}
#: Smaller losses are compared like one of this size: theirs are differences of logits, which are larger.
LEAST = 1e-3
#: Compared updates after which rounding of float32 may have grown beyond that: where a gradient is nothing
#: but rounding, Adam makes whole steps of it.
EARLY = 2


def rounding(settings: Settings) -> str:
    """Return the key of TOLERANCES of a run."""
    return settings.wire or ("tf32" if settings.tf32 else settings.dtype)


class CheckFailedError(TrainingError):
    """The distributed loss is not the serial one; raised on every rank."""


class SerialCheck:
    """The reference for a run. All of the graph and its features must fit on rank 0. Collective.

    Args:
        comm: the ranks of the run.
        reference: makes the serial training. Called on rank 0 only; must not communicate. What the call
            raises is raised on every rank.
        updates: the losses of how many to compare; None: of all.
        dtype: of the run, or what it rounds to, by which TOLERANCES has the largest relative difference that
            is no error.

    Attributes:
        epochs: the first and the last of which a loss was compared; None before. compared: updates so far.
        largest: the largest relative difference so far, on rank 0.
    """

    def __init__(
        self, comm: Comm, reference: Callable[[], Serial], updates: int | None = None, dtype: str = "float32"
    ) -> None:
        self.comm, self.updates, self.dtype, self.tolerance = comm, updates, dtype, TOLERANCES[dtype]
        self.epochs: tuple[int, int] | None = None
        self.compared, self.largest = 0, 0.0
        self._reference: Serial | None = None
        with comm.together():
            if comm.rank == 0:
                self._reference = reference()

    def compare(self, epoch: int, lr: float, losses: Sequence[float]) -> None:
        """Train an epoch serially, with this step size, and compare the loss of each of its updates with
        these, as far as they are to be compared. Collective.

        Raises:
            CheckFailedError: they differ by more than the tolerance (on every rank).
        """
        wanted = len(losses) if self.updates is None else min(len(losses), self.updates - self.compared)
        if wanted <= 0:
            self._reference = None  # its memory is of use elsewhere
            return
        message = None
        with self.comm.together():
            if self._reference is not None:
                expected = self._reference.epoch(epoch, lr)
                message = self._differs(epoch, losses[:wanted], expected, len(losses))
        message = self.comm.share(message)
        if message is not None:
            raise CheckFailedError(message, epoch)
        self.compared += wanted
        self.epochs = (epoch if self.epochs is None else self.epochs[0], epoch)

    def record(self) -> records.Checked:
        """Return what was compared and how it went, on rank 0, for the last line of a log."""
        return {
            "updates": self.compared, "epochs": self.epochs, "allowed": self.tolerance,
            "largest_difference": self.largest,
        }  # fmt: skip

    def verdict(self) -> str:
        """Return the outcome in one line, on rank 0."""
        first, last = self.epochs or (0, 0)
        epochs = f"epochs {first} to {last}" if first != last else f"epoch {last}"
        updates = "1 update" if self.compared == 1 else f"{self.compared} updates"
        difference = f"largest relative difference {self.largest:.1e}, allowed {self.tolerance:.0e}"
        return f"check: the losses of {updates} in {epochs} equal those of a serial training; {difference}"

    def _differs(
        self, epoch: int, losses: Sequence[float], serial: Iterator[float], updates: int
    ) -> str | None:
        """Return the problem, if there is one, with the losses of the first of an epoch's updates."""
        for number, loss in enumerate(losses, 1):
            where = f"epoch {epoch}" if updates == 1 else f"epoch {epoch}, update {number}"
            try:
                expected = next(serial)
            except NotFiniteError as error:
                return f"{where}: loss {loss:.9g}, but serially {error}"
            except SampleError as error:
                return f"{where}: {error}"
            difference = abs(loss - expected) / max(abs(expected), LEAST)
            self.largest = max(self.largest, difference)
            if not difference <= self.tolerance:  # so that NaN fails
                apart = f"relative difference {difference:.2g}, allowed {self.tolerance:.0e}"
                late = self.dtype == "float32" and self.compared + number > EARLY
                hint = "; rounding may have grown: see if --dtype float64 agrees" if late else ""
                return (
                    f"{where}: loss {loss:.9g}, expected {expected:.9g}, as trained serially; {apart}{hint}"
                )
        if len(losses) == updates:  # the last update
            for extra in serial:
                return f"epoch {epoch}: {updates} updates, and serially one more, of loss {extra:.9g}"
        return None
