"""The network as an object: shapes, global weights, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import wide_grid
from distgnn.layout import NodeOrder
from distgnn.nn.products import AGGREGATE, TRANSFORM, AggregateFirst, TransformFirst
from distgnn.operators import make_grid
from distgnn.operators.sources import MatrixSource

from .problem import ALGORITHMS, Problem, received

PROBLEM = Problem()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_weights_are_global_and_come_back(comm, name, backend):
    """Plain lists of matrices, equal on every rank, the same for every algorithm and rank count."""
    model, X, _ = PROBLEM.model(wide_grid(comm, name, backend), name, bias=True, seed=5)
    reference = PROBLEM.reference(seed=5, bias=True)
    weights = model.get_weights()
    assert [W.shape for W in weights] == [(11, 8), (8, 7), (7, 5)]
    for ours, theirs in zip(weights, reference.weights, strict=True):
        assert isinstance(ours, np.ndarray)
        np.testing.assert_array_equal(ours, theirs)
    r = np.random.default_rng(1)
    new = [r.standard_normal(W.shape) for W in weights]
    biases = [r.standard_normal(b.shape) for b in reference.biases]
    model.set_weights(new)
    model.set_biases(biases)
    for ours, theirs in zip(model.get_weights() + model.get_biases(), new + biases, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    reference.weights, reference.biases = new, biases
    Z = dg.gather(model.forward(X))
    if comm.Get_rank() == 0:
        np.testing.assert_allclose(Z, reference.forward(PROBLEM.X), rtol=1e-10, atol=1e-12)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("name", ["1d", "3d"])
def test_ids_that_one_rank_cannot_read_are_every_ranks_error(comm, name, backend):
    """Orders are read from files; where only one rank's part is damaged the others must not go on alone."""

    def permutation(first, last):
        if comm.Get_rank() == comm.Get_size() - 1:
            raise dg.UserError("permutation-0001.h5: truncated")
        return np.arange(first, last)

    source = MatrixSource(PROBLEM.A)
    source.row_order = source.col_order = NodeOrder("damaged", 0, permutation)
    A = dg.distribute(source, wide_grid(comm, name, backend), name)
    with pytest.raises(dg.UserError, match=r"permutation-0001.h5: truncated"):
        dg.nn.GCN(A, [PROBLEM.width, PROBLEM.classes])


@pytest.mark.ranks(1, 2)
def test_setting_weights_copies_them(comm, backend):
    model, _, _ = PROBLEM.model(make_grid(comm, "1d", backend=backend), "1d")
    weights = model.get_weights()
    model.set_weights(weights)
    for W in weights:
        W[...] = 0
    assert all(W.any() for W in model.get_weights())


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ["1d", "3d"])
def test_wrong_weights_raise_on_every_rank(comm, name, backend):
    """Also where only one rank's weights are wrong."""
    model, _, _ = PROBLEM.model(wide_grid(comm, name, backend), name, bias=True)
    weights, biases = model.get_weights(), model.get_biases()
    last = comm.Get_rank() == comm.Get_size() - 1
    with pytest.raises((ValueError, RuntimeError), match="weights of shapes"):
        model.set_weights(weights[:-1])
    with pytest.raises((ValueError, RuntimeError), match="weights of shapes"):
        model.set_weights([W.T for W in weights] if last else weights)
    with pytest.raises((ValueError, RuntimeError), match="biases of shapes"):
        model.set_biases([b[:-1] for b in biases] if last else biases)
    for ours, before in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(ours, before)


@pytest.mark.ranks(1, 2)
def test_what_makes_no_sense_is_refused(comm, backend):
    grid = make_grid(comm, "1d", backend=backend)
    A = dg.distribute(PROBLEM.A, grid, "1d")
    for options in ({"widths": [11]}, {"widths": [11, 0, 5]}, {"widths": [11, 5], "dropout": 1.0}):
        with pytest.raises(ValueError, match=r"widths|dropout"):
            dg.nn.GCN(A, **options)
    with pytest.raises(ValueError, match="square"):
        dg.nn.GCN(dg.distribute(PROBLEM.A[:, :20], grid, "1d"), [11, 5])
    model, X, _ = PROBLEM.model(grid, "1d")
    with pytest.raises(ValueError, match="features are"):
        dg.nn.GCN(A, [9, 5]).forward(X)
    with pytest.raises(RuntimeError, match="keep=True"):
        model.backward(model.forward(X))


@pytest.mark.ranks(2)
def test_layers_that_do_not_fit_together_are_refused(comm, backend):
    """Rows cut otherwise than columns: fine for one product, but a layer's output is not the next one's
    input.
    """
    grid = make_grid(comm, "1d", backend=backend)
    A = dg.distribute(PROBLEM.A, grid, "1d", row_parts=[0, 3, PROBLEM.n])
    dg.nn.GCN(A, [11, 5])
    with pytest.raises(ValueError, match="equal partitions"):
        dg.nn.GCN(A, [11, 8, 5])


@pytest.mark.ranks(1, 4)
def test_evaluation_has_no_dropout_and_training_has_another_mask_every_epoch(comm, backend):
    model, X, _ = PROBLEM.model(make_grid(comm, "2d", backend=backend), "2d", dropout=0.5)
    logits = [backend.to_host(model.forward(X, epoch).block) for epoch in (None, 1, 2, 1)]
    plain, X, _ = PROBLEM.model(make_grid(comm, "2d", backend=backend), "2d")
    np.testing.assert_array_equal(logits[0], backend.to_host(plain.forward(X).block))
    np.testing.assert_array_equal(logits[1], logits[3])
    if logits[0].size:
        assert abs(logits[1] - logits[0]).max() > 1e-3 and abs(logits[2] - logits[1]).max() > 1e-3


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_backward_keeps_nothing(comm, name, backend):
    """Forward keeps as much for backward as the graph is large: all of it must be gone after backward."""
    model, X, targets = PROBLEM.model(wide_grid(comm, name, backend), name, dropout=0.5)
    model.gradients(X, targets, epoch=1)
    assert not model.buffers and not model.grid.workspace._lent


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ["1d", "3d"])
def test_a_forward_pass_without_backward_keeps_its_memory_until_the_next_pass(comm, name, backend):
    """The next pass finds all buffers free; of the first, backward has nothing left."""
    model, X, targets = PROBLEM.model(wide_grid(comm, name, backend), name, layer_norm=True)
    G = model.forward(X, keep=True)
    assert comm.allreduce(len(model.grid.workspace._lent)) > 0
    model.evaluate(X, targets)
    assert not model.grid.workspace._lent
    with pytest.raises(RuntimeError, match="keep=True"):
        model.backward(G)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("products", [AggregateFirst, TransformFirst])
def test_a_matrix_that_is_over_cannot_be_read(comm, backend, products, monkeypatch):
    """The memory of a matrix that is over holds another one.

    Gradients would be wrong without an error.
    """
    monkeypatch.setattr(products, "keeps", ())
    order = {AggregateFirst: AGGREGATE, TransformFirst: TRANSFORM}[products]
    grid = make_grid(comm, "1d", backend=backend)
    model, X, targets = PROBLEM.model(grid, "1d", product_order=order, keep_aggregate=False)
    with pytest.raises(RuntimeError, match="matrix [TH] of a layer is over"):
        model.gradients(X, targets)


@pytest.mark.ranks(1, 2)
def test_backward_has_the_masks_of_its_forward(comm, backend):
    """Without an epoch, or with another, gradients would be those of another function."""
    model, X, _ = PROBLEM.model(make_grid(comm, "1d", backend=backend), "1d", dropout=0.5)
    for epoch in (None, 2):
        G = model.forward(X, 1, keep=True)
        with pytest.raises(ValueError, match=f"backward in epoch {epoch}, forward in epoch 1"):
            model.backward(G, epoch)
    model.backward(model.forward(X, 2, keep=True), 2)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("partitions", [True, False])
def test_uneven_blocks(comm, backend, partitions):
    """Partition vectors with an empty block, as a partitioner may give them."""
    P = comm.Get_size()
    parts = [0, *sorted([5, 5, 30][: P - 1]), PROBLEM.n][: P + 1]
    given = {"row_parts": parts, "col_parts": parts} if partitions and P > 1 else {}
    A = dg.distribute(PROBLEM.A, make_grid(comm, "1d", backend=backend), "1d", **given)
    model = dg.nn.GCN(A, [11, 8, 5], dropout=0.4)
    Z = dg.gather(model.forward(dg.scatter(PROBLEM.X, model.input_layout), epoch=2))
    if comm.Get_rank() == 0:
        expected = PROBLEM.reference(hidden=(8,), dropout=0.4).forward(PROBLEM.X, epoch=2)
        np.testing.assert_allclose(Z, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ["1d", "2d", "3d"])
def test_gradients_lie_where_inputs_were(comm, backend, name):
    """Blocks of n/P rows of the widths of hidden layers, beside A X and what products and the loss receive
    into: two, and five in 3D on this grid.

    In 1D and 2D these are A H of layer 1, and its input or the next one's, and in 2D H W of the last layer
    beside a panel; in 3D A H of layers 1, of two blocks, and 2, in the place of which its gradient lies, and
    the gradient of H.
    """
    n, width = 256, 16
    rng = np.random.default_rng(0)
    A = sp.csr_array(np.where(rng.random((n, n)) < 0.05, rng.random((n, n)), 0))
    sizes = {"2d": {"rows": 2, "cols": 2}, "3d": {"x": 1, "y": 2, "z": 2}}.get(name)
    grid = make_grid(comm, name, sizes if comm.Get_size() == 4 else None, backend=backend)
    A = dg.distribute(A, grid, name)
    model, rooms = dg.nn.GCN(A, [width] * 3 + [4]), received(A, width) if name != "3d" else 0
    X = dg.scatter(rng.random((n, width)), model.input_layout)
    targets = model.targets(rng.integers(0, 4, n).astype(np.int32), np.ones(n, np.uint8))
    for _ in range(3):
        with dg.Ledger() as ledger:
            model.gradients(X, targets)
    if name == "3d" and grid.size > 1:  # classes are cut: the loss has two numbers of each training row
        rooms += 2 * 8 * len(targets.train_rows)
    blocks = (ledger.peak["layers"] - rooms) / (n * width * 8 / grid.size)
    bounds = {"1d": 2, "2d": 2.25, "3d": 5} if grid.size == 4 else {"1d": 2.5, "2d": 2.5, "3d": 3}
    assert blocks <= bounds[name]


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("options", [
    {"activation": "elu"}, {"layer_norm": True}, {"residual": True},
    {"train_features": True, "optimizer": "sgd"},
])  # fmt: skip
def test_what_gradients_overwrite_is_over(comm, backend, options):
    """Networks whose backward pass reads more than the bits of ReLU are trained beside the reference."""
    for name, hidden in (("1d", (8, 8, 8)), ("2d", (8, 8, 8)), ("3d", (6, 12, 6))):
        if name == "3d" and "residual" in options:
            continue
        PROBLEM.compare(wide_grid(comm, name, backend), name, hidden=hidden, **options)
