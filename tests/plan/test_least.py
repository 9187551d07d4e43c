"""Plans that leave ways out, by the least seconds that they take, beside plans of all ways."""

import random
from dataclasses import replace

import pytest

from distgnn.plan import Graph, tables
from distgnn.plan.choices import plan
from distgnn.plan.cost_model import Network
from distgnn.plan.least import beside, orders
from distgnn.plan.machine import Level, Link, Overlap, read
from distgnn.plan.pricing import Choice, bound, bounds, priced
from distgnn.train.settings import Settings
from distgnn.train.ways import ways

from .machines import slow
from .test_cost_model import machine as bytes_alone


def drawn(seed, most=64):
    """Draw settings, a graph, a number of ranks and a machine."""
    pick = random.Random(seed)
    n, dtype = pick.choice([400, 20_000, 10**6, 30 * 10**6]), pick.choice(["float32", "float32", "float64"])
    symmetric, wire = pick.random() < 0.7, "bfloat16" if dtype == "float32" and pick.random() < 0.3 else None
    nnz, widths = n * min(pick.choice([3, 20, 100]), n // 4), (pick.choice([8, 128]), pick.choice([3, 40]))
    graph = Graph.of_size(n, nnz, *widths, symmetric=symmetric, dtype=dtype)
    hidden = (pick.choice([16, 128]),) * pick.choice([1, 2, 3])
    how = {"overlap": pick.random() < 0.7, "recompute": pick.choice([0, 0, 2]), "wire": wire}
    how |= {"train_features": pick.random() < 0.3, "bias": pick.random() < 0.5}
    how |= {"recipe": pick.choice(["kipf-welling", "plain"]), "activation": pick.choice(["relu", "elu"])}
    shipped = [read(name) for name in ("perlmutter", "infiniband-cpu", "dgx-a100")]
    on = pick.choice([slow(bandwidth=1e7), slow(), *shipped])
    return Settings(dtype=dtype, hidden=hidden, **how), graph, 2 ** pick.randrange(1, most.bit_length()), on


@pytest.mark.parametrize("part", range(4))
def test_no_way_takes_less_than_its_least_seconds(part):
    """Ways are drawn; of each, every order of its axes."""
    compared = 0
    for seed in range(part * 6, part * 6 + 6):
        settings, graph, ranks, on = drawn(seed)
        shapes = [(graph, way) for way in ways(settings, ranks)]
        for number in random.Random(seed).sample(range(len(shapes)), min(4, len(shapes))):
            way = shapes[number][1]
            least = bound(settings, graph, way, ranks, on)
            if least is None:
                continue
            by_order = zip(orders(settings, way), least.floors, strict=True)
            floors = {str(grid): floor for grid, floor in by_order}
            for choice in priced(settings, graph, ranks, on, way):
                if isinstance(choice, Choice):
                    assert 0 < floors[str(choice.way.grid)] <= choice.seconds, (seed, str(choice.way))
                    compared += 1
    assert compared > 15


def test_ways_that_stand_in_rows_take_at_least_what_1d_takes():
    settings, graph, on = Settings(hidden=(32, 16)), Graph.of_size(90_000, 2_000_000, 40, 9), slow()
    shapes = [(graph, way) for way in ways(settings, 24)]
    found, of_rows = bounds(settings, shapes, 24, on), 0
    for number, (_, way) in enumerate(shapes):
        if way.as_1d and way.algorithm in ("1.5d", "rdm"):
            (choice,) = priced(settings, graph, 24, on, way)
            assert found[number].ready is None and 0 < min(found[number].floors) <= choice.seconds
            assert found[number].floors == bound(settings, graph, way, 24, on).floors
            of_rows += 1
    assert of_rows == 4


@pytest.mark.parametrize("part", range(3))
def test_plans_show_what_plans_of_all_ways_show(part):
    out = 0
    for seed in range(100 + part * 3, 103 + part * 3):
        settings, graph, ranks, on = drawn(seed, most=32)
        settings = replace(settings, algorithm=random.Random(seed).choice([None, "1.5d", "3d", "rdm"]))
        full, some = (plan(settings, graph, ranks, on, complete) for complete in (True, False))
        shown = [
            [(str(c.way), c.estimate, c.peak_bytes, c.record()) for _, c in tables.shown(found, False)]
            for found in (full, some)
        ]
        assert shown[0] == shown[1], seed
        assert (full.alike, full.advice) == (some.alike, some.advice)
        assert {str(way.way) for way in some.infeasible} <= {str(way.way) for way in full.infeasible}
        out += len(full.choices) - len(some.choices)
    assert out > 0


def test_transposes_that_a_bound_makes_are_in_the_peak():
    graph = Graph.of_size(500, 50_000, 301, 40, symmetric=False, dtype="float64")
    asked = Settings(algorithm="rdm", grid="2x26", dtype="float64", hidden=(16, 16), recompute=2)
    full, some = (plan(asked, graph, 52, slow(), complete).choices for complete in (True, False))
    assert [(c.way, c.peak_bytes) for c in full] == [(c.way, c.peak_bytes) for c in some]


def test_messages_and_computations_hide_each_other_as_far_as_they_can():
    on = bytes_alone(0.5, 0.2)
    assert beside(on, 0.0, 4.0) == 4 and beside(on, 3.0, 0.0) == 3
    assert beside(on, 1.2, 4.0) == pytest.approx(4 + 1.2 / (0.5 * 1.2) * 0.2)  # 2 s of computing hide it
    assert beside(on, 9.0, 4.0) == pytest.approx(4 * 1.2 + 9 - 0.5 * 1.2 * 4)
    assert beside(replace(on, overlap=Overlap(0.0, 0.0)), 9.0, 4.0) == 13
    assert beside(replace(on, overlap=Overlap(0.1, 0.5)), 9.0, 4.0) == 13  # hiding is slower than waiting


def test_of_needed_rows_the_rate_of_uneven_exchanges_counts():
    levels = [Level("machine", None, 0.0, 4.0, kinds={"alltoallv": Link(0.0, 1.0)})]
    network = Network(bytes_alone(1.0, levels=levels), {"rows": 4})
    assert network.least({("rows", True): 8.0}) == 8 and network.least({("rows", False): 8.0}) == 2
