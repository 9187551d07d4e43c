"""Readers of logs and traces for the report."""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from distgnn.errors import UserError
from distgnn.files.nearby import did_you_mean_path
from distgnn.records import End, Epoch, Log, Start
from distgnn.report import colours
from distgnn.report.shape import conforms
from distgnn.report.trace import EPOCHS

#: Entries of every rank at the end of every log.
RANKS = ("words", "bytes", "messages", "peak_bytes")
#: Entries that the page shows, by event.
NEEDED = {
    "run": ("config", "grid", "ranks"), "epoch": ("seconds", "epoch", "loss", "phases"), "end": RANKS,
}  # fmt: skip


class _Network(TypedDict):
    algorithm: str
    widths: list[int]


class Config(_Network, total=False):
    """The part of a run's settings that a page names; older logs do not have the sizes of the graph."""

    n: int
    nnz: int


#: Settings of files and of watching a run, which do not change its results.
APART = (
    "store",
    "log",
    "trace",
    "checkpoint",
    "checkpoint_every",
    "resume",
    "force",
    "quiet",
    "check",
    "verify",
)


def read_logs(paths: Sequence[str | Path]) -> list[Log]:
    """Read logs and name them; logs of equal file names are told apart by as many folders as needed."""
    logs = [read_log(Path(path)) for path in paths]
    for depth in range(2, 1 + max((len(Path(path).parts) for path in paths), default=0)):
        names = [log["name"] for log in logs]
        for log in logs:
            if names.count(log["name"]) > 1:
                log["name"] = Path(*log["path"].with_suffix("").parts[-depth:]).as_posix()
    return logs


def read_log(path: Path) -> Log:
    """Read the events of a log, which may end within a line; UserError for a log without an epoch.

    Where a run went on in it, start and end are those of the last launch that trained an epoch.
    """
    log: Log = {"name": path.stem, "path": path, "run": {}, "epochs": [], "end": {}, "first": 0}
    begun = log["run"]
    lines = _read(path).splitlines()
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            kind = event["event"]
            check(kind, event)
            _check_ranks(event, begun)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            if number == len(lines) and log["epochs"]:
                break  # the run was ended while it wrote
            problem = "no event of a log; expected what train with log=FILE writes"
            raise UserError(f"{path}, line {number}: {problem}") from None
        if kind == "epoch":
            if begun is not log["run"]:
                log |= {"run": begun, "end": {}, "first": len(log["epochs"])}
            log["epochs"].append(event)
        elif kind == "run":
            begun = event
        elif kind == "end":
            log["end"] = event
    if not (log["run"] and log["epochs"]):
        raise UserError(f"{path}: holds no epoch of a run; expected what train with log=FILE writes")
    return log


def check(kind: str, event: dict[str, Any]) -> None:
    """Raise KeyError or ValueError for an event that lacks an entry which the page shows, or has another."""
    needed, kinds = NEEDED.get(kind, ()), {"run": Start, "epoch": Epoch, "end": End}
    for name in needed:
        event[name]
    if kind in kinds and not conforms(event, kinds[kind]):
        raise ValueError("an entry of another type")
    if kind == "run" and not (conforms(event["config"], Config) and event["config"]["widths"]):
        raise ValueError("no algorithm or no widths")
    if kind == "run" and not event["ranks"]:
        raise ValueError("no ranks")
    if kind == "epoch" and event["seconds"] < 0:
        raise ValueError("less than no seconds")


def _check_ranks(event: dict[str, Any], run: Mapping[str, Any]) -> None:
    """Raise ValueError for the end of a run with other ranks than its start."""
    if event["event"] != "end" or "ranks" not in run:
        return
    ranks = len(run["ranks"])
    lists = [event[name] for name in (*RANKS, "flops", "buffer_bytes") if name in event]
    traffic = event.get("traffic", [])
    lists += [traffic, *traffic] if traffic else []
    lists += list(event.get("steps_median", {}).values())
    known = {rank for entry in event.get("ledger", []) for rank in [entry["rank"]]}
    if any(len(values) != ranks for values in lists) or not known <= {*range(ranks)}:
        raise ValueError(f"not of {ranks} ranks")
    for entry in event.get("ledger", []):
        entry["phase"], entry["seconds"]


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return the complete events of a trace; UserError if the file is no readable trace."""
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
        near = "" if path.exists() else did_you_mean_path(path)
        raise UserError(f"{path}: cannot read it ({problem}){near}") from None


def of_last_launch(log: Log) -> list[Epoch]:
    """Return the epochs of the last launch: of its ranks, and those whose words its end has."""
    return log["epochs"][log.get("first", 0) :]


def epoch_seconds(log: Log, mean_of_last: int | None = None) -> float:
    """Return the seconds of an epoch of the last launch: the median, or the mean of the last so many."""
    seconds = [epoch["seconds"] for epoch in of_last_launch(log)]
    return statistics.median(seconds) if mean_of_last is None else statistics.mean(seconds[-mean_of_last:])


def median_phases(log: Log) -> dict[str, float]:
    """Return the seconds of each phase that the log has, the median over epochs of the last launch."""
    epochs = [epoch["phases"] for epoch in of_last_launch(log)]
    phases = [phase for phase in colours.PHASES if any(phase in epoch for epoch in epochs)]
    return {phase: statistics.median(epoch.get(phase, 0.0) for epoch in epochs) for phase in phases}


def seconds_by_rank(log: Log) -> list[dict[str, float]]:
    """Return the seconds of the whole run by phase, for each rank.

    Empty if the log has not ended or has no ledger.
    """
    seconds: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for entry in log["end"].get("ledger", []):
        seconds[entry["rank"]][entry["phase"]] += entry["seconds"]
    return [dict(seconds[rank]) for rank in range(len(log["run"]["ranks"]))] if seconds else []


def settings(log: Log) -> dict[str, Any]:
    """Return the settings of a run and its grid, without those of files.

    An order by partition is named by its method, as the number of its parts follows the ranks.
    """
    config = {name: value for name, value in log["run"]["config"].items() if name not in APART}
    parts = re.fullmatch(r"(.+)-\d+", str(config.get("order", "")))
    return config | {"order": parts[1]} if parts else config
