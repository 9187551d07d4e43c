"""The scores in records of runs: names such as "val_acc", and what people call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distgnn.split import SPLITS

METRICS = {"acc": "accuracy", "f1": "micro F1", "rocauc": "macro ROC-AUC"}


def metric(record: Mapping[str, Any]) -> str:
    """The metric whose scores a record has, by its short name; "acc" where it has none."""
    return next((short for short in METRICS if any(f"{part}_{short}" in record for part in SPLITS)), "acc")


def title(record: Mapping[str, Any]) -> str:
    """The same in words."""
    return METRICS[metric(record)]


def score(record: Mapping[str, Any], split: str) -> float | None:
    """The score in a part of the split; None where there is none."""
    return record.get(f"{split}_{metric(record)}")


def scores(record: Mapping[str, Any], named: bool = True) -> list[str]:
    """All of them for the console: "val 0.8123", of others than accuracy, if `named`, "val f1 0.8"."""
    short = metric(record)
    middle = f" {short}" if named and short != "acc" else ""
    told = {split: record[f"{split}_{short}"] for split in SPLITS if f"{split}_{short}" in record}
    return [f"{split}{middle} {value:.4f}" for split, value in told.items()]
