"""Two tiers: what is summed over several nodes crosses the network once per node."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn import progress
from distgnn.arrays.tuning import TUNING
from distgnn.comm.flight import Flight
from distgnn.comm.grid import Grid
from distgnn.comm.tiers import around, tiers
from distgnn.comm.wires import Wires
from distgnn.layout import partition
from distgnn.operators import make_grid
from mpi_helpers import on_nodes

from ..operators.counts import column_shares


def test_tiers_of_a_group():
    both = tiers([0, 2, 0, 2, 4, 4], 3)
    assert both.nodes == ((0, 2), (1, 3), (4, 5)) and both.inside == (1, 3) and both.across == (2, 3, 5)
    assert both.shares(3) == {1: 3, 2: 1, 5: 1}
    assert tiers([0, 0, 0], 1) is tiers([0, 1, 2], 1) is tiers([0, 0, 2], 1) is tiers([0], 0) is None


def test_a_ring_leaves_every_node_once():
    assert around([0, 0, 0]) == [0, 1, 2] and around([0, 0, 2, 2]) == [0, 1, 2, 3]
    assert around([0, 1, 0, 1, 4]) == [0, 2, 1, 3, 4]


def crossing(monkeypatch):
    """Count the numbers of dense matrices that this rank really sends to other nodes, by operation."""
    flight, send, sent = Wires.flight, Flight.send, Counter()

    def known(self, *args, **options):
        made = flight(self, *args, **options)
        made.away = [r for r in range(self.size) if self.ranks[r] in self.charge._away]
        return made

    def counted(self, array, destination, *args):
        sent[self.operation] += (self.matrix != "A") * array.size * (destination in self.away)
        return send(self, array, destination, *args)

    monkeypatch.setattr(Wires, "flight", known)
    monkeypatch.setattr(Flight, "send", counted)
    return sent


@pytest.mark.ranks(4, 6)
@pytest.mark.parametrize(("size", "chunk"), [(10_007, 1 << 22), (10_007, 1024), (3, 1024)])
def test_sums_cross_the_network_once_per_node(comm, size, chunk, monkeypatch):
    """All-reduces and reduce-scatters, blocking and under way, with parts of unequal sizes."""
    monkeypatch.setattr(TUNING, "small_sum", 0)
    monkeypatch.setattr(TUNING, "sum_chunk", chunk)
    P = comm.Get_size()
    heights = [(r * 7) % 5 * size // (3 * P) for r in range(P - 1)]
    parts = np.array([0, *np.cumsum(heights), size]).clip(0, size)
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((P, size, 2)).astype(np.float32)
    for k in (2, 3):
        grid = on_nodes(lambda: Grid(comm, rows=P), k)
        group = grid.along("rows")
        assert (group.tiers is None) == (P % k > 0)
        found, expected = [], numbers.astype(np.float64).sum(0)
        with pytest.MonkeyPatch.context() as patched, dg.Ledger() as ledger:
            sent = crossing(patched)
            found.append(group.allreduce(numbers[grid.rank].copy()))
            Z = numbers[grid.rank].copy()
            with group.sums(grid.workspace) as sums:
                sums.start(Z[: size // 2])
                sums.start(Z[size // 2 :])
            found.append(Z)
            part = group.reduce_scatter_rows(numbers[grid.rank].copy(), parts)
        for array in found:
            np.testing.assert_allclose(array, expected, rtol=1e-6, atol=2e-6)
            assert {array.tobytes()} == set(comm.allgather(array.tobytes()))
        np.testing.assert_allclose(part, expected[slice(*parts[grid.rank :][:2])], rtol=1e-6, atol=2e-6)
        if group.tiers:
            nodes = P // k
            assert ledger.words == round(Fraction(5 * 2 * size * (P - 1), P))
            assert ledger.far == round(Fraction(5 * 2 * size * (nodes - 1), P))
            # A part that does not divide is sent as it is, and charged as if it did.
            assert abs(comm.allreduce(sum(sent.values())) - comm.allreduce(ledger.far)) <= 20 * P * P
        grid.free()


#: Ranks of a node, and how ranks are dealt to nodes.
nodes = pytest.mark.parametrize(("k", "dealt"), [(2, "in turns"), (3, "in a row")])

CASES = {
    4: [("1.5d", {"reps": 4}), ("1.5d", {"reps": 2}), ("1d", {}), ("2d", {}), ("3d", {"x": 1, "z": 4})],
    12: [
        ("1.5d", {"reps": 6}),
        ("1d", {}),
        ("3d", {"x": 1, "z": 12}),
        ("3d-split", {}),
        ("rdm", {"cols": 3}),
    ],
}


def by_tiers(grid, name):
    """Tell whether all sums that are scattered have two tiers; others are MPI's, which shows no messages."""
    axis = {"3d": "z", "3d-split": "fibers"}.get(name)
    return axis is not None and all(grid.world.gather_objects(grid.along(axis).tiers))


@pytest.mark.ranks(4, 12)
@nodes
def test_products_send_over_the_network_what_is_counted(comm, k, dealt, monkeypatch):
    """Forward and adjoint, the same words in all as on one node."""
    A = np.random.default_rng(0).standard_normal((211, 211)) * (np.arange(211) % 5 < 2)
    X = np.random.default_rng(2).standard_normal((211, 12))
    for name, sizes in CASES[comm.Get_size()][k - 2 :: 2]:
        monkeypatch.setattr(TUNING, "small_sum", 0)
        monkeypatch.setattr(TUNING, "smallest_sum_block", 512)
        totals = []
        for ranks_of_a_node in (comm.Get_size(), k):
            grid = on_nodes(partial(make_grid, comm, name, sizes), ranks_of_a_node, dealt)
            operator = dg.distribute(A, grid, name)
            H, G = dg.scatter(X, operator.input_layout), dg.scatter(X, operator.output_layout)
            operator.T @ G  # which makes what adjoints keep
            with pytest.MonkeyPatch.context() as patched, dg.Ledger() as ledger:
                sent = crossing(patched)
                Y, F = operator @ H, operator.T @ G
            totals.append((ledger.words, ledger.messages))
            entries = [e for e in ledger.entries() if e["matrix"] != "A"]
            for operation in ("bcast", "alltoall", "allreduce", *["reduce_scatter"] * by_tiers(grid, name)):
                far = comm.allreduce(sum(e["far"] for e in entries if e["operation"] == operation))
                uneven = 20 * comm.Get_size() if operation in ("allreduce", "reduce_scatter") else 0
                assert abs(far - comm.allreduce(sent[operation])) <= uneven, (name, operation)
            Y, F = dg.gather(Y), dg.gather(F)
            if grid.rank == 0:
                np.testing.assert_allclose(Y, A @ X, rtol=1e-10, atol=1e-10)
                np.testing.assert_allclose(F, A.T @ X, rtol=1e-10, atol=1e-10)
            grid.free()
        assert totals[0] == totals[1]


@pytest.mark.ranks(4, 6)
@nodes
@pytest.mark.parametrize(("name", "sizes"), [("1d", {}), ("1.5d", {"reps": 2}), ("rdm", {"cols": 2})])
def test_needed_rows_come_to_a_node_once(comm, name, sizes, k, dealt):
    """A node gets each row of another node that its ranks read, and sends one sum for it in the adjoint."""
    n, width = 2400, 64
    A = sp.random_array((n, n), density=0.002, format="csr", rng=np.random.default_rng(0))
    X = np.random.default_rng(1).standard_normal((n, width))
    grid = on_nodes(partial(make_grid, comm, name, sizes), k, dealt)
    operator = dg.distribute(A, grid, name, True)
    H, G = dg.scatter(X, operator.input_layout), dg.scatter(X, operator.output_layout)
    for matrix, product in (("H", lambda: operator @ H), ("sums", lambda: operator.T @ G)):
        results = []
        for grid.overlap in (True, False):
            with pytest.MonkeyPatch.context() as patched, dg.Ledger() as ledger:
                sent = crossing(patched)
                Y = product()
            entries = [e for e in ledger.entries() if (e["operation"], e["matrix"]) == ("alltoallv", matrix)]
            far = comm.allreduce(sum(e["far"] for e in entries))
            assert comm.allreduce(sum(e["words"] for e in entries)) == needed(operator, A, H, False)
            assert far == comm.allreduce(sent["alltoallv"]) == needed(operator, A, H, True)
            results.append(Y.block.copy())
        np.testing.assert_array_equal(*results)
        whole, expected = dg.gather(Y), (A if matrix == "H" else A.T) @ X
        if grid.rank == 0:
            np.testing.assert_allclose(whole, expected, rtol=1e-11, atol=1e-11)
    grid.free()


def needed(operator, A, H, once_per_node):
    """Count the words of the rows that ranks, or nodes of other nodes, read in all.

    Of each node and each rank of a process column elsewhere: the rows that any rank of the node reads.
    """
    grid, parts = operator.grid, operator.algorithm.row_parts
    column, c = operator.algorithm.column, grid.shape.get("reps", 1)
    share = column_shares(A.shape[1], len(parts) - 1, c)[grid.coords.get("reps", 0)]
    width = H.block.shape[1] if grid.shape.get("cols", 1) == 1 else operator_width(grid, H.shape[1])
    rows = {}
    for i in range(column.size):
        for j in range(column.size):
            read = np.unique(A[parts[i] : parts[i + 1], share[j] : share[j + 1]].indices)
            away = column.nodes[i] != column.nodes[j]
            if i != j and (away or not once_per_node):
                to = column.nodes[i] if once_per_node else i
                rows.setdefault((to, j), set()).update(read.tolist())
    own = sum(len(read) for (_, j), read in rows.items()) * width
    return grid.world.mpi.allreduce(own if column.rank == 0 else 0)


def operator_width(grid, width):
    """Return the columns that a rank multiplies in rdm."""
    cuts = partition(width, grid.shape["cols"])
    return int(cuts[grid.coords["cols"] + 1] - cuts[grid.coords["cols"]])


@pytest.mark.ranks(6)
@pytest.mark.parametrize("algorithm", ["1d", "1.5d"])
def test_covers_cross_the_network_once_per_node(comm, algorithm):
    n = 1200
    A = dg.gallery.rmat(n, degree=12, directed=True, features=0, classes=0).A.astype(np.float64)
    X = np.random.default_rng(1).standard_normal((n, 16))
    far = {}
    for k in (1, 2):
        grid = on_nodes(partial(make_grid, comm, algorithm), k)
        operator = dg.distribute(A, grid, algorithm, "cover")
        H, G = dg.scatter(X, operator.input_layout), dg.scatter(X, operator.output_layout)
        with pytest.MonkeyPatch.context() as patched, dg.Ledger() as ledger:
            sent = crossing(patched)
            Y, F = operator @ H, operator.T @ G
        exchanged = [e["far"] for e in ledger.entries() if e["operation"] == "alltoallv"]
        far[k] = comm.allreduce(sum(exchanged))
        assert far[k] == comm.allreduce(sent["alltoallv"])
        Y, F = dg.gather(Y), dg.gather(F)
        if grid.rank == 0:
            np.testing.assert_allclose(Y, A @ X, rtol=1e-11, atol=1e-11)
            np.testing.assert_allclose(F, A.T @ X, rtol=1e-11, atol=1e-11)
        grid.free()
    assert far[2] < 0.95 * far[1] or algorithm == "1.5d"


@pytest.mark.ranks(8)
def test_reductions_of_15d_halve_what_crosses(comm, monkeypatch):
    """Four copies on two nodes of two ranks: every number crosses once per node, not once per rank."""
    monkeypatch.setattr(TUNING, "small_sum", 0)
    far = {}
    for by_tiers in (False, True):
        with pytest.MonkeyPatch.context() as patched:
            if not by_tiers:
                patched.setattr("distgnn.comm.charges.tiers", lambda nodes, rank: None)
            grid = on_nodes(lambda: make_grid(comm, "1.5d", {"reps": 4}), 2)
            operator = dg.distribute(np.ones((400, 400)), grid, "1.5d")
            with dg.Ledger() as ledger:
                operator @ dg.scatter(np.ones((400, 16)), operator.input_layout)
            far[by_tiers] = sum(e["far"] for e in ledger.entries() if e["matrix"] == "sums")
            grid.free()
    assert partition(400, 2)[1] * 16 == far[True] * 2 == far[False]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("overlap", [True, False])
def test_rows_of_nodes_travel_whatever_a_rank_waits_for(comm, backend, overlap, monkeypatch):
    """Each rank reads rows of the next one alone: of its own node and of another in turns.

    Ranks that wait for rows of their node send to other nodes, in many pieces, and the other way round.
    """
    monkeypatch.setattr(TUNING, "packed_numbers", 64)
    own, f = 512, 8
    n, rows = 4 * own, np.arange(0, 4 * own, 2)
    A = sp.csr_array((np.ones(rows.size), (rows, (rows + own) % n)), shape=(n, n))
    X = np.random.default_rng(5).standard_normal((n, f))
    grid = on_nodes(lambda: make_grid(comm, "1d", backend=backend), 2)
    grid.overlap = overlap
    operator = dg.distribute(A, grid, "1d", sparsity_aware=True)
    with progress.impatient(30):
        products = (
            operator @ dg.scatter(X, operator.input_layout),
            operator.T @ dg.scatter(X, operator.output_layout),
        )
    for got, expected in zip(products, (A @ X, A.T @ X), strict=True):
        whole = dg.gather(got)
        with grid.world.together():
            if grid.rank == 0:
                np.testing.assert_allclose(whole, expected, rtol=1e-12)
