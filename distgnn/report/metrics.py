"""The scores in records of runs: names such as "val_acc", and their names in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distgnn.split import SPLITS

METRICS = {"acc": "accuracy", "f1": "micro F1", "rocauc": "macro ROC-AUC", "r2": "R²"}
ERROR = "mae"  # the mean absolute error, which stands beside R²


def metric(record: Mapping[str, Any]) -> str:
    """Return the metric whose scores a record has, by its short name; "acc" without any."""
    return next((short for short in METRICS if any(f"{part}_{short}" in record for part in SPLITS)), "acc")


def title(record: Mapping[str, Any]) -> str:
    """Return the name of the record's metric in words."""
    return METRICS[metric(record)]


def score(record: Mapping[str, Any], split: str) -> float | None:
    """Return the score in a part of the split; None without one."""
    return record.get(f"{split}_{metric(record)}")


def scores(record: Mapping[str, Any], named: bool = True) -> list[str]:
    """Write all scores for the console: "val 0.8123"; if `named`, with another metric than accuracy.

    Such as "val f1 0.8000".
    """
    short = metric(record)
    middle = f" {short}" if named and short != "acc" else ""
    values = {split: record[f"{split}_{short}"] for split in SPLITS if f"{split}_{short}" in record}
    errors = {split: record.get(f"{split}_{ERROR}") for split in values}
    beside = {split: "" if value is None else f" mae {value:.4g}" for split, value in errors.items()}
    return [f"{split}{middle} {value:.4f}{beside[split]}" for split, value in values.items()]
