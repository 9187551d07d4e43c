"""Dense products that are added to a matrix, or whose shares lie in one array; vectors for each head."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from distgnn import gallery
from distgnn.operators import make_grid
from distgnn.operators.dense import DistDense
from loops import each

N, BELOW, ABOVE = 21, 5, 4


def made(comm, backend, algorithm):
    """Make dense products, and whole matrices."""
    A = gallery.rmat(N, degree=3).A
    grid = make_grid(comm, algorithm, backend=backend)
    random = np.random.default_rng(5)
    shapes = (N, BELOW), (BELOW, ABOVE), (N, ABOVE), (N, BELOW)
    return dg.distribute(A, grid, algorithm).weights, [random.standard_normal(shape) for shape in shapes]


def gathered(X):
    """Gather a matrix on all ranks."""
    return X.grid.world.mpi.bcast(dg.gather(X))


@pytest.mark.ranks(1, 4, 6)
@each("algorithm", ["1d", "1.5d", "2d", "3d-split", "rdm"])
def test_products_are_added(comm, backend, algorithm):
    weights, (T, W, Z, dT) = made(comm, backend, algorithm)
    on, cut = backend, lambda X: dg.scatter(X.copy(), weights.input_layout)
    of_W = DistDense(on.asarray(W), weights.weight_layout, W.shape)
    out = weights.times(cut(T), of_W, cut(Z), add=True)
    np.testing.assert_allclose(gathered(out), Z + T @ W, atol=1e-12)
    height = cut(T).block.shape[1]
    shares = on.asarray(np.full((2 * height, ABOVE), np.nan))
    weights.shares(cut(T), cut(Z), of_W, room := cut(dT), add=True, share=shares[:height])
    weights.shares(cut(dT), cut(Z), share=shares[height:])
    np.testing.assert_allclose(gathered(room), dT + Z @ W.T, atol=1e-12)
    dW = on.to_host(weights.sum(shares, cut(T), matrices=2))
    np.testing.assert_allclose(dW, np.vstack([T.T @ Z, dT.T @ Z]), atol=1e-12)
    weights.grid.free()


@pytest.mark.ranks(1, 4, 6, 9)
@each("algorithm, heads", [("1d", 3), ("2d", 1), ("2d", 2), ("2d", 3), ("2d", 6), ("3d-split", 3)])
def test_vectors_by_head(comm, backend, algorithm, heads):
    """Heads whose columns are cut between ranks, and fewer heads than ranks."""
    weights, _ = made(comm, backend, algorithm)
    random, f = np.random.default_rng(6), 6
    Y, dY, *D = (random.standard_normal((N, width)) for width in (f, f, heads, heads))
    a = random.standard_normal((2, f))
    of_head = np.repeat(np.eye(heads), f // heads, axis=0)
    cut = lambda X: dg.scatter(X.copy(), weights.input_layout)  # noqa: E731
    vectors, gradients = list(map(backend.asarray, a)), [cut(one) for one in D]
    for found, vector in zip(weights.by_head(cut(Y), vectors, heads), a, strict=True):
        np.testing.assert_allclose(gathered(found), Y * vector @ of_head, atol=1e-12)
    whole = cut(dY)
    da = backend.to_host(weights.by_head_back(cut(Y), vectors, gradients, whole))
    np.testing.assert_allclose(da, [(Y * (one @ of_head.T)).sum(axis=0) for one in D], atol=1e-12)
    added = sum((one @ of_head.T) * vector for one, vector in zip(D, a, strict=True))
    np.testing.assert_allclose(gathered(whole), dY + added, atol=1e-12)
    weights.grid.free()


@pytest.mark.ranks(8)
def test_sums_that_travel_are_added_to_nothing(comm):
    weights, (T, W, Z, _) = made(comm, "numpy", "3d")
    W = DistDense(np.zeros(weights.weight_layout.local_shape(W.shape)), weights.weight_layout, W.shape)
    T, Z = dg.scatter(T, weights.input_layout), dg.scatter(Z, weights.output_layout)
    for call in (lambda: weights.times(T, W, Z, add=True), lambda: weights.shares(T, Z, share=Z.block)):
        with pytest.raises(ValueError, match="a product whose sums travel is added to nothing"):
            call()
    weights.grid.free()
