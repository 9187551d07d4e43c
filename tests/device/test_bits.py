"""Equal results of a training, however arrays move between ranks."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from distgnn import gallery
from distgnn.arrays.tuning import TUNING
from distgnn.nn import GCN, Adam
from distgnn.operators import make_grid
from distgnn.operators.registry import ALGORITHMS
from distgnn.train.full_graph import train
from mpi_helpers import gpu

N, WIDTH, CLASSES = 48, 9, 3


def trained(comm, algorithm, way, monkeypatch, wire=None):
    """Return losses and weights of an epoch, as bytes.

    `way`: CUDA-aware MPI, host copies or NCCL; `wire`: of the grid.
    """
    A = gallery.rmat(N, degree=8).A.astype(np.float32)
    random = np.random.default_rng(0)
    with gpu.backend(way, monkeypatch) as backend:
        grid = make_grid(comm, algorithm, backend=backend, wire=wire)
        model = GCN(dg.distribute(A, grid, algorithm), [WIDTH, WIDTH, CLASSES], dropout=0.5, bias=True)
        targets = model.targets(random.integers(0, CLASSES, N), np.ones(N, np.uint8))
        H = dg.scatter(random.standard_normal((N, WIDTH)).astype(np.float32), model.input_layout)
        losses = [record["loss"] for record in train(model, H, targets, Adam(0.01), 1)]
        weights = [backend.to_host(p.block).tobytes() for p in model.parameters]
        grid.free()
    return np.array(losses).tobytes(), weights


@pytest.mark.slow  # three trainings
@pytest.mark.ranks(4)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_losses_are_equal_to_the_bit(comm, algorithm, monkeypatch):
    """Sums are made in the order of the ranks where MPI does not make them; so the stand-in's NCCL has it."""
    if gpu.real():
        pytest.skip("whether MPI is CUDA-aware is known once per process")
    monkeypatch.setattr(TUNING, "small_sum", 0)
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "0")
    runs = [trained(comm, algorithm, way, monkeypatch) for way in (gpu.AWARE, gpu.STAGED, gpu.NCCL)]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.slow
@pytest.mark.ranks(4)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_so_they_are_where_messages_have_16_bits(comm, algorithm, monkeypatch):
    """Rounded on the device and added up there or on the host."""
    if gpu.real():
        pytest.skip("whether MPI is CUDA-aware is known once per process")
    monkeypatch.setattr(TUNING, "small_sum", 0)
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "0")
    ways = (gpu.AWARE, gpu.STAGED, gpu.NCCL)
    aware, staged, by_nccl = (trained(comm, algorithm, way, monkeypatch, "float16") for way in ways)
    assert aware == staged == by_nccl
    assert aware != trained(comm, algorithm, gpu.AWARE, monkeypatch)
