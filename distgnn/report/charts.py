"""Drawings of logs and traces."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from distgnn.records import Epoch, Log
from distgnn.report import colours
from distgnn.report.groups import busiest, groups, name_of, summed
from distgnn.report.logs import median_phases, seconds_by_rank
from distgnn.report.metrics import score, title
from distgnn.report.numbers import time_unit
from distgnn.report.svg import DASHES, Axis, Line, bars, lines, matrix, spans
from distgnn.report.trace import COMPUTE, EPOCHS, UNDER_WAY, WAITED

ROWS = ("computes", "waits", "messages")
assert (COMPUTE, WAITED, UNDER_WAY) == (1, 2, 3)  # the rows of a timeline, in this order


def looks(logs: Sequence[Log]) -> list[tuple[str, str]]:
    """Return colour and dash of each run: runs that train alike share the colour."""
    used: dict[str, int] = defaultdict(int)
    pairs = []
    for log in logs:
        config = log["run"]["config"]
        name = colours.way(config)
        pairs.append((colours.of_way(config), DASHES[used[name] % len(DASHES)]))
        used[name] += 1
    return pairs


def losses(logs: Sequence[Log]) -> str:
    """Draw the training loss of each epoch."""
    return curves(logs, lambda epoch: epoch["loss"], "training loss")


def scores(logs: Sequence[Log]) -> str:
    """Draw the validation score of each epoch: accuracy, or another metric of the log."""
    epochs = [epoch for log in logs for epoch in log["epochs"] if score(epoch, "val") is not None]
    label = " or ".join(dict.fromkeys(map(title, epochs)))
    return curves(logs, lambda epoch: score(epoch, "val"), f"validation {label}")


def curves(logs: Sequence[Log], value: Callable[[Epoch], float | None], label: str) -> str:
    """Draw a number of each epoch, one curve per run; earlier curves are wider, so that equal ones show."""
    drawn = []
    for number, (log, (colour, dash)) in enumerate(zip(logs, looks(logs), strict=True)):
        pairs = [(epoch["epoch"], value(epoch)) for epoch in log["epochs"]]
        points = [(epoch, y) for epoch, y in pairs if y is not None and math.isfinite(y)]
        width = 1.5 + 1.5 * min(len(logs) - 1 - number, 5)
        if points:
            drawn.append(Line(log["name"], colour, points, dash, width, marker=""))
    axes = Axis("epoch", whole=True, least=None), Axis(label, least=None)
    return lines(label, drawn, *axes) if drawn else ""


def phases(logs: Sequence[Log]) -> str:
    """Draw a bar per run, as MG-GCN Figure 5: an epoch of rank 0. comm: what it waited for or drove."""
    medians = [median_phases(log) for log in logs]
    scale, unit = time_unit(max(sum(seconds.values()) for seconds in medians))
    rows = [(log["name"], {phase: scale * value for phase, value in seconds.items()})
            for log, seconds in zip(logs, medians, strict=True)]  # fmt: skip
    return bars(
        "seconds of an epoch by phase", rows, _shown(rows, colours.PHASES), Axis(f"{unit}, rank 0, median")
    )


def balance(log: Log) -> str:
    """Draw seconds of each rank by phase, in the whole run; return "" if the log has none."""
    ranks = seconds_by_rank(log)
    scale, unit = time_unit(max((sum(seconds.values()) for seconds in ranks), default=0.0))
    rows = [
        (name, {phase: scale * value for phase, value in seconds.items()}) for name, seconds in busiest(ranks)
    ]
    known = colours.by_name(sorted({phase for seconds in ranks for phase in seconds}), colours.PHASES)
    order = {phase: known[phase] for phase in [*colours.PHASES, *known] if phase in known}
    return (
        bars("seconds by rank and phase", rows, _shown(rows, order), Axis(f"{unit}, whole run"))
        if rows
        else ""
    )


def memory(log: Log) -> str:
    """Draw bytes of each rank by purpose, at their maximum."""
    held = log["end"].get("buffer_bytes", [])
    purposes = sorted({purpose for by_purpose in held for purpose in by_purpose})
    if not purposes:
        return ""
    most = max(sum(by_purpose.values()) for by_purpose in held)
    power = 3 if most >= 2**30 else 2 if most >= 2**20 else 1
    rows = [
        (name, {purpose: n / 1024**power for purpose, n in by_purpose.items()})
        for name, by_purpose in busiest(held)
    ]
    unit = ("KiB", "MiB", "GiB")[power - 1]
    return bars("memory by rank and purpose", rows, _shown(rows, colours.by_name(purposes, {})), Axis(unit))


def traffic(log: Log) -> str:
    """Draw the words from each sender to each receiver; return "" for one rank, or if the log has none."""
    words = log["end"].get("traffic", [])
    if len(words) < 2:
        return ""
    labels = [name_of(group) for group in groups(len(words))]
    return matrix("words by sender and receiver", summed(words), "sender", "receiver", labels)


def steady(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the lowest rank's epoch of median length, without the first epoch if there are others."""
    rank = min(event["pid"] for event in events if event["tid"] == EPOCHS)
    of_rank = (event for event in events if (event["pid"], event["tid"]) == (rank, EPOCHS))
    epochs = sorted(of_rank, key=lambda event: event["ts"])
    return sorted(epochs[1:] or epochs, key=lambda event: event["dur"])[(len(epochs) - 1) // 2]


def timeline(events: Sequence[dict[str, Any]], epoch: dict[str, Any]) -> str:
    """Draw three rows per rank, as MG-GCN Figures 6 and 8: computation, waiting, messages under way."""
    start, stop = epoch["ts"], epoch["ts"] + epoch["dur"]
    ranks = sorted({event["pid"] for event in events})
    times: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["tid"] != EPOCHS and event["ts"] + event["dur"] >= start and event["ts"] <= stop:
            row = len(ROWS) * ranks.index(event["pid"]) + min(event["tid"], UNDER_WAY) - COMPUTE
            kind = "under way" if event["tid"] >= UNDER_WAY else str(event.get("cat"))
            kind = kind if kind in colours.PHASES else "other"
            times[row, kind].append(((event["ts"] - start) / 1e3, event["dur"] / 1e3))
    kinds = {kind for _, kind in times}
    shown = {kind: colour for kind, colour in colours.PHASES.items() if kind in kinds}
    rows = [f"rank {rank} {name}" for rank in ranks for name in ROWS]
    return spans(
        f"timeline of {epoch['name']}", rows, times, shown, Axis("milliseconds"), (stop - start) / 1e3
    )


def _shown(rows: Sequence[tuple[str, dict[str, float]]], known: dict[str, str]) -> dict[str, str]:
    """Return the colours of the parts that occur."""
    return {part: colour for part, colour in known.items() if any(parts.get(part) for _, parts in rows)}
