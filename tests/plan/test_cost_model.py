"""The replay of steps: what has come while a rank computed is not waited for again."""

from dataclasses import replace

import pytest

from distgnn.plan import Graph
from distgnn.plan.clock import estimate
from distgnn.plan.cost_model import Network, compute_seconds
from distgnn.plan.dry.recorder import ProgramStep
from distgnn.plan.dry.run import dry_run
from distgnn.plan.machine import Gemm, Level, Link, Machine, Overlap, Passes, Spmm, SpmmRates, read
from distgnn.train.settings import Settings

NOTHING = SpmmRates(0.0, 0.0, 0.0, 0.0)
PANEL = ProgramStep("comm", "bcast", "rows", "H", 1.0, 1)
TAKEN = ProgramStep("wait", "bcast", "rows", "H", 1.0)


def machine(progress, slowdown=0.0, levels=None):
    """Make a machine where a byte takes a second to arrive, and to pass over."""
    levels = levels or [Level("machine", None, 0.0, 1.0)]
    rates = Spmm(0.0, 0.0, NOTHING, NOTHING), Gemm(0.0, 1.0, 1.0), Passes(0.0, 1.0)
    return Machine("slow", "", 1.0, levels, *rates, Overlap(progress, slowdown), 0.0)


def product(seconds):
    return ProgramStep("spmm", "gather rows", "", "", touched=seconds)


def exposed(progress, seconds, slowdown=0.0):
    """Compute the exposed seconds of three panels, two posted ahead, with a product before each is taken."""
    one = product(seconds)
    steps = [PANEL, PANEL, one, TAKEN, one, PANEL, TAKEN, one, TAKEN, one]
    found = estimate(machine(progress, slowdown), {"rows": 4}, [steps])
    assert found.seconds == pytest.approx(sum(found.phases.values()))
    return found.phases.get("comm", 0.0), found.phases["spmm"]


def test_panels_that_come_during_products_are_not_waited_for():
    assert exposed(1.0, 1) == pytest.approx((0, 4))
    assert exposed(1.0, 0.5) == pytest.approx((1.5, 2))
    assert exposed(0.5, 1) == pytest.approx((1.5, 4))
    assert exposed(0.0, 1) == pytest.approx((3, 4))


def test_products_are_slower_while_messages_travel():
    assert exposed(1.0, 1, slowdown=0.5)[1] > 4
    for progress, seconds in ((1.0, 2 + 1 / 3), (0.5, 2 + 2 / 3)):  # until the panel is there
        found = estimate(machine(progress, 0.5), {"rows": 4}, [[PANEL, product(2), TAKEN]])
        assert found.seconds == pytest.approx(seconds)


def test_the_slowest_rank_of_each_stretch_counts():
    met = ProgramStep("wait", "allreduce", "rows", "sums", -1)
    one, other = [product(3), met, product(1)], [product(1), met, product(2)]
    assert estimate(machine(1.0), {"rows": 4}, [one, other]).seconds == 5
    assert estimate(machine(1.0), {"rows": 4}, [[product(3)], other, one]).seconds == 4  # unlike stretches


def test_sums_take_as_many_rounds_as_trees_are_high_and_direct_messages_one_each():
    network = Network(machine(1.0, levels=[Level("machine", None, 1.0, 1e9)]), {"rows": 8})
    messages = {"allreduce": 14, "reduce": 1, "bcast": 2, "alltoallv": 7}
    steps = [ProgramStep("comm", operation, "rows", "H", 0.0, count) for operation, count in messages.items()]
    assert [network.seconds(step)[1] for step in steps] == [6, 3, 2, 7]


def test_of_a_panel_the_longer_of_start_and_bytes_counts_of_all_else_both():
    network = Network(machine(1.0, levels=[Level("machine", None, 3.0, 1.0)]), {"rows": 2})
    panels, others = (
        [network.seconds(ProgramStep("comm", operation, "rows", "H", nbytes, 1))[1] for nbytes in (2.0, 5.0)]
        for operation in ("bcast", "alltoallv")
    )
    assert panels == [3, 5] and others == [5, 8]


def test_of_an_exchange_the_longer_of_what_comes_and_what_is_sent_counts():
    step = lambda phase, nbytes: ProgramStep(phase, "alltoallv", "rows", "H", nbytes, 1)  # noqa: E731
    comes, small, large = step("comm", 4.0), step("sent", 3.0), step("sent", 6.0)
    taken, through = step("wait", 4.0), step("wait", -1)
    take = lambda *steps: estimate(machine(1.0), {"rows": 2}, [steps]).seconds  # noqa: E731
    assert [take(comes, *sent, through) for sent in ([], [small], [large], [small, small])] == [4, 4, 6, 6]
    assert take(comes, small, through, comes, large, through) == 10  # each exchange for itself
    nothing = ProgramStep("comm", "alltoallv", "rows", "H")
    assert take(nothing, large, through) == 6
    assert take(comes, product(10), large, through) == 16  # what has come makes no room
    assert take(comes, large, taken, product(2), through) == 6  # the rest goes while it computes
    started = machine(1.0, levels=[Level("machine", None, 0.0, 1.0, call=2.0)])
    steps = [comes, small, step("sent", 4.0), through]
    assert estimate(started, {"rows": 2}, [steps]).seconds == 9


def test_double_precision_takes_twice_the_flops_and_the_room_in_a_cache():
    rates = SpmmRates(1.0, 2.0, 4.0, 8.0)
    on = replace(machine(1.0), spmm=Spmm(0.0, 280.0, rates, NOTHING))
    sparse, dense = (
        ProgramStep("spmm", "spmm", "", "", shape=(3, 10, 5, 7)),
        ProgramStep("gemm", "gemm", "", "", flops=6),
    )
    assert compute_seconds(on, sparse) == 5 * (1 + 2 * 7) + 3 * (4 + 8 * 7)
    assert compute_seconds(on, sparse, 8) == (5 * (1 + 2 * 14) + 3 * (4 + 8 * 14)) / 2  # half is in the cache
    assert [compute_seconds(on, dense, size) for size in (4, 8)] == [6, 12]


def test_a_ring_is_as_slow_as_its_slowest_link():
    node = Level("node", 2, 0.0, 0.5)
    slow = machine(1.0, levels=[node, Level("network", None, 0.0, 8.0)])
    assert Network(slow, {"rows": 4}).seconds(PANEL) == (0, 2.0)
    assert Network(slow, {"cols": 2, "rows": 2}).seconds(PANEL) == (0, 2.0)
    assert Network(slow, {"rows": 2, "cols": 2}).seconds(PANEL) == (1, 1 / 8)


def test_of_groups_that_stand_otherwise_the_most_scattered_counts():
    nodes = [Level("node", 4, 0.0, 100.0), Level("network", None, 0.0, 1.0)]
    network = Network(machine(1.0, levels=nodes), {"rows": 4, "cols": 3})
    assert network.together("cols") == [1, 3]  # ranks 3, 4, 5
    assert network.seconds(PANEL._replace(group="cols"))[0] == 1


def test_uneven_exchanges_have_a_rate_of_their_own():
    """Even ones, of columns, take the usual one; published: 15 to 25 GB/s, where a ring has 61 to 65."""
    levels = [Level("machine", None, 0.0, 4.0, kinds={"alltoallv": Link(0.0, 1.0)})]
    network = Network(machine(1.0, levels=levels), {"rows": 4})
    step = lambda operation: ProgramStep("comm", operation, "rows", "H", 8.0, 3)  # noqa: E731
    assert [network.seconds(step(operation))[1] for operation in ("alltoallv", "alltoall")] == [8, 2]
    for ranks in (8, 16):
        network = Network(read("perlmutter"), {"rows": ranks})
        steps = (ProgramStep("comm", name, "rows", "H", 1.0, 1) for name in ("alltoallv", "alltoall"))
        uneven, even = (1e-9 / network.route(step).byte for step in steps)
        assert 15 < uneven < 25 and 2.6 < 63 / uneven < 4.1 and even > 1.3 * uneven


EXCHANGES = [("1d", True), ("1d", "cover"), ("rdm", False), ("rdm", True)]


@pytest.mark.parametrize(("algorithm", "aware"), EXCHANGES)
def test_needed_rows_and_covers_are_uneven_and_columns_are_not(algorithm, aware):
    grid = {"rows": 8} if algorithm == "1d" else {"rows": 1, "cols": 8}
    settings = Settings(hidden=(16,), algorithm=algorithm, grid=grid, sparsity_aware=aware)
    found = dry_run(settings, Graph.of_size(400, 4000, 16, 8), 8, busiest=True, evaluation=False)
    exchanges = {step.operation for step in found.ranks[0].epoch.steps if "alltoall" in step.operation}
    assert exchanges == {"alltoallv" if aware else "alltoall"}
