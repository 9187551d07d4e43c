"""Dry runs for GPUs keep every kernel that a run launches, and matrices of 16 bits where a run has them."""

from __future__ import annotations

import collections
from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

import distgnn as dg
from distgnn import gallery
from distgnn.arrays import backend
from distgnn.nn import NETWORKS, Adam
from distgnn.plan import Graph, plan
from distgnn.plan.clock import estimate, kernels
from distgnn.plan.cost_model import compute_seconds
from distgnn.plan.dry.backend import SHAPES
from distgnn.plan.dry.queued import HOPPER_SHAPES, QUEUED_SHAPES
from distgnn.plan.dry.recorder import OTHER, ROUNDED, ProgramStep, Recorder
from distgnn.plan.dry.run import dry_run
from distgnn.plan.machine import Spmm, SpmmRates, read
from distgnn.plan.pricing import arrays_of
from distgnn.train.full_graph import train
from distgnn.train.settings import Settings
from loops import each

from .machines import slow
from .test_cost_model import machine as bytes_alone

ON = QUEUED_SHAPES
BITS = {"wire": "bfloat16"}
MIXED = BITS | {"mixed_precision": True}
DEGREE = 8


def planned(n=300, widths=(16, 16, 5), on=ON, **given):
    """Return the costs of one rank."""
    A = gallery.rmat(n, degree=DEGREE).A.astype(np.float32)
    graph = Graph.known(A, widths[0], widths[-1], np.zeros(n, np.int32), np.ones(n, np.uint8))
    s = Settings(recipe="plain", hidden=widths[1:-1], eval_every=0, algorithm="1d", **given)
    return dry_run(s, graph, 1, evaluation=False, on=on).ranks[0]


def counted(costs, phase=None):
    """Count the steps by operation."""
    steps = [step for step in costs.epoch.steps if phase in (None, step.phase)]
    return collections.Counter(step.operation for step in steps)


def f32(*shape):
    return ON.empty(shape, np.float32)


def ones_added(X):
    X[1:] += 1


def rows_copied(X):
    X[:2] = X[2:]


# -- what is done with an array is a kernel ------------------------------------------------------------------


@each(
    "do, kept",
    [(lambda X: X + X, ("add", 240)), (lambda X: X * 2, ("multiply", 160)),
     (lambda X: X.copy(), ("copy", 160)), (ones_added, ("add", 120)), (rows_copied, ("copy", 80)),
     (lambda X: X.__setitem__(0, 1), ("fill", 20)),
     (lambda X: X[1:].T.reshape(-1), None), (lambda X: X.sum(axis=0), ("reduce", 100)),
     (lambda X: X[np.arange(3)], ("take", 120)), (lambda X: X.astype(np.float64), ("astype", 240)),
     (lambda X: X.astype(np.float32, copy=False), None), (lambda X: X[:0] + 1, None),
     (lambda X: ON.xp.concatenate([X, X]), ("concatenate", 320)),
     (lambda X: ON.zeros((3,), "i4"), ("zeros", 12)),
     (lambda X: ON.xp.where(X > 0, X, 0), ("where", 180)), (lambda X: ON.empty((3,), "i4"), None)],
)  # fmt: skip
def test_a_function_of_whole_arrays_is_a_kernel_with_their_bytes(do, kept):
    X = f32(4, 5)
    with Recorder() as book:
        do(X)
    last = [(step.operation, step.touched) for step in book.steps if step.operation != "greater"]
    assert last == ([kept] if kept else []) and all(step.phase == OTHER for step in book.steps)


def test_what_follows_from_arrays_of_a_device_is_of_the_device():
    X = f32(4, 5)
    for made in (X.T, X[1:], X[0], X + 1, X.sum(), X.reshape(-1), X.copy(), ON.xp.arange(3), X[0][1]):
        assert backend.of(made) is ON
    assert backend.of(SHAPES.empty((2,), int) + 1) is SHAPES
    with Recorder() as book:
        SHAPES.empty((2,), int) + SHAPES.xp.zeros(2)
    assert not book.steps


@pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)
@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gatv2"])
def test_a_dry_run_keeps_as_many_kernels_as_a_run_launches(stand_in, model, monkeypatch):
    """ELU is several on CuPy, and one charge; ends of sparse products are passes of a dry run."""
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "0")
    n, widths = 300, (16, 16, 5)
    grid = dg.Grid(MPI.COMM_SELF, backend="cupy", rows=1)
    network = NETWORKS[model](dg.distribute(gallery.rmat(n, degree=DEGREE).A.astype("f"), grid, "1d"), widths)
    targets = network.targets(np.zeros(n, np.int32), np.ones(n, np.uint8))
    X = dg.scatter(np.ones((n, widths[0]), np.float32), network.input_layout)
    epochs = train(network, X, targets, Adam(0.01), 5, eval_every=0)
    for _ in range(4):
        next(epochs)
    with stand_in.observed() as seen:
        next(epochs)
    launches = sum(seen.launches.values())
    assert 0.8 * launches <= kernels(planned(n, widths, model=model).epoch.steps) <= 1.05 * launches
    grid.free()


def test_an_update_is_one_kernel_and_messages_are_none():
    steps = [ProgramStep("optimizer", "step", "", "", touched=size) for size in (4, 4, 8)]
    sent = ProgramStep("comm", "allreduce", "world", "loss", 8.0, 1)
    dense = ProgramStep("gemm", "gemm", "", "", touched=4, shape=(1, 1, 1))
    assert kernels([dense, dense, sent, *steps, dense, *steps]) == 2 + 1 + 1 + 1
    assert kernels([]) == 0


@each("given", [{}, {"model": "gat"}, {"wire": "bfloat16"}])
def test_hosts_keep_what_is_charged_alone(given):
    costs = planned(on=SHAPES, **given)
    assert not counted(costs, OTHER) and not counted(costs)[ROUNDED]


# -- ends of products, CUDA graphs ---------------------------------------------------------------------------


@each("on, n, passes", [(QUEUED_SHAPES, 8192, 4), (HOPPER_SHAPES, 8192, 1), (HOPPER_SHAPES, 300, 4)])
def test_tall_dense_products_end_layers_on_hopper(on, n, passes):
    costs = planned(n, (32, 32, 32, 16), on, keep_aggregate=False)
    assert counted(costs, "activation").total() == passes


def test_the_arrays_of_a_machine_are_those_of_its_gpus():
    assert [arrays_of(read(name)) for name in ("infiniband-cpu", "dgx-a100", "h100", "h200")] == [
        SHAPES, QUEUED_SHAPES, HOPPER_SHAPES, HOPPER_SHAPES,
    ]  # fmt: skip


def test_between_kernels_of_cuda_graphs_are_gaps():
    on = replace(bytes_alone(1.0), launch=7.0, update=1.0, captured=0.5, gap=2.0)
    steps = [ProgramStep("activation", "", "", "", touched=3), ProgramStep(OTHER, "add", "", "", touched=5)]
    queued, graphs = (estimate(some, {"rows": 1}, [steps]) for some in (on, on.graphed()))
    assert (queued.kernels, queued.seconds) == (2, 3 + 5 + 1)  # a host queues one of them by itself
    assert (graphs.kernels, graphs.seconds) == (2, 3 + 5 + 0.5 + 2 * 2)


# -- 16 bits -------------------------------------------------------------------------------------------------


@each("on", [QUEUED_SHAPES, HOPPER_SHAPES])
def test_products_read_16_bits_where_a_run_does(on):
    n, widths = 8192, (32, 32, 32, 16)
    costs = [planned(n, widths, on, keep_aggregate=False, **given)
             for given in ({}, BITS, MIXED)]  # fmt: skip
    exact, rounded, mixed = (counted(each_of) for each_of in costs)
    assert exact["spmm"] == rounded[ROUNDED] == mixed[ROUNDED] > 0 == exact[ROUNDED] == rounded["spmm"]
    assert exact["round"] == 0 < rounded["round"] <= mixed["round"]
    assert (rounded["round"] == 1) == (on is HOPPER_SHAPES)
    if on is HOPPER_SHAPES:  # whose products write what others read
        assert mixed["round"] == 1
    memory = [sum(each_of.peak.values()) for each_of in costs]
    assert memory[2] < memory[0]
    touched = [sum(step.touched for step in each_of.epoch.steps if step.phase == "gemm") for each_of in costs]
    assert touched[2] < touched[1] <= touched[0]


@each("widths", [(16, 7, 3), (3, 1, 2), (16, 8, 5)])
@each("given", [MIXED, MIXED | {"bias": True}, BITS | {"model": "gat", "heads": 1}, BITS | {"model": "sage"}])
@each("on", [QUEUED_SHAPES, HOPPER_SHAPES])
def test_any_width_and_network_can_be_planned_in_16_bits(on, given, widths):
    found = counted(planned(50, widths, on, **given))
    assert found["spmm"] == 0 < found[ROUNDED] or given.get("model") == "gat"


def test_reads_of_16_bits_have_rates_of_their_own_and_half_the_bytes():
    rates = [SpmmRates(cost, 0.0, 0.0, 0.0) for cost in (1.0, 10.0)]
    spmm = Spmm(0.0, 140.0, *rates)  # of B's 280 bytes, or 140
    step = ProgramStep("spmm", "spmm", "", "", shape=(3, 10, 5, 7))
    on, halved = replace(bytes_alone(1.0), spmm=spmm), step._replace(operation=ROUNDED)
    assert compute_seconds(on, step) == pytest.approx(5 * (0.5 * 1 + 0.5 * 10))
    assert compute_seconds(on, halved) == pytest.approx(5)
    own = replace(on, rounded=replace(spmm, cached=SpmmRates(3.0, 0.0, 0.0, 0.0)))
    assert compute_seconds(own, halved) == pytest.approx(15)
    assert compute_seconds(own, step) == compute_seconds(on, step)


def test_plans_for_hosts_and_several_gpus_refuse_mixed_precision():
    s = Settings(recipe="plain", hidden=(8,), algorithm="1d", wire="bfloat16", mixed_precision=True)
    for ranks, on in ((2, replace(slow(), launch=1e-5)), (1, slow())):
        found = plan(s, Graph.of_size(300, 3000, 8, 4), ranks, on)
        assert not found.choices and "is for one rank, which has a GPU" in found.infeasible[0].reason


@each(
    "f, ms",
    [(16, 0.3356), (64, 0.5678), (128, 1.148),
     (256, 2.186)],
)  # fmt: skip
def test_rates_of_an_h200_are_those_of_its_table_of_16_bits(f, ms):
    """Products of uniform-20 of gpu.md, as near as three numbers beside those of float32 come."""
    step = ProgramStep("spmm", ROUNDED, "", "", shape=(1 << 20, 1 << 20, 1 << 24, f))
    assert 1e3 * compute_seconds(read("h200"), step) == pytest.approx(ms, rel=0.32)
