"""Ranks of a job are measured where nothing was calibrated: alike on all of them, and never in vain."""

from __future__ import annotations

import sys
import time
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from distgnn.arrays import backend as backends
from distgnn.errors import DisagreementError
from distgnn.ledger import Ledger
from distgnn.plan import collectives, fit, measure, probe, settle_together
from distgnn.plan.dry.recorder import ProgramStep
from distgnn.plan.fit import Measurement
from distgnn.plan.machine import Level, of, read, with_nodes_of
from distgnn.plan.probe import levelled, scaled, slower
from distgnn.train.settings import Settings

from ..train.stores import small_store
from .test_calibrate import Nodes, Uneven

HOSTS = with_nodes_of(read("infiniband-cpu"), 2)


def alike(comm, thing):
    """Return what all ranks have, which must be the same."""
    assert len(set(comm.allgather(repr(thing)))) == 1
    return thing


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(measure, "BRIEF", measure.TINY)
    monkeypatch.setattr(collectives, "LARGEST", 1 << 16)
    monkeypatch.setattr(probe, "_PROBED", {})


@pytest.mark.ranks(1, 3, 4)
def test_all_ranks_have_the_same_figures_and_no_ledger_has_their_words(comm):
    with Ledger() as book:
        made = alike(comm, probe.probe(comm, "numpy"))
    assert not list(book.entries())
    several = comm.Get_size() > 1
    assert [*made.figures] == ["node bandwidth", "node alpha"] * several + ["sparse flops", "dense flops"]
    assert min(rate for name, rate in made.figures.items() if "alpha" not in name) > 1e3
    machine, usual = made.machine, probe.usual_machine(comm, "numpy")
    assert machine.name == "this machine" and made.line.startswith("measured in ")
    assert machine.memory == usual.memory and machine.overlap == usual.overlap
    assert machine.levels[-2].bandwidth == made.figures.get("node bandwidth", usual.levels[-2].bandwidth)
    assert of(tomllib.loads(machine.toml())) == machine
    assert probe.probe(comm, "numpy") is made, "ranks are measured once"


@pytest.mark.ranks(2, 3)
@pytest.mark.timeout(60)
def test_a_rank_without_a_gpu_keeps_nobody_waiting(comm, monkeypatch):
    """The others measure nothing."""
    last, host = comm.Get_rank() == comm.Get_size() - 1, backends.get("numpy")
    card = SimpleNamespace(name="card", on_device=True, device_name=lambda: "", memory_bytes=lambda: 1)
    monkeypatch.setattr(probe.backends, "get", lambda name=None: host if last or name == "numpy" else card)
    with pytest.raises(DisagreementError, match="backend is .*numpy on rank"):
        probe.probe(comm)


@pytest.mark.ranks(4)
def test_every_level_is_measured(comm):
    made = alike(comm, probe.probe(Nodes(comm), "numpy"))
    node, network = made.machine.levels
    assert (node.name, node.ranks, network.name) == ("node", 2, "network")
    for level in (node, network):
        assert level.bandwidth == made.figures[f"{level.name} bandwidth"]
    assert 0 < network.injection < 1e15 and made.machine.levels != HOSTS.levels


@pytest.mark.ranks(1, 3)
def test_kernels_take_longer_by_the_share_of_a_core_that_a_rank_gets(comm, monkeypatch):
    steps = [ProgramStep("spmm", "spmm", "", "", flops=10**7, touched=10**6, shape=(1000, 10**6, 10**5, 64))]
    for kind in ("sparse", "dense"):
        monkeypatch.setattr(measure, f"{kind}_products", lambda *_: [Measurement("", 0.01, steps)])
    seconds, lines = {}, {}
    for share in (1.0, 0.25):
        monkeypatch.setattr(measure.time, "thread_time", lambda share=share: share * time.perf_counter())
        monkeypatch.setattr(probe, "_PROBED", {})
        made = alike(comm, probe.probe(comm, "numpy"))
        seconds[share], lines[share] = Measurement("", 0.0, steps).on(made.machine), made.line
        assert made.figures["sparse flops"] == pytest.approx(share * 10**9, rel=1e-3)
        assert made.figures["dense flops"] == pytest.approx(share * 10**9, rel=1e-3)
    assert seconds[0.25] == pytest.approx(4 * seconds[1.0], rel=1e-3)
    assert "ranks share cores and have 25% of one" in lines[0.25] and "share cores" not in lines[1.0]


def test_figures_are_put_in_place_of_those_that_ship():
    shape = {"spmm": (1000, 10**6, 10**5, 64), "gemm": (1000, 64, 64)}
    steps = {
        kind: ProgramStep(kind, kind, "", "", flops=10**7, touched=10**6, shape=shape[kind]) for kind in shape
    }
    samples = {
        kind: [Measurement("", times * Measurement("", 0.0, [step]).on(HOSTS), [step]) for times in (2, 4.5)]
        for kind, step in steps.items()
    }
    factors = [slower(HOSTS, some) for some in samples.values()]
    assert factors == pytest.approx([3.0, 3.0])
    machine = scaled(HOSTS, 3.0, 5.0)
    for kind, factor in (("spmm", 3.0), ("gemm", 5.0)):
        (first, _), step = samples[kind], [steps[kind]]
        assert replace(first, steps=step).on(machine) == pytest.approx(factor * first.seconds / 2)
    found = [Level("network", None, 1e-4, 2e7, 2e-5, 3e7), Level("node", 2, 1e-6, 5e9, 1e-6, fit.FREE)]
    inner, *others = levelled([Level("socket", 1, 0.0, 1e9), *HOSTS.levels[-2:]], found[:1])
    assert inner.name == "socket" and others[0] == HOSTS.levels[-2] and others[1] == found[0]
    assert levelled([inner, *HOSTS.levels[-2:]], found)[0].bandwidth == 5e9


def check_fallback(comm, problem):
    """Check that all ranks have the figures that ship, a line, and messages that go on."""
    made = alike(comm, probe.probe(comm, "numpy"))
    assert made.machine == probe.usual_machine(comm, "numpy") and not made.figures
    assert made.line.startswith("not measured (") and problem in made.line and "calibrate" in made.line


@pytest.mark.ranks(3, 4)
@pytest.mark.abandons
@pytest.mark.parametrize("where", ["dense_products", "sparse_products"])
def test_a_rank_that_fails_leaves_the_figures_that_ship(comm, shared_tmp_path, monkeypatch, where):
    store, last = small_store(shared_tmp_path, comm), comm.Get_size() - 1

    def broken(*_):
        raise OSError("no such cache")

    with monkeypatch.context() as patched:
        if comm.Get_rank() == last:
            patched.setattr(measure, where, broken)
        check_fallback(comm, "no such cache")
        settled = settle_together(comm, Settings(algorithm="auto"), store)
        assert alike(comm, settled).way and settled.machine == "infiniband-cpu"
    assert probe.probe(comm, "numpy").figures


@pytest.mark.ranks(3)
@pytest.mark.abandons
def test_a_rank_that_fails_among_messages_leaves_nobody_waiting(comm, monkeypatch):
    swapped = collectives.swapped

    def half(grid, group, nbytes, peers=None):
        run, calls = swapped(grid, group, nbytes, peers), []

        def once():
            calls.append(1)
            if len(calls) == 3:
                raise MemoryError("no room")
            run()

        return once if comm.Get_rank() == 1 else run

    few = [one._replace(make=lambda *a, one=one: half(*a, **one.make.keywords)) for one in collectives.FEW]
    monkeypatch.setattr(probe.calibrate, "BRIEF", probe.calibrate.Scope(few, False))
    check_fallback(comm, "no room")


@pytest.mark.ranks(3)
@pytest.mark.abandons
def test_a_rank_that_is_silent_is_not_waited_for(comm, monkeypatch):
    monkeypatch.setattr(probe, "SILENCE", 0.3)
    if comm.Get_rank() == 2:
        monkeypatch.setattr(measure, "dense_products", lambda *_: time.sleep(1.5))
    check_fallback(comm, "nothing has come from other ranks for")


@pytest.mark.ranks(3)
def test_nodes_with_unequal_numbers_of_ranks_are_not_measured(comm):
    made = alike(comm, probe.probe(Uneven(comm), "numpy"))
    assert "nodes have 1, 2 ranks" in made.line and not made.figures


@pytest.mark.ranks(2)
def test_nothing_is_measured_where_a_machine_is_given(comm, shared_tmp_path, monkeypatch):
    store = small_store(shared_tmp_path, comm)
    monkeypatch.setattr(sys.modules["distgnn.plan.settle"], "probe", None)
    settled = settle_together(comm, Settings(algorithm="auto"), store, "infiniband-cpu")
    assert settled.probe is None and settled.record()["measured"] == {}
    monkeypatch.undo()
    settled = alike(comm, settle_together(comm, Settings(algorithm="auto"), store))
    assert settled.record()["measured"] == settled.probe.figures and settled.probe.line in str(settled)


@pytest.mark.ranks(1)
def test_of_gpus_nothing_is_measured(comm, backend):
    made = probe.probe(comm, backend.name)
    assert bool(made.figures) != backend.on_device
    if backend.on_device:
        assert made.machine.name == "dgx-a100" and "hosts alone are measured" in made.line
