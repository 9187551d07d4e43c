"""Curves of scaling as an HTML page and a PNG, beside logs of runs."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError, UserError
from distgnn.layout import written
from distgnn.plan.choices import Way
from distgnn.plan.scaling import TIE, Curves, sentences, table
from distgnn.plan.tables import columns, digits, name
from distgnn.report import page as pages
from distgnn.report.colours import ALGORITHMS
from distgnn.report.files import check_output, replaced
from distgnn.report.logs import read_log
from distgnn.report.tables import Table
from distgnn.train.settings import Settings

HEADS = ("log", "ranks", "algorithm", "grid", "measured ms", "predicted ms")


@dataclass(frozen=True)
class Measured:
    """A run: the median of its epochs' seconds."""

    log: str
    way: Way
    ranks: int
    seconds: float

    @classmethod
    def read(cls, path: str) -> Measured:
        """From a log of train. UserError: it is none."""
        log = read_log(Path(path))
        run, config = log["run"], log["run"]["config"]
        if config.get("sampler"):
            raise ArgumentError("logs", path, "is of minibatches, which are not planned")
        aware = bool(config.get("sparsity_aware"))
        way = Way(config["algorithm"], run["grid"], config.get("order"), aware)
        return cls(
            log["name"], way, len(run["ranks"]), statistics.median(one["seconds"] for one in log["epochs"])
        )

    def predicted(self, curves: Curves) -> float | None:
        """Seconds of the same way to train, where it was planned."""
        for point in curves.points:
            for way, seconds in point.ways if point.ranks == self.ranks else ():
                if _same(way, self.way):
                    return seconds
        return None


def _same(planned: Way, run: Way) -> bool:
    grids = [[one for one in way.grid.items() if one[1] > 1] for way in (planned, run)]
    same = planned.algorithm == run.algorithm and planned.sparsity_aware == run.sparsity_aware
    return same and grids[0] == grids[1] and planned.order in (None, run.order)


class Files:
    """What to write and to read, checked before the work.

    Raises:
        UserError: an output that can't be written or exists (without ``force``), no matplotlib, or no log.
    """

    def __init__(self, page: str | None, png: str | None, logs: Sequence[str], force: bool) -> None:
        self.outputs = {what: Path(path) for what, path in (("out", page), ("png", png)) if path}
        for argument, path in self.outputs.items():
            check_output(argument, path, force)
        if self.outputs:
            check_matplotlib()
        self.measured = [Measured.read(log) for log in logs]

    def write(self, strong: Curves, weak: Curves, title: str) -> None:
        """Write all files. ArgumentError: one can't be written."""
        for argument, path in self.outputs.items():
            try:
                with replaced(path) as file:
                    if argument == "png":
                        draw(strong, weak, self.measured, title).savefig(file, format="png", dpi=150)
                    else:
                        file.write(page(strong, weak, self.measured, title).encode())
            except OSError as error:
                raise ArgumentError(argument, path, f"cannot write it ({error.strerror})") from None


def title(asked: dict[str, Any], settings: Settings) -> str:
    """What curves are of: the machine, the graph and the network."""
    graph = asked["graph"]
    widths = "-".join(map(str, [graph["features"], *settings.hidden_widths, graph["classes"]]))
    sizes = f"{graph['nodes']} nodes, {graph['nnz']} non-zeros"
    trained = ", trained features" if settings.train_features else ""
    return f"{asked['machine']}: {sizes}, {settings.model or 'gcn'} {widths}{trained}"


def page(strong: Curves, weak: Curves, measured: Sequence[Measured], title: str) -> str:
    """The HTML page."""
    sections = [
        pages.Section("Seconds of an epoch", figures=[pages.Figure(as_svg(draw(strong, weak, measured)), "")])
    ]
    for heading, curves in (("The same graph", strong), ("As much of the graph per rank", weak)):
        heads, *rows = table(curves)
        sections.append(pages.Section(heading, " ".join(sentences(curves)), tables=[Table(heads, rows)]))
    if measured:
        sections.append(pages.Section("Measured", tables=[Table(HEADS, rows_of(strong, measured))]))
    return pages.render(f"distgnn plan, {title}", sections)


def as_svg(figure: Any) -> str:
    """A figure of matplotlib, to stand within a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight")
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def check_matplotlib() -> None:
    """Draw without a display. UserError: there is no matplotlib."""
    try:
        import matplotlib
    except ImportError:
        problem = "install the extra plot, as in pip install 'distgnn[plot]'"
        raise UserError(f"plan needs matplotlib: {problem}") from None
    matplotlib.use("svg")


def text(strong: Curves, measured: Sequence[Measured]) -> str:
    """Measured beside predicted seconds."""
    return "\n".join(columns([HEADS, *rows_of(strong, measured)], left=4))


def rows_of(curves: Curves, measured: Sequence[Measured]) -> list[list[str]]:
    """Rows of the table that puts measured epochs beside predicted ones."""
    rows = []
    for one in measured:
        predicted = one.predicted(curves)
        cells = [one.log, str(one.ranks), name(one.way), written(one.way.grid), digits(1e3 * one.seconds)]
        rows.append([*cells, "" if predicted is None else digits(1e3 * predicted)])
    return rows


def draw(strong: Curves, weak: Curves, measured: Sequence[Measured], title: str = "") -> Any:
    """Both kinds of scaling side by side; circles: who is fastest from there on; crosses: measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    figure.suptitle(title, fontsize=10)
    for axes, curves in ((left, strong), (right, weak)):
        for one in curves.algorithms:
            seconds = curves.seconds(one)
            axes.plot([*seconds], [*seconds.values()], ".-", color=ALGORITHMS.get(one), label=one)
        _mark_leads(axes, curves)
        axes.set(xlabel="ranks", ylabel="seconds of an epoch")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda count, _: f"{count:g}")
        axes.grid(alpha=0.3)
    for one in dict.fromkeys(name(run.way) for run in measured):
        points = [(run.ranks, run.seconds) for run in measured if name(run.way) == one]
        left.plot(
            *zip(*points, strict=True), "x", color=ALGORITHMS.get(one), markersize=8, label=f"{one}, measured"
        )
    left.set_title("strong: the same graph")
    right.set_title(f"weak: as much of it per rank as on {weak.ranks[0]}")
    left.legend(fontsize=8)
    return figure


def _mark_leads(axes: Any, curves: Curves) -> None:
    """A circle where the fastest algorithm is overtaken."""
    every = [curves.seconds(one) for one in curves.algorithms]
    for cross in curves.crossovers():
        here = np.log(cross.at)
        heights = [
            np.interp(here, np.log([*seconds]), np.log([*seconds.values()]), left=np.inf, right=np.inf)
            for seconds in every
        ]
        own = heights[curves.algorithms.index(cross.faster)]
        if own <= min(heights) + TIE:
            axes.plot(cross.at, np.exp(own), "o", color="black", fillstyle="none", markersize=10)
