"""What was communicated and computed: calls, messages, words, bytes, flops, seconds.

Counting is always on; timing is opt-in and touches nothing but clocks. Ledgers are context managers and nest: an operation is
charged to every ledger that is open, so that a caller can count one product inside a counted epoch inside a counted run.

What a collective is charged, per rank, for a message of ``m`` words in a group of ``p`` (DESIGN: the bandwidth-optimal form):

    broadcast          m on every rank but the root          all-gather       m - own part
    reduce             m on every rank but the root          reduce-scatter   (p-1)/p m
    all-to-allv        what is received from others          all-reduce       2 (p-1)/p m
    send, receive      what is received

A reduce is the mirror image of a broadcast: its non-root ranks are charged the words they send. Fractions are kept exact and
rounded only when totals are read, so totals agree with the formulas to the word.

Seconds are exclusive: a region timed inside another takes its time off the outer one, so that driving messages in the middle of a
product counts as communication. Communication's seconds are those in which a rank waits for or drives messages, what is *exposed*
of it; how long messages were under way, whoever waited, is their *flight*.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

PHASES = ("spmm", "gemm", "comm")


@dataclass
class Entry:
    """Totals of one operation over one group of ranks."""

    calls: int = 0
    messages: int = 0
    words: Fraction = field(default_factory=Fraction)
    bytes: Fraction = field(default_factory=Fraction)
    flops: int = 0
    seconds: float = 0.0
    flight: float = 0.0


class Event(NamedTuple):
    """Something that took time on this rank, in seconds of ``time.perf_counter``."""

    phase: str
    operation: str
    group: str
    start: float
    stop: float
    flight: bool  # a transfer that was under way, whether or not anybody waited


class Ledger:
    """Counts everything executed by this rank while it is open.

    Args:
        timing: also measure seconds per phase.
        trace: also keep an :class:`Event` for everything measured, in ``events``; implies timing.

    Attributes ``words``, ``bytes``, ``messages``, ``calls`` cover communication, ``flops`` computation; all are this rank's own.
    ``peak``: bytes by purpose at the moment when those told to :func:`held` were most.
    """

    def __init__(self, timing: bool = False, trace: bool = False) -> None:
        self.timing = timing or trace
        self.events: list[Event] | None = [] if trace else None
        self.peak: dict[str, int] = {}
        self._entries: dict[tuple[str, str, str], Entry] = defaultdict(Entry)

    def __enter__(self) -> Ledger:
        _open.append(self)
        self.peak = dict(_held)
        return self

    def __exit__(self, *exception: object) -> None:
        # Nested ledgers may be closed in any order: drop this one, wherever it stands.
        _open.remove(self)

    def _total(self, name: str) -> Any:
        return sum(getattr(entry, name) for key, entry in self._entries.items() if key[0] == "comm")

    @property
    def words(self) -> int:
        """Payload elements charged, indices and values alike."""
        return round(self._total("words"))

    @property
    def bytes(self) -> int:
        return round(self._total("bytes"))

    @property
    def messages(self) -> int:
        """Messages received in the textbook form of each collective: 1 for a broadcast, else p - 1, twice that for all-reduce."""
        return self._total("messages")

    @property
    def calls(self) -> int:
        return self._total("calls")

    @property
    def flops(self) -> int:
        return sum(entry.flops for entry in self._entries.values())

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds per phase: ``spmm``, ``gemm``, ``comm``. All zero unless timing is on."""
        totals = dict.fromkeys(PHASES, 0.0)
        for (phase, _, _), entry in self._entries.items():
            totals[phase] += entry.seconds
        return totals

    @property
    def flight(self) -> float:
        """Seconds that transfers were under way, added up over them."""
        return self._total("flight")

    def entries(self) -> list[dict[str, Any]]:
        """One record per (phase, operation, group) for logs."""
        return [
            {
                "phase": phase, "operation": operation, "group": group, "calls": e.calls, "messages": e.messages,
                "words": round(e.words), "bytes": round(e.bytes), "flops": e.flops, "seconds": e.seconds,
                "flight": e.flight,
            }
            for (phase, operation, group), e in sorted(self._entries.items())
        ]  # fmt: skip


_open: list[Ledger] = []
_nested: list[float] = []  # seconds of timed regions inside each timed region that is open
_held: dict[str, int] = defaultdict(int)


def charge(
    phase: str, operation: str, group: str = "", *, words: Fraction | int = 0, itemsize: int = 0, messages: int = 0,
    flops: int = 0,
) -> None:  # fmt: skip
    """Charge a call of ``operation`` to every open ledger: ``words`` elements of ``itemsize`` bytes received, ``flops`` done."""
    for ledger in _open:
        entry = ledger._entries[phase, operation, group]
        entry.calls += 1
        entry.messages += messages
        entry.words += words
        entry.bytes += words * itemsize
        entry.flops += flops


@contextmanager
def timed(phase: str, operation: str, group: str = "", synchronize: Any = None) -> Iterator[None]:
    """Time a region for the open ledgers that asked for it; free when none did.

    ``synchronize`` is called around the region only where a clock needs it (GPU kernels); results never depend on it.
    """
    timing = [ledger for ledger in _open if ledger.timing]
    if not timing:
        yield
        return
    if synchronize is not None:
        synchronize()
    start = time.perf_counter()
    _nested.append(0.0)
    try:
        yield
    finally:
        if synchronize is not None:
            synchronize()
        stop = time.perf_counter()
        inside = _nested.pop()
        if _nested:
            _nested[-1] += stop - start
        for ledger in timing:
            ledger._entries[phase, operation, group].seconds += stop - start - inside
            if ledger.events is not None:
                ledger.events.append(Event(phase, operation, group, start, stop, False))


def flight(operation: str, group: str, start: float, stop: float) -> None:
    """A transfer was under way between these seconds of ``time.perf_counter``."""
    for ledger in _open:
        if ledger.timing:
            ledger._entries["comm", operation, group].flight += stop - start
        if ledger.events is not None:
            ledger.events.append(Event("comm", operation, group, start, stop, True))


def held(purpose: str, nbytes: int) -> None:
    """Memory of this purpose was taken, or with a negative number given back."""
    _held[purpose] += nbytes
    total = sum(_held.values())
    for ledger in _open:
        if total > sum(ledger.peak.values()):
            ledger.peak = dict(_held)
