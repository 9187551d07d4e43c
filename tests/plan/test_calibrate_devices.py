"""Fits of a GPU's rates find what seconds were made of; kernels are timed without the host between them."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from distgnn import ledger, local
from distgnn.arrays import backend as backends
from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.ledger import Ledger
from distgnn.plan import calibrate as calibration
from distgnn.plan import fit, machine, measure, replay
from distgnn.plan.calibrate import CACHES, CORES, calibrate
from distgnn.plan.fit import Measurement
from distgnn.plan.machine import Gemm, Passes, Rate, Spmm, SpmmRates
from distgnn.plan.reuse import EVEN, Reuse

from ..train.test_epoch_graph import stand_in_of_cublas
from .test_calibrate import KNOWN, dense, passes, products, timed

HUBS = Reuse((0.0, 1e-4, 0.01, 0.1, 1.0), (0.0, 0.3, 0.6, 0.9, 1.0))
RATES = [SpmmRates(1e-9 * by, 2e-10 * by, 3e-9, 4e-10) for by in (1, 3, 7)]
CORED = Spmm(2e-6, CACHES[5], RATES[1], RATES[2], CORES[1], RATES[0])


def test_caches_of_cores_are_found_where_rows_are_read_again():
    samples = [Measurement("", 0.0, [step], reuse=curve) for step in products() for curve in (EVEN, HUBS)]
    on = replace(KNOWN, spmm=CORED)
    found = fit.spmm(timed(samples, on), CACHES, CORES)
    assert (found.cache, found.core) == (CORED.cache, CORED.core)
    for level in ("in_core", "cached", "uncached"):
        assert vars(getattr(found, level)) == pytest.approx(vars(getattr(CORED, level)), rel=1e-5)
    even = timed([sample for sample in samples if sample.reuse is EVEN], on)
    assert fit.spmm(even, CACHES, CORES).in_core is None


@pytest.mark.parametrize("hidden", [0.0, 0.5, 1.0])
def test_the_share_of_bytes_that_flops_hide_is_found(hidden):
    on = replace(KNOWN, gemm=Gemm(3e-6, 3e11, 2e10, hidden))
    found = fit.gemm(timed([Measurement("", 0.0, [step]) for step in dense()], on))
    assert vars(found) == pytest.approx(vars(on.gemm), rel=0.02)


def test_calls_of_passes_are_those_of_rows_that_are_gathered():
    on = replace(KNOWN, passes=Passes(1e-6, 2e10, {"activation": Rate(1e-6, 4e9)}))
    samples = timed([Measurement("", 0.0, [step]) for step in passes()], on)
    large = [one for one in samples if one.steps[0].phase == "spmm" or one.steps[0].touched > 1e6]
    found = fit.passes(large, one_call=True)
    assert found.call == found.kinds["activation"].call == pytest.approx(1e-6, rel=1e-6)
    assert found.kinds["activation"].bandwidth == pytest.approx(4e9, rel=1e-6)
    slow = [replace(one, seconds=1e-6 + 2e-4 + size / 4e9, steps=[one.steps[0]._replace(touched=size)])
            for one in large[-1:] for size in (10**7, 3 * 10**7)]  # fmt: skip
    rates = fit.passes([*[one for one in large if one.steps[0].phase == "spmm"], *slow], one_call=True)
    explained = fit.of("activation", "", {}, slow, replace(KNOWN, passes=rates))
    assert abs(np.log1p(explained.residuals).mean()) < 0.02 and np.abs(explained.residuals).max() < 0.05


@pytest.mark.parametrize("known", [(2e-3, 1e-4), (0.0, 2e-4), (1e-3, 0.0)])
def test_what_a_host_takes_to_queue_is_found(known):
    """Epochs of few steps and of many, which the device computes in no time beside that."""
    update, launch = known
    on = replace(KNOWN, update=update, launch=launch)
    idle = replace(on, gemm=Gemm(0.0, 1e15, 1e15))
    some = [Measurement("", 0.0, dense()[:size], {"rows": 1}) for size in (3, 6, 9)]
    samples = [replace(one, seconds=one.epoch(idle)) for one in some]
    assert fit.launched(samples, KNOWN) == pytest.approx((update, 0.0, launch), abs=1e-7)


def test_epochs_as_cuda_graphs_have_seconds_of_their_own():
    on, graphs = replace(KNOWN, update=0.5, launch=0.1), replace(KNOWN, captured=2e-4, gap=3e-5).graphed()
    some = [Measurement("", 0.0, dense()[:1] * size, {"rows": 1}) for size in (3, 6, 20)]
    samples = [replace(one, seconds=one.epoch(graphs)) for one in some]
    assert fit.captured(samples, on) == pytest.approx((2e-4, 3e-5))
    assert fit.captured([replace(one, seconds=0.0) for one in samples], on)[0] > 0


# -- measuring on a device -----------------------------------------------------------------------------------

device = pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)
TINY = measure.Scale(1 << 10, (1 << 12,), (32,), 1e7, (1, 4), (48,), (8, 8, 4))


@pytest.fixture
def gpu(comm, stand_in, monkeypatch):
    """Give the stand-in, with what stands for cuBLAS."""
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "0")
    stand_in_of_cublas(monkeypatch)
    grid = Grid(comm, backend="cupy", rows=1)
    yield grid.backend
    grid.free()


@device
@pytest.mark.ranks(1)
@pytest.mark.parametrize("kind", ["spmm", "gemm"])
def test_kernels_are_timed_as_graphs_and_charged_once(gpu, kind, caplog, monkeypatch):
    A = CSR.from_scipy(measure.random_rows(np.random.default_rng(0), 20, 30, 4), gpu)
    B, out = measure.filled(gpu, (30, 8)), measure.filled(gpu, (20, 8))
    left = measure.filled(gpu, (20, 30))
    work = partial(local.spmm, A, B, out) if kind == "spmm" else partial(local.gemm, left, B, out)
    launched = []
    capture = gpu.captured

    def captured():
        launched.append(kind)
        return capture()

    monkeypatch.setattr(gpu, "captured", captured)
    with caplog.at_level(logging.WARNING), Ledger() as book:
        seconds = replay.seconds(work, gpu, 3, 2)
    assert seconds > 0 and launched == [kind] and not caplog.records
    once = 2 * 30 * 20 * 8 if kind == "gemm" else 2 * 80 * 8
    assert 0 < sum(entry["flops"] for entry in book.entries()) <= 2 * once  # what is replayed is not charged
    assert np.all(gpu.to_host(out) == (30 if kind == "gemm" else 4))


@device
@pytest.mark.ranks(1)
def test_what_cannot_be_captured_is_timed_with_the_host(gpu, caplog):
    def refused():
        if gpu.xp.cuda.get_current_stream().is_capturing():
            raise RuntimeError("not in a capture")

    with caplog.at_level(logging.WARNING):
        assert replay.seconds(refused, gpu, 3, 2) > 0
    assert "timed with the host: RuntimeError: not in a capture" in caplog.text
    assert not gpu.xp.cuda.get_current_stream().is_capturing()


@device
@pytest.mark.slow
@pytest.mark.ranks(1)
def test_a_calibrated_gpu_can_be_read(comm, gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "_scale", lambda *_: TINY)
    monkeypatch.setattr(measure, "CAPTURING", 4)
    found = calibrate(comm, 0.5, "here", backend="cupy")
    path = tmp_path / "here.toml"
    path.write_text(found.machine.toml())
    read = machine.read(path)
    assert read == found.machine
    assert read.device == "stand-in" and read.tf32 is not None
    assert read.spmm.cache == 50 << 20 and read.launch + read.update > 0
    kinds = {fitted.kind for fitted in found.fits}
    assert {"spmm", "gemm", "gemm, TF32", "rows", "activation", "epochs"} <= kinds
    assert not gpu.rounds_to_tf32()
    assert ledger.books().open == []
    assert backends.get("cupy").multiplier is None


@device
@pytest.mark.ranks(1)
def test_epochs_that_graphs_make_no_faster_are_not_taken_for_graphs(comm, gpu, monkeypatch):
    grid = Grid(comm, backend="cupy", rows=1)
    for by, fits in ((0.0, ["epochs"]), (-0.5, ["epochs", "CUDA graphs"])):

        def epoch(budget, algorithm, sizes, n, degree, widths, cuda_graph=False, by=by):
            return Measurement("", 1.0 + cuda_graph * by, dense()[:3], {"rows": 1})

        monkeypatch.setattr(measure, "epoch", epoch)
        updated, found = calibration._update(KNOWN, measure.Budget(grid.world, 1e3))
        assert [one.kind for one in found] == fits
        assert (updated.captured > 0) == (len(fits) > 1)
    assert updated.captured == pytest.approx(0.5, rel=0.01)
    grid.free()


@pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)
def test_seconds_are_those_of_a_call(stand_in, monkeypatch) -> None:
    """A graph has as many calls as are asked for, 20 at most."""
    grid = Grid(MPI.COMM_SELF, backend="cupy", rows=1)
    on: Any = grid.backend
    x = on.zeros((8,), np.float32)
    monkeypatch.setattr(type(on), "clock", lambda self: (lambda: None, lambda start, end: 6.0))
    for calls, expected in ((4, 1.5), (100, 0.3)):
        assert replay.seconds(lambda: x.fill(1), on, calls, 3) == pytest.approx(expected)
    grid.free()
