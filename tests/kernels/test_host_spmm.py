"""The host SpMM kernels against SciPy in float64: every instruction set of this machine, every width class,
every option.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from awkward_shapes import awkward
from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.local import host
from loops import each

pytestmark = pytest.mark.skipif(host.module() is None, reason="host kernels not built")

ISAS = host.module().isas() if host.module() else []
WIDTHS = [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 41, 64, 100, 128, 129, 256, 602, 1024]
SHAPES = awkward()
#: Relative to the sum of the magnitudes of the terms: a few units in the last place times the square root of
#: the row's length.
TOLERANCE = {np.dtype(np.float32): 2e-6, np.dtype(np.float64): 5e-15}


def dense(rng: np.random.Generator, shape: tuple[int, int], dtype: np.dtype, spare: int = 0) -> np.ndarray:
    """Draw numbers of both signs whose rows lie `spare` numbers apart.

    The gaps hold NaN, which would show up if read.
    """
    whole = np.full((shape[0], shape[1] + spare), np.nan, dtype)
    whole[:, : shape[1]] = rng.standard_normal(shape)
    return whole[:, : shape[1]]


def assert_close(got: np.ndarray, want: np.ndarray, magnitude: np.ndarray, what: str = "") -> None:
    """Compare within a tolerance of `magnitude`, the same sum over absolute values."""
    allowed = TOLERANCE[got.dtype] * np.maximum(magnitude, 1e-30)
    wrong = ~(np.abs(got - want) <= allowed)
    assert not wrong.any(), f"{what}: {wrong.sum()} of {wrong.size} wrong, first at {np.argwhere(wrong)[0]}"


@pytest.fixture(params=range(len(ISAS)), ids=ISAS)
def isa(request: pytest.FixtureRequest) -> int:
    return request.param


@each("index", [np.int32, np.int64])
@each("dtype", [np.float32, np.float64])
def test_every_shape_and_width(isa: int, dtype: type, index: type) -> None:
    rng = np.random.default_rng(1)
    for name, A in SHAPES.items():
        values = A.data.astype(dtype)
        exact = sp.csr_array((values.astype(np.float64), A.indices, A.indptr), shape=A.shape)
        for width in WIDTHS:
            B = dense(rng, (A.shape[1], width), dtype)
            out = np.full((A.shape[0], width), np.nan, dtype)
            host.multiply(A.indptr.astype(index), A.indices.astype(index), values, B, out, isa=isa)
            assert_close(
                out,
                exact @ B.astype(np.float64),
                abs(exact) @ abs(B.astype(np.float64)),
                f"{name}, width {width}",
            )


@each("width", range(1, 70))
def test_every_narrow_width_apart_and_misaligned(isa: int, width: int) -> None:
    rng = np.random.default_rng(width)
    A = SHAPES["prime"]
    for dtype in (np.float32, np.float64):
        B = dense(rng, (A.shape[1], width), dtype, spare=width % 5)
        whole = np.full((A.shape[0], width + 3), 7.0, dtype)
        values = np.concatenate([[np.nan], A.data]).astype(dtype)[1:]
        host.multiply(A.indptr, A.indices, values, B, whole[:, 1 : width + 1], isa=isa)
        exact = sp.csr_array((values.astype(np.float64), A.indices, A.indptr), shape=A.shape)
        assert_close(
            whole[:, 1 : width + 1].copy(),
            exact @ B.astype(np.float64),
            abs(exact) @ abs(B.astype(np.float64)),
        )
        assert (whole[:, 0] == 7).all() and (whole[:, width + 1 :] == 7).all(), "wrote beside the rows of out"


def long_rows() -> sp.csr_array:
    """Make rows of 0 to 140 non-zeros, with all remainders.

    From some length on, a row is added up in several chains; the rows are shorter and longer than that.
    """
    lengths = np.r_[np.arange(140), 0, 33]
    indptr = np.r_[0, np.cumsum(lengths)]
    rng = np.random.default_rng(8)
    indices = np.concatenate([np.sort(rng.permutation(150)[:length]) for length in lengths])
    return sp.csr_array((rng.standard_normal(indptr[-1]), indices, indptr), shape=(len(lengths), 150))


@each("prefetch", [-1, 0, 1, 5, 10_000])
def test_looking_ahead_changes_no_bit(isa: int, prefetch: int) -> None:
    rng = np.random.default_rng(2)
    for A in [*SHAPES.values(), long_rows()]:
        for width in (1, 3, 8, 24, 41):
            B = dense(rng, (A.shape[1], width), np.float32)
            got, want = np.empty((2, A.shape[0], width), np.float32)
            host.multiply(A.indptr, A.indices, A.data.astype(np.float32), B, got, isa=isa, prefetch=prefetch)
            host.multiply(A.indptr, A.indices, A.data.astype(np.float32), B, want, isa=isa, prefetch=2)
            assert got.tobytes() == want.tobytes()


@each("dtype", [np.float32, np.float64])
@each("width", [1, 2, 4, 6, 8, 12, 16, 24, 32, 48])
def test_long_rows(isa: int, width: int, dtype: type) -> None:
    A = long_rows()
    B = np.random.default_rng(width).standard_normal((150, width)).astype(dtype)
    values = A.data.astype(dtype)
    exact, wide = (
        sp.csr_array((values.astype(np.float64), A.indices, A.indptr), shape=A.shape),
        B.astype(np.float64),
    )
    for prefetch in (-1, 0):
        out = np.full((A.shape[0], width), np.nan, dtype)
        host.multiply(A.indptr, A.indices, values, B, out, prefetch=prefetch, isa=isa)
        assert_close(out, exact @ wide, abs(exact) @ abs(wide), f"width {width}, prefetch {prefetch}")


@each("dtype", [np.float32, np.float64])
def test_a_column_gives_the_bits_of_a_vector(isa: int, dtype: type) -> None:
    rng = np.random.default_rng(4)
    for A in [*SHAPES.values(), long_rows()]:
        wide, values = dense(rng, (A.shape[1], 1), dtype, spare=2), A.data.astype(dtype)
        got, want = np.full((2, A.shape[0], 1), np.nan, dtype)
        host.multiply(A.indptr, A.indices, values, wide, got, isa=isa)
        host.multiply(A.indptr, A.indices, values, np.ascontiguousarray(wide), want, isa=isa)
        assert got.tobytes() == want.tobytes()


@each("dtype", [np.float32, np.float64])
def test_accumulate(isa: int, dtype: type) -> None:
    rng = np.random.default_rng(3)
    for name in ("prime", "wide", "tall", "hub_row", "empty_rows", "no_edges"):
        A = SHAPES[name]
        values = A.data.astype(dtype)
        exact = sp.csr_array((values.astype(np.float64), A.indices, A.indptr), shape=A.shape)
        for width in (1, 3, 16, 17, 41, 64, 200, 602):
            B, out = (dense(rng, (size, width), dtype, spare=3) for size in A.shape[::-1])
            want = exact @ B.astype(np.float64) + out
            magnitude = abs(exact) @ abs(B.astype(np.float64)) + abs(out)
            host.multiply(A.indptr, A.indices, values, B, out, accumulate=True, isa=isa)
            assert_close(np.ascontiguousarray(out), want, magnitude, f"{name}, width {width}")


def test_several_panels_over_many_rows(isa: int) -> None:
    rng = np.random.default_rng(6)
    A = sp.random_array((700, 500), density=0.02, rng=rng, dtype=np.float64).tocsr()
    for width in (97, 130, 602):
        B, out = dense(rng, (500, width), np.float32), np.full((700, width), np.nan, np.float32)
        host.multiply(A.indptr, A.indices, A.data.astype(np.float32), B, out, isa=isa)
        wide = B.astype(np.float64)
        assert_close(out, A @ wide, abs(A) @ abs(wide), f"width {width}")


def test_threads_give_the_bits_of_one(isa: int) -> None:
    rng = np.random.default_rng(5)
    A = sp.random_array((3000, 500), density=0.1, rng=rng, dtype=np.float32).tocsr()
    B = dense(rng, (500, 20), np.float32)
    outs = np.empty((3, 3000, 20), np.float32)
    for out, threads in zip(outs, (1, 2, 7), strict=True):
        host.multiply(A.indptr, A.indices, A.data, B, out, isa=isa, threads=threads)
    assert np.array_equal(outs[0], outs[1]) and np.array_equal(outs[0], outs[2])


def test_nan_and_infinity_stay_in_their_rows_and_columns(isa: int) -> None:
    A = SHAPES["diagonal"]
    B = np.ones((19, 17), np.float32)
    B[4, 9], B[7, 16] = np.nan, np.inf
    out = np.empty((19, 17), np.float32)
    host.multiply(A.indptr, A.indices, A.data.astype(np.float32), B, out, isa=isa)
    assert np.isnan(out[4, 9]) and np.isinf(out[7, 16])
    assert np.isfinite(out).sum() == out.size - 2


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"B": np.ones((5, 4), np.int32)}, TypeError, "B: need an array of float32"),
        ({"B": [[1.0]]}, TypeError, "B: need an array"),
        ({"B": np.ones((5, 8), np.float32)[:, ::2]}, ValueError, "B: rows must be contiguous"),
        ({"B": np.ones((5, 4), np.float32)[::-1]}, ValueError, "B: rows must follow"),
        ({"B": np.ones((4, 5), np.float32).T}, ValueError, "B: rows must be contiguous"),
        ({"B": np.ones(5, np.float32)}, ValueError, "B: need 2 dimensions"),
        ({"B": np.ones((5, 4))}, TypeError, "out: need an array of float64"),
        ({"B": np.ones((5, 4), ">f4")}, TypeError, "B: need an array of float32"),
        ({"out": np.ones((3, 5), np.float32)}, ValueError, "out: need shape"),
        ({"out": np.ones((3, 3), np.float32)}, ValueError, "out: need shape"),
        ({"values": np.ones(3)}, TypeError, "values: need an array of float32"),
        ({"values": np.ones(2, np.float32)}, ValueError, "values: need shape"),
        ({"indptr": np.array([0, 1, 2])[:0]}, ValueError, "indptr"),
        ({"indptr": np.array([0, 1, 2, 4])}, ValueError, "rise from 0 to 3"),
        ({"indptr": np.array([1, 1, 2, 3])}, ValueError, "rise from 0 to 3"),
        ({"indices": np.array([0.0, 1.0, 2.0])}, TypeError, "indices: need an array of int64"),
        ({"indices": np.array([0, 4, 2], np.int32)}, TypeError, "indices: need an array of int64"),
        ({"isa": 17}, ValueError, "isa"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_bad_arguments(change: dict, error: type, words: str) -> None:
    arguments = {
        "indptr": np.array([0, 1, 2, 3]), "indices": np.array([0, 4, 2]), "values": np.ones(3, np.float32),
        "B": np.ones((5, 4), np.float32), "out": np.ones((3, 4), np.float32),
    }  # fmt: skip
    host.multiply(**arguments)
    with pytest.raises(error, match=words):
        host.multiply(**(arguments | change))


def test_out_must_be_writable_and_its_own() -> None:
    arguments = np.array([0, 1]), np.array([0]), np.ones(1, np.float32)
    B = np.ones((1, 4), np.float32)
    with pytest.raises(ValueError, match="out shares memory with B"):
        host.multiply(*arguments, B, B)
    frozen = np.ones((1, 4), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match="out: need a writable array"):
        host.multiply(*arguments, B, frozen)
    host.multiply(*arguments, frozen, B)


@pytest.mark.parametrize("seconds, chosen", [(2, 0), (9.4, 0), (9.6, -1), (12, -1)])
def test_the_look_ahead_is_chosen_once_and_said(
    seconds: float, chosen: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """0 takes `seconds`: it must be clearly faster than the default, which takes 10."""
    monkeypatch.setattr(TUNING, "look_ahead_nonzeros", 1)
    clock = iter([0, 10, 20, 39, 40, 59, 60, 79, 80, 80 + seconds] * 4)  # the others take 19
    monkeypatch.setattr(host.time, "thread_time", lambda: next(clock))
    A = CSR.from_scipy(SHAPES["prime"].astype(np.float32), backend.get("numpy"))
    B, out = np.ones((31, 16), np.float32), np.empty((31, 16), np.float32)
    with caplog.at_level("INFO", logger="distgnn.local.tuner"):
        for turn in range(host.TRIALS + 2):
            out[...] = np.nan
            host.spmm(A, B, out, False)
            assert np.allclose(out, SHAPES["prime"] @ B), turn
            assert (A.pattern["look ahead 16 float32"].choice is None) == (turn < host.TRIALS - 1)
    assert A.pattern["look ahead 16 float32"].choice == chosen
    assert len(caplog.records) == 1
    assert f"width 16: non-zeros to prefetch ahead (-1: by width): takes {chosen} " in caplog.text
    assert f"(seconds: -1 10, 128 19, 64 19, 32 19, 0 {seconds:.3g})" in caplog.text


def test_other_values_of_a_pattern_go_on_with_its_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention has new values in every product."""
    monkeypatch.setattr(TUNING, "look_ahead_nonzeros", 1)
    A = CSR.from_scipy(SHAPES["prime"].astype(np.float32), backend.get("numpy"))
    B, out = np.ones((31, 16), np.float32), np.empty((31, 16), np.float32)
    for turn in range(host.TRIALS):
        values = np.full(A.nnz, turn, np.float32)
        host.spmm(A.with_values(values), B, out, False)
        assert np.array_equal(out.sum(axis=1), 16 * turn * np.diff(A.indptr)), turn
    assert A.pattern["look ahead 16 float32"].choice is not None


def test_nothing_is_tried_where_nothing_is_close(monkeypatch: pytest.MonkeyPatch) -> None:
    A = CSR.from_scipy(SHAPES["prime"].astype(np.float32), backend.get("numpy"))
    for least, width, tried in ((A.nnz + 1, 16, False), (A.nnz, 48, True), (A.nnz, 49, False)):
        monkeypatch.setattr(TUNING, "look_ahead_nonzeros", least)
        A.pattern.clear()
        host.spmm(A, np.ones((31, width), np.float32), np.empty((31, width), np.float32), False)
        assert (f"look ahead {width} float32" in A.pattern) == tried
