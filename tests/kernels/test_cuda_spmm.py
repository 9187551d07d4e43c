"""The CSR SpMM kernels and their dispatch against SciPy, on awkward shapes, executed on a GPU or its
emulation.
"""

from __future__ import annotations

import itertools
import logging
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn import gallery
from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.local import cuda
from distgnn.local.cuda import Variant, csr, launch
from distgnn.local.cuda.narrow import KINDS, vector
from distgnn.local.epilogue import Epilogue, Kept
from distgnn.local.spmm import _spmm_kernel
from kernels.conftest import VARIANTS, in_orders
from loops import each

NUMBERS = {2: tuple(KINDS.values()), 4: ("float",), 8: ("double",)}
WIDTHS = {
    "float32": (1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 41, 64, 100, 128, 130, 256, 602, 1024),
    "float64": (1, 3, 8, 41, 64, 130, 602),
}
TOLERANCE = {"float32": 2e-4, "float64": 1e-11}


def matrix(average: float, hubs: tuple[int, ...] = (), m: int = 61, k: int = 53) -> sp.csr_array:
    """Make rows of about ``average`` non-zeros, a quarter of them empty, some with ``hubs`` non-zeros."""
    rng = np.random.default_rng(int(average * 10) + len(hubs))
    lengths = rng.integers(0, int(2 * average) + 1, m) * (rng.random(m) < 0.75)
    for row, length in zip((5, m - 1, 0), hubs, strict=False):
        lengths[row] = length
    indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    indices = rng.integers(0, k, indptr[-1]).astype(np.int32)  # repeated entries are part of the bargain
    return sp.csr_array((rng.standard_normal(indptr[-1]), indices, indptr), shape=(m, k))


HUBS = matrix(6, (700, 1300))
SHAPES = [(0, 5), (5, 0), (5, 7), (1, 1)]  # of test_nothing_to_multiply
AVERAGES, LENGTHS = (0.5, 20, 70, 300), (0, 1, 17)  # of test_degrees


def block_of(gpu, A, dtype, index=np.int32):
    """Return the matrix as a block with this index type, on the GPU."""
    host = np.empty(CSR.nbytes(A.shape, A.nnz, index, dtype), np.uint8)
    block = CSR(A.shape, A.nnz, index, dtype, host)
    block.data[...], block.indices[...], block.indptr[...] = A.data, A.indices, A.indptr
    return CSR(A.shape, A.nnz, index, dtype, gpu.asarray(host))


def dense(shape, dtype, seed=0):
    """Draw random numbers of this type; return them as float64 too."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return x, x.astype(np.float64)


def in_order(A, B, P, S):
    """Add up A B in the kernels' order, to the bit.

    P teams take every P-th entry of each piece of a row, and are folded in pairs; then the pieces are added
    one after the other.
    """
    out = np.zeros((A.shape[0], B.shape[1]), B.dtype)
    terms = A.data.astype(B.dtype)[:, None] * B[A.indices]
    for row, (begin, end) in enumerate(zip(A.indptr, A.indptr[1:], strict=False)):
        length = int(end - begin)
        count = min(-(-length // S), int((2 * length) ** 0.5)) if length > S else 1
        for i in range(count):
            piece = terms[begin + length * i // count : begin + length * (i + 1) // count]
            teams = np.zeros((P, B.shape[1]), B.dtype)
            for first in range(0, len(piece), P):
                some = piece[first : first + P]
                teams[: len(some)] += some
            while len(teams) > 1:
                teams = teams[0::2] + teams[1::2]
            out[row] += teams[0]
    return out


def size_of(A, f, dtype="float32"):
    return csr.Size(*A.shape, A.nnz, f, np.dtype(dtype).itemsize)


def product(gpu, block, B, **options):
    """Return A B, in an array that held other numbers."""
    return cuda.spmm(block, B, gpu.nan((block.shape[0], B.shape[1]), block.dtype), **options)


def close(got, expected, dtype):
    np.testing.assert_allclose(
        got, expected, rtol=TOLERANCE[np.dtype(dtype).name], atol=TOLERANCE[np.dtype(dtype).name]
    )


@pytest.fixture(autouse=True)
def untuned(monkeypatch):
    """Take the first candidate unless a test asks for tuning."""
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "0")


@each("dtype, f", [(dtype, f) for dtype, widths in WIDTHS.items() for f in widths])
def test_widths(gpu, dtype, f):
    block = block_of(gpu, HUBS, dtype)
    (B, exact), (C, _) = dense((block.shape[1], f), dtype), dense((block.shape[0], f), block.dtype, 1)
    on_gpu, out = gpu.asarray(B), gpu.nan(C.shape, block.dtype)
    assert cuda.spmm(block, on_gpu, out) is out
    close(gpu.to_host(out), HUBS @ exact, dtype)
    out = gpu.asarray(C)
    cuda.spmm(block, on_gpu, out, accumulate=True)
    close(gpu.to_host(out), HUBS @ exact + C, dtype)


@each("dtype, variant", [(dtype, v) for dtype, vs in VARIANTS.items() for v in vs])
def test_every_variant_in_every_order(gpu, dtype, variant):
    """Blocks run forward, backward and shuffled: whichever piece of a row comes last, the bits are equal."""
    f = variant.width * (2 if variant.G == 32 else 1) - (variant.V if variant.G > 1 else 0)
    block = block_of(gpu, HUBS, dtype)
    B, exact = dense((block.shape[1], f), dtype)
    expected, bits = in_order(HUBS, B, variant.P, variant.S), set()
    for _ in in_orders(gpu, (0, 1, 11), 2):
        out = gpu.to_host(product(gpu, block, gpu.asarray(B), variant=variant))
        close(out, HUBS @ exact, dtype)
        bits.add(out.tobytes())
    assert len(bits) == 1
    if gpu.emulation:  # a GPU rounds once per multiplication and addition
        np.testing.assert_array_equal(out, expected)
    pieces = block.pattern["cuda"].pieces(variant.S)
    for counters in pieces._arrived.values():
        assert not gpu.to_host(counters).any()


#: All V; pieces (S of 5 and 32), teams, bundles alone and beside rows of a list, panels, a padded B.
ENDINGS = {
    "float32": [
        None, Variant(4, 2, 4, 64), Variant(4, 16, 1, 32, sorted=True), Variant(4, 32, 1, 32, K=8),
        Variant(4, 2, 1, 5, K=4, sorted=True), Variant(2, 4, 1, 32, K=8), Variant(2, 4, 4, 64),
        Variant(1, 8, 1, 32, K=2), Variant(1, 32, 1, 5), Variant(4, 4, 2, 32, padded=True),
    ],
    "float64": [None, Variant(2, 4, 1, 32, K=8), Variant(2, 12, 1, 5), Variant(1, 8, 4, 64)],
    "bfloat16": [None, Variant(8, 1, 4, 64), Variant(8, 4, 1, 32, K=8), Variant(4, 2, 1, 5)],
    "float16": [None, Variant(8, 2, 1, 32, K=4, sorted=True)],
}  # fmt: skip


@pytest.mark.parametrize("kind", ENDINGS)
@each("f", [8, 24, 40, 41, 64, 128, 129, 602])
@each("index", [np.int32, np.int64])
def test_epilogue(gpu, kind, f, index):
    """Has the bits of the product and a pass after it: bias, ReLU, dropout, bits of 8 k columns."""
    dtype = "float64" if kind == "float64" else "float32"
    if index is np.int64 and f != 24:
        return
    block = block_of(gpu, HUBS, dtype, index)
    (B, _), (C, _) = dense((block.shape[1], f), dtype), dense((block.shape[0], f), dtype, 1)
    beyond = gpu.xp.zeros((1,), np.int32)
    read = gpu.asarray(B) if kind == dtype else cuda.rounded(gpu.asarray(B), kind, beyond)
    bias, ids = gpu.asarray(dense((1, f), dtype, 2)[0]), tuple(map(np.arange, C.shape))
    mask = 7, *map(gpu.asarray, ids), 0.6
    ends = [(bias, mask, True, True), (None, None, True, True), (bias, None, False, False)]
    for way in ENDINGS[kind][: None if f < 64 else 3]:
        if way and not way.padded and f % way.V and kind == dtype:
            continue
        for i, end in enumerate(ends[: 3 if f < 64 else 1]):
            accumulate = (i + f // 8) % 2 == 0
            if gpu.emulation:
                gpu.emulation.order = (0, 1, 11)[i % 3]
            expected, out, then = gpu.asarray(C), gpu.asarray(C), Epilogue(*end)
            cuda.spmm(block, read, expected, accumulate, way)
            bits = cuda.activate(expected, expected, *end[1:], bias=end[0])
            cuda.spmm(block, read, out, accumulate, way, then)
            assert then.done == (f % 8 == 0 or not then.remember), (way, end)
            if then.done:
                assert gpu.to_host(out).tobytes() == gpu.to_host(expected).tobytes(), (way, end, accumulate)
            if then.done and then.remember:
                np.testing.assert_array_equal(gpu.to_host(then.bits), gpu.to_host(bits))


@pytest.mark.parametrize("kind", ENDINGS)
@each("f", [1, 3, 7, 8, 24, 41, 128, 129])
@each("accumulate", [False, True])
def test_gradients_are_masked(gpu, kind, f, accumulate):
    """Has the bits of the product and of `keep_positive` after it, whatever the width."""
    dtype = "float64" if kind == "float64" else "float32"
    block = block_of(gpu, HUBS, dtype)
    (B, _), (C, _) = dense((block.shape[1], f), dtype), dense((block.shape[0], f), dtype, 1)
    beyond = gpu.xp.zeros((1,), np.int32)
    read = gpu.asarray(B) if kind == dtype else cuda.rounded(gpu.asarray(B), kind, beyond)
    bits = gpu.asarray(np.packbits(np.random.default_rng(2).random(C.shape) < 0.5))
    for way in ENDINGS[kind][: None if f < 64 else 3]:
        if way and not way.padded and (f % way.V if kind == dtype else f < 8):
            continue
        expected, out, then = gpu.asarray(C), gpu.asarray(C), Kept(bits, 1 / 0.7)
        cuda.spmm(block, read, expected, accumulate, way)
        cuda.keep_positive(expected, bits, 1 / 0.7)
        cuda.spmm(block, read, out, accumulate, way, then)
        assert then.done
        assert gpu.to_host(out).tobytes() == gpu.to_host(expected).tobytes(), way


def test_bits_need_whole_bytes_of_a_group(gpu):
    """A variant whose groups do not have whole bytes leaves all of it to another pass."""
    block = block_of(gpu, HUBS, np.float32)
    B = gpu.asarray(dense((block.shape[1], 24), np.float32)[0])
    then = Epilogue(relu=True, remember=True)
    product(gpu, block, B, variant=Variant(4, 3, 2, 100), then=then)
    assert not then.done and then.bits is None


def test_last_piece_adds_to_what_is_there(gpu):
    block = block_of(gpu, HUBS, np.float32)
    (B, _), (C, _) = dense((block.shape[1], 40), np.float32), dense((block.shape[0], 40), np.float32, 1)
    for variant in VARIANTS["float32"]:
        if variant.G in (8, 10):
            out = gpu.asarray(C)
            cuda.spmm(block, gpu.asarray(B), out, accumulate=True, variant=variant)
            expected = in_order(HUBS, B, variant.P, variant.S) + C
            np.testing.assert_allclose(gpu.to_host(out), expected, rtol=0 if gpu.emulation else 1e-4)


def test_one_launch(gpu):
    if not gpu.emulation:
        pytest.skip("CuPy counts no launches")
    block, launches = block_of(gpu, HUBS, np.float32), gpu.emulation.kernels
    B = gpu.asarray(dense((block.shape[1], 16), np.float32)[0])
    for expected in (["cut_rows", "spmm"], ["spmm"], ["spmm"]):
        before = len(launches)
        product(gpu, block, B)
        assert [name.split("<")[0] for name in launches[before:]] == expected


@each("f", [8, 16, 41, 256])
def test_candidates_give_the_same_bits(gpu, f):
    block = block_of(gpu, HUBS, np.float32)
    B = gpu.asarray(dense((block.shape[1], f), np.float32)[0])
    ways = csr.candidates(size_of(HUBS, f), 256)
    assert len(ways) > 1 and any(way.padded for way in ways) == (f % 4 != 0)
    ways += csr.candidates(size_of(HUBS, f), 256, ends=True)
    results = {gpu.to_host(product(gpu, block, B, variant=way)).tobytes() for way in ways}
    assert len(results) == 1


def chosen(ends=False):
    """Yield sizes and alignments of all kinds, with what is tried on them."""
    shapes = [(100, 0), (100, 300), (100, 10**4), (5 * 10**3, 10**7)]
    shapes += [(10**6, 2 * 10**6), (10**6, 10**8), (1 << 22, 1 << 23)]
    widths = [*range(1, 140), 256, 257, 602, 1024]
    for (m, nnz), f, itemsize, alignment in itertools.product(shapes, widths, (2, 4, 8), (4, 8, 256)):
        if alignment >= itemsize:
            size = csr.Size(m, 10**6, nnz, f, itemsize)
            yield size, alignment, csr.candidates(size, alignment, ends)


def test_candidates_fill_a_warp_and_cover_the_columns():
    for size, alignment, ways in itertools.chain(chosen(), chosen(ends=True)):
        f, itemsize = size.f, size.itemsize
        assert len({(way.P, way.S) for way in ways}) == 1
        assert len(set(ways)) == len(ways)
        for way in ways:
            assert way.G * way.P <= 32 and (way.K == 1 or way.P == 1)
            assert way.panels(f) * way.width >= f
            assert way.V * itemsize <= 16
            whole = f % way.V == 0 and alignment % (way.V * itemsize) == 0
            assert way.padded or whole or (itemsize == 2 and way.V == vector(f))  # whole rows of the copy
            assert way.panels(f) == 1 or way.G * way.P > 16
        busy = 32 // (ways[0].G * ways[0].P) * ways[0].G * ways[0].P
        assert busy >= 22 or 17 <= ways[0].G <= 21  # lanes of a warp that have work


def test_all_kernels_are_known():
    """The list has all that can be chosen and no more, and the compile test compiles the list."""
    names = {
        f"spmm<{number},{index},{way.arguments(ends)}>"
        for ends in (False, True)
        for size, _, ways in chosen(ends)
        for number in NUMBERS[size.itemsize]
        for index in ("int", "int64")
        for way in ways
    }
    assert names | {"cut_rows<int>", "cut_rows<int64>"} == set(csr.kernel_names())
    for dtype, ways in VARIANTS.items():
        number = launch.C_TYPES[dtype]
        assert {way.arguments(ends) for way in ways for ends in (False, True) if way.K == 1 or not ends} == {
            name[name.index("int,") + 4 : -1] for name in names if name.startswith(f"spmm<{number},int,")
        }


@each("f, lanes", [(1, 32), (4, 32), (12, 30), (40, 30), (41, 32), (47, 32), (100, 25), (128, 32)])
def test_class_widths_leave_few_lanes_idle(f, lanes):
    way = csr.candidates(csr.Size(10**6, 10**6, 15 * 10**6, f, 4), 256)[0]
    assert way.groups // 8 * way.G * way.P == lanes


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_indices(gpu, dtype):
    variant = VARIANTS[dtype][0]
    B, exact = dense((HUBS.shape[1], variant.V * variant.G), dtype)
    wide = block_of(gpu, HUBS, dtype, np.int64)
    close(gpu.to_host(product(gpu, wide, gpu.asarray(B), variant=variant)), HUBS @ exact, dtype)


@each("dtype", ["float32", "float64"])
@each("f", [4, 8, 41])
def test_arrays_at_any_address(gpu, dtype, f):
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


@each("dtype, V", [("float32", 4), ("float64", 2), ("float64", 1)])
def test_entries_at_any_address(gpu, dtype, V):
    """Long rows are read by loads of several from where columns and weights may be: together, or never."""
    lengths = np.array([3, 32, 37, 0, 34, 7, 41, 8, 9, 1, 70, 15, 33])
    rng, indptr = np.random.default_rng(0), np.concatenate(([0], np.cumsum(lengths)))
    entries = rng.standard_normal(indptr[-1]), rng.integers(0, 53, indptr[-1]), indptr
    A = sp.csr_array(entries, shape=(lengths.size, 53))
    B, way = dense((53, 2 * V), dtype)[0], Variant(V, 2, 1, 1 << 20)
    expected = in_order(A, B, way.P, way.S)

    def shifted(array, by):
        return gpu.asarray(np.concatenate((np.zeros(by, array.dtype), gpu.to_host(array))))[by:]

    for columns, weights in itertools.product(range(4), repeat=2):
        block = block_of(gpu, A, dtype)
        block.indices, block.data = shifted(block.indices, columns), shifted(block.data, weights)
        out = gpu.to_host(product(gpu, block, gpu.asarray(B), variant=way))
        np.testing.assert_allclose(out, expected, rtol=0 if gpu.emulation else 1e-4)


@each("kind", ["float32", "float64", "bfloat16"])
def test_rows_of_B_that_no_entry_names_are_not_added(gpu, kind):
    """Behind the end of a row the kernel gathers row 0 of B; in other groups of a warp rows go on."""
    dtype = "float64" if kind == "float64" else "float32"
    A = HUBS.copy()
    A.indices = np.maximum(A.indices, 1)
    block, (B, exact) = block_of(gpu, A, dtype), dense((A.shape[1], 40), dtype)
    B[0] = np.nan
    read = gpu.asarray(B) if kind == dtype else cuda.rounded(gpu.asarray(B), kind, gpu.xp.zeros(1, np.int32))
    expected = A @ np.where(np.isnan(B), 0, exact)
    for way in ENDINGS[kind]:
        if way is None or way.padded or way.V > 8 // block.dtype.itemsize * 2:
            continue
        out = gpu.to_host(product(gpu, block, read, variant=way))
        np.testing.assert_allclose(out, expected, rtol=0, atol=0.5 if kind == "bfloat16" else 1e-3)


@each("m", [64, 65, 72, 73])
def test_the_last_bundle_has_a_block(gpu, m):
    """A block has eight bundles of eight rows."""
    A = matrix(2, m=m)
    B, exact = dense((A.shape[1], 128), np.float32)
    way = Variant(V=4, G=32, P=1, S=32, K=8)
    out = product(gpu, block_of(gpu, A, np.float32), gpu.asarray(B), variant=way)
    close(gpu.to_host(out), A @ exact, np.float32)


@each("average", AVERAGES)
def test_degrees(gpu, average):
    """Few and many non-zeros per row: all numbers of teams, and rows that are long for another matrix."""
    A = matrix(average, LENGTHS)
    block = block_of(gpu, A, np.float32)
    B, exact = dense((A.shape[1], 16), np.float32)
    close(gpu.to_host(product(gpu, block, gpu.asarray(B))), A @ exact, np.float32)


@each("shape", SHAPES)
@each("f", [0, 1, 8])
def test_nothing_to_multiply(gpu, shape, f):
    block = block_of(gpu, sp.csr_array(shape), np.float32)
    out = gpu.nan((shape[0], f), np.float32)
    cuda.spmm(block, gpu.asarray(np.ones((shape[1], f), np.float32)), out)
    np.testing.assert_array_equal(gpu.to_host(out), 0)
    again = gpu.asarray(np.full((shape[0], f), 3, np.float32))
    cuda.spmm(block, gpu.asarray(np.ones((shape[1], f), np.float32)), again, accumulate=True)
    np.testing.assert_array_equal(gpu.to_host(again), 3)


def test_plan(gpu):
    block = block_of(gpu, HUBS, np.float32)
    plan = csr.RowFacts.of(gpu.xp, block)
    assert csr.RowFacts.of(gpu.xp, block) is plan
    assert plan.longer_rows() == (np.diff(HUBS.indptr) > csr.SHORT).sum()
    lengths = np.diff(HUBS.indptr)
    rows, begins, ends = (gpu.to_host(x) for x in plan.by_length())
    assert sorted(rows) == list(range(len(lengths)))
    assert (np.diff(-(-(ends - begins) // 4)) <= 0).all()
    np.testing.assert_array_equal(ends - begins, lengths[rows])
    np.testing.assert_array_equal(begins, HUBS.indptr[rows])
    pieces = plan.pieces(100)
    assert plan.pieces(100) is pieces and pieces.most >= 7 + 13
    assert int(pieces.total[0]) == 7 + 13
    assert plan.pieces(2000).most >= 0 and plan.pieces(1 << 20).most == 0


def test_plan_of_a_large_block(gpu, monkeypatch):
    """Rows are sorted at once, and the number of pieces is known."""
    monkeypatch.setattr(csr, "LARGE", 1)
    block = block_of(gpu, HUBS, np.float32)
    plan = csr.RowFacts.of(gpu.xp, block)
    assert plan.pieces(100).most == 7 + 13
    assert csr.candidates(plan.size(256, 4), 256)[0].sorted
    B, exact = dense((block.shape[1], 256), np.float32)
    close(gpu.to_host(product(gpu, block, gpu.asarray(B))), HUBS @ exact, np.float32)


def test_short_rows_of_a_sorted_block_are_summed_in_turn(gpu, monkeypatch):
    """The long rows, which come first, have a group each; of the others a group has K."""
    launched = []
    block = block_of(gpu, HUBS, np.float32)
    B, exact = dense((block.shape[1], 16), np.float32)
    monkeypatch.setattr(launch, "launch", record(launch.launch, launched))
    longer = int((np.diff(HUBS.indptr) > 8).sum())
    for way, alone in (
        (Variant(4, 4, 1, 64, K=4, sorted=True), longer),
        (Variant(4, 4, 1, 4, K=4, sorted=True), longer),
        (Variant(4, 4, 1, 64, K=1, sorted=True), 61),
        (Variant(4, 4, 1, 64, K=4), 0),
    ):
        close(gpu.to_host(product(gpu, block, gpu.asarray(B), variant=way)), HUBS @ exact, np.float32)
        _, name, grid, G, P, _, groups, _, _, alone_from, bundles_from, *_ = launched[-1]
        turns = "true" if way.K > 1 else "false"
        assert (name, G, P, groups) == (f"spmm<float,int,4,{turns},false>", 4, 1, 8)
        assert bundles_from - alone_from == -(-alone // 64)
        assert grid[0] - bundles_from == math.ceil(math.ceil((61 - alone) / way.K) / 64)


@each("accumulate", [False, True])
def test_rows_that_end_have_a_group_each(gpu, monkeypatch, accumulate):
    """Bits of what is positive are an end, too, and rows without entries have them."""
    block, way = block_of(gpu, HUBS, np.float32), Variant(4, 4, 1, 64, K=4)
    (B, _), (C, _) = dense((block.shape[1], 16), np.float32), dense((block.shape[0], 16), np.float32, 1)
    expected, out, launched = gpu.asarray(C), gpu.asarray(C), []
    cuda.spmm(block, gpu.asarray(B), expected, accumulate, way)
    monkeypatch.setattr(launch, "launch", record(launch.launch, launched))
    for then in (Epilogue(remember=True), Epilogue(relu=True, remember=True)):
        out[...] = gpu.asarray(C)
        cuda.spmm(block, gpu.asarray(B), out, accumulate, way, then)
        assert launched[-1][1] == "spmm<float,int,4,false,true>"
        wanted = gpu.to_host(expected)
        np.testing.assert_array_equal(gpu.to_host(then.bits), np.packbits(wanted > 0))
        np.testing.assert_array_equal(gpu.to_host(out), np.maximum(wanted, 0) if then.relu else wanted)


def record(function, calls):
    """Wrap a function so that what it is called with, but for the first argument, is kept."""

    def recorded(xp, *arguments):
        calls.append(arguments)
        return function(xp, *arguments)

    return recorded


def busy(lengths, way, groups):
    """Share of the entries that so many groups have room for while the longest of them takes its steps."""
    steps = -(-lengths // (4 * way.P))
    longest = np.pad(steps, (0, -len(steps) % groups)).reshape(-1, groups).max(axis=1)
    return lengths.sum() / (longest.sum() * groups * 4 * way.P)


def test_rows_by_length_keep_lanes_busy(gpu):
    """At f = 16 on a power-law graph: of the lanes of a warp, and of the warps of a thread block."""
    A = gallery.rmat(1 << 17).A
    way = csr.candidates(size_of(A, 16), 256)[0]
    plan, lengths, groups = csr.RowFacts(gpu.xp, block_of(gpu, A, np.float32)), np.diff(A.indptr), 32 // way.G
    assert way.sorted and way.P == 1
    rows = lengths[lengths <= 256]  # in the order of the matrix, the longest elsewhere: as once it was
    assert busy(rows, way, groups) < 0.19 and busy(rows, way, 8 * groups) < 0.07
    cut = plan.pieces(way.S)
    pieces = gpu.to_host(cut.table[: cut.most]).view(np.int32)[:, 2]  # nothing behind them was written
    _, begins, ends = (gpu.to_host(x) for x in plan.by_length())
    rows = ends - begins
    assert pieces.sum() + rows[rows <= way.S].sum() == A.nnz
    tasks = np.concatenate((pieces, rows[rows <= way.S]))
    assert busy(tasks, way, groups) > 0.87 and busy(tasks, way, 8 * groups) > 0.86


def test_tuning_tries_every_candidate_and_settles(gpu, monkeypatch, caplog):
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "1")
    block = block_of(gpu, HUBS, np.float32)
    B, exact = dense((block.shape[1], 16), np.float32)
    B = gpu.asarray(B)
    ways = csr.candidates(size_of(HUBS, 16), 256)
    with caplog.at_level(logging.INFO):
        for _ in range(4 * len(ways) + 1):
            close(gpu.to_host(product(gpu, block, B)), HUBS @ exact, np.float32)
    (tuner,) = block.pattern["cuda"].tuners.values()
    assert tuner.choice in ways and not tuner.marks[4 * len(ways) :]
    assert [
        record for record in caplog.records if "takes" in record.message and "16 columns" in record.message
    ]


def test_tuning_can_be_switched_off(gpu):
    block = block_of(gpu, HUBS, np.float32)
    product(gpu, block, gpu.asarray(dense((block.shape[1], 16), np.float32)[0]))
    (tuner,) = block.pattern["cuda"].tuners.values()
    assert tuner.choice == csr.candidates(size_of(HUBS, 16), 256)[0]


def test_bad_input_is_refused(gpu):
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


@each("f", [1, 8, 41])
@each("algorithm", ["CSR_ALG2", "CSR_ALG3", None])
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
