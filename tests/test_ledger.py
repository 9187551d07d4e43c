"""Ledgers nest, keep fractions, and time only when asked."""

from __future__ import annotations

import time
from contextlib import ExitStack
from fractions import Fraction

import pytest

import distgnn as dg
from distgnn.ledger import PHASES, Ledger, Strand, Union, charge, flight, timed


def test_an_operation_is_charged_to_every_open_ledger():
    with Ledger() as outer:
        charge("comm", "bcast", "rows", words=10, itemsize=4, messages=1)
        with Ledger() as inner:
            charge("comm", "bcast", "rows", words=5, itemsize=8, messages=1)
    charge("comm", "bcast", "rows", words=1000)
    assert (outer.words, outer.bytes, outer.messages, outer.calls) == (15, 80, 2, 2)
    assert (inner.words, inner.bytes, inner.messages, inner.calls) == (5, 40, 1, 1)


def test_equal_ledgers_are_closed_one_by_one():
    outer, inner = Ledger(), Ledger()
    with outer:
        with inner:
            pass
        charge("comm", "x", words=3)
    assert (outer.words, inner.words) == (3, 0)


def test_ledgers_may_be_closed_in_any_order():
    first, second = Ledger(), Ledger()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    charge("comm", "x", words=3)
    second.__exit__()
    charge("comm", "x", words=5)
    assert (first.words, second.words) == (0, 3)


def test_fractions_add_up_exactly():
    with Ledger() as ledger:
        for _ in range(300):
            charge("comm", "allreduce", words=Fraction(1, 3), itemsize=4)
    assert (ledger.words, ledger.bytes) == (100, 400)


def test_matrices_are_told_apart(clock):
    with Ledger(trace=True) as ledger:
        for matrix, words in (("A", 3), ("H", 4), ("A", 5)):
            charge("comm", "bcast", "rows", matrix, words=words, itemsize=4)
            with timed("comm", "bcast", "rows", matrix):
                clock[0] += words
            flight("bcast", "rows", clock[0] - 1, clock[0], 4 * words, matrix)
    found = [(e["matrix"], e["words"], e["seconds"], e["flight"]) for e in ledger.entries()]
    assert found == [("A", 8, 8.0, 2.0), ("H", 4, 4.0, 1.0)]
    assert [(e.matrix, e.flight, e.words, e.bytes) for e in ledger.events] == [
        ("A", False, 3, 12), ("A", True, 0, 12), ("H", False, 4, 16), ("H", True, 0, 16),
        ("A", False, 5, 20), ("A", True, 0, 20),
    ]  # fmt: skip
    assert (ledger.words, ledger.seconds["comm"]) == (12, 12.0)


def test_communication_and_computation_are_kept_apart():
    with Ledger() as ledger:
        charge("spmm", "spmm", flops=7)
        charge("comm", "bcast", words=2)
    assert (ledger.words, ledger.flops, ledger.calls) == (2, 7, 1)
    assert [(e["phase"], e["operation"]) for e in ledger.entries()] == [("comm", "bcast"), ("spmm", "spmm")]


def test_time_is_measured_only_when_asked_for(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    with Ledger() as silent, timed("gemm", "gemm", on=Device()):
        pass
    assert silent.seconds == dict.fromkeys(PHASES, 0.0)
    with Ledger() as silent, Ledger(timing=True) as ledger, timed("gemm", "gemm"):
        pass
    assert ledger.seconds == {"spmm": 0.0, "gemm": 1.0, "comm": 0.0}
    assert silent.seconds["gemm"] == 0.0


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that a test sets: seconds in a list of one."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


class Device:
    """A device whose queue is 10 seconds behind the host; marks are read by `seconds` alone."""

    on_device = True

    def __init__(self):
        self.reads, self.kept = 0, (self.mark, self.seconds)

    def clock(self):
        return self.kept

    def mark(self):
        return time.perf_counter() + 10

    def seconds(self, start, end):
        self.reads += 1
        return end - start

    def mark_alone(self):
        return (self.mark(),)  # no number, as marks of CUDA are none

    def seconds_between(self, start, end):
        return self.seconds(*start, *end)


def test_a_device_is_read_when_somebody_asks(clock):
    on = Device()
    with Ledger(trace=True) as whole, Ledger(timing=True) as ledger:
        clock[0] = 1.0
        with timed("spmm", "spmm", on=on):
            clock[0] = 3.0
            with timed("gemm", "gemm", on=on):
                clock[0] = 4.0
            with timed("comm", "bcast", "rows"):  # which the host waits for
                clock[0] = 4.5
        assert on.reads == 0
        assert ledger.seconds == {"spmm": 2.0, "gemm": 1.0, "comm": 0.5}
        reads = on.reads
        assert ledger.seconds == {"spmm": 2.0, "gemm": 1.0, "comm": 0.5} and on.reads == reads
        with timed("spmm", "spmm", on=on):
            clock[0] = 5.0
    assert whole.seconds == ledger.seconds == {"spmm": 2.5, "gemm": 1.0, "comm": 0.5}
    found = [(e.operation, e.start, e.stop) for e in whole.events]
    assert found == [("bcast", 4.0, 4.5), ("gemm", 3.0, 4.0), ("spmm", 1.0, 4.5), ("spmm", 4.5, 5.0)]


def test_traces_begin_with_regions_of_the_host(clock):
    """Marks of a device are compared with marks of a device alone, whatever came before."""
    on = Device()
    on.kept = on.mark_alone, on.seconds_between
    with Ledger(trace=True) as ledger:
        with timed("comm", "bcast", "rows"):
            clock[0] = 1.0
        for start in (2.0, 4.0):
            clock[0] = start
            with timed("spmm", "spmm", on=on):
                clock[0] += 0.5
    found = [(e.operation, e.start, e.stop) for e in ledger.events]
    assert found == [("bcast", 0.0, 1.0), ("spmm", 2.0, 2.5), ("spmm", 4.0, 4.5)]


def test_seconds_of_the_host_are_exclusive_around_a_device(clock):
    """A region is inside the next outer one of the same clock, over one of another clock."""
    with Ledger(timing=True) as ledger, timed("sampling", "draw"):
        with timed("spmm", "spmm", on=Device()), timed("comm", "bcast", "rows"):
            clock[0] = 3.0
        clock[0] = 4.0
    assert ledger.seconds["sampling"] == 1.0 and ledger.seconds["comm"] == 3.0


def test_marks_of_a_device_are_read_before_they_are_too_many(clock, monkeypatch):
    monkeypatch.setattr("distgnn.ledger.charges.MOST_PENDING", 3)
    on = Device()
    with Ledger(timing=True):
        for regions in range(1, 9):
            with timed("spmm", "spmm", on=on):
                clock[0] += 1.0
            assert on.reads == regions // 4 * 4


def test_seconds_are_exclusive_and_communication_is_counted_once(clock):
    """Seconds of messages driven inside a product are communication's; transfers under way beside each other
    pass the same seconds.
    """
    with Ledger(timing=True) as ledger:
        with timed("spmm", "spmm"):
            clock[0] = 4.0
            with timed("comm", "bcast", "rows"):
                clock[0] = 5.0
                with timed("gemm", "gemm"):
                    clock[0] = 5.5
            clock[0] = 8.0
            flight("bcast", "rows", 3.0, 8.0)
        clock[0] = 10.0
        flight("bcast", "rows", 7.0, 10.0)
        clock[0] = 20.0
        with timed("comm", "allreduce", "rows"):
            clock[0] = 22.0
    assert ledger.seconds == {"spmm": 6.5, "gemm": 0.5, "comm": 3.0}
    assert (ledger.exposed, ledger.flight) == (3.0, 9.0)  # under way from 3 to 10 and from 20 to 22
    assert [entry["flight"] for entry in ledger.entries() if entry["operation"] == "bcast"] == [8.0]


def test_a_ledger_that_does_not_time_is_told_of_no_flight():
    with Ledger() as silent, Ledger(timing=True) as timing:
        flight("bcast", "rows", 1.0, 3.0)
    assert (silent.flight, timing.flight) == (0.0, 2.0)
    assert silent.events is None and timing.events is None


def test_events_carry_what_was_charged_for_them(clock):
    with Ledger(trace=True) as ledger:
        for words, stop in ((6, 1.0), (2, 3.0)):
            charge("comm", "allreduce", "rows", words=Fraction(words), itemsize=4)
            charge("comm", "bcast", "rows", words=100, itemsize=4)
            with timed("comm", "allreduce", "rows"):
                clock[0] = stop
        charge("spmm", "spmm", flops=9)
        with timed("spmm", "spmm"):
            flight("bcast", "rows", 2.0, 3.0, 400)
    found = [(e.operation, e.start, e.stop, e.flight, e.words, e.bytes, e.flops) for e in ledger.events]
    assert found == [
        ("allreduce", 0.0, 1.0, False, 6, 24, 0),
        ("allreduce", 1.0, 3.0, False, 2, 8, 0),
        ("bcast", 2.0, 3.0, True, 0, 400, 0),
        ("spmm", 3.0, 3.0, False, 0, 0, 9),
    ]


def test_only_the_latest_events_stay(monkeypatch):
    monkeypatch.setattr("distgnn.ledger.charges.MOST_EVENTS", 3)
    with Ledger(trace=True) as ledger:
        for second in range(10):
            flight("bcast", "rows", second, second + 0.5)
    assert [event.start for event in ledger.events] == [6, 7, 8, 9]


def test_length_of_a_union():
    """Against seconds ticked off one by one, for more intervals than are kept apart."""
    union, ticked = Union(), set()
    for stop in range(3, 9000, 3):
        start = stop - (2 if stop % 7 else 40)
        union.add(max(start, 0), stop)
        ticked.update(range(max(start, 0), stop))
    assert union.length == len(ticked)
    for stop in range(10_000, 20_000, 2):
        union.add(stop - 1, stop)
    assert union.length == len(ticked) + 5000
    assert len(union._apart) <= 2000


def test_words_are_kept_by_peer():
    def turn():
        charge("comm", "bcast", words=10, peers=(1,))
        charge("comm", "reduce", words=4, peers=(2,))
        charge("comm", "allreduce", words=Fraction(4, 3), peers=(0, 1))
        charge("comm", "alltoallv", words=7, peers={0: 5, 2: 2})

    with Ledger() as once, Ledger() as ledger:
        turn()
    ledger.add(once, 2)
    assert ledger.traffic(3) == {(0, 3): 17, (1, 3): 32, (2, 3): 6, (3, 2): 12}
    assert sum(ledger.traffic(3).values()) == ledger.words == 67


def test_a_ledger_is_printed_as_a_table_by_operation_and_matrix():
    with Ledger() as ledger:
        for group in ("rows", "cols"):
            charge("comm", "bcast", group, "H", words=1000, itemsize=8, messages=1)
        charge("comm", "allreduce", "world", "reductions", words=Fraction(7, 2), itemsize=8, messages=6)
        charge("spmm", "spmm", flops=123456)
    rows = [line.split() for line in str(ledger).splitlines()]
    assert rows == [
        ["operation", "matrix", "calls", "messages", "words", "bytes", "flops"],
        ["allreduce", "reductions", "1", "6", "4", "28", "0"],
        ["bcast", "H", "2", "2", "2,000", "16,000", "0"],
        ["spmm", "1", "0", "0", "0", "123,456"],
        ["all", "communication", "3", "8", "2,004", "16,028", "0"],
        ["all", "computation", "1", "0", "0", "0", "123,456"],
    ]
    assert len({len(line) for line in str(ledger).splitlines()}) == 1
    assert str(Ledger()).split() == ["operation", "matrix"]


@pytest.mark.ranks(3)
def test_ledgers_of_all_ranks_are_added_up_and_the_busiest_is_found(comm):
    grid = dg.Grid(comm, backend="numpy", rows=3)
    with Ledger() as ledger:
        charge("comm", "bcast", "rows", "H", words=Fraction(1 + (comm.rank == 1), 3), itemsize=8, messages=1)
        charge("spmm", "spmm", flops=10 * comm.rank)
    over = ledger.over(grid)
    assert (over.sum.words, over.sum.bytes, over.sum.messages, over.sum.flops) == (1, 11, 3, 30)
    assert (over.rank, over.busiest.bytes, over.busiest.flops) == (1, 5, 10)
    assert [totals.flops for totals in over.ranks] == [0, 10, 20]
    first, second, *_ = str(over).splitlines()
    assert first.split() == ["3", "ranks", "rank", "1"]
    assert second.split() == ["operation", "matrix", *["calls", "messages", "words", "bytes", "flops"] * 2]
    grid.free()


def test_strands_take_turns_and_keep_their_own_seconds(clock):
    """A region that stays open while other work is done has the seconds of its turns alone."""
    strand, regions = Strand(), ExitStack()
    with Ledger(timing=True) as ledger:
        with timed("spmm", "spmm"):
            clock[0] = 1.0
            with strand.resumed():
                regions.enter_context(timed("sampling", "draw"))
                regions.enter_context(timed("gemm", "gemm"))
                clock[0] = 3.0
            clock[0] = 7.0
        with timed("update", "step"):
            with timed("comm", "allreduce"):
                clock[0] = 8.0
                with strand.resumed():
                    clock[0] = 8.5
                    regions.close()
                    clock[0] = 8.75
                clock[0] = 9.0
            with strand.resumed(), timed("sampling", "extract"):
                clock[0] = 10.0
    assert ledger.seconds == {"spmm": 5.0, "gemm": 2.5, "comm": 1.25, "sampling": 1.0}
    assert sum(ledger.seconds.values()) == 9.75  # of 10: what a strand does in no region is nobody's


def test_strands_pause_on_devices_too(clock):
    """Host regions inside and around those of a device pause once."""
    on = Device()
    for around, inside in (("host", "device"), ("device", "host"), ("device", "device")):
        strand, regions = Strand(), ExitStack()
        places = {"host": None, "device": on}
        with Ledger(timing=True) as ledger:
            with strand.resumed():
                regions.enter_context(timed("sampling", "draw", on=places[around]))
                clock[0] += 1.0
                regions.enter_context(timed("comm", "alltoallv", on=places[inside]))
                clock[0] += 2.0
            with timed("spmm", "spmm", on=on), timed("gemm", "gemm"):
                clock[0] += 8.0
            with strand.resumed():
                clock[0] += 4.0
                regions.close()
        # the host does not wait for a device, so that its regions have the seconds of those inside
        seconds = {"sampling": 7.0 if around == "host" else 1.0, "comm": 6.0}
        assert {phase: ledger.seconds[phase] for phase in seconds} == seconds, (around, inside)
