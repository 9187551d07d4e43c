"""Callers' matrices stay unchanged, of any kind; refused ones are refused in one line."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import wide_grid
from distgnn.arrays.canonical import canonical
from distgnn.nn.reference import normalize
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, make_grid
from distgnn.sampling import Replicated, sample_rows
from distgnn.sampling.rows import row_keys
from distgnn.store.from_arrays import of_arrays
from oracle import GCNReference

FORMATS = ("csr", "csr", "csr_matrix", "csc", "coo", "bsr", "lil", "dok", "dia", "dense")
KINDS = ("f4", "f4", "f8", "f2", "i1", "i8", "u2", "?", ">f8")
WAYS = [
    (name, aware) for name in ALGORITHMS for aware in (False, True) if name in SPARSITY_AWARE or not aware
]
CASES = 500


def drawn(r: np.random.Generator, canonical: bool, kind: str, index: str) -> sp.csr_array:
    """Draw a small square matrix with duplicates, unsorted columns and stored zeros, or a canonical one."""
    n, count = int(r.integers(1, 9)), int(r.integers(0, 30))
    rows, columns = np.sort(r.integers(0, n, count)), r.integers(0, n, count)
    if canonical:
        rows, columns = np.divmod(np.unique(rows * n + columns), n)
    pointers = np.searchsorted(rows, np.arange(n + 1))
    data = r.integers(0 if kind in ("u2", "?") else -3, 4, len(rows)).astype(kind)
    arrays = data, columns.astype(index), pointers.astype(index)
    return as_is(sp.csr_array, (n, n), arrays)


def as_is(container: Any, shape: tuple[int, int], arrays: Any) -> Any:
    """Make a matrix of these arrays, which a constructor could convert."""
    matrix = container(shape)
    matrix.data, matrix.indices, matrix.indptr = arrays
    return matrix


def arrays_of(matrix) -> dict[str, np.ndarray]:
    """Return the arrays of a matrix of any format."""
    if isinstance(matrix, np.ndarray):
        return {"dense": matrix}
    arrays = {name: value for name, value in vars(matrix).items() if isinstance(value, np.ndarray)}
    coords = getattr(matrix, "coords", ()) if matrix.format == "coo" else ()
    return arrays | {f"coords {k}": axis for k, axis in enumerate(coords)}


def snapshot(matrix) -> dict:
    """Return all properties of a matrix whose change a caller could see."""
    arrays = {name: (id(one), one.dtype, one.tolist()) for name, one in arrays_of(matrix).items()}
    flags = {} if isinstance(matrix, np.ndarray) else vars(matrix)
    plain = {name: value for name, value in flags.items() if isinstance(value, (bool, int, tuple))}
    return arrays | {name: value for name, value in plain.items() if name != "coords"}


def converted(A: sp.csr_array, format: str):
    if format == "dense":
        return as_dense(A, format).astype(A.dtype)
    containers = {"csr": sp.csr_array, "csr_matrix": sp.csr_matrix, "csc": sp.csc_array}
    if format in containers:  # CSC has the duplicates and the order of A, transposed
        return as_is(containers[format], A.shape, (A.data, A.indices, A.indptr))
    if format == "coo":
        rows = np.repeat(np.arange(A.shape[0], dtype=A.indices.dtype), np.diff(A.indptr))
        matrix = sp.coo_array(A.shape)
        matrix.data, matrix.coords = A.data, (rows, A.indices)
        return matrix
    return A.asformat(format)


def as_dense(A: sp.csr_array, format: str) -> np.ndarray:
    """Return the matrix in float64, duplicates added up, without a sparse routine that could change it."""
    dense = np.zeros(A.shape)
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    place = (A.indices, rows) if format == "csc" else (rows, A.indices)
    np.add.at(dense, place, A.data.astype(np.float64))
    return dense


def whole(matrix: Any) -> dg.LocalBlocks:
    """Return a matrix as its one block."""
    return dg.LocalBlocks(matrix.shape, [((0, matrix.shape[0]), (0, matrix.shape[1]), matrix)])


@pytest.mark.ranks(1)
@pytest.mark.slow
def test_callers_arrays_stay_as_they_are(comm):
    """Every product of 500 random matrices is SciPy's, and no array, flag or neighbour changes."""
    grids = {way: make_grid(comm, way[0], backend="numpy") for way in WAYS}
    r, own = np.random.default_rng(20), 0
    for case in range(CASES):
        format, kind = str(r.choice(FORMATS)), str(r.choice(KINDS))
        if format in ("coo", "bsr", "lil", "dok", "dia") and kind in ("f2", ">f8"):
            kind = "f4"  # SciPy has no such matrix
        clean = format in ("bsr", "lil", "dok", "dia", "dense") or bool(r.random() < 0.4)
        A = drawn(r, clean, kind, str(r.choice(["i4", "i8"])))
        expected, matrix = as_dense(A, format), converted(A, format)
        neighbour = as_is(sp.csr_array, A.shape, (A.data.copy(), A.indices, A.indptr))  # same pattern
        if not clean and r.random() < 0.3 and format != "coo":
            matrix.has_sorted_indices = matrix.has_canonical_format = True  # which is not so
        if r.random() < 0.5 and format != "lil":  # of which SciPy itself can read none that are read-only
            for array in arrays_of(matrix).values():
                array.flags.writeable = False
        before, beside = snapshot(matrix), snapshot(neighbour)
        name, aware = way = WAYS[case % len(WAYS)]
        source = matrix if case % 3 else whole(matrix)
        operator = dg.distribute(source, grids[way], name, aware)
        H = r.integers(-4, 5, (A.shape[0], 3)).astype(operator.dtype)
        what = f"{case}: {format} {kind} {way}"
        for product, dense in ((operator, expected), (operator.T, expected.T)):
            got = dg.gather(product @ dg.scatter(H, product.input_layout))
            np.testing.assert_array_equal(got, dense @ H, what)
        Q = Replicated(source)
        product = Q.multiply(A if format == "dense" else matrix).toarray()
        np.testing.assert_array_equal(product, expected @ expected, what)
        assert dg.partition.Pattern.of(matrix).nnz >= np.count_nonzero(expected), what
        if (expected >= 0).all():
            vertices = np.arange(A.shape[0])
            drawn_all = sample_rows(matrix, 9, row_keys(np.zeros(1, np.uint64), vertices)).toarray()
            np.testing.assert_array_equal(drawn_all != 0, expected != 0, what)
        GCNReference(matrix, [3, 2]).forward(H)
        assert snapshot(matrix) == before, what
        assert snapshot(neighbour) == beside, what
        own += operator.symmetric
    assert own  # some were symmetric


def test_canonical_arrays_are_not_copied():
    A = sp.csr_array(np.eye(5, dtype=np.float32))
    taken = canonical(A)
    assert taken is not A and all(
        np.shares_memory(getattr(taken, one), getattr(A, one)) for one in ("data", "indices", "indptr")
    )


def hand_made(format: str, shape, data, indices, indptr):
    container = {"csr": sp.csr_array, "csc": sp.csc_array}[format]
    return as_is(container, shape, map(np.array, (data, indices, indptr)))


def far_coordinate():
    matrix = sp.coo_array(np.eye(3))
    matrix.coords[0][1] = 2**30
    return matrix


def far_block():
    matrix = sp.bsr_array(np.eye(4), blocksize=(2, 2))
    matrix.indices[1] = 2**30
    return matrix


REFUSED = {
    "column": (lambda: hand_made("csr", (2, 3), [1.0, 2], [0, 2**30], [0, 1, 2]), "column numbers"),
    "negative": (lambda: hand_made("csr", (2, 3), [1.0, 2], [0, -1], [0, 1, 2]), "column numbers"),
    "falling": (lambda: hand_made("csr", (2, 3), [1.0, 2], [0, 1], [0, 2, 1]), "row pointers"),
    "too far": (lambda: hand_made("csr", (2, 3), [1.0, 2], [0, 1], [0, 1, 9]), "pointer"),
    "lengths": (lambda: hand_made("csr", (2, 3), [1.0], [0, 1], [0, 1, 2]), "same size"),
    "unsigned": (lambda: hand_made("csr", (2, 3), [1.0, 2], np.array([0, 1], "u4"), [0, 1, 2]), "integers"),
    "row of csc": (lambda: hand_made("csc", (2, 3), [1.0, 2], [0, 2], [0, 1, 2, 2]), "row numbers"),
    "coordinate": (far_coordinate, "exceeds"),
    "block": (far_block, "column numbers"),
    "complex": (lambda: sp.csr_array(np.eye(3) * 1j), "complex"),
    "complex dense": (lambda: np.eye(3) * 1j, "complex"),
    "objects": (lambda: np.array([[None]]), "no numbers"),
    "list": (lambda: np.ones(3), "two dimensions"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.ranks(1)
def test_what_is_no_matrix_is_refused_in_one_line(comm, name):
    make, complaint = REFUSED[name]
    on, matrix = dg.backend.get("numpy"), make()
    takers = {
        "distribute": lambda: dg.distribute(matrix, make_grid(comm, "1d", backend="numpy"), "1d"),
        "LocalBlocks": lambda: whole(matrix),
        "Replicated": lambda: Replicated(matrix),
        "CSR": lambda: dg.CSR.from_scipy(matrix, on),
        "Pattern": lambda: dg.partition.Pattern.of(matrix),
        "normalize": lambda: normalize(matrix),
        "reference": lambda: GCNReference(matrix, [1, 2]),
    }  # fmt: skip
    for taker, take in takers.items():
        if matrix.ndim == 1 and taker == "LocalBlocks":
            continue
        with pytest.raises(dg.UserError, match=complaint) as refused:
            take()
        assert str(refused.value).startswith("matrix=") and "\n" not in str(refused.value), taker


SPARSE = [name for name in REFUSED if sp.issparse(REFUSED[name][0]())]


@pytest.mark.parametrize("door", ["graph", "X", "y", "numbers"])
@pytest.mark.parametrize("name", SPARSE)
def test_matrices_that_do_not_fit_are_refused_at_every_door(name, door):
    make, complaint = REFUSED[name]
    edges = np.array([[0, 1], [1, 0]])
    arrays = {"graph": edges, ("y" if door == "numbers" else door): make()}
    with pytest.raises(dg.UserError, match=complaint) as refused:
        of_arrays(**arrays, regression=door == "numbers")
    assert str(refused.value).startswith("y=" if door == "numbers" else f"{door}=")


class Raw:
    """A block source of the caller's: duplicates, unsorted columns, and perhaps one that is not there."""

    shape, dtype, symmetric, far = (8, 8), np.dtype(np.float64), False, 0

    def block(self, rows: Any, cols: Any) -> sp.csr_array:
        height, width = rows[1] - rows[0], cols[1] - cols[0]
        columns = np.tile([width - 1, 0, 0], height)
        columns[-1] += self.far
        return hand_made("csr", (height, width), np.ones(3 * height), columns, np.arange(height + 1) * 3)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(("name", "aware"), WAYS)
def test_blocks_of_another_source_are_made_canonical(comm, name, aware):
    grid, source = wide_grid(comm, name, "numpy"), Raw()
    A = dg.distribute(source, grid, name, aware)
    product = dg.gather(A @ dg.scatter(np.ones((8, 1)), A.input_layout))
    assert product is None or (product.min() > 0 and (product % 3 == 0).all())  # 3 for each block in a row
    source.far = -1 if comm.Get_rank() == 0 else 0  # which makes its block for all of its node that hold it
    with pytest.raises(dg.UserError, match="column numbers must lie in"):
        dg.distribute(source, grid, name, aware)


@pytest.mark.ranks(1)
def test_complex_features_and_weights_are_refused(comm):
    A = dg.distribute(sp.csr_array(np.eye(3)), make_grid(comm, "1d", backend="numpy"), "1d")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(dg.UserError, match=r"X=complex128: .* complex"):
            dg.scatter(np.eye(3) * 1j, A.input_layout, np.float64)
        with pytest.raises(dg.UserError, match=r"weights=complex128: .* complex"):
            dg.nn.GCN(A, [3, 2]).set_weights([np.ones((3, 2)) * 1j])
        with pytest.raises(ValueError, match="labels must be real numbers, got complex128"):
            dg.nn.GCN(A, [3, 2]).targets(np.zeros(3) * 1j, np.ones(3, np.uint8))
        with pytest.raises(dg.UserError, match=r"X=complex128: .* complex"):
            GCNReference(np.eye(3), [3, 2]).forward(np.eye(3) * 1j)
    for dtype in (np.complex64, np.float16, np.int32):
        with pytest.raises(dg.UserError, match="dtype="):
            dg.MatrixSource(np.eye(3), dtype)


def test_a_zero_stored_on_one_side_makes_a_matrix_that_is_not_its_own_adjoint():
    A = hand_made("csr", (2, 2), [1.0, 0.0, 1.0], [0, 1, 1], [0, 2, 3])
    assert not dg.MatrixSource(A).symmetric
    both = hand_made("csr", (2, 2), [1.0, 0.0, 0.0, 1.0], [0, 1, 0, 1], [0, 2, 4])
    assert dg.MatrixSource(both).symmetric


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (None, "matrix=None: every rank must give the matrix"),
        ("a.dg", "matrix=a.dg: is a path; load opens a store"),
        (np.ones((2, 5), int), r"matrix=.*: looks like the ends of edges; scipy.sparse.coo_array"),
        (np.ones((5, 2), np.int32), r"looks like the ends of edges"),
    ],
)
def test_what_is_no_matrix_is_refused(comm: Any, given: Any, problem: str) -> None:
    with pytest.raises(dg.UserError, match=problem):
        dg.distribute(given, make_grid(comm, "1d"), "1d")


@pytest.mark.ranks(1, 3)
def test_what_is_no_dense_matrix_is_refused(comm: Any) -> None:
    A = dg.distribute(sp.eye_array(3), make_grid(comm, "1d"), "1d")
    for given, problem in ((None, "X=NoneType: rank 0 must give"), ("a", "holds values that are no numbers")):
        with pytest.raises(dg.UserError, match=problem):
            dg.scatter(given, A.input_layout)
