"""The schedule of the step size, from epoch to epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distgnn.errors import ArgumentError

#: The form in which each kind of schedule is written.
FORMS = {"cosine": "cosine", "step": "step:EPOCHS,FACTOR", "plateau": "plateau:EPOCHS,FACTOR"}


@dataclass(frozen=True)
class Schedule:
    """A factor of the step size for every epoch; within an epoch all updates have the same.

    In the first ``warmup`` epochs it rises in equal steps, up to 1. Then, by ``kind``:

    - None: it stays 1.
    - "cosine": (1 + cos(pi t / T)) / 2 in epoch t of the T that are left, from 0 (Loshchilov and Hutter:
      SGDR, ICLR 2017, equation 5, without restarts).
    - "step": it is multiplied by ``factor`` after every so many (``epochs``) of them.
    - "plateau": it is multiplied by ``factor`` whenever validation has not been better than the best for so
      many epochs, counted from the best or from the last time (see :class:`~distgnn.train.best.Best`).
    """

    kind: str | None = None
    epochs: int = 0
    factor: float = 1.0
    warmup: int = 0

    @classmethod
    def parse(cls, text: str | None, warmup: int = 0) -> Schedule:
        """Read a schedule from its setting. ArgumentError: another form, or numbers out of range."""
        if text is None:
            return cls(warmup=warmup)
        kind, _, numbers = text.partition(":")
        try:
            if kind == "cosine" and not numbers:
                return cls(kind, warmup=warmup)
            epochs, factor = numbers.split(",")
            schedule = cls(kind, int(epochs), float(factor), warmup)
            if kind in FORMS and schedule.epochs >= 1 and 0 < schedule.factor < 1:
                return schedule
        except ValueError:
            pass
        forms = ", ".join(FORMS.values())
        problem = f"expected one of {forms}; as step:30,0.5, at least one epoch and a factor between 0 and 1"
        raise ArgumentError("schedule", text, problem)

    def at(self, epoch: int, epochs: int, drops: int = 0) -> float:
        """Return the factor in an epoch, counted from 1, of ``epochs``, after ``drops`` plateaus."""
        if epoch <= self.warmup:
            return epoch / self.warmup * self.factor**drops
        past = epoch - 1 - self.warmup
        if self.kind == "cosine":
            return (1 + math.cos(math.pi * past / max(epochs - self.warmup, 1))) / 2
        if self.kind == "step":
            return self.factor ** (past // self.epochs)
        return self.factor**drops


def changed(then: Mapping[str, Any], now: Mapping[str, Any], epoch: int) -> str:
    """Describe the rates that a resumed run has changed: "lr=0.01, was 0.1 up to epoch 16; ...", or "".

    A rate that is left out is None, or 0 for warmup.
    """
    lines = []
    for name in dict.fromkeys([*now, *then]):
        off = 0 if name == "warmup" else None
        old, new = then.get(name, off), now.get(name, off)
        if old != new:
            lines.append(f"{name.replace(' ', '_')}={new}, was {old} up to epoch {epoch}")
    return "; ".join(lines)
