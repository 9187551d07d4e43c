"""The CSR SpMM kernels and their dispatch against SciPy, on awkward shapes, executed on a GPU or its
emulation.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.local import cuda
from distgnn.local.cuda import csr, launch
from distgnn.local.spmm import _spmm_kernel
from kernels.conftest import VARIANTS, names_of, spmm_names

pytestmark = pytest.mark.timeout(600)  # the first test waits for the compiler

WIDTHS = {
    "float32": (1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 41, 64, 100, 128, 130, 256, 602, 1024),
    "float64": (1, 3, 8, 41, 64, 130, 602),
}
TOLERANCE = {"float32": 2e-4, "float64": 1e-11}


def matrix(average: float, hubs: tuple[int, ...] = (), m: int = 61, k: int = 53) -> sp.csr_array:
    """Rows of about ``average`` non-zeros, a quarter of them empty, some rows with exactly so many as
    ``hubs`` says.
    """
    rng = np.random.default_rng(int(average * 10) + len(hubs))
    lengths = rng.integers(0, int(2 * average) + 1, m) * (rng.random(m) < 0.75)
    for row, length in zip((5, m - 1, 0), hubs, strict=False):
        lengths[row] = length
    indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    indices = rng.integers(0, k, indptr[-1]).astype(np.int32)  # repeated entries are part of the bargain
    return sp.csr_array((rng.standard_normal(indptr[-1]), indices, indptr), shape=(m, k))


HUBS = matrix(6, (700, 1300))
AVERAGES, LENGTHS = (0.5, 20, 70, 300), (0, 1, 17)  # of test_degrees


def block_of(gpu, A, dtype, index=np.int32):
    """The matrix as a block with this index type, on the GPU."""
    host = np.empty(CSR.nbytes(A.shape, A.nnz, index, dtype), np.uint8)
    block = CSR(A.shape, A.nnz, index, dtype, host)
    block.data[...], block.indices[...], block.indptr[...] = A.data, A.indices, A.indptr
    return block if gpu.emulated else CSR(A.shape, A.nnz, index, dtype, gpu.asarray(host))


def dense(shape, dtype, seed=0):
    """Random numbers of this type, and as float64."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return x, x.astype(np.float64)


def product(gpu, block, B, **options):
    """A B, in an array that held something else."""
    return cuda.spmm(block, B, gpu.nan((block.shape[0], B.shape[1]), block.dtype), **options)


def close(got, expected, dtype):
    np.testing.assert_allclose(
        got, expected, rtol=TOLERANCE[np.dtype(dtype).name], atol=TOLERANCE[np.dtype(dtype).name]
    )


@pytest.fixture
def built(gpu, any_gpu, monkeypatch):
    """The kernels that most tests need, compiled in one go; no tuning unless a test asks for it."""
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "0")
    if gpu.emulated and not getattr(any_gpu, "built", False):
        names = set(spmm_names()) | set(names_of_products())
        any_gpu.xp.build(launch.source(csr.FILE), sorted(names))
        any_gpu.built = True
    return gpu


def names_of_products() -> list[str]:
    """What the tests below will ask for."""
    average = HUBS.nnz / HUBS.shape[0]
    names = []
    for dtype, widths in WIDTHS.items():
        size = np.dtype(dtype).itemsize
        for f in widths:
            names += names_of(dtype, csr.candidates(f, size, 256, average)[0])
        for f in (4, 8, 41):
            names += names_of(dtype, csr.candidates(f, size, size, average)[0])
    degrees = [("float32", 16, matrix(a, LENGTHS).nnz / 61) for a in AVERAGES]
    for dtype, f, degree in [
        *degrees,
        ("float64", 256, average),
        ("float32", 4, 1),
        ("float32", 1, 0),
        ("float32", 8, 0),
    ]:
        names += names_of(dtype, csr.candidates(f, np.dtype(dtype).itemsize, 256, degree)[0])
    for f in (8, 16, 41, 256):
        for way in csr.candidates(f, 4, 256, 20) + csr.candidates(f, 4, 256, average):
            names += names_of("float32", way)
    return names


@pytest.mark.parametrize(("dtype", "f"), [(dtype, f) for dtype, widths in WIDTHS.items() for f in widths])
def test_widths(built, dtype, f):
    gpu = built
    block = block_of(gpu, HUBS, dtype)
    (B, exact), (C, _) = dense((block.shape[1], f), dtype), dense((block.shape[0], f), block.dtype, 1)
    on_gpu, out = gpu.asarray(B), gpu.nan(C.shape, block.dtype)
    assert cuda.spmm(block, on_gpu, out) is out
    close(gpu.to_host(out), HUBS @ exact, dtype)
    out = gpu.asarray(C)
    cuda.spmm(block, on_gpu, out, accumulate=True)
    close(gpu.to_host(out), HUBS @ exact + C, dtype)


@pytest.mark.parametrize(
    ("dtype", "variant"), [(dtype, v) for dtype, vs in VARIANTS.items() for v in vs], ids=str
)
def test_every_variant_in_every_order(built, dtype, variant):
    gpu = built
    f = variant.V * variant.G * (variant.C * 2 if variant.G == 32 else 1) - (
        variant.V if variant.G > 1 else 0
    )
    block = block_of(gpu, HUBS, dtype)
    B, exact = dense((block.shape[1], f), dtype)
    bits = []
    for order in (0, 1, 11) if gpu.emulated else (0,):
        if gpu.emulated:
            gpu.xp.order = order
        out = gpu.nan((block.shape[0], f), block.dtype)
        cuda.spmm(block, gpu.asarray(B), out, variant=variant)
        close(gpu.to_host(out), HUBS @ exact, dtype)
        bits.append(gpu.to_host(out).tobytes())
    assert len(set(bits)) == 1


@pytest.mark.parametrize("f", [8, 16, 41, 256])
def test_candidates_give_the_same_bits(built, f):
    gpu = built
    block = block_of(gpu, HUBS, np.float32)
    B = gpu.asarray(dense((block.shape[1], f), np.float32)[0])
    ways = csr.candidates(f, 4, 256, 20)
    assert len(ways) > 1 and any(way.padded for way in ways) == (f % 4 != 0)
    results = {gpu.to_host(product(gpu, block, B, variant=way)).tobytes() for way in ways}
    assert len(results) == 1


def test_candidates_fill_a_warp_and_cover_the_columns():
    for itemsize in (4, 8):
        for f in [*range(1, 140), 256, 257, 602, 1024]:
            for average in (0, 3, 17, 100, 5000):
                for alignment in (4, 8, 256):
                    if alignment < itemsize:
                        continue
                    ways = csr.candidates(f, itemsize, alignment, average)
                    assert len({(way.P, way.L) for way in ways}) == 1
                    for way in ways:
                        assert way.G * way.P <= 32 and way.G * way.L <= 32 and way.U >= 1
                        assert way.panels(f) * way.V * way.C * way.G >= f
                        assert way.V * itemsize <= 16 and (
                            way.padded or (f % way.V == 0 and alignment % (way.V * itemsize) == 0)
                        )
                        assert way.panels(f) == 1 or way.G == 32


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_indices(built, dtype):
    gpu = built
    variant = VARIANTS[dtype][0]
    B, exact = dense((HUBS.shape[1], variant.V * variant.G), dtype)
    wide = block_of(gpu, HUBS, dtype, np.int64)
    close(gpu.to_host(product(gpu, wide, gpu.asarray(B), variant=variant)), HUBS @ exact, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("f", [4, 8, 41])
def test_arrays_at_any_address(built, dtype, f):
    gpu = built
    block = block_of(gpu, HUBS, dtype)
    (B, exact), (C, _) = dense((block.shape[1], f), dtype), dense((block.shape[0], f), block.dtype, 1)
    for place_B, place_out in (
        (gpu.misaligned, gpu.asarray),
        (gpu.asarray, gpu.misaligned),
        (gpu.misaligned, gpu.misaligned),
    ):
        out = place_out(C)
        cuda.spmm(block, place_B(B), out, accumulate=True)
        close(gpu.to_host(out), HUBS @ exact + C, dtype)


@pytest.mark.parametrize("average", AVERAGES)
def test_degrees(built, average):
    """Few and many non-zeros per row: all numbers of teams, and rows that are long for another matrix."""
    gpu = built
    A = matrix(average, LENGTHS)
    block = block_of(gpu, A, np.float32)
    B, exact = dense((A.shape[1], 16), np.float32)
    close(gpu.to_host(product(gpu, block, gpu.asarray(B))), A @ exact, np.float32)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (5, 7), (1, 1)])
@pytest.mark.parametrize("f", [0, 1, 8])
def test_nothing_to_multiply(built, shape, f):
    gpu = built
    block = block_of(gpu, sp.csr_array(shape), np.float32)
    out = gpu.nan((shape[0], f), np.float32)
    cuda.spmm(block, gpu.asarray(np.ones((shape[1], f), np.float32)), out)
    np.testing.assert_array_equal(gpu.to_host(out), 0)
    again = gpu.asarray(np.full((shape[0], f), 3, np.float32))
    cuda.spmm(block, gpu.asarray(np.ones((shape[1], f), np.float32)), again, accumulate=True)
    np.testing.assert_array_equal(gpu.to_host(again), 3)


def test_plan(built):
    """Long rows are cut where they are long for their matrix; accumulating visits rows with non-zeros."""
    gpu = built
    block = block_of(gpu, HUBS, np.float32)
    plan = csr.Plan.of(gpu.xp, block)
    assert csr.Plan.of(gpu.xp, block) is plan
    lengths = np.diff(HUBS.indptr)
    long_rows, short_rows = (
        np.flatnonzero(lengths > plan.threshold),
        np.flatnonzero(lengths <= plan.threshold),
    )
    assert plan.longest == 1300 and list(long_rows) == [5, 60]
    np.testing.assert_array_equal(gpu.to_host(plan.long_rows), long_rows)
    np.testing.assert_array_equal(gpu.to_host(plan.short_rows), short_rows)
    np.testing.assert_array_equal(
        gpu.to_host(plan.filled_rows), np.flatnonzero((lengths <= plan.threshold) & (lengths > 0))
    )
    cut = plan.segments(gpu.xp, 128)
    assert plan.segments(gpu.xp, 128) is cut
    begin, length, first = (gpu.to_host(x) for x in (cut.begin, cut.length, cut.first))
    assert cut.count == len(begin) == 6 + 11 and list(first) == [0, 6, 17] and length.max() <= 128
    for row, lo, hi in zip(long_rows, first, first[1:], strict=False):
        pieces = [np.arange(b, b + n) for b, n in zip(begin[lo:hi], length[lo:hi], strict=True)]
        np.testing.assert_array_equal(
            np.concatenate(pieces), np.arange(HUBS.indptr[row], HUBS.indptr[row + 1])
        )

    flat = csr.Plan(gpu.xp, block_of(gpu, sp.csr_array(np.ones((4, 3))), np.float32))
    assert flat.long_rows is None and flat.short_rows is None and flat.filled_rows is None


def test_tuning_tries_every_candidate_and_settles(built, monkeypatch, caplog):
    gpu = built
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "1")
    block = block_of(gpu, HUBS, np.float32)
    B, exact = dense((block.shape[1], 16), np.float32)
    B = gpu.asarray(B)
    ways = csr.candidates(16, 4, 256, HUBS.nnz / HUBS.shape[0])
    with caplog.at_level(logging.INFO):
        for _ in range(4 * len(ways) + 1):
            close(gpu.to_host(product(gpu, block, B)), HUBS @ exact, np.float32)
    (tuner,) = block.cached["cuda"].tuners.values()
    assert tuner.choice in ways and not tuner.marks[4 * len(ways) :]
    assert [
        record for record in caplog.records if "takes" in record.message and "16 columns" in record.message
    ]


def test_tuning_can_be_switched_off(built):
    gpu = built
    block = block_of(gpu, HUBS, np.float32)
    product(gpu, block, gpu.asarray(dense((block.shape[1], 16), np.float32)[0]))
    (tuner,) = block.cached["cuda"].tuners.values()
    assert tuner.choice == csr.candidates(16, 4, 256, HUBS.nnz / HUBS.shape[0])[0]


def test_bad_input_is_refused(built):
    gpu = built
    block = block_of(gpu, HUBS, np.float32)
    m, k = block.shape
    zeros = gpu.xp.zeros
    B, out = zeros((k, 4), np.float32), zeros((m, 4), np.float32)
    for complaint, *arguments in (
        ("B must be", zeros((k + 1, 4), np.float32), out),
        ("B must be", zeros((k, 4), np.float64), out),
        ("B must be", zeros((4, k), np.float32).T, out),
        ("out must be", B, zeros((m, 5), np.float32)),
        ("out must be", B, zeros((4, m), np.float32).T),
    ):
        with pytest.raises(ValueError, match=complaint):
            cuda.spmm(block, *arguments)
    with pytest.raises(ValueError, match="float32 or float64"):
        cuda.spmm(block_of(gpu, HUBS, np.int32), zeros((k, 4), np.int32), out)
    with pytest.raises(TypeError, match="NumPy scalar"):
        launch.launch(gpu.xp, csr.FILE, "spmm", 1, 3)


@pytest.mark.parametrize(
    ("wanted", "kernel"), [("auto", cuda.spmm), ("raw", cuda.spmm), ("cusparse", cuda.spmm_cusparse)]
)
def test_dispatch(monkeypatch, wanted, kernel):
    monkeypatch.setenv("DISTGNN_SPMM", wanted)
    _spmm_kernel.cache_clear()
    assert _spmm_kernel("cupy", np.dtype(np.float32)) is kernel
    _spmm_kernel.cache_clear()


@pytest.mark.parametrize("f", [1, 8, 41])
@pytest.mark.parametrize("algorithm", ["CSR_ALG2", "CSR_ALG3", None])
def test_cusparse(f, algorithm):
    if "cupy" not in backend.available():
        pytest.skip("no GPU here, or no CuPy: cuSPARSE has no emulation")
    on = backend.get("cupy")
    block = CSR.from_scipy(HUBS, on, np.float32)
    (B, exact), (C, _) = dense((block.shape[1], f), np.float32), dense((block.shape[0], f), np.float32, 1)
    for _ in range(10):
        out = on.asarray(C)
        cuda.spmm_cusparse(block, on.asarray(B), out, accumulate=True, algorithm=algorithm)
        close(on.to_host(out), HUBS @ exact + C, np.float32)
        cuda.spmm_cusparse(block, on.asarray(B), out, algorithm=algorithm)
        close(on.to_host(out), HUBS @ exact, np.float32)


def test_variants_of_one_dtype_are_distinct():
    for ways in VARIANTS.values():
        assert len({replace(way) for way in ways}) == len(ways)
