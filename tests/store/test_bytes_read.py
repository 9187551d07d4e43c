"""Bytes that ranks read of a store: each its own, whatever the algorithm and the order of the nodes."""

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgnn as dg
from chosen_grids import wide_grid
from distgnn.operators import make_grid, strips
from distgnn.partition import Wanted
from distgnn.store import Store, load, load_features, load_targets, prepare
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.members import Members

from .graphs import random_graph

N, WIDTH = 1500, 50
GRAPH = random_graph(N, 12_000, width=WIDTH, classes=4, weighted=True, directed=True, chunk=5000)
ORDERS = ("random", "original", "double", "random-4")
WAYS = [("1d", False), ("1d", True), ("1d", "cover"), ("1.5d", False), ("1.5d", True), ("rdm", False)]
WAYS += [("rdm", True), ("2d", False), ("3d-split", False), ("3d", False)]


@pytest.fixture
def path(comm, shared_tmp_path: Path, monkeypatch) -> Path:
    """Prepare a store of GRAPH with small chunks and several files of everything."""
    monkeypatch.setattr(LIMITS, "chunk_bytes", 1024)
    monkeypatch.setattr(LIMITS, "row_bytes", 3000)  # several turns
    monkeypatch.setattr(LIMITS, "file_bytes", 100_000)
    if comm.Get_rank() == 0:
        how = {"order": ORDERS[:3], "partitions": [Wanted("random", 4)], "shards": (3, 2)}
        prepare(GRAPH, shared_tmp_path / "g.dg", **how)
    comm.Barrier()
    return shared_tmp_path / "g.dg"


def read(comm, ledger) -> dict[str, int]:
    """Sum what all ranks read, by dataset."""
    total: dict[str, int] = {}
    for own in comm.allgather(dict(ledger.loaded)):
        total |= {name: total.get(name, 0) + size for name, size in own.items()}
    return total


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("algorithm", ["1d", "1.5d", "2d", "3d"])
def test_rows_of_nodes_are_read_once(comm, path, algorithm):
    """Also where they are in another order than in the files, and where several ranks hold copies."""
    grid = wide_grid(comm, algorithm)
    store = Store(path)
    with dg.Ledger() as once:
        store.features("random"), store.labels("random"), store.split("random")
    for order in ORDERS if algorithm == "3d" else (ORDERS[0], ORDERS[1]):
        if order == "random-4":
            continue
        A = load(path, grid, algorithm, order)
        with dg.Ledger() as ledger:
            X = load_features(path, A.input_layout)
            labels, split = load_targets(path, A.output_layout)
        for whole, known in ((X, GRAPH.X), (labels, GRAPH.labels[:, None]), (split, GRAPH.split[:, None])):
            found = dg.gather(whole)
            assert grid.rank or np.array_equal(found, known)
        found = read(comm, ledger)
        assert {name: found[name] for name in once.loaded} == dict(once.loaded)
        assert found.get("inverse", 0) in (0, 3 * 4 * N)  # for each of three arrays
    grid.free()


@pytest.mark.ranks(3, 4)
def test_rows_in_chunks_of_an_earlier_store_are_read_once(comm, shared_tmp_path, monkeypatch):
    """Chunks were of 512 KiB: ranks share out the chunks that are there, not those that are written now."""
    graph, path = random_graph(5000, 9000, width=256, classes=4, weighted=True), shared_tmp_path / "old.dg"
    with monkeypatch.context() as earlier:
        earlier.setattr(LIMITS, "chunk_bytes", 1 << 19)
        earlier.setattr(LIMITS, "least_chunk_bytes", 1 << 19)
        if comm.Get_rank() == 0:
            prepare(graph, path, order=("random", "original"))
        comm.Barrier()
    grid, store = wide_grid(comm, "1d"), Store(path)
    with dg.Ledger() as once:
        store.features("random")
    for order in ("random", "original"):
        layout = load(path, grid, "1d", order).input_layout
        with dg.Ledger() as ledger:
            whole = dg.gather(load_features(path, layout))
        assert grid.rank or np.array_equal(whole, graph.X)
        assert read(comm, ledger)["features"] == once.loaded["features"]
    grid.free()


class NoRoom:
    """NumPy, but for the call of ``empty``, counted from 0, that finds no memory."""

    def __init__(self, call: int) -> None:
        self.calls = count()
        self.call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, *args: Any) -> np.ndarray:
        if next(self.calls) == self.call:
            raise MemoryError("no room for what others read")
        return np.empty(*args)


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("call", [0, 1, 2])
def test_no_room_for_entries_that_others_read_fails_on_all(comm, path, call, monkeypatch):
    """Row lengths, columns or values, of shards whose columns several ranks want."""
    grid = make_grid(comm, "2d", {"rows": 1, "cols": comm.size})
    with monkeypatch.context() as patched:
        if comm.rank == 1:
            patched.setattr(strips, "np", NoRoom(call))
        with pytest.raises((MemoryError, RuntimeError), match="no room for what others read"):
            load(path, grid, "2d", "random")
    A = load(path, grid, "2d", "random")  # and nothing is left of it
    assert A.nnz == Store(path).order("random").block((0, N), (0, N)).nnz
    grid.free()


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize(("algorithm", "aware"), WAYS)
def test_a_rank_reads_its_entries_once(comm, path, algorithm, aware):
    grid = wide_grid(comm, algorithm)
    rows = grid.shape.get("rows", 1)
    copies = {"rdm": grid.size // rows}.get(algorithm, 1)
    for order in ORDERS:
        if (order == "double" and algorithm != "3d") or (order == "random-4" and rows != 4):
            continue
        source = Store(path).order(order)
        with dg.Ledger() as once:
            source.block((0, N), (0, N))
        with dg.Ledger() as ledger:
            A = load(path, grid, algorithm, order, sparsity_aware=aware)
        found = read(comm, ledger)
        edges = 2 * 1024 * 6 * comm.Get_size()  # a chunk in which ranks meet is read by both
        assert found["values"] <= copies * once.loaded["values"] + edges
        assert found["indices"] <= 2 * copies * once.loaded["indices"] + 2 * edges
        H = np.random.default_rng(1).standard_normal((N, 3)).astype(np.float32)
        Y = dg.gather(A @ dg.scatter(H, A.input_layout))
        F = dg.gather(A.T @ dg.scatter(H, A.T.input_layout))
        if grid.rank == 0:
            matrix = Store(path).order("original").block((0, N), (0, N)).astype(np.float64)
            np.testing.assert_allclose(Y, matrix @ H, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(F, matrix.T @ H, rtol=1e-4, atol=1e-4)
    grid.free()


@pytest.mark.ranks(3, 4)
def test_one_rank_of_a_node_looks_at_the_files(comm, path, monkeypatch):
    checked = []
    monkeypatch.setattr(Members, "check", lambda self, named: checked.append(list(named)))
    for nodes in (1, 2):
        grid = dg.Grid(comm, rows=comm.Get_size())
        grid.world.nodes = [rank % nodes for rank in range(comm.Get_size())]
        store = Store(path, grid.world)
        everybody = comm.allgather(checked)
        assert [len(own) for own in everybody] == [int(rank < nodes) for rank in range(comm.Get_size())]
        assert store.manifest == Store(path).manifest and store.orders == ORDERS
        checked.clear()
        grid.free()
