"""Epochs as CUDA graphs on the GPU that there is, else on the stand-in: losses are those without graphs."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from loops import each
from mpi_helpers import gpu

from .test_epoch_graph import OPTIMIZERS, Problem, stand_in_of_cublas, untuned, warm

__all__ = ["untuned"]


@pytest.mark.ranks(1)
@each(
    "options",
    [
        {}, {"dropout": 0.5, "bias": True}, {"model": "sage", "dtype": np.float64},
        {"model": "gat", "heads": 2, "dropout": 0.5, "attention_dropout": 0.3},
        {"model": "gatv2", "heads": 2},
    ],
)  # fmt: skip
@each("make", OPTIMIZERS[:3])
def test_losses(comm, backend, caplog, options, make):
    """On a GPU, sums may be rounded otherwise where cuBLAS has another workspace."""
    if not backend.on_device:
        pytest.skip("graphs are for GPUs")
    caplog.set_level(logging.INFO, logger="distgnn.train.epoch_graph")
    losses = []
    with pytest.MonkeyPatch.context() as patch:
        if not gpu.real():
            stand_in_of_cublas(patch)
        for cuda_graph in (False, True):
            caplog.clear()
            problem, optimizer = Problem(comm, **options), make()
            how = {"before": warm(optimizer, problem.model), "eval_every": 3}
            seen, _ = problem.trained(optimizer, 12, cuda_graph, **how)
            losses.append([epoch["loss"] for epoch in seen])
            assert ("an epoch is two CUDA graphs" in caplog.text) == cuda_graph, caplog.text
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
