"""Programs of the page on algebra, on every algorithm, compared with SciPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import expm

import distgnn as dg
import documents
from distgnn.operators import grids

PAGE = Path(__file__).parents[2] / "docs/algebra.md"
N, CLASSES = 57, 3
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "1d": ("1d", {}),
    "needed": ("1d", {"sparsity_aware": True}),
    "covers": ("1.5d", {"sparsity_aware": "cover"}),
    "1.5d": ("1.5d", {}),
    "2d": ("2d", {}),
    "3d-split": ("3d-split", {}),
    "3d": ("3d", {}),
    "rdm": ("rdm", {}),
}
pytestmark = [pytest.mark.ranks(1, 4), pytest.mark.parametrize("way", WAYS)]


def program(name: str) -> dict[str, Any]:
    """Return the functions of a program."""
    functions: dict[str, Any] = {"__name__": name}
    exec(compile(documents.read(PAGE).files[f"{name}.py"], f"{name}.py", "exec"), functions)
    return functions


def graph() -> sp.csr_array:
    """Make a directed graph of three communities; some nodes have no edge out."""
    rng = np.random.default_rng(4)
    together = np.equal.outer(np.arange(N) % CLASSES, np.arange(N) % CLASSES)
    edges = rng.random((N, N)) < np.where(together, 0.3, 0.02)
    edges[::19] = False
    return sp.csr_array(edges * rng.random((N, N)))


def normalized() -> sp.csr_array:
    edges = graph().toarray() > 0
    return dg.reference.normalize(sp.csr_array((edges | edges.T).astype(np.float64)))


@pytest.fixture
def distributed(comm, backend, way):
    """Give a function that distributes a matrix by this way, with parts of the nodes."""
    algorithm, options = WAYS[way]
    grid = dg.Grid(comm, backend=backend, **grids(algorithm, comm.size)[0])
    part = np.arange(N) * 7 % grid.shape.get("rows", 1)
    yield lambda matrix: dg.distribute(matrix, grid, algorithm, parts=part, **options)
    grid.free()


def compare(found: Any, expected: np.ndarray) -> None:
    """Compare a distributed matrix with an array by node, on rank 0."""
    whole = dg.gather(found)
    with found.grid.world.together():
        if whole is not None:
            np.testing.assert_allclose(whole, expected, rtol=1e-9, atol=1e-9)


def test_pagerank(distributed):
    page = program("pagerank")
    compare(page["pagerank"](distributed(graph())), page["reference"](graph())[:, None])


def test_embedding(distributed):
    matrix = normalized()
    values, vectors = program("embedding")["embedding"](distributed(matrix), CLASSES, steps=70)
    expected, basis = np.linalg.eigh(matrix.toarray())
    np.testing.assert_allclose(values, expected[: -CLASSES - 1 : -1], rtol=1e-9)
    whole, basis = dg.gather(vectors), basis[:, -CLASSES:]
    with vectors.grid.world.together():
        if whole is not None:
            np.testing.assert_allclose(np.abs(basis[:, ::-1].T @ whole), np.eye(CLASSES), atol=1e-5)


def test_chebyshev_filter(distributed):
    A, X = distributed(normalized()), np.random.default_rng(2).standard_normal((N, 4))
    H = dg.scatter(X, A.input_layout)
    compare(program("heat")["spread"](A, H, lambda x: np.exp(-3 * (1 - x)), 25),
            expm(-3 * (np.eye(N) - normalized().toarray())) @ X)  # fmt: skip


def test_label_propagation(distributed):
    matrix, known = normalized(), np.eye(CLASSES)[np.arange(N) % CLASSES]
    known[5:] = 0
    A = distributed(matrix)
    scores = known
    for _ in range(30):
        scores = np.where(
            known.any(axis=1, keepdims=True), known, (matrix @ scores) / matrix.sum(axis=1)[:, None]
        )
    compare(program("labels")["propagate"](A, dg.scatter(known, A.input_layout)), scores)
