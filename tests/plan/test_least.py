"""Plans that leave ways out, by the least seconds that they take, beside plans of all ways."""

import random
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.layout import written
from distgnn.nn.networks import NETWORKS
from distgnn.plan import Graph, Histogram, tables
from distgnn.plan.choices import plan
from distgnn.plan.cost_model import Network
from distgnn.plan.least import beside
from distgnn.plan.machine import Level, Link, Overlap, read
from distgnn.plan.pricing import Choice, bound, orders, priced
from distgnn.plan.shares import Received
from distgnn.train.settings import Settings
from distgnn.train.ways import ways

from .machines import slow
from .test_cost_model import machine as bytes_alone


def drawn(seed, most=64, models=("gcn",), uneven=False):
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
    ranks, model = 2 ** pick.randrange(1, most.bit_length()), pick.choice(models)
    if uneven:
        graph = known(pick, symmetric, dtype) if n == 400 else crowded(graph, pick)
        how |= {"train_features": False}
    return Settings(dtype=dtype, hidden=hidden, model=model, **how), graph, ranks, on


def crowded(graph, pick):
    """Put nearly all entries between the first nodes, as where a store's order begins with hubs; and, of some
    graphs, take most of the features to be 0.
    """
    ends = np.array([0, graph.n // 16, graph.n // 3, graph.n])
    nnz = graph.nnz * np.array([[80, 8, 2], [8, 1, 0], [1, 0, 0]]) // 100
    source = Histogram(ends, ends, nnz, graph.source.dtype, graph.source.symmetric)
    return replace(graph, source=source, feature_nnz=pick.choice([None, graph.n * 2]))


def known(pick, symmetric, dtype):
    """Make a graph of 300 nodes of which all entries are known, nearly all of the first twenty nodes."""
    random_numbers = np.random.default_rng(pick.randrange(1000))
    rows, columns = (random_numbers.integers(0, size, 900) for size in (20, 300))
    A = sp.coo_array((np.ones(900), (rows, columns)), shape=(300, 300)).tocsr()
    A = (A + A.T if symmetric else A).astype(dtype)
    labels, split = random_numbers.integers(0, 3, 300), np.ones(300, np.uint8)
    return Graph.known(A, 12, 3, labels, split, dtype)


def compare_floors(settings, graph, ranks, on, some, shapes=4):
    """Compare the seconds of some ways, drawn, with the least that they take; return the shares that these
    are, of each order of axes.
    """
    found, shares = list(ways(settings, ranks)), []
    for way in random.Random(some).sample(found, min(shapes, len(found))):
        floors = bound(settings, graph, way, ranks, on)
        if floors is not None:
            by_order = dict(zip(map(str, orders(settings, way)), floors, strict=True))
            for choice in priced(settings, graph, ranks, on, way):
                if isinstance(choice, Choice):
                    least = by_order[str(choice.way.grid)]
                    assert 0 <= least <= choice.seconds, (some, str(choice.way), least / choice.seconds)
                    shares.append(least / choice.seconds)
    return shares


@pytest.mark.parametrize("part", range(4))
def test_no_way_takes_less_than_its_least_seconds(part):
    """Ways are drawn; of each, every order of its axes."""
    shares = [x for seed in range(part * 6, part * 6 + 6) for x in compare_floors(*drawn(seed), seed)]
    assert len(shares) > 15 and min(shares) > 0


@pytest.mark.parametrize("kind", ["sage", "gat", "gatv2", "uneven", "sparse"])
def test_no_way_of_other_networks_and_stores_takes_less_than_its_least_seconds(kind):
    shares = []
    for seed in range(300, 306):
        models = (kind,) if kind in NETWORKS else ("gcn", "sage", "gat")
        settings, graph, ranks, on = drawn(seed, most=16, models=models, uneven=kind == "uneven")
        if kind == "sparse":
            graph, settings = replace(graph, feature_nnz=3 * graph.n), replace(settings, train_features=False)
        shares += compare_floors(settings, graph, ranks, on, seed, 3)
    assert len(shares) > 15 and sum(x > 0 for x in shares) > 10


def test_of_an_uneven_graph_no_entries_are_counted_on():
    """All entries are on a rank that stands between those of a sample, whose plan has none."""
    graph, ends = Graph.of_size(64_000, 10**8, 64, 8, symmetric=False), np.arange(65) * 1000
    nnz = np.where(np.arange(64)[:, None] == 3, 10**8 // 64, np.zeros((64, 64), np.int64))
    source = Histogram(ends, ends, nnz, graph.source.dtype, False)
    settings, crowd = Settings(hidden=(32,), train_features=True), replace(graph, source=source)
    for way in (way for way in ways(settings, 64) if way.algorithm in ("1d", "2d")):
        even, uneven = (bound(settings, some, way, 64, slow(bandwidth=1e7)) for some in (graph, crowd))
        choices = priced(settings, crowd, 64, slow(bandwidth=1e7), way)
        assert 0 < min(uneven) <= min(choice.seconds for choice in choices)
        assert min(uneven) < min(even)


def test_bounds_are_near_where_messages_take_the_time():
    settings, graph, on = Settings(hidden=(64,)), Graph.of_size(10**7, 10**8, 128, 40), slow(bandwidth=1e7)
    near = {
        "1d": "rows=16", "1.5d": "rows=8,reps=2", "2d": "rows=4,cols=4", "3d-split": "rows=4,cols=2,fibers=2",
        "3d": "x=2,y=2,z=4", "rdm": "rows=4,cols=4",
    }
    for way in ways(settings, 16):
        if written(way.grid) == near[way.algorithm]:
            floors = bound(settings, graph, way, 16, on)
            seconds = [choice.seconds for choice in priced(settings, graph, 16, on, way)]
            assert min(seconds) / min(floors) < 1.25, str(way)


def test_ways_that_stand_in_rows_take_at_least_what_1d_takes():
    settings, graph, on = Settings(hidden=(32, 16)), Graph.of_size(90_000, 2_000_000, 40, 9), slow()
    in_rows = [way for way in ways(settings, 24) if way.as_1d and way.algorithm in ("1.5d", "rdm")]
    floors = {
        way.sparsity_aware: bound(settings, graph, way, 24, on) for way in ways(settings, 24) if
        way.algorithm == "1d"
    }  # fmt: skip
    for way in in_rows:
        assert bound(settings, graph, way, 24, on) == floors[way.sparsity_aware]
    assert len(in_rows) == 4


def test_ways_of_which_nothing_is_known_have_no_bound():
    graph, on = Graph.of_size(4000, 60_000, 16, 8), slow()
    (way, *_) = ways(Settings(algorithm="1d", sparsity_aware=True), 4)
    in_parts = replace(graph, parts=np.array([0, 3000, 3500, 3900, 4000]))
    assert bound(Settings(), graph, way, 4, on) and bound(Settings(), in_parts, way, 4, on) is None
    assert bound(Settings(), graph, replace(way, grid={"rows": 5000}), 5000, on) is None  # refused


@pytest.mark.parametrize("kind", ["gcn", "sage and gat", "uneven"])
def test_plans_show_what_plans_of_all_ways_show(kind):
    out, uneven = 0, kind == "uneven"
    models = ("gcn", "sage") if uneven else tuple(kind.split(" and "))
    for seed in (100, 104) if uneven else range(100, 103):
        settings, graph, ranks, on = drawn(seed, most=32, models=models, uneven=uneven)
        ranks, on = (8, slow(bandwidth=1e6)) if uneven else (ranks, on)
        algorithm = random.Random(seed).choice([None, "1.5d", "3d-split", "rdm"])
        settings = replace(settings, algorithm="3d-split" if uneven else algorithm)
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


def test_messages_and_computations_hide_each_other_as_far_as_they_can():
    on = bytes_alone(0.5, 0.2)
    assert beside(on, 0.0, 4.0) == 4 and beside(on, 3.0, 0.0) == 3
    assert beside(on, 1.2, 4.0) == pytest.approx(4 + 1.2 / (0.5 * 1.2) * 0.2)  # 2 s of computing hide it
    assert beside(on, 9.0, 4.0) == pytest.approx(4 * 1.2 + 9 - 0.5 * 1.2 * 4)
    assert beside(replace(on, overlap=Overlap(0.0, 0.0)), 9.0, 4.0) == 13
    assert beside(replace(on, overlap=Overlap(0.1, 0.5)), 9.0, 4.0) == 13  # hiding is slower than waiting


def test_of_what_is_received_the_rate_of_its_kind_counts():
    levels = [Level("machine", None, 0.5, 4.0, kinds={"alltoallv": Link(0.25, 1.0, 3.0)})]
    network = Network(bytes_alone(1.0, levels=levels), {"rows": 4})
    assert network.least([Received("rows", "alltoallv", 8.0, 2)]) == 8 + 2 * 0.25 + 3
    assert network.least([Received("rows", "bcast", 8.0, 2)]) == 2  # while one starts, others are under way
    assert network.least([Received("rows", "", 8.0, 2)]) == 2  # of any kind, the fastest
    assert network.least([Received("rows", "bcast", 8.0), Received("rows", "", 4.0)]) == 3  # one level
    assert network.least([]) == 0
