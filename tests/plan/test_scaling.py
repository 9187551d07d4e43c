"""Scaling by the number of ranks: the best of each algorithm, and where one overtakes another."""

import math
from types import SimpleNamespace

import pytest

from distgnn.errors import UserError
from distgnn.plan import Graph
from distgnn.plan.choices import plan
from distgnn.plan.explain import explain
from distgnn.plan.machine import read
from distgnn.plan.scaling import Crossover, Curves, PlannedRanks, sentences, strong, table, text, weak
from distgnn.plan.tables import WIDTH, name
from distgnn.train.settings import Settings
from distgnn.train.ways import Way

MACHINE = read("perlmutter")
GRAPH = {None: Graph.of_size(4000, 60_000, 16, 8)}


def made(**seconds):
    """Make curves of these seconds per algorithm, one for each of 1, 2, 4, ... ranks; None: impossible."""
    points = []
    for power in range(len(next(iter(seconds.values())))):
        best = {
            one: SimpleNamespace(seconds=some[power], way=Way(one, {"rows": 2**power}, None, False))
            for one, some in seconds.items()
            if some[power] is not None
        }
        best = dict(sorted(best.items(), key=lambda one: one[1].seconds))
        points.append(PlannedRanks(2**power, best, [], []))
    return Curves(points)


def test_a_crossover_lies_where_the_lines_of_logarithms_cross():
    found = made(**{"1d": [1.0, 2.0, 4.0], "3d": [2.0, 2.0 / math.sqrt(2) * 2, 1.0]}).crossovers()
    assert [(cross.between, cross.faster, cross.slower) for cross in found] == [((2, 4), "3d", "1d")]
    assert 2 < found[0].at < 4
    exact = made(**{"1d": [1.0, 4.0], "3d": [2.0, 2.0]}).crossovers()
    assert exact == [Crossover((1, 2), "3d", "1d", pytest.approx(math.sqrt(2)))]


def test_ties_and_gaps_are_no_crossovers():
    assert not made(**{"1d": [1.0, 1.001, 1.0], "2d": [1.001, 1.0, 1.001]}).crossovers()
    assert not made(**{"1d": [1.0, None, 1.0], "2d": [2.0, 2.0, 2.0]}).crossovers()
    over_a_tie = made(**{"1d": [1.0, 2.0, 4.0], "2d": [2.0, 2.0, 2.0]}).crossovers()
    assert [cross.between for cross in over_a_tie] == [(1, 4)]
    over_a_gap = made(**{"1d": [1.0, None, 4.0], "2d": [2.0, 1.0, 2.0]}).crossovers()
    assert [cross.between for cross in over_a_gap] == [(1, 4)]


def test_the_text_says_who_is_fastest_and_where_scaling_stops():
    found = made(**{"1d": [4.0, 2.0, 3.0], "2d": [None, 5.0, 1.0]})
    assert table(found) == [
        ["ranks", "1d", "2d", "fastest grid"],
        ["1", "4000*", "-", "rows=1"],
        ["2", "2000*", "5000", "rows=2"],
        ["4", "3000", "1000*", "rows=4"],
    ]
    assert sentences(found)[1:] == ["Between 2 and 4 ranks 2d overtakes 1d.", "Scaling stops: 1d on 2."]
    assert all(len(line) <= WIDTH for line in text(found).splitlines())


@pytest.mark.slow
def test_strong_scaling_takes_the_best_of_every_plan():
    settings = Settings(hidden=(16,))
    found = strong(settings, GRAPH, [1, 4], MACHINE)
    for point in found.points:
        alone = plan(settings, GRAPH, point.ranks, MACHINE).choices
        for one in found.algorithms:
            best = min(choice.seconds for choice in alone if name(choice.way) == one)
            assert found.seconds(one)[point.ranks] == pytest.approx(best)
        assert next(iter(point.best.values())).seconds == pytest.approx(alone[0].seconds)
    record = found.record()
    assert [point["ranks"] for point in record["points"]] == [1, 4] and record["crossovers"] is not None
    assert [c["algorithm"] for c in record["points"][1]["choices"]] == [
        choice.way.algorithm for choice in found.points[1].best.values()
    ]


def test_weak_scaling_keeps_the_work_of_a_rank():
    settings = Settings(hidden=(16,), algorithm="1d")
    found = weak(settings, GRAPH, [2, 8], MACHINE)
    flops = [point.best["1d"].dry.ranks[0].epoch.flops for point in found.points]
    assert flops[0] == plan(settings, GRAPH, 2, MACHINE).best.dry.ranks[0].epoch.flops
    assert flops[1] == pytest.approx(flops[0], rel=0.001)
    words = [point.best["1d"].dry.ranks[0].epoch.words for point in found.points]
    assert words[1] > 6 * words[0]  # but a rank gets all of H


def test_numbers_of_ranks_without_a_grid_are_left_out():
    settings = Settings(algorithm="2d", grid={"rows": 2})
    found = strong(settings, GRAPH, [1, 2, 4], MACHINE)
    assert [*found.seconds("2d")] == [2, 4] and found.points[0].infeasible
    assert table(found)[1][1:] == ["-", ""]
    with pytest.raises(UserError, match="no way to train"):
        strong(settings, GRAPH, [1, 3], MACHINE)


def test_records_say_which_axes_stand_in_a_node():
    """A node has four ranks."""
    settings = Settings(algorithm="3d", grid="x=2,y=2,z=2")
    (point,) = strong(settings, GRAPH, [8], MACHINE).record()["points"]
    assert point["choices"][0]["axes_in_node"] == ["z", "y"]
    found = plan(settings, GRAPH, 8, MACHINE)
    assert explain(found, found.best).record()["choice"] == point["choices"][0]
