"""Plans for GPUs: what hides behind what, what a host queues, CUDA graphs, rates by the name of the GPU."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from distgnn import gallery
from distgnn.arrays.tuning import TUNING
from distgnn.cli import main
from distgnn.errors import UserError
from distgnn.plan import Graph, plan, probe
from distgnn.plan.clock import estimate
from distgnn.plan.cost_model import compute_seconds
from distgnn.plan.dry.recorder import ProgramStep
from distgnn.plan.explain import explain
from distgnn.plan.machine import Gemm, Spmm, SpmmRates, known, of_device, read
from distgnn.plan.pricing import priced
from distgnn.plan.reuse import EVEN, Reuse
from distgnn.train.settings import Settings
from distgnn.train.ways import ways
from loops import each

from .machines import slow
from .test_cost_model import machine as bytes_alone

DENSE = ProgramStep("gemm", "gemm", "", "", flops=6, touched=4, shape=(1, 1, 1))
SPARSE = ProgramStep("spmm", "spmm", "", "", shape=(3, 10, 5, 7))  # B has 280 bytes


@each("hidden, seconds", [(0.0, 10.0), (0.5, 8.0), (1.0, 6.0)])
def test_the_shorter_of_flops_and_bytes_is_hidden(hidden, seconds):
    on = replace(bytes_alone(1.0), gemm=Gemm(0.0, 1.0, 1.0, hidden), tf32=Gemm(1.0, 6.0, 1.0))
    assert compute_seconds(on, DENSE) == seconds
    assert compute_seconds(on.used(True, tf32=True), DENSE) == 6.0
    assert compute_seconds(replace(on, tf32=None).used(True, tf32=True), DENSE) == seconds


def test_rows_are_found_in_the_cache_of_a_core_in_that_of_all_or_nowhere():
    rates = [SpmmRates(cost, 0.0, 0.0, 0.0) for cost in (1.0, 10.0, 100.0)]
    spmm = Spmm(0.0, 140.0, rates[1], rates[2], 28.0, rates[0])
    on = replace(bytes_alone(1.0), spmm=spmm)
    assert compute_seconds(on, SPARSE) == pytest.approx(5 * (0.1 * 1 + 0.4 * 10 + 0.5 * 100))
    hubs = Reuse((0.0, 0.1, 0.5, 1.0), (0.0, 0.6, 0.8, 1.0))
    assert compute_seconds(on, SPARSE, reuse=hubs) == pytest.approx(5 * (0.6 * 1 + 0.2 * 10 + 0.2 * 100))
    wide = SPARSE._replace(shape=(3, 10, 5, 0))
    assert compute_seconds(on, wide) == pytest.approx(5)  # all of nothing is found
    alone = replace(on, spmm=replace(spmm, in_core=None))
    assert compute_seconds(alone, SPARSE, reuse=EVEN) == pytest.approx(5 * (0.5 * 10 + 0.5 * 100))


@each("algorithm", ["1d", "1.5d", "rdm"])
def test_plans_for_devices_join_what_comes_as_runs_on_devices_do(algorithm):
    """Seven block rows come, one after the other on hosts, and at once where a host queues."""
    graph, settings = Graph.of_size(4000, 60_000, 16, 8), Settings(algorithm=algorithm, sparsity_aware=False)
    sizes = {"1d": {"rows": 8}, "1.5d": {"rows": 8, "reps": 1}, "rdm": {"rows": 8, "cols": 2}}[algorithm]
    ranks = math.prod(sizes.values())
    (way,) = (way for way in ways(settings, ranks) if way.grid == sizes)
    host, queued = read("dgx-a100"), replace(slow(), launch=1e-5)
    host = replace(host, device="")

    def calls(machine):
        (choice, *_) = priced(settings, graph, ranks, machine, way)
        products = choice.dry.ranks[-1].epoch.entries()
        return sum(entry["calls"] for entry in products if entry["operation"] == "spmm")

    by_machine = [calls(machine) for machine in (host, read("dgx-a100"), queued, slow())]
    assert by_machine[0] == by_machine[3] == 4 * by_machine[1] == 4 * by_machine[2]
    planned = plan(replace(settings, grid=sizes), graph, ranks, read("dgx-a100"))
    kernels = explain(planned, planned.best).kernels
    assert sum(row["calls"] for row in kernels if row["operation"] == "spmm") == by_machine[1]


def test_a_device_waits_for_a_host_that_takes_longer_to_queue():
    on = replace(bytes_alone(1.0), launch=4.0, update=1.0, captured=0.5)
    steps = [ProgramStep("activation", "", "", "", touched=3), DENSE]
    found = [estimate(some, {"rows": 1}, [steps]) for some in (on, on.graphed(), replace(on, launch=7.0))]
    assert [one.seconds for one in found] == [13 + 1, 13 + 0.5, 14 + 1]
    assert [one.phases["other"] for one in found] == [1, 0.5, 2]
    assert replace(on, captured=0.0).graphed().update == 1.0


WAITS = ProgramStep("comm", "allgather", "rows", "H", 8.0, 1), ProgramStep("wait", "allgather", "rows", "H")


def test_messages_are_not_queued_steps():
    on = replace(bytes_alone(1.0), launch=4.0)
    assert estimate(on, {"rows": 2}, [list(WAITS)]).phases["other"] == 0


def settings(**given):
    return Settings(recipe="plain", hidden=(8,), algorithm="1d", eval_every=0, **given)


GPU = replace(slow(), launch=1.0, captured=0.25, update=0.5)
GPU = replace(GPU, spmm=replace(GPU.spmm, core=1 << 12, in_core=SpmmRates(1e-10, 1e-11, 1e-9, 1e-10)))
SMALL = Graph.of_size(300, 3000, 8, 4)


@each(
    "ranks, given, graphs",
    [(1, {}, True), (1, {"cuda_graph": True}, True), (1, {"cuda_graph": False}, False), (2, {}, False),
     (2, {"cuda_graph": True}, False), (1, {"model": "sage"}, True), (1, {"dropout": 0.5}, True)],
)  # fmt: skip
def test_small_graphs_of_one_rank_are_planned_as_cuda_graphs(ranks, given, graphs):
    best = plan(settings(**given), {None: SMALL}, ranks, GPU).best
    assert (round(best.estimate.phases["other"], 3) == 0.25) == graphs  # and kernels that nothing charges
    assert best.dry.ranks[0].captured == graphs and (best.seconds < 1) == graphs


def test_large_graphs_are_not(monkeypatch):
    monkeypatch.setattr(TUNING, "graph_rows", 299)
    assert plan(settings(), {None: SMALL}, 1, GPU).best.estimate.phases["other"] > 1
    best = plan(settings(cuda_graph=True), {None: SMALL}, 1, GPU).best
    assert best.estimate.phases["other"] == pytest.approx(0.25, 1e-3)


@each("given", [{}, {"cuda_graph": False}])
def test_an_explained_epoch_adds_up(given):
    A = gallery.rmat(300, degree=8).A
    graph = Graph.known(A, 8, 4, np.arange(300) % 4, np.ones(300, np.uint8))
    for ranks in (1, 3):
        found = plan(settings(**given), {None: graph}, ranks, GPU)
        parts = explain(found, found.best)
        assert sum(row["seconds"] for row in parts.phases) == pytest.approx(found.best.seconds)
        for row in parts.phases:
            alone = [row[name] for name in ("alone", "slowdown", "others")]
            assert sum(alone) == pytest.approx(row["seconds"]) and min(alone) > -1e-12
            assert ranks > 1 or row["others"] == pytest.approx(0, abs=1e-12)


def test_hubs_in_a_cache_make_a_plan_faster():
    A = gallery.rmat(4096, degree=16).A
    graph = Graph.known(A, 64, 4, np.arange(4096) % 4, np.ones(4096, np.uint8))
    far = SpmmRates(1e-7, 1e-8, 0.0, 0.0)
    near = SpmmRates(0.0, 0.0, 0.0, 0.0)
    on = replace(slow(), spmm=Spmm(0.0, 1 << 14, near, far, 1 << 10, near))
    even = replace(graph, source=Graph.of_size(4096, graph.nnz, 64, 4).source, entries=None)
    plans = (plan(settings(), {None: some}, 1, on).best for some in (graph, even))
    hubs, spread = (best.estimate.phases["spmm"] for best in plans)
    assert 0 < hubs < 0.7 * spread
    host = replace(on, spmm=Spmm(0.0, 1 << 14, near, far))  # whose rates were fitted to even matrices
    plans = (plan(settings(), {None: some}, 1, host).best for some in (graph, even))
    assert len({best.estimate.phases["spmm"] for best in plans}) == 1


# -- machines by the name of the GPU -------------------------------------------------------------------------


def test_rates_of_a_gpu_are_known_by_its_name():
    assert of_device("NVIDIA H200") == "h200" and of_device("NVIDIA H100 80GB HBM3") == "h100"
    for name in ("", "NVIDIA H200 NVL", "NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"):
        assert of_device(name) == ""
    names = [read(name).device for name in known() if read(name).device]
    assert len(set(names)) == len(names)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)
def test_a_job_is_planned_for_the_gpu_that_all_its_ranks_have(comm, stand_in, monkeypatch):
    monkeypatch.setattr("cupy.cuda.runtime.getDeviceProperties", lambda _: {"name": b"NVIDIA H200"})
    found = probe.probe(comm, "cupy")
    assert found.machine.name == "h200" and not found.figures and "NVIDIA H200's rates" in found.line
    assert found.machine.node == comm.Get_size() or comm.Get_size() == 1
    assert found.machine.memory < read("h200").memory  # that of the device
    mixed = b"NVIDIA H200" if comm.Get_rank() else b"NVIDIA H100 80GB HBM3"
    monkeypatch.setattr("cupy.cuda.runtime.getDeviceProperties", lambda _: {"name": mixed})
    expected = "h100" if comm.Get_size() == 1 else "dgx-a100"
    assert probe.usual_machine(comm, "cupy").name == expected


@pytest.mark.ranks(1)
@pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)
def test_a_plan_is_for_the_gpu_of_this_computer_unless_a_machine_is_named(comm, stand_in, monkeypatch):
    with pytest.raises(UserError, match=r"no rates of stand-in ship .* h200"):
        probe.machine_here()
    monkeypatch.setattr("cupy.cuda.runtime.getDeviceProperties", lambda _: {"name": b"NVIDIA H200"})
    assert probe.machine_here() == read("h200")


def test_without_a_gpu_a_plan_asks_for_a_machine(capsys, monkeypatch):
    monkeypatch.setattr("distgnn.plan.probe.backends.available", lambda: ["numpy"])
    sizes = "--nodes-of-graph 100 --nnz 900 --features 8 --classes 4".split()
    assert main(["plan", "--ranks", "2", *sizes]) == 2
    assert "this computer has no GPU; name a machine with --machine" in capsys.readouterr().err


# -- what ships beside what was measured ---------------------------------------------------------------------


@each(
    "shape, ms",
    [((1 << 20, 1 << 20, 1 << 24, 64), 0.9801), ((1 << 20, 1 << 20, 1 << 24, 128), 2.018),
     ((1 << 20, 1 << 20, 1 << 24, 256), 4.037)],
)  # fmt: skip
def test_rates_of_an_h200_are_those_of_its_table(shape, ms):
    """Graph uniform-20 of benchmarks/results/gpu.md: the one whose caches need no graph to be known."""
    step = ProgramStep("spmm", "spmm", "", "", shape=shape)
    assert 1e3 * compute_seconds(read("h200"), step) == pytest.approx(ms, rel=0.15)
    assert compute_seconds(read("h100"), step) > compute_seconds(read("h200"), step)


@each(
    "shape, ms, tf32",
    [((128, 128), 0.490, 0.418), ((128, 40), 0.278, 0.223), ((40, 128), 0.351, 0.214),
     ((256, 256), 1.90, 0.783)],
)  # fmt: skip
def test_dense_products_of_an_h200_are_those_of_their_table(shape, ms, tf32):
    """Products X W of benchmarks/results/plan-gpu.md, of 2^20 rows, as near as one line comes to them all."""
    rows, (inner, columns) = 1 << 20, shape
    touched = 4 * (rows * (inner + columns) + inner * columns)
    step = DENSE._replace(flops=2 * rows * inner * columns, touched=touched, shape=(rows, inner, columns))
    on = read("h200")
    assert 1e3 * compute_seconds(on, step) == pytest.approx(ms, rel=0.15)
    assert 1e3 * compute_seconds(on.used(True, tf32=True), step) == pytest.approx(tf32, rel=0.26)
