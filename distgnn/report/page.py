"""An HTML page of runs, from their logs and traces.

It shows loss, time by phase, scaling, load balance, messages, memory and timelines. The file needs no
network; ``templates/page.html`` defines its look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from distgnn.errors import ArgumentError
from distgnn.files.output import check_apart, check_output, replaced, writing
from distgnn.layout import written
from distgnn.records import Log
from distgnn.report import charts, colours, numbers, scaling, svg, tables
from distgnn.report.groups import MOST
from distgnn.report.logs import epoch_seconds, read_logs, read_trace
from distgnn.report.tables import ReportTable


@dataclass
class Figure:
    """A drawing with a title and a text."""

    svg: str
    title: str
    text: str = ""


@dataclass
class Section:
    """A heading with sentences, figures side by side where there is room, and tables.

    ``folded``: shown on demand.
    """

    title: str
    text: str = ""
    figures: list[Figure] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    folded: bool = False


def write(
    logs: Sequence[str | Path], traces: Sequence[str | Path], out: str | Path, force: bool = False,
    mean_of_last: int | None = None, figure: str | Path | None = None, table: str | Path | None = None,
) -> None:  # fmt: skip
    """Write the page, and the figure (.svg) and table (.md or .csv) of scaling.

    Raises:
        UserError: a file that is no log or trace, or an output that exists or can't be written. No output was
            written then, unless a disk is full.
    """
    outputs = {
        name: Path(path) for name, path in (("out", out), ("figure", figure), ("table", table)) if path
    }
    check_apart(outputs, [*logs, *traces])
    for name, path in outputs.items():
        endings = {"figure": (".svg",), "table": (".md", ".csv")}.get(name, (path.suffix,))
        if path.suffix not in endings:
            raise ArgumentError(name, path, f"expected a name that ends in {' or '.join(endings)}")
        check_output(name, path, force)
    read = read_logs(logs)
    curves = scaling.series(read, mean_of_last)
    sections = [
        *overview(read, curves),
        *(timeline(trace) for trace in traces),
        *(details(log, len(read) > UNFOLDED) for log in read),
    ]
    made = {"out": lambda: render("distgnn report", sections, facts=tables.heading(read))}
    made["figure"] = lambda: scaling.svg(curves)
    made["table"] = lambda: (scaling.csv if outputs["table"].suffix == ".csv" else scaling.markdown)(curves)
    for name, path in outputs.items():
        text = made[name]()
        with writing(name, path), replaced(path) as file:
            file.write(text.encode())


def render(
    title: str, sections: Sequence[Section], note: str = "", facts: Sequence[tuple[str, Sequence[str]]] = ()
) -> str:  # fmt: skip
    """Render the page. ``facts``: names with their values, for its top."""
    return _template().render(title=title, sections=sections, note=note, facts=facts, style=svg.style())


@cache
def _template() -> Any:
    import jinja2

    folder = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    kept = jinja2.Environment(loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return kept.get_template("page.html")


def overview(logs: Sequence[Log], series: Sequence[scaling.ScalingSeries]) -> list[Section]:
    """Make the sections that compare all runs."""
    sections = [Section("Runs", RUNS, tables=[tables.runs(logs)])]
    curves = [Figure(charts.losses(logs), "Training loss"), Figure(charts.scores(logs), "Validation")]
    curves = [curve for curve in curves if curve.svg]
    if curves:
        sections.append(Section("Loss and scores", COINCIDE if len(logs) > 1 else "", curves))
    sections.append(Section("Time of an epoch", EPOCH, [Figure(charts.phases(logs), "By phase")]))
    if any(len(curve.points) > 1 for curve in series):
        figures = [Figure(drawn, title) for title, drawn in scaling.drawings(series)]
        sections.append(
            Section("Scaling", SCALING, figures, [ReportTable(scaling.HEADS, scaling.rows(series))])
        )
    odd = tables.differing(logs) if len(logs) > 1 else None
    shown = [tables.compared(group) for group in tables.equal_runs(logs)] + ([odd] if odd else [])
    return [*sections, Section("Differences between runs", tables=shown)] if shown else sections


def timeline(path: str | Path) -> Section:
    """Make the section of one epoch of a trace."""
    events = read_trace(Path(path))
    epoch = charts.steady(events)
    drawn = Figure(charts.timeline(events, epoch), "What every rank did when")
    return Section(f"Timeline of {epoch['name']} in {path}", figures=[drawn])


def details(log: Log, folded: bool = False) -> Section:
    """Make the section of one run: its ranks, hosts and settings."""
    run, settings = log["run"], [tables.all_facts(log)]
    ranks = len(run["ranks"])
    text = f"{colours.way(run['config'])} on {ranks} rank{'s' * (ranks > 1)}, grid {written(run['grid'])}; "
    text += f"an epoch takes {numbers.seconds(epoch_seconds(log))}."
    if not log["end"]:
        return Section(
            log["name"], f"{text} The run has not ended: no rank has reported.", [], settings, folded
        )
    of_each, of_pairs = (text.format(ranks // MOST) if ranks > MOST else "" for text in (FULLEST, SUMS))
    figures = [
        Figure(charts.balance(log), "Load balance", BALANCE + of_each),
        Figure(charts.memory(log), "Memory by purpose", MEMORY + of_each),
        Figure(charts.traffic(log), "Who sent whom", TRAFFIC + of_pairs),
    ]
    made = [tables.balance(log), tables.sent(log), tables.by_rank(log)]
    shown = [table for table in made if table is not None] + settings
    return Section(log["name"], text, [figure for figure in figures if figure.svg], shown, folded)


UNFOLDED = 6  # up to this number of runs, the details of each are shown unfolded
RUNS = """Epoch: the median of its seconds. Under way: the seconds that messages travelled in it; exposed: the
share of these that rank 0 waited for or drove. Messages: bytes that the ledger charges the busiest rank in
the whole run, as a rule those that it receives; memory: of the fullest rank. Of a run that went on in its
log seconds, messages and memory are those of the last launch."""
COINCIDE = "Where curves coincide, the later run is drawn thinner on top of the earlier one."
EPOCH = "Communication (comm): seconds that rank 0 waited for messages or drove them, not the hidden ones."
SCALING = """Each point is the fastest grid of a number of ranks, and the mean of its equal runs, with
whiskers from the fastest to the slowest. Speed-up is over one rank, as if it were perfect up to the fewest
ranks of a curve."""
BALANCE = "Timed work; comm is waiting for messages and driving them."
FULLEST = " Each bar is the fullest of {} ranks, or of one more."
SUMS = " Each cell is the sum between two groups of {} ranks, or of one more."
MEMORY = "Bytes by purpose at the peak of their sum."
TRAFFIC = """Words of the whole run, which are entries of matrices and their indices, as the ledger charges
them: a broadcast is charged to the owner of the panel, even if another rank handed it on; a sum is shared
equally by all ranks of its group."""
