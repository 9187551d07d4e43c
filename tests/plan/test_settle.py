"""Choices that settings leave open are made by a plan; settings that are given are kept; better orders are
named.
"""

import shlex
import sys
from dataclasses import replace

import numpy as np
import pytest

import distgnn as dg
from distgnn import cli
from distgnn.errors import ArgumentError, UserError
from distgnn.gallery import rmat
from distgnn.operators import ALGORITHMS, grids
from distgnn.plan import Graph, Settled, dry_run, settle
from distgnn.plan.choices import plan
from distgnn.plan.machine import read, with_nodes_of
from distgnn.plan.minibatches import plan_minibatches
from distgnn.split import TRAIN
from distgnn.store import Store, prepare
from distgnn.store.source import Source
from distgnn.train.resolve import resolved
from distgnn.train.resolve import to_plan as is_open
from distgnn.train.settings import Settings
from distgnn.train.ways import ways

from ..train.stores import Communities
from .machines import slow

HOSTS = with_nodes_of(slow(), 1)  # every rank on a host of its own
FAR = with_nodes_of(slow(bandwidth=1e7), 1)
AUTO = Settings(algorithm="auto", hidden=(8,))


class Corner(Source):
    """All edges are among the first quarter of the nodes."""

    def __init__(self):
        self.name, self.n, self.width, self.classes = "corner", 400, 8, 3
        self.labels, self.split = np.arange(400, dtype=np.int32) % 3, np.ones(400, np.uint8)

    def edges(self):
        yield *np.nonzero(np.triu(np.ones((100, 100)), 1)), None

    def features(self, ids):
        return np.ones((len(ids), self.width), np.float32)


def made(folder, source, **options):
    prepare(source, folder / "made.dg", **options)
    return Store(folder / "made.dg")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    from distgnn.partition import Wanted

    orders = {"order": ("random", "original", "double"), "partitions": [Wanted("random", 4)]}
    return made(tmp_path_factory.mktemp("settle"), Communities(), **orders)


def test_large_stores_are_settled_by_the_best_of_all_ways(store, monkeypatch):
    monkeypatch.setattr(sys.modules[Settled.__module__], "EXACT", 0)
    graphs = {name: Graph.of_store(store, name, exact=False) for name in store.orders}
    full, settled = plan(AUTO, graphs, 8, FAR), settle(AUTO, store, 8, FAR)
    assert (settled.way, settled.seconds) == (full.best.way, full.best.seconds)
    some = plan(AUTO, graphs, 8, FAR, complete=False)
    assert len(some.choices) < len(full.choices) and some.best.record() == full.best.record()


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.slow
def test_auto_takes_the_best_of_all_ways_on_all_orders(store, ranks):
    graphs = {name: Graph.of_store(store, name) for name in store.orders}
    best = plan(AUTO, graphs, ranks, HOSTS).best
    settled = settle(AUTO, store, ranks, HOSTS)
    assert settled.seconds == best.seconds and settled.machine == "slow"
    assert settled.settings == settled.way.settings(AUTO)
    assert sum(settled.phases.values()) == pytest.approx(settled.seconds)
    assert f"planned for slow: {settled.way} on order {settled.way.order}" in str(settled)


@pytest.mark.slow
def test_covers_are_counted_where_only_what_they_may_save_makes_them_the_best(tmp_path):
    """Needed rows take longer than covers on two ranks of a power law; both are the best of their shape."""
    graph = rmat(1 << 11, degree=32, features=64, classes=64)
    dg.prepare(graph.A, graph.features, graph.labels, "0.6/0.2/0.2", out=tmp_path / "graph.dg")
    settings = Settings(algorithm="auto", hidden=(64, 64), recipe="plain")
    assert settle(settings, Store(tmp_path / "graph.dg"), 2, FAR).way.sparsity_aware == "cover"


def test_orders_for_other_algorithms_or_ranks_are_left_out(store):
    for ranks in (2, 4):
        graphs = {name: Graph.of_store(store, name, exact=False) for name in store.orders}
        assert {graph.counts[TRAIN] for graph in graphs.values()} == {store.manifest["split"]["train"]}
        found = plan(AUTO, graphs, ranks, HOSTS)
        on = {name: {c.way.algorithm for c in found.choices if c.way.order == name} for name in store.orders}
        assert on["double"] == {"3d"} and on["random"] == {*ALGORITHMS}
        assert ("1d" in on["random-4"]) == (ranks == 4)
        assert any("has 4 parts" in one.reason for one in found.infeasible) or ranks == 4


KEPT = {
    "a size": (Settings(algorithm="1.5d", grid="reps=2"), 4, {"reps": 2}),
    "copies": (Settings(algorithm="1.5d", replication=2), 8, {"reps": 2}),
    "copies of any": (replace(AUTO, replication=2), 4, {"reps": 2}),
    "sizes of any": (replace(AUTO, grid="4x2"), 8, {"rows": 4}),
    "an order of axes": (Settings(algorithm="3d", grid="z=2,y=2"), 8, {"z": 2, "y": 2}),
    "an order of nodes": (replace(AUTO, order="original"), 2, None),
    "rows only": (replace(AUTO, sparsity_aware=True), 4, None),
    "rows or blocks": (Settings(algorithm="1.5d", sparsity_aware="auto"), 4, None),
    "blocks only": (replace(AUTO, sparsity_aware=False), 2, None),
    "all else": (replace(AUTO, lr=0.5, overlap=False, keep_aggregate=False, weight_decay=(0.1,)), 2, None),
}


@pytest.mark.parametrize("case", KEPT)
@pytest.mark.slow
def test_what_is_given_is_kept(store, case):
    asked, ranks, sizes = KEPT[case]
    settled = settle(asked, store, ranks, HOSTS)
    chosen = settled.settings
    assert settled.machine == "slow" and chosen.grid in grids(chosen.algorithm, ranks)
    assert asked.algorithm in ("auto", chosen.algorithm)
    assert sizes is None or [(a, s) for a, s in chosen.grid.items() if a in sizes] == [*sizes.items()]
    free = {"algorithm", "grid"} | {
        name for name in ("order", "sparsity_aware") if getattr(asked, name) is None
    }
    same = {name: value for name, value in vars(asked).items() if name not in free}
    assert same == {name: getattr(chosen, name) for name in same}


def test_only_auto_chooses_orders_and_what_is_sent(store):
    for name in ("1.5d", "3d"):
        chosen = settle(Settings(algorithm=name), store, 4, HOSTS).settings
        assert chosen.order == "random" and chosen.sparsity_aware is False


NOTHING_OPEN = [
    (Settings(), 4), (Settings(algorithm="1d", sparsity_aware=True), 4), (Settings(algorithm="3d"), 1),
    (Settings(algorithm="2d", grid="2x2"), 4), (Settings(algorithm="3d", grid={"z": 2, "x": 2, "y": 1}), 4),
    (Settings(sampler="sage"), 4),
    (Settings(algorithm="1.5d", replication=4), 4), (Settings(algorithm="3d", grid="z=2,y=2"), 4),
    (Settings(algorithm="2d", grid="3x2"), 4), (Settings(algorithm="2d", replication=2), 4),
    (Settings(algorithm="3d", product_order="transform-first"), 4),
    (Settings(algorithm="3d", model="sage"), 4),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "ranks"), NOTHING_OPEN)
def test_where_nothing_is_open_or_the_run_refuses_nothing_is_planned(store, asked, ranks):
    settled = settle(asked, store, ranks, HOSTS)
    assert settled.settings == asked and settled.machine is None and not settled.advice


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (replace(AUTO, grid="5x5"), "grid=5x5: no algorithm can do this on 4 ranks"),
        (replace(AUTO, replication=3), "replication=3: no algorithm can do this on 4 ranks"),
        (replace(AUTO, replication=2, grid="4x1"), "grid=4x1"),
        (replace(AUTO, epochs=0), "epochs=0: expected"),
        (Settings(algorithm="4d"), "algorithm=4d: no such algorithm"),
        (replace(AUTO, order="tidy"), "no order 'tidy'"),
    ],
)
def test_bad_settings_are_one_line(store, asked, problem):
    with pytest.raises(UserError, match=problem):
        settle(asked, store, 4, HOSTS)


def test_a_run_does_not_plan():
    with pytest.raises(ArgumentError, match="algorithm=auto: a run takes what it is given"):
        resolved(AUTO, 4)
    for sampler in ("sage", "vertices"):
        with pytest.raises(ArgumentError, match="algorithm=auto: a run takes what it is given"):
            resolved(replace(AUTO, sampler=sampler), 4)


@pytest.mark.parametrize("name", ["algorithm", "grid", "replication", "bulk"])
def test_minibatches_of_subgraphs_of_single_nodes_are_not_planned(store, name):
    """Subgraphs of drawn vertices are no minibatches of ranks: another function plans them."""
    for sampler, calls in {"shadow": (settle, plan_minibatches), "vertices": (plan_minibatches,)}.items():
        asked = Settings(**{"sampler": sampler, name: "auto"})
        for call in calls:
            with pytest.raises(ArgumentError, match=f"sampler={sampler}: is not planned"):
                call(asked, store, 4, HOSTS)


def test_a_grid_or_an_order_to_choose_is_not_for_a_run():
    with pytest.raises(ArgumentError, match="grid=auto: a run takes what it is given; distgnn.plan.settle"):
        resolved(Settings(algorithm="2d", grid="auto"), 4)
    with pytest.raises(ArgumentError, match="order=auto: a run takes what it is given; distgnn.plan.settle"):
        resolved(Settings(order="auto"), 1)
    assert resolved(Settings(algorithm="1d", grid="auto"), 4) == resolved(Settings(algorithm="1d"), 4)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["1.5d", "3d", "auto"])
def test_auto_lets_the_plan_choose_the_grid_and_the_order(store, algorithm):
    asked = Settings(algorithm=algorithm, hidden=(8,), sparsity_aware=False)
    plain = settle(asked, store, 4, HOSTS)
    assert settle(replace(asked, grid="auto"), store, 4, HOSTS) == plain
    by_order = {name: settle(replace(asked, order=name), store, 4, HOSTS) for name in store.orders}
    seconds = {name: found.seconds for name, found in by_order.items() if found.machine}
    free = settle(replace(asked, grid="auto", order="auto"), store, 4, HOSTS)
    assert free.seconds == min(seconds.values()) and free.settings.order in seconds
    assert free.settings.grid == by_order[free.settings.order].settings.grid


def test_an_order_to_choose_is_chosen_for_the_algorithm_that_is_given(tmp_path):
    """The first order of this store has all non-zeros in one corner, where they take most of the time."""
    machine, store = slow(nonzero=1e-5), made(tmp_path, Corner(), order=("original", "random"))
    asked = Settings(algorithm="2d", hidden=(8,))
    assert settle(asked, store, 4, machine).settings.order == "original"
    chosen = settle(replace(asked, order="auto"), store, 4, machine).settings
    assert (chosen.algorithm, chosen.order) == ("2d", "random")


@pytest.mark.slow
def test_what_does_not_fit_is_said(store):
    with pytest.raises(UserError, match="no way to train fits into the .* that a rank of slow has"):
        settle(AUTO, store, 4, slow(memory=1e3))


def test_a_path_and_a_name_will_do(store):
    asked = Settings(algorithm="1.5d", hidden=(8,))
    assert settle(asked, store.path, 4, "infiniband-cpu") == settle(asked, store, 4, read("infiniband-cpu"))
    for ranks, machine, argument in ((0, HOSTS, "ranks"), (4, 7, "machine")):
        with pytest.raises(ArgumentError) as caught:
            settle(asked, store, ranks, machine)
        assert caught.value.argument == argument


def test_a_store_without_labels_is_refused(tmp_path):
    source = Corner()
    source.classes, source.labels = 0, None
    with pytest.raises(UserError, match="has no labels"):
        settle(AUTO, made(tmp_path, source), 4, HOSTS)


def flags(advice):
    """Return the words after `distgnn prepare with`."""
    return shlex.split(advice.split("distgnn prepare with ")[1])


def prepared_as_advised(folder, advice, seconds_of):
    """Prepare the store that the advice names, of the graph in a folder."""
    assert (
        cli.main(["prepare", str(folder / "graph"), str(folder / "made.dg"), "--force", *flags(advice)]) == 0
    )
    return seconds_of(Store(folder / "made.dg"))


def generated(folder, kind, nodes, *words):
    graph, out = str(folder / "graph"), str(folder / "made.dg")
    assert cli.main(["generate", kind, graph, "--nodes", str(nodes), "--features", "8"]) == 0
    assert cli.main(["prepare", graph, out, *words]) == 0
    return Store(out)


@pytest.mark.slow
def test_advice_names_the_partition_that_may_be_better(tmp_path):
    """On a slow network, of a graph that can be cut well; once it is there, it is taken and not advised."""
    road = generated(tmp_path, "road", 600)
    before = settle(AUTO, road, 4, FAR)
    (advice,) = before.advice
    assert not settle(Settings(algorithm="1.5d", hidden=(8,), sparsity_aware=False), road, 4, FAR).advice
    assert "may take less" in advice and flags(advice) == shlex.split("--order random --partition volume:4")
    after = prepared_as_advised(tmp_path, advice, lambda store: settle(AUTO, store, 4, FAR))
    assert after.way.order == "volume-4" and after.way.sparsity_aware and not after.advice
    least = float(advice.split("at the very least ")[1].split()[0])
    assert 0.99 * least <= after.seconds < before.seconds


@pytest.mark.slow
def test_advice_names_the_order_that_evens_out_the_work(tmp_path):
    """Non-zeros take most of the time, and one rank has them all; the orders that are there stay."""
    machine, asked = slow(nonzero=1e-5), Settings(algorithm="3d", hidden=(8,))
    before = settle(asked, made(tmp_path, Corner(), order=("original",)), 4, machine)
    (advice,) = before.advice
    assert flags(advice) == ["--order", "original,double"]
    told = float(advice.split("would take ")[1].split()[0])
    prepare(Corner(), tmp_path / "made.dg", order=flags(advice)[1].split(","), force=True)
    after = settle(replace(asked, order="double"), Store(tmp_path / "made.dg"), 4, machine)
    assert told <= 0.9 * before.seconds and after.seconds == pytest.approx(told, rel=0.15)
    of_auto = settle(AUTO, Store(tmp_path / "made.dg"), 4, machine)
    assert of_auto.seconds <= after.seconds
    assert not settle(replace(asked, order="original"), Store(tmp_path / "made.dg"), 4, machine).advice


@pytest.mark.slow
def test_advice_keeps_the_orders_that_can_be_made_again(tmp_path):
    first = generated(tmp_path, "road", 600, "--order", "original", "--partition", "random:3")
    (advice,) = settle(AUTO, first, 4, FAR).advice
    assert flags(advice) == shlex.split("--order original --partition random:3,volume:4")


def test_nodes_of_another_size():
    four = slow()
    assert [level.ranks for level in with_nodes_of(four, 6).levels] == [6, None]
    device = replace(four.levels[0], name="device", ranks=2)
    larger = replace(four, levels=[device, *four.levels])
    for ranks, sizes in ((8, [2, 8, None]), (3, [3, None]), (2, [2, None]), (1, [1, None])):
        changed = with_nodes_of(larger, ranks, 5.0)
        assert [level.ranks for level in changed.levels] == sizes and changed.memory == 5.0
        assert changed.levels[-2].name == "node" and changed.levels[-1] == four.levels[-1]
    assert with_nodes_of(replace(four, levels=four.levels[1:]), 2).levels == four.levels[1:]


@pytest.mark.parametrize("P", [8, 12, 36])
@pytest.mark.slow
def test_the_default_grid_of_3d_receives_about_the_fewest_words(P):
    """In three layers of one width; other algorithms: ``tests/operators/test_default_grids.py``."""
    asked = Settings(algorithm="3d", hidden=(24, 24), train_features=True)
    even = Graph.of_size(36 * 96, 36 * 96 * 12, 24, 24)
    runs = [dry_run(way.settings(asked), even, P, True) for way in ways(asked, P)]
    words = [run.ranks[0].epoch.words for run in runs]
    assert words[0] <= 1.05 * min(words) < max(words)


def test_open_or_not_needs_no_store():
    assert is_open(AUTO, 1) and is_open(Settings(algorithm="2d"), 2)
    assert not is_open(Settings(algorithm="2d"), 1) and is_open(replace(AUTO, sampler="sage"), 4)
