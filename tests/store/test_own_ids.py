"""Rows go in and come out by node id, in whatever order a store keeps its nodes."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgnn as dg
from chosen_grids import wide_grid
from distgnn import UserError
from distgnn.errors import DisagreementError
from distgnn.layout import Cut, Layout
from distgnn.nn import GCN, Adam
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, make_grid
from distgnn.partition import Wanted
from distgnn.sampling import GraphSage, Replicated
from distgnn.store import Store, load, load_features, load_targets, prepare
from distgnn.store.read.neighbours import Neighbours
from distgnn.train import train
from mpi_helpers.programs import scratch
from oracle import GCNReference

from .graphs import adjacency, random_graph

N = 41
GRAPH = random_graph(N, 200, directed=True, weighted=True, width=5, classes=3)
CASES = [(name, False) for name in ALGORITHMS] + [(name, True) for name in SPARSITY_AWARE]
A_OF_USER = adjacency(GRAPH).toarray()


@functools.cache
def prepared(parts: int) -> Path:
    folder = scratch()
    orders, partitions = ("random", "original", "double"), [Wanted("random", parts)]
    prepare(GRAPH, folder / "g.dg", order=orders, partitions=partitions, dtype="float64", seed=2)
    return folder / "g.dg"


def stored(comm: Any, folder: Path, parts: int = 2) -> Store:
    if comm.Get_rank() == 0:
        shutil.copytree(prepared(parts), folder / "g.dg")
    comm.Barrier()
    return Store(folder / "g.dg")


def orders_for(store: Store, name: str) -> list[str]:
    return [order for order in store.orders if order != "double" or name == "3d"]


def check(found: np.ndarray | None, expected: np.ndarray) -> None:
    if found is not None:
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(("name", "aware"), CASES)
def test_products(comm: Any, name: str, aware: bool, backend: Any, shared_tmp_path: Path) -> None:
    """A H and Aᵀ G of a directed graph, its features and labels, and which rows a rank has."""
    grid = wide_grid(comm, name, backend)
    store = stored(comm, shared_tmp_path, parts=grid.shape.get("rows", 2))
    H, G = np.random.default_rng(0).standard_normal((2, N, 3))
    for order in orders_for(store, name)[0 if comm.size <= 4 else -2 :]:
        A = load(store, grid, name, order, sparsity_aware=aware)
        X = dg.scatter(H if grid.rank == 0 else None, A.input_layout)
        (left, right), ids = X.col_range, A.input_layout.row_ids
        np.testing.assert_array_equal(backend.to_host(X.block), H[ids, left:right])
        check(dg.gather(A @ X), A_OF_USER @ H)
        check(dg.gather(A.T @ dg.scatter(G, A.output_layout)), A_OF_USER.T @ G)
        check(dg.gather(load_features(store, A.input_layout)), GRAPH.X)
        for layout in (A.input_layout, A.output_layout):
            labels, split = load_targets(store, layout)
            check(dg.gather(labels), GRAPH.labels[:, None])
            check(dg.gather(split), GRAPH.split[:, None])
    grid.free()


@pytest.mark.ranks(1, 4)
def test_neighbours(comm: Any, shared_tmp_path: Path) -> None:
    """GraphSAGE sums over neighbours, and samples from them."""
    grid, store = wide_grid(comm, "1.5d"), stored(comm, shared_tmp_path)
    pattern = (A_OF_USER != 0) & ~np.eye(N, dtype=bool)
    A = load(store, grid, "1.5d", "random", neighbours=True)
    assert A.nnz == np.count_nonzero(pattern)
    check(dg.gather(A @ dg.scatter(GRAPH.X.astype(np.float64), A.input_layout)), pattern @ GRAPH.X)
    (sample,) = GraphSage(Replicated(Neighbours(store.order("random"), False)), [N]).sample([[7, 3]])
    np.testing.assert_array_equal(sample.blocks[0].A.toarray(), pattern[[7, 3]][:, sample.inputs])
    with pytest.raises(ValueError, match="rows and columns of a graph to sample from"):
        Replicated(store.order("double"))
    grid.free()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.slow
def test_networks(comm: Any, name: str, backend: Any, shared_tmp_path: Path) -> None:
    """Logits, also under dropout; and losses, with labels from arrays and from the store in turns."""
    grid, widths = wide_grid(comm, name, backend), [GRAPH.width, 4, 6, GRAPH.classes]
    store = stored(comm, shared_tmp_path, parts=grid.shape.get("rows", 2))
    reference = GCNReference(adjacency(GRAPH), widths, dropout=0.4, dtype=np.float64)
    records = reference.train(GRAPH.X, GRAPH.labels, GRAPH.split, 3, lr=0.05)
    expected = [reference.forward(GRAPH.X), reference.forward(GRAPH.X, 2), [r["loss"] for r in records]]
    for number, order in enumerate(orders_for(store, name)):
        A, root = load(store, grid, name, order), grid.rank == 0
        X = dg.scatter(GRAPH.X.astype(np.float64), A.input_layout)
        check(dg.gather(GCN(A, widths, dropout=0.4).forward(X)), expected[0])
        check(dg.gather(GCN(A, widths, dropout=0.4).forward(X, 2)), expected[1])
        model = GCN(A, widths, dropout=0.4)
        given = (GRAPH.labels, GRAPH.split) if root else (None, None)
        targets = model.targets(*given if number % 2 else load_targets(store, model.output_layout))
        losses = [record["loss"] for record in train(model, X, targets, Adam(0.05), 3)]
        np.testing.assert_allclose(losses, expected[2], rtol=1e-6)
    grid.free()


@pytest.mark.ranks(1, 4)
@pytest.mark.slow
def test_another_order_is_refused(comm: Any, shared_tmp_path: Path) -> None:
    grid, store = make_grid(comm, "1d"), stored(comm, shared_tmp_path)
    cuts = [load(store, grid, order=order).input_layout for order in ("random", "original")]
    A = load(store.path, grid, order="random")
    X = np.ones((N, GRAPH.width))
    np.testing.assert_array_equal(
        (A @ dg.scatter(X, cuts[0])).block[:, 0], (A @ dg.scatter(X, A.input_layout)).block[:, 0]
    )
    with pytest.raises(
        ValueError, match=r"rows over \(rows\), columns .* needs rows over \(rows\) in order random"
    ):
        A @ dg.scatter(X, cuts[1])
    model = GCN(A, [GRAPH.width, GRAPH.classes])
    with pytest.raises(ValueError, match=r"the network needs rows over \(rows\) in order random"):
        model.forward(dg.scatter(X, cuts[1]))
    with pytest.raises(ValueError, match="labels must be cut like the logits"):
        model.targets(*load_targets(store, cuts[1]))
    if grid.size > 1:
        with pytest.raises(DisagreementError, match="order is "):
            load(store, grid, order="random" if grid.rank else "original")
    grid.free()


@pytest.mark.ranks(4)
def test_sides_of_a_double_order_are_told_apart(comm: Any, shared_tmp_path: Path) -> None:
    grid, store = make_grid(comm, "3d", {"x": 1, "z": 1}), stored(comm, shared_tmp_path)
    A = load(store, grid, "3d", "double")
    with pytest.raises(
        ValueError, match=r"in order double \(rows\), .* needs rows .* in order double \(columns\)"
    ):
        A.layer(2) @ dg.scatter(np.ones((N, 4)), A.layer(1).input_layout)
    grid.free()


@pytest.mark.ranks(1, 3)
def test_an_order_that_cannot_be_read_is_every_ranks_error(comm: Any, shared_tmp_path: Path) -> None:
    """Rank 0 puts rows in order; the others must not wait for it."""
    grid, store = make_grid(comm, "1d"), stored(comm, shared_tmp_path)
    A = load(store, grid)
    X = dg.scatter(np.ones((N, 1)), A.input_layout)
    comm.Barrier()
    if grid.rank == 0:
        for path in (store.path / "orders" / "random").glob("permutation*"):
            path.unlink()
    comm.Barrier()
    for call in (lambda: dg.gather(X), lambda: dg.scatter(np.ones((N, 1)), A.input_layout)):
        with pytest.raises(UserError, match="permutation-0000.h5: file is missing"):
            call()
    grid.free()


def test_features_of_another_store(tmp_path: Path) -> None:
    """Features go by id, even where their order has the name of the operator's."""
    for seed in (1, 2):
        prepare(GRAPH, tmp_path / f"{seed}.dg", seed=seed)
    grid = dg.Grid(rows=1)
    A = load(tmp_path / "1.dg", grid)
    np.testing.assert_array_equal(dg.gather(load_features(tmp_path / "2.dg", A.input_layout)), GRAPH.X)
    np.testing.assert_array_equal(Store(tmp_path / "2.dg").features(None, (3, 9), (1, 4)), GRAPH.X[3:9, 1:4])
    plain = Layout(grid, Cut(), Cut())
    np.testing.assert_array_equal(load_features(tmp_path / "2.dg", plain).block, GRAPH.X)
    grid.free()


@pytest.mark.ranks(2)
def test_loading_compares_its_arguments(comm: Any, shared_tmp_path: Path) -> None:
    grid, store, last = make_grid(comm, "1d"), stored(comm, shared_tmp_path), comm.Get_rank() > 0
    given = store if last else store.path
    with pytest.raises(DisagreementError, match="the store is"):
        load(given, grid)
    with pytest.raises(DisagreementError, match="verify is"):
        load(store, grid, verify=last)
    A = load(store, grid, order="random")
    with pytest.raises(DisagreementError, match="the store is"):
        load_features(given, A.input_layout)
    with pytest.raises(DisagreementError, match="dtype is"):
        load_features(store, A.input_layout, dtype="float64" if last else "float32")
    with pytest.raises(UserError, match="dtype=int32: expected float32 or float64"):
        load(store, grid, dtype="int32")
    grid.free()
