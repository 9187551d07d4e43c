"""Curves of scaling from logs of runs on different numbers of ranks, as in the papers' figures.

Runs with equal settings but for grid and seed make a series. Its point for a number of ranks is the fastest
grid. Runs on equal grids are trials, whose mean counts.
"""

from __future__ import annotations

import io
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distgnn.files.sheet import Sheet
from distgnn.layout import written
from distgnn.records import Log
from distgnn.report import colours, numbers, text
from distgnn.report.logs import epoch_seconds, of_last_launch, read_logs, settings
from distgnn.report.svg import DASHES, Axis, Line, beside, lines

#: Settings that runs of one series need not share.
VARY = ("grid", "replication", "seed", "epochs")
#: Settings that are part of the name of a way to train.
NAMED = ("algorithm", "sparsity_aware", "copies")
HEADS = ("series", "ranks", "grid", "trials", "time per epoch", "speed-up", "efficiency",
         "words per epoch, busiest rank")  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A number of ranks with the seconds of an epoch and the words received by the busiest rank in it.

    `least` and `most`: seconds of the fastest and slowest trial; `words`: None if no run has ended.
    """

    ranks: int
    grid: str
    trials: int
    seconds: float
    least: float
    most: float
    words: float | None


@dataclass(frozen=True)
class ScalingSeries:
    """A way to train on rising numbers of ranks."""

    label: str
    colour: str
    dash: str
    points: list[Point]

    def speedup(self, point: Point) -> float:
        """Return the speed-up over one rank, as if it were perfect up to this series' fewest ranks."""
        first = self.points[0]
        return first.ranks * first.seconds / point.seconds

    def efficiency(self, point: Point) -> float:
        return self.speedup(point) / point.ranks


def of_logs(paths: Sequence[str | Path], mean_of_last: int | None = None) -> list[ScalingSeries]:
    """Return the series of these logs, the fastest on most ranks first.

    Args:
        mean_of_last: take the mean seconds of that many last epochs; default: the median of all.

    Raises:
        UserError: a file that is no log of train.
    """
    return series(read_logs(paths), mean_of_last)


def series(logs: Sequence[Log], mean_of_last: int | None = None) -> list[ScalingSeries]:
    """Return the series of logs that were read: see :func:`of_logs`."""
    runs: dict[tuple[Any, ...], list[Log]] = defaultdict(list)
    for log in logs:
        shared = _shared(log)
        runs[tuple((name, str(value)) for name, value in sorted(shared.items()))].append(log)
    labels, curves = _labels([dict(key) for key in runs]), []
    used: dict[str, int] = defaultdict(int)
    for label, members in zip(labels, runs.values(), strict=True):
        config = members[0]["run"]["config"]
        dash = DASHES[used[colours.way(config)] % len(DASHES)]
        used[colours.way(config)] += 1
        curves.append(ScalingSeries(label, colours.of_way(config), dash, _points(members, mean_of_last)))
    return sorted(curves, key=lambda curve: (-curve.points[-1].ranks, curve.points[-1].seconds))


def _shared(log: Log) -> dict[str, Any]:
    """Return the settings that all runs of a series share."""
    shared = {name: value for name, value in settings(log).items() if name not in VARY}
    copies = log["run"]["grid"].get("reps", 1)
    return shared | ({"copies": copies} if copies > 1 else {})


def _labels(shared: Sequence[dict[str, str]]) -> list[str]:
    """Name each series: its way to train, and the settings in which series of this way differ."""
    ways = [_way(common) for common in shared]
    labels = []
    for way, common in zip(ways, shared, strict=True):
        alike = [other for name, other in zip(ways, shared, strict=True) if name == way]
        names = sorted({name for other in alike for name in other if name not in NAMED})
        odd = [name for name in names if len({other.get(name) for other in alike}) > 1]
        labels.append(", ".join([way, *(f"{name} {common.get(name, 'none')}" for name in odd)]))
    return labels


def _way(shared: dict[str, str]) -> str:
    copies = f" c={shared['copies']}" if "copies" in shared else ""
    return f"{colours.way(shared)}{copies}"


def _points(logs: Iterable[Log], mean_of_last: int | None) -> list[Point]:
    """Return the point of the fastest grid of each number of ranks."""
    trials: dict[tuple[int, str], list[Log]] = defaultdict(list)
    for log in logs:
        trials[len(log["run"]["ranks"]), written(log["run"]["grid"])].append(log)
    best: dict[int, Point] = {}
    for (ranks, grid), same in trials.items():
        seconds = [epoch_seconds(log, mean_of_last) for log in same]
        words = [max(log["end"]["words"]) / len(of_last_launch(log)) for log in same if log["end"]]
        mean, most = statistics.mean(seconds), max(words, default=None)
        point = Point(ranks, grid, len(same), mean, min(seconds), max(seconds), most)
        if ranks not in best or mean < best[ranks].seconds:
            best[ranks] = point
    return [best[ranks] for ranks in sorted(best)]


def rows(curves: Sequence[ScalingSeries]) -> list[list[str]]:
    """Return the table's lines, by :data:`HEADS`."""
    return [
        [curve.label, str(point.ranks), point.grid, str(point.trials), numbers.seconds(point.seconds),
         f"{curve.speedup(point):.2f}", f"{curve.efficiency(point):.0%}", numbers.short(point.words)]
        for curve in curves for point in curve.points
    ]  # fmt: skip


def markdown(curves: Sequence[ScalingSeries]) -> str:
    """Write the table in Markdown."""
    return "".join(f"{line}\n" for line in text.markdown(HEADS, rows(curves), left=1))


def csv(curves: Sequence[ScalingSeries]) -> str:
    """Write the table with plain numbers; with the seconds of the fastest and slowest trial too."""
    file = io.StringIO()
    writer = Sheet(file)
    measured = ("seconds", "least", "most", "speedup", "efficiency", "words")
    writer.writerow(["series", "ranks", "grid", "trials", *measured])
    for curve in curves:
        for p in curve.points:
            values = [p.seconds, p.least, p.most, curve.speedup(p), curve.efficiency(p)]
            words = "" if p.words is None else round(p.words)
            writer.writerow([curve.label, p.ranks, p.grid, p.trials, *(f"{x:.6g}" for x in values), words])
    return file.getvalue()


def drawings(all_series: Sequence[ScalingSeries]) -> list[tuple[str, str]]:
    """Draw seconds, speed-up, efficiency and words against the number of ranks: (title, SVG) of each."""
    ticks = sorted({point.ranks for curve in all_series for point in curve.points})
    ends = (float(ticks[0]), float(ticks[-1]))

    def curves(value: Callable[[ScalingSeries, Point], float | None]) -> list[Line]:
        made = []
        for curve in all_series:
            points = [(p.ranks, y) for p in curve.points if (y := value(curve, p)) is not None]
            made += [Line(curve.label, curve.colour, points, curve.dash)] if points else []
        return made

    scale, unit = numbers.time_unit(max(point.most for curve in all_series for point in curve.points))
    seconds = curves(lambda _, p: scale * p.seconds)
    for line, curve in zip(seconds, all_series, strict=True):
        line.spread = {p.ranks: (scale * p.least, scale * p.most) for p in curve.points if p.trials > 1}
    ideal = Line("ideal", "#9c9c9c", [(p, p) for p in ends], "2 3", 1.5, marker="")
    perfect = Line("ideal", "#9c9c9c", [(p, 100.0) for p in ends], "2 3", 1.5, marker="")
    speed = [*curves(ScalingSeries.speedup), ideal]
    share = [*curves(lambda curve, p: 100 * curve.efficiency(p)), perfect]
    words = curves(lambda _, p: p.words or None)
    made = [("Time of an epoch", by_ranks(unit, seconds, ticks, f"{unit} of an epoch", base=10))]
    made.append(("Speed-up", by_ranks("speed-up", speed, ticks, "times one rank", base=2)))
    made.append(("Efficiency", by_ranks("efficiency", share, ticks, "% of ideal")))
    if words:
        made.append(("Words", by_ranks("words", words, ticks, "words, busiest rank, epoch", base=10)))
    return made


def by_ranks(what: str, curves: Sequence[Line], ticks: Sequence[int], unit: str, **axis: Any) -> str:
    """Draw a number against the ranks, whose ``ticks`` double: an SVG. ``axis``: of the other axis."""
    return lines(f"{what} by ranks", curves, Axis("ranks", base=2, ticks=ticks), Axis(unit, **axis))


def svg(curves: Sequence[ScalingSeries]) -> str:
    """Draw the four drawings into one file."""
    return beside("scaling", drawings(curves))
