"""(A H) W or A (H W), features aggregated once or in every epoch: the same network, and the work that was
promised.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest

import distgnn as dg
from chosen_grids import wide_grid
from distgnn.arrays.tuning import TUNING
from distgnn.local import elementwise
from distgnn.nn.optim import make
from distgnn.nn.products import AGGREGATE, ORDERS, TRANSFORM, FixedAggregate, sparse_width
from distgnn.operators import make_grid
from distgnn.train.full_graph import train

from .problem import ALGORITHMS, Problem, received

PROBLEM = Problem()
REPLICATED = [name for name in ALGORITHMS if name != "3d"]


def losses(model, X, targets, **options) -> list[float]:
    return [
        record["loss"] for record in train(model, X, targets, make("adam", 0.05), 3, eval_every=0, **options)
    ]


@functools.cache
def serial_losses(dropout, train_features) -> list[float]:
    reference = PROBLEM.reference(dropout=dropout, bias=True)
    records = reference.train(
        PROBLEM.X,
        PROBLEM.labels,
        PROBLEM.split,
        3,
        "adam",
        0.05,
        train_features=train_features,
        evaluate=False,
    )
    return [record["loss"] for record in records]


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(
    ("name", "dropout", "train_features"),
    [
        *((name, 0.0, False) for name in ALGORITHMS),
        *((name, 0.5, False) for name in ("1.5d", "2d", "3d")),
        *((name, 0.0, True) for name in ("1d", "3d-split", "3d")),
    ],
)
@pytest.mark.slow
def test_every_order_of_products_trains_the_same_network(comm, name, backend, dropout, train_features):
    """A X may be kept only where neither dropout nor training changes X."""
    grid = wide_grid(comm, name, backend)
    expected = serial_losses(dropout, train_features)
    for order in ORDERS if name != "3d" else ORDERS[:2]:
        for keep in (True,) if dropout or train_features else (True, False):
            options = {"product_order": order, "keep_aggregate": keep, "dropout": dropout, "bias": True}
            found = losses(*PROBLEM.model(grid, name, **options), train_features=train_features)
            np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=f"{grid} {options}")
    grid.free()


@pytest.mark.ranks(1, 4)
def test_products_end_with_what_becomes_of_them(comm, stand_in, monkeypatch):
    """On a GPU all layers' biases, ReLU and dropout but the features' are done by products.

    The losses are those of the serial reference. Of the blocks of a row the last one's product ends all rows.
    Bits of 12 columns need a pass of their own.
    """
    passes = []
    seen = elementwise.apply
    monkeypatch.setattr(elementwise, "apply", lambda then, Z: passes.append(then.done) or seen(then, Z))
    grid = make_grid(comm, "1d", backend="cupy")
    for hidden, by_products in (((16, 24), [True] * 3), ((16, 12), [True, False, True])):
        for aware in (False, True):
            A = dg.distribute(PROBLEM.A, grid, "1d", sparsity_aware=aware)
            options = {"dropout": 0.5, "bias": True, "product_order": TRANSFORM}
            model = dg.nn.GCN(A, [11, *hidden, 5], **options)
            targets = model.targets(PROBLEM.labels, PROBLEM.split)
            X = dg.scatter(PROBLEM.X, model.input_layout)
            passes.clear()
            found = losses(model, X, targets)
            assert passes == 3 * by_products, (hidden, aware)
            records = PROBLEM.reference(hidden, **options).train(
                PROBLEM.X, PROBLEM.labels, PROBLEM.split, 3, "adam", 0.05, evaluate=False
            )
            np.testing.assert_allclose(found, [record["loss"] for record in records], rtol=1e-9)
    grid.free()


def widths_multiplied(model, X, targets, **options) -> list[int]:
    """Count the columns that A and its transpose multiplied per epoch, from this rank's flops."""
    nonzeros = PROBLEM.A.nnz
    columns = []
    epochs = train(model, X, targets, make("sgd", 0.01), 3, eval_every=0, **options)
    for _ in range(3):
        with dg.Ledger() as ledger:
            next(epochs)
        columns.append(
            sum(entry["flops"] for entry in ledger.entries() if entry["phase"] == "spmm") // (2 * nonzeros)
        )
    return columns


@pytest.mark.ranks(1)
@pytest.mark.parametrize(("dropout", "train_features", "hidden", "first", "steady"), [
    # widths 11-8-7-5: A X once, later the outgoing widths 7 and 5 in both directions
    (0.0, False, (8, 7), 11 + 2 * 7 + 2 * 5, 2 * 7 + 2 * 5),
    # dropout changes A X in every epoch, but needs no backward product in the first layer: 11 against twice 8
    (0.5, False, (8, 7), 11 + 2 * 7 + 2 * 5, 11 + 2 * 7 + 2 * 5),
    # the gradient of the features is wanted: twice 8 against twice 11
    (0.0, True, (8, 7), 2 * 8 + 2 * 7 + 2 * 5, 2 * 8 + 2 * 7 + 2 * 5),
    # a layer that widens aggregates first
    (0.5, False, (4, 20), 2 * 4 + 2 * 4 + 2 * 5, 2 * 4 + 2 * 4 + 2 * 5),
])  # fmt: skip
def test_the_narrower_matrix_is_multiplied(comm, backend, dropout, train_features, hidden, first, steady):
    grid = make_grid(comm, "1d", backend=backend)
    model, X, targets = PROBLEM.model(grid, "1d", hidden=hidden, dropout=dropout)
    assert widths_multiplied(model, X, targets, train_features=train_features) == [first, steady, steady]


@pytest.mark.ranks(1)
@pytest.mark.parametrize(("options", "features", "expected"), [
    ({"dropout": 0.5}, False, 8 + 7 + 5),  # where training multiplies A by 11 columns of dropped features
    ({}, False, 7 + 5),  # A X is kept
    ({"keep_aggregate": False}, True, 8 + 7 + 5),
    ({"dropout": 0.5, "product_order": AGGREGATE}, False, 11 + 8 + 7),
])  # fmt: skip
def test_a_pass_that_scores_counts_its_own_products_alone(comm, backend, options, features, expected):
    """The logits are those of a pass of training, to rounding."""
    grid = make_grid(comm, "1d", backend=backend)
    model, X, targets = PROBLEM.model(grid, "1d", **options)
    seen, of_training = model.evaluate(X, targets, features), dg.gather(model.forward(X, keep=True))
    model.drop()
    for _ in range(2):
        with dg.Ledger() as ledger:
            assert model.evaluate(X, targets, features) == seen
        flops = sum(entry["flops"] for entry in ledger.entries() if entry["phase"] == "spmm")
        assert flops == 2 * PROBLEM.A.nnz * expected
    np.testing.assert_allclose(dg.gather(model.forward(X)), of_training, rtol=1e-9, atol=1e-12)
    grid.free()


@pytest.mark.ranks(1)
def test_forced_orders_cost_what_the_formula_says(comm, backend):
    grid = make_grid(comm, "1d", backend=backend)
    shapes = [(11, 8), (8, 7), (7, 5)]
    for order in (AGGREGATE, TRANSFORM):
        model, X, targets = PROBLEM.model(grid, "1d", product_order=order, keep_aggregate=False)
        expected = sum(sparse_width(order, shape, index > 0, False) for index, shape in enumerate(shapes))
        assert widths_multiplied(model, X, targets) == [expected] * 3


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_kept_aggregate_is_dropped_when_features_are_trained(comm, name, backend):
    """After epochs that changed the features, an aggregate from before is of another matrix."""
    model, X, targets = PROBLEM.model(wide_grid(comm, name, backend), name, product_order="aggregate-first")
    model.gradients(X, targets)
    list(train(model, X, targets, make("sgd", 5.0), 2, train_features=True))
    found, *_ = model.gradients(X, targets)
    fresh, _, _ = PROBLEM.model(model.grid, name)
    fresh.set_weights(model.get_weights())
    expected, *_ = fresh.gradients(X, targets)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.ranks(1, 4)
def test_a_kept_aggregate_is_that_of_the_matrix_and_the_features(comm, backend):
    grid = wide_grid(comm, "1d", backend)
    model, X, _ = PROBLEM.model(grid, "1d")
    A, other, kept = model.A, dg.distribute(2 * PROBLEM.A, grid, "1d"), FixedAggregate()
    buffers = SimpleNamespace(hold=lambda name, T: T)
    first = kept.multiply(A, X, buffers)
    assert kept.multiply(A, X, buffers) is first
    for matrix, features in ((other, X), (other, X.like(2 * X.block)), (A, X)):
        found, expected = kept.multiply(matrix, features, buffers), dg.gather(matrix @ features)
        np.testing.assert_array_equal(dg.gather(found), expected)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("layers", [2, 3, 5, 8])
@pytest.mark.parametrize("name", REPLICATED[:2])
def test_a_network_of_equal_widths_borrows_one_buffer_per_layer(comm, name, backend, layers):
    """And what a product receives into. MG-GCN section 4.2: L + 3 buffers with A X and two panels."""
    width = PROBLEM.classes
    grid = wide_grid(comm, name, backend)
    A = dg.distribute(PROBLEM.A, grid, name)
    rooms = received(A, width)
    model = dg.nn.GCN(A, [width] * (layers + 1))
    targets = model.targets(PROBLEM.labels, PROBLEM.split)
    X = dg.scatter(PROBLEM.X[:, :width], model.input_layout)
    list(train(model, X, targets, make("adam"), 3))
    assert grid.workspace.borrowed == layers * X.block.nbytes + rooms


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", REPLICATED[:2])
def test_a_narrow_last_layer_takes_no_wide_buffer(comm, name, backend):
    """Two matrices are wide at a time, A H of a layer and H of it or of the next one: where both orders
    multiply as many columns, the layer aggregates first. Beside them is what a product receives into, or H W
    and A (H W) of the last layer. The gradient of H lies in the place of H, beside S = A'G.
    """
    grid = wide_grid(comm, name, backend)
    A = dg.distribute(PROBLEM.A, grid, name)
    wide, narrow = 4 * PROBLEM.classes, PROBLEM.classes
    rooms = received(A, narrow), received(A, wide)
    model = dg.nn.GCN(A, [narrow, wide, wide, narrow])
    targets = model.targets(PROBLEM.labels, PROBLEM.split)
    X = dg.scatter(PROBLEM.X[:, :narrow], model.input_layout)
    list(train(model, X, targets, make("adam"), 3, eval_every=0))
    column = len(X.block) * X.dtype.itemsize
    most = max(2 * narrow * column + rooms[0], rooms[1])
    assert grid.workspace.borrowed == 2 * wide * column + most


@pytest.mark.ranks(1)
def test_of_equals_the_order_with_less_memory_is_taken(comm):
    """But for features, which stay, and with ELU, whose gradient reads H."""
    A = dg.distribute(PROBLEM.A, make_grid(comm, "1d"), "1d")

    def orders(**options):
        model = dg.nn.GCN(A, [8, 8, 8, 4], **options)
        return [layer.order(A, True, False) for layer in model.layers]

    assert orders() == orders(layer_norm=True) == orders(recompute=2) == [TRANSFORM, AGGREGATE, TRANSFORM]
    assert orders(activation="elu") == 3 * [TRANSFORM]


@pytest.mark.ranks(4)
def test_panels_of_wide_features_go_with_their_product(comm, backend, monkeypatch):
    for small in ("joined_panels", "joined_panels_on_device"):  # else one panel has the rows of all others
        monkeypatch.setattr(TUNING, small, 0)
    grid = wide_grid(comm, "1d", backend)
    model = dg.nn.GCN(dg.distribute(PROBLEM.A, grid, "1d"), [PROBLEM.X.shape[1], 2, PROBLEM.classes])
    targets = model.targets(PROBLEM.labels, PROBLEM.split)
    X = dg.scatter(PROBLEM.X, model.input_layout)
    with grid.workspace.noted() as notes:
        model.gradients(X, targets)
    model.gradients(X, targets)
    rows = max(grid.world.gather_objects(len(X.block)))
    widest = max(2, PROBLEM.classes)
    assert max(note.size for note in notes) > rows * widest * X.dtype.itemsize
    assert max(buffer.size for buffer in grid.workspace._buffers) <= rows * widest * X.dtype.itemsize


@pytest.mark.ranks(1)
def test_unknown_order_is_refused(comm, backend):
    with pytest.raises(ValueError, match="product_order"):
        PROBLEM.model(make_grid(comm, "1d", backend=backend), "1d", product_order="narrow")
    with pytest.raises(dg.UserError, match="can only do aggregate-first"):
        PROBLEM.model(make_grid(comm, "3d", backend=backend), "3d", product_order="transform-first")
