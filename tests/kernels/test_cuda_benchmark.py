"""The GPU benchmark runs from end to end, and counts bytes as it says."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.arrays import backend
from kernels.conftest import emulator

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_spmm.py"


@pytest.fixture
def gpu_spmm(monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_spmm", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "gpu_spmm", module)
    monkeypatch.syspath_prepend(PROGRAM.parent)
    spec.loader.exec_module(module)
    return module


def test_bytes_and_flops(gpu_spmm):
    case = gpu_spmm.Case("x", sp.csr_array(np.ones((10, 10))), 16, 4)
    assert case.flops == 2 * 100 * 16
    assert case.no_reuse_bytes == 100 * (8 + 4 * 16) + 4 * 10 * 16 + 8 * 10


def test_summary(gpu_spmm):
    limits = gpu_spmm.Ceilings(1e9, 1e9, 1e9, {(32, 8): 1e9, (32, 999): 1e8, (16, 8): 5e8, (16, 999): 2e5})
    assert (limits.gather(20, 4), limits.gather(4, 9), limits.gather(64, 1000)) == (5e8, 2e5, 1e8)
    rows = gpu_spmm.rows_of(
        gpu_spmm.Case("rmat-3", sp.csr_array(np.ones((8, 8))), 4, 4),
        {"raw": 2.0, "cuSPARSE CSR_ALG2": 4.0, "cuSPARSE CSR_ALG3": 3.0},
        limits,
    )
    assert [row[-1] for row in rows] == [1.5, 0.75, 1.0] and rows[0][-2] == 64 * 16 / 2e-3 / 2e5
    assert "geometric mean: 1.50 (target: at least 1.3)" in gpu_spmm.summary(rows)
    assert "| rmat-3 | 4 | raw | 2.0000 |" in gpu_spmm.markdown(rows)


@pytest.mark.parametrize("name", ["rmat-6", "uniform-6", "sbm-6", "road-6", "reddit-6"])
def test_graphs(gpu_spmm, name):
    A = gpu_spmm.graph(name)
    assert A.shape == (64, 64) and A.nnz > 0 and (A.data > 0).all()


@pytest.mark.slow
def test_report(tmp_path):
    """On the stand-in for CuPy; the numbers mean nothing."""
    if "cupy" in backend.available() or emulator.compiler() is None:
        pytest.skip("a GPU here, or no C++ compiler (g++, or what CXX names)")
    out, tests = tmp_path / "results" / "spmm.md", PROGRAM.parents[1] / "tests"
    path = os.pathsep.join(
        [str(PROGRAM.parents[1]), str(tests / "fake_cupy"), os.environ.get("PYTHONPATH", "")]
    )
    tiny = ["--graphs", "uniform-6", "rmat-6", "--scale", "1e-6", "--rounds", "1", "--variants"]
    command = [sys.executable, str(PROGRAM), "--quick", *tiny, "--out", str(out)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    report = out.read_text()
    assert done.returncode == 0 and "WRONG" not in report and report == done.stdout, done.stderr
    for f in (16, 32, 128):
        assert f"| uniform-6 | {f} | raw |" in report and f"| rmat-6 | {f} | cuSPARSE CSR_ALG3 |" in report
        assert f"| rmat-6 | {f} | raw, bfloat16 |" in report and f"| {f} | rounding to float16 |" in report
    assert "| raw, float16 V8 G" in report and "- raw over raw, float16 read: " in report
    assert "| raw V4 G" in report and "- copy: " in report and "| 512 bytes |" in report


def test_a_wrong_kernel_is_reported(gpu_spmm, gpu):
    out = gpu.xp.zeros((3, 2), np.float32)

    def spoil() -> None:
        out[...] = 1

    assert gpu_spmm.check({"raw": spoil}, out, np.zeros((3, 2)), gpu.to_host) == ["raw"]
    assert gpu_spmm.check({"raw": spoil}, out, np.ones((3, 2)), gpu.to_host) == []
