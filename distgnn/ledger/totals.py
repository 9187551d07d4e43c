"""Totals of what ranks communicated and computed, and tables of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from distgnn.ledger.rank_books import settle

PHASES = ("spmm", "gemm", "comm")
#: What adds up over calls and ranks, and what tables have of it.
COUNTED = ("calls", "messages", "words", "bytes", "far", "flops", "touched", "seconds", "flight")
COLUMNS = ("calls", "messages", "words", "bytes", "flops", "seconds")
NOTHING = [0] * len(COLUMNS)
Key = tuple[str, str, str, str]  # phase, operation, group, matrix
Peers = tuple[int, ...]  # ranks of a grid


@dataclass(slots=True)
class Entry:
    """Totals of one operation on one matrix over one group of ranks."""

    calls: int = 0
    messages: int = 0
    words: Fraction | int = 0
    bytes: Fraction | int = 0
    far: Fraction | int = 0
    flops: int = 0
    touched: int = 0
    seconds: float = 0.0
    flight: float = 0.0
    # words, bytes and flops up to the latest event
    at_event: tuple[Fraction | int, Fraction | int, int] = (0, 0, 0)
    # words, shared equally by these ranks
    peers: defaultdict[Peers, Fraction | int] = field(default_factory=lambda: defaultdict(int))


class Totals:
    """Totals of what ranks communicated and computed. ``print`` shows a table by operation and matrix.

    Attributes:
        words, bytes, messages, calls: of communication; far: words of it that came over the network, from
            another node; flops: of computation.
    """

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = defaultdict(Entry)

    def _total(self, name: str) -> Any:
        return sum(getattr(entry, name) for key, entry in self._entries.items() if key[0] == "comm")

    @property
    def words(self) -> int:
        """Payload elements charged, indices and values alike."""
        return round(self._total("words"))

    @property
    def far(self) -> int:
        """Words charged that crossed the network: the rank that sent them stands on another node."""
        return round(self._total("far"))

    @property
    def bytes(self) -> int:
        """Bytes charged: words by the size of their type."""
        return round(self._total("bytes"))

    @property
    def messages(self) -> int:
        """Messages received: 1 for a broadcast, else p - 1, twice that for an all-reduce."""
        return self._total("messages")

    @property
    def calls(self) -> int:
        """Communication calls, of whatever number of messages."""
        return self._total("calls")

    @property
    def flops(self) -> int:
        """Floating-point operations of all computation."""
        return sum(entry.flops for entry in self._entries.values())

    @property
    def touched(self) -> dict[str, int]:
        """Bytes that products and packing read and wrote, by phase, as if no cache kept any.

        A sparse product reads a row of B for every non-zero.
        """
        totals: dict[str, int] = defaultdict(int)
        for (phase, *_), entry in self._entries.items():
            totals[phase] += entry.touched
        return dict(totals)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase: ``spmm``, ``gemm``, ``comm``, and others there were. All zero without timing."""
        settle()
        totals = dict.fromkeys(PHASES, 0.0)
        for (phase, *_), entry in self._entries.items():
            if entry.seconds:
                totals[phase] = totals.get(phase, 0.0) + entry.seconds
        return totals

    def add(self, other: Totals, times: int = 1) -> None:
        """Add what another ledger was charged, so many times over."""
        settle()
        for key, e in other._entries.items():
            entry = self._entries[key]
            for name in COUNTED:
                if some := getattr(e, name):
                    setattr(entry, name, getattr(entry, name) + times * some)
            for peers, words in e.peers.items():
                entry.peers[peers] += times * words

    def entries(self) -> list[dict[str, Any]]:
        """Return one record per key for logs."""
        settle()
        return [
            {
                "phase": phase, "operation": operation, "group": group, "matrix": matrix, "calls": e.calls,
                "messages": e.messages, "words": round(e.words), "far": round(e.far),
                "bytes": round(e.bytes), "flops": e.flops, "seconds": e.seconds, "flight": e.flight,
            }
            for (phase, operation, group, matrix), e in sorted(self._entries.items())
        ]  # fmt: skip

    def _rows(self) -> dict[tuple[str, str], list[Any]]:
        """Return calls, messages, words, bytes, flops and seconds by operation and matrix, and of all."""
        settle()
        rows: dict[tuple[str, str], list[Any]] = defaultdict(lambda: NOTHING)
        for (phase, operation, _, matrix), entry in sorted(self._entries.items(), key=lambda kept: kept[0]):
            of_all = ("all communication", "") if phase == "comm" else ("all computation", "")
            for key in ((operation, matrix), of_all):
                rows[key] = [old + getattr(entry, name) for old, name in zip(rows[key], COLUMNS, strict=True)]
        return dict(sorted(rows.items(), key=lambda row: row[0][0].startswith("all ")))

    def __str__(self) -> str:
        return table({"": self})


class OverRanks:
    """Totals of the ranks of a grid. ``print`` shows a table of their sum and of the busiest rank.

    Attributes:
        ranks: the totals of each; sum: of all; busiest: of the rank that received the most bytes, or where
            none received any did the most flops; rank: its number.
    """

    def __init__(self, ranks: list[Totals]) -> None:
        self.ranks, self.sum = ranks, Totals()
        for totals in ranks:
            self.sum.add(totals)
        self.rank = max(range(len(ranks)), key=lambda rank: (ranks[rank].bytes, ranks[rank].flops))
        self.busiest = ranks[self.rank]

    def __str__(self) -> str:
        return table({f"{len(self.ranks)} ranks": self.sum, f"rank {self.rank}": self.busiest})


def table(parts: Mapping[str, Totals]) -> str:
    """Return a table of totals by operation and matrix, which stand side by side, each under its name.

    Columns of nothing but zeros are left out.
    """
    given = {name: totals._rows() for name, totals in parts.items()}
    keys = list(dict.fromkeys(key for rows in given.values() for key in rows))
    keys.sort(key=lambda key: key[0].startswith("all "))
    numbers = {
        name: {x: [rows.get(key, NOTHING)[place] for key in keys] for place, x in enumerate(COLUMNS)}
        for name, rows in given.items()
    }
    used = [column for column in COLUMNS if any(any(part[column]) for part in numbers.values())]
    columns = [["", "operation", *(key[0] for key in keys)], ["", "matrix", *(key[1] for key in keys)]]
    for name, part in numbers.items():
        for column in used:
            shown = [f"{x:,.3f}" if column == "seconds" else f"{round(x):,}" for x in part[column]]
            columns.append([name if column == used[0] else "", column, *shown])
    widths = [max(map(len, column)) for column in columns]
    sides = [str.ljust, str.ljust, *[str.rjust] * len(columns)]
    lines = (
        "  ".join(pad(cell, width) for pad, cell, width in zip(sides, row, widths, strict=False))
        for row in zip(*columns, strict=True)
    )
    return "\n".join(line.rstrip() for line in lines if line.strip())
