"""Products whose messages have 16 bits: half the bytes, values rounded, copies equal, sums in float32."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from chosen_grids import some_grids
from distgnn import local
from distgnn.arrays import backend as backends
from distgnn.arrays.tuning import TUNING
from distgnn.errors import ArgumentError, WireOverflowError
from distgnn.gallery import rmat
from distgnn.local.cuda import launch
from distgnn.local.narrow import KINDS
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, distribute, grids, make_grid
from loops import each

WAYS = [(name, False) for name in ALGORITHMS]
WAYS += [(name, aware) for name in SPARSITY_AWARE for aware in (True, "cover")]
ways = pytest.mark.parametrize(("algorithm", "aware"), WAYS)
#: Half a unit in the last place of a number in [1, 2): the most that rounding changes, relatively.
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
#: What no message halves: blocks of A and, in dense products, weights and their gradients.
WHOLE = ("A", "weights", "gradients")
WIDTH = 37


def problem(seed=0):
    """Make a directed matrix of numbers that are sums of few terms, and what it multiplies."""
    A = rmat(211, degree=9, directed=True, features=0, classes=0).A.astype(np.float32)
    rng = np.random.default_rng(seed)
    A.data[:] = rng.uniform(0.5, 1, A.nnz)
    return A, rng.uniform(0.5, 1, (A.shape[0], WIDTH)).astype(np.float32)


def products(comm, algorithm, aware, sizes, wire, backend=None, overlap=True):
    """Return of A X and of Aᵀ X: the whole, this rank's block, its ledger, and all ranks' (ranges, block)."""
    A, X = problem()
    grid = make_grid(comm, algorithm, sizes, backend=backend, wire=wire)
    grid.overlap = overlap
    operator = distribute(A, grid, algorithm, aware)
    H, G = (dg.scatter(X, layout) for layout in (operator.input_layout, operator.output_layout))
    results = []
    for times, matrix in ((operator, H), (operator.T, G)):
        times @ matrix  # transposes are made at their first use
        with dg.Ledger() as ledger:
            Y = times @ matrix
        block = grid.backend.to_host(Y.block).copy()
        held = grid.world.gather_objects((Y.layout.ranges(Y.shape), block))
        results.append((grid.world.share(dg.gather(Y)), block, ledger, held))
    grid.free()
    return results


def travelled(ledger, halved):
    """Return words and bytes of messages that may have 16 bits, or of those that may not."""
    some = [e for e in ledger.entries() if e["phase"] == "comm" and (e["matrix"] not in WHOLE) == halved]
    return sum(e["words"] for e in some), sum(e["bytes"] for e in some)


@pytest.mark.ranks(3, 4)
@ways
def test_bytes_halve_and_values_are_rounded(comm, algorithm, aware):
    """Words stay, bytes are two for each; the product is off by rounding, and is off; copies are equal."""
    A, X = problem()
    exact = [A.astype(np.float64) @ X, A.T.astype(np.float64) @ X]
    for sizes in some_grids(algorithm, comm.Get_size()):
        usual = [ledger for _, _, ledger, _ in products(comm, algorithm, aware, sizes, None)]
        for kind in KINDS:
            found = products(comm, algorithm, aware, sizes, kind)
            check_rounded(comm, kind, sizes, exact, usual, found)


def check_rounded(comm, kind, sizes, exact, in_32_bits, in_16_bits):
    """Compare products whose messages had 16 bits with exact ones, and their words and bytes with others'."""
    for Z, usual, (Y, _, ledger, held) in zip(exact, in_32_bits, in_16_bits, strict=True):
        words, nbytes = travelled(ledger, True)
        assert (words, 2 * nbytes) == pytest.approx(travelled(usual, True), abs=3), sizes  # of rounding
        assert nbytes == pytest.approx(2 * words, abs=3), sizes
        assert travelled(ledger, False) == travelled(usual, False)
        error = np.max(np.abs(Y - Z) / np.where(Z > 0, Z, 1))
        assert error < 3 * UNIT[kind], sizes  # of H, of partial products and of their sum
        assert error > UNIT[kind] / 16 if comm.allreduce(words) else error < 1e-6, sizes
        copies = {}  # of a block are equal to the bit
        for ranges, block in held:
            assert copies.setdefault(ranges, block.tobytes()) == block.tobytes(), sizes


@pytest.mark.ranks(3, 4)
@ways
def test_neither_overlap_nor_cuts_change_a_bit(comm, algorithm, aware, backend, monkeypatch):
    sizes = grids(algorithm, comm.Get_size())[-1]
    how = comm, algorithm, aware, sizes, "bfloat16", backend
    found = [products(*how, overlap) for overlap in (True, False)]
    for name, value in {"relay_segment": 256, "largest_segment": 512, "flops_between_polls": 100,
                        "smallest_sum_block": 512, "sum_chunk": 1024}.items():  # fmt: skip
        monkeypatch.setattr(TUNING, name, value)
    found.append(products(*how))
    for other in found[1:]:
        for (_, block, *_), (_, same, *_) in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(block, same)


@pytest.mark.ranks(1, 4)
def test_what_rounds_nothing_is_refused(comm):
    A, _ = problem()
    with pytest.raises(ArgumentError, match="wire=int8: expected one of bfloat16, float16"):
        make_grid(comm, "1d", wire="int8")
    grid = make_grid(comm, "1d", wire="float16")
    with pytest.raises(ArgumentError, match="wire=float16: rounds float32 while it travels; A holds float64"):
        distribute(A, grid, "1d", dtype=np.float64)
    grid.free()


def in_bfloat16(X):
    """Return the numbers that are left of X."""
    bits = local.narrow(X, np.empty(X.shape, np.uint16), "bfloat16", np.zeros(1, np.int32))
    return local.widen(bits, np.empty_like(X), "bfloat16").astype(np.float64)


@pytest.mark.ranks(1, 4)
@each("algorithm, aware", WAYS)
def test_on_a_gpu_products_read_16_bits(comm, stand_in, algorithm, aware, monkeypatch):
    """On any number of ranks A H is that of rounded H, up to what sums over ranks round: what has arrived in
    16 bits is not rounded again, and the own block is rounded. No product reads float32.
    """
    monkeypatch.setattr(TUNING, "small_sum", 0)  # sums in row blocks
    A, X = problem()
    exact, rounded = ([A.astype(np.float64) @ Z, A.T.astype(np.float64) @ Z] for Z in (X, in_bfloat16(X)))
    sizes, alone = grids(algorithm, comm.Get_size())[0], comm.Get_size() == 1
    queue, names = launch.launch, set()
    recorded = lambda xp, file, name, *rest: (names.add(name), queue(xp, file, name, *rest))  # noqa: E731
    monkeypatch.setattr(launch, "launch", recorded)
    found = products(comm, algorithm, aware, sizes, "bfloat16", backends.get("cupy"))
    monkeypatch.setattr(launch, "launch", queue)
    assert {name[:9] for name in names if name.startswith("spmm")} == {"spmm<Bflo"}
    for way, (Y, *_) in enumerate(found):
        off = [np.max(np.abs(Y - Z[way]) / np.where(Z[way] > 0, Z[way], 1)) for Z in (exact, rounded)]
        if alone or (algorithm in ("1d", "2d") and way == 0 and aware != "cover"):  # no sums over ranks
            assert off[1] < 1e-6 < UNIT["bfloat16"] / 16 < off[0]
        else:
            assert UNIT["bfloat16"] / 16 < off[0] < 3 * UNIT["bfloat16"]


@pytest.mark.ranks(1)
def test_on_a_host_products_read_float32(comm):
    A, X = problem()
    for wire in KINDS:
        (Y, *_), _ = products(comm, "1d", False, None, wire, "numpy")
        np.testing.assert_allclose(Y, A @ X, rtol=1e-6)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("algorithm", "aware", "launches"),
    [
        ("1d", False, [(4, 4), (4, 4)]),
        ("1d", True, [(2, 2), (1, 2)]),
        ("1d", "cover", [(3, 3), (2, 3)]),
        ("3d", False, [(1, 4), (1, 1)]),
    ],
)
def test_a_product_in_pieces_rounds_once(comm, stand_in, algorithm, aware, launches, monkeypatch):
    """A panel once, where it is another one; G for all ranks at once; all row blocks of a sum at once."""
    for size in ("small_sum", "joined_panels_on_device"):
        monkeypatch.setattr(TUNING, size, 0)
    monkeypatch.setattr(TUNING, "smallest_sum_block_on_device", 1)
    A, X = problem()
    grid = make_grid(comm, algorithm, grids(algorithm, 4)[0], backend=backends.get("cupy"), wire="float16")
    operator = distribute(A, grid, algorithm, aware)
    H, G = (dg.scatter(X, layout) for layout in (operator.input_layout, operator.output_layout))
    for times, matrix, expected in ((operator, H, launches[0]), (operator.T, G, launches[1])):
        times @ matrix
        with stand_in.observed() as seen:
            times @ matrix
        assert (seen.launches["narrow_padded"], seen.launches["spmm"]) == expected
    grid.free()


#: Just too large; so large that only sums may be; one entry, in which only some ranks have a part.
LARGE = [lambda X: X * 1.2e5, lambda X: X * 5e4, lambda X: np.where(X == X.max(), 7e4, X)]


@pytest.mark.ranks(1, 3, 4)
@each("algorithm, aware", WAYS)
def test_a_number_that_does_not_fit_is_an_error_on_every_rank(comm, algorithm, aware, backend):
    """Products without a lost number are right, also the next; unchecked, a lost one makes NaN."""
    A, X = problem()
    rounds = comm.Get_size() > 1 or backend.on_device
    for sizes in some_grids(algorithm, comm.Get_size()):
        grid = make_grid(comm, algorithm, sizes, backend=backend, wire="float16")
        operator = distribute(A, grid, algorithm, aware)
        for times, M in ((operator, A), (operator.T, A.T.tocsr())):
            for number, large in enumerate(LARGE):
                Z = large(X).astype(np.float32)
                exact, H = M.astype(np.float64) @ Z, dg.scatter(Z, times.input_layout)
                with dg.Ledger() as ledger:
                    unchecked = times.multiply(H)
                lost = bool(grid.world.lowest(grid.narrow.overflow()))
                moved = any(grid.world.gather_objects(travelled(ledger, halved=True)[0] > 0))
                assert rounds >= lost >= ((moved or backend.on_device) and number == 0)
                right(grid.world.share(dg.gather(unchecked)), exact, lost)
                if lost:
                    with pytest.raises(
                        WireOverflowError, match=r"a number of size [\d.e+]+ in A @ H .*is too large"
                    ):
                        times @ H
                else:
                    right(grid.world.share(dg.gather(times @ H)), exact, False)
                fits = dg.scatter(X, times.input_layout)
                right(grid.world.share(dg.gather(times @ fits)), M.astype(np.float64) @ X, False)
        grid.free()


def right(Y, exact, lost):
    """Assert that a product is right but for rounding, with NaN in place of what was lost."""
    assert np.isnan(Y).any() == lost
    apart = np.abs(Y - exact) / np.where(exact > 0, exact, 1)
    assert np.nanmax(apart, initial=0) < 3 * UNIT["float16"]


@pytest.mark.ranks(4)
@each("algorithm", ALGORITHMS)
def test_infinity_that_was_there_stays(comm, algorithm):
    """Infinity is no overflow of 16 bits; bfloat16 has that of 2^15 numbers of each sign."""
    A, X = problem()
    A.data[:] = 1  # a sum of one number does not fit either, where only sums travel
    grid = make_grid(comm, algorithm, grids(algorithm, 4)[0], backend="numpy", wire="bfloat16")
    operator = distribute(A, grid, algorithm)
    X[5] = np.inf
    Y = grid.world.share(dg.gather(operator @ dg.scatter(X, operator.input_layout)))
    reached = (A[:, [5]].toarray() > 0)[:, 0]
    assert np.isposinf(Y[reached]).all() and np.isfinite(Y[~reached]).all() and reached.any()
    X[:] = np.float32(3.4e38)
    with pytest.raises(
        WireOverflowError, match=r"3.4e\+38 in A @ H .* bfloat16 .* up to 3.38953e\+38; take no"
    ):
        operator @ dg.scatter(X, operator.input_layout)
    grid.free()
