"""Results of validation so far: the best weights, and whether training should go on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from distgnn import records
from distgnn.errors import ArgumentError
from distgnn.ledger import holds
from distgnn.nn.optim import Parameter
from distgnn.train.schedule import Schedule
from distgnn.train.settings import FIRST_DECAY, Settings

Array = Any
#: The difference of a score between training and validation nodes from which advice is given.
GAP = 0.1


class Best:
    """The weights that had the highest validation accuracy (or F1, ROC-AUC or R²), the first of equals. Not
    collective: all ranks see the same numbers, and so decide alike.

    Args:
        parameters: as far as this rank holds them; copied, where ``keep`` says so, when they are the best.
        keep: hold the best weights, in memory of the size of the parameters.
        patience: epochs without a better one after which training stops; None: never.
        plateau: whose epochs without a better one are counted, if that is its kind.

    Attributes:
        found: "epoch", after which the weights were the best, and their accuracies; None as long as nothing
            was observed.
        drops: how often a plateau was met. stopped: whether patience has run out.
        blocks: parameter name -> this rank's block of the best weights.
    """

    def __init__(
        self, parameters: Sequence[Parameter], keep: bool = False, patience: int | None = None,
        plateau: Schedule | None = None,
    ) -> None:  # fmt: skip
        self.parameters, self.keep, self.patience, self.plateau = parameters, keep, patience, plateau
        self.found: records.BestEpoch | None = None
        self.drops, self.since, self.seen, self.stopped = 0, 0, 0, False
        self.blocks: dict[str, Array] = {}

    def observe(self, epoch: int, accuracies: Mapping[str, float]) -> None:
        """Take the accuracies of the weights after an epoch; the first ``val_`` counts.

        Taking the same twice changes nothing. Epoch 0 does not count: untrained weights are never the best.
        """
        if epoch == 0:
            return
        name = next(name for name in accuracies if name.startswith("val_"))
        best: Mapping[str, Any] = self.found or {}
        value, before = accuracies[name], best.get(name, math.nan)
        self.seen = epoch
        if self.found is None or value > before or math.isnan(before) > math.isnan(value):
            self.found, self.since = {"epoch": epoch, **records.named(accuracies)}, epoch
            self._copy()
        elif self.plateau and self.plateau.kind == "plateau" and epoch - self.since >= self.plateau.epochs:
            self.drops, self.since = self.drops + 1, epoch

    @property
    def stale(self) -> bool:
        """True if nothing better was seen for as many epochs as patience allows."""
        if self.found is None or self.patience is None:
            return False
        return self.seen - self.found["epoch"] >= self.patience

    def restore(self) -> None:
        """Put the best weights into the network. ValueError: they were not kept."""
        if not self.blocks:
            raise ValueError("no weights were kept; train with keep_best=val")
        for p in self.parameters:
            p.block[...] = self.blocks[p.name]

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, beside ``blocks``, as JSON."""
        counts = {"drops": self.drops, "since": self.since, "seen": self.seen, "stopped": self.stopped}
        return counts | {"found": self.found, "kept": bool(self.blocks)}

    def take(self, state: Mapping[str, Any]) -> bool:
        """Go on from a state; returns whether its blocks are wanted, which then become ours. ArgumentError:
        they would be lost.
        """
        if state and state["kept"] and not self.keep:
            problem = (
                "the checkpoint has the weights of the best epoch, which would be lost; say keep_best=val"
            )
            raise ArgumentError("keep_best", "none", problem)
        if not state:
            return False
        self.drops = state["drops"]  # even where it is not known which weights were the best
        if self.keep and not state["kept"]:
            return False
        self.found, self.since, self.seen = state["found"], state["since"], state["seen"]
        self.stopped = bool(state["stopped"]) and self.stale
        if self.keep:
            self._copy()  # room of the right shapes
        return self.keep

    def _copy(self) -> None:
        if self.keep and not self.blocks:
            self.blocks = {p.name: p.block.copy() for p in self.parameters}
            holds(self, "best weights", sum(block.nbytes for block in self.blocks.values()))
        elif self.keep:
            for p in self.parameters:
                self.blocks[p.name][...] = p.block


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
