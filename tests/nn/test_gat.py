"""Graph attention: its formula and gradients on every algorithm, equal losses, minibatches."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest

import distgnn as dg
from chosen_grids import wide_grid
from distgnn.nn import Adam
from distgnn.nn.gat import GAT
from distgnn.nn.gatv2 import GATv2
from distgnn.nn.optim import Parameter
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, make_grid
from distgnn.operators.one_rank import Alone, OneRank
from distgnn.operators.operator import DistSparse
from distgnn.sampling import GraphSage, Replicated
from distgnn.split import TRAIN
from distgnn.store import prepare
from distgnn.train import MinibatchTraining, Predictor, Run, Settings
from distgnn.train.full_graph import train
from oracle_attention import GATReference, GATv2Reference
from oracle_scores import labelled, softmax_cross_entropy

from ..train.stores import Communities, small_store
from .problem import Problem, central_differences

PROBLEM, WIDTHS, HEADS = Problem(), [11, 6, 5], [3, 2]
WAYS = [(name, False) for name in ALGORITHMS] + [(name, True) for name in SPARSITY_AWARE]
NETWORKS = {GAT: GATReference, GATv2: GATv2Reference}
LEAKY, ELU = (lambda x: np.where(x > 0, x, 0.2 * x)), (lambda x: np.where(x > 0, x, np.exp(x) - 1))


def attention(
    kind: type[GAT], H: np.ndarray, W: np.ndarray, one: np.ndarray, other: np.ndarray, heads: int
) -> Any:
    """Compute a layer's heads by its formula, on dense arrays; ``one`` and ``other``: its arrays beside W."""
    stored, parts, Y = PROBLEM.A.toarray() != 0, [], H @ W
    for columns in np.split(np.arange(W.shape[1]), heads):
        y = Y[:, columns]
        if kind is GAT:
            e = LEAKY(y @ one[columns] + (y @ other[columns]).T)
        else:
            e = (LEAKY((H @ one)[:, None, columns] + y[None]) * other[columns, 0]).sum(axis=2)
        P = np.where(stored, np.exp(e - np.where(stored, e, -np.inf).max(axis=1, keepdims=True)), 0)
        parts.append(P / P.sum(axis=1, keepdims=True) @ y)
    return parts


def loss(kind: type[GAT], values: list[np.ndarray]) -> float:
    W0, W1, *others, b0, b1, X = values
    H = ELU(np.hstack(attention(kind, X, W0, *others[::2], HEADS[0])) + b0)
    Z = np.mean(attention(kind, H, W1, *others[1::2], HEADS[1]), axis=0) + b1
    return softmax_cross_entropy(Z, PROBLEM.labels, labelled(PROBLEM.labels, PROBLEM.split, TRAIN))[0]


def made(kind: Any, comm: Any, name: str, aware: bool, backend: Any = "numpy", **options: Any) -> Any:
    A = dg.distribute(PROBLEM.A, wide_grid(comm, name, backend), name, aware)
    model = kind(A, WIDTHS, heads=HEADS, bias=True, **options)
    return model, dg.scatter(PROBLEM.X, model.input_layout), model.targets(PROBLEM.labels, PROBLEM.split)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(("name", "aware"), WAYS)
def test_loss_and_gradients_are_those_of_the_formula(comm, name, aware, backend):
    for kind, (one, other) in {GAT: ("left", "right"), GATv2: ("left", "attention")}.items():
        model, X, targets = made(kind, comm, name, aware, backend)
        for p in model.parameters:
            p.matrix.block += 0.1
        whole = [dg.gather(p.matrix) for p in model.parameters] + [PROBLEM.X]
        value, _, gradients, dX = model.gradients(X, targets, need_input=True)
        ours = [dg.gather(p.matrix.like(g)) for p, g in zip(model.parameters, gradients, strict=True)]
        ours.append(dg.gather(dX))
        names = [f"{kind}{layer}" for kind in ("W", one, other, "b") for layer in (0, 1)]
        assert [p.name for p in model.parameters] == names
        if comm.Get_rank() > 0:
            continue
        assert value == pytest.approx(loss(kind, whole), rel=1e-10)
        differences = central_differences(kind.__name__, partial(loss, kind), whole)
        for array, gradient, by_place in zip([*names, "X"], ours, differences, strict=True):
            for place, numeric in by_place.items():
                assert gradient.reshape(-1)[place] == pytest.approx(numeric, abs=1e-8), array


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize(("name", "aware"), WAYS)
def test_training_is_that_of_one_process(comm, name, aware):
    """Losses and all arrays, with dropout of features and of attention, weight decay and trained features.

    One network on each number of ranks, the other on the next.
    """
    some = [*NETWORKS.items()][(comm.Get_size() + WAYS.index((name, aware))) % 2 :: 2]
    for kind, serial in some:
        options: Any = {"dropout": 0.3, "attention_dropout": 0.4, "seed": 5, "heads": [3, 2, 2], "bias": True}
        options |= {"residual": kind is GAT, "layer_norm": kind is GAT}
        A = dg.distribute(PROBLEM.A, wide_grid(comm, name), name, aware)
        model = kind(A, widths := [11, 6, 6, 5], **options)
        X, targets = dg.scatter(PROBLEM.X, model.input_layout), model.targets(PROBLEM.labels, PROBLEM.split)
        update: Any = {"lr": 0.01, "weight_decay": 0.1}
        losses = [r["loss"] for r in train(model, X, targets, Adam(**update), 3, train_features=True)]
        assert len(set(losses)) == 3
        reference = serial(PROBLEM.A, widths, dtype=np.float64, **options)
        expected = reference.train(PROBLEM.X, PROBLEM.labels, PROBLEM.split, 3, train_features=True, **update)
        np.testing.assert_allclose(losses, [record["loss"] for record in expected], rtol=1e-9)
        arrays = reference.parameters(True)
        for p in [*model.parameters, Parameter("X", 0, "features", X)]:
            whole = comm.bcast(dg.gather(p.matrix))
            np.testing.assert_allclose(whole, arrays[p.name].reshape(whole.shape), atol=1e-8, err_msg=p.name)


@pytest.mark.ranks(1)
def test_dropped_attention_has_its_share_and_is_new_in_each_epoch_layer_and_head(comm):
    model, *_ = made(GAT, comm, "1d", False, attention_dropout=0.25)
    masks = []
    for layer in model.layers:
        A, layer.nodes = model.A, np.arange(PROBLEM.n)
        for layer.epoch in (1, 2):
            dropped = layer.dropped(A, A.edges(lambda i, j: 1.0 + 0 * i, layer.heads))
            masks += list(dropped.part(slice(0, A.nnz)).T)
        layer.epoch = None
        assert layer.dropped(A, E := A.edges()) is E
    assert len({mask.tobytes() for mask in masks}) == len(masks) == 2 * sum(HEADS)
    assert set(np.unique(masks)) == {0, 1 / 0.75}
    assert np.mean(masks) == pytest.approx(1, abs=0.03)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("kind", NETWORKS)
def test_scores_are_of_weights_whose_attention_is_not_dropped(comm, kind):
    """Also without dropout of features."""
    model, X, targets = made(kind, comm, "1d", False, attention_dropout=0.8)
    epochs = []

    def before(epoch: int, scores: dict[str, float]) -> None:
        assert scores == model.evaluate(X, targets)
        epochs.append(epoch)

    for _ in train(model, X, targets, Adam(0.05), 4, before=before):
        pass
    assert epochs == [1, 2, 3, 4]


@pytest.mark.ranks(1)
@pytest.mark.parametrize("kind", NETWORKS)
def test_edges_of_a_layer_are_gone_before_the_one_below_goes_back(comm, kind, monkeypatch):
    kept_before: list[Any] = []
    back = kind.layer.propagate_back

    def watched(self: Any, A: Any, kept: Any, G: Any) -> Any:
        assert not [edges for edges in kept_before if edges() is not None]
        kept_before.append(weakref.ref(kept[-1]))
        return back(self, A, kept, G)

    monkeypatch.setattr(kind.layer, "propagate_back", watched)
    model, X, targets = made(kind, comm, "1d", False)
    model.gradients(X, targets)
    assert len(kept_before) == 2


@pytest.mark.ranks(1, 3)
def test_heads_that_do_not_divide_are_refused(comm):
    A = dg.distribute(PROBLEM.A, wide_grid(comm, "1d", "numpy"), "1d")
    with pytest.raises(dg.UserError, match="hidden=6: must be shared evenly by the 4 heads of layer 0"):
        GAT(A, WIDTHS, heads=4)
    with pytest.raises(dg.UserError, match="one for each of 2 layers"):
        GAT(A, WIDTHS, heads=[1, 2, 3])


@pytest.mark.ranks(1)
def test_one_number_leaves_the_last_layer_one_head(comm):
    A = dg.distribute(PROBLEM.A, wide_grid(comm, "1d", "numpy"), "1d")
    for heads in (3, [3], [3, 1]):
        assert GAT(A, WIDTHS, heads=heads).heads == [3, 1]
    assert GAT(A, [11, 5], heads=[5]).heads == [5]


@pytest.mark.ranks(1, 4)
def test_minibatches_of_all_neighbours_make_the_same_update(comm):
    trained = []
    for minibatches in (False, True):
        grid = make_grid(comm, "1.5d", {"rows": comm.size, "reps": 1}, backend="numpy")
        model = GAT(dg.distribute(PROBLEM.A, grid, "1.5d"), WIDTHS, heads=HEADS)
        X, targets = dg.scatter(PROBLEM.X, model.input_layout), model.targets(PROBLEM.labels, PROBLEM.split)
        if minibatches:
            graph = Replicated(dg.MatrixSource(PROBLEM.A), backend="numpy")
            sampler, size = GraphSage(graph, [PROBLEM.n] * 2), targets.counts[TRAIN]
            list(MinibatchTraining(model, X, targets, sampler, size, 1).train(Adam(0.1), 1))
        else:
            list(train(model, X, targets, Adam(0.1), 1))
        trained.append(np.concatenate([p.block.ravel() for p in model.parameters]))
    np.testing.assert_allclose(*trained, rtol=1e-6)


@pytest.mark.ranks(1)
def test_blocks_of_minibatches_go_with_their_last_use(comm):
    """Edges hold the matrix of a minibatch, which does not hold them: no cycle waits to be collected."""
    alone = Alone(make_grid(comm, "1d", backend="numpy"))
    whole = OneRank(alone, (2, 3), np.ones(2), np.array([0, 2]), np.array([0, 1, 2]), np.float64)
    block = DistSparse(whole)
    edges = block.edges().softmax()
    assert block.pattern is edges.pattern
    gone = weakref.ref(block)
    gc.disable()
    try:
        del block, edges
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.ranks(1, 4)
def test_a_store_is_trained_and_predicted(comm, shared_tmp_path):
    store, weights = small_store(shared_tmp_path, comm), str(shared_tmp_path / "w")
    settings = Settings(
        model="gat", algorithm="2d", hidden=[16], epochs=3, recipe="plain", checkpoint=weights
    )
    run = Run(store, settings, comm)
    losses = [record["loss"] for record in run.train()]
    assert losses[-1] < losses[0]
    scores = Predictor(store, weights, comm, "3d", which="last").scores()
    assert scores == pytest.approx({name: run.end[name] for name in scores})


@pytest.mark.ranks(1, 4)
def test_an_order_of_rows_and_another_of_columns_is_refused(comm: Any, shared_tmp_path: Any) -> None:
    store = small_store(shared_tmp_path, comm)
    if comm.rank == 0:
        prepare(Communities(), store, order=("double",), force=True)
    comm.Barrier()
    A = dg.load(store, make_grid(comm, "3d"), "3d", "double")
    for network in (GAT, GATv2):
        with pytest.raises(dg.UserError, match=r"order=double .*: orders rows and columns apart"):
            network(A, [9, 8, 4])
