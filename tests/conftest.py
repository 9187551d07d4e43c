"""Books for each test, and no message left. Everything for several ranks is in mpi_helpers/plugin.py."""

import pytest

from distgnn import ledger, progress
from distgnn.arrays.tuning import TUNING
from distgnn.comm import flight
from kernels import passed

pytest_plugins = ["mpi_helpers.plugin"]


def pytest_report_header() -> str:
    left_out = passed.but_for() is not None
    how = (
        "as they passed; those of nothing else are left out"
        if left_out
        else "changed since they passed, all run"
    )
    return f"tests of kernels: {how} (make test-kernels)"


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    """Let messages on the stand-in be in as many parts as on a host."""
    monkeypatch.setattr(TUNING, "device_segment", 0)
    monkeypatch.setattr(TUNING, "sum_chunk_on_device", 0)


@pytest.fixture(autouse=True)
def books_and_messages(request):
    """Give each test its own books, so that it counts no memory of earlier tests; check that it leaves no
    message under way, unless it is marked to abandon messages.
    """
    with ledger.apart():
        yield
    left = [(f.operation, f.matrix, len(f.requests)) for f in flight.under_way()]
    flight._under_way.clear()
    assert not progress.pending(), "the test ended while messages were driven"
    assert not left or request.node.get_closest_marker("abandons"), f"messages were left under way: {left}"
