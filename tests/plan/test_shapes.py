"""Arrays without numbers are like those of NumPy in everything but the numbers."""

import numpy as np
import pytest

from distgnn import local
from distgnn.arrays import backend
from distgnn.arrays.csr import CSR, ThinCSR
from distgnn.arrays.workspace import Workspace
from distgnn.ledger import Ledger
from distgnn.plan.dry.backend import SHAPES
from distgnn.plan.dry.shapes import ShapeArray
from loops import each

xp = SHAPES.xp


def both(shape, dtype=np.float32):
    return np.ones(shape, dtype), ShapeArray(shape, dtype)


VIEWS = {
    "rows": lambda X, xp: X[2:5],
    "columns": lambda X, xp: X[:, 1:3],
    "steps": lambda X, xp: X[1::2],
    "backwards": lambda X, xp: X[::-1],
    "one row": lambda X, xp: X[-1],
    "a number": lambda X, xp: X[1, 2],
    "nothing": lambda X, xp: X[4:2],
    "a new axis": lambda X, xp: X[:, None],
    "all": lambda X, xp: X[...],
    "the last column": lambda X, xp: X[..., -1],
    "transposed": lambda X, xp: X.T,
    "transposed rows": lambda X, xp: X.T[1:3],
    "flat": lambda X, xp: X.reshape(-1),
    "reshaped": lambda X, xp: X.reshape(2, -1),
    "a copy in one piece": lambda X, xp: X[:, 1:].reshape(-1),
    "bytes": lambda X, xp: X.reshape(-1).view(np.uint8)[4:20].view(np.int64),
}
RESULTS = {
    "sum": lambda X, xp: X + X[0],
    "with a number": lambda X, xp: 2.0 * X - 1,
    "of two types": lambda X, xp: X * X.astype(np.float64),
    "bits": lambda X, xp: X.astype(np.uint64) ^ np.uint64(7),
    "truth": lambda X, xp: (X > 0) & ~(X == 1),
    "functions": lambda X, xp: xp.exp(xp.maximum(X, 0)),
    "product": lambda X, xp: xp.matmul(X, X.T),
    "column sums": lambda X, xp: X.sum(axis=0, keepdims=True, dtype="float64"),
    "the whole sum": lambda X, xp: X.astype(np.int32).sum(),
    "largest": lambda X, xp: X.max(axis=1),
    "places": lambda X, xp: X.argmax(axis=1),
    "packed": lambda X, xp: xp.packbits(X > 0),
    "unpacked": lambda X, xp: xp.unpackbits(xp.packbits(X > 0)),
    "side by side": lambda X, xp: xp.concatenate([X, X], axis=1),
    "stacked": lambda X, xp: xp.stack([X, X]),
    "chosen": lambda X, xp: xp.where(X > 0, X, 0),
    "picked rows": lambda X, xp: X[xp.arange(3)],
    "picked numbers": lambda X, xp: X[xp.arange(3), xp.arange(3)],
    "a range": lambda X, xp: xp.arange(3, 9),
    "like it": lambda X, xp: xp.zeros_like(X),
    "full": lambda X, xp: xp.full(4, -np.inf, dtype=X.dtype),
    "column by column": lambda X, xp: xp.asfortranarray(X),
    "squares": lambda X, xp: xp.vdot(X, X),
    "counts": lambda X, xp: xp.bincount(xp.arange(3), minlength=4),
}


@each("name", [*VIEWS, *RESULTS])
def test_shapes_types_and_places_in_memory(name):
    make = {**VIEWS, **RESULTS}[name]
    real, planned = both((6, 4))
    expected, got = make(real, np), make(planned, xp)
    assert (got.shape, got.dtype, got.size, got.nbytes) == (
        np.shape(expected), expected.dtype, expected.size, expected.nbytes,
    )  # fmt: skip
    if expected.size and np.ndim(expected):
        assert got.flags.c_contiguous == expected.flags.c_contiguous
    if name in VIEWS and np.ndim(expected) and expected.size:
        assert got.strides == expected.strides
        if np.shares_memory(expected, real):
            assert got.address - planned.address == expected.ctypes.data - real.ctypes.data


WRONG = [
    lambda X: X + ShapeArray((5, 4)), lambda X: X.__iadd__(ShapeArray((2, 6, 4))),
    lambda X: xp.matmul(X, X), lambda X: X.reshape(5, 5), lambda X: X[6], lambda X: X[:, 1:].view(np.uint8),
    lambda X: len(X[0, 0]), np.asarray, np.sort,
]  # fmt: skip


@each("wrong", WRONG)
def test_what_numpy_would_refuse_is_refused(wrong):
    with pytest.raises((ValueError, IndexError, TypeError)):
        wrong(ShapeArray((6, 4), np.float32))


def test_a_terabyte_costs_nothing_and_products_are_charged():
    with Ledger() as counted:
        A = CSR.empty((1 << 30, 1 << 30), 1 << 34, np.float32, SHAPES)
        H = SHAPES.empty((1 << 30, 256), np.float32)
        T = local.spmm(A, H)
        Z = local.gemm(T, SHAPES.empty((256, 16), np.float32))
    assert Z.shape == (1 << 30, 16) and backend.of(Z) is SHAPES
    assert counted.flops == 2 * (1 << 34) * 256 + 2 * (1 << 30) * 256 * 16
    assert counted.touched["spmm"] == A.buffer.nbytes + (1 << 34) * 1024 + T.nbytes
    assert A.buffer.nbytes == 12 * (1 << 34) + 8 * (1 << 30) + 8  # float32, and int64 indices
    assert counted.peak["adjacency"] >= A.buffer.nbytes
    with pytest.raises(ValueError, match="don't multiply"):
        local.spmm(A, Z.T)


def test_rows_of_a_block_of_few_filled_rows():
    """A block row in many blocks is multiplied in parts, too."""
    A = ThinCSR.made((1000, 50), 40, np.dtype(np.float32), SHAPES, 30)
    rows = A.rows(200, 700)
    assert (rows.shape, rows.nnz, rows.indptr.shape) == ((500, 50), 20, (501,))
    assert A.with_values(SHAPES.empty((40,), np.float64)).header() == (*A.header()[:3], np.float64)


def test_buffers_are_told_apart_and_used_again():
    room = Workspace(SHAPES)
    first, second = room.borrow((4, 4), np.float32), room.borrow((4, 4), np.float32)
    room.give_back(first)
    assert SHAPES.address(room.borrow((2, 8), np.float32)) == SHAPES.address(first) != SHAPES.address(second)
    assert room.borrowed == 128


def test_numbers_are_known_until_something_is_written():
    known = SHAPES.asarray(np.arange(3))
    np.testing.assert_array_equal(SHAPES.to_host(known), [0, 1, 2])
    known += 1
    np.testing.assert_array_equal(SHAPES.to_host(known), [0, 0, 0])
    assert float(known[0]) == 0 and not bool((known > 0).any()) and known.tolist() == [0, 0, 0]
