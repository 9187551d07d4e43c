"""The steps of a rank's program, as its ledger is told of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import NamedTuple

from distgnn import ledger
from distgnn.ledger import Key, Ledger, Peers, Totals

OTHER = "other"  # the phase of what no charge accounts for
ROUNDED = "spmm, 16 bits"  # the operation of a sparse product that reads them


class ProgramStep(NamedTuple):
    """A step of a rank's program: a charge, a wait for what was charged before, a message that is sent in an
    exchange, for which others are charged, or a kernel of a device that is not charged.

    Attributes:
        nbytes: of a transfer; of a wait, so many of those that this key still expects, or -1 for all.
        shape: of the operands, see :func:`ledger.charge`.
    """

    phase: str  # or "wait" or "sent"
    operation: str
    group: str
    matrix: str
    nbytes: float = 0
    messages: int = 0
    flops: int = 0
    touched: int = 0
    shape: tuple[int, ...] = ()


class Recorder(Ledger):
    """A ledger that keeps a :class:`ProgramStep` for everything charged, sent and waited for in ``steps``."""

    def __init__(self, timing: bool = False) -> None:
        super().__init__(timing)
        self.steps: list[ProgramStep] = []

    def charged(
        self, key: Key, words: Fraction | int, nbytes: Fraction | int, messages: int, flops: int,
        touched: int, peers: Peers | Mapping[int, Fraction | int], shape: tuple[int, ...],
        far: Fraction | int = 0,
    ) -> None:  # fmt: skip
        """Count a charge and keep it as a step."""
        super().charged(key, words, nbytes, messages, flops, touched, peers, shape, far)
        self.steps.append(ProgramStep(*key, float(nbytes), messages, flops, touched, shape))

    def sent(self, key: Key, nbytes: int) -> None:
        """Keep a message; those sent one after another are one step."""
        what = ("sent", *key[1:])
        if self.steps and self.steps[-1][:4] == what:
            last = self.steps[-1]
            self.steps[-1] = last._replace(nbytes=last.nbytes + nbytes, messages=last.messages + 1)
        else:
            self.steps.append(ProgramStep(*what, nbytes, 1))

    def waited(self, key: Key, nbytes: int) -> None:
        """Keep a wait."""
        self.steps.append(ProgramStep("wait", *key[1:], nbytes))

    def add(self, other: Totals, times: int = 1) -> None:
        """Add the totals and the steps of another ledger, so many times over."""
        super().add(other, times)
        if isinstance(other, Recorder):
            self.steps += other.steps * times


def launched(operation: str, touched: int) -> None:
    """Keep a kernel that a device is given beside what is charged, in every open recorder, with the bytes
    that it reads and writes.
    """
    for book in ledger.books().open:
        if isinstance(book, Recorder):
            book.steps.append(ProgramStep(OTHER, operation, "", "", touched=touched))


def annotate(operation: str) -> None:
    """Name the operation of the step that was charged last, in every open recorder."""
    for book in ledger.books().open:
        if isinstance(book, Recorder):
            book.steps[-1] = book.steps[-1]._replace(operation=operation)


@contextmanager
def aside() -> Iterator[Recorder]:
    """Charge what is charged inside to a recorder alone, which the books take with :func:`add`."""
    books = ledger.books()
    outer, books.open = books.open, []
    try:
        with Recorder() as once:
            yield once
    finally:
        books.open = outer


def add(once: Recorder, times: int = 1) -> None:
    """Add what was charged aside to every open ledger, so many times over."""
    for book in ledger.books().open:
        book.add(once, times)


@contextmanager
def repeated(times: int) -> Iterator[None]:
    """Charge what is charged inside so many times: one turn of a loop stands for all."""
    if times == 1:
        yield
        return
    with aside() as once:
        yield
    add(once, times)
