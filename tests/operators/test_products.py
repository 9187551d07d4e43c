"""Every algorithm on every grid of P ranks against the serial oracle, the adjoint identity and its price."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from awkward_shapes import awkward
from chosen_grids import some_grids, wide_grid
from distgnn.errors import ArgumentError, DisagreementError
from distgnn.operators import ALGORITHMS, grids, make_grid
from distgnn.operators.dense import DistDense

from .counts import by_matrix, check_price

MATRICES = awkward()
WIDTH = 5


def right_sides(A, f, dtype=np.float64, seed=3):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((A.shape[1], f)).astype(dtype), rng.standard_normal((A.shape[0], f)).astype(
        dtype
    )


def awkward_matrices(ranks):
    """Return all of them on 1 and 4 ranks; 3 and 12 ranks together have all."""
    places = {1: (0, 1), 4: (0, 1), 3: (0, 2), 12: (1, 2)}
    first, step = places[ranks]
    return {name: MATRICES[name] for name in list(MATRICES)[first::step]}


def check_product(A, grid, name, f, dtype=np.float64, label="", **partitions):
    """Check that A @ H and A.T @ G equal SciPy's; return the operator, H and G.

    <A H, G> == <H, Aᵀ G> must hold, and inputs are left alone.
    """
    X, Y = right_sides(A, f, dtype)
    operator = dg.distribute(A.astype(dtype), grid, name, **partitions)
    H, G = dg.scatter(X, operator.input_layout), dg.scatter(Y, operator.output_layout)
    before = [grid.backend.to_host(M.block).copy() for M in (H, G)]
    AH, AtG = operator @ H, operator.T @ G
    assert AH.layout.same(operator.output_layout, AH.shape) and AtG.layout.same(
        operator.input_layout, AtG.shape
    )
    got, adjoint = dg.gather(AH), dg.gather(AtG)
    with grid.world.together():  # rank 0 compares, all ranks fail
        for M, block in zip((H, G), before, strict=True):
            np.testing.assert_array_equal(grid.backend.to_host(M.block), block, err_msg=label)
        if grid.rank == 0:
            tolerance = (
                {"rtol": 1e-12, "atol": 1e-12} if dtype == np.float64 else {"rtol": 2e-5, "atol": 2e-5}
            )
            tolerance["err_msg"] = label
            np.testing.assert_allclose(got, A @ X, **tolerance)
            np.testing.assert_allclose(adjoint, A.T @ Y, **tolerance)
            identity = 1e-10 if dtype == np.float64 else 1e-4
            np.testing.assert_allclose(np.sum(got * Y), np.sum(X * adjoint), rtol=identity, atol=identity)
            assert got.dtype == adjoint.dtype == dtype
    return operator, H, G


def check_words(operator, H, G, label):
    """Check the price of further products; the first ones agree on the headers of panels."""
    check_price(lambda: operator @ H, operator.prices.product(H.shape[1]), label)
    check_price(lambda: operator.T @ G, operator.prices.adjoint(G.shape[1]), label)


@pytest.mark.ranks(1, 3, 4, 12)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.slow
def test_awkward_matrices(comm, name, backend):
    grid = wide_grid(comm, name, backend)
    for matrix, A in awkward_matrices(comm.Get_size()).items():
        check_product(A, grid, name, WIDTH, label=matrix)


@pytest.mark.ranks(1, 2, 3, 4, 6, 12)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_grid_gives_the_product_for_its_price(comm, name, backend):
    """Every other one of several grids has the wide matrix."""
    size = comm.Get_size()
    possible = grids(name, size) if size <= 6 else some_grids(name, size)
    for number, sizes in enumerate(possible):
        grid = make_grid(comm, name, sizes, backend=backend)
        few = len(possible) == 1 or (len(possible) <= 3 and comm.Get_size() <= 4)
        for matrix in ("prime", "wide") if few else ("prime", "wide")[number % 2 :: 2]:
            A, label = MATRICES[matrix], f"{matrix} on {sizes}"
            check_words(*check_product(A, grid, name, WIDTH, label=label), label)
        grid.free()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_words_of_weights_belong_to_them(comm, name, backend):
    A, (f, h) = MATRICES["symmetric"], (7, 4)
    operator = dg.distribute(A, wide_grid(comm, name, backend), name)
    weights, n = operator.weights, A.shape[0]
    T, W, G = (
        dg.scatter(np.ones(shape), layout)
        for shape, layout in (
            ((n, f), operator.output_layout), ((f, h), weights.weight_layout), ((n, h), weights.output_layout)
        )
    )  # fmt: skip
    with dg.Ledger() as ledger:
        weights.backward(T, G, W)
    moved = {matrix for matrix, words in by_matrix(ledger).items() if words}
    assert moved <= {"T", "weights", "gradients", "sums"} and bool(moved) == bool(ledger.words)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_widths(comm, name, backend):
    grid = wide_grid(comm, name, backend)
    for f in (0, 1, 2, 64):
        check_product(MATRICES["prime"], grid, name, f, label=f"width {f}")


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_float32(comm, name, backend):
    check_product(MATRICES["larger_prime"], wide_grid(comm, name, backend), name, WIDTH, np.float32)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_uneven_partition_vectors(comm, name, backend):
    """Partition vectors with empty blocks first, in the middle and last."""
    A = MATRICES["prime"]
    n = A.shape[0]
    grid = wide_grid(comm, name, backend)
    pieces = {"3d-split": grid.shape.get("rows", 1) * grid.shape.get("fibers", 1), "3d": None}.get(
        name, grid.shape.get("rows")
    )
    rng = np.random.default_rng(9)

    def vector(parts):
        return np.concatenate([[0], np.sort(rng.choice([0, 3, 7, 7, 8, 30, n], parts - 1)), [n]])

    if name == "3d":
        parts = {
            "row_parts": vector(grid.shape["z"]),
            "col_parts": vector(grid.shape["x"]),
            "y_parts": vector(grid.shape["y"]),
        }
    else:
        parts = {"row_parts": vector(pieces), "col_parts": vector(pieces)}
        if name == "2d":
            parts["inner_parts"] = vector(grid.shape["cols"])
    check_product(A, grid, name, WIDTH, **parts)


def uneven(n, parts):
    """Return a partition with large, small and empty blocks."""
    shares = np.array([(7 * i + 3) % 5 for i in range(parts)], dtype=float) + (np.arange(parts) == parts - 1)
    return np.concatenate([[0], np.round(np.cumsum(shares) / shares.sum() * n)]).astype(np.int64)


@pytest.mark.ranks(1, 4, 8)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_ledger_equals_the_price_on_uneven_partitions(comm, name, backend):
    A = MATRICES["prime"]
    n = A.shape[0]
    for sizes in some_grids(name, comm.Get_size()):
        grid = make_grid(comm, name, sizes, backend=backend)
        if name == "3d":
            parts = {
                "row_parts": uneven(n, sizes["z"]),
                "col_parts": uneven(n, sizes["x"]),
                "y_parts": uneven(n, sizes["y"]),
            }
        else:
            pieces = sizes["rows"] * sizes.get("fibers", 1)
            parts = {"row_parts": uneven(n, pieces), "col_parts": uneven(n, pieces)}
            if name == "2d":
                parts["inner_parts"] = uneven(n, sizes["cols"])
        operator = dg.distribute(A, grid, name, **parts)
        X, Y = right_sides(A, WIDTH)
        H, G = dg.scatter(X, operator.input_layout), dg.scatter(Y, operator.output_layout)
        operator.T @ G  # makes the transposed panels, whose headers are agreed on once
        check_words(operator, H, G, sizes)
        grid.free()


@pytest.mark.ranks(1, 8)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_flops_are_shared(comm, name, backend):
    """Over all ranks, each non-zero is multiplied once per column (once per replica group in 3D and 1.5D)."""
    A = MATRICES["prime"]
    grid = wide_grid(comm, name, backend)
    operator = dg.distribute(A, grid, name)
    H = dg.scatter(right_sides(A, WIDTH)[0], operator.input_layout)
    with dg.Ledger() as ledger:
        operator @ H
    assert sum(grid.world.gather_objects(ledger.flops)) == 2 * A.nnz * WIDTH


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.slow
def test_chain_of_layers(comm, name, backend):
    """Five layers H ← (A H) W: outputs are the next layer's inputs, and the backward pair equals the serial
    one.
    """
    A = MATRICES["symmetric"] if name != "3d" else MATRICES["prime"]
    n, rng = A.shape[0], np.random.default_rng(4)
    for sizes in some_grids(name, comm.Get_size()):
        grid = make_grid(comm, name, sizes, backend=backend)
        operator = dg.distribute(A, grid, name)
        widths = [6, 4, 1, 7, 3, 5]
        X = rng.standard_normal((n, widths[0]))
        H = dg.scatter(X, operator.input_layout)
        for number, (f, h) in enumerate(zip(widths[:-1], widths[1:], strict=True)):
            layer = operator.layer(number)
            W, dZ = rng.standard_normal((f, h)), rng.standard_normal((n, h))
            W_dist, G = (
                dg.scatter(W, layer.weights.weight_layout),
                dg.scatter(dZ, layer.weights.output_layout),
            )
            T = layer @ H
            H = layer.weights.times(T, W_dist)
            dW, dT = layer.weights.backward(T, G, W_dist)
            only_dW, nothing = layer.weights.backward(T, G)
            assert nothing is None and dT is not None
            below = layer.T @ dT
            assert below.layout.same(layer.input_layout, below.shape)
            results = [dg.gather(M) for M in (H, dW, only_dW, below)]
            with grid.world.together():  # rank 0 compares, all ranks fail
                if grid.rank == 0:
                    T_serial = A @ X
                    X = T_serial @ W
                    for got, expected in zip(
                        results, (X, T_serial.T @ dZ, T_serial.T @ dZ, A.T @ (dZ @ W.T)), strict=True
                    ):
                        np.testing.assert_allclose(
                            got, expected, rtol=1e-9, atol=1e-9, err_msg=f"{sizes} layer {number}"
                        )


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_gradient_in_the_place_of_the_input(comm, name, backend):
    """A gradient made there equals one in memory of its own; grids whose panels come one by one refuse."""
    n, rng = 60, np.random.default_rng(5)
    made = dict[bool, int]()
    for sizes in grids(name, comm.Get_size()):
        grid = make_grid(comm, name, sizes, backend=backend)
        weights = dg.distribute(sp.eye_array(n, format="csr"), grid, name).weights
        T = dg.scatter(rng.standard_normal((n, 9)), weights.input_layout)
        G = dg.scatter(rng.standard_normal((n, 6)), weights.output_layout)
        W = dg.scatter(rng.standard_normal((9, 6)), weights.weight_layout)
        dW, dT = (dg.gather(X) for X in weights.backward(T, G, W))
        made[weights.in_place] = made.get(weights.in_place, 0) + 1
        same = DistDense(T.block, T.layout, T.shape)
        if not weights.in_place:
            with pytest.raises(ValueError, match="cannot be made where T is"):
                weights.backward(T, G, W, same)
        else:
            found = [dg.gather(X) for X in weights.backward(T, G, W, same)]
            with grid.world.together():
                for one, other in zip(found, (dW, dT), strict=True):
                    np.testing.assert_array_equal(one, other, err_msg=str(sizes))
        grid.free()
    assert made[True] and (comm.Get_size() == 1 or name not in ("2d", "3d-split") or made[False])


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_symmetric_needs_no_transpose(comm, name, backend):
    operator = dg.distribute(MATRICES["symmetric"], wide_grid(comm, name, backend), name)
    assert (operator.T is operator) == (name != "3d")
    assert operator.T.T is operator


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_local_blocks_alone(comm, name, backend):
    """An operator can be built from nothing but the pieces a rank holds."""
    A = MATRICES["directed"]
    grid = wide_grid(comm, name, backend)
    seen = Recorder(A)
    operator = dg.distribute(seen, grid, name)
    X, Y = right_sides(A, WIDTH)
    operator.T @ dg.scatter(Y, operator.output_layout)
    pieces = [(rows, cols, A[slice(*rows), slice(*cols)]) for rows, cols in seen.windows]
    rebuilt = dg.distribute(dg.LocalBlocks(A.shape, pieces, dtype=A.dtype), grid, name)
    got = dg.gather(rebuilt @ dg.scatter(X, rebuilt.input_layout))
    adjoint = dg.gather(rebuilt.T @ dg.scatter(Y, rebuilt.output_layout))
    with grid.world.together():  # rank 0 compares, all ranks fail
        if grid.rank == 0:
            np.testing.assert_allclose(got, A @ X)
            np.testing.assert_allclose(adjoint, A.T @ Y)


@pytest.mark.ranks(4)
def test_ranks_with_pieces_of_different_matrices_are_refused_together(comm):
    A, grid = MATRICES["directed"], make_grid(comm, "1d")
    last = comm.Get_rank() == comm.Get_size() - 1
    for dtype, symmetric in ((np.float32 if last else np.float64, False), (np.float64, last)):
        whole = [((0, A.shape[0]), (0, A.shape[1]), A.astype(dtype))]
        with pytest.raises(DisagreementError, match="disagree: the matrix's (dtype|symmetry) is"):
            dg.distribute(dg.LocalBlocks(A.shape, whole, symmetric), grid, "1d")


@pytest.mark.ranks(4)
@pytest.mark.parametrize("what", ["row lengths", "columns", "values"])
def test_ranks_with_different_whole_matrices_are_refused_together(comm, what):
    A, grid = MATRICES["directed"].copy(), make_grid(comm, "1d")
    if comm.Get_rank() == 0:
        A = A[::-1] if what == "row lengths" else A[:, ::-1] if what == "columns" else 2 * A
    with pytest.raises(DisagreementError, match=f"ranks disagree: .*the matrix's {what} is "):
        dg.distribute(A, grid, "1d")
    with pytest.raises(DisagreementError, match="ranks disagree: algorithm is "):
        dg.distribute(MATRICES["directed"], grid, "1d" if comm.Get_rank() else "4d")


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_adjoint_is_an_operator_like_any_other(comm, name, backend):
    A = MATRICES["directed"]
    operator = dg.distribute(A, wide_grid(comm, name, backend), name)
    assert operator.T is operator.T and operator.T.T is operator
    assert operator.T.layer(1).T is operator.layer(1)
    with pytest.raises(AttributeError, match="weights"):
        operator.T.weights
    for made in (operator.T, 2 * operator):
        with pytest.raises(ArgumentError, match="has no edges: take that of what it is made of"):
            made.edges()
    twice = dg.gather(operator.T @ (operator @ dg.scatter(right_sides(A, 2)[0], operator.input_layout)))
    with operator.grid.world.together():  # rank 0 compares, all ranks fail
        if operator.grid.rank == 0:
            np.testing.assert_allclose(twice, A.T @ (A @ right_sides(A, 2)[0]))


class Recorder(dg.MatrixSource):
    """A block source that remembers what was asked for."""

    def __init__(self, matrix):
        super().__init__(matrix)
        self.windows = []

    def block(self, rows, cols):
        self.windows.append((tuple(map(int, rows)), tuple(map(int, cols))))
        return super().block(rows, cols)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_wrong_operands_raise_on_every_rank(comm, name, backend):
    A = MATRICES["prime"]
    grid = wide_grid(comm, name, backend)
    operator = dg.distribute(A, grid, name)
    H = dg.scatter(right_sides(A, WIDTH)[0], operator.input_layout)
    with pytest.raises(TypeError, match="DistDense"):
        operator @ A
    with pytest.raises(ValueError, match="float32"):
        operator @ H.like(H.block.astype(np.float32))
    with pytest.raises(ValueError, match="don't multiply"):
        operator @ dg.scatter(np.zeros((A.shape[0] + 1, 2)), dg.Layout(grid, dg.Cut(), dg.Cut()))
    if comm.Get_size() > 1:
        with pytest.raises(ValueError, match="cut over .*, this operator needs .*; H.redistribute"):
            operator @ dg.scatter(np.zeros((A.shape[0], 2)), dg.Layout(grid, dg.Cut(), dg.Cut()))
    if name == "3d" and comm.Get_size() > 1:
        with pytest.raises(ValueError, match=r"; H.redistribute\(A.input_layout\) cuts it so$"):
            operator @ (operator @ H)
