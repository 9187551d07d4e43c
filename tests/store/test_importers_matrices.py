"""Matrix Market files and SciPy .npz matrices against SciPy's own readers."""

from __future__ import annotations

import gzip
import io
from itertools import product

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import open_source
from distgnn.store.importers.tables import owners
from distgnn.store.source import ImportOptions

from .importing import adjacency, refused, truncate, write

N = 23


def example(symmetric: bool, seed: int = 0) -> scipy.sparse.coo_matrix:
    """Draw a matrix with positive weights, some rows empty, a diagonal entry."""
    rng = np.random.default_rng(seed)
    matrix = scipy.sparse.random(N, N, 0.1, random_state=rng, format="lil")
    matrix[3, 3] = 0.5
    matrix[7] = 0
    matrix = matrix.tocsr()
    return (matrix + matrix.T if symmetric else matrix).tocoo()


def market(matrix, **options) -> str:
    out = io.BytesIO()
    scipy.io.mmwrite(out, matrix, comment="made by\n a test", **options)
    return out.getvalue().decode()


def test_matrix_market(tmp_path):
    for symmetry, field, packed in product(
        ("general", "symmetric"), ("real", "integer", "pattern"), (False, True)
    ):
        matrix = example(symmetry == "symmetric")
        if field == "integer":
            matrix.data = np.ceil(10 * matrix.data).astype(np.int64)
        text = market(matrix, field=field, symmetry=symmetry)
        path = tmp_path / ("a.mtx.gz" if packed else "a.mtx")
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        source = open_source(path)
        assert source.name == "a" and source.n == N and source.directed == (symmetry == "general")
        assert np.array_equal(adjacency(source), matrix.toarray() != 0)
        if field != "pattern":
            weighted = adjacency(open_source(path, ImportOptions(weights=True)))
            assert np.allclose(weighted, matrix.toarray())


def test_general_matrix_that_is_symmetric(tmp_path):
    matrix = example(True)
    path = write(tmp_path / "a.mtx", market(matrix, symmetry="general"))
    source = open_source(path, ImportOptions(weights=True))
    assert not source.directed
    listed = sum(len(edges[0]) for edges in source.edges())
    assert listed == source.edge_count == scipy.sparse.triu(matrix).nnz
    assert np.allclose(adjacency(source), matrix.toarray())
    forced = open_source(path, ImportOptions(directed=True))
    assert forced.directed and np.array_equal(adjacency(forced), matrix.toarray() != 0)


def test_general_matrix_made_undirected(tmp_path):
    matrix = example(False).toarray()
    path = write(tmp_path / "a.mtx", market(scipy.sparse.coo_matrix(matrix), symmetry="general"))
    source = open_source(path, ImportOptions(directed=False))
    assert not source.directed and np.array_equal(adjacency(source), (matrix + matrix.T) != 0)


def test_a_matrix_symmetric_but_for_one_weight_stays_directed(tmp_path):
    matrix = example(True).tolil()
    matrix[2, 5], matrix[5, 2] = 0.25, 0.5
    path = write(tmp_path / "a.mtx", market(matrix.tocoo(), symmetry="general"))
    assert open_source(path, ImportOptions(weights=True)).directed
    assert not open_source(path).directed


def test_a_matrix_without_entries(tmp_path):
    source = open_source(
        write(tmp_path / "a.mtx", "%%MatrixMarket matrix coordinate pattern general\n5 5 0\n")
    )
    assert source.n == 5 and list(source.edges()) == []


HEAD = "%%MatrixMarket matrix coordinate "


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("0,1\n", "line 1: not a Matrix Market file"),
        ("", "line 1: not a Matrix Market file"),
        (
            "%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n",
            "array real general is no graph; expected coordinate",
        ),
        (HEAD + "complex general\n2 2 1\n1 2 1 0\n", "complex"),
        (HEAD + "real skew-symmetric\n2 2 1\n2 1 1\n", "skew-symmetric"),
        (HEAD + "complex hermitian\n2 2 1\n2 1 1 0\n", "hermitian"),
        (HEAD + "real general\n% nothing more\n", "before the size line"),
        (HEAD + "real general\n2 2\n1 2 1\n", "line 2: bad size line '2 2'"),
        (HEAD + "real general\n2 -2 1\n1 2 1\n", "line 2: bad size line"),
        (HEAD + "real general\n% c\n2 3 1\n1 2 1\n", "line 3: the matrix is 2 x 3"),
        (
            HEAD + "real general\n2000000000000 2000000000000 1\n1 2 1\n",
            r"declares 2000000000000 nodes in 82 bytes",
        ),
        (HEAD + "real general\n0 0 0\n", "without nodes"),
        (HEAD + "real general\n2 2 2\n1 2 1\n0 1 1\n", "line 4, column 0: '0'; expected a row in 1..2"),
        (HEAD + "real general\n2 2 1\n1 3 1\n", "line 3, column 1: '3'; expected a column in 1..2"),
        (HEAD + "real general\n2 2 1\n1 2\n", "line 3: bad line '1 2', which has 2 fields; expected 3"),
        (
            HEAD + "pattern general\n2 2 1\n1 2 1\n",
            "line 3: bad line '1 2 1', which has 3 fields; expected 2",
        ),
        (HEAD + "real general\n2 2 1\n1 2 nan\n", "line 3, column 2: 'nan'; expected a finite number"),
        (HEAD + "real general\n2 2 1\n1 two 1\n", "line 3, column 1: 'two'; expected a column"),
        (HEAD + "real general\n2 2 3\n1 2 1\n", "1 edges, but line 2 promises 3"),
        (HEAD + "real general\n2 2 1\n1 2 1\n2 1 1\n", "2 edges or more, but line 2 promises 1"),
    ],
)
def test_bad_matrix_market(tmp_path, content, words):
    refused(write(tmp_path / "a.mtx", content), "a.mtx", words)


def test_truncated_and_contradicted(tmp_path):
    text = HEAD + "pattern symmetric\n50 50 49\n" + "".join(f"{k + 2} {k + 1}\n" for k in range(49))
    path = tmp_path / "a.mtx.gz"
    path.write_bytes(gzip.compress(text.encode()))
    refused(path, "symmetric matrix", "cannot be read as directed", directed=True)
    refused(truncate(path, 0.8), "a.mtx.gz: truncated or damaged")


def test_scipy_npz(tmp_path, monkeypatch):
    for kind, packed, dtype in product(("csr", "csc", "coo"), (False, True), ("f8", "f4", "i1", "?")):
        matrix = example(False)
        matrix.data = np.ceil(3 * matrix.data)
        matrix = matrix.astype(dtype)
        path = tmp_path / "m.npz"
        scipy.sparse.save_npz(path, matrix.asformat(kind), compressed=packed)
        for entries in (LIMITS.entries, 7):
            monkeypatch.setattr(LIMITS, "entries", entries)
            source = open_source(path, ImportOptions(weights=True))
            assert source.name == "m" and source.directed
            assert np.array_equal(adjacency(source), matrix.toarray().astype(float))
        assert np.array_equal(adjacency(open_source(path)), matrix.toarray() != 0)


def test_symmetric_scipy_matrix_is_undirected(tmp_path):
    matrix = example(True)
    scipy.sparse.save_npz(tmp_path / "m.npz", matrix.tocsr())
    source = open_source(tmp_path / "m.npz", ImportOptions(weights=True))
    assert not source.directed and np.allclose(adjacency(source), matrix.toarray())
    assert sum(len(edges[0]) for edges in source.edges()) == scipy.sparse.triu(matrix).nnz


def test_owners_of_entries():
    indptr = np.array([0, 0, 3, 3, 3, 4, 9, 9])
    whole = np.repeat(np.arange(7), np.diff(indptr))
    for lo in range(10):
        for hi in range(lo, 10):
            assert np.array_equal(owners(indptr, lo, hi), whole[lo:hi])


def saved(path, **arrays_by_name):
    np.savez_compressed(path, **arrays_by_name)
    return path


GOOD = {"format": "csr", "shape": [3, 3], "indptr": [0, 1, 2, 2], "indices": [1, 2], "data": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shape": [3, 4]}, "3 x 4"),
        ({"shape": [9]}, "expected a matrix"),
        ({"shape": [0, 0], "indptr": [0], "indices": np.zeros(0, int), "data": np.zeros(0)}, "without nodes"),
        ({"format": "dia"}, "format 'dia'"),
        ({"indices": [1, 3]}, r"node id 3 lies outside 0\.\.2"),
        ({"indices": [1, -1]}, "node id -1 lies"),
        ({"indices": [1.0, 2.0]}, "expected integers"),
        ({"indices": [1]}, "1 indices .*for 2 values"),
        ({"indptr": [0, 1, 2]}, "3 row pointers for 3 rows"),
        ({"indptr": [0, 2, 1, 2]}, "do not rise"),
        ({"indptr": [0, 1, 2, 3]}, "do not rise"),
        ({"data": [1.0, np.nan]}, "weight nan"),
        ({"data": np.array([1, "x"], dtype=object)}, "Python objects, which are pickles and never loaded"),
        ({"indices": np.array([1, 2], dtype=object)}, "Python objects"),
        ({"shape": np.array([3, 3], dtype=object)}, "Python objects"),
        ({"format": np.array({"a": 1}, dtype=object)}, "'format': holds Python objects"),
        ({"format": 7}, "'format': holds int64, expected a string"),
        ({"format": ["csr", "csc"]}, "'format': 2 strings"),
    ],
)
def test_bad_npz(tmp_path, changes, words):
    assert adjacency(open_source(saved(tmp_path / "good.npz", **GOOD))).sum() == 2
    refused(saved(tmp_path / "a.npz", **{**GOOD, **changes}), "a.npz", words, weights=True)


def test_damaged_npz(tmp_path):
    path = tmp_path / "m.npz"
    for packed in (True, False):
        scipy.sparse.save_npz(path, example(False).tocsr(), compressed=packed)
        refused(truncate(path, 0.7), "m.npz: truncated or damaged")
    scipy.sparse.save_npz(path, example(False).tocsr(), compressed=False)
    data = bytearray(path.read_bytes())
    place = data.find(b"data.npy") + 150
    data[place] ^= 255
    path.write_bytes(data)
    refused(path, "m.npz")  # the checksum of the member
    refused(saved(tmp_path / "other.npz", x=np.ones(3)), "holds x; expected edge_index, a SciPy matrix")
    refused(write(tmp_path / "text.npz", "hello"), "text.npz: truncated or damaged")
    refused(saved(tmp_path / "part.npz", format="csr", shape=[3, 3]), "has no array 'data'")
