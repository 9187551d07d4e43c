"""The stand-in for CuPy computes by NumPy what the emulated kernels compute, for each of them."""

from __future__ import annotations

import itertools
from itertools import pairwise

import numpy as np
import pytest

from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.local import cuda
from distgnn.local.aggregate import Codes, code_type
from distgnn.local.cuda import launch
from distgnn.local.narrow import KINDS
from distgnn.local.update import Part, Update
from kernels.conftest import OTHER_KERNELS, VARIANTS, spmm_names

from ..sampling.test_relabel import SIZES, N, problem
from .semirings import cases
from .test_cuda_extract import random as sparse
from .test_cuda_sampling import LENGTHS, POINTERS, WEIGHTS, keys_of

pytestmark = [
    pytest.mark.timeout(600),  # the first test waits for the compiler
    pytest.mark.slow,
    pytest.mark.parametrize("any_gpu", ["emulated"], indirect=True),
    pytest.mark.parametrize("stand_in", ["cupy"], indirect=True),
]

#: What kernels leave that nobody but kernels of the same subject reads, or that has no use but for a kernel.
SCRATCH = {
    "cut_rows": ["pieces"],
    "spmm": ["workspace", "arrived"],
    "sum_squares": ["sums"],
    "sample_weighted": ["prefix"],
    "sample_ones": ["order"],
    "enter_ids": ["table", "slots"],
}
SPMM = [(16, VARIANTS["float32"][0]), (40, VARIANTS["float32"][4]), (5, VARIANTS["float32"][-1])]
SPMM += [(16, VARIANTS["float32"][-5]), (16, VARIANTS["float64"][0]), (5, VARIANTS["float64"][2])]
FILES = [file for file in OTHER_KERNELS if "/" not in file and file != "edges.cu"]  # which is emulated


@pytest.fixture
def on(any_gpu, stand_in, monkeypatch):
    """Return the backend. Kernels run twice, and must agree."""
    from cupy import _kernels
    from cupy._array import ndarray

    for file in FILES:
        any_gpu.xp.build(launch.source(file), OTHER_KERNELS[file])
    any_gpu.xp.build(launch.source("csr_spmm.cu"), spmm_names())
    init, seen = _kernels.RawKernel.__init__, set()

    def made(kernel, code, name, **options):
        init(kernel, code, name, **options)
        oracle, emulated = kernel._run, any_gpu.xp.RawModule(code=code, name_expressions=(name,))

        def both(grid, block, arguments):
            copies = tuple(x._numbers.copy() if isinstance(x, ndarray) else x for x in arguments)
            emulated.get_function(name)(grid, block, copies)
            oracle(grid, block, arguments)
            for parameter, one, other in zip(kernel.parameters, arguments, copies, strict=True):
                if isinstance(one, ndarray) and not parameter.constant:
                    if parameter.name not in SCRATCH.get(kernel.name, ()):
                        agree(kernel.name, parameter.name, one._numbers, other)
                    one._numbers[...] = other
            seen.add(kernel.name)

        kernel._run = both

    monkeypatch.setattr(_kernels.RawKernel, "__init__", made)
    launch.kernel.cache_clear()
    chosen = backend.get("cupy")
    chosen.compared = seen
    yield chosen
    del chosen.compared
    launch.kernel.cache_clear()


def agree(kernel, name, one, other):
    told = f"{name} of {kernel}"
    if one.dtype.kind == "f":
        close = {"rtol": 2e-5, "atol": 1e-5} if one.dtype == np.float32 else {"rtol": 1e-11, "atol": 1e-13}
        np.testing.assert_allclose(one, other, **close, err_msg=told)
    else:
        np.testing.assert_array_equal(one, other, err_msg=told)


def products(on):
    random = np.random.default_rng(0)
    for at, (f, way) in enumerate(SPMM):
        dtype = np.float32 if at < 4 else np.float64
        A = sparse((61, 900), dtype, at)
        A.data[:] = random.standard_normal(A.nnz)
        for accumulate in (False, True):
            out = on.asarray(random.standard_normal((61, f)), dtype)
            B = on.asarray(random.standard_normal((900, f)), dtype)
            cuda.spmm(CSR.from_scipy(A, on), B, out, accumulate, way)
            if dtype == np.float32:
                for kind in KINDS:
                    cuda.spmm(CSR.from_scipy(A, on), cuda.rounded(B, kind), out, accumulate)


def rows(on):
    random = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        for f, count in ((1, 17), (2, 29), (7, 0), (12, 5), (41, 29), (128, 3)):
            X = on.asarray(random.standard_normal((29, f)), dtype)
            some = on.asarray(random.permutation(29)[:count])
            cuda.scatter_add(cuda.gather_rows(X, some, on.empty((count, f), dtype)), some, X)


def aggregates(on):
    for dtype, f in ((np.float32, 1), (np.float32, 5), (np.float32, 40), (np.float64, 8)):
        for how, codes, A, B in cases(dtype, f):
            on_gpu = CSR.from_scipy(A, on, dtype)
            codes = Codes(codes.first, None if codes.table is None else on.asarray(codes.table))
            T, C = on.empty((A.shape[0], f), dtype), on.empty((A.shape[0], f), code_type(dtype))
            for merge in (False, True):
                cuda.best(on_gpu, on.asarray(B), codes, how, T, C, merge)
            At = CSR.from_scipy(A.T, on, dtype)
            G = on.asarray(np.random.default_rng(0).standard_normal(T.shape), dtype)
            cuda.best_back(At, G, C, codes, how, on.empty(B.shape, dtype))


def passes(on):
    random = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        for m, f in ((0, 3), (1, 1), (7, 5), (33, 8), (19, 41), (683, 3)):
            X = on.asarray(random.standard_normal((m, f)), dtype)
            ids = on.asarray(10**12 + random.permutation(m)), on.asarray(np.arange(f))
            for relu in (False, True):
                cuda.dropout(X, on.empty((m, f), dtype), 42, *ids, 0.6, relu)
                cuda.activate(X, X.copy(), (42, *ids, 0.6), relu, remember=True)
                cuda.activate(X, X.copy(), None, relu, remember=True)
                cuda.activate(X, X.copy(), None, relu, bias=on.asarray(random.standard_normal((1, f)), dtype))
            gain, shift = (on.asarray(random.standard_normal((1, f)), dtype) for _ in range(2))
            rows = X.copy()
            scales = cuda.layer_norm(rows, gain, shift, 1e-5, rows, on.empty((m, f), dtype))
            cuda.layer_norm_backward(rows, scales, gain, X.copy())
            cuda.layer_norm(rows, gain, gain, 1e-5, None, rows)
            cuda.keep_positive(X.copy(), on.xp.packbits(X.reshape(-1) > 0), 1.5)
            trained = np.flatnonzero(random.random(m) < 0.7)
            position = np.full(m, -1, np.int32)
            position[trained] = np.arange(trained.size)
            labels = on.asarray(random.integers(0, f, trained.size))
            cuda.softmax_cross_entropy(X * 30, on.asarray(position), labels, None, 5)
            places = on.asarray(trained), labels, on.asarray(1 + trained % 3)
            cuda.count_hits(X, *places)
            cuda.count_hits(X / on.asarray(random.integers(0, 5, (m, 1)), dtype), *places)
            marks = on.asarray(random.integers(0, 2, (trained.size, f)), np.uint8)
            cuda.binary_cross_entropy(X * 30, on.asarray(position), marks, None, 0.2)


def updates(on):
    """Update nine parameters by two launches; two have too large a number, one before the step, one after."""
    random = np.random.default_rng(1)
    for dtype, clip, steady in itertools.product((np.float32, np.float64), (None, 0.5, 1e9), (False, True)):
        for kind, slots, constants in (
            ("adam", 2, {"first": 0.9, "second": 0.99, "epsilon": 1e-8}),
            ("sgd", 1, {"momentum": 0.9}),
            ("sgd", 0, {"momentum": 0.0}),
        ):
            parts = [
                Part(*arrays[:2], (*arrays[2:],), 0.9, 0.1 * (size > 99))
                for size in (300, 0, 5, 256, 1, 90, 1000, 7, 130)
                for arrays in [[on.asarray(random.random(size), dtype) for _ in range(2 + slots)]]
            ]
            parts[3].gradient[4], parts[8].w[2] = np.finfo(dtype).max / 2, -np.finfo(dtype).max
            square = None if clip is None else on.asarray(np.zeros(1))
            if square is not None:
                cuda.sum_squares([part.gradient for part in parts if part is not parts[3]], square)
            rates = (0.1, 0.3)[: 1 + (kind == "adam")]
            numbers = [*rates, *np.linspace(0.7, 0.8, 8)]
            factors = on.asarray(np.tile(numbers[: len(rates) + 8], (2, 1))) if steady else None
            update = Update(rates, on.asarray(np.zeros(18, np.int32)), square, clip or 0.0, factors)
            getattr(cuda, kind)(parts, update, **constants)


def roundings(on):
    random = np.random.default_rng(0)
    for kind in KINDS:
        for m, f in ((0, 3), (1, 1), (29, 2), (19, 41), (61, 128)):
            sizes = 10.0 ** random.integers(-12, 7, (m, 1))
            X = on.asarray(sizes * random.standard_normal((m, f)), np.float32)
            bits = on.empty((m, f), np.uint16)
            cuda.narrow(X, bits, kind)
            cuda.narrow_rows(X, on.asarray(random.permutation(m)), on.empty((m, f), np.uint16), kind)
            for accumulate in (False, True):
                cuda.widen(bits, X, kind, accumulate)


def draws(on):
    pointers, keys = on.asarray(POINTERS), on.asarray(keys_of(len(LENGTHS)))
    for count in (0, 1, 32, 70):
        for weights in WEIGHTS.values():
            arguments = pointers, on.asarray(weights), count, keys, on.empty(weights.shape, np.uint8)
            left = on.empty((len(LENGTHS), count + 1), np.float64)
            cuda.draw_weighted(*arguments, left)
            if weights.all():
                sums = np.concatenate([np.cumsum(weights[i:j]) for i, j in pairwise(POINTERS)])
                cuda.draw_weighted(*arguments, left, on.asarray(sums))
        cuda.inclusion(on.asarray(np.ones(POINTERS[-1])), pointers, left + 1, keys)
        cuda.sample_ones(pointers, on.asarray(np.arange(len(LENGTHS))[::-1].copy()), count, keys)


def extracts(on):
    for dtype, index in ((np.float32, np.int32), (np.float64, np.int64)):
        Q, A = sparse((20, 50), dtype, 1), sparse((50, 37), dtype, 2)
        there, other = (
            cuda.Product(*map(on.asarray, (M.indptr.astype(np.int64), ids, M.data)), M.shape)
            for M, ids in ((A, A.indices.astype(index)), (Q, Q.indices.astype(np.int64)))
        )
        cuda.spgemm(other, there, there.indptr)
        lists = (on.asarray(np.array([0, 3, 3, 9])), on.asarray(np.array([4, 1, 49, 0, 7, 14, 2, 9, 33])))
        cols = (on.asarray(np.array([0, 2, 5, 9])), on.asarray(np.array([5, 9, 0, 1, 5, 3, 5, 20, 36])))
        places, owners, _ = cuda.entries_of(there.indptr, lists[1])
        cuda.row_keys(lists, on.asarray(keys_of(3)))
        found = cuda.find_columns(lists, cols, (places, owners), there.indices)
        count = int(found[1][-1])
        for scale in (None, on.asarray(np.linspace(0.5, 2, 9))):
            cuda.keep_entries(lists, cols, (places, owners), found, count, there.data, scale)
        cuda.compact(found[1], count)
    for sizes in SIZES:
        given = [tuple(map(on.asarray, stack.arrays)) for stack in problem(sizes)]
        numbering = cuda.Numbering(*given, N)
        numbering.numbers(int(numbering.bounds[-1]))


def test_every_kernel_agrees_with_its_oracle(on):
    from cupy._kernels import declared

    for scenario in (products, aggregates, rows, passes, updates, roundings, draws, extracts):
        scenario(on)
    files = [*FILES, "csr_spmm.cu"]
    assert on.compared == {name for file in files for name in declared(launch.source(file))}
