"""Host kernels: which instruction set, how many threads, and what happens where they are not built."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn import UserError, local
from distgnn.local import host
from loops import each


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch):
    """Set variables of the environment and ask anew; answers are kept for the life of a process."""

    def ask(function, **variables: str):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        function.cache_clear()
        return function()

    yield ask
    for function in (host.isa, host.threads, host.module):
        function.cache_clear()


@each("words, threads", [("", 1), ("3", 3), ("4,2", 4), (" 2 ", 2), ("0", 1), ("many", 1), ("-2", 1)])
def test_threads(asked, words: str, threads: int) -> None:
    assert asked(host.threads, OMP_NUM_THREADS=words) == threads


@pytest.mark.skipif(host.module() is None, reason="the host kernels are not built here")
def test_an_instruction_set_can_be_chosen(asked) -> None:
    there = host.module().isas()
    for place, name in enumerate(there):
        assert asked(host.isa, DISTGNN_HOST_ISA=name) == place
    assert asked(host.isa, DISTGNN_HOST_ISA="auto") == 0
    with pytest.raises(UserError, match=f"DISTGNN_HOST_ISA=abacus: this machine runs auto, {there[0]}"):
        asked(host.isa, DISTGNN_HOST_ISA="abacus")


def test_without_kernels_it_is_said_where_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "module", lambda: None)
    with pytest.raises(UserError, match="the host kernels are not built here: install distgnn"):
        host.built()


@each("dtype", [np.float32, np.float64, np.int64])
def test_rows_are_gathered_with_and_without_kernels(monkeypatch: pytest.MonkeyPatch, dtype: type) -> None:
    X = np.random.default_rng(0).integers(0, 99, (7, 5)).astype(dtype)
    for rows in (np.array([6, 0, 6, 3]), np.arange(0)):
        with monkeypatch.context() as patch:
            for _ in range(2):
                out = np.full((rows.size, 5), 77, dtype)
                assert local.gather_rows(X, rows, out) is out
                np.testing.assert_array_equal(out, X[rows])
                np.testing.assert_array_equal(local.gather_rows(X, rows), X[rows])
                patch.setattr(host, "module", lambda: None)
