"""An HTML page of runs, from their logs and traces: loss, time by phase, communication, memory, timelines."""

from __future__ import annotations

import html
import io
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distgnn.errors import UserError
from distgnn.report.trace import COMPUTE, EPOCHS, UNDER_WAY, WAITED

COLOURS = {
    "spmm": "#4269d0", "gemm": "#6cc5b0", "activation": "#3ca951", "loss": "#ff8ab7", "optimizer": "#9c6b4e",
    "comm": "#efb118", "sampling": "#a463f2", "other": "#9c9c9c",
}  # fmt: skip
PHASES = tuple(COLOURS)
LOOKS = COLOURS | {"under way": "#f6dd9a"}
#: What the end of a log says of every rank, and the unit to show it in.
RANKS = {
    "words": ("million words received", 1e6),
    "messages": ("messages", 1),
    "peak_bytes": ("peak MiB", 2**20),
}

Log = dict[str, Any]  # name, run, epochs, end


def write(logs: Sequence[str], traces: Sequence[str], out: str, force: bool) -> None:
    """Write the page.

    Raises:
        UserError: a file that is no log or no trace, a page that exists, or no matplotlib.
    """
    path = Path(out)
    if path.is_dir():
        raise UserError(f"--out {path}: is a directory; give the name of a file")
    if path.exists() and not force:
        raise UserError(f"--out {path}: exists; use --force to replace it, or another name")
    if not path.absolute().parent.is_dir():
        raise UserError(f"--out {path}: directory {path.absolute().parent} does not exist")
    read = [read_log(Path(log)) for log in logs]
    timelines = [(trace, read_trace(Path(trace))) for trace in traces]
    sections = [
        table(read),
        drawn("Loss and accuracy", draw_curves, read),
        drawn("Seconds of an epoch", draw_phases, read),
    ]
    sections.append(drawn("Communication and memory by rank", draw_ranks, read))
    for name, events in timelines:
        epoch = steady(events)
        sections.append(drawn(f"Timeline of {epoch['name']} in {name}", draw_timeline, events, epoch))
    sections += [details(log) for log in read]
    try:
        path.write_text(PAGE.format(body="\n".join(sections)), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {path}: cannot write it ({error.strerror})") from None


def read_log(path: Path) -> Log:
    """The events of a log; one that ends early, or in the middle of a line, is as good as it goes.

    Raises:
        UserError: it can't be read, or holds no epoch of a run.
    """
    log: Log = {"name": path.stem, "run": None, "epochs": [], "end": None}
    lines = _read(path).splitlines()
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            kind = event["event"]
            check(kind, event)
        except (ValueError, KeyError, TypeError, AttributeError):
            if number == len(lines) and log["epochs"]:
                break  # the run was ended while it wrote
            raise UserError(
                f"{path}, line {number}: no event of a log; expected what train --log writes"
            ) from None
        if kind == "epoch":
            log["epochs"].append(event)
        elif kind in log:
            log[kind] = event
    if log["run"] is None or not log["epochs"]:
        raise UserError(f"{path}: holds no epoch of a run; expected what train --log writes")
    return log


def check(kind: str, event: dict[str, Any]) -> None:
    """Any exception where an event has not what the page shows."""
    if kind == "run":
        event["config"]["algorithm"], [*event["config"]["widths"]], event["grid"].values(), [*event["ranks"]]
    elif kind == "epoch":
        (
            float(event["seconds"] + event["epoch"]),
            event["loss"],
            [float(seconds) for seconds in event["phases"].values()],
        )
    elif kind == "end":
        [max(event[name]) for name in RANKS]


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The complete events of a trace.

    Raises:
        UserError: it can't be read, or is no trace.
    """
    try:
        events = [event for event in json.loads(_read(path))["traceEvents"] if event["ph"] == "X"]
        for event in events:
            float(event["ts"] + event["dur"]), event["pid"] + event["tid"], event["name"]
        if not any(event["tid"] == EPOCHS for event in events):
            raise KeyError
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: no trace of epochs; expected what train --trace writes") from None
    return events


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: cannot read it ({getattr(error, 'strerror', None) or 'not text'})"
        ) from None


def median_phases(log: Log) -> dict[str, float]:
    """Seconds of each phase that the log has, the median over epochs."""
    told = [phase for phase in PHASES if any(phase in epoch["phases"] for epoch in log["epochs"])]
    return {
        phase: statistics.median(epoch["phases"].get(phase, 0.0) for epoch in log["epochs"]) for phase in told
    }


def table(logs: Sequence[Log]) -> str:
    """The runs side by side."""
    rows = []
    for log in logs:
        config, end, last = log["run"]["config"], log["end"] or {}, log["epochs"][-1]
        ranks = len(log["run"]["ranks"])
        seconds = statistics.median(epoch["seconds"] for epoch in log["epochs"])
        under_way = statistics.median(epoch.get("flight", 0.0) for epoch in log["epochs"])
        exposed = f"{median_phases(log).get('comm', 0.0) / under_way:.0%}" if under_way else ""
        rows.append([
            log["name"], config["algorithm"], "x".join(map(str, log["run"]["grid"].values())), ranks,
            "-".join(map(str, config["widths"])), len(log["epochs"]), _number(last["loss"]), _number(end.get("test_acc")),
            f"{seconds:.4f}", f"{under_way:.4f}" if under_way else "", exposed,
            *(_most(end.get(name), scale) for name, scale in (("words", 1e6), ("peak_bytes", 2**20))),
        ])  # fmt: skip
    heads = (
        *(
            "run",
            "algorithm",
            "grid",
            "ranks",
            "widths",
            "epochs",
            "last loss",
            "test accuracy",
            "seconds per epoch",
        ),
        *(
            "of it communication under way",
            "of that exposed",
            "million words per rank, at most",
            "peak MiB per rank, at most",
        ),
    )
    return "<h2>Runs</h2>" + _html_table(heads, rows)


def details(log: Log) -> str:
    """What every rank did, where, and with which settings."""
    run, end = log["run"], log["end"]
    parts = [f"<h2>{html.escape(log['name'])}</h2>"]
    if end:
        places = [f"{rank.get('host', '')} {rank.get('device', '')}" for rank in run["ranks"]]
        purposes = sorted({purpose for held in end.get("buffer_bytes", []) for purpose in held})
        columns = [[f"{value / scale:.6g}" for value in end[name]] for name, (_, scale) in RANKS.items()]
        columns += [
            [f"{held.get(purpose, 0) / 2**20:.6g}" for held in end["buffer_bytes"]] for purpose in purposes
        ]
        rows = [(rank, *row) for rank, row in enumerate(zip(places, *columns, strict=False))]
        heads = [
            "rank",
            "runs on",
            *(unit for unit, _ in RANKS.values()),
            *(f"MiB of {purpose}" for purpose in purposes),
        ]
        parts.append(_html_table(heads, rows))
    facts = [*run["config"].items(), ("started", run.get("started", "")), ("mpi", run.get("mpi", ""))]
    facts += run.get("versions", {}).items()
    parts.append(
        "<details><summary>settings and versions</summary>"
        + _html_table(("name", "value"), facts)
        + "</details>"
    )
    return "".join(parts)


def _html_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["".join(f"<th>{html.escape(head)}</th>" for head in heads)]
    lines += ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _most(values: Sequence[float] | None, scale: float) -> str:
    return f"{max(values) / scale:.2f}" if values else "run not ended"


def drawn(title: str, draw: Callable[..., Any], *arguments: Any) -> str:
    """A heading and a drawing, as SVG within the page."""
    try:
        import matplotlib
    except ImportError:
        raise UserError(
            "report needs matplotlib: install the extra plot, as in pip install 'distgnn[plot]'"
        ) from None
    matplotlib.use("svg")
    figure = draw(*arguments)
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight")
    svg = text.getvalue()
    return f"<h2>{html.escape(title)}</h2>{svg[svg.index('<svg') :]}"


def _figure(columns: int = 1, height: float = 3.2) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def draw_curves(logs: Sequence[Log]) -> Any:
    figure, (left, right) = _figure(2)
    for log in logs:
        for axes, name in ((left, "loss"), (right, "val_acc")):
            points = [(epoch["epoch"], epoch[name]) for epoch in log["epochs"] if epoch.get(name) is not None]
            axes.plot(*zip(*points, strict=True), label=log["name"]) if points else None
    left.set(xlabel="epoch", ylabel="training loss")
    right.set(xlabel="epoch", ylabel="validation accuracy")
    if left.lines:
        left.legend()
    return figure


def draw_phases(logs: Sequence[Log]) -> Any:
    """A bar for each run, as MG-GCN Figure 5: what an epoch of rank 0 is made of. Communication: what it
    waited for or drove.
    """
    figure, (axes,) = _figure(height=0.8 + 0.4 * len(logs))
    left = [0.0] * len(logs)
    medians = [median_phases(log) for log in logs]
    shown = [phase for phase in PHASES if any(phase in found for found in medians)]
    for phase in shown:
        widths = [found.get(phase, 0.0) for found in medians]
        axes.barh(range(len(logs)), widths, left=left, color=COLOURS[phase], label=phase)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(logs)), [log["name"] for log in logs])
    axes.invert_yaxis()
    axes.set(xlabel="seconds (median over epochs)")
    axes.legend(ncols=len(shown), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def draw_ranks(logs: Sequence[Log]) -> Any:
    figure, parts = _figure(len(RANKS))
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
    epochs = sorted(
        (e for e in events if (e["pid"], e["tid"]) == (rank, EPOCHS)), key=lambda event: event["ts"]
    )
    return sorted(epochs[1:] or epochs, key=lambda event: event["dur"])[(len(epochs) - 1) // 2]


def draw_timeline(events: Sequence[dict[str, Any]], epoch: dict[str, Any]) -> Any:
    """Three rows for each rank, as MG-GCN Figures 6 and 8: computation, communication waited for, messages
    under way.
    """
    start, stop = epoch["ts"], epoch["ts"] + epoch["dur"]
    ranks = sorted({event["pid"] for event in events})
    figure, (axes,) = _figure(height=1 + 0.7 * len(ranks))
    # by what they look like: one drawing each is much faster than one for every event
    bars = defaultdict(list)
    for event in events:
        if event["tid"] != EPOCHS and event["ts"] + event["dur"] >= start and event["ts"] <= stop:
            row = 4 * ranks.index(event["pid"]) + min(event["tid"], UNDER_WAY) - COMPUTE
            kind = "under way" if event["tid"] >= UNDER_WAY else str(event.get("cat"))
            bars[row, kind].append(((event["ts"] - start) / 1e3, event["dur"] / 1e3))
    for (row, kind), spans in bars.items():
        axes.broken_barh(spans, (row, 0.9), color=LOOKS.get(kind, COLOURS["other"]), linewidth=0)
    rows = [
        (4 * i + row + 0.45, f"rank {rank} {name}")
        for i, rank in enumerate(ranks)
        for row, name in enumerate(ROWS)
    ]
    axes.set_yticks([y for y, _ in rows], [name for _, name in rows], fontsize=6)
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds", xlim=(0, (stop - start) / 1e3 or 1))
    handles = [axes.barh(0, 0, color=colour, label=kind) for kind, colour in LOOKS.items() if kind != "other"]
    axes.legend(handles=handles, ncols=len(handles), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


ROWS = ("computes", "waits", "messages")
assert (COMPUTE, WAITED, UNDER_WAY) == (1, 2, 3)  # the rows of a timeline, in this order

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>distgnn report</title><style>
body {{ font: 15px/1.5 sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse }} td, th {{ border-bottom: 1px solid #ccc; padding: .2em .6em; text-align: left }}
svg {{ max-width: 100%; height: auto }}
</style></head><body><h1>distgnn report</h1>
{body}
</body></html>
"""
