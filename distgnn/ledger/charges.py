"""A ledger, and what operations tell the ledgers that are open."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fractions import Fraction
from typing import Any, TypeVar

from distgnn.ledger.rank_books import books as current
from distgnn.ledger.rank_books import settle
from distgnn.ledger.regions import HOST, Event, Region, Union
from distgnn.ledger.totals import COUNTED, Entry, Key, OverRanks, Peers, Totals

MOST_EVENTS = 200_000  # that a ledger keeps, the latest: about 50 MB
MOST_PENDING = 20_000  # regions of a device whose marks are kept before they are read
L = TypeVar("L", bound="Ledger")


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
        books = current()
        books.open.append(self)
        self.peak = dict(books.held)
        return self

    def __exit__(self, *exception: object) -> None:
        # Nested ledgers may be closed in any order: drop this one, wherever it stands.
        current().open.remove(self)
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
            a pass over entries of A non-zeros, their share where it runs a share of its phases, and width; of
            a sum whether its messages go straight from rank to rank (see ``comm/sums.py``). Not counted.
    """
    key, nbytes = (phase, operation, group, matrix), words * itemsize
    for ledger in current().open:
        ledger.charged(key, words, nbytes, messages, flops, touched, peers, shape, far)


def sent(operation: str, group: str, matrix: str, nbytes: int) -> None:
    """Tell every open ledger that a message of so many bytes is given to be sent, in an exchange.

    Others are charged for it.
    """
    for ledger in current().open:
        ledger.sent(("comm", operation, group, matrix), nbytes)


def waited(operation: str, group: str, matrix: str, nbytes: int = -1) -> None:
    """Tell every open ledger how much has come of what this rank was charged for these messages.

    ``nbytes``: so many bytes, or -1 for all.
    """
    for ledger in current().open:
        ledger.waited(("comm", operation, group, matrix), nbytes)


def timed(
    phase: str, operation: str, group: str = "", matrix: str = "", *, on: Any = None
) -> AbstractContextManager[None]:
    """Time a region for the open ledgers that asked for it; free when none did.

    on: the backend whose device does what the region queues, which is timed by marks in its queue; None: the
        host does.
    """
    timing = [ledger for ledger in current().open if ledger.timing]
    return _timed(timing, (phase, operation, group, matrix), on) if timing else _untimed


_untimed = nullcontext()


@contextmanager
def _timed(timing: list[Ledger], key: Key, on: Any) -> Iterator[None]:
    books, clock = current(), HOST if on is None or not on.on_device else on.clock()
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


def flight(operation: str, group: str, start: float, stop: float, nbytes: int = 0, matrix: str = "") -> None:
    """Note that so many bytes were under way between ``start`` and ``stop`` of ``time.perf_counter``.

    ``stop`` is now.
    """
    for ledger in current().open:
        if ledger.timing:
            ledger._entries["comm", operation, group, matrix].flight += stop - start
            ledger._under_way.add(start, stop)
        if ledger.events is not None:
            ledger.events.append(Event("comm", operation, group, start, stop, True, 0, nbytes, 0, matrix))


def loaded(dataset: str, nbytes: int) -> None:
    """Note that so many bytes of a dataset were read from a file of a store."""
    for ledger in current().open:
        ledger.loaded[dataset] += nbytes
