"""Matrices that products write in 16 bits: the bits of passes that round them, in fewer passes."""

from __future__ import annotations

import importlib
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn.arrays.tuning import TUNING
from distgnn.arrays.workspace import Workspace
from distgnn.comm.narrow import check_overflow
from distgnn.errors import WireOverflowError
from distgnn.local import cuda
from distgnn.nn.buffers import LayerProducts
from distgnn.nn.networks import NETWORKS
from distgnn.nn.optim import make
from distgnn.operators import make_grid
from distgnn.train.full_graph import train
from loops import each
from train.test_epoch_graph import stand_in_of_cublas

pytestmark = [pytest.mark.ranks(1), pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)]

N, WIDTH, CLASSES = 40, 17, 18
NARROW = importlib.import_module("distgnn.local.cuda.narrow")  # the package has a function of this name
AGGREGATE, TRANSFORM = ({"product_order": f"{first}-first"} for first in ("aggregate", "transform"))
EVEN = {"widths": [24, 24]}
#: With "auto" the second layer aggregates first, the others transform first.
WAYS = [
    {}, {"wire": "float16"}, AGGREGATE, TRANSFORM, {"dropout": 0.4}, {"dropout": 0.4} | AGGREGATE,
    {"bias": True}, {"bias": True} | AGGREGATE, {"layer_norm": True}, {"activation": "elu"},
    {"residual": True} | EVEN, {"recompute": 2}, {"recompute": 2} | AGGREGATE, {"network": "sage"},
    {"algorithm": "3d"}, {"widths": [20, 33, 17]}, {"algorithm": "2d"} | TRANSFORM, {"algorithm": "1.5d"},
    {"wire": "float16"} | TRANSFORM,
]  # fmt: skip
#: By order the widths of what passes round in two epochs: the features, where A X is kept; and without rooms
#: of 16 bits all that sparse products read.
PASSES = {
    "aggregate-first": ([17], [17, *[24, 32, 16, 16, 32, 24] * 2]),
    "transform-first": ([], [24, 32, 16, 18, 18, 16, 32, 24] * 2),
}


@pytest.fixture(autouse=True)
def untuned(monkeypatch):
    """Take the first candidates of products, and matrices of 20 rows for tall ones."""
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "0")
    monkeypatch.setattr(TUNING, "long_dimension", 20)


@contextmanager
def rounding_apart():
    """Let nothing but passes round."""
    with pytest.MonkeyPatch.context() as patch:
        nothing = property(lambda plan: (), lambda plan, names: None)
        patch.setattr(LayerProducts, "rounded", nothing, raising=False)
        yield


@contextmanager
def passes():
    """Give the widths of matrices that passes round, one after the other."""
    widths, round_into = [], NARROW.round_into

    def noted(X, out):
        widths.append(X.shape[1])
        round_into(X, out)

    with pytest.MonkeyPatch.context() as patch:
        for place in (NARROW, cuda):
            patch.setattr(place, "round_into", noted)
        yield widths


def trained(
    comm, wire="bfloat16", network="gcn", algorithm="1d", widths=(24, 32, 16), mixed=False, epochs=2,
    cuda_graph=False, labels=None, **options,
):  # fmt: skip
    """Return losses of some epochs, after which no memory is lent, and the bytes of what was trained.

    ``labels``: numbers of a node, or several classes; default: one class.
    """
    random = np.random.default_rng(0)
    A = sp.random_array((N, N), density=0.1, rng=random, format="csr", dtype=np.float32)
    grid = make_grid(comm, algorithm, backend="cupy", wire=wire)
    grid.mixed = mixed
    made = dg.distribute(A, grid, algorithm)
    model = NETWORKS[network](made, [WIDTH, *widths, CLASSES], **options)
    labels = random.integers(0, CLASSES, N) if labels is None else labels
    targets = model.targets(labels, np.ones(N, np.uint8))
    X = dg.scatter(random.standard_normal((N, WIDTH)).astype(np.float32), model.input_layout)
    records = train(model, X, targets, make("adam"), epochs, cuda_graph=cuda_graph)
    losses = [record["loss"] for record in records]
    assert not grid.workspace._lent
    return losses, [grid.backend.to_host(p.block).tobytes() for p in model.parameters]


@each("way", WAYS)
def test_equal_bits(comm, stand_in, way):
    got = trained(comm, **way)
    with rounding_apart():
        assert trained(comm, **way) == got
    assert trained(comm, **way | {"wire": None}) != got


@each("order", PASSES)
def test_passes_that_are_left(comm, stand_in, order):
    expected, apart = PASSES[order]
    with passes() as widths:
        trained(comm, product_order=order)
    assert widths == expected
    with passes() as widths, rounding_apart():
        trained(comm, product_order=order)
    assert widths == apart


def test_products_that_cannot_round_leave_it_to_a_pass(comm, stand_in, monkeypatch):
    """Dense products are those of cuBLAS, as on GPUs other than Hopper."""
    monkeypatch.setattr(TUNING, "long_dimension", 1 << 20)
    for way in ({"dropout": 0.4} | AGGREGATE, TRANSFORM):
        got = trained(comm, **way)
        with rounding_apart():
            assert trained(comm, **way) == got


@each("mixed", [False, True])
@each("labels", [np.eye(N, CLASSES, dtype=int), np.ones((N, CLASSES), np.float32)])
def test_other_losses_have_gradients_in_float32(comm, stand_in, labels, mixed):
    for order in (AGGREGATE, TRANSFORM):
        got = trained(comm, mixed=mixed, labels=labels, **order)
        if not mixed:
            with rounding_apart():
                assert trained(comm, labels=labels, **order) == got
        exact, _ = trained(comm, wire=None, labels=labels, **order)
        np.testing.assert_allclose(got[0], exact, rtol=0.02)


@each("mixed", [False, True])
@each("wire", [None, "bfloat16"])
def test_targets_of_another_graph_leave_no_memory_lent(comm, stand_in, wire, mixed):
    grid = make_grid(comm, "1d", backend="cupy", wire=wire)
    grid.mixed = mixed
    made = (sp.eye_array(n, format="csr", dtype=np.float32) for n in (N, N + 1))
    model, other = (
        NETWORKS["gcn"](dg.distribute(A, grid, "1d"), [WIDTH, 24, CLASSES], **TRANSFORM) for A in made
    )
    X = dg.scatter(np.ones((N, WIDTH), np.float32), model.input_layout)
    with pytest.raises(ValueError, match="a partition vector must rise"):
        model.gradients(X, other.targets(np.zeros(N + 1, int), np.ones(N + 1, np.uint8)), 1)
    model.drop()
    assert not grid.workspace._lent


def test_numbers_that_do_not_fit_are_seen(comm, stand_in):
    """A product that rounds says so, as a pass does."""
    with pytest.raises(WireOverflowError, match="in a panel or sum of the forward pass is too large"):
        grid = make_grid(comm, "1d", backend="cupy", wire="float16")
        A = dg.distribute(sp.eye_array(N, format="csr", dtype=np.float32), grid, "1d")
        model = NETWORKS["gcn"](A, [WIDTH, 24, CLASSES], **TRANSFORM)
        model.set_weights([np.full((WIDTH, 24), 500, np.float32), np.zeros((24, CLASSES), np.float32)])
        X = dg.scatter(np.full((N, WIDTH), 50, np.float32), model.input_layout)
        model.forward(X)


@each("mixed", [False, True])
def test_sums_of_gradients_of_16_bits_are_mixed_precision(comm, stand_in, mixed):
    """Gradients of biases are sums of columns, which have float32 in any other precision."""
    with passes() as widths:
        trained(comm, bias=True, mixed=mixed, **TRANSFORM)
    assert widths == ([] if mixed else [18, 16, 32, 24] * 2)


def test_a_gradient_that_does_not_fit_is_one_where_another_matrix_was(comm, stand_in):
    """dT, which a product puts in the place of T, is of the backward pass."""
    grid = make_grid(comm, "1d", backend="cupy", wire="float16")
    grid.mixed = True
    A = dg.distribute(sp.eye_array(N, format="csr", dtype=np.float32), grid, "1d")
    model = NETWORKS["gcn"](A, [WIDTH, 24, CLASSES], **AGGREGATE)
    model.set_weights([np.full((WIDTH, 24), 0.01, np.float32), np.full((24, CLASSES), 300, np.float32)])
    Z = model.forward(dg.scatter(np.ones((N, WIDTH), np.float32), model.input_layout), 1, keep=True)
    G = Z.like(Z.block * 0 + 100)
    model.backward(G, 1)
    with pytest.raises(WireOverflowError, match="a gradient of the backward pass is too large"):
        check_overflow(grid)


@each("way", WAYS)
def test_mixed_precision(comm, stand_in, way):
    """Losses of networks whose matrices have 16 bits, with our dense products and with others, are near."""
    exact, _ = trained(comm, **way | {"wire": None}, epochs=4)
    mixed, weights = trained(comm, **way, mixed=True, epochs=4)
    np.testing.assert_allclose(mixed, exact, rtol=0.02)
    if way.get("algorithm") == "3d" or way.get("network") == "sage":
        assert (mixed, weights) == trained(comm, **way, epochs=4)
        return
    assert mixed != trained(comm, **way, epochs=4)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TUNING, "long_dimension", 1 << 20)
        np.testing.assert_allclose(trained(comm, **way, mixed=True, epochs=4)[0], exact, rtol=0.02)


def test_as_cuda_graphs(comm, stand_in, monkeypatch):
    """Captured epochs round into the memory that they were captured with."""
    stand_in_of_cublas(monkeypatch)
    for way in (AGGREGATE, TRANSFORM | {"dropout": 0.4}, TRANSFORM | {"mixed": True}):
        assert trained(comm, **way, epochs=6, cuda_graph=True) == trained(comm, **way, epochs=6)


def test_mixed_precision_takes_half_the_memory(comm, stand_in, monkeypatch):
    """All matrices have 16 bits but the logits."""
    lent = []
    borrow = Workspace.borrow

    def noted(self, shape, dtype):
        lent.append((shape, np.dtype(dtype).itemsize))
        return borrow(self, shape, dtype)

    monkeypatch.setattr(Workspace, "borrow", noted)
    for order in (AGGREGATE, TRANSFORM, AGGREGATE | {"bias": True}, TRANSFORM | {"bias": True}):
        lent.clear()
        trained(comm, mixed=True, **order)
        sizes = [size for shape, size in lent if shape[0] == N and shape[1:] != (CLASSES,)]
        assert set(sizes) == {2} and len(sizes) > 15
