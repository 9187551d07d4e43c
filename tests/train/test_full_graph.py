"""Training on every algorithm against the serial reference, and the mistakes that public implementations
made.
"""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from chosen_grids import each_grid, wide, wide_grid
from distgnn import progress
from distgnn.errors import PeerError
from distgnn.nn.optim import make
from distgnn.operators import grids, make_grid
from distgnn.operators.sources import MatrixSource
from distgnn.train.full_graph import parameters, train

from ..nn.problem import ALGORITHMS, Problem
from ..operators.orders import Permuted

PROBLEM = Problem()


# -- equal answers -------------------------------------------------------------------------------------------


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.slow
def test_loss_curve_is_the_serial_one(comm, name, backend):
    """Three layers of different widths, bias, dropout, momentum: SGD hides no factor in a gradient, as Adam
    would.
    """
    for grid in each_grid(comm, name, backend):
        PROBLEM.compare(grid, name, optimizer="sgd", momentum=0.9, dropout=0.3, bias=True, seed=3)


@pytest.mark.ranks(4, 6)
@pytest.mark.parametrize("name", ["1.5d", "2d", "3d-split", "3d"])
def test_the_order_of_axes_changes_nothing(comm, name, backend):
    sizes = dict(reversed(wide(name, comm.Get_size()).items()))
    grid = make_grid(comm, name, sizes, backend=backend)
    assert list(grid.shape) == list(sizes)
    PROBLEM.compare(grid, name, epochs=2, hidden=(6,), bias=True, dropout=0.3, train_features=True)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_trained_features(comm, name, backend):
    """The gradient of the features on a directed graph, with dropout on them, and their Adam state."""
    for grid in each_grid(comm, name, backend):
        PROBLEM.compare(
            grid, name, epochs=2, train_features=True, dropout=0.4, weight_decay=[0.1, 0.0], hidden=(6,)
        )


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        *((name, (16, 3, 2, 9)) for name in ALGORITHMS),
        *((name, ()) for name in ("1d", "2d", "3d")),
        *((name, (1,)) for name in ("1.5d", "3d-split", "3d")),
    ],
)
def test_any_number_of_layers_and_any_widths(comm, name, backend, hidden):
    """One layer; a hidden layer narrower than the grid; five layers, so that the 3D roles go round and begin
    again.
    """
    PROBLEM.compare(wide_grid(comm, name, backend), name, hidden=hidden, bias=True, dropout=0.2)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("name", ["1d", "3d"])  # weights replicated, weights cut
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_optimizers(comm, name, backend, optimizer):
    grid = wide_grid(comm, name, backend)
    PROBLEM.compare(grid, name, optimizer=optimizer, weight_decay=[0.1, 0.02], bias=True)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_float32(comm, name, backend):
    PROBLEM.compare(wide_grid(comm, name, backend), name, dtype=np.float32, rtol=2e-5, lr=0.01, dropout=0.5)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_node_order_changes_nothing(comm, name, backend):
    """In another order of the nodes, dropout masks follow the original ids and the loss stays the same."""
    p = np.random.default_rng(4).permutation(PROBLEM.n)
    losses = []
    for matrix in (PROBLEM.A, Permuted(PROBLEM.A, p)):
        grid = wide_grid(comm, name, backend)
        model, X, targets = PROBLEM.model(grid, name, matrix=matrix, dropout=0.5)
        losses.append([r["loss"] for r in train(model, X, targets, make("adam", 0.05), 3)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-10)


@pytest.mark.ranks(1, 8)
@pytest.mark.parametrize(("layers", "train_features"), [(1, False), (2, True), (7, True)])
@pytest.mark.slow
def test_double_permutation_changes_nothing(comm, backend, layers, train_features):
    """Rows and columns in two different orders, that layers use in turns (Plexus section 5.1): any number of
    layers, any grid.
    """
    rng = np.random.default_rng(4)
    P_r, P_c = rng.permutation(PROBLEM.n), rng.permutation(PROBLEM.n)
    A, hidden = PROBLEM.A, [6] * (layers - 1)
    even, odd = Permuted(A, P_r, P_c), Permuted(A, P_c, P_r)
    how = {"bias": True, "dropout": 0.3, "product_order": "aggregate-first"}
    reference = PROBLEM.reference(hidden, **{name: how[name] for name in ("bias", "dropout")})
    expected = reference.train(
        PROBLEM.X, PROBLEM.labels, PROBLEM.split, 3, "adamw", 0.05, 0.01, 0.0, train_features
    )
    losses = [record["loss"] for record in expected]
    possible = grids("3d", comm.Get_size())
    for sizes in possible[:: max(1, len(possible) // (3 if comm.Get_size() <= 6 else 2))]:
        grid = make_grid(comm, "3d", sizes, backend=backend)
        operator = dg.distribute(even, grid, "3d", odd=odd)
        model = dg.nn.GCN(operator, [PROBLEM.width, *hidden, PROBLEM.classes], **how)
        assert len({id(graph.A.algorithm.A) for graph in model.graphs}) == min(6, layers)
        targets = model.targets(PROBLEM.labels, PROBLEM.split)
        X = dg.scatter(PROBLEM.X, model.input_layout)
        records = list(train(model, X, targets, make("adamw", 0.05, 0.01), 3, train_features=train_features))
        np.testing.assert_allclose([record["loss"] for record in records], losses, rtol=1e-9)
        grid.free()


@pytest.mark.ranks(1)
def test_matrices_that_take_turns_have_one_size(comm, backend):
    grid, A = make_grid(comm, "3d", backend=backend), PROBLEM.A
    for even, odd in ((A, A[:-1, :-1]), (A[:, :-1], A[:, :-1])):
        with pytest.raises(ValueError, match="take turns"):
            dg.distribute(even, grid, "3d", odd=MatrixSource(odd))


# -- what an epoch's record says -----------------------------------------------------------------------------


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_rank_has_the_same_loss_and_accuracies(comm, name, backend):
    """A loss summed by one row group only would differ between ranks."""
    model, X, targets = PROBLEM.model(wide_grid(comm, name, backend), name)
    (record,) = train(model, X, targets, make("sgd", 0.1), 1)
    mine = [record[key] for key in ("loss", "train_acc", "val_acc", "test_acc")]
    assert all(other == mine for other in comm.allgather(mine))


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_accuracies_belong_to_the_weights_of_the_loss(comm, backend, dropout):
    model, X, targets = PROBLEM.model(make_grid(comm, "2d", backend=backend), "2d", dropout=dropout)
    before = model.evaluate(X, targets)
    record = next(train(model, X, targets, make("sgd", 5.0), 1))
    assert {key: record[key] for key in before} == before
    assert model.evaluate(X, targets) != before


@pytest.mark.ranks(1, 2)
def test_eval_every_says_when_accuracies_are_measured(comm, backend):
    model, X, targets = PROBLEM.model(make_grid(comm, "1d", backend=backend), "1d")
    for every, epochs in ((3, [1, 4, 7, 8]), (1, list(range(1, 9))), (0, [])):
        records = list(train(model, X, targets, make("adam"), 8, eval_every=every))
        assert [r["epoch"] for r in records if "test_acc" in r] == epochs
        assert [r["epoch"] for r in records] == list(range(1, 9))


@pytest.mark.ranks(1, 4)
def test_phases_add_up_and_timing_changes_nothing(comm, backend):
    """Stream order must not hang on the timers."""
    losses = []
    for timing in (False, True):
        model, X, targets = PROBLEM.model(make_grid(comm, "2d", backend=backend), "2d", dropout=0.3)
        records = list(train(model, X, targets, make("adam", 0.1), 3, timing=timing))
        losses.append([r["loss"] for r in records])
        for record in records:
            phases = record["phases"]
            of_their_own = {"activation", "loss", "optimizer"} if timing else set()
            assert set(phases) == {"spmm", "gemm", "comm", "other"} | of_their_own
            assert sum(phases.values()) == pytest.approx(record["seconds"])
            assert (phases["spmm"] > 0) == timing
    assert losses[0] == losses[1]


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_second_is_counted_twice(comm, name, backend):
    """Measured seconds of an epoch are at most the epoch; "other", which is what is left, would hide more."""
    for grid in each_grid(comm, name, backend):
        model, X, targets = PROBLEM.model(grid, name, dropout=0.3)
        for record in train(model, X, targets, make("adam", 0.1), 3, timing=True, eval_every=0):
            told = sum(seconds for phase, seconds in record["phases"].items() if phase != "other")
            assert told <= record["seconds"] * (1 + 1e-9)


@pytest.mark.ranks(1, 3)
def test_nothing_to_train_on_is_an_error_on_every_rank(comm, backend):
    problem = Problem()
    problem.split[problem.split == 1] = 0
    model, X, targets = problem.model(make_grid(comm, "1d", backend=backend), "1d")
    with pytest.raises(dg.UserError, match="nothing to train on"):
        next(train(model, X, targets, make("adam"), 1))


# -- mistakes others made ------------------------------------------------------------------------------------


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_parameter_is_trained(comm, name, backend):
    """Layers kept in a plain list once left an optimiser without weights: only the features moved, the loss
    still fell.
    """
    model, X, targets = PROBLEM.model(wide_grid(comm, name, backend), name, bias=True)
    before, features = model.get_weights() + model.get_biases(), dg.gather(X)
    assert [p.name for p in parameters(model, X, True)] == ["W0", "W1", "W2", "b0", "b1", "b2", "X"]
    list(train(model, X, targets, make("sgd", 0.1), 1, train_features=True))
    after = model.get_weights() + model.get_biases()
    assert len(after) == 6
    assert all(abs(new - old).max() > 1e-6 for new, old in zip(after, before, strict=True))
    moved = dg.gather(X)
    if grid_rank(model) == 0:
        assert abs(moved - features).max() > 1e-6


@pytest.mark.ranks(1, 4, 6)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_replicas_do_not_multiply_gradients(comm, name, backend):
    """A weight gradient summed over all ranks is c times too large in 1.5D; Adam would hide it, a gradient
    does not.
    """
    loss, dW, db, dX = PROBLEM.reference(bias=True).gradients(PROBLEM.X, PROBLEM.labels, train_rows())
    for grid in each_grid(comm, name, backend):
        model, X, targets = PROBLEM.model(grid, name, bias=True)
        found, _, gradients, features = model.gradients(X, targets, need_input=True)
        assert found == pytest.approx(loss, rel=1e-12)
        for parameter, gradient in zip(model.parameters, gradients, strict=True):
            parameter.block[...] = gradient  # a cut parameter is gathered as one
        for ours, theirs in zip(model.get_weights() + model.get_biases(), dW + db, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        whole = dg.gather(features)
        if grid.rank == 0:
            np.testing.assert_allclose(whole, dX, rtol=1e-9, atol=1e-12)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_skipping_the_features_gradient_is_exact(comm, name, backend):
    """Without trained features the last product with A transposed is left out, and the weights' gradients
    stay the same.
    """
    model, X, targets = PROBLEM.model(wide_grid(comm, name, backend), name)
    counted = []
    for need_input in (True, False):
        with dg.Ledger() as ledger:
            _, _, gradients, dX = model.gradients(X, targets, need_input=need_input)
        counted.append(
            (sum(entry["calls"] for entry in ledger.entries() if entry["phase"] == "spmm"), gradients, dX)
        )
    (more, first, dX), (fewer, second, nothing) = counted
    assert fewer < more and dX is not None and nothing is None
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(backend.to_host(a), backend.to_host(b), rtol=1e-9, atol=1e-12)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_leaves_features_and_labels_alone(comm, name, backend):
    model, X, targets = PROBLEM.model(wide_grid(comm, name, backend), name, dropout=0.5)
    on = backend
    copies = [on.to_host(a).copy() for a in (X.block, targets.labels, targets.train_labels, targets.parts)]
    list(train(model, X, targets, make("adam", 0.1), 3))
    for array, copy in zip(
        (X.block, targets.labels, targets.train_labels, targets.parts), copies, strict=True
    ):
        np.testing.assert_array_equal(on.to_host(array), copy)


@pytest.mark.ranks(3)
@pytest.mark.abandons
def test_an_error_of_what_is_called_before_an_update_ends_all(comm, monkeypatch):
    monkeypatch.setattr(progress, "LONG", 0.05)
    model, X, targets = PROBLEM.model(wide_grid(comm, "1d", "numpy"), "1d")
    for failed in range(comm.size):

        def fails(epoch, scores, failed=failed):
            if epoch == 2 and comm.rank == failed:
                raise ZeroDivisionError

        with pytest.raises((ZeroDivisionError, PeerError)) as error:
            list(train(model, X, targets, make("adam"), 3, before=fails))
        assert (error.type is ZeroDivisionError) == (comm.rank == failed)
        assert not progress.pending()


@pytest.mark.ranks(1, 2)
def test_large_node_ids_are_told_apart(comm, backend):
    """Ids that pass through float32 are exact only to 2**24: neighbours beyond would share a dropout mask."""
    offset = 2**40 + 1
    grid = make_grid(comm, "1d", backend=backend)
    model, X, targets = PROBLEM.model(grid, "1d", dropout=0.5)
    model.graphs = [graph._replace(nodes=graph.nodes + offset) for graph in model.graphs]
    (record,) = train(model, X, targets, make("adam"), 1)
    reference = PROBLEM.reference(dropout=0.5, nodes=np.arange(PROBLEM.n) + offset)
    expected = next(reference.train(PROBLEM.X, PROBLEM.labels, PROBLEM.split, 1))
    assert record["loss"] == pytest.approx(expected["loss"], rel=1e-12)
    mask = reference.mask(1, 0)
    assert len({row.tobytes() for row in mask}) > PROBLEM.n // 2


def grid_rank(model) -> int:
    return model.grid.rank


def train_rows() -> np.ndarray:
    return np.flatnonzero((PROBLEM.split == 1) & (PROBLEM.labels >= 0))
