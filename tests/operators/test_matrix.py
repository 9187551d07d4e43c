"""Local CSR blocks, scatter and gather, and block sources."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from awkward_shapes import awkward
from distgnn.arrays.csr import CSR
from distgnn.layout import Cut, Layout
from distgnn.operators import make_grid


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_csr_survives_packing(backend, dtype):
    for name, A in awkward().items():
        block = CSR.from_scipy(A, backend, dtype)
        assert (block.shape, block.nnz, block.dtype) == (A.shape, A.nnz, dtype), name
        assert CSR.count(*block.header()[:2]) == 2 * A.nnz + A.shape[0] + 1
        again = CSR(*block.header(), backend.asarray(backend.to_host(block.buffer).copy()))
        assert (again.to_scipy() != A.astype(dtype)).nnz == 0, name
        across, expected = block.transposed(backend), CSR.from_scipy(A.T, backend, dtype)
        assert across.header() == expected.header(), name
        np.testing.assert_array_equal(backend.to_host(across.buffer), backend.to_host(expected.buffer), name)


def test_csr_in_a_larger_buffer(backend):
    A = awkward()["prime"]
    block = CSR.from_scipy(A, backend)
    room = backend.zeros((block.buffer.size + 100,), np.uint8)
    room[: block.buffer.size] = block.buffer
    assert (CSR(*block.header(), room).to_scipy() != A).nnz == 0


@pytest.mark.parametrize(
    ("index", "value"), [(np.int64, np.float32), (np.int32, np.float64), (np.int32, np.float32)]
)
def test_packed_arrays_are_aligned(index, value):
    """An odd number of non-zeros leaves no array at an address that its type does not allow."""
    shape, nnz = (5, 9), 7
    room = np.zeros(CSR.nbytes(shape, nnz, index, value) + 8, np.uint8)
    start = -room.ctypes.data % 8
    block = CSR(shape, nnz, index, value, room[start:])
    for array, size in ((block.data, nnz), (block.indices, nnz), (block.indptr, 6)):
        assert array.size == size and array.flags.aligned
    block.data[:], block.indices[:], block.indptr[:] = 1, 2, 3  # and none lies over another
    assert (block.data == 1).all() and (block.indices == 2).all() and (block.indptr == 3).all()


def broken(indptr, indices, shape):
    matrix = sp.csr_array(shape)
    matrix.indptr, matrix.indices = np.array(indptr), np.array(indices)
    matrix.data = np.ones(len(indices))
    return matrix


@pytest.mark.parametrize(
    ("indptr", "indices", "complaint"),
    [
        ([0, 2, 1], [0, 1], "row pointers"),
        ([0, 1, 2], [0, 5], "column numbers"),
        ([0, 1, 2], [0, -1], "column numbers"),
    ],
)
def test_broken_csr_is_refused(backend, indptr, indices, complaint):
    with pytest.raises(dg.UserError, match=complaint):
        CSR.from_scipy(broken(indptr, indices, (2, 3)), backend)


def layouts(grid):
    rows = Cut(
        ("rows",),
        np.concatenate([[0, 0], np.full(grid.shape["rows"] - 1, 7)]) if grid.shape["rows"] > 1 else None,
    )
    yield Layout(grid, rows if rows.parts is not None else Cut(("rows",)), Cut())
    yield Layout(grid, Cut(("rows",)), Cut(("cols",)))
    yield Layout(grid, Cut(), Cut(("cols", "rows")))
    yield Layout(grid, Cut(), Cut())


@pytest.mark.ranks(1, 4, 6)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_scatter_and_gather_are_inverse(comm, backend, dtype):
    grid = make_grid(comm, "2d", backend=backend)
    X = np.arange(7 * 5).reshape(7, 5).astype(dtype)
    for layout in layouts(grid):
        H = dg.scatter(X if grid.rank == 0 else None, layout)
        (top, bottom), (left, right) = layout.ranges(X.shape)
        np.testing.assert_array_equal(backend.to_host(H.block), X[top:bottom, left:right])
        whole = dg.gather(H)
        assert (whole is None) == (grid.rank > 0)
        if grid.rank == 0:
            np.testing.assert_array_equal(whole, X)
            assert whole.dtype == dtype
            H.block += 1
            np.testing.assert_array_equal(X, np.arange(35).reshape(7, 5))  # rank 0's block is a copy


@pytest.mark.ranks(1, 4)
def test_scatter_refuses_on_every_rank(comm, backend):
    grid = make_grid(comm, "1d", backend=backend)
    layout = Layout(grid, Cut(("rows",), dg.layout.partition(7, comm.Get_size())), Cut())
    for wrong in (np.zeros((8, 2)), np.zeros((7, 2, 1))):
        with pytest.raises((ValueError, RuntimeError), match=r"cuts 7 rows|takes a matrix or a vector"):
            dg.scatter(wrong if grid.rank == 0 else None, layout)


@pytest.mark.ranks(1, 4)
def test_blocks_must_fit_their_layout(comm, backend):
    grid = make_grid(comm, "1d", backend=backend)
    layout = Layout(grid, Cut(("rows",)), Cut())
    with pytest.raises(ValueError, match="where the layout says"):
        dg.DistDense(backend.zeros((99, 2), float), layout, (7, 2))
    height = layout.local_shape((8, 2))[0]
    if height > 1:
        with pytest.raises(ValueError, match="C-contiguous"):
            dg.DistDense(backend.zeros((2, height), float).T, layout, (8, 2))


def test_matrix_source_knows_symmetry():
    matrices = awkward()
    assert dg.MatrixSource(matrices["symmetric"]).symmetric
    for name in ("directed", "wide", "prime"):
        assert not dg.MatrixSource(matrices[name]).symmetric
    assert dg.MatrixSource(sp.csr_array(np.eye(3, dtype=int))).dtype == np.float64


def test_local_blocks_answer_only_for_what_they_hold():
    A = awkward()["prime"]
    held = dg.LocalBlocks(A.shape, [((3, 20), (5, 31), A[3:20, 5:31])])
    assert (held.block((4, 9), (6, 30)) != A[4:9, 6:30]).nnz == 0
    assert held.block((0, 0), (1, 9)).shape == (0, 8)
    with pytest.raises(ValueError, match="no block that covers"):
        held.block((2, 9), (6, 30))
    with pytest.raises(ValueError, match="does not fill"):
        dg.LocalBlocks(A.shape, [((3, 20), (5, 30), A[3:20, 5:31])])
    with pytest.raises(ValueError, match="told its dtype"):
        dg.LocalBlocks(A.shape, [])
