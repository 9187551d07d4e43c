"""Tables of logs: runs, load balance, settings, and differences between runs that should be equal."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from distgnn.layout import written
from distgnn.records import End, Log
from distgnn.report import colours, numbers
from distgnn.report.logs import epoch_seconds, median_phases, of_last_launch, seconds_by_rank, settings
from distgnn.report.metrics import metric, score, title


@dataclass
class ReportTable:
    """Texts in rows under heads. ``folded``: shown on demand."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    folded: bool = False

    @cached_property
    def numbers(self) -> list[bool]:
        """True for each column whose filled cells are all numbers."""
        filled = [[cell for cell in column if cell] for column in zip(*self.rows, strict=True)]
        return [bool(column) and all(map(NUMBER.fullmatch, column)) for column in filled]


NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?([kMGTPE%]| (µs|ms|s|h|min|[KMGT]?i?B)\b.*)?")
MOST_NAMED = 3  # graphs, commands and hosts at the top of the page
#: Facts of each run alone.
OWN = ("command", "started", "log", "trace", "checkpoint", "force", "quiet")
RUNS = ("run", "algorithm", "grid", "ranks", "widths", "epochs", "last loss", "test score", "epoch",
        "under way", "exposed", "messages", "memory")  # fmt: skip


def heading(logs: Sequence[Log]) -> list[tuple[str, list[str]]]:
    """Name the graphs, commands and hosts of all runs, each value once, and MOST_NAMED of them at most."""
    columns = {"graph": map(_graph, logs), "command": (log["run"].get("command", "") for log in logs)}
    columns["host"] = map(_hosts, logs)
    facts = [(name, [value for value in dict.fromkeys(values) if value]) for name, values in columns.items()]
    return [(name, _some(values)) for name, values in facts if values]


def _some(values: list[str]) -> list[str]:
    more = len(values) - MOST_NAMED
    return [*values[:MOST_NAMED], f"and {more} more, in the settings of each run"] if more > 0 else values


def _graph(log: Log) -> str:
    config = log["run"]["config"]
    widths = f"{config['widths'][0]} features, {config['widths'][-1]} classes"
    sizes = f"{config['n']:,} nodes, {config['nnz']:,} non-zeros, " if {"n", "nnz"} <= config.keys() else ""
    return ": ".join(filter(None, [str(config.get("store", "")), f"{sizes}{widths}"]))


def _hosts(log: Log) -> str:
    """Count the ranks by host and device: ``4 ranks on node``."""
    places = Counter((rank.get("host", ""), rank.get("device", "host")) for rank in log["run"]["ranks"])
    ranks = [f"{count} rank{'s' if count > 1 else ''} on {host}{f' ({device})' if device != 'host' else ''}"
             for (host, device), count in places.items() if host]  # fmt: skip
    return ", ".join(ranks if len(ranks) <= MOST_NAMED else [*ranks[:MOST_NAMED], f"{len(ranks)} places"])


def runs(logs: Sequence[Log]) -> ReportTable:
    """Make the table with a row per run."""
    return ReportTable(RUNS, [_run(log) for log in logs])


def _run(log: Log) -> list[str]:
    run, end, epochs = log["run"], log["end"], log["epochs"]
    config = run["config"]
    under_way = statistics.median(epoch.get("flight", 0.0) for epoch in of_last_launch(log))
    exposed = f"{median_phases(log).get('comm', 0.0) / under_way:.0%}" if under_way else ""
    row = [log["name"], colours.way(config), written(run["grid"]), str(len(run["ranks"]))]
    row += ["-".join(map(str, config["widths"])), str(len(epochs)), exact(epochs[-1]["loss"])]
    row += [_score(end), numbers.seconds(epoch_seconds(log))]
    row += [numbers.seconds(under_way) if under_way else "", exposed]
    if not end:
        return [*row, "run not ended", ""]
    return [*row, numbers.size(max(end["bytes"])), numbers.size(max(end["peak_bytes"]))]


def _score(end: End) -> str:
    value = score(end, "test")
    return "" if value is None else f"{value:.4f}" if metric(end) == "acc" else f"{title(end)} {value:.4f}"


def exact(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def columns(log: Log) -> dict[str, Sequence[float]]:
    """Return the work of each rank, by its kind."""
    end, spent = log["end"], seconds_by_rank(log)
    work: dict[str, Sequence[float]] = {}
    if spent:
        work["computing, s"] = [sum(by.values()) - by.get("comm", 0.0) for by in spent]
        work["communicating, s"] = [by.get("comm", 0.0) for by in spent]
    if all("nnz" in rank for rank in log["run"]["ranks"]):
        work["non-zeros"] = [rank["nnz"] for rank in log["run"]["ranks"]]
    work |= {"flops": end["flops"]} if "flops" in end else {}
    work |= {"in messages, MiB": [value / 2**20 for value in end["bytes"]], "messages": end["messages"]}
    return work | {"peak memory, MiB": [value / 2**20 for value in end["peak_bytes"]]}


def balance(log: Log) -> ReportTable:
    """Make the table of the most, the mean and their ratio over ranks: 1 is even."""
    rows = []
    for name, values in columns(log).items():
        most, mean = max(values), statistics.mean(values)
        worst = f"rank {values.index(most)}" if most > min(values) else "all"
        ratio = f"{most / mean:.2f}" if mean else ""
        rows.append(
            [name, numbers.short(most), worst, numbers.short(mean), numbers.short(min(values)), ratio]
        )
    return ReportTable(
        ("by rank", "most", "where", "mean", "least", "most / mean"), rows, "Balance over ranks"
    )


def by_rank(log: Log) -> ReportTable:
    """Make the table with a row per rank, and its host and device."""
    work = columns(log)
    places = [f"{rank.get('host', '')} {rank.get('device', '')}".strip() for rank in log["run"]["ranks"]]
    rows = [
        [str(rank), place, *(numbers.short(values[rank]) for values in work.values())]
        for rank, place in enumerate(places)
    ]
    return ReportTable(("rank", "runs on", *work), rows, "Every rank", folded=True)


def sent(log: Log) -> ReportTable | None:
    """Make the table of words that each rank sent and received; None if the log has no traffic."""
    traffic = log["end"].get("traffic", [])
    if len(traffic) < 2:
        return None
    received = np.sum(traffic, axis=0).tolist()
    rows = []
    for rank, row in enumerate(traffic):
        peer = max(range(len(row)), key=row.__getitem__)
        most = f"{numbers.short(row[peer])} to rank {peer}" if row[peer] else ""
        rows.append([str(rank), numbers.short(sum(row)), numbers.short(received[rank]), most])
    return ReportTable(
        ("rank", "words sent", "received", "most to one rank"), rows, "Words by rank", folded=len(rows) > 16
    )


def facts(log: Log) -> dict[str, str]:
    """Return settings, versions and hosts of a run."""
    run = log["run"]
    hosts = ", ".join(sorted({str(rank.get("host", "")) for rank in run["ranks"]}))
    known = run["config"] | {"grid": written(run["grid"]), "ranks": len(run["ranks"]), "hosts": hosts}
    names = "command", "mpi", "backend", "transport", "started"
    known |= {name: value for name, value in run.items() if name in names}
    known |= {f"{name}, version": version for name, version in run.get("versions", {}).items()}
    return {name: _written(value) for name, value in known.items() if value not in (None, "")}


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return written(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def differing(logs: Sequence[Log]) -> ReportTable | None:
    """Make the table of settings and facts that differ between runs, a column for each; None without any."""
    every = [facts(log) for log in logs]
    names = [name for name in dict.fromkeys(name for known in every for name in known) if name not in OWN]
    odd = [name for name in names if len({known.get(name) for known in every}) > 1]
    pairs = zip(logs, every, strict=True)
    rows = [[log["name"], *(known.get(name, "") for name in odd)] for log, known in pairs]
    return ReportTable(("run", *odd), rows, "Settings that differ") if odd else None


def equal_runs(logs: Sequence[Log]) -> list[list[Log]]:
    """Group the runs with the same settings on the same grid, if there are several."""
    groups: dict[str, list[Log]] = defaultdict(list)
    for log in logs:
        same = {name: value for name, value in settings(log).items() if name != "epochs"}
        groups[str((sorted(same.items(), key=str), log["run"]["grid"], len(log["run"]["ranks"])))].append(log)
    return [group for group in groups.values() if len(group) > 1]


def compared(group: Sequence[Log]) -> ReportTable:
    """Make the table of differences from the first of equal runs: losses, seconds, bytes, hosts."""
    first = group[0]
    heads = ("run", "losses", "seconds of an epoch", "bytes", "messages", "peak memory", "else")
    rows = [[log["name"], *_compared(log, first)] for log in group[1:]]
    return ReportTable(heads, rows, f"Equal settings: compared with {first['name']}")


def _compared(log: Log, first: Log) -> list[str]:
    ratio = epoch_seconds(log) / epoch_seconds(first) if epoch_seconds(first) else math.nan
    cells = [losses(log, first), f"{ratio - 1:+.1%}"]
    for name in ("bytes", "messages", "peak_bytes"):
        ends: list[Mapping[str, Any]] = [log["end"], first["end"]]
        if not all(ends):
            cells.append("not ended")
            continue
        mine, theirs = (max(end[name]) for end in ends)
        cells.append(
            "equal" if ends[0][name] == ends[1][name] else f"{mine / theirs - 1:+.2%}" if theirs else "more"
        )
    odd = differing([first, log])
    changes = zip(odd.heads[1:], *(row[1:] for row in odd.rows), strict=True) if odd else ()
    return [*cells, "; ".join(f"{name}: {mine}, was {theirs}" for name, theirs, mine in changes) or "nothing"]


def losses(log: Log, other: Log) -> str:
    """Describe the first epoch in common whose losses differ, and the largest difference."""
    both = {epoch["epoch"]: epoch["loss"] for epoch in other["epochs"]}
    pairs = [(e["epoch"], e["loss"], both[e["epoch"]]) for e in log["epochs"] if e["epoch"] in both]
    odd = [pair for pair in pairs if pair[1] != pair[2]]
    if not odd:
        return f"equal to the last bit in {len(pairs)} epochs" if pairs else "no epoch in common"
    apart = [abs(a - b) / max(abs(b), 1e-300) for _, a, b in odd if a is not None and b is not None]
    most = f"by {max(apart):.1e} at most" if len(apart) == len(odd) else "one of them is no number"
    return f"differ from epoch {odd[0][0]} on, {most}"


def all_facts(log: Log) -> ReportTable:
    """Make the table of every setting of a run."""
    return ReportTable(("name", "value"), list(facts(log).items()), "Settings and versions", folded=True)
