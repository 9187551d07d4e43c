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
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

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


class Ledger:
    """Counts everything executed by this rank while it is open.

    Args:
        timing: also measure seconds per phase.

    Attributes ``words``, ``bytes``, ``messages``, ``calls`` cover communication, ``flops`` computation; all are this rank's own.
    """

    def __init__(self, timing: bool = False) -> None:
        self.timing = timing
        self._entries: dict[tuple[str, str, str], Entry] = defaultdict(Entry)

    def __enter__(self) -> Ledger:
        _open.append(self)
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

    def entries(self) -> list[dict[str, Any]]:
        """One record per (phase, operation, group) for logs."""
        return [
            {
                "phase": phase, "operation": operation, "group": group, "calls": e.calls, "messages": e.messages,
                "words": round(e.words), "bytes": round(e.bytes), "flops": e.flops, "seconds": e.seconds,
            }
            for (phase, operation, group), e in sorted(self._entries.items())
        ]  # fmt: skip


_open: list[Ledger] = []


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
    try:
        yield
    finally:
        if synchronize is not None:
            synchronize()
        seconds = time.perf_counter() - start
        for ledger in timing:
            ledger._entries[phase, operation, group].seconds += seconds


def held(purpose: str, nbytes: int) -> None:
    """Memory of this purpose was taken, or with a negative number given back."""
