"""The GPU benchmark runs from end to end (on the emulation: the numbers mean nothing), and counts bytes as it
says.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_spmm.py"

pytestmark = pytest.mark.timeout(600)  # waits for the compiler


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
    rows = gpu_spmm.rows_of(
        gpu_spmm.Case("rmat-3", sp.csr_array(np.ones((8, 8))), 4, 4),
        {"raw": 2.0, "cuSPARSE CSR_ALG2": 4.0, "cuSPARSE CSR_ALG3": 3.0},
        1e9,
    )
    assert [row[-1] for row in rows] == [1.5, 0.75, 1.0]
    assert "geometric mean: 1.50 (target: at least 1.3)" in gpu_spmm.summary(rows)
    assert "| rmat-3 | 4 | raw | 2.0000 |" in gpu_spmm.markdown(rows)


@pytest.mark.parametrize("name", ["rmat-6", "uniform-6", "sbm-6", "road-6"])
def test_graphs(gpu_spmm, name):
    A = gpu_spmm.graph(name)
    assert A.shape == (64, 64) and A.nnz > 0 and (A.data > 0).all()


def test_report(gpu_spmm, gpu, capsys):
    A = gpu_spmm.graph("uniform-6")
    options = gpu_spmm.Options([8], rounds=1, least_ms=0, variants=True, scale=2**-16 if gpu.emulated else 1)
    report = gpu_spmm.run(gpu.xp, gpu.asarray, gpu.to_host, [("uniform-6", A)], options)
    assert "WRONG" not in report and "| uniform-6 | 8 | raw |" in report and "| raw V4 C1" in report
    assert "- copy: " in report and not math.isnan(float(report.split("- L2 read: ")[1].split()[0]))


def test_a_wrong_kernel_is_reported(gpu_spmm, gpu):
    out = gpu.xp.zeros((3, 2), np.float32)

    def spoil() -> None:
        out[...] = 1

    assert gpu_spmm.check({"raw": spoil}, out, np.zeros((3, 2)), gpu.to_host) == ["raw"]
    assert gpu_spmm.check({"raw": spoil}, out, np.ones((3, 2)), gpu.to_host) == []
