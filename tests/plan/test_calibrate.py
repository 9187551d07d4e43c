"""Fits find the parameters that seconds were made of; a measured machine is one that plans can read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

from distgnn.comm.relay import Relay
from distgnn.comm.sums import STRAIGHT
from distgnn.errors import ArgumentError, UserError
from distgnn.operators import ALGORITHMS, distribute, grids, make_grid
from distgnn.operators.dense import DistDense
from distgnn.plan import calibrate as calibration
from distgnn.plan import collectives, fit, machine, measure
from distgnn.plan.calibrate import ALONE, CACHES, IN_TURNS, by_nodes, calibrate
from distgnn.plan.clock import estimate
from distgnn.plan.cost_model import compute_seconds
from distgnn.plan.dry.recorder import ProgramStep
from distgnn.plan.fit import Measurement
from distgnn.plan.machine import (
    EDGES,
    EdgeRate,
    Gemm,
    Level,
    Link,
    Machine,
    Overlap,
    Passes,
    Rate,
    Spmm,
    SpmmRates,
)

KINDS = {
    "bcast": Link(2e-5, 3e9), "alltoallv": Link(1e-5, 1e9, 7e-5), "allreduce": Link(4e-5, 2e9),
    "sums": Link(3e-5, 15e8),
}  # fmt: skip
LEVELS = [
    Level("node", 4, 1e-6, 2e10, 3e-6, kinds={"bcast": Link(1e-6, 3e10)}),
    Level("network", None, 3e-5, 5e9, injection=2e9, kinds=KINDS),
]
KNOWN = Machine(
    "known", "made up", 1e10, LEVELS, Spmm(2e-6, CACHES[5], SpmmRates(1e-9, 2e-10, 3e-9, 4e-10),
    SpmmRates(3e-9, 5e-10, 3e-9, 8e-10)), Gemm(3e-6, 5e10, 2e10),
    Passes(1e-6, 2e10, {"activation": Rate(5e-6, 4e9)}), Overlap(0.8, 0.1), 1e-3,
)  # fmt: skip
GRID = {"far": 2, "near": 2, "inner": 4}
GROUPS = {"far+near": 4, "near": 2}


def products():
    """Return sparse products with B in a cache, beyond it, and partly in it."""
    shapes = [(m, k, m * d, w) for m in (64, 4096) for k in (256, 8192, 10**5, 10**6)
              for d in (1, 9, 40) for w in (16, 100)]  # fmt: skip
    return [ProgramStep("spmm", "spmm", "", "", shape=shape) for shape in shapes]


def dense():
    sizes = [(m, k, n) for m in (10, 1000, 10**5) for k in (16, 200) for n in (8, 64)]
    return [
        ProgramStep(
            "gemm", "gemm", "", "", flops=2 * m * k * n, touched=4 * (m * k + k * n + m * n), shape=(m, k, n)
        )
        for m, k, n in sizes
    ]


def passes():
    return [
        ProgramStep(phase, "", "", "", touched=size)
        for phase in ("spmm", "activation")
        for size in (100, 10**4, 10**7)
    ]


def edge_passes():
    names, shapes = ("softmax back", "sddmm"), [(m, k) for m in (100, 10**4, 10**6) for k in (1, 8, 64)]
    return [ProgramStep("spmm", name, "", "", touched=8, shape=shape) for name in names for shape in shapes]


def messages(kind):
    """Make the samples of groups that cross the network and no other level."""
    found, shape = [], STRAIGHT if kind == "sums" else ()
    operation = "allreduce" if kind == "sums" else kind
    for group, size in GROUPS.items():
        for nbytes in (1e3, 1e5, 1e7):
            count = 1 if operation == "bcast" else (2 if operation == "allreduce" else 1) * (size - 1)
            steps = [ProgramStep("comm", operation, group, "H", nbytes, count, shape=shape)]
            found.append(Measurement(group, 0.0, steps, GRID))
    return found


def timed(samples, on=KNOWN, noise=0.0):
    """Return the samples with the seconds of a machine."""
    random = np.random.default_rng(0)
    spread = [np.exp(noise * random.uniform(-1, 1)) for _ in samples]
    return [replace(step, seconds=step.on(on) * by) for step, by in zip(samples, spread, strict=True)]


def local(steps, noise=0.0):
    return timed([Measurement("", 0.0, [step]) for step in steps], noise=noise)


@pytest.mark.parametrize(("noise", "near"), [(0.0, 1e-6), (0.1, 0.3)])
def test_rates_of_kernels_are_found(noise, near):
    found = fit.spmm(local(products(), noise), CACHES)
    if not noise:
        assert found.cache == KNOWN.spmm.cache
        for rates in ("cached", "uncached"):
            assert vars(getattr(found, rates)) == pytest.approx(vars(getattr(KNOWN.spmm, rates)), rel=near)
    explained = fit.of("spmm", "", {}, local(products(), noise), replace(KNOWN, spmm=found))
    assert np.abs(explained.residuals).max() < max(2 * noise, near) and explained.r2 > 0.95
    assert vars(fit.gemm(local(dense(), noise))) == pytest.approx(vars(KNOWN.gemm), rel=near)
    of_passes = fit.passes(local(passes(), noise))
    assert list(of_passes.kinds) == ["activation"]
    for phase in ("spmm", "activation"):
        rate, known = of_passes.rate(phase), KNOWN.passes.rate(phase)
        assert (rate.call, rate.bandwidth) == pytest.approx((known.call, known.bandwidth), rel=near)


@pytest.mark.parametrize(("noise", "near"), [(0.0, 1e-6), (0.1, 0.3)])
def test_rates_of_passes_over_non_zeros_are_found(noise, near):
    known = {"softmax_back": EdgeRate(1e-6, 2e-9, 3e-10), "sddmm": EdgeRate(2e-6, 1e-9, 5e-11)}
    on = replace(KNOWN, edges=known)
    samples = timed([Measurement("", 0.0, [step]) for step in edge_passes()], on, noise)
    assert fit.edges(samples).keys() == known.keys()
    for kind, rate in fit.edges(samples).items():
        assert vars(rate) == pytest.approx(vars(known[kind]), rel=near)
    step = ProgramStep("spmm", "sddmm", "", "", touched=10**9, shape=(10**6, 64))
    assert compute_seconds(on, step) == pytest.approx(2e-6 + 1e6 * (1e-9 + 64 * 5e-11))
    assert compute_seconds(on, step, 8) == pytest.approx(2e-6 + 1e6 * (1e-9 + 128 * 5e-11))
    assert compute_seconds(KNOWN, step) == pytest.approx(1e-6 + 1e9 / 2e10)


def test_passes_over_non_zeros_are_measured_by_heads_or_columns(comm):
    samples = measure.edge_passes(
        measure.Budget(make_grid(comm, "1d", backend="numpy").world, 0.01), measure.TINY
    )
    shapes = {kind: set() for kind in EDGES}
    for one in samples:
        (step,) = one.steps
        shapes[fit.edge_pass(one)].add((f"{step.shape[0]} non-zeros", step.shape[1], one.what))
    for kind, found in shapes.items():
        assert found
        for nonzeros, columns, what in found:
            said, heads, width = what.split(", ", 1)[1].split(", ")
            assert nonzeros == said
            assert f"heads {columns}" == heads if kind.startswith("softmax") else f"width {columns}" == width


@pytest.mark.parametrize(("noise", "near"), [(0.0, 1e-6), (0.1, 0.25)])
@pytest.mark.parametrize("kind", KINDS)
def test_links_are_found(kind, noise, near):
    alone = replace(KNOWN, levels=[LEVELS[0], replace(LEVELS[1], injection=fit.FREE)])
    found = fit.link(timed(messages(kind), alone, noise), alone.levels, 1, kind)
    known = KINDS[kind]
    assert found.bandwidth == pytest.approx(known.bandwidth, rel=near)
    assert found.alpha == pytest.approx(known.alpha, rel=max(near, 3 * noise))
    assert found.call == pytest.approx(known.call, rel=max(near, 3 * noise), abs=1e-12 + 2e-5 * noise)
    if not noise:
        crowded = timed(messages(kind))
        assert fit.injection(crowded, alone, 1) == pytest.approx(LEVELS[1].injection, rel=0.05)


@pytest.mark.parametrize("known", [(2e-3, 3e-4), (0.0, 1e-3), (1e-3, 0.0)])
def test_what_epochs_take_beyond_their_steps_is_found(known):
    wait = (
        ProgramStep("comm", "allgather", "far+near", "H", 1e5, 3),
        ProgramStep("wait", "allgather", "far+near", "H"),
    )
    samples = [Measurement("", 0.0, [*dense()[:size], *wait * meetings], GRID)
               for size in (1, 9) for meetings in (2, 3, 12)]  # fmt: skip
    machine = replace(KNOWN, update=0.0)
    theirs = replace(machine, update=known[0], skew=known[1])
    samples = [replace(one, seconds=estimate(theirs, GRID, [one.steps]).seconds) for one in samples]
    assert fit.beyond(samples, machine) == pytest.approx(known, abs=1e-9)
    fast = [replace(one, seconds=one.seconds / 100) for one in samples]
    assert min(fit.beyond(fast, machine)) >= 0


def test_ranks_that_do_not_wait_may_be_the_slowest():
    """The order of ranks depends on how often they meet.

    If ranks meet twice they are through before one that computes more; if they meet often, after.
    """
    wait = (
        ProgramStep("comm", "allgather", "far+near", "H", 8.0, 3),
        ProgramStep("wait", "allgather", "far+near", "H"),
    )
    work = lambda flops: ProgramStep("gemm", "gemm", "", "", flops=flops, shape=(1, 1, 1))  # noqa: E731
    samples = [Measurement("", 0.0, [work(10**9), *wait * meetings], GRID, [[work(1_100_000_000)]])
               for meetings in (2, 12, 20)]  # fmt: skip
    machine = replace(KNOWN, update=0.0)
    theirs = replace(machine, update=1e-3, skew=2e-4)
    samples = [replace(one, seconds=one.epoch(theirs)) for one in samples]
    assert fit.beyond(samples, machine) == pytest.approx((1e-3, 2e-4), rel=1e-6)


@pytest.mark.ranks(1, 2)
def test_overlap_is_measured_in_turns(comm, monkeypatch):
    told = []

    def sample(world, what, run, *rest):
        told.append(run.func.__self__.grid.overlap)
        return Measurement(what, 5.0 if told[-1] else 7.0, [])

    def computing(world, run):
        return 3.0 if run.func.__self__.grid.overlap else 2.0

    monkeypatch.setattr(measure, "sample", sample)
    monkeypatch.setattr(measure, "_computing", computing)
    grid, _ = by_nodes(comm, "numpy")
    found = measure.overlapping(measure.Budget(grid.world, 1.0), 64, 4, 8)
    assert (found.computing, found.apart, found.slowed, found.together) == (2.0, 7.0, 3.0, 5.0)
    assert told == [False, True] * measure.TURNS
    grid.free()


def test_what_is_found_is_never_negative():
    random = np.random.default_rng(1)
    for _ in range(20):
        wild = lambda steps: [  # noqa: E731
            Measurement("", float(10 ** random.uniform(-7, 0)), [step]) for step in steps
        ]
        found = fit.spmm(wild(products()), CACHES[:3])
        for cached, uncached in zip(vars(found.cached).values(), vars(found.uncached).values(), strict=True):
            assert uncached >= cached >= 0
        for rates in (fit.gemm(wild(dense())), fit.passes(wild(passes()))):
            assert rates.call >= 0 and 0 < rates.bandwidth <= fit.FASTEST
        samples = [replace(one, seconds=random.uniform(1e-6, 1)) for one in messages("alltoallv")]
        link = fit.link(samples, LEVELS, 1, "alltoallv")
        assert link.alpha >= 0 and link.call >= 0 and 0 < link.bandwidth <= fit.FASTEST


def test_no_kind_is_faster_than_bytes_were_ever_seen_to_come():
    """A line through short messages may be too fast."""
    steps = [ProgramStep("comm", "allgather", "near", "H", nbytes, 1) for nbytes in (1e3, 1e6, 2e6)]
    samples = [
        Measurement("", seconds, [step]) for seconds, step in zip((1e-3, 2e-2, 2.5e-2), steps, strict=True)
    ]
    assert fit.no_faster(Link(1e-3, 1e9, 2e-3), samples) == Link(1e-3, 8e7, 2e-3)
    assert fit.no_faster(Link(1e-3, 7e7), samples) == Link(1e-3, 7e7)


@pytest.mark.parametrize("sizes", [(1e2, 1e3), (1e6, 1e7), (1e4, 9e4)])
def test_relays_that_are_all_short_or_all_long_or_nearly_so_are_explained(sizes):
    """The fit finds a link that can be written."""
    alone = replace(KNOWN, levels=[LEVELS[0], replace(LEVELS[1], injection=fit.FREE)])
    some = [one for one in messages("bcast") if one.steps[0].nbytes == 1e3]
    some = [replace(one, steps=[one.steps[0]._replace(nbytes=size)]) for one in some for size in sizes]
    samples = timed(some, alone)
    found = fit.link(samples, alone.levels, 1, "bcast")
    theirs = replace(alone, levels=[LEVELS[0], replace(alone.levels[1], kinds={"bcast": found})])
    assert np.abs(fit.of("bcast", "", {}, samples, theirs).residuals).max() < 1e-4
    assert 0 <= found.alpha < 1 and 0 < found.bandwidth <= fit.FASTEST


def test_long_messages_count_more_than_short_ones():
    """Short messages cost less than on a line through all: the rate is nearly that of the long."""
    alone = replace(KNOWN, levels=[LEVELS[0], replace(LEVELS[1], injection=fit.FREE)])
    samples = timed(messages("bcast"), alone)
    quick = [replace(one, seconds=one.seconds / 3) if one.steps[0].nbytes < 1e6 else one for one in samples]
    found = fit.link(quick, alone.levels, 1, "bcast")
    assert KINDS["bcast"].bandwidth <= found.bandwidth < 1.2 * KINDS["bcast"].bandwidth


def test_what_samples_cannot_tell_apart_is_one_parameter():
    """One message per call: its seconds may be of the message or of the call."""
    samples = timed(messages("bcast"), replace(KNOWN, levels=[LEVELS[0], replace(LEVELS[1], injection=9e99)]))
    assert fit.link(samples, LEVELS, 1, "bcast").call == 0
    one = fit.of("bcast", "network", {}, samples[:1], KNOWN)
    assert one.r2 in (0.0, 1.0) and one.record()["samples"][0]["seconds"] == samples[0].seconds


@pytest.mark.ranks(3)
def test_an_error_of_the_rank_that_fits_links_ends_all(comm, monkeypatch):
    def fails(*_):
        raise UserError("no link fits")

    monkeypatch.setattr(calibration, "_series", lambda *_: ({}, []))
    monkeypatch.setattr(calibration, "_links", fails)
    grid = make_grid(comm, "1d", backend="numpy")
    with pytest.raises(UserError, match="no link fits"):
        calibration.network(KNOWN, measure.Budget(grid.world, 0.01), grid)
    monkeypatch.setattr(calibration, "_links", lambda *_: (KNOWN, comm.rank))
    assert calibration.network(KNOWN, measure.Budget(grid.world, 0.01), grid)[1] == 0


class Nodes(MPI.Intracomm):
    """Ranks of which each pair of neighbours, or the odd and the even ones, stand on a node."""

    of = staticmethod(lambda rank: rank // 2)

    def Split_type(self, kind, *args, **options):
        return self.Split(self.of(self.Get_rank()), self.Get_rank())


class InTurns(Nodes):
    of = staticmethod(lambda rank: rank % 2)


class Uneven(Nodes):
    of = staticmethod(lambda rank: rank == 0)


@pytest.mark.slow
@pytest.mark.ranks(1, 4)
def test_a_measured_machine_can_be_read(comm, shared_tmp_path, monkeypatch):
    monkeypatch.setattr(collectives, "LARGEST", 1 << 18)
    several = comm.Get_size() > 1
    found = calibrate(Nodes(comm) if several else comm, 0.1, "here", backend="numpy")
    path = shared_tmp_path / f"{comm.Get_rank()}.toml"
    path.write_text(found.machine.toml())
    read = machine.read(path)
    assert read == replace(found.machine, levels=read.levels)
    assert [level.name for level in read.levels] == (["node", "network"] if several else ["node"])
    assert read.name == "here" and read.memory > 1 << 20 and read.update >= 0
    assert (ALONE in found.notes) == (not several) and IN_TURNS not in found.notes
    kinds = {(one.kind, one.level) for one in found.fits}
    assert {("spmm", ""), ("gemm", ""), ("rows", ""), ("activation", ""), ("epochs", "")} <= kinds
    assert list(read.edges) == list(EDGES) and {(kind.replace("_", " "), "") for kind in EDGES} <= kinds
    if several:
        links = {"bcast", "alltoall", "alltoallv", "allreduce", "sums", "reduce", "allgather"}
        links.add("reduce_scatter")
        assert all({(kind, level) for kind in links} <= kinds for level in ("node", "network"))
        assert all(set(level.kinds) == links for level in read.levels)
        for level in read.levels:
            sent = [one for f in found.fits if f.level == level.name and f.kind in links for one in f.samples]
            assert all(fit.no_faster(link, sent) == link for link in (*level.kinds.values(), level))
        assert read.levels[0].ranks == 2 and read.levels[1].injection < fit.FREE
    assert read.measured.ranks == comm.Get_size() and set(read.measured.r2) > {"spmm", "gemm"}
    assert comm.allgather(found.machine) == [found.machine] * comm.Get_size()


def _relays(monkeypatch, run):
    """Record the roots of the panels of H, in turn, of each relay that is made."""
    told = []

    class Watched(Relay):
        def __init__(self, comm, roots, turns, panel, matrix, *rest, **options):
            if matrix == "H":
                told.append([roots[turn] for turn in turns])
            super().__init__(comm, roots, turns, panel, matrix, *rest, **options)

    with monkeypatch.context() as patched:
        patched.setattr("distgnn.comm.group.Relay", Watched)
        run()
    return told


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("name", "axes"), [("1d", {"rows": 4}), ("2d", {"rows": 4, "cols": 1})])
def test_relays_are_measured_in_the_orders_of_products(comm, name, axes, monkeypatch):
    """In another order they take longer, see relay.py."""
    grid = make_grid(comm, name, axes, backend="numpy")
    A = distribute(measure.random_graph(64, 4), grid, name)
    H, T = (DistDense.empty(layout, (64, 8), np.float32) for layout in (A.input_layout, A.output_layout))
    H.block[...] = 1
    relayed = collectives.relayed(grid, grid.along("rows"), 64, upstream_first=name == "1d")
    assert _relays(monkeypatch, relayed) == _relays(monkeypatch, lambda: A.multiply(H, T)) != []
    grid.free()


@pytest.mark.ranks(1, 3)
def test_small_epochs_of_all_ways_are_measured_while_there_is_time(comm, monkeypatch):
    """Seconds of one algorithm beyond its steps are not those of another."""
    told = []

    def epoch(budget, algorithm, sizes, n, degree, widths):
        told.append((algorithm, sizes, n // comm.Get_size()))
        return Measurement("", 1.0, [], {"rows": comm.Get_size()})

    monkeypatch.setattr(measure, "epoch", epoch)
    grid, _ = by_nodes(comm, "numpy")
    calibration._update(KNOWN, measure.Budget(grid.world, 1e3))
    names = list(ALGORITHMS) if comm.Get_size() > 1 else ["1d"]
    ways = [(name, sizes) for name in names for sizes in grids(name, comm.Get_size())]
    assert len(told) == len(ways) * len(calibration.EPOCHS)
    assert all((*way, rows) in told for way in ways for rows in calibration.EPOCHS)
    told.clear()
    calibration._update(KNOWN, measure.Budget(grid.world, -1.0))
    assert len(told) == measure.LEAST
    grid.free()


@pytest.mark.ranks(4)
def test_an_epoch_is_that_of_all_kinds_of_ranks(comm):
    """Ranks of 1.5D have stages of their own, and the slowest counts."""
    grid, _ = by_nodes(comm, "numpy")
    found = measure.epoch(measure.Budget(grid.world, 0.01), "1.5d", {"rows": 2, "reps": 2}, 64, 4, (8, 8, 4))
    programs = [found.steps, *found.others]
    alone = [estimate(KNOWN, found.grid, [steps]).seconds for steps in programs]
    assert found.epoch(KNOWN) == estimate(KNOWN, found.grid, programs).seconds >= max(alone) > min(alone)
    assert comm.allgather(found.epoch(KNOWN)) == [found.epoch(KNOWN)] * 4
    grid.free()


@pytest.mark.ranks(4)
def test_ranks_are_put_in_the_order_of_their_nodes(comm):
    grid, notes = by_nodes(InTurns(comm), "numpy")
    assert grid.shape == {"far": 1, "near": 2, "outer": 1, "inner": 2} and notes == [IN_TURNS]
    assert grid.rank == [0, 2, 1, 3][comm.Get_rank()]
    grid.free()
    with pytest.raises(UserError, match="nodes have 1, 3 ranks"):
        by_nodes(Uneven(comm), "numpy")


@pytest.mark.ranks(1, 4)
def test_a_poor_fit_and_shared_cores_are_warned_of(comm, monkeypatch):
    samples = [Measurement("", seconds, []) for seconds in (1.0, 2.0, 3.0)]
    values = {"call": 1.0}
    good, bad = (
        fit.Fit("gemm", level, values, samples, [1.0, some, 3.0]) for level, some in (("", 2), ("node", 4))
    )
    (line,) = calibration._poor([good, bad, replace(bad, values={})])  # what was not fitted is no fit
    assert line.startswith("gemm: R² -1.00 (node)")
    alike = [Measurement("", seconds, []) for seconds in (1.0, 1.05, 1.02)]  # little is there to explain
    near, far = (fit.Fit("CUDA graphs", "", values, alike, [some] * 3) for some in (1.02, 1.2))
    assert near.r2 < calibration.POOR and not list(calibration._poor([near]))
    assert len(list(calibration._poor([far]))) == 1
    grid, _ = by_nodes(comm, "numpy")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {comm.Get_rank() // 2})
    ranks = comm.Get_size()
    told = calibration._crowded(grid)
    assert told == ([f"{ranks} ranks on {ranks // 2} cores: they waited for each other"] if ranks > 1 else [])
    grid.free()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_seconds_must_be_positive(seconds):
    with pytest.raises(ArgumentError, match="seconds"):
        calibrate(MPI.COMM_SELF, seconds)
