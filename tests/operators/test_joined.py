"""Two products for all that other ranks send: right, with the words of a product for each panel."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn import local
from distgnn.arrays.tuning import TUNING
from distgnn.gallery import rmat
from distgnn.operators import grids, make_grid
from distgnn.operators.induced import Subgraphs
from loops import each

ROWS = ("1d", "1.5d", "rdm")


def joining(monkeypatch, nbytes):
    """Let so many bytes of panels be multiplied at once, on any backend."""
    for name in ("joined_panels", "joined_panels_on_device"):
        monkeypatch.setattr(TUNING, name, nbytes)


def distributed(comm, name, backend, matrix, wire=None, sizes=None):
    grid = make_grid(comm, name, sizes or grids(name, comm.Get_size())[-1 if name == "rdm" else 0],
                     backend=backend, wire=wire)  # fmt: skip
    return dg.distribute(matrix, grid, name)


def directed(n, seed=0, density=0.04):
    """Make a directed matrix, a third of whose rows are empty."""
    random = np.random.default_rng(seed)
    A = sp.random_array((n, n), density=density, rng=random, format="csr", dtype=np.float32)
    return (sp.diags_array((np.arange(n) % 3 > 0).astype(np.float32)) @ A).tocsr()


@pytest.mark.ranks(3, 4, 8)
@pytest.mark.parametrize("name", ROWS)
def test_products_are_right_and_have_the_same_words(comm, name, backend, monkeypatch):
    """Several in a row, either way, with overlap and without: same bits; of edges, too."""
    for n, width in ((211, 1), (211, 37), (5, 6)):
        matrix, words = directed(n), []
        X = np.random.default_rng(1).standard_normal((n, width)).astype(np.float32)
        for nbytes in (0, 1 << 30):
            joining(monkeypatch, nbytes)
            A, found = distributed(comm, name, backend, matrix), []
            H, G = dg.scatter(X, A.input_layout), dg.scatter(X, A.output_layout)
            E = A.edges()
            A.multiply_adjoint(G, values=E)
            with dg.Ledger() as told:
                for A.grid.overlap in (True, True, False):
                    made = A @ H, A.T @ G, A.multiply(H, values=E), A.multiply_adjoint(G, values=E)
                    found.append([backend.to_host(block.block).tobytes() for block in made])
            words.append((told.words, told.messages))
            assert found[0] == found[1] == found[2]
            for Y, expected in zip(made, 2 * (matrix @ X, matrix.T @ X), strict=True):
                whole = dg.gather(Y)
                if A.grid.rank == 0:
                    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-5)
            A.grid.free()
        assert words[0] == words[1]


@pytest.mark.ranks(3, 8)
def test_ranks_without_rows_join_blocks_of_their_own(comm, monkeypatch):
    """Two of them have the same windows of A, and own blocks of unequal widths."""
    joining(monkeypatch, 1 << 30)
    matrix = np.random.default_rng(0).standard_normal((1, 29))
    A = distributed(comm, "1d", "numpy", matrix)
    X, G = np.random.default_rng(1).standard_normal((29, 3)), np.ones((1, 3))
    Y, F = A @ dg.scatter(X, A.input_layout), A.T @ dg.scatter(G, A.output_layout)
    for found, expected in ((dg.gather(Y), matrix @ X), (dg.gather(F), matrix.T @ G)):
        if A.grid.rank == 0:
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    A.grid.free()


@pytest.mark.ranks(4, 8)
@pytest.mark.parametrize("name", ROWS)
def test_there_are_two_products_at_most(comm, name, backend, monkeypatch):
    """The own block's, and that of all others; of RDM, in each of up to two parts of the columns."""
    matrix = rmat(256, degree=64, features=0, classes=0).A.astype(np.float32)
    X = np.ones((matrix.shape[0], 4), np.float32)
    for sizes in grids(name, comm.Get_size()):
        counts = []
        for nbytes in (0, 1 << 30):
            joining(monkeypatch, nbytes)
            A = distributed(comm, name, backend, matrix, sizes=sizes)
            H, spmm, products = dg.scatter(X, A.input_layout), local.spmm, []
            with monkeypatch.context() as patch:
                patch.setattr(local, "spmm", lambda *a, **how: products.append(spmm(*a, **how)))  # noqa: B023
                A @ H
            counts.append(len(products))
            stages = len(A.algorithm.stages)
            A.grid.free()
        assert counts[1] <= min(counts[0], 4 if name == "rdm" else 2), (sizes, counts)
        assert name != "1d" or counts[1] == 2 < stages <= counts[0]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", ["1d", "1.5d"])
def test_aggregation_picks_the_same_neighbours(comm, name, backend, monkeypatch):
    """The largest, with ties, and back."""
    matrix = directed(83, density=0.2)
    X = np.random.default_rng(1).integers(0, 3, (83, 5)).astype(np.float32)
    found = []
    for nbytes in (0, 1 << 30):
        joining(monkeypatch, nbytes)
        A = distributed(comm, name, backend, matrix)
        Z, picked = A.aggregate(dg.scatter(X, A.input_layout), "max", keep=True)
        F = A.aggregate_back(dg.scatter(X, A.output_layout), picked)
        found.append([dg.gather(Z), dg.gather(F)])
        A.grid.free()
    for first, again in zip(*found, strict=True):
        np.testing.assert_array_equal(first, again)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", ["1d", "1.5d"])
def test_subgraphs_are_cut_of_joined_blocks(comm, name, monkeypatch):
    matrix, nodes = directed(83, density=0.2), np.arange(2, 80, 3)
    X = np.random.default_rng(1).standard_normal((nodes.size, 5)).astype(np.float32)
    joining(monkeypatch, 1 << 30)
    A = distributed(comm, name, "numpy", matrix)
    part = Subgraphs(A).of(nodes)
    Y = dg.gather(part @ dg.scatter(X, part.input_layout))
    if A.grid.rank == 0:
        np.testing.assert_allclose(Y, matrix[nodes][:, nodes] @ X, rtol=1e-4, atol=1e-5)
    A.grid.free()


@pytest.mark.ranks(3, 4)
@each("wire", ["bfloat16", "float16"])
def test_in_16_bits_all_but_own_rows_are_rounded(comm, monkeypatch, wire):
    """Each number that travels is rounded once, as in a panel of its own."""
    own, both = sp.eye_array(211, format="csr", dtype=np.float32), directed(211)
    X = np.random.default_rng(1).standard_normal((211, 7)).astype(np.float32)
    for matrix in (own, both):
        found = []
        for nbytes in (0, 1 << 30):
            joining(monkeypatch, nbytes)
            A = distributed(comm, "1d", "numpy", matrix, wire)
            with dg.Ledger() as told:
                found.append(dg.gather(A @ dg.scatter(X, A.input_layout)))
            assert told.words > 0
            A.grid.free()
        if comm.Get_rank() == 0:
            np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)
            assert (matrix is own) == np.array_equal(found[1], matrix @ X)
