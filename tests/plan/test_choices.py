"""Every way to train, the fastest first; and what is short where there is none."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.errors import ArgumentError, UserError
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, grids
from distgnn.plan import Graph, Known, tables
from distgnn.plan.choices import plan
from distgnn.plan.explain import explain
from distgnn.plan.machine import Measured, Overlap, read
from distgnn.plan.pricing import bound, priced
from distgnn.train.settings import Settings
from distgnn.train.ways import Way, axis_orders, ways

from .machines import slow

MACHINE = read("perlmutter")
SETTINGS = Settings(hidden=(16, 16), train_features=True)
GRAPH = Graph.of_size(4000, 60_000, 16, 8)


def planned(ranks, settings=SETTINGS, memory=MACHINE.memory, graphs=None):
    return plan(settings, graphs or {None: GRAPH}, ranks, replace(MACHINE, memory=memory))


def peak(choice):
    return max(choice.peak_bytes)


@pytest.fixture(scope="module")
def eight():
    return planned(8)


def sends(name, grid, ranks):
    """Count what may be sent: whole blocks; to other block rows needed rows; covers where it is not 1D.

    On a single block row, of `rdm` also the rows that cross between its ranks.
    """
    if name not in SPARSITY_AWARE:
        return 1
    if grid["rows"] == 1:
        return 2 if name == "rdm" else 1
    return 2 if grid["rows"] == ranks and name != "1d" else 3


def test_every_algorithm_grid_and_order_of_axes_is_there_once(eight):
    assert not eight.infeasible
    found = [(c.way.algorithm, c.way.sparsity_aware, *c.way.grid.items()) for c in eight.choices]
    expected = []
    for name in ALGORITHMS:
        for grid in grids(name, 8):
            orders = math.factorial(sum(size > 1 for size in grid.values()))
            expected += [(name, tuple(sorted(grid.items())))] * orders * sends(name, grid, 8)
    assert len(found) == len(set(found))
    assert sorted((name, tuple(sorted(grid))) for name, _, *grid in found) == sorted(expected)


def test_the_fastest_is_first_and_phases_add_up(eight):
    seconds = [choice.seconds for choice in eight.choices]
    assert seconds == sorted(seconds) and seconds[0] > 0 and eight.best is eight.choices[0]
    assert seconds == pytest.approx([sum(choice.estimate.phases.values()) for choice in eight.choices])


def test_where_axes_stand_in_nodes_makes_a_difference(eight):
    """Nodes have four ranks: of 2 x 2 x 2, the axis that leaves the node is the slow one."""
    assert MACHINE.levels[0].ranks == 4
    cubes = [c for c in eight.choices if c.way.algorithm == "3d" and set(c.way.grid.values()) == {2}]
    assert len(cubes) == 6 and len({round(choice.seconds, 9) for choice in cubes}) > 1
    assert len({tuple(choice.record()["words"]) for choice in cubes}) == 1


def test_the_record_is_what_the_command_prints(eight):
    record = json.loads(json.dumps(eight.record()))
    assert record.keys() > {"machine", "ranks", "graph", "settings", "choices", "infeasible"}
    for one in record["choices"]:
        assert list(one) == [
            "algorithm", "grid", "axes_in_node", "order", "sparsity_aware", "seconds", "phases", "words",
            "messages", "peak_bytes",
        ]  # fmt: skip
        near = [axis for axis, size in reversed(one["grid"].items()) if size > 1]
        ranks = [math.prod(one["grid"][axis] for axis in near[:count]) for count in range(len(near))]
        assert one["axes_in_node"] == [axis for axis, before in zip(near, ranks, strict=True) if before < 4]
        assert all(len(one[name]) == 8 for name in ("words", "messages", "peak_bytes"))


@pytest.mark.slow
def test_what_does_not_fit_says_what_it_needs(eight):
    peaks = sorted(peak(choice) for choice in eight.choices)
    room = peaks[len(peaks) // 2]
    tight = planned(8, memory=room)
    assert all(peak(choice) <= room for choice in tight.choices)
    assert tight.infeasible and all(one.peak > room for one in tight.infeasible)
    assert {str(one.way) for one in tight.infeasible}.isdisjoint(str(c.way) for c in tight.choices)
    record = tight.record()["infeasible"][0]
    assert list(record) == ["algorithm", "grid", "axes_in_node", "order", "sparsity_aware", "reason"]
    assert re.fullmatch(r"a rank needs [\d.]+ (K|M|G)iB and has [\d.]+ (K|M|G)iB", record["reason"])


@pytest.mark.parametrize("share", [0.9, 0.3])
@pytest.mark.slow
def test_short_memory_says_the_least_ranks_that_would_do(share):
    room = share * min(peak(choice) for choice in planned(2).choices)
    with pytest.raises(UserError, match="no way to train fits into") as caught:
        planned(2, memory=room).best
    enough = int(re.search(r"(\d+) of these would do", str(caught.value))[1])
    assert planned(enough, memory=room).choices
    assert enough == 4 or not planned(enough // 2, memory=room).choices


def test_the_fullest_rank_must_have_room():
    A = sp.block_diag([sp.eye_array(32), np.ones((32, 32))], format="csr")
    graphs = {None: Graph.known(A, 8, 4, np.zeros(64, np.int32), np.ones(64, np.uint8))}
    settings = Settings(algorithm="1d", sparsity_aware=False, hidden=(8,))
    first, last = planned(2, settings, graphs=graphs).best.peak_bytes
    assert first < last and not planned(2, settings, last - 1, graphs).choices


@pytest.mark.slow
def test_memory_that_no_number_of_ranks_makes_enough():
    small = {None: Graph.of_size(50, 600, 16, 8)}
    with pytest.raises(UserError, match="up to 32 ranks need more, take ranks with as much"):
        planned(2, memory=100, graphs=small).best
    with pytest.raises(UserError, match="up to 4 ranks need more, take"):  # this grid is one of two ranks
        planned(2, Settings(algorithm="2d", grid="2x1"), memory=1000, graphs=small).best


@pytest.mark.parametrize(
    ("ranks", "asked", "would"),
    [(5, {"grid": "rows=2,cols=2"}, "4 or 8"), (5, {"algorithm": "3d-split", "grid": {"rows": 2}}, "4 or 6"),
     (2, {"grid": "x=2,y=2,z=2"}, "8"), (6, {"replication": 4}, "4 or 8")],
)  # fmt: skip
def test_ranks_that_make_no_such_grid_say_which_do(ranks, asked, would):
    none = planned(ranks, Settings(**asked))
    assert not none.choices and none.infeasible
    with pytest.raises(UserError, match=f"no way to train on {ranks} ranks: .*{would.split()[-1]} would do"):
        none.best
    for count in would.split(" or "):
        assert planned(int(count), Settings(**asked)).choices


@pytest.mark.parametrize(
    ("asked", "argument"),
    [({"algorithm": "4d"}, "algorithm"), ({"algorithm": "1d", "replication": 2}, "replication"),
     ({"algorithm": "2d", "sparsity_aware": True}, "sparsity_aware"), ({"grid": "0x2"}, "grid"),
     ({"algorithm": "2d", "grid": "rows=-2"}, "grid"), ({"grid": "a=2"}, "grid")],
)  # fmt: skip
def test_what_no_algorithm_has_is_refused(asked, argument):
    with pytest.raises(ArgumentError) as caught:
        planned(4, Settings(**asked))
    assert caught.value.argument == argument


def test_what_is_asked_for_is_kept():
    assert {c.way.algorithm for c in planned(4, Settings(grid="2x2")).choices} == {"1.5d", "2d", "rdm"}
    assert {c.way.sparsity_aware for c in planned(4, Settings(sparsity_aware=True)).choices} == {True}
    kept = planned(8, Settings(algorithm="3d", grid="z=2,x=2,y=2")).choices
    assert [list(choice.way.grid) for choice in kept] == [["z", "x", "y"]]
    copies = planned(8, Settings(replication=2)).choices
    assert {(c.way.algorithm, c.way.grid["reps"]) for c in copies} == {("1.5d", 2)}


def test_without_overlap_no_message_goes_on_during_a_product():
    def seconds(overlap, progress):
        settings = Settings(algorithm="1d", hidden=(16,), sparsity_aware=False, overlap=overlap)
        machine = replace(MACHINE, overlap=Overlap(progress, 0.0))
        return plan(settings, {None: GRAPH}, 4, machine).best.seconds

    assert seconds(False, 1.0) == seconds(False, 0.0)
    assert seconds(True, 1.0) < seconds(True, 0.0)


def test_each_shape_is_one_way():
    found = [(way.algorithm, way.sparsity_aware, tuple(way.grid.items())) for way in ways(Settings(), 12)]
    assert len(found) == len(set(found))
    shapes = [(name, grid) for name in ALGORITHMS for grid in grids(name, 12)]
    assert len(found) == sum(sends(*shape, 12) for shape in shapes)


@pytest.mark.parametrize("asked", [{}, {"product_order": "aggregate-first"}, {"model": "gat", "heads": (2,)}])
def test_grids_on_which_ranks_have_no_column_are_priced(asked):
    """A rank in 12 process columns has one of 5 classes or none: seven ranks have nothing to multiply."""
    settings = Settings(algorithm="rdm", hidden=(6,), **asked)
    found = plan(settings, {None: Graph.of_size(96, 960, 16, 5)}, 12, MACHINE)
    assert {c.way.grid["cols"] for c in found.choices} == {1, 2, 3, 4, 6, 12}


def test_axes_of_size_one_have_one_place():
    assert [list(grid) for grid in axis_orders({"x": 2, "y": 1, "z": 4})] == [
        ["y", "x", "z"],
        ["y", "z", "x"],
    ]
    assert list(axis_orders({"x": 1})) == [{"x": 1}]


@pytest.mark.slow
def test_orders_are_for_the_algorithms_that_take_them():
    matrix = sp.random_array((96, 96), density=0.2, rng=np.random.default_rng(0), format="csr")
    matrix = (matrix + matrix.T).tocsr()
    plain = Graph.known(matrix, 8, 4, np.zeros(96, np.int32), np.ones(96, np.uint8))
    graphs = {
        "plain": plain,
        "double": replace(plain, odd=plain.source),
        "volume-4": replace(plain, parts=np.array([0, 20, 50, 70, 96])),
    }
    found = planned(4, Settings(hidden=(8,)), graphs=graphs)
    by_order = {order: {c.way.algorithm for c in found.choices if c.way.order == order} for order in graphs}
    assert by_order == {"plain": {*ALGORITHMS}, "double": {"3d"}, "volume-4": {*ALGORITHMS}}
    rows = {c.way.grid["rows"] for c in found.choices if c.way.order == "volume-4" and "reps" in c.way.grid}
    assert rows == {1, 4}  # one block row has all parts
    reasons = {one.way.order: one.reason for one in found.infeasible}
    assert reasons.keys() == {"double", "volume-4"}
    assert "3d" in reasons["double"] and "4 parts" in reasons["volume-4"]
    attended = planned(4, Settings(hidden=(8,), model="gat", algorithm="3d"), graphs=graphs)
    assert {c.way.order for c in attended.choices} == {"plain", "volume-4"}
    reasons = {one.way.order: one.reason for one in attended.infeasible}
    assert reasons["double"].endswith("model=gat can't use")


def test_more_ranks_than_nodes_are_refused():
    with pytest.raises(UserError, match="32 ranks are more than the graph has nodes, 10"):
        planned(32, graphs={None: Graph.of_size(10, 30, 4, 2)}).best


def test_a_grown_graph_has_as_much_in_every_place():
    matrix = sp.random_array((64, 64), density=0.2, rng=np.random.default_rng(0), format="csr")
    known = Graph.known(matrix, 8, 4, np.zeros(64, np.int32), np.ones(64, np.uint8))
    assert (
        known.nnz == matrix.nnz and Graph.known(Known(known.source), 8, 4, np.zeros(64), np.ones(64, int)).nnz
    )
    for graph in (GRAPH, known):
        grown = graph.grown(3)
        assert (grown.n, grown.nnz) == (3 * graph.n, 3 * graph.nnz)
        assert (grown.width, grown.classes, grown.counts[1]) == (
            graph.width,
            graph.classes,
            3 * graph.counts[1],
        )
    one_d = Settings(algorithm="1d", hidden=(16,))
    small, large = planned(4, one_d).best, planned(8, one_d, graphs={None: GRAPH.grown(2)}).best
    assert large.dry.ranks[0].epoch.flops == pytest.approx(small.dry.ranks[0].epoch.flops, rel=0.001)


def test_a_way_makes_the_settings_of_a_run():
    way = Way("1.5d", {"reps": 2, "rows": 2}, "random", True)
    made = way.settings(Settings(replication=2, hidden=(8,)))
    assert (made.algorithm, made.grid, made.order, made.sparsity_aware) == ("1.5d", way.grid, "random", True)
    assert made.replication is None and made.hidden == (8,)


def test_what_a_machine_was_not_measured_with_and_what_overlap_costs_are_said():
    one_way = Settings(algorithm="1d", sparsity_aware=False, hidden=(16,))
    here = replace(MACHINE, measured=Measured(2, "2026-01-01", {}))
    assert plan(one_way, GRAPH, 2, here).advice == []
    (line,) = plan(one_way, GRAPH, 4, here).advice
    assert "was measured with 2 ranks" in line
    slowed = replace(MACHINE, overlap=Overlap(0.0, 5.0))  # messages gain nothing, and computing loses
    busy = Graph.of_size(100_000, 10**8, 64, 8)
    found = plan(one_way, busy, 4, slowed)
    (line,) = found.advice
    alone = plan(replace(one_way, overlap=False), busy, 4, slowed)
    assert f"with --no-overlap {alone.best.way} would take {alone.best.seconds:.3g} s" in line
    assert alone.best.seconds < 0.9 * found.best.seconds and alone.advice == []


def test_what_is_no_machine_and_no_rank_is_refused():
    for machine, ranks, argument in ((3, 2, "machine"), (None, 2, "machine"), ("perlmutter", 0, "ranks")):
        with pytest.raises(ArgumentError) as caught:
            plan(SETTINGS, GRAPH, ranks, machine)
        assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("sizes", "holders"),
    [({"rows": 1, "cols": 8}, 4), ({"rows": 2, "cols": 4}, 4), ({"cols": 4, "rows": 2}, 2)],
)
def test_ranks_of_a_node_hold_one_copy_of_what_they_all_multiply(sizes, holders):
    """Nodes have four ranks. Of a process row these are neighbours, but where rows are the near axis."""
    graph, hosts = Graph.of_size(4000, 400_000, 16, 8), replace(MACHINE, shared_memory=True)
    settings = replace(SETTINGS, algorithm="rdm", grid=sizes, sparsity_aware=False)
    (copies,) = plan(settings, graph, 8, MACHINE).choices
    found = plan(settings, graph, 8, hosts)
    (shared,) = found.choices
    A = copies.dry.ranks[0].peak["adjacency"]
    assert peak(copies) - peak(shared) == A - A // holders and shared.seconds == copies.seconds
    assert sum(explain(found, shared).memory.values()) == peak(shared)
    room = (peak(copies) + peak(shared)) // 2
    assert plan(settings, graph, 8, replace(hosts, memory=room)).choices
    assert not plan(settings, graph, 8, replace(MACHINE, memory=room)).choices


@pytest.mark.parametrize("wire", [None, "bfloat16"])
def test_ways_are_left_out_that_would_not_be_shown(wire):
    graph, settings = Graph.of_size(20_000, 400_000, 64, 8), Settings(hidden=(32,), wire=wire)
    machine = slow(bandwidth=1e6)
    full, part = (plan(settings, graph, 16, machine, complete) for complete in (True, False))
    first, second = (tables.shown(some, False) for some in (full, part))
    assert [(one.way, one.estimate) for _, one in first] == [(one.way, one.estimate) for _, one in second]
    assert full.alike == part.alike and full.left_out is None
    assert part.left_out is not None
    count, times = part.left_out
    assert count > 3 and times > 1
    of = lambda way: (way.algorithm, way.sparsity_aware, *sorted(way.grid.items()))  # noqa: E731
    shapes: dict = {}
    for choice in full.choices:
        shapes.setdefault(of(choice.way), choice)
    missing = shapes.keys() - {of(choice.way) for choice in part.choices}
    assert len(missing) == count
    assert min(shapes[shape].seconds for shape in missing) >= times * full.best.seconds
    for choice in shapes.values():
        assert 0 < min(bound(settings, graph, choice.way, 16, machine)) <= choice.seconds
    line = f"... and {count} that take at least {times:.3g} times the first, left out"
    assert line in tables.text(part) and "left out" not in tables.text(full)


@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
def test_ways_that_stand_in_rows_cost_what_1d_costs(model):
    """Choices of 1D stand for them, and are those of their own dry runs."""
    more = {"train_features": True, "wire": "bfloat16"} if model == "gcn" else {}
    settings, graph = Settings(hidden=(32, 16), model=model, **more), Graph.of_size(9000, 200_000, 40, 9)
    choices, alike = plan(settings, graph, 24, slow()).choices, 0
    for choice in choices:
        if choice.way.as_1d and choice.way.algorithm in SPARSITY_AWARE:
            (own,) = priced(settings, graph, 24, slow(), choice.way)
            assert own.record() == choice.record() and own.estimate == choice.estimate
            first = next(c for c in choices if c.way.grid == {"rows": 24} and (
                c.way.sparsity_aware == choice.way.sparsity_aware
            ))  # fmt: skip
            alike += choice.dry is first.dry
    assert alike == (0 if model == "gat" else 4)


def test_a_dry_run_ends_where_the_memory_does():
    """Ways without room say at least what they need, with the same choices; if none has room, the peaks."""
    graph, settings = Graph.of_size(20_000, 400_000, 64, 8), Settings(hidden=(32,))
    peaks = sorted(peak(choice) for choice in plan(settings, graph, 32, MACHINE).choices)
    machine = replace(MACHINE, memory=peaks[len(peaks) // 2])
    full, part = (plan(settings, graph, 32, machine, complete) for complete in (True, False))
    needs = {str(way.way): way.peak for way in full.infeasible}
    assert part.infeasible and {str(way.way) for way in part.infeasible} <= needs.keys()
    for way in part.infeasible:
        assert machine.memory < way.peak <= needs[str(way.way)] and "needs at least" in way.reason
    assert any(way.peak < needs[str(way.way)] for way in part.infeasible)
    record = {str(choice.way): choice.record() for choice in full.choices}
    assert all(choice.record() == record[str(choice.way)] for choice in part.choices)
    none = [plan(settings, graph, 32, replace(MACHINE, memory=peaks[0] // 2), how) for how in (True, False)]
    assert none[0].infeasible == none[1].infeasible and not none[1].choices
