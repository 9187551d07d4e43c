"""Operators on the entries of a matrix equal dense ones, on every algorithm and grid, with their adjoints."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import each_grid, some_grids
from dense_edges import DenseEdges
from distgnn.arrays.tuning import TUNING
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, make_grid
from distgnn.plan.dry.recorder import Recorder

WAYS = [(name, False) for name in ALGORITHMS] + [(name, True) for name in SPARSITY_AWARE]

HEADS = [(3, 4), (8, 2), (1, 13), (2, 5)]  # and columns of each


def matrix(r: np.random.Generator, n: int, dtype: Any = np.float64, density: float = 0.1) -> sp.csr_array:
    """Make a directed matrix, of which some rows and columns are empty."""
    dense = np.where(r.random((n, n)) < density, r.uniform(-1, 1, (n, n)), 0)
    dense[r.integers(0, n, n // 8)] = 0
    dense[:, r.integers(0, n, n // 8)] = 0
    return sp.csr_array(dense.astype(dtype))


def everywhere(comm: Any, X: dg.DistDense) -> np.ndarray:
    return comm.bcast(dg.gather(X))


def numbers(comm: Any, E: dg.DistEdges) -> np.ndarray:
    """Return the numbers (n, m, heads) of edges."""
    parts = [comm.bcast(E.gather(head)).toarray() for head in range(E.heads)]
    return np.stack(parts, axis=2)


def compare(comm: Any, A: Any, M: sp.csr_array, r: np.random.Generator, heads: int, width: int) -> None:
    """Run all operators forward and back, and compare them."""
    dense, (n, m) = DenseEdges(M), M.shape
    close = {"rtol": 1e-10, "atol": 1e-11} if A.dtype == np.float64 else {"rtol": 3e-4, "atol": 3e-5}

    def alike(E: dg.DistEdges, expected: np.ndarray) -> None:
        np.testing.assert_allclose(numbers(comm, E), expected, **close)

    def equal(X: dg.DistDense, expected: np.ndarray) -> None:
        np.testing.assert_allclose(everywhere(comm, X), expected, **close)

    u, v, U, G, V = (r.standard_normal((rows, w)).astype(A.dtype)
                     for rows, w in ((n, heads), (m, heads), (n, width), (n, width), (m, width)))  # fmt: skip
    left, right = A.output_layout, A.input_layout
    u_, U_, G_ = (dg.scatter(X, left) for X in (u, U, G))
    v_, V_ = (dg.scatter(X, right) for X in (v, V))
    alike(A.edges(), M.toarray()[:, :, None])
    alike(A.edges(lambda i, j: i * 100.0 + j, heads), dense.edges(
        np.repeat((np.arange(n)[:, None] * 100.0 + np.arange(m))[:, :, None], heads, axis=2)))  # fmt: skip
    scores, expected = A.edge_sum(u_, v_), dense.edges(u[:, None] + v[None])
    alike(scores, expected)
    relu, leaky = scores.leaky_relu(0.2), np.where(expected > 0, expected, 0.2 * expected)
    alike(relu, leaky)
    P, probabilities = relu.softmax(), dense.softmax(leaky)
    alike(P, probabilities)
    alike((500 * relu).softmax(), dense.softmax(500 * leaky))  # overflows without the maximum of a row
    equal(A.multiply(V_, values=P), dense.multiply(probabilities, V))
    dP, gradient = A.sddmm(G_, V_, heads), dense.sddmm(G, V, heads)
    alike(dP, gradient)
    equal(A.multiply_adjoint(G_, values=P), dense.multiply(probabilities.swapaxes(0, 1), G))
    back = scores.leaky_relu_back(P.softmax_back(dP))
    mean = (probabilities * gradient).sum(axis=1, keepdims=True)
    slopes = np.where(expected > 0, 1, 0.2)
    expected_back = probabilities * (gradient - mean) * slopes
    alike(back, expected_back)
    equal(back.row_sums(), expected_back.sum(axis=1))
    equal(back.column_sums(), expected_back.sum(axis=0))
    fused = A.edge_softmax(u_, v_, 0.2)
    alike(fused, probabilities)
    alike(fused - P, np.zeros_like(probabilities))
    for overwrite in (False, True):
        given = 1 * dP
        du, dv = A.edge_softmax_back(fused, given, overwrite)
        equal(du, expected_back.sum(axis=1))
        equal(dv, expected_back.sum(axis=0))
        alike(given, expected_back if overwrite else gradient)

    def through(E: Any, part: Any) -> None:
        E *= relu.data[part]

    masked, weights = fused.masked(through), probabilities * leaky
    equal(A.multiply(V_, values=masked), dense.multiply(weights, V))
    equal(A.multiply_adjoint(G_, values=masked), dense.multiply(weights.swapaxes(0, 1), G))
    mean = (weights * gradient).sum(axis=1, keepdims=True)
    du, dv = A.attention_back(fused, G_, V_, through)  # the last that has its numbers
    expected_back = (weights * gradient - probabilities * mean) * slopes
    equal(du, expected_back.sum(axis=1))
    equal(dv, expected_back.sum(axis=0))
    alike(A.edge_softmax(500 * u_, 500 * v_, 0.2), dense.softmax(500 * leaky))
    alike(P.row_sums_back(u_), dense.edges(np.repeat(u[:, None], m, axis=1)))
    alike(A.sddmm(U_, V_), dense.sddmm(U, V, 1))
    alike(2 * scores - P * relu + 0, 2 * expected - probabilities * leaky)
    weights = r.standard_normal((heads, 2)).astype(A.dtype)
    alike(scores.mixed(weights), dense.edges(expected @ weights))
    a = r.standard_normal(width).astype(A.dtype)
    added = A.additive_scores(U_, V_, a, heads, 0.3)
    ends = U[:, None] + V[None]
    slopes, by_head = np.where(ends > 0, 1, 0.3), (n, m, heads, -1)
    alike(added, dense.edges((a * ends * slopes).reshape(by_head).sum(axis=3)))
    through = np.repeat(gradient, width // heads, axis=2) * slopes
    dU, dV, da = added.back(dP)
    equal(dU, a * through.sum(axis=1))
    equal(dV, a * through.sum(axis=0))
    np.testing.assert_allclose(A.grid.backend.to_host(da), (through * ends).sum(axis=(0, 1)), **close)


@pytest.mark.ranks(1, 3, 4, 6)
@pytest.mark.parametrize(("name", "aware"), WAYS)
def test_every_operator_equals_a_dense_one(comm, name, aware, backend, monkeypatch):
    for at_a_time in ("cached_numbers", "launched_numbers"):
        monkeypatch.setattr(TUNING, at_a_time, 200)
    for number, shape in enumerate(some_grids(name, comm.Get_size())):
        r = np.random.default_rng(number)
        M = matrix(r, 37 + 8 * number)
        grid = make_grid(comm, name, shape, backend=backend)
        grid.overlap = number % 2 == 0
        heads, wide = HEADS[(number + WAYS.index((name, aware)) + comm.Get_size()) % len(HEADS)]
        compare(comm, dg.distribute(M, grid, name, aware), M, r, heads, heads * wide)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("name", "aware"), WAYS)
def test_messages_beyond_the_eager_limit(comm, name, aware, overlap):
    """Panels and numbers of 12 kB and more, in float32, many operations in a row."""
    r = np.random.default_rng(5)
    M = matrix(r, 200, np.float32, 0.4)
    grid = make_grid(comm, name, backend="numpy")
    grid.overlap = overlap
    A = dg.distribute(M, grid, name, aware)
    compare(comm, A, M, r, heads=4, width=64)


@pytest.mark.ranks(1)
def test_gradients_of_attention_take_the_memory_of_its_weights(comm):
    """One process, with and without needed rows: no other array has a number for each entry and head."""
    r = np.random.default_rng(4)
    half = matrix(r, 1500, np.float64, 0.1)
    for aware, M in ((False, half), (True, half), (False, sp.csr_array(half + half.T))):
        A = dg.distribute(M, make_grid(comm, "1d", backend="numpy"), "1d", aware)
        u, G, v, H = (dg.scatter(r.standard_normal((1500, w)), to)
                      for to in (A.output_layout, A.input_layout) for w in (8, 16))  # fmt: skip
        A.edges().column_sums()  # where entries of the transposed blocks stand
        P = A.edge_softmax(u, v)
        size = P.data.nbytes
        tracemalloc.start()
        A.attention_back(P, G, H)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < size / 4
        assert (A.pattern.transposed[0] is A.pattern.blocks[0]) == A.symmetric


@pytest.mark.ranks(4)
@pytest.mark.parametrize("aware", [False, True])
def test_attention_sends_the_words_of_a_product_and_one_per_head(comm, aware):
    """In 1D, scores, softmax and product receive the rows of H with ``heads`` more columns."""
    M, heads, width = matrix(np.random.default_rng(6), 90), 2, 8
    A = dg.distribute(M, make_grid(comm, "1d", backend="numpy"), "1d", aware)
    H = dg.scatter(np.ones((90, width)), A.input_layout)
    u, v = (dg.scatter(np.ones((90, heads)), layout) for layout in (A.output_layout, A.input_layout))
    A.pattern.ends()
    with dg.Ledger() as product:
        A @ H
    for softmax in (A.edge_softmax, lambda u, v: A.edge_sum(u, v).leaky_relu().softmax()):
        with dg.Ledger() as attention:
            A.multiply(H, values=softmax(u, v))
        assert attention.words * width == product.words * (width + heads) > 0


@pytest.mark.ranks(4)
def test_sums_over_the_axes_that_cut_columns_and_features(comm):
    """2D sends scores to their owners; 3D sums them over the features' axis; softmax needs two sums."""
    M = matrix(np.random.default_rng(7), 64)
    for name, shape in (("2d", {"rows": 2, "cols": 2}), ("3d", {"x": 2, "y": 2, "z": 1})):
        A = dg.distribute(M, make_grid(comm, name, shape, backend="numpy"), name)
        U, V = (dg.scatter(np.ones((64, 8)), layout) for layout in (A.output_layout, A.input_layout))
        with dg.Ledger() as book:
            E = A.sddmm(U, V, heads=4)
        entries = sum(block.nnz for block in A.pattern.blocks)
        (summed,) = [e for e in book.entries() if e["matrix"] == "sums"]
        if name == "2d":  # the numbers of the row's other panel go to its owner
            row = A.pattern.plane.row.gather_objects(entries)
            assert summed["words"] == 4 * (sum(row) - entries)
        else:
            assert summed["words"] == 4 * entries  # 2 (p - 1) / p of them over y
        with dg.Ledger() as book:
            E.softmax()
        assert book.words == 2 * 4 * A.pattern.height  # two all-reduces over two ranks
        with dg.Ledger() as book:
            E.leaky_relu() * 2 - E
        assert book.words == 0
        u, v = (dg.scatter(np.ones((64, 4)), layout) for layout in (A.output_layout, A.input_layout))
        with dg.Ledger() as fused:
            P = A.edge_softmax(u, v)
            A.edge_softmax_back(P, E)
        with dg.Ledger() as steps:
            scores = A.edge_sum(u, v)
            d = scores.leaky_relu_back(scores.leaky_relu().softmax().softmax_back(E))
            d.row_sums(), d.column_sums()
        assert fused.words == steps.words > 0


@pytest.mark.ranks(1, 3)
def test_other_edges_and_heads_are_refused_in_one_line(comm):
    M = matrix(np.random.default_rng(8), 20)
    grid = make_grid(comm, "1d", backend="numpy")
    A, B = (dg.distribute(M, grid, "1d", aware) for aware in (False, True))
    H = dg.scatter(np.ones((20, 8)), A.input_layout)
    u = dg.scatter(np.ones((20, 3)), A.input_layout)
    short, P = dg.distribute(M.astype(np.float32), grid, "1d"), A.edge_softmax(u, u)
    refused = {
        "edges of another operator": lambda: A.multiply(H, values=B.edges()),
        "edges of another": lambda: A.edges() + B.edges(),
        "expected edges": lambda: A.multiply(H, values=np.ones(M.nnz)),
        "are edges of another operator than": lambda: A.multiply(H, values=B.edges().masked(print)),
        "must divide the 8 columns": lambda: A.multiply(H, values=A.edges(heads=3)),
        "heads=0": lambda: A.sddmm(H, H, heads=0),
        "expected 1 heads": lambda: A.edges() * A.edges(heads=2),
        "u has 3 heads, v has 8": lambda: A.edge_sum(u, H),
        "expected what A.edge_softmax": lambda: A.edge_softmax_back(A.edges(), A.edges()),
        "P=<DistEdges": lambda: A.attention_back(A.edges(), H, H),
        "must divide the 8 columns$": lambda: A.attention_back(P, H, H),
        "G has 3 columns, H has 8": lambda: A.attention_back(P, u, H),
        "expected other edges than P": lambda: A.edge_softmax_back(P, P),
        "slope=-1": lambda: A.edge_softmax(u, u, -1),
        "A holds float32, u holds float64": lambda: short.edge_sum(u, u),
        "must be a DistDense": lambda: A.sddmm(np.ones((20, 8)), H),
        "expected a rank": lambda: A.edges().gather(root=99),
        "expected 0 to 0": lambda: A.edges().gather(head=1),
        "values=": lambda: A.edges(lambda i, j: np.ones(len(i) + 1)),
    }
    for message, call in refused.items():
        with pytest.raises((dg.UserError, ValueError, TypeError), match=message) as raised:
            call()
        assert "\n" not in str(raised.value)
    with pytest.raises(dg.UserError, match="sparsity_aware=cover: edges lie where their rows do"):
        dg.distribute(M, grid, "1d", "cover").edges()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("algorithm", ["1d", "2d", "3d"])
def test_phases_of_a_softmax_are_priced_as_one_pass(comm, backend, algorithm):
    r, heads = np.random.default_rng(1), 2
    M = matrix(r, 60, np.float32)
    for grid in each_grid(comm, algorithm, backend):
        A = dg.distribute(M, grid, algorithm)
        u, v = (dg.scatter(r.standard_normal((60, heads)).astype(np.float32), layout)
                for layout in (A.output_layout, A.input_layout))  # fmt: skip
        with Recorder() as book:
            P = A.edge_softmax(u, v, 0.2)
            A.edge_softmax_back(P, 1 * P)
        held = A.algorithm.plane.A.nnz if algorithm == "3d" else grid.nonzeros  # which counts all layers
        for name in ("softmax", "softmax back"):
            shapes = [step.shape for step in book.steps if step.operation == name]
            assert abs(sum(nonzeros for nonzeros, _ in shapes) - held) <= len(shapes)
            assert {width for _, width in shapes} == {heads}
        grid.free()
