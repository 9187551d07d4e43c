"""Training on induced subgraphs of drawn vertices: exact expectations, the serial reference on every
algorithm and grid, and what travels.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import each_grid, wide_grid
from distgnn import progress
from distgnn.errors import ArgumentError, DisagreementError, PeerError
from distgnn.layout import NodeOrder
from distgnn.nn import GAT, GCN, SGD, Adam, SageMean
from distgnn.operators import ALGORITHMS, make_grid
from distgnn.operators.induced import Subgraphs, dissolve
from distgnn.sampling.ids import Ids
from distgnn.train import VertexTraining, train
from distgnn.train.vertices import Vertices
from oracle import GCNReference, SageReference
from oracle_attention import GATReference
from sampling.exact import LEVEL, p_value

N, WIDTH, CLASSES = 307, 48, 5  # blocks of a rank are beyond what MPI sends eagerly


def problem(symmetric: bool) -> sp.csr_array:
    r = np.random.default_rng(3)
    A = np.where(r.random((N, N)) < 0.04, r.uniform(0.1, 1, (N, N)), 0) + np.eye(N)
    A[:40] = np.where(r.random((40, N)) < 0.3, 0.2, A[:40])  # hubs, so that blocks are unlike
    A[290] = A[:, 290] = 0
    return sp.csr_array(A + A.T if symmetric else A)


GRAPHS = {"directed": problem(False), "symmetric": problem(True)}
r = np.random.default_rng(8)
X = r.standard_normal((N, WIDTH))
LABELS, SPLIT = r.integers(0, CLASSES, N).astype(np.int32), r.integers(0, 4, N).astype(np.uint8)
LABELS[np.flatnonzero(SPLIT == 1)[1]] = -1
COUNTS = (SPLIT == 1) & (LABELS >= 0)
NETWORKS = {"gcn": (GCN, GCNReference), "sage": (SageMean, SageReference), "gat": (GAT, GATReference)}


# -- what is drawn --


def test_an_epoch_has_every_node_once_in_even_parts() -> None:
    vertices = Vertices(Ids(43, None), 10, seed=2)
    for epoch in (1, 2):
        drawn = vertices.epoch(epoch)
        assert len(drawn) == len(vertices) == 5 and {len(part) for part in drawn} == {8, 9}
        assert np.array_equal(np.sort(np.concatenate(drawn)), np.arange(43))
        assert all((part[1:] > part[:-1]).all() for part in drawn)
    assert not np.array_equal(vertices.epoch(1)[0], vertices.epoch(2)[0])
    assert [len(Vertices(Ids(n, None), 10)) for n in (1, 10, 11)] == [1, 1, 2]
    with pytest.raises(ArgumentError, match="batch_size=0: expected a whole number of at least 1"):
        Vertices(Ids(43, None), 0)


def test_draws_are_of_nodes_whatever_their_order() -> None:
    nodes = np.random.default_rng(1).permutation(60)
    order = NodeOrder("other", 1, lambda first, last: nodes[first:last])
    plain, other = (Vertices(Ids(60, given), 7, seed=3).epoch(4) for given in (None, order))
    for ours, theirs in zip(plain, other, strict=True):
        assert np.array_equal(np.sort(nodes[theirs]), ours) and (theirs[1:] > theirs[:-1]).all()


def test_all_sets_of_vertices_are_equally_likely() -> None:
    """Each of the 20 threes of 6 nodes, in both steps, over 4,000 epochs: χ² at a level of 0.001."""
    vertices = Vertices(Ids(6, None), 3)
    subsets = {sum(1 << i for i in chosen): 1 / 20 for chosen in combinations(range(6), 3)}
    members = np.zeros((2, 4000, 6), bool)
    for epoch in range(4000):
        for number, part in enumerate(vertices.epoch(epoch)):
            members[number, epoch, part] = True
    assert min(p_value(of_step, subsets) for of_step in members) > LEVEL


# -- expectations --


def product(comm: Any, A: Any, H: np.ndarray) -> np.ndarray:
    """Return A H on every rank."""
    return comm.bcast(dg.gather(A @ dg.scatter(H, A.input_layout)))


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_estimate_has_no_bias(comm: Any, algorithm: str) -> None:
    """The mean over all subsets of Σ_u loss weight_u (A H)_u is that over the graph, exactly."""
    n, s = 7, 3
    draw = np.random.default_rng(5)
    A = sp.csr_array(np.where(draw.random((n, n)) < 0.5, draw.uniform(0.1, 2, (n, n)), 0) + np.eye(n))
    H, w = draw.standard_normal((n, 2)), draw.random(n)
    grid = wide_grid(comm, algorithm)
    whole = dg.distribute(A, grid, algorithm)
    subgraphs, estimates = Subgraphs(whole), []
    for chosen in map(np.array, combinations(range(n), s)):
        part = subgraphs.of(chosen, (s - 1) / (n - 1))
        estimates.append((n / s) * w[chosen] @ product(comm, part, H[chosen]))
        dissolve([part])
    np.testing.assert_allclose(np.mean(estimates, axis=0), w @ (A @ H), rtol=1e-12)
    grid.free()


# -- the operator of a subgraph --


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_products_of_a_subgraph(comm: Any, algorithm: str, kind: str, backend: Any) -> None:
    """A' H and A'ᵀ H of many, few, one and all nodes, of some that one rank has, and of every layer of 3d."""
    A, draw = GRAPHS[kind], np.random.default_rng(2)
    drawn = [np.sort(draw.choice(N, size, replace=False)) for size in (200, 40, 1, N)] + [np.arange(9, 31)]
    for grid in each_grid(comm, algorithm, backend):
        subgraphs = Subgraphs(dg.distribute(A, grid, algorithm), 3)
        for nodes in drawn:
            expected = A[nodes][:, nodes].toarray()
            expected /= np.where(np.eye(nodes.size, dtype=bool), 1, 0.25)
            made, H = subgraphs.of(nodes, 0.25), draw.standard_normal((nodes.size, 17))
            for layer in range(3):
                part = made.layer(layer)
                for ours, theirs in ((part, expected), (part.T, expected.T)):
                    np.testing.assert_allclose(product(comm, ours, H), theirs @ H, rtol=1e-10, atol=1e-10)
                back = comm.bcast(dg.gather(part.multiply_adjoint(dg.scatter(H, part.output_layout))))
                np.testing.assert_allclose(back, expected.T @ H, rtol=1e-10, atol=1e-10)
            dissolve([made])
        grid.free()


@pytest.mark.ranks(1, 4)
def test_needed_rows_are_refused(comm: Any) -> None:
    grid = make_grid(comm, "1d")
    with pytest.raises(ArgumentError, match="sparsity_aware=True: subgraphs of drawn vertices are mul"):
        Subgraphs(dg.distribute(GRAPHS["directed"], grid, "1d", sparsity_aware=True))
    grid.free()


# -- training --


def reference(A: sp.csr_array, name: str, size: int, rescale: bool, epochs: int) -> list[float]:
    """Train serially with SGD in NumPy; return the loss of every step."""
    network = NETWORKS[name][1](A, [WIDTH, 16, CLASSES], seed=4, dropout=0.3, bias=True, dtype=np.float64)
    vertices, losses = Vertices(Ids(N, None), size, seed=6), []
    for epoch in range(1, epochs + 1):
        for number, nodes in enumerate(vertices.epoch(epoch)):
            part, s = A[nodes][:, nodes].toarray(), len(nodes)
            if rescale and 1 < s < N:
                part = np.where(np.eye(s, dtype=bool), part, part * (N - 1) / (s - 1))
            graphs = [(network.operator(sp.csr_array(part)), nodes)] * 2
            rows = np.flatnonzero(COUNTS[nodes])
            weights = np.full(len(rows), N / s * len(rows) / COUNTS.sum() if rescale else 1.0)
            step = (epoch - 1) * len(vertices) + number + 1
            loss, named = network.named_gradients(
                X[nodes], LABELS[nodes], rows, step, features=False, graphs=graphs, loss_weights=weights
            )
            losses.append(loss)
            for key, parameter in network.parameters().items():
                parameter -= 0.2 * named[key]
    return losses


def found(comm: Any, backend: Any, algorithm: str, A: Any, name: str, size: int, rescale: bool) -> Any:
    """Yield the losses of every step, and what is not lent any more, on each grid."""
    for grid in each_grid(comm, algorithm, backend):
        model = NETWORKS[name][0](dg.distribute(A, grid, algorithm), [WIDTH, 16, CLASSES], seed=4,
                                  dropout=0.3, bias=True)  # fmt: skip
        training = VertexTraining(
            model, dg.scatter(X, model.input_layout), model.targets(LABELS, SPLIT), size, 6, rescale
        )
        losses: list[float] = []
        for _ in training.train(SGD(0.2), 2, eval_every=2):
            losses += training.losses
        assert not grid.workspace._lent
        yield losses
        grid.free()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_as_the_serial_reference(
    comm: Any, algorithm: str, kind: str, backend: Any
) -> None:
    """With dropout and biases, on all grids: the losses of all steps of two epochs."""
    expected = reference(GRAPHS[kind], "gcn", 120, True, 2)
    assert len(expected) == 6 and len({f"{loss:.3f}" for loss in expected}) == 6
    for losses in found(comm, backend, algorithm, GRAPHS[kind], "gcn", 120, True):
        np.testing.assert_allclose(losses, expected, rtol=1e-9)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_trains_as_the_serial_reference(
    comm: Any, name: str, rescale: bool, backend: Any
) -> None:
    pattern = GRAPHS["directed"].copy()
    pattern.data[:] = 1
    A = sp.csr_array(pattern - sp.eye_array(N)) if name == "sage" else GRAPHS["directed"]
    A.eliminate_zeros()
    if name == "sage" and rescale:
        pytest.skip("means of the subgraph are what they are")
    expected = reference(A, name, 100, rescale, 2)
    for algorithm in ("1.5d", "2d", "rdm", *(["3d"] if name != "sage" else [])):
        for losses in found(comm, backend, algorithm, A, name, 100, rescale):
            np.testing.assert_allclose(losses, expected, rtol=1e-8)


@pytest.mark.ranks(1, 3)
def test_a_subgraph_of_everything_is_the_graph(comm: Any, backend: Any) -> None:
    """The same losses as on the whole graph, and the same words, for all but the scores."""
    grid = wide_grid(comm, "2d", backend)
    records = []
    for vertices in (False, True):
        model = GCN(dg.distribute(GRAPHS["directed"], grid, "2d"), [WIDTH, 16, CLASSES], dropout=0.3)
        given = model, dg.scatter(X, model.input_layout), model.targets(LABELS, SPLIT)
        if vertices:
            epochs = VertexTraining(*given, N).train(Adam(0.05), 3, eval_every=0)
        else:
            epochs = train(*given, Adam(0.05), 3, eval_every=0)
        records.append([(record["loss"], record["words"]) for record in epochs])
    np.testing.assert_allclose(records[0], records[1], rtol=1e-12)
    assert (records[0][0][1] > 0) == (comm.size > 1)
    grid.free()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_neither_graph_nor_features_travel(comm: Any, algorithm: str) -> None:
    """Every word of a step is charged to a matrix of a product, the loss or gradients."""
    grid = wide_grid(comm, algorithm)
    model = GCN(dg.distribute(GRAPHS["directed"], grid, algorithm), [WIDTH, 16, CLASSES])
    training = VertexTraining(model, dg.scatter(X, model.input_layout), model.targets(LABELS, SPLIT), 100)
    with dg.Ledger() as counted:
        list(training.train(SGD(0.1), 1, eval_every=0))
    matrices = {entry["matrix"] for entry in counted.entries() if entry["words"]}
    assert matrices <= {"H", "G", "A", "T", "sums", "gradients", "loss", "weights"} and matrices
    grid.free()


@pytest.mark.ranks(1, 4)
def test_a_step_without_training_nodes_changes_nothing_unless_rescaled(comm: Any) -> None:
    """Three of 4 steps lack the only training node; Adam moves on where their loss, 0, is an estimate."""
    grid, split = wide_grid(comm, "2d"), np.where(np.arange(N) == 5, 1, 0).astype(np.uint8)
    first = next(k for k, part in enumerate(Vertices(Ids(N, None), 77, 1).epoch(1)) if 5 in part)
    assert first < 3
    for rescale in (False, True):
        model = GCN(dg.distribute(GRAPHS["directed"], grid, "2d"), [WIDTH, 16, CLASSES])
        training = VertexTraining(
            model, dg.scatter(X, model.input_layout), model.targets(abs(LABELS), split), 77, 1, rescale
        )
        weights = [model.get_weights()]
        for _ in training.updates(Adam(0.1), 1):
            weights.append(model.get_weights())
        moved = [not np.array_equal(a[0], b[0]) for a, b in pairwise(weights)]
        assert moved == [k >= first if rescale else k == first for k in range(4)]
    grid.free()


@pytest.mark.ranks(2)
def test_bad_input_on_all_ranks(comm: Any) -> None:
    grid = wide_grid(comm, "1d")
    model = GCN(dg.distribute(GRAPHS["directed"], grid, "1d"), [WIDTH, CLASSES])
    features = dg.scatter(X, model.input_layout)
    with pytest.raises(DisagreementError, match="ranks disagree: batch_size is "):
        VertexTraining(model, features, model.targets(LABELS, SPLIT), 10 + comm.rank)
    with pytest.raises(ArgumentError, match="batch_size=10: the graph has no training nodes"):
        VertexTraining(model, features, model.targets(LABELS, 0 * SPLIT), 10)
    grid.free()


@pytest.mark.ranks(3)
@pytest.mark.abandons
def test_an_error_of_one_rank_ends_all(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LONG", 0.05)
    grid = make_grid(comm, "1d", backend="numpy")
    model = GCN(dg.distribute(GRAPHS["directed"], grid, "1d"), [WIDTH, 16, CLASSES])
    features, targets = dg.scatter(X, model.input_layout), model.targets(LABELS, SPLIT)
    training, whole = VertexTraining(model, features, targets, 120), VertexTraining._targets

    def fail(self: Any, nodes: Any) -> Any:
        if comm.rank == 1:
            raise ZeroDivisionError
        return whole(self, nodes)

    monkeypatch.setattr(VertexTraining, "_targets", fail)
    with pytest.raises((ZeroDivisionError, PeerError)) as error:
        list(training.train(SGD(0.2), 1, eval_every=0))
    assert (error.type is ZeroDivisionError) == (comm.rank == 1)
    grid.free()
