"""Drawings of logs and traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from distgnn.records import Epoch, Log
from distgnn.report import colours
from distgnn.report.logs import median_phases, seconds_by_rank
from distgnn.report.metrics import score, title
from distgnn.report.svg import DASHES, Axis, Line, bars, lines, matrix, spans
from distgnn.report.trace import COMPUTE, EPOCHS, UNDER_WAY, WAITED

ROWS = ("computes", "waits", "messages")
assert (COMPUTE, WAITED, UNDER_WAY) == (1, 2, 3)  # the rows of a timeline, in this order


def looks(logs: Sequence[Log]) -> list[tuple[str, str]]:
    """Colour and dash of each run: those that train alike share the colour."""
    used: dict[str, int] = defaultdict(int)
    found = []
    for log in logs:
        config = log["run"]["config"]
        name = colours.way(config)
        found.append((colours.of_way(config), DASHES[used[name] % len(DASHES)]))
        used[name] += 1
    return found


def losses(logs: Sequence[Log]) -> str:
    """The training loss of each epoch."""
    return curves(logs, lambda epoch: epoch["loss"], "training loss")


def scores(logs: Sequence[Log]) -> str:
    """What each epoch scored in validation: accuracy, or what else was measured."""
    epochs = [epoch for log in logs for epoch in log["epochs"] if score(epoch, "val") is not None]
    label = " or ".join(dict.fromkeys(map(title, epochs)))
    return curves(logs, lambda epoch: score(epoch, "val"), f"validation {label}")


def curves(logs: Sequence[Log], value: Callable[[Epoch], float | None], label: str) -> str:
    """A number of each epoch, one curve per run; the first ones are wider, so that equal curves show."""
    drawn = []
    for number, (log, (colour, dash)) in enumerate(zip(logs, looks(logs), strict=True)):
        points = [(epoch["epoch"], y) for epoch in log["epochs"] if (y := value(epoch)) is not None]
        width = 1.5 + 1.5 * min(len(logs) - 1 - number, 5)
        if points:
            drawn.append(Line(log["name"], colour, points, dash, width, marker=""))
    axes = Axis("epoch", whole=True, least=None), Axis(label, least=None)
    return lines(label, drawn, *axes) if drawn else ""


def phases(logs: Sequence[Log]) -> str:
    """A bar per run, as MG-GCN Figure 5: an epoch of rank 0. Communication is what it waited for or drove."""
    medians = [median_phases(log) for log in logs]
    scale, unit = _scale(max(sum(found.values()) for found in medians))
    rows = [(log["name"], {phase: scale * value for phase, value in found.items()})
            for log, found in zip(logs, medians, strict=True)]  # fmt: skip
    return bars(
        "seconds of an epoch by phase", rows, _shown(rows, colours.PHASES), Axis(f"{unit}, rank 0, median")
    )


def balance(log: Log) -> str:
    """Seconds of each rank by phase, in the whole run; nothing where the log does not say."""
    ranks = seconds_by_rank(log)
    scale, unit = _scale(max((sum(found.values()) for found in ranks), default=0.0))
    rows = [
        (f"rank {rank}", {phase: scale * value for phase, value in found.items()})
        for rank, found in enumerate(ranks)
    ]
    known = colours.by_name(sorted({phase for found in ranks for phase in found}), colours.PHASES)
    order = {phase: known[phase] for phase in [*colours.PHASES, *known] if phase in known}
    return (
        bars("seconds by rank and phase", rows, _shown(rows, order), Axis(f"{unit}, whole run"))
        if rows
        else ""
    )


def memory(log: Log) -> str:
    """Bytes of each rank by purpose when they were most."""
    held = log["end"].get("buffer_bytes", [])
    purposes = sorted({purpose for one in held for purpose in one})
    if not purposes:
        return ""
    most = max(sum(one.values()) for one in held)
    power = 3 if most >= 2**30 else 2 if most >= 2**20 else 1
    rows = [
        (f"rank {rank}", {purpose: n / 1024**power for purpose, n in one.items()})
        for rank, one in enumerate(held)
    ]
    unit = ("KiB", "MiB", "GiB")[power - 1]
    return bars("memory by rank and purpose", rows, _shown(rows, colours.by_name(purposes, {})), Axis(unit))


def traffic(log: Log) -> str:
    """Who sent whom how many words; nothing for one rank, or where the log does not say."""
    found = log["end"].get("traffic", [])
    return matrix("words by sender and receiver", found, "sender", "receiver") if len(found) > 1 else ""


def steady(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The lowest rank's epoch of median length, the first epoch not counted where there are others."""
    rank = min(event["pid"] for event in events if event["tid"] == EPOCHS)
    own = (event for event in events if (event["pid"], event["tid"]) == (rank, EPOCHS))
    epochs = sorted(own, key=lambda event: event["ts"])
    return sorted(epochs[1:] or epochs, key=lambda event: event["dur"])[(len(epochs) - 1) // 2]


def timeline(events: Sequence[dict[str, Any]], epoch: dict[str, Any]) -> str:
    """Three rows per rank, as MG-GCN Figures 6 and 8: what it computes, waits for, and has under way."""
    start, stop = epoch["ts"], epoch["ts"] + epoch["dur"]
    ranks = sorted({event["pid"] for event in events})
    found: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["tid"] != EPOCHS and event["ts"] + event["dur"] >= start and event["ts"] <= stop:
            row = len(ROWS) * ranks.index(event["pid"]) + min(event["tid"], UNDER_WAY) - COMPUTE
            kind = "under way" if event["tid"] >= UNDER_WAY else str(event.get("cat"))
            kind = kind if kind in colours.PHASES else "other"
            found[row, kind].append(((event["ts"] - start) / 1e3, event["dur"] / 1e3))
    kinds = {kind for _, kind in found}
    shown = {kind: colour for kind, colour in colours.PHASES.items() if kind in kinds}
    rows = [f"rank {rank} {name}" for rank in ranks for name in ROWS]
    return spans(
        f"timeline of {epoch['name']}", rows, found, shown, Axis("milliseconds"), (stop - start) / 1e3
    )


def _shown(rows: Sequence[tuple[str, dict[str, float]]], known: dict[str, str]) -> dict[str, str]:
    """The colours of parts that are there."""
    return {part: colour for part, colour in known.items() if any(parts.get(part) for _, parts in rows)}


def _scale(most: float) -> tuple[float, str]:
    return (1e3, "milliseconds") if most < 1 else (1.0, "seconds")
