"""Ledgers of communication and computation: calls, messages, words, bytes, flops, seconds.

Counting is always on; timing is opt-in and touches nothing but clocks. Ledgers are context managers and nest:
an operation is charged to every ledger that is open, so that a caller can count one product inside a counted
epoch inside a counted run.

What a collective is charged, per rank, for a message of ``m`` words in a group of ``p`` (DESIGN: the
bandwidth-optimal form):

    broadcast          m on every rank but the root          all-gather       m - own part
    reduce             m on every rank but the root          reduce-scatter   (p-1)/p m
    all-to-all(v)      what is received from others          all-reduce       2 (p-1)/p m
    send, receive      what is received

A reduce is the mirror image of a broadcast: its non-root ranks are charged the words they send. Fractions are
kept exact and rounded only when totals are read, so totals agree with the prices to the word.

Every word charged has a peer: of a broadcast the root that owns the panel, whoever handed it on; of an
all-gather, all-to-all(v) or receive the rank whose words they are; of a reduce the root that they go to; of
an all-reduce and a reduce-scatter all others of the group in equal shares, or by tiers the ranks that really
send (see ``comm/tiers.py``). :meth:`Ledger.traffic` has them by
sender and receiver.

Totals are kept by phase, operation, group and *matrix*: "A" (its panels), "H" and, in an adjoint, "G" (panels
or rows), "T" (panels of T and G in products with weights), "sums" (partial sums of products), "reductions"
(sums over all rows of dense matrices), "weights", "gradients" (of weights), "rows" (row numbers and lengths),
"features" (rows of minibatches), "adjacency" (rows of A in sampling, shards that a node reads together),
"loss", "norm" (of gradients, and sums of rows for layer norm), "probe", or "" where nobody said.

Seconds are exclusive: a region timed inside another takes its time off the outer one, so that driving
messages in the middle of a product counts as communication. Communication's seconds are those in which a rank
waits for or drives messages, what is *exposed* of it; *flight* is how long transfers took altogether. Work
of a device is timed by marks in its queue, which are read when somebody asks for the seconds: nothing waits
for the device before.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

PHASES = ("spmm", "gemm", "comm")
MOST_EVENTS = 200_000  # that a ledger keeps, the latest: about 50 MB
#: What adds up over calls and ranks, and what tables have of it.
COUNTED = ("calls", "messages", "words", "bytes", "far", "flops", "touched", "seconds", "flight")
COLUMNS = ("calls", "messages", "words", "bytes", "flops", "seconds")
NOTHING = [0] * len(COLUMNS)
Key = tuple[str, str, str, str]  # phase, operation, group, matrix
Peers = tuple[int, ...]  # ranks of a grid
#: A function that gives a time, and one that gives the seconds between two of these.
Clock = tuple[Callable[[], Any], Callable[[Any, Any], float]]
HOST: Clock = (lambda: time.perf_counter(), lambda start, end: end - start)
MOST_PENDING = 20_000  # regions of a device whose marks are kept before they are read
L = TypeVar("L", bound="Ledger")


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


class Event(NamedTuple):
    """An interval that took time, by ``time.perf_counter``, and its key's charges since the event before.

    An interval of a device begins when the device comes to it, from the ledger's first such interval on.
    """

    phase: str
    operation: str
    group: str
    start: float
    stop: float
    flight: bool  # a transfer that was under way, whether or not anybody waited
    words: int = 0
    bytes: int = 0
    flops: int = 0
    matrix: str = ""


class Union:
    """The length of a union of intervals, which are added in the order in which they end."""

    def __init__(self) -> None:
        self._settled = 0.0  # what the oldest add up to
        self._apart: list[tuple[float, float]] = []

    def add(self, start: float, stop: float) -> None:
        """Add another interval, which ends no earlier than those before."""
        apart = self._apart
        while apart and apart[-1][1] >= start:
            start = min(start, apart.pop()[0])
        apart.append((start, stop))
        if len(apart) > 2000:  # a bound for long runs; nothing reaches back over a thousand gaps
            self._settled += sum(stop - start for start, stop in apart[:1000])
            del apart[:1000]

    @property
    def length(self) -> float:
        """Seconds that lie in some interval."""
        return self._settled + sum(stop - start for start, stop in self._apart)


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
                setattr(entry, name, getattr(entry, name) + times * getattr(e, name))
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


class Ledger(Totals):
    """Counts everything executed by this rank while it is open.

    Examples:
        >>> with Ledger() as ledger:
        ...     charge("comm", "bcast", "rows", "H", words=10, itemsize=4, messages=1)
        >>> ledger.words, ledger.bytes, ledger.messages
        (10, 40, 1)

    Args:
        timing: also measure seconds per phase.
        trace: also keep an :class:`Event` for everything measured, in ``events``, of which the latest
            ``MOST_EVENTS`` and one more stay; implies timing.

    A subclass may extend :meth:`charged`, :meth:`sent` and :meth:`waited`, which are called as things happen.

    Attributes, all of this rank, beside those of :class:`Totals`:
        peak: bytes by purpose at the moment when :func:`held` had counted most.
        loaded: bytes read from the files of stores, by the name of the dataset.
    """

    def __init__(self, timing: bool = False, trace: bool = False) -> None:
        self.timing = timing or trace
        self.events: deque[Event] | None = deque(maxlen=MOST_EVENTS + 1) if trace else None
        self.peak: dict[str, int] = {}
        self.loaded: dict[str, int] = defaultdict(int)
        self._under_way = Union()
        self._origin: tuple[Any, float] | None = None  # a mark of a device's clock, and the host's time then
        super().__init__()

    def __enter__(self: L) -> L:
        books = _books.get()
        books.open.append(self)
        self.peak = dict(books.held)
        return self

    def __exit__(self, *exception: object) -> None:
        # Nested ledgers may be closed in any order: drop this one, wherever it stands.
        _books.get().open.remove(self)
        if not exception or exception[0] is None:
            settle()

    @property
    def exposed(self) -> float:
        """Seconds that this rank waited for communication or drove it."""
        return self.seconds["comm"]

    @property
    def flight(self) -> float:
        """Seconds in which something was under way or waited for; ``exposed`` is what was not hidden."""
        return self._under_way.length

    def charged(
        self, key: Key, words: Fraction | int, nbytes: Fraction | int, messages: int, flops: int,
        touched: int, peers: Peers | Mapping[int, Fraction | int], shape: tuple[int, ...],
        far: Fraction | int = 0,
    ) -> None:  # fmt: skip
        """Add a call to the totals of its key; see :func:`charge`."""
        entry = self._entries[key]
        entry.calls += 1
        entry.messages += messages
        if words:  # sums of fractions are slow
            entry.words += words
            entry.bytes += nbytes
            entry.far += far
            if isinstance(peers, tuple):  # as nearly always
                entry.peers[peers] += words
            else:
                for peer, some in peers.items():
                    entry.peers[peer,] += some
        entry.flops += flops
        entry.touched += touched

    def sent(self, key: Key, nbytes: int) -> None:
        """Do nothing: a message is counted where it is received. See :func:`sent`."""

    def waited(self, key: Key, nbytes: int) -> None:
        """Do nothing: a wait is no traffic. See :func:`waited`."""

    def _measured(self, key: Key, region: Region) -> Callable[[], None]:
        """Note a timed region that is over; return what adds its seconds."""
        entry = self._entries[key]
        if key[0] == "comm":
            self._under_way.add(*region.on_host)
        words, nbytes, flops = entry.at_event
        charged = round(entry.words - words), round(entry.bytes - nbytes), entry.flops - flops
        if self.events is not None:
            if region.clock is not HOST:
                self._origin = self._origin or (region.start, region.on_host[0])
            entry.at_event = entry.words, entry.bytes, entry.flops

        def settled() -> None:
            seconds = region.seconds
            entry.seconds += max(seconds - sum(inner.seconds for inner in region.inside), 0.0)
            if self.events is not None:
                start = region.began(self._origin)
                self.events.append(Event(*key[:3], start, start + seconds, False, *charged, key[3]))

        return settled

    def add(self, other: Totals, times: int = 1) -> None:
        """Add what another ledger was charged, so many times over."""
        super().add(other, times)
        if isinstance(other, Ledger) and sum(other.peak.values()) > sum(self.peak.values()):
            self.peak = dict(other.peak)

    def over(self, grid: Any) -> OverRanks:
        """Return what all ranks of a grid were charged, added up, and what the busiest was. Collective."""
        settle()
        kept = {key: [getattr(e, name) for name in COUNTED] for key, e in self._entries.items()}
        ranks = []
        for counts in grid.world.gather_objects(kept):
            totals = Totals()
            for key, numbers in counts.items():
                totals._entries[key] = Entry(**dict(zip(COUNTED, numbers, strict=True)))
            ranks.append(totals)
        return OverRanks(ranks)

    def traffic(self, rank: int) -> dict[tuple[int, int], int]:
        """Return words by (sender, receiver), ranks of the grid, as charged to this rank of it.

        What all ranks are charged adds up to who sent whom how much.
        """
        words_by_route: dict[tuple[int, int], Fraction | int] = defaultdict(int)
        for (_, operation, *_), entry in self._entries.items():
            for peers, words in entry.peers.items():
                for peer in peers:
                    route = (rank, peer) if operation == "reduce" else (peer, rank)
                    words_by_route[route] += Fraction(words, len(peers))
        return {route: round(words) for route, words in sorted(words_by_route.items())}


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


class BeyondRoom(Exception):
    """More memory was counted than a rank may hold; ``nbytes``: how much."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.nbytes = nbytes


class Region:
    """A timed region, by one clock.

    Attributes:
        start: its mark; on_host: when it was entered and left, by ``time.perf_counter``; inside: regions in
            it whose seconds are not its own: of the same clock, in one of a device also the host's.
    """

    __slots__ = ("_seconds", "clock", "inside", "on_host", "start", "stop")

    def __init__(self, clock: Clock) -> None:
        self.clock, self.inside = clock, list[Region]()
        self.start = clock[0]()
        self.on_host = (self.start if clock is HOST else time.perf_counter(),) * 2
        self.stop: Any = None
        self._seconds: float | None = None

    def end(self) -> None:
        """Mark the end of the region."""
        self.stop = self.clock[0]()
        self.on_host = self.on_host[0], self.stop if self.clock is HOST else time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds from mark to mark, for which a device is waited."""
        if self._seconds is None:
            self._seconds = self.clock[1](self.start, self.stop)
        return self._seconds

    def began(self, origin: tuple[Any, float] | None) -> float:
        """Return the host's time of the start, of a device's clock by a mark and the host's time then."""
        if self.clock is HOST or origin is None:
            return self.on_host[0]
        return origin[1] + self.clock[1](origin[0], self.start)


@dataclass
class Books:
    """The books of one rank.

    Attributes:
        open: the ledgers that are open; regions: timed regions that are open, the outermost first; pending:
            what adds the seconds of regions that are over, whose marks nobody has read; held: bytes of memory
            by purpose; most: bytes beyond which :func:`held` raises :class:`BeyondRoom`.
    """

    open: list[Ledger] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    pending: list[Callable[[], None]] = field(default_factory=list)
    held: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    most: float = math.inf


#: One for the whole process, but in :func:`apart`.
_books: ContextVar[Books] = ContextVar("books", default=Books())  # noqa: B039


def books() -> Books:
    """Return the books that this thread keeps."""
    return _books.get()


@contextmanager
def apart(books: Books | None = None) -> Iterator[Books]:
    """Keep books of their own, new or these, for what this thread does inside. Other threads keep theirs."""
    before, books = _books.get(), books or Books()
    _books.set(books)
    try:
        yield books
    finally:
        _books.set(before)


def charge(
    phase: str, operation: str, group: str = "", matrix: str = "", *, words: Fraction | int = 0,
    itemsize: Fraction | int = 0, messages: int = 0, flops: int = 0, touched: int = 0,
    shape: tuple[int, ...] = (), peers: Peers | Mapping[int, Fraction | int] = (), far: Fraction | int = 0,
) -> None:  # fmt: skip
    """Charge a call to every open ledger.

    ``words`` elements of ``itemsize`` bytes came, ``flops`` were done, so many bytes ``touched``.

    Args:
        peers: ranks of the grid that share the words equally, or the words of each.
        far: those of the words that came from another node.
        shape: of a sparse product rows, columns, non-zeros and width; of a dense one rows, inner, columns; of
            a sum whether its messages go straight from rank to rank (see ``comm/sums.py``). Not counted.
    """
    key, nbytes = (phase, operation, group, matrix), words * itemsize
    for ledger in _books.get().open:
        ledger.charged(key, words, nbytes, messages, flops, touched, peers, shape, far)


def sent(operation: str, group: str, matrix: str, nbytes: int) -> None:
    """Tell every open ledger that a message of so many bytes is given to be sent, in an exchange.

    Others are charged for it.
    """
    for ledger in _books.get().open:
        ledger.sent(("comm", operation, group, matrix), nbytes)


def waited(operation: str, group: str, matrix: str, nbytes: int = -1) -> None:
    """Tell every open ledger how much has come of what this rank was charged for these messages.

    ``nbytes``: so many bytes, or -1 for all.
    """
    for ledger in _books.get().open:
        ledger.waited(("comm", operation, group, matrix), nbytes)


def timed(
    phase: str, operation: str, group: str = "", matrix: str = "", *, on: Any = None
) -> AbstractContextManager[None]:
    """Time a region for the open ledgers that asked for it; free when none did.

    on: the backend whose device does what the region queues, which is timed by marks in its queue; None: the
        host does.
    """
    timing = [ledger for ledger in _books.get().open if ledger.timing]
    return _timed(timing, (phase, operation, group, matrix), on) if timing else _untimed


_untimed = nullcontext()


@contextmanager
def _timed(timing: list[Ledger], key: Key, on: Any) -> Iterator[None]:
    books, clock = _books.get(), HOST if on is None or not on.on_device else on.clock()
    region = Region(clock)
    books.regions.append(region)
    try:
        yield
    finally:
        region.end()
        books.regions.pop()
        for outer in reversed(books.regions):  # up to one of this clock; a device idles while its host waits
            if outer.clock == clock or clock is HOST:
                outer.inside.append(region)
            if outer.clock == clock:
                break
        measured = [ledger._measured(key, region) for ledger in timing]
        if clock is HOST:
            for add in measured:
                add()
        else:
            books.pending += measured
            if len(books.pending) > MOST_PENDING:
                settle()


def settle() -> None:
    """Add the seconds of all regions that are over; waits for a device that has not come to their end."""
    books = _books.get()
    pending, books.pending = books.pending, []
    for add in pending:
        add()


def flight(operation: str, group: str, start: float, stop: float, nbytes: int = 0, matrix: str = "") -> None:
    """Note that so many bytes were under way between ``start`` and ``stop`` of ``time.perf_counter``.

    ``stop`` is now.
    """
    for ledger in _books.get().open:
        if ledger.timing:
            ledger._entries["comm", operation, group, matrix].flight += stop - start
            ledger._under_way.add(start, stop)
        if ledger.events is not None:
            ledger.events.append(Event("comm", operation, group, start, stop, True, 0, nbytes, 0, matrix))


def held(purpose: str, nbytes: int) -> None:
    """Note that memory of this purpose was taken, or with a negative number given back."""
    books = _books.get()
    books.held[purpose] += nbytes
    total = sum(books.held.values())
    for ledger in books.open:
        if total > sum(ledger.peak.values()):
            ledger.peak = dict(books.held)
    if total > books.most:
        raise BeyondRoom(total)


def holds(owner: object, purpose: str, nbytes: int) -> None:
    """Note that ``owner`` holds memory of this purpose, as long as it lives."""
    held(purpose, nbytes)
    weakref.finalize(owner, _let_go, _books.get().held, purpose, nbytes).atexit = False


def _let_go(held: dict[str, int], purpose: str, nbytes: int) -> None:
    held[purpose] -= nbytes


def loaded(dataset: str, nbytes: int) -> None:
    """Note that so many bytes of a dataset were read from a file of a store."""
    for ledger in _books.get().open:
        ledger.loaded[dataset] += nbytes
