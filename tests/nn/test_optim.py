"""Optimisers on blocks, against the update rules written out for whole arrays."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

import distgnn as dg
from distgnn.arrays.tuning import TUNING
from distgnn.layout import Cut, Layout
from distgnn.nn.finite import NotFiniteError
from distgnn.nn.optim import OPTIMIZERS, Parameter, make


def parameters(backend):
    r = np.random.default_rng(0)
    shapes = {"W0": (5, 4), "W1": (4, 3), "b0": (1, 4), "X": (9, 5)}
    kinds = {"W0": (0, "weight"), "W1": (1, "weight"), "b0": (0, "bias"), "X": (0, "features")}
    return [
        Parameter(name, *kinds[name], whole(r.standard_normal(shape), backend))
        for name, shape in shapes.items()
    ]


def whole(array, backend):
    """Return a matrix that is all on this rank."""
    layout = Layout(dg.Grid(MPI.COMM_SELF, backend=backend), Cut(), Cut())
    return dg.DistDense(backend.asarray(array), layout, array.shape)


def gradients(step, backend):
    r = np.random.default_rng(100 + step)
    return [backend.asarray(r.standard_normal(p.block.shape)) for p in parameters(backend)]


def expected(name, w, gs, lr, decay, momentum):
    """Update one array as the textbook does, written without any state in place."""
    m = v = velocity = 0.0
    for t, g in enumerate(gs, start=1):
        if name == "adamw":
            w = w - lr * decay * w
        else:
            g = g + decay * w
        if name == "sgd":
            velocity = momentum * velocity + g
            w = w - lr * velocity
        else:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            w = w - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_three_steps(name, momentum, backend, monkeypatch, passes):
    """Weight decay differs by layer and leaves biases and features alone; pieces end within the arrays."""
    if momentum and name != "sgd":
        pytest.skip("only sgd has a momentum")
    monkeypatch.setattr(TUNING, "cached_numbers", 8)
    monkeypatch.setattr(TUNING, "launched_numbers", 8)
    optimizer, trained = make(name, 0.1, [0.5, 0.25], momentum), parameters(backend)
    for step in range(3):
        optimizer.step(trained, gradients(step, backend))
    for i, (p, start) in enumerate(zip(trained, parameters(backend), strict=True)):
        gs = [backend.to_host(gradients(step, backend)[i]) for step in range(3)]
        decay = {"W0": 0.5, "W1": 0.25}.get(p.name, 0.0)
        result = expected(name, backend.to_host(start.block), gs, 0.1, decay, momentum)
        np.testing.assert_allclose(backend.to_host(p.block), result, rtol=1e-12)


def test_the_last_weight_decay_repeats(backend):
    optimizer = make("sgd", 0.1, [0.5])
    assert [optimizer.decay(p) for p in parameters(backend)] == [0.5, 0.5, 0.0, 0.0]
    assert make("sgd", 0.1, 0.3).decay(parameters(backend)[1]) == 0.3


def test_float32_stays_float32(backend, passes):
    p = Parameter("W0", 0, "weight", whole(np.ones((3, 2), np.float32), backend))
    for name in OPTIMIZERS:
        optimizer = make(name, 0.1, 0.1)
        optimizer.step([p], [backend.asarray(np.ones((3, 2), np.float32))])
        assert p.block.dtype == np.float32
        assert all(slot.dtype == np.float32 for slot in optimizer.state["W0"].values())


def test_gradients_are_clipped_to_a_norm_of_all_together(backend, passes):
    """Before weight decay; smaller ones stay; what is not finite is named, not spread."""
    norm = np.sqrt(sum(float((backend.to_host(g) ** 2).sum()) for g in gradients(0, backend)))
    for most, factor in ((norm / 4, 0.25), (norm * 2, 1.0)):
        optimizer, trained = make("sgd", 0.1, 0.5, clip=most), parameters(backend)
        with dg.Ledger() as ledger:
            optimizer.step(trained, gradients(0, backend))
        assert [e["words"] for e in ledger.entries() if e["matrix"] == "norm"] == [0]  # of one rank
        for p, start, g in zip(trained, parameters(backend), gradients(0, backend), strict=True):
            w, g = backend.to_host(start.block), backend.to_host(g)
            result = w - 0.1 * (factor * g + (0.5 * w if p.kind == "weight" else 0))
            np.testing.assert_allclose(backend.to_host(p.block), result, rtol=1e-12)
    for bad in (np.nan, np.inf, 1e300):
        wrong = gradients(0, backend)
        wrong[0][0, 0] = bad
        with pytest.raises(NotFiniteError, match=r"layer 0: the gradient of the weights is not finite"):
            make("sgd", 0.1, clip=1.0).step(parameters(backend), wrong)


@pytest.mark.parametrize(
    "arguments",
    [("lion", 0.1), ("adam", 0.0), ("adam", float("nan")), ("adam", 0.1, -1.0), ("adam", 0.1, [0.1, -1.0]),
     ("adam", 0.1, []), ("adam", 0.1, 0.0, 0.0, 0.0), ("adam", 0.1, 0.0, 0.0, float("inf")),
     ("sgd", 0.1, 0.0, 1.0), ("adam", 0.1, 0.0, 0.9)],
    ids=str,
)  # fmt: skip
def test_bad_settings_are_refused(arguments):
    with pytest.raises(dg.UserError, match=r"^(optimizer|lr|weight_decay|momentum|clip)="):
        make(*arguments)
