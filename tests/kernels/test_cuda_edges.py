"""Kernels over entries against a reference in double precision, on a GPU or its emulation."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.local import cuda
from distgnn.local.cuda import edges
from kernels import edge_cases as cases
from kernels.conftest import in_orders
from kernels.test_cuda_spmm import block_of
from loops import each


def machine(gpu):
    return SimpleNamespace(
        block=partial(block_of, gpu), asarray=gpu.asarray, to_host=gpu.to_host, dots=cuda.edge_dots,
        multiply=cuda.edge_products, softmax=cuda.edge_softmax, softmax_back=cuda.edge_softmax_back,
        scores=cuda.edge_scores, slope_sums=cuda.edge_slopes,
    )  # fmt: skip


@pytest.fixture(params=["rows whole", "rows cut"], autouse=True)
def cut(request, monkeypatch):
    if request.param == "rows cut":
        monkeypatch.setattr(edges, "LONGEST", 4)
        monkeypatch.setattr(edges, "CUT_FROM", 0)


@each("dtype, index", cases.KINDS)
@each("bounds", cases.BOUNDS)
def test_products_and_dot_products_by_head(gpu, dtype, index, bounds):
    cases.check_dots(machine(gpu), dtype, index, bounds)
    cases.check_multiply(machine(gpu), dtype, index, bounds)


@each("dtype, index", cases.KINDS)
@each("bounds", [*cases.BOUNDS, [0, 48], [0, 8, 24, 24, 136]])
def test_additive_scores_and_sums_of_slopes(gpu, dtype, index, bounds):
    cases.check_additive(machine(gpu), dtype, index, bounds)


@each("dtype, index", cases.KINDS)
@each("heads", cases.HEADS)
@each("cuts", [1, 3])
@each("scale", [1, 300])
def test_softmax_over_rows_and_its_adjoint(gpu, dtype, index, heads, cuts, scale):
    cases.check_softmax(machine(gpu), dtype, index, heads, scale, cuts)


def test_blocks_in_any_order(gpu):
    for _ in in_orders(gpu, (0, 1, 5)):
        cases.check_softmax(machine(gpu), np.float32, np.int32, 3, 1, 3)


def long_rows(length):
    """Make a pattern of 31 columns with a row of so many entries, with duplicates, among shorter ones."""
    r = np.random.default_rng(8)
    lengths = r.integers(0, 70, 40)
    lengths[[0, 1, 30]] = 0
    lengths[[7, 39]] = length, length // 2 + 3
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    indices = r.integers(0, 31, indptr[-1])
    return sp.csr_array((r.standard_normal(indptr[-1]), indices, indptr), shape=(40, 31))


@each("heads", [1, 2, 8, 33])
def test_rows_of_many_pieces(gpu, monkeypatch, heads):
    """Two rows have more entries than a warp goes through alone."""
    length, longest = (1500, 32) if gpu.emulation else (100_000, 256)
    monkeypatch.setattr(edges, "LONGEST", longest)
    monkeypatch.setattr(edges, "CUT_FROM", 0)
    A = long_rows(length)
    monkeypatch.setattr(cases, "pattern", lambda seed=0: A)
    for dtype, cuts in ((np.float32, 1), (np.float64, 1), (np.float64, 2)):
        cases.check_softmax(machine(gpu), dtype, np.int32, heads, 1, cuts)
    bounds = [4 * head for head in range(heads + 1)]
    for check in (cases.check_dots, cases.check_multiply, cases.check_additive):
        check(machine(gpu), np.float64, np.int32, bounds)


def test_bits_do_not_depend_on_which_piece_comes_last(gpu, monkeypatch):
    monkeypatch.setattr(edges, "LONGEST", 8)
    monkeypatch.setattr(edges, "CUT_FROM", 0)
    A = long_rows(300)
    block, (m, k), heads = block_of(gpu, A, np.float32), A.shape, 3
    u, v, B, given = (gpu.asarray(cases.numbers(shape, np.float32, 7)) for shape in
                      ((m, heads), (k, heads), (k, 24), (A.nnz, heads)))  # fmt: skip
    bounds, seen = [0, 8, 16, 24], set()
    for _ in in_orders(gpu, (0, 1, 5), times=5):
        P, out, totals = (gpu.nan(shape, np.float32) for shape in ((A.nnz, heads), (m, 24), (m, heads)))
        totals[...] = 0
        cuda.edge_softmax(block, P, None, None, 7, (u, v), 0.2, None, 0)
        cuda.edge_products(block, P, B, bounds, out, False, None)
        D = given.copy()
        cuda.edge_softmax_back(block, P, D, None, totals, 3, 1, None, 0)
        seen.add(b"".join(gpu.to_host(X).tobytes() for X in (P, out, D, totals)))
    assert len(seen) == 1


def test_tasks_are_made_once_for_a_pattern(gpu):
    A = block_of(gpu, cases.pattern(), np.float32)
    assert edges.Tasks.of(A) is edges.Tasks.of(A.with_values(A.data * 2))


def test_what_no_kernel_can_walk_is_refused(gpu):
    A = block_of(gpu, cases.pattern(), np.float32)
    ones = lambda *shape: gpu.asarray(np.ones(shape, np.float32))  # noqa: E731
    bits = lambda width: gpu.asarray(np.zeros((A.nnz, width), np.uint8))  # noqa: E731
    m, k = A.shape
    refused = {
        "out must be": lambda: cuda.edge_dots(A, ones(m, 8), ones(k, 8), [0, 8], ones(A.nnz, 2)),
        "V must be": lambda: cuda.edge_dots(A, ones(m, 8), ones(m, 8), [0, 8], ones(A.nnz, 1)),
        "bounds must go": lambda: cuda.edge_products(
            A, ones(A.nnz, 1), ones(k, 8), [0, 7], ones(m, 8), False, None),
        "order must be": lambda: cuda.edge_products(
            A, ones(A.nnz, 1), ones(k, 8), [0, 8], ones(m, 8), False, ones(A.nnz)),
        "maxima must be": lambda: cuda.edge_softmax(
            A, ones(A.nnz, 2), ones(m, 1), ones(m, 2), 7, None, 1, None, 0),
        "signs: need": lambda: cuda.edge_softmax(
            A, ones(A.nnz, 2), ones(m, 2), ones(m, 2), 7, None, 1, gpu.asarray(np.zeros(4, np.uint8)), 0),
        "signs must be": lambda: cuda.edge_scores(
            A, ones(m, 8), ones(k, 8), ones(8), [0, 8], 1, ones(A.nnz, 1), bits(2)),
        "bounds must go from 0 to 8": lambda: cuda.edge_scores(
            A, ones(m, 8), ones(k, 8), ones(8), [0, 9], 1, ones(A.nnz, 1), bits(1)),
        "signs must have": lambda: cuda.edge_slopes(
            A, ones(A.nnz, 1), bits(1)[:3], 1, [0, 8], ones(m, 8), False, None),
        "totals must be": lambda: cuda.edge_softmax_back(
            A, ones(A.nnz, 2), ones(A.nnz, 2), ones(m, 2), ones(m, 1), 3, 1, None, 0),
    }  # fmt: skip
    for message, call in refused.items():
        with pytest.raises(ValueError, match=message):
            call()
