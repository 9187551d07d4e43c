"""The replay of steps: what has come while a rank computed is not waited for again."""

import pytest

from distgnn.ledger import Step
from distgnn.plan.cost_model import Network, estimate
from distgnn.plan.machine import Gemm, Level, Machine, Overlap, Passes, Spmm, SpmmRates

NOTHING = SpmmRates(0.0, 0.0, 0.0, 0.0)
PANEL = Step("comm", "bcast", "rows", "H", 1.0, 1)
TAKEN = Step("wait", "bcast", "rows", "H", 1.0)


def machine(progress, slowdown=0.0, levels=None):
    """A byte takes a second to arrive, and to pass over."""
    levels = levels or [Level("machine", None, 0.0, 1.0)]
    rates = Spmm(0.0, 0.0, NOTHING, NOTHING), Gemm(0.0, 1.0, 1.0), Passes(0.0, 1.0)
    return Machine("slow", "", 1.0, levels, *rates, Overlap(progress, slowdown))


def product(seconds):
    return Step("spmm", "gather rows", "", "", touched=seconds)


def exposed(progress, seconds, slowdown=0.0):
    """Of three panels, two posted ahead, with a product before each is taken."""
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
