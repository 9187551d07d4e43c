"""The operator of one rank: rectangular, columns in any order, products without the other ranks."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from distgnn import local
from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.local import tuner
from distgnn.operators.dense import DistDense
from distgnn.operators.one_rank import Alone, OneRank
from distgnn.operators.operator import DistSparse
from loops import each


@pytest.mark.ranks(1, 2)
@each("shape", [(5, 9), (4, 4), (0, 3), (3, 0)])
@each("dtype", [np.float32, np.float64])
def test_products_and_adjoint(comm: Any, backend: Any, shape: tuple[int, int], dtype: Any) -> None:
    """Every rank has a matrix of its own, and none waits for another."""
    r = np.random.default_rng(comm.Get_rank())
    A = sp.csr_array(np.where(r.random(shape) < 0.5, r.standard_normal(shape), 0))
    flipped = np.concatenate(
        [np.arange(*row)[::-1] for row in zip(A.indptr, A.indptr[1:], strict=False)] or [[]]
    )
    flipped = flipped.astype(int)
    alone = Alone(dg.Grid(comm, backend=backend))
    entries = A.data[flipped], A.indices[flipped].astype(np.int64), A.indptr
    operator = DistSparse(OneRank(alone, shape, *entries, dtype))
    H, G = r.standard_normal((shape[1], 3)).astype(dtype), r.standard_normal((shape[0], 3)).astype(dtype)
    placed = [DistDense(backend.asarray(X), alone.whole, X.shape) for X in (H, G)]
    with dg.Ledger() as ledger:
        Z, back = operator @ placed[0], operator.T @ placed[1]
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(backend.to_host(Z.block), A @ H, **close)
    np.testing.assert_allclose(backend.to_host(back.block), A.T @ G, **close)
    assert operator.T.T is operator and ledger.words == 0


@pytest.mark.ranks(1)
def test_no_way_is_tried_out_on_a_block_of_a_minibatch(comm: Any, backend: Any, monkeypatch: Any) -> None:
    """The block is gone before one could be chosen. Products of other blocks try them."""
    monkeypatch.setattr(TUNING, "look_ahead_nonzeros", 1)
    alone, A = Alone(dg.Grid(comm, backend=backend)), sp.csr_array(np.ones((20, 20)))
    block = OneRank(alone, A.shape, A.data, A.indices, A.indptr, np.float32)
    H = backend.asarray(np.ones((20, 8), np.float32))
    trials = tuner.trials
    for _ in range(3):
        block.multiply(H, backend.empty(H.shape, H.dtype))
        block.multiply_adjoint(H, backend.empty(H.shape, H.dtype))
    assert tuner.trials == trials
    local.spmm(CSR.from_scipy(A, backend, np.float32), H)
    assert tuner.trials == trials + 1


def test_a_block_does_not_outlive_its_minibatch() -> None:
    """Nor does its adjoint: no circle of references keeps them until Python collects."""
    alone = Alone(dg.Grid(MPI.COMM_SELF, backend="numpy"))
    A = sp.random_array((7, 9), density=0.4, format="csr", rng=np.random.default_rng(0))
    operator = DistSparse(OneRank(alone, A.shape, A.data, A.indices, A.indptr, np.float64))
    operator.T.multiply(DistDense(np.ones((7, 2)), alone.whole, (7, 2)))
    block = weakref.ref(operator.algorithm.A)
    gc.disable()
    try:
        del operator
        assert block() is None
    finally:
        gc.enable()
