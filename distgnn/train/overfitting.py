"""Advice where a network knows the training nodes by heart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distgnn.train.recipes import FIRST_DECAY
from distgnn.train.settings import Settings

#: The difference of a score between training and validation nodes from which advice is given.
GAP = 0.1


def overfitting(settings: Settings, end: Mapping[str, Any]) -> str | None:
    """Return a line of advice, or None: the scores are near each other, or all that helps is in use.

    Args:
        settings: resolved. end: the last line of the log.
    """
    measured = end.get("best", end)
    validation = next((name for name in measured if name.startswith("val_")), None)
    if validation is None:
        return None
    training = measured[f"train_{validation.removeprefix('val_')}"]
    if not training - measured[validation] >= GAP:  # NaN where a part has no labels
        return None
    unused = {
        "dropout=0.5": settings.dropout == 0,
        f"weight_decay={FIRST_DECAY:g}": not any(settings.decays),
        "keep_best=val": settings.keep_best != "val",
    }
    advice = [name for name, is_unused in unused.items() if is_unused]
    words = " and ".join(", ".join(advice).rsplit(", ", 1))
    scores = f"training {training:.2f}, validation {measured[validation]:.2f}"
    return f"{scores}: the network overfits; try {words}" if advice else None
