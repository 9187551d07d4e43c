"""The comparison of a run's losses with those of a training on one rank beside it, by epoch, on rank 0."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from math import isfinite

from distgnn import ledger, records
from distgnn.comm.group import Comm
from distgnn.errors import TrainingError
from distgnn.nn.finite import NotFiniteError
from distgnn.train.serial import Losses, SampleError, Serial
from distgnn.train.settings import Settings

#: Relative differences that are taken for rounding, by the type of numbers on their way between ranks or in
#: products (benchmarks/results/check.md; of 16 bits benchmarks/results/sixteen-bits.md).
TOLERANCES = {"float32": 2e-5, "float64": 1e-11, "bfloat16": 1e-2, "float16": 1e-2, "tf32": 1e-2}
#: Relative errors of parameters that stand for that rounding.
ERRORS = {"float32": 2**-21, "float64": 2**-51, "bfloat16": 2**-8, "float16": 2**-11, "tf32": 2**-11}
#: Serial trainings with such errors, which tell how far rounding alone moves the losses of this training, and
#: how many times as far as the farthest of them a loss may be.
SHAKEN, FACTOR = 8, 8
#: Smaller losses are compared like one of this size: theirs are differences of logits, which are larger.
LEAST = 1e-3


def rounding(settings: Settings) -> str:
    """Return the key of TOLERANCES of a run."""
    return settings.wire or ("tf32" if settings.tf32 else settings.dtype)


class CheckFailedError(TrainingError):
    """The distributed loss is not the serial one; raised on every rank."""


class SerialCheck:
    """The reference for a run. All of the graph and its features must fit on rank 0. Collective.

    A loss farther from the reference's than the tolerance may still be right, as training makes rounding
    larger: Adam makes whole steps of gradients that are nothing but rounding. Then shaken copies of the
    reference make the same updates, and what they differ by, times FACTOR, is allowed.

    Args:
        comm: the ranks of the run.
        reference: makes the serial training. Called on rank 0 only; must not communicate. What the call
            raises is raised on every rank.
        updates: the losses of how many to compare; None: of all.
        dtype: of the run, or what it rounds to, by which TOLERANCES has the largest relative difference that
            is no error.

    Attributes:
        epochs: the first and the last of which a loss was compared; None before. compared: updates so far.
        largest: the largest relative difference so far, on rank 0; allowed: at most this, there.
    """

    def __init__(
        self, comm: Comm, reference: Callable[[], Serial], updates: int | None = None, dtype: str = "float32"
    ) -> None:
        self.comm, self.updates, self.dtype, self.tolerance = comm, updates, dtype, TOLERANCES[dtype]
        self.epochs: tuple[int, int] | None = None
        self.compared, self.largest, self.allowed = 0, 0.0, self.tolerance
        self._reference: Serial | None = None
        self._shaken: list[Losses] = []  # made when they are first asked for
        self._past: list[tuple[int, float, list[float], bool]] = []  # epochs that these have not made
        self._spreads, self._spread = [0.0], 0.0  # of the updates of an epoch, and the largest before it
        with comm.together(), ledger.apart():
            if comm.rank == 0:
                self._reference = reference()

    def compare(self, epoch: int, lr: float, losses: Sequence[float]) -> None:
        """Train an epoch serially, with this step size, and compare the loss of each of its updates with
        these, as far as they are to be compared. Collective.

        Raises:
            CheckFailedError: they differ by more than is allowed (on every rank).
        """
        wanted = len(losses) if self.updates is None else min(len(losses), self.updates - self.compared)
        if wanted <= 0:
            if self._reference is not None:  # its memory is of use elsewhere
                self._reference, self._shaken = None, []
                gc.collect()  # matrices and their transposes hold each other
            return
        message = None
        with self.comm.together(), ledger.apart():
            if self._reference is not None:
                message = self._differs(epoch, lr, losses[:wanted], wanted == len(losses))
        message = self.comm.share(message)
        if message is not None:
            raise CheckFailedError(message, epoch)
        self.compared += wanted
        self.epochs = (epoch if self.epochs is None else self.epochs[0], epoch)

    def record(self) -> records.Checked:
        """Return what was compared and how it went, on rank 0, for the last line of a log."""
        return {
            "updates": self.compared, "epochs": self.epochs, "allowed": self.allowed,
            "largest_difference": self.largest,
        }  # fmt: skip

    def verdict(self) -> str:
        """Return the outcome in one line, on rank 0."""
        first, last = self.epochs or (0, 0)
        epochs = f"epochs {first} to {last}" if first != last else f"epoch {last}"
        updates = "1 update" if self.compared == 1 else f"{self.compared} updates"
        difference = f"largest relative difference {self.largest:.1e}, allowed {self.allowed:.0e}"
        return f"check: the losses of {updates} in {epochs} equal those of a serial training; {difference}"

    def _differs(self, epoch: int, lr: float, losses: Sequence[float], whole: bool) -> str | None:
        """Return the problem, if there is one, with the losses of an epoch's first updates, or all."""
        assert self._reference is not None
        expected, problem = taken(self._reference.epoch(epoch, lr), len(losses), whole)
        self._past.append((epoch, lr, expected, whole))
        for number, (loss, serial) in enumerate(zip(losses, expected, strict=False), 1):
            where = f"epoch {epoch}" if whole and len(losses) == 1 else f"epoch {epoch}, update {number}"
            difference = apart(loss, serial)
            self.largest = max(self.largest, difference)
            if not difference <= self.allowed:  # so that NaN fails
                self.allowed = max(self.allowed, FACTOR * self._rounding(number))
            if not difference <= self.allowed:
                far = f"relative difference {difference:.2g}, allowed {self.allowed:.0e}"
                return f"{where}: loss {loss:.9g}, expected {serial:.9g}, as trained serially; {far}"
        if isinstance(problem, NotFiniteError) and len(expected) < len(losses):
            return f"epoch {epoch}: loss {losses[len(expected)]:.9g}, but serially {problem}"
        if len(expected) != len(losses) and problem is None:
            return f"epoch {epoch}: {len(losses)} updates, expected {len(expected)}, as trained serially"
        return None if problem is None else f"epoch {epoch}: {problem}"

    def _rounding(self, number: int) -> float:
        """Return the largest difference that errors of parameters have made up to an update of this epoch."""
        if self._reference is not None and not self._shaken:
            self._shaken = [self._reference.shaken(seed, ERRORS[self.dtype]) for seed in range(SHAKEN)]
        for epoch, lr, expected, whole in self._past:
            runs = [taken(shaken.epoch(epoch, lr), len(expected), whole)[0] for shaken in self._shaken]
            self._spread = max(self._spread, *self._spreads)
            self._spreads = []
            for at, loss in enumerate(expected):
                differences = (apart(losses[at], loss) for losses in runs if at < len(losses))
                self._spreads.append(max(filter(isfinite, differences), default=0.0))
        self._past.clear()
        return max(self._spread, *self._spreads[:number])


def apart(loss: float, expected: float) -> float:
    """Return the relative difference of a loss."""
    return abs(loss - expected) / max(abs(expected), LEAST)


def taken(serial: Iterator[float], count: int, whole: bool) -> tuple[list[float], Exception | None]:
    """Return so many losses of an epoch, and what ended it. Of a whole epoch make the last update, and return
    a loss beyond these.
    """
    losses: list[float] = []
    try:
        for loss in serial:
            losses.append(loss)
            if len(losses) == count + whole:
                break
    except (NotFiniteError, SampleError) as error:
        return losses, error
    return losses, None
