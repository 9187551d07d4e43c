"""Stores from arrays in memory: the same as from a matrix, whatever the arrays look like."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn.errors import ArgumentError, UserError

N = 6
EDGES = np.array([[0, 1, 2, 4, 0], [1, 2, 0, 1, 1]])  # one twice; node 3 and 5 have none
X = np.arange(2 * N, dtype=np.float64).reshape(N, 2)
Y = np.array([0, 1, 2, -1, 1, 0])


def written(tmp_path, *arrays, **options):
    options = {"order": ["original"], "normalize": "none", "self_loops": False, "force": True} | options
    dg.prepare(*arrays, out=tmp_path / "a.dg", **options)
    store = dg.Store(tmp_path / "a.dg")
    return store, store.order("original").block((0, store.n), (0, store.n)).toarray()


def test_an_edge_goes_from_the_first_row_to_the_second(tmp_path) -> None:
    store, A = written(tmp_path, EDGES, X, Y, "0.5/0.25/0.25")
    expected = np.zeros((N, N))
    expected[EDGES[1], EDGES[0]] = 1
    assert (A == expected).all() and store.manifest["directed"]
    assert (store.features(None, (0, N), (0, 2)) == X).all() and (store.labels(None, (0, N)) == Y).all()
    _, both = written(tmp_path, EDGES, X, directed=False)
    assert (both == np.maximum(expected, expected.T)).all()


def test_a_matrix_and_its_edges_are_the_same_graph(tmp_path) -> None:
    M = sp.random_array((N, N), density=0.4, rng=np.random.default_rng(1), format="csr")
    _, A = written(tmp_path, M, sp.csr_array(X), weights=True)
    assert A == pytest.approx(M.toarray())
    entries = M.tocoo()
    _, B = written(tmp_path, np.stack([entries.col, entries.row]), nodes=N, weights=entries.data)
    assert B == pytest.approx(M.toarray())
    store, S = written(tmp_path, M + M.T)
    assert not store.manifest["directed"] and ((S != 0) == ((M + M.T).toarray() != 0)).all()


@pytest.mark.parametrize(
    "split",
    [
        [1, 2, 3, 0, 1, 0],
        ([0, 4], [1], [2]),
        {"train": [0, 4], "valid": [1], "test": [2]},
        [np.isin(np.arange(N), part) for part in ([0, 4], [1], [2])],
    ],
    ids=["numbers", "ids", "names", "masks"],
)
def test_splits_are_numbers_or_three_parts(tmp_path, split) -> None:
    store, _ = written(tmp_path, EDGES, X, Y, split)
    assert store.split(None, (0, N)).tolist() == [1, 2, 3, 0, 1, 0]


@pytest.mark.parametrize(
    ("argument", "arrays", "options"),
    [
        ("graph", (np.concatenate([EDGES, EDGES[:1]]),), {}),
        ("graph", (EDGES.astype(float),), {}),
        ("graph", (sp.csr_array((2, 3)),), {}),
        ("graph", (EDGES, X, Y[:4]), {}),
        ("X", (EDGES, Y), {}),
        ("y", (EDGES, X, Y + 0.5), {}),
        ("y", (EDGES, X, X), {}),
        ("weights", (EDGES,), {"weights": [1.0]}),
        ("split", (EDGES, X, Y, ([0], [0], [1])), {}),
        ("split", (EDGES, X, Y, ([0], [9], [1])), {}),
        ("split", (EDGES, X, Y, {"train": [0], "tset": [1]}), {}),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, argument, arrays, options) -> None:
    with pytest.raises(ArgumentError) as error:
        written(tmp_path, *arrays, **options)
    assert error.value.argument == argument and not list(tmp_path.iterdir())


def test_bad_numbers_are_refused(tmp_path) -> None:
    for arrays in ((EDGES + 5, X), (EDGES - 1, X), (EDGES, X * np.nan), (EDGES, X, Y, [7] * N)):
        with pytest.raises(UserError):
            written(tmp_path, *arrays)
