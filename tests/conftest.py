"""Books for each test. Everything for tests on several ranks is in mpi_helpers/plugin.py."""

import pytest

from distgnn import ledger

pytest_plugins = ["mpi_helpers.plugin"]


@pytest.fixture(autouse=True)
def books():
    """A test counts no memory that earlier ones hold, or let go while it runs."""
    before = ledger.switch(ledger.books())
    yield
    ledger.switch(before)
