"""`distgnn bench spmm`: its figures are of the right product, counted as it says."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.bench import spmm, timing
from distgnn.cli import main
from distgnn.local import host

pytestmark = pytest.mark.skipif(host.module() is None, reason="host kernels not built")


def small(nodes: int = 200) -> sp.csr_array:
    return spmm.uniform(nodes, 4).astype(np.float32)


def test_candidates_compute_the_product() -> None:
    A = small()
    B, C = np.random.default_rng(0).random((200, 9), dtype=np.float32), np.empty((200, 9), np.float32)
    runs = spmm.candidates(A, B, C)
    assert {"host", "scipy"} <= set(runs)
    for name, run in runs.items():
        C[...] = np.nan
        run()
        np.testing.assert_allclose(C, A @ B, rtol=1e-5, err_msg=name)


def test_a_wrong_candidate_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spmm, "_scipy", lambda A, B, C: lambda: C.fill(1))
    with pytest.raises(AssertionError, match="scipy disagrees with host"):
        spmm.measure("small", small(), 4, (1e9, 1e9), seconds=0)


def test_what_is_hopeless_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def slow(A: sp.csr_array, B: np.ndarray, C: np.ndarray) -> spmm.Run:
        def run() -> None:
            calls.append("scipy")
            np.copyto(C, A @ B)

        return run

    monkeypatch.setattr(spmm, "_scipy", slow)
    spmm.measure("small", small(), 4, (1e9, 1e9), seconds=0)
    assert len(calls) > 3
    calls.clear()
    monkeypatch.setattr(spmm, "LONG", 0.0)
    monkeypatch.setattr(spmm, "HOPELESS", 0.0)
    point = spmm.measure("small", small(), 4, (1e9, 1e9), seconds=0)
    assert calls == ["scipy"] and point.seconds["scipy"] > 0


def test_counts_and_ratios() -> None:
    A = small()
    point = spmm.measure("small", A, 4, (1e9, 1e9), seconds=0)
    assert point.bytes == A.nnz * (8 + 16) + 16 * 200 + 8 * 200
    point.seconds = {"host": 1e-6, "scipy": 3e-6, "mkl": 2e-6}
    assert point.gflops("host") == pytest.approx(2 * A.nnz * 4 / 1e-6 / 1e9)
    assert point.ratio() == pytest.approx(2) == point.ratio("mkl")
    assert math.isnan(point.ratio("torch"))
    summary = spmm.summary([point])
    assert "mkl: geometric mean 2.00" in summary and "torch" not in summary
    row = spmm.table([point], (1e9, 1e9)).splitlines()[-1]
    assert row.startswith("| small | 4 |") and row.endswith("| 2.00 | 2.00 |")


def test_turns_alternate() -> None:
    calls: list[str] = []
    samples = timing.in_turns(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 0, least=3, most=1
    )
    assert calls == ["a", "b"] * 4 and {name: len(times) for name, times in samples.items()} == {
        "a": 3,
        "b": 3,
    }


def test_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(spmm.GRAPHS, "small", small)
    monkeypatch.setattr(timing, "copy_bandwidth", lambda clock: 1e9)
    monkeypatch.setattr(timing, "cache_bandwidth", lambda clock: 1e9)
    assert main(["bench", "spmm", "--graph", "small", "--widths", "3", "16", "--seconds", "0"]) == 0
    out = capsys.readouterr().out
    assert "| small | 3 |" in out and "| small | 16 |" in out and "times faster than scipy" in out
    assert re.search(r"Dense products, [0-9.]+ GFLOP/s: NumPy's BLAS, \w+", out)


def test_caches_are_those_of_data(tmp_path: Path) -> None:
    files = {
        "index0": (1, "Data", "48K"),
        "index1": (1, "Instruction", "32K"),
        "index3": (3, "Unified", "327680K"),
    }
    for name, texts in files.items():
        (tmp_path / name).mkdir()
        for file, text in zip(("level", "type", "size"), texts, strict=True):
            (tmp_path / name / file).write_text(f"{text}\n")
    assert timing.caches(tmp_path) == {1: 48 << 10, 3: 320 << 20}
    assert timing.caches(tmp_path / "none") == {}


@pytest.mark.parametrize(
    "words, message",
    [
        (["--graph", "nothing"], "--graph nothing: no store NAME.dg; expected one of rmat-15"),
        (["--widths", "0"], "--widths 0: a width is at least 1"),
    ],
)
def test_bad_input(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timing, "copy_bandwidth", lambda clock: 1e9)
    monkeypatch.setattr(timing, "cache_bandwidth", lambda clock: 1e9)
    assert main(["bench", "spmm", *words]) == 2
    assert message in capsys.readouterr().err
