"""Prices: what the ledger charges each rank in each operation, and numbers worked out by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from awkward_shapes import awkward
from chosen_grids import some_grids
from distgnn.arrays.tuning import TUNING
from distgnn.gallery import rmat
from distgnn.layout import nested, partition
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, make_grid

from .counts import check_price

MATRICES = awkward()
WAYS = [(name, False) for name in ALGORITHMS] + [(name, True) for name in SPARSITY_AWARE]


def made(shape, layout, dtype=np.float64):
    return dg.scatter(np.ones(shape, dtype), layout)


def operator_on(comm, name, aware, sizes, matrix, backend="numpy"):
    return dg.distribute(matrix, make_grid(comm, name, sizes, backend=backend), name, aware)


@pytest.mark.ranks(1, 3, 4, 8)
@pytest.mark.parametrize(("name", "aware"), WAYS)
def test_operations_on_entries_cost_their_price(comm, name, aware, backend):
    """Matrices are directed, or wide; entries have one head, or three of two columns each."""
    for number, sizes in enumerate(some_grids(name, comm.Get_size())):
        m, n = (matrix := MATRICES[("directed", "wide")[number % 2]]).shape
        A, heads = operator_on(comm, name, aware, sizes, matrix, backend), 1 + 2 * (number % 3)
        f, price, label = 2 * heads, A.prices, f"{sizes}, {heads} heads"
        U, V = made((m, f), A.output_layout), made((n, f), A.input_layout)
        u, v = made((m, heads), A.output_layout), made((n, heads), A.input_layout)
        E = A.edges(heads=heads)
        A.multiply_adjoint(U, values=E)  # agrees on the headers of the transposed panels
        check_price(lambda A=A, V=V, E=E: A.multiply(V, values=E), price.multiply(f, heads), label)
        back = price.multiply_adjoint(f, heads)
        check_price(lambda A=A, U=U, E=E: A.multiply_adjoint(U, values=E), back, label)
        check_price(lambda A=A, U=U, V=V, h=heads: A.sddmm(U, V, h), price.sddmm(f, heads), label)
        check_price(lambda A=A, u=u, v=v: A.edge_sum(u, v), price.edge_sum(heads), label)
        check_price(E.row_sums, price.row_sums(heads), label)
        check_price(E.softmax, price.row_sums(heads) + price.row_sums(heads), label)
        A.grid.free()


@pytest.mark.ranks(1, 4, 6)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_products_with_weights_cost_their_price(comm, name, backend):
    """With and without the gradient of the input."""
    matrix, (f, h) = MATRICES["symmetric"], (7, 4)
    n = matrix.shape[0]
    for sizes in some_grids(name, comm.Get_size()):
        A = operator_on(comm, name, False, sizes, matrix, backend)
        weights = A.weights
        T, W = made((n, f), weights.input_layout), made((f, h), weights.weight_layout)
        G = made((n, h), weights.output_layout)
        (times, back), (_, less) = (weights.prices(n, (f, h), 8, need) for need in (True, False))
        check_price(lambda w=weights, T=T, W=W: w.times(T, W), times, sizes)
        check_price(lambda w=weights, T=T, W=W, G=G: w.backward(T, G, W), back, sizes)
        check_price(lambda w=weights, T=T, G=G: w.backward(T, G), less, sizes)
        A.grid.free()


@pytest.mark.ranks(3, 4, 8)
@pytest.mark.parametrize(("name", "aware"), [*WAYS, *((name, "cover") for name in SPARSITY_AWARE)])
def test_what_travels_in_pieces_has_more_messages_and_as_many_words(comm, name, aware, monkeypatch):
    """Several panels, parts of columns and row blocks of sums, above MPI's eager limit."""
    for limit, value in {"panel_nonzeros": 1, "group_nonzeros": 1, "small_sum": 256, "sum_chunk": 8192,
                         "smallest_sum_block": 4096, "part_columns": 8, "gemm_rows": 8, "halved_block": 1,
                         "packed_numbers": 3000}.items():  # fmt: skip
        monkeypatch.setattr(TUNING, limit, value)
    matrix = rmat(512, degree=12, directed=True, features=0, classes=0).A.astype(np.float32)
    n, f = matrix.shape[0], 96
    for sizes in some_grids(name, comm.Get_size()):
        A = operator_on(comm, name, aware, sizes, matrix)
        H, G = made((n, f), A.input_layout, np.float32), made((n, f), A.output_layout, np.float32)
        T = made((n, f), A.weights.input_layout, np.float32)
        W = made((f, 48), A.weights.weight_layout, np.float32)
        A.T @ G
        check_price(lambda A=A, H=H: A @ H, A.prices.product(f), sizes)
        check_price(lambda A=A, G=G: A.T @ G, A.prices.adjoint(f), sizes)
        check_price(lambda A=A, T=T, W=W: A.weights.times(T, W), A.weights.prices(n, (f, 48), 4)[0], sizes)
        A.grid.free()


#: Words of each of 4 ranks for A @ H and for A.T @ G, of :func:`ring` and 5 columns. Blocks have 2 rows, or 4
#: where two ranks cut the nodes; columns of four ranks are 1, 1, 1, 2, of two 2, 3.
BY_HAND = {
    # CAGNET IV-A1: n f (P-1)/P
    ("1d", False, "4"): ([30] * 4, [30] * 4),
    # Sparsity-aware 4.1: rank 0 reads 6 rows, the others one of either neighbour; back they come
    ("1d", True, "4"): ([30, 10, 10, 10], [10, 15, 20, 15]),
    # two of rank 0's blocks are a single row of the product
    ("1d", "cover", "4"): ([20, 10, 10, 10], [10, 15, 15, 10]),
    # CAGNET IV-B1: a stage of n f/2 words, own or not; 2 (c-1)/c of n f/2 summed
    ("1.5d", False, "2x2"): ([0 + 20, 20 + 20, 20 + 20, 0 + 20],) * 2,
    # CAGNET IV-C: the other panel of 5, 12, 10, 2 non-zeros and 5 pointers; 4 rows of the own columns
    ("2d", False, "2x2"): ([15 + 8, 29 + 12, 25 + 8, 9 + 12],) * 2,
    # CAGNET IV-D1: (l-1)/l of n f is summed; of Aᵀ as much is gathered
    ("3d-split", False, "1x1x4"): ([30] * 4, [30] * 4),
    # Plexus Algorithm 1: half of n/2 f over z, n/2 f summed over x; back, half of n/2 f is scattered
    ("3d", False, "2x1x2"): ([10 + 20] * 4, [10] * 4),
    # RDM: (n - n/P) w there, n/P (f - w) back
    ("rdm", False, "1x4"): ([6 + 8, 6 + 8, 6 + 8, 12 + 6],) * 2,
}


def ring():
    """Make the matrix of a ring of 8 nodes, each its own neighbour, and of an edge to node 0 from each."""
    A = np.eye(8) + np.roll(np.eye(8), 1, axis=1) + np.roll(np.eye(8), -1, axis=1)
    A[0] = 1
    return sp.csr_array(A)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("name", "aware", "grid"), BY_HAND)
def test_prices_worked_out_by_hand(comm, name, aware, grid):
    sizes = dict(zip(ALGORITHMS[name].axes, map(int, grid.split("x")), strict=True))
    A = operator_on(comm, name, aware, sizes, ring())
    H, G = made((8, 5), A.input_layout), made((8, 5), A.output_layout)
    A.T @ G
    forward, back = (words[comm.Get_rank()] for words in BY_HAND[name, aware, grid])
    assert (A.prices.product(5).words, A.prices.adjoint(5).words) == (forward, back)
    check_price(lambda: A @ H, A.prices.product(5))
    check_price(lambda: A.T @ G, A.prices.adjoint(5))
    A.grid.free()


#: Words of a product of an m x n matrix on all ranks together, as the papers count them: g has the sizes of
#: the axes, nf and mf are those of H and of the product.
TOGETHER = {
    "1d": lambda g, nf, mf, A: {"H": (g["rows"] - 1) * nf},
    "1.5d": lambda g, nf, mf, A: {"H": (g["rows"] - 1) * nf, "sums": 2 * (g["reps"] - 1) * mf},
    "2d": lambda g, nf, mf, A: {
        "H": (g["rows"] - 1) * nf,
        "A": (g["cols"] - 1) * (2 * A.nnz + len(A.algorithm.plane.panels) * (A.shape[0] + g["rows"])),
    },
    "3d-split": lambda g, nf, mf, A: {"H": (g["rows"] - 1) * nf, "sums": (g["fibers"] - 1) * mf},
    "3d": lambda g, nf, mf, A: {"H": (g["z"] - 1) * nf, "sums": 2 * (g["x"] - 1) * mf},
}


@pytest.mark.ranks(4, 12)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_ranks_together_receive_what_the_papers_say(comm, name):
    """Blocks and widths are uneven."""
    matrix, f = MATRICES["wide"], 5
    for sizes in some_grids(name, comm.Get_size()):
        A = operator_on(comm, name, False, sizes, matrix)
        (m, n), total = A.shape, Counter()
        for words in A.grid.world.gather_objects(A.prices.product(f).by_matrix()):
            total.update(words)
        if name == "rdm":
            heights, c = np.diff(nested(partition(n, sizes["rows"]), sizes["cols"])), sizes["cols"]
            kept = heights @ np.tile(np.diff(partition(f, c)), sizes["rows"])  # rows of own columns
            assert total["H"] == sizes["rows"] * n * f - kept, sizes
        else:
            expected = TOGETHER[name](sizes, n * f, m * f, A)
            assert {matrix: total[matrix] for matrix in expected} == expected, sizes
        A.grid.free()
