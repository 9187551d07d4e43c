"""Overlap of messages with a GPU's computation, shown by the order of events on the stand-in for CuPy."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.comm.flight import Flight
from mpi_helpers import gpu
from summed_product import multiply

N, F = 400, 16
A = sp.random_array((N, N), density=0.05, format="csr", dtype=np.float32, rng=np.random.default_rng(0))
X = np.random.default_rng(1).standard_normal((N, F)).astype(np.float32)


LOOKS = {"kernels": 0, "nccl": 1 << 30}
"""How often an event is asked before the host sees the end of what is computed, and of a sum by NCCL. Copies
are quick.
"""


@pytest.fixture(params=[gpu.AWARE, gpu.STAGED, gpu.NCCL])
def device(request, monkeypatch):
    """Yield the stand-in, once for each way in which arrays move."""
    if gpu.real():
        pytest.skip("a GPU does not tell the order of its work")
    with gpu.backend(request.param, monkeypatch) as chosen:
        event = chosen.xp.cuda.Event
        record = event.record

        def recorded(self, stream=None):
            record(self, stream)
            lanes = {lane.ptr: name for name, lane in chosen._lanes.items()}
            self.looks = LOOKS.get(lanes.get(chosen.stream(), "kernels"), 0)

        monkeypatch.setattr(event, "record", recorded)
        monkeypatch.setattr(TUNING, "small_sum", 0)
        monkeypatch.setattr(TUNING, "smallest_sum_block_on_device", 1024)
        yield chosen


def observed(device, work, kernels=40):
    """Return the events that the stand-in saw, once the tuner has tried all kernels."""
    stand_in = importlib.import_module("cupy.stand_in")
    for _ in range(20):
        work()
    device.synchronize()
    with pytest.MonkeyPatch.context() as patch, stand_in.observed() as seen:
        patch.setitem(LOOKS, "kernels", kernels)
        work()

    def beside(one, other):
        return stand_in.beside(*sorted((one, other), key=seen.log.index))

    return seen, beside


@pytest.mark.ranks(2)
def test_row_blocks_are_summed_beside_the_next_products(comm, device):
    grid = dg.Grid(comm, backend=device)
    block, H, out = CSR.from_scipy(A, device), device.asarray(X), device.zeros((N, F), np.float32)
    group = grid.along("rows")
    seen, beside = observed(device, lambda: multiply(grid, group, block, H, out))
    kernels = [work for work in seen.log if work.name.startswith("spmm")]
    name = "nccl allReduce" if group.by_nccl else "Isend" if group.direct else "device to host"
    first = seen.named(name)[0]
    assert len(kernels) == 4 and not (seen.synchronizations or seen.counts["pinned"])
    assert all(beside(first, kernel) for kernel in kernels[1:]) and not beside(first, kernels[0])
    np.testing.assert_allclose(device.to_host(out), comm.Get_size() * (A @ X), rtol=1e-4, atol=1e-4)
    grid.free()


@pytest.mark.ranks(2)
def test_panels_arrive_beside_the_product_with_the_first(comm, device):
    """No rank waits for the end of that product."""
    grid = dg.Grid(comm, backend=device)
    operator = dg.distribute(A, grid, "1d")
    H = dg.scatter(X, operator.input_layout)
    seen, beside = observed(device, lambda: operator @ H, kernels=1 << 30)
    own, other = (work for work in seen.log if work.name.startswith("spmm"))
    by_nccl = grid.world.by_nccl
    name = "nccl broadcast" if by_nccl else "Irecv" if grid.world.direct else "host to device"
    came = seen.named(name)
    assert len(came) == (2 if by_nccl else 1) and all(beside(own, one) for one in came)  # all roots' at once
    assert not (seen.synchronizations or seen.counts["pinned"])
    assert grid.world.direct or not any(beside(one, other) for one in came)
    grid.free()


@pytest.mark.parametrize(("after", "waits"), [(1, 0), (5, 1)])
def test_waiting_for_kernels_is_no_wait_for_messages(after, waits):
    """The ledger's comm is what is left to wait for when all is computed, here at the third look."""
    kernels, messages = iter([False, False, True]), iter([False] * after)
    flight = Flight(MPI.COMM_SELF, "bcast", "rows", "H", computed=lambda: lambda: next(kernels, True))
    with dg.Ledger(timing=True) as told:
        flight.until(lambda: next(messages, True))
    assert sum(entry["operation"] == "bcast" for entry in told.entries()) == waits


def test_a_kernel_that_failed_is_an_error(device, monkeypatch):
    mark = device.mark()
    monkeypatch.setattr(device.xp.cuda.runtime, "eventQuery", lambda event: 700)
    with pytest.raises(device.xp.cuda.runtime.CUDARuntimeError):
        mark()
