"""The clock of a rank against a replay that goes step by step."""

import random
from dataclasses import replace
from itertools import product

import pytest

from distgnn.plan import Graph
from distgnn.plan.clock import Clock, Program
from distgnn.plan.cost_model import Network
from distgnn.plan.dry.recorder import ProgramStep
from distgnn.plan.dry.run import dry_run
from distgnn.plan.machine import Level, Overlap, read
from distgnn.train.settings import Settings

from .machines import slow
from .replay import Replay
from .test_cost_model import machine

GRID = {"rows": 4, "cols": 3}
OVERLAPS = [(1.0, 0.0), (0.8, 0.3), (0.1, 0.5), (0.0, 0.2)]
LEVELS = [Level("node", 4, 0.25, 2.0, call=0.5), Level("network", None, 0.5, 1.0, injection=3.0)]


def drawn(seed):
    """Draw a program: runs of transfers, waits and computations, of few kinds."""
    pick = random.Random(seed)
    keys = [*product(("bcast", "alltoallv", "allreduce"), GRID, "HT")]
    kinds = [ProgramStep("spmm", "", "", "", touched=pick.choice([0, 1, 3, 0.01])) for _ in range(3)]
    for key in pick.sample(keys, 4):
        nbytes = pick.choice([0.5, 2.0, 7.0, 300.0])
        kinds.append(ProgramStep("comm", *key, nbytes, pick.choice([0, 1, 3])))
        kinds.append(ProgramStep("wait", *key, pick.choice([-1, nbytes, nbytes / 2])))
        kinds += [ProgramStep("sent", *key, nbytes, 2)] * ("all" in key[0])
    steps = []
    for _ in range(pick.randrange(1, 60)):
        steps += [pick.choice(kinds)] * pick.choice([1, 1, 2, 5, 40])
    return steps


def check(network, steps):
    clock, replay = Clock(network).run(steps), Replay(network, steps)
    assert [dict(one) for one in clock.stretches] == [dict(one) for one in replay.stretches]
    assert {k: s for k, s in clock.exposed.items() if s} == {k: s for k, s in replay.exposed.items() if s}
    assert clock.places == replay.level


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_runs_of_equal_steps_take_what_they_take_one_by_one(overlap):
    on = replace(machine(*overlap, levels=LEVELS), skew=0.125)
    for seed in range(60):
        check(Network(on, GRID), drawn(seed))


@pytest.mark.parametrize("overlap", [True, False])
def test_so_do_the_programs_of_networks(overlap):
    graph = Graph.of_size(3000, 90_000, 24, 5)
    for name, grid, aware in [
        ("1d", {"rows": 12}, True), ("1d", {"rows": 12}, "cover"), ("2d", {"rows": 3, "cols": 4}, False),
        ("3d", {"x": 2, "y": 2, "z": 3}, False), ("rdm", {"rows": 4, "cols": 3}, False),
        ("1.5d", {"rows": 4, "reps": 3}, True),
    ]:  # fmt: skip
        settings = Settings(hidden=(16, 16), algorithm=name, grid=grid, sparsity_aware=aware, overlap=overlap)
        dry = dry_run(settings, graph, 12, busiest=True, evaluation=False)
        for on in (slow(), read("perlmutter").used(overlap)):
            check(Network(on, grid), dry.ranks[0].epoch.steps)


def test_each_kind_of_step_is_kept_once():
    one, other = (ProgramStep("gemm", "gemm", "", "", flops=flops) for flops in (1, 2))
    program = Program([one] * 3 + [other] + [one])
    assert program.kinds == [one, other] and program.runs == [(0, 3), (1, 1), (0, 1)]
    assert Program([]).kinds == Program([]).runs == []


def test_a_device_waits_for_the_host_that_queues_every_step():
    on = replace(machine(1.0), overlap=Overlap(1.0, 0.0), launch=0.5)
    steps = [ProgramStep("gemm", "gemm", "", "", flops=1)] * 5
    assert Clock(Network(on, {"rows": 1})).run(steps).launched == 2.5
