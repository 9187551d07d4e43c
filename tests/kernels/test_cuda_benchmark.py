"""The benchmark of products on a GPU counts bytes as it says, and names kernels whose results are wrong."""

from __future__ import annotations

import importlib.util
import math
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.arrays import backend
from kernels.conftest import BENCHMARKS


@pytest.fixture
def gpu_spmm(monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_spmm", BENCHMARKS / "gpu_spmm.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    monkeypatch.syspath_prepend(BENCHMARKS)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def on(gpu):
    """Return the backend of the GPU, or of the emulation."""
    return backend.get("cupy")


def product(gpu_spmm, on, matrix, f):
    """Make a product with B (n, f)."""
    return gpu_spmm.Product.of(on, matrix, gpu_spmm.block_of(matrix, np.float32, on), f)


@pytest.mark.parametrize("f", [1, 5, 8])
def test_bytes_and_floors(gpu_spmm, on, f):
    made = product(gpu_spmm, on, sp.csr_array(np.ones((10, 10))), f)
    limits = gpu_spmm.Ceilings(1e3, 1e3, 1e6)
    assert made.no_reuse_bytes(2) == 100 * (8 + 2 * f) + 4 * 10 * f + 8 * 10
    assert made.floor(limits, 4) == pytest.approx(100 * 8 + 2 * 10 * f * 4), "memory limits"
    assert made.floor(limits, 2) == pytest.approx(100 * 8 + 10 * f * (4 + 2))
    limits.cache = 1.0
    by_cache = 1e3 * (100 * 8 + 100 * f * 4 + 10 * f * 4)
    assert made.floor(limits, 4) == pytest.approx(by_cache)


def test_answers_are_those_of_the_matrix(gpu_spmm, on):
    """Rows without entries, one column, and more rows than are looked at."""
    A = sp.random_array((700, 700), density=0.01, rng=np.random.default_rng(0), format="csr")
    A = sp.csr_array(sp.diags_array((np.arange(700) % 3 > 0).astype(float)) @ A)
    made = product(gpu_spmm, on, A, 1)
    B = on.to_host(made.B)
    assert len(made.rows) == 256 and np.ptp(B) > 0.5
    np.testing.assert_allclose(made.expected, (A @ B.astype(np.float64))[made.rows], rtol=1e-12)


@pytest.mark.parametrize("off", [0.0, np.nan, 0.1])
def test_a_wrong_kernel_is_named(gpu_spmm, on, off):
    made = product(gpu_spmm, on, sp.csr_array(np.eye(20)), 3)
    right = on.to_host(made.B)

    def spoil() -> None:
        made.out[...] = on.asarray(right + np.float32(off))

    wrong = ["ours"] if off else []
    assert gpu_spmm.wrong(made, {"ours": spoil, "PyTorch": spoil}, made.expected) == wrong
    assert gpu_spmm.wrong(made, {"ours": spoil}, made.expected, 0.2) == ([] if off < 0.2 else ["ours"])
    ending = lambda: made.out.__setitem__(..., on.asarray(np.maximum(right, 0)))  # noqa: E731
    assert gpu_spmm.wrong(made, {gpu_spmm.ENDING: ending}, made.expected) == []
    assert gpu_spmm.wrong(made, {"ours": ending}, made.expected) == ["ours"]


def test_means_leave_out_what_is_not_there(gpu_spmm):
    lines = gpu_spmm.summary([[2.0, 1.0], [math.nan, 4.0], [8.0, 1.0]])
    assert lines == [
        "- cuSPARSE's time over ours: geometric mean 4.00, least 2.00, of 2",
        "- float32's over ours: geometric mean 1.59, least 1.00, of 3",
    ]
