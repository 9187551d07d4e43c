"""Ledgers nest, keep fractions, and time only when asked."""

from __future__ import annotations

from fractions import Fraction

from distgnn.ledger import PHASES, Ledger, charge, timed


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


def test_fractions_add_up_exactly():
    with Ledger() as ledger:
        for _ in range(300):
            charge("comm", "allreduce", words=Fraction(1, 3), itemsize=4)
    assert (ledger.words, ledger.bytes) == (100, 400)


def test_communication_and_computation_are_kept_apart():
    with Ledger() as ledger:
        charge("spmm", "spmm", flops=7)
        charge("comm", "bcast", words=2)
    assert (ledger.words, ledger.flops, ledger.calls) == (2, 7, 1)
    assert [(e["phase"], e["operation"]) for e in ledger.entries()] == [("comm", "bcast"), ("spmm", "spmm")]


def test_time_is_measured_only_when_asked_for(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    synchronised = []
    with Ledger() as silent, timed("gemm", "gemm", synchronize=lambda: synchronised.append(1)):
        pass
    assert silent.seconds == dict.fromkeys(PHASES, 0.0) and not synchronised
    with Ledger() as silent, Ledger(timing=True) as ledger, timed("gemm", "gemm"):
        pass
    assert ledger.seconds == {"spmm": 0.0, "gemm": 1.0, "comm": 0.0}
    assert silent.seconds["gemm"] == 0.0
