"""Curves of scaling as an HTML page and an SVG, beside logs of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError
from distgnn.files.output import check_output, replaced, writing
from distgnn.layout import written
from distgnn.plan.scaling import TIE, Curves, sentences, table
from distgnn.plan.tables import digits, name
from distgnn.report import page as pages
from distgnn.report.colours import ALGORITHMS, PHASES
from distgnn.report.logs import epoch_seconds, read_log
from distgnn.report.scaling import by_ranks
from distgnn.report.svg import INK, Line, beside
from distgnn.report.tables import ReportTable
from distgnn.report.text import aligned
from distgnn.train.settings import AUTO, Settings
from distgnn.train.ways import Way

HEADS = ("log", "ranks", "algorithm", "grid", "measured ms", "predicted ms")


@dataclass(frozen=True)
class MeasuredRun:
    """A run: the median of its epochs' seconds."""

    log: str
    way: Way
    ranks: int
    seconds: float

    @classmethod
    def read(cls, path: str) -> MeasuredRun:
        """Read a log of train. Raise UserError if it is none."""
        log = read_log(Path(path))
        run, config = log["run"], log["run"]["config"]
        if config.get("sampler") not in (None, "none"):
            raise ArgumentError("logs", path, "is of minibatches, which are not planned")
        aware = config.get("sparsity_aware") or False
        way = Way(config["algorithm"], run["grid"], config.get("order"), True if aware == AUTO else aware)
        return cls(log["name"], way, len(run["ranks"]), epoch_seconds(log))

    def predicted(self, curves: Curves) -> float | None:
        """Return seconds of the same way to train, where it was planned."""
        for point in curves.points:
            for way, seconds in point.ways if point.ranks == self.ranks else ():
                if _same(way, self.way):
                    return seconds
        return None


def _same(planned: Way, run: Way) -> bool:
    grids = [[axis for axis in way.grid.items() if axis[1] > 1] for way in (planned, run)]
    same = planned.algorithm == run.algorithm and planned.sparsity_aware == run.sparsity_aware
    return same and grids[0] == grids[1] and planned.order in (None, run.order)


class CurveFiles:
    """Files to write and to read, checked before the work.

    Raises:
        UserError: an output that can't be written or exists (without ``force``), or no log.
    """

    def __init__(self, page: str | None, drawing: str | None, logs: Sequence[str], force: bool) -> None:
        self.outputs = {what: Path(path) for what, path in (("out", page), ("svg", drawing)) if path}
        for argument, path in self.outputs.items():
            check_output(argument, path, force)
        self.measured = [MeasuredRun.read(log) for log in logs]

    def write(self, strong: Curves, weak: Curves, title: str) -> None:
        """Write all files. ArgumentError: one can't be written."""
        for argument, path in self.outputs.items():
            made = page if argument == "out" else drawing
            with writing(argument, path), replaced(path) as file:
                file.write(made(strong, weak, self.measured, title).encode())


def title(asked: dict[str, Any], settings: Settings) -> str:
    """Describe the machine, the graph and the network of curves."""
    graph = asked["graph"]
    widths = "-".join(map(str, [graph["features"], *settings.hidden_widths, graph["classes"]]))
    sizes = f"{graph['nodes']} nodes, {graph['nnz']} non-zeros"
    trained = ", trained features" if settings.train_features else ""
    return f"{asked['machine']}: {sizes}, {settings.model or 'gcn'} {widths}{trained}"


def page(strong: Curves, weak: Curves, measured: Sequence[MeasuredRun], title: str) -> str:
    """Write the HTML page."""
    figures = [pages.Figure(svg, heading) for heading, svg in drawings(strong, weak, measured)]
    sections = [pages.Section("Seconds of an epoch", figures=figures)]
    for heading, curves in (("The same graph", strong), ("As much of the graph per rank", weak)):
        heads, *rows = table(curves)
        sections.append(
            pages.Section(heading, " ".join(sentences(curves)), tables=[ReportTable(heads, rows)])
        )
    if measured:
        sections.append(pages.Section("Measured", tables=[ReportTable(HEADS, rows_of(strong, measured))]))
    return pages.render(f"distgnn plan, {title}", sections)


def text(strong: Curves, measured: Sequence[MeasuredRun]) -> str:
    """Write measured beside predicted seconds."""
    return "\n".join(aligned([HEADS, *rows_of(strong, measured)], left=4))


def rows_of(curves: Curves, measured: Sequence[MeasuredRun]) -> list[list[str]]:
    """Return rows of the table that puts measured epochs beside predicted ones."""
    rows = []
    for run in measured:
        predicted = run.predicted(curves)
        cells = [run.log, str(run.ranks), name(run.way), written(run.way.grid), digits(1e3 * run.seconds)]
        rows.append([*cells, "" if predicted is None else digits(1e3 * predicted)])
    return rows


def drawing(strong: Curves, weak: Curves, measured: Sequence[MeasuredRun], title: str) -> str:
    """Draw both kinds of scaling side by side, as an SVG file of its own."""
    return beside(title, drawings(strong, weak, measured))


def drawings(strong: Curves, weak: Curves, measured: Sequence[MeasuredRun]) -> list[tuple[str, str]]:
    """Draw strong and weak scaling: (title, SVG) each. Rings: an algorithm becomes the fastest; crosses:
    measured epochs.
    """
    crosses = []
    for way in dict.fromkeys(name(run.way) for run in measured):
        points = [(run.ranks, run.seconds) for run in measured if name(run.way) == way]
        crosses.append(Line(f"{way}, measured", _colour(way), points, marker="cross", joined=False))
    per_rank = f"weak: as much of it per rank as on {weak.ranks[0]}"
    return [("strong: the same graph", _lines(strong, crosses)), (per_rank, _lines(weak, []))]


def _lines(curves: Curves, measured: Sequence[Line]) -> str:
    drawn = [Line(way, _colour(way), [*curves.seconds(way).items()]) for way in curves.algorithms]
    if leads := _leads(curves):
        drawn.append(Line("becomes the fastest", INK, leads, marker="ring", joined=False))
    return by_ranks("seconds", [*drawn, *measured], curves.ranks, "seconds of an epoch", base=10)


def _colour(way: str) -> str:
    return ALGORITHMS.get(way, PHASES["other"])


def _leads(curves: Curves) -> list[tuple[float, float]]:
    """Find where an algorithm becomes the fastest: (ranks, seconds), between points linear in logarithms."""
    every = [curves.seconds(algorithm) for algorithm in curves.algorithms]
    points = []
    for cross in curves.crossovers():
        here = np.log(cross.at)
        heights = [
            np.interp(here, np.log([*seconds]), np.log([*seconds.values()]), left=np.inf, right=np.inf)
            for seconds in every
        ]
        lead = heights[curves.algorithms.index(cross.faster)]
        if lead <= min(heights) + TIE:
            points.append((cross.at, float(np.exp(lead))))
    return points
