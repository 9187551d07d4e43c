"""Results of a study from its logs: a table as Markdown and CSV, and a figure."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies import GRAPHS, STUDIES, Study

from distgnn.records import End, Epoch, Start

if TYPE_CHECKING:
    from study import Campaign, Run

UNTIMED = 2  # epochs
PHASES = {
    "spmm": "SpMM", "gemm": "GeMM", "activation": "activation", "optimizer": "Adam", "loss": "loss",
    "comm": "communication",
}  # fmt: skip
#: Kinds of messages: what the ledger tells them by, their names, and the name of all others.
MESSAGES = {
    "cagnet": ("matrix", {"A": "sbcast", "H": "dbcast", "G": "dbcast", "T": "dbcast"}, "reduce"),
    "exchange": ("operation", {"bcast": "bcast", "alltoall": "alltoall", "alltoallv": "alltoall"}, "reduce"),
}
SAMPLING = {"probability": "probability", "draw": "sampling", "extract": "extraction"}
HEADS = (
    *("graph", "series", "ranks", "grid", "seconds", "least", "most", "trials", "speed-up"),
    *("million words", "MiB"),
)
SIZES = ("nodes", "nonzeros")  # in the CSV file only

Log = Start | Epoch | End  # a line of a log
Row = dict[str, Any]


def finished(path: Path) -> list[Log]:
    """Return the events of a log that came to its end; none of another."""
    try:
        events = [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError):
        return []
    return events if events and events[-1]["event"] == "end" and epochs(events) else []


def epochs(events: list[Log]) -> list[Epoch]:
    """Return the epochs that count: all but the first two."""
    return [event for event in events if event["event"] == "epoch"][UNTIMED:]


def seconds(events: list[Log]) -> float:
    return statistics.mean(epoch["seconds"] for epoch in epochs(events))


def parts(events: list[Log], kind: str) -> dict[str, float]:
    """Return seconds of an epoch of rank 0 by what they were spent on; they add up to the epoch, or its
    sampling.
    """
    ledger = [entry for entry in events[-1]["ledger"] if entry["rank"] == 0]
    phases = averages(events, "phases")
    comm, total = phases.get("comm", 0.0), seconds(events)
    if kind == "comm":
        return {"communication": comm, "computation": total - comm}
    if kind == "phases":
        named = {shown: phases.get(name, 0.0) for name, shown in PHASES.items()}
        return {**named, "other": total - sum(named.values())}
    if kind in MESSAGES:  # divided as the ledger divides the communication of the whole run
        key, names, other = MESSAGES[kind]
        spent = dict.fromkeys((other, *names.values()), 0.0)
        for entry in ledger:
            if entry["phase"] == "comm":
                spent[names.get(entry[key], other)] += entry["seconds"]
        scale = comm / (sum(spent.values()) or 1)
        return {**{name: scale * part for name, part in spent.items()}, "local": total - comm}
    steps = averages(events, "steps")
    if kind == "steps":
        steps["propagation"] += steps.pop("update")
        return steps
    whole = sum(event["steps"]["sampling"] for event in events if event["event"] == "epoch")
    made = {entry["operation"]: entry["seconds"] / whole for entry in ledger if entry["phase"] == "sampling"}
    shares = {shown: made.get(name, 0.0) for name, shown in SAMPLING.items()}
    shares["communication and other"] = max(0.0, 1 - sum(shares.values()))
    return {name: steps["sampling"] * share for name, share in shares.items()}


def averages(events: list[Log], what: str) -> dict[str, float]:
    """Return the mean of every entry over the epochs that count."""
    counted = [epoch[what] for epoch in epochs(events)]
    return {name: statistics.mean(one[name] for one in counted) for name in counted[0]}


def rows(campaign: Campaign) -> list[Row]:
    """Return a row for each graph, series and number of ranks that has a finished trial."""
    trials: dict[Any, list[list[Log]]] = {}
    for run in campaign.runs:
        if events := campaign.events(run):
            trials.setdefault((run.graph, run.series, run.ranks), []).append(events)
    firsts = {(run.graph, run.series, run.ranks): run for run in reversed(campaign.runs)}
    found = [row(firsts[key], done, campaign.study) for key, done in trials.items()]
    one_base = (
        campaign.study.drawing == "speedup"
    )  # over the first series, else over each series' fewest ranks
    for one in found:
        same = (two for two in found if two["graph"] == one["graph"])
        base = next(two for two in same if one_base or two["series"] == one["series"])
        one["speed-up"] = base["seconds"] / one["seconds"]
    return found


def row(run: Run, trials: list[list[Log]], study: Study) -> Row:
    times = [seconds(events) for events in trials]
    first, end = trials[0][0], trials[0][-1]
    cells = [
        *(run.graph, run.series.label, run.ranks, "x".join(map(str, first["grid"].values()))),
        *(statistics.mean(times), min(times), max(times), len(times), 1.0),
        *(max(end["words"]) / 1e6, max(end["peak_bytes"]) / 2**20),
    ]
    found = dict(zip(HEADS, cells, strict=True))
    divided = [parts(events, study.parts) for events in trials] if study.parts else [{}]
    found |= {name: statistics.mean(one[name] for one in divided) for name in divided[0]}
    return found | dict(zip(SIZES, (first["config"]["n"], first["config"]["nnz"]), strict=True))


def columns(found: list[Row]) -> list[str]:
    """Return the names of the parts of an epoch."""
    return [name for name in (found[0] if found else ()) if name not in HEADS + SIZES]


def markdown(campaign: Campaign, found: list[Row]) -> str:
    study, args, heads = campaign.study, campaign.args, [*HEADS, *columns(found)]
    flags = " ".join([*study.network.split(), *args.flags])
    lines = [f"# {campaign.name}: {study.figure}", "", f"Shows: {study.about}.", ""]
    lines += [f"- `{flags}`" if flags else "- the networks of the series"]
    lines[-1] += f"; {args.epochs} epochs, mean of the last {args.epochs - UNTIMED}; trials: {args.trials}"
    lines += [f"- {line}" for line in (*machine(campaign), *graphs(campaign, found), *campaign.notes)]
    lines += ["- seconds: of an epoch on rank 0, mean of the trials, and the least and most of them"]
    over = (
        "the first series on the fewest ranks"
        if study.drawing == "speedup"
        else "its series on the fewest ranks"
    )
    lines += [
        f"- speed-up: over {over}; words: matrix entries and indices that the busiest rank "
        "received in the whole run; MiB: peak memory of the fullest rank"
    ]
    lines += ["", f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * (len(heads) - 2)]
    for one in found:
        cells = (f"{one[head]:.4g}" if isinstance(one[head], float) else str(one[head]) for head in heads)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- FAILED: {name}: {problem}" for name, problem in campaign.failed.items())]
    return "\n".join(lines).rstrip() + "\n"


def machine(campaign: Campaign) -> list[str]:
    """Describe the machine of the study from the first log."""
    first = next(filter(None, map(campaign.events, campaign.runs)), None)
    if first is None:
        return []
    run, nodes = first[0], campaign.nodes
    devices = ", ".join(sorted({rank["device"] for rank in run["ranks"]}))
    told = [f"at most {campaign.top} ranks, of {devices}; nodes: {nodes}; {run['started'][:10]}"]
    told[0] += f", distgnn {run['versions']['distgnn']}, {run['mpi'].split(' MPICH')[0][:40].strip()}"
    each = campaign.study.per_node
    if each and any(one.ranks > each * nodes for one in campaign.runs):
        told.append(f"the paper has {each} rank per node: here ranks share nodes")
    return told


def graphs(campaign: Campaign, found: list[Row]) -> list[str]:
    """Describe the graphs that stand for the paper's."""
    told = []
    for one in {one["graph"]: one for one in found}.values():
        name, size = one["graph"], f"{one['nodes']:,} nodes, {one['nonzeros']:,} non-zeros with self-loops"
        given = GRAPHS[name]
        what = f"generated by `{given.kind}` for the published {given.nodes:,} and {given.nonzeros:,}"
        told.append(f"{name}: {size}, {campaign.args.stores.get(name, what)}")
    return told


def draw(study: Study, found: list[Row]) -> str:
    """Draw a panel for each graph, or one for all: of a single series, or where the density varies.

    Return the text of an SVG file.
    """
    from distgnn.report.svg import beside

    names = list(dict.fromkeys(one["graph"] for one in found))
    panels = {name: [one for one in found if one["graph"] == name] for name in names}
    if study.drawing != "bars" and len(study.series) == 1:
        panels = {study.series[0].label: found}
    drawing = {"bars": bars, "density": density}.get(study.drawing, lines)
    drawn = [(name, drawing(panel, study)) for name, panel in panels.items()]
    return beside(study.figure, drawn, across=min(len(drawn), 3))


def lines(panel: list[Row], study: Study) -> str:
    """Draw seconds, or speed-up, over ranks."""
    from distgnn.report.svg import Axis

    sped = study.drawing == "speedup"
    key, label = ("speed-up", "speed-up") if sped else ("seconds", "seconds of an epoch")
    group = "graph" if len(study.series) == 1 else "series"
    ranks = Axis("ranks", base=2, ticks=sorted({one["ranks"] for one in panel}))
    curves: dict[str, list[tuple[float, float]]] = {}
    for one in panel:
        curves.setdefault(one[group], []).append((one["ranks"], one[key]))
    return _curves(curves, ranks, Axis(label, base=2 if sped else 10))


def bars(panel: list[Row], study: Study) -> str:
    """Draw seconds by what they are spent on, in the order of ranks."""
    from distgnn.report import colours, svg

    panel, parts = sorted(panel, key=lambda one: one["ranks"]), columns(panel)
    rows = [(f"{one['series']}, P={one['ranks']}", {part: one[part] for part in parts}) for one in panel]
    label = "seconds of an epoch" if study.parts != "sampling" else "seconds of sampling in an epoch"
    return svg.bars(label, rows, colours.by_name(parts, {}), svg.Axis(label))


def density(panel: list[Row], study: Study) -> str:
    """Draw speed-up over the mean degree, a line for each number of ranks."""
    from distgnn.report.svg import Axis

    curves: dict[str, list[tuple[float, float]]] = {}
    for one in sorted(panel, key=lambda one: one["ranks"]):
        point = one["nonzeros"] / one["nodes"], one["speed-up"]
        curves.setdefault(f"{one['ranks']} ranks", []).append(point)
    return _curves(curves, Axis("non-zeros per row", base=10), Axis("speed-up over the fewest ranks"))


def _curves(curves: dict[str, list[tuple[float, float]]], x: Any, y: Any) -> str:
    from distgnn.report import colours, svg

    palette = colours.by_name([*curves], {})
    drawn = [svg.Line(name, palette[name], points) for name, points in curves.items()]
    return svg.lines(y.label, drawn, x, y)


def publish(campaign: Campaign) -> None:
    """Write the table and the figure of all that is there."""
    found, base = rows(campaign), campaign.args.out / campaign.name
    base.parent.mkdir(parents=True, exist_ok=True)
    text = markdown(campaign, found)
    base.with_name(f"{base.name}.md").write_text(text)
    print(f"\n{text}")
    if found:
        with base.with_name(f"{base.name}.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, found[0], lineterminator="\n")
            table.writeheader()
            table.writerows(found)
        base.with_name(f"{base.name}.svg").write_text(draw(campaign.study, found))
        print(f"{base}.md, .csv, .svg", flush=True)


def table_of_studies() -> str:
    """Write the table of studies as Markdown."""
    told = ["| study | figure | shows | graphs | ranks |", "|---|---|---|---|---|"]
    for name, study in STUDIES.items():
        counts = {count for *_, some in study.graphs.values() for count in some}
        counts |= {count for series in study.series for count in series.ranks}
        ranks = ", ".join(map(str, sorted(counts)))
        told.append(f"| {name} | {study.figure} | {study.about} | {', '.join(study.graphs)} | {ranks} |")
    return "\n".join(told)
