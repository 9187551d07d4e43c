"""Products on the stand-in for CuPy: ways of the kernels that small matrices do not take, and cuSPARSE."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn import local, rng
from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.local import cuda
from distgnn.local.cuda import csr, cusparse, launch
from distgnn.sampling import Replicated, sample_rows

pytestmark = pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)


def matrix(dtype=np.float32):
    """Make a matrix with half of the rows empty, and one a hundred times as long as the others."""
    random = np.random.default_rng(0)
    A = sp.random_array((300, 1000), density=0.01, rng=random).toarray()
    A[:150], A[7] = 0, random.standard_normal(1000)
    return sp.csr_array(A, dtype=dtype)


@pytest.mark.parametrize("tuned", ["0", "1"])
@pytest.mark.parametrize("width", [1, 5, 16, 130])
def test_long_rows_and_empty_ones(stand_in, width, tuned, monkeypatch):
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", tuned)
    on, A, random = backend.get("cupy"), matrix(), np.random.default_rng(1)
    B = random.standard_normal((1000, width)).astype(np.float32)
    block, placed = CSR.from_scipy(A, on), on.asarray(B)
    for _ in range(9):  # all variants have their turn
        np.testing.assert_allclose(local.spmm(block, placed).get(), A @ B, rtol=1e-4, atol=1e-4)
    added = local.spmm(block, placed, out=on.asarray(A @ B), accumulate=True)
    np.testing.assert_allclose(added.get(), 2 * (A @ B), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cusparse(stand_in, dtype):
    on, A, random = backend.get("cupy"), matrix(dtype), np.random.default_rng(1)
    block = CSR.from_scipy(A, on)
    for algorithm in (None, *cuda.cusparse.ALGORITHMS):
        B = random.standard_normal((1000, 4)).astype(dtype)
        out = on.asarray(np.ones((300, 4), dtype))
        cuda.spmm_cusparse(block, on.asarray(B), out, True, algorithm)
        np.testing.assert_allclose(out.get(), A @ B + 1, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_cusparse_in_16_bits(stand_in, kind):
    """A and B are rounded; sums and the result are of float32."""
    on, A, random = backend.get("cupy"), matrix(), np.random.default_rng(1)
    block, beyond = CSR.from_scipy(A, on), on.zeros((1,), np.int32)
    values = on.empty(block.data.shape, np.uint16)
    cuda.narrow(block.data, values, kind, beyond)
    product = cusparse.Products(on.xp, block, values, kind)

    def left(X: np.ndarray) -> np.ndarray:
        bits = local.narrow(X, np.empty(X.shape, np.uint16), kind, np.zeros(1, np.int32))
        return local.widen(bits, np.empty_like(X), kind)

    for algorithm in cuda.cusparse.ALGORITHMS:
        B = random.standard_normal((1000, 8)).astype(np.float32)
        out = on.asarray(np.ones((300, 8), np.float32))
        product.multiply(on.xp, algorithm, cuda.rounded(on.asarray(B), kind, beyond).bits, out, True)
        rounded = A.copy()
        rounded.data = left(A.data)
        np.testing.assert_allclose(out.get(), rounded @ left(B) + 1, rtol=1e-4, atol=1e-4)
        assert abs(out.get() - (A @ B + 1)).max() > 1e-3, "nothing was rounded"


def test_what_kernels_do_not_take(stand_in):
    on = backend.get("cupy")
    whole = CSR.empty((3, 3), 0, np.int64, on)
    with pytest.raises(ValueError, match="must be float32 or float64"):
        cuda.spmm(whole, on.zeros((3, 2), np.int64), on.zeros((3, 2), np.int64))
    with pytest.raises(ValueError, match="no kernel takes int8"):
        launch.c_type(on.zeros((3,), np.int8))
    with pytest.raises(TypeError, match="must be an array or a NumPy scalar"):
        launch.launch(on.xp, "rows.cu", "add_rows<float,1>", 1, 3)


def test_indices_at_odd_addresses_are_copied(stand_in):
    on = backend.get("cupy")
    odd = on.zeros((20,), np.uint8)[4:12].view(np.int64)
    assert launch.address(csr.aligned(odd)) % 8 == 0


@pytest.mark.parametrize(("width", "padded"), [(128, False), (70, True)])
def test_large_blocks_are_tried_sorted_and_padded(stand_in, width, padded, monkeypatch):
    """And their pieces are counted before the first product."""
    monkeypatch.setattr(csr, "LARGE", 1)
    on, random = backend.get("cupy"), np.random.default_rng(1)
    A = sp.random_array((200, 900), density=0.05, rng=random).toarray()
    A[7], A[:, :90] = random.standard_normal(900), random.standard_normal((200, 90))
    A = sp.csr_array(A, dtype=np.float32)
    B = random.standard_normal((900, width)).astype(np.float32)
    block, placed = CSR.from_scipy(A, on), on.asarray(B)
    for _ in range(30):
        np.testing.assert_allclose(local.spmm(block, placed).get(), A @ B, rtol=1e-3, atol=1e-3)
    plan = block.pattern["cuda"]
    (tuner,) = plan.tuners.values()
    assert {way.sorted for way in tuner.ways} == {True, False}
    assert any(way.padded for way in tuner.ways) == padded
    pieces = plan.pieces(tuner.ways[0].S)
    assert 0 < pieces.most == int(pieces.total[0]) < 2 * A.nnz // tuner.ways[0].S
    for way in tuner.ways:
        out = on.zeros((200, width), np.float32)
        cuda.spmm(block, placed, out, variant=way)
        np.testing.assert_allclose(out.get(), A @ B, rtol=1e-3, atol=1e-3)


def test_too_many_rows_for_their_numbers(stand_in):
    with pytest.raises(ValueError, match="a block of 2147483647 rows must be cut"):
        csr.RowFacts(None, SimpleNamespace(shape=(2**31 - 1, 1)))


@pytest.mark.parametrize("status", [0, 7])
def test_cusparse_is_preprocessed_once_per_width(stand_in, status, monkeypatch):
    calls = []

    def preprocess(*arguments):
        calls.append(arguments)
        return status

    def library(name, mode):
        if name != "libcusparse.so.12":
            raise OSError
        return SimpleNamespace(cusparseSpMM_preprocess=preprocess)

    monkeypatch.setattr(cusparse.ctypes, "CDLL", library)
    cusparse.function.cache_clear()
    on, A = backend.get("cupy"), matrix()
    block = CSR.from_scipy(A, on)
    out = on.empty((300, 4), np.float32)
    multiply = lambda B: cuda.spmm_cusparse(block, B, out, False, "CSR_ALG3")  # noqa: E731
    if status:
        with pytest.raises(RuntimeError, match="preprocess failed with status 7"):
            multiply(on.zeros((1000, 4), np.float32))
    else:
        multiply(on.zeros((1000, 4), np.float32))
        out = multiply(on.xp.ones((1000, 4), np.float32))  # elsewhere in memory
        np.testing.assert_allclose(out.get(), A @ np.ones((1000, 4)), rtol=1e-4, atol=1e-4)
        assert cusparse.preprocesses()
    assert len(calls) == 1 and len(calls[0]) == len(preprocess.argtypes) == 11
    cusparse.function.cache_clear()


def test_arguments_of_kernels_are_checked(stand_in):
    on = backend.get("cupy")
    with pytest.raises(ValueError, match=r"out must be a C-contiguous float32 array of shape \(2, 3\), got"):
        cuda.gather_rows(on.zeros((4, 3), np.float32), on.zeros((2,), np.int64), on.zeros((3, 2), np.float32))


def test_blocks_too_large_to_sort_are_transposed_on_the_host(stand_in, monkeypatch):
    on, A = backend.get("cupy"), matrix()
    block = CSR.from_scipy(A, on)
    sorted_there = block.transposed(on).to_scipy()
    monkeypatch.setattr(TUNING, "sorted_on_device", 0)
    found = block.transposed(on)
    assert found.data.device and (found.to_scipy() != sorted_there).nnz == 0 == (sorted_there != A.T).nnz


def test_samples_and_products_of_matrices_there(stand_in):
    """The rows of the matrices are in no order."""
    on, A = backend.get("cupy"), abs(matrix(np.float64))
    parts = [A.data.copy(), A.indices.copy(), A.indptr]
    for array in parts[:2]:
        array[A.indptr[7] : A.indptr[8]] = array[A.indptr[7] : A.indptr[8]][::-1]
    P = on.csr_matrix(tuple(map(on.asarray, parts)), A.shape)
    keys = rng.hashes(3, np.arange(300))
    drawn = sample_rows(P, 4, on.asarray(keys)).get()
    assert (sp.csr_array(drawn) != sample_rows(A, 4, keys)).nnz == 0
    graph, Q = Replicated(A, backend=on), sp.csr_array(np.eye(2, 300))
    ((rows, product),) = graph.row_blocks(Q)
    np.testing.assert_array_equal(product.data.get(), A[:2].data)
    assert rows == (0, 2)


def test_memory_is_told(stand_in):
    on = backend.get("cupy")
    before = on.peak_bytes()
    kept = on.zeros((1 << 20,), np.uint8)
    assert on.peak_bytes() >= before and on.peak_bytes() >= kept.nbytes and on.memory_bytes() == 80 << 30


def test_bundles_are_tried_beside_single_rows(stand_in):
    road = csr.Size(m=1 << 20, k=1 << 20, nnz=2 << 20, f=16, itemsize=4)
    first, *others = csr.candidates(road, 16)
    assert first.K == 8 and any(way.K == 1 and not way.sorted for way in others)


def test_draws_name_the_first_bad_row(stand_in):
    on, weights = backend.get("cupy"), np.ones(12)
    indptr, keys = on.asarray(np.arange(4) * 4), on.asarray(rng.hashes(0, np.arange(3)))
    for weight, row in ((1, -1), (-1, 1)):
        weights[4] = weight
        marks = on.empty((12,), np.uint8)
        assert cuda.sample_weighted(indptr, on.asarray(weights), 2, keys, marks) == row
