"""Training that is asked to stop: after which update, and the state from which the epoch goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: Called on every rank after its updates; returns the number of a signal that asks to stop, 0 for none.
Stop = Callable[[], int]


@dataclass(frozen=True)
class Begun:
    """An epoch on minibatches of which some updates are made.

    Attributes:
        epoch: its number. totals: of each update, the sum of losses and the number of their nodes.
        scores: of the weights before the epoch; empty where they were not evaluated.
    """

    epoch: int
    totals: list[list[float]]
    scores: dict[str, float]

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON."""
        return asdict(self)

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Begun | None:
        """Take the state from the facts of a checkpoint; None if that is of the end of an epoch."""
        state = meta.get("begun")
        return None if state is None else cls(int(state["epoch"]), state["totals"], state["scores"])


class PausedError(Exception):
    """The end of a training within an epoch, on every rank."""

    def __init__(self, begun: Begun) -> None:
        super().__init__(f"within epoch {begun.epoch}, after {len(begun.totals)} updates")
        self.begun = begun
