"""An HTML page of runs, from their logs and traces: loss, time by phase, communication, memory, timelines."""

from __future__ import annotations

import html
import io
import json
import operator
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distgnn.errors import ArgumentError, UserError
from distgnn.layout import written
from distgnn.report.files import check_output, replaced
from distgnn.report.metrics import score, title
from distgnn.report.trace import COMPUTE, EPOCHS, UNDER_WAY, WAITED

COLOURS = {
    "spmm": "#4269d0", "gemm": "#6cc5b0", "activation": "#3ca951", "loss": "#ff8ab7", "optimizer": "#9c6b4e",
    "comm": "#efb118", "sampling": "#a463f2", "other": "#9c9c9c",
}  # fmt: skip
LOOKS = COLOURS | {"under way": "#f6dd9a"}
#: What the end of a log says of every rank, and the unit to show it in.
RANKS = {"words": ("million words", 1e6), "messages": ("messages", 1), "peak_bytes": ("peak MiB", 2**20)}
#: Columns of the table of runs.
HEADS = (
    *("run", "algorithm", "grid", "ranks", "widths", "epochs", "last loss", "test score"),
    *("seconds per epoch", "of it communication under way", "of that exposed"),
    *("million words per rank, at most", "peak MiB per rank, at most"),
)

Log = dict[str, Any]  # name, run, epochs, end


def write(logs: Sequence[str], traces: Sequence[str], out: str, force: bool) -> None:
    """Write the page; UserError for a file that is no log or trace, a page that exists, or no matplotlib."""
    path = Path(out)
    check_output("out", path, force)
    read = [read_log(Path(log)) for log in logs]
    timelines = [(trace, read_trace(Path(trace))) for trace in traces]
    sections = ["<h2>Runs</h2>" + html_table(HEADS, [table_row(log) for log in read])]
    sections.append(drawn("Loss and accuracy", draw_curves, read))
    sections.append(drawn("Seconds of an epoch", draw_phases, read))
    sections.append(drawn("Communication and memory by rank", draw_ranks, read))
    for name, events in timelines:
        epoch = steady(events)
        sections.append(drawn(f"Timeline of {epoch['name']} in {name}", draw_timeline, events, epoch))
    sections += [details(log) for log in read]
    try:
        with replaced(path) as file:
            file.write(PAGE.format(title="distgnn report", body="\n".join(sections)).encode())
    except OSError as error:
        raise ArgumentError("out", path, f"cannot write it ({error.strerror})") from None


def read_log(path: Path) -> Log:
    """The events of a log, which may end within a line; UserError for a log without an epoch of a run."""
    log: Log = {"name": path.stem, "run": None, "epochs": [], "end": None}
    lines = _read(path).splitlines()
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            kind = event["event"]
            check(kind, event)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            if number == len(lines) and log["epochs"]:
                break  # the run was ended while it wrote
            problem = "no event of a log; expected what train with log=FILE writes"
            raise UserError(f"{path}, line {number}: {problem}") from None
        if kind == "epoch":
            log["epochs"].append(event)
        elif kind in log:
            log[kind] = event
    if log["run"] is None or not log["epochs"]:
        raise UserError(f"{path}: holds no epoch of a run; expected what train with log=FILE writes")
    return log


def check(kind: str, event: dict[str, Any]) -> None:
    """Raises any exception where an event has not what the page shows."""
    if kind == "run":
        event["config"]["algorithm"], [*event["config"]["widths"]], written(event["grid"]), [*event["ranks"]]
    elif kind == "epoch":
        float(event["seconds"] + event["epoch"]), event["loss"], [*map(float, event["phases"].values())]
    elif kind == "end":
        [max(event[name]) for name in RANKS]


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The complete events of a trace; UserError if it can't be read or is none."""
    try:
        events = [event for event in json.loads(_read(path))["traceEvents"] if event["ph"] == "X"]
        for event in events:
            float(event["ts"] + event["dur"]), event["pid"] + event["tid"], event["name"]
        if not any(event["tid"] == EPOCHS for event in events):
            raise KeyError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{path}: no trace of epochs; expected what train with trace=FILE writes") from None
    return events


def _read(path: Path) -> str:
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError(f"{path}: is no regular file")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "not text"
        raise UserError(f"{path}: cannot read it ({problem})") from None


def median_phases(log: Log) -> dict[str, float]:
    """Seconds of each phase that the log has, the median over epochs."""
    epochs = [epoch["phases"] for epoch in log["epochs"]]
    told = [phase for phase in COLOURS if any(phase in epoch for epoch in epochs)]
    return {phase: statistics.median(epoch.get(phase, 0.0) for epoch in epochs) for phase in told}


def table_row(log: Log) -> list[Any]:
    """A run in the table of all, by the columns of HEADS."""
    run, end, epochs = log["run"], log["end"] or {}, log["epochs"]
    config, last = run["config"], epochs[-1]
    seconds = statistics.median(epoch["seconds"] for epoch in epochs)
    under_way = statistics.median(epoch.get("flight", 0.0) for epoch in epochs)
    exposed = f"{median_phases(log).get('comm', 0.0) / under_way:.0%}" if under_way else ""
    grid, widths = written(run["grid"]), "-".join(map(str, config["widths"]))
    row = [log["name"], config["algorithm"], grid, len(run["ranks"]), widths, len(epochs)]
    row += [_number(last["loss"]), _score(end), f"{seconds:.4f}"]
    row += [f"{under_way:.4f}" if under_way else "", exposed]
    for name in ("words", "peak_bytes"):
        row.append(f"{max(end[name]) / RANKS[name][1]:.2f}" if end else "run not ended")
    return row


def details(log: Log) -> str:
    """What every rank did, where, and with which settings."""
    run, end = log["run"], log["end"]
    parts = [f"<h2>{html.escape(log['name'])}</h2>"]
    if end:
        places = [f"{rank.get('host', '')} {rank.get('device', '')}" for rank in run["ranks"]]
        buffers = end.get("buffer_bytes", [])
        columns = {unit: [value / scale for value in end[name]] for name, (unit, scale) in RANKS.items()}
        for purpose in sorted({purpose for held in buffers for purpose in held}):
            columns[f"MiB of {purpose}"] = [held.get(purpose, 0) / 2**20 for held in buffers]
        texts = ([f"{value:.6g}" for value in column] for column in columns.values())
        rows = [(rank, *row) for rank, row in enumerate(zip(places, *texts, strict=False))]
        parts.append(html_table(["rank", "runs on", *columns], rows))
    facts = [*run["config"].items(), ("started", run.get("started", "")), ("mpi", run.get("mpi", ""))]
    facts += run.get("versions", {}).items()
    settings = html_table(("name", "value"), facts)
    parts.append(f"<details><summary>settings and versions</summary>{settings}</details>")
    return "".join(parts)


def html_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table of texts and numbers."""
    lines = ["".join(f"<th>{html.escape(head)}</th>" for head in heads)]
    lines += ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _score(end: Log) -> str:
    value = score(end, "test")
    return "" if value is None else f"{title(end)} {value:.6g}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def drawn(title: str, draw: Callable[..., Any], *arguments: Any) -> str:
    """A heading and a drawing, as SVG within the page."""
    check_matplotlib("report")
    text = io.StringIO()
    draw(*arguments).savefig(text, format="svg", bbox_inches="tight")
    svg = text.getvalue()
    return f"<h2>{html.escape(title)}</h2>{svg[svg.index('<svg') :]}"


def check_matplotlib(command: str) -> None:
    """Draw without a display. UserError: there is no matplotlib."""
    try:
        import matplotlib
    except ImportError:
        problem = "install the extra plot, as in pip install 'distgnn[plot]'"
        raise UserError(f"{command} needs matplotlib: {problem}") from None
    matplotlib.use("svg")


def new_figure(columns: int = 1, height: float = 3.2) -> tuple[Any, Any]:
    """A figure, and the axes of its columns."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def draw_curves(logs: Sequence[Log]) -> Any:
    """Loss and validation accuracy by epoch."""
    figure, (left, right) = new_figure(2)
    for log in logs:
        told = [(epoch["epoch"], epoch["loss"], score(epoch, "val")) for epoch in log["epochs"]]
        for axes, column in ((left, 1), (right, 2)):
            points = [(row[0], row[column]) for row in told if row[column] is not None]
            if points:
                axes.plot(*zip(*points, strict=True), label=log["name"])
    measured = dict.fromkeys(title(epoch) for log in logs for epoch in log["epochs"] if score(epoch, "val"))
    left.set(xlabel="epoch", ylabel="training loss")
    right.set(xlabel="epoch", ylabel=f"validation {' or '.join(measured) or 'accuracy'}")
    if left.lines:
        left.legend()
    return figure


def draw_phases(logs: Sequence[Log]) -> Any:
    """A bar per run, as MG-GCN Figure 5: an epoch of rank 0. Communication is what it waited for or drove."""
    figure, (axes,) = new_figure(height=0.8 + 0.4 * len(logs))
    left = [0.0] * len(logs)
    medians = [median_phases(log) for log in logs]
    shown = [phase for phase in COLOURS if any(phase in found for found in medians)]
    for phase in shown:
        widths = [found.get(phase, 0.0) for found in medians]
        axes.barh(range(len(logs)), widths, left=left, color=COLOURS[phase], label=phase)
        left = [*map(operator.add, left, widths)]
    axes.set_yticks(range(len(logs)), [log["name"] for log in logs])
    axes.invert_yaxis()
    axes.set(xlabel="seconds (median over epochs)")
    axes.legend(ncols=len(shown), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def draw_ranks(logs: Sequence[Log]) -> Any:
    """What the ledger charged each rank, and its peak memory."""
    figure, parts = new_figure(len(RANKS))
    for axes, (name, (unit, scale)) in zip(parts, RANKS.items(), strict=True):
        for log in (log for log in logs if log["end"]):
            axes.plot([value / scale for value in log["end"][name]], "o-", label=log["name"])
        axes.set(xlabel="rank", ylabel=unit, ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
    if parts[0].lines:
        parts[0].legend()
    return figure


def steady(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The lowest rank's epoch of median length, the first epoch not counted where there are others."""
    rank = min(event["pid"] for event in events if event["tid"] == EPOCHS)
    own = (event for event in events if (event["pid"], event["tid"]) == (rank, EPOCHS))
    epochs = sorted(own, key=lambda event: event["ts"])
    return sorted(epochs[1:] or epochs, key=lambda event: event["dur"])[(len(epochs) - 1) // 2]


def draw_timeline(events: Sequence[dict[str, Any]], epoch: dict[str, Any]) -> Any:
    """Three rows per rank, as MG-GCN Figures 6 and 8: what it computes, waits for, and has under way."""
    start, stop = epoch["ts"], epoch["ts"] + epoch["dur"]
    ranks = sorted({event["pid"] for event in events})
    figure, (axes,) = new_figure(height=1 + 0.7 * len(ranks))
    bars = defaultdict(list)  # one drawing for all that look alike is much faster than one for each event
    for event in events:
        if event["tid"] != EPOCHS and event["ts"] + event["dur"] >= start and event["ts"] <= stop:
            row = 4 * ranks.index(event["pid"]) + min(event["tid"], UNDER_WAY) - COMPUTE
            kind = "under way" if event["tid"] >= UNDER_WAY else str(event.get("cat"))
            bars[row, kind].append(((event["ts"] - start) / 1e3, event["dur"] / 1e3))
    for (row, kind), spans in bars.items():
        axes.broken_barh(spans, (row, 0.9), color=LOOKS.get(kind, COLOURS["other"]), linewidth=0)
    rows = [4 * i + row + 0.45 for i in range(len(ranks)) for row in range(len(ROWS))]
    axes.set_yticks(rows, [f"rank {rank} {name}" for rank in ranks for name in ROWS], fontsize=6)
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds", xlim=(0, (stop - start) / 1e3 or 1))
    handles = [axes.barh(0, 0, color=colour, label=kind) for kind, colour in LOOKS.items() if kind != "other"]
    axes.legend(handles=handles, ncols=len(handles), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


ROWS = ("computes", "waits", "messages")
assert (COMPUTE, WAITED, UNDER_WAY) == (1, 2, 3)  # the rows of a timeline, in this order

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse }}
td, th {{ border-bottom: 1px solid #ccc; padding: .2em .6em; text-align: left }}
svg {{ max-width: 100%; height: auto }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""
