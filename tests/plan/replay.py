"""Replay of a rank's steps, one by one and by nothing but lists: what `Clock` has to come to, to the bit."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from distgnn.plan.clock import APART, TOGETHER
from distgnn.plan.cost_model import Network, compute_seconds
from distgnn.plan.dry.recorder import ProgramStep


class Replay:
    """Seconds by stretch and phase, and those waited for, by operation, group and matrix."""

    def __init__(self, network: Network, steps: Sequence[ProgramStep]) -> None:
        self.network, self.machine = network, network.machine
        self.lanes: dict[Any, list[list[Any]]] = defaultdict(list)  # key, bytes and seconds, by level and way
        self.level: dict[Any, int] = {}
        self.arrived: dict[Any, float] = defaultdict(float)
        self.unmet: set[Any] = set()
        self.stretches: list[dict[str, float]] = [defaultdict(float)]
        self.exposed: dict[Any, float] = defaultdict(float)
        for step in steps:
            self.take(step, (step.operation, step.group, step.matrix))
        for key in list(self.level):
            self.wait(ProgramStep("wait", *key, nbytes=-1), key)

    def take(self, step: ProgramStep, key: Any) -> None:
        if step.phase in ("comm", "sent"):
            level, seconds = self.network.seconds(step)
            out = step.phase == "sent"
            again = out and any(one[0] == key for one in self.lanes[True, level])
            seconds -= self.network.route(step).call * again
            if seconds > 0:
                self.level[key] = level
                self.unmet |= set() if out else {key}
                self.lanes[out, level].append([key, 0.0 if out else step.nbytes, seconds])
        elif step.phase == "wait":
            self.wait(step, key)
        else:
            self.compute(step)

    def wait(self, step: ProgramStep, key: Any) -> None:
        level, due = self.level.get(key, 0), step.nbytes - self.arrived[key]
        ways = (False, True) if step.nbytes < 0 else (False,)
        due = math.inf if step.nbytes < 0 else due
        seconds = max(until(self.lanes[out, level], key, due) for out in ways)
        self.go_on(seconds)
        if step.operation not in APART and key in self.unmet:
            self.unmet.remove(key)
            seconds += self.network.skew(step.group)
        if seconds:
            self.stretches[-1]["comm"] += seconds
            self.exposed[key] += seconds
        self.arrived[key] = 0.0 if step.nbytes < 0 else max(self.arrived[key] - step.nbytes, 0.0)
        if step.operation not in APART:
            self.stretches.append(defaultdict(float))

    def compute(self, step: ProgramStep) -> None:
        seconds, overlap = compute_seconds(self.machine, step), self.machine.overlap
        slowed = seconds * (1 + overlap.slowdown)
        pending = max((math.fsum(one[2] for one in lane) for lane in self.lanes.values()), default=0.0)
        if pending and seconds:
            if pending < slowed * overlap.progress:
                left = [sum(one[2] for one in lane) for lane in self.lanes.values()]
                slowed = seconds + max(left) / overlap.progress * overlap.slowdown / (1 + overlap.slowdown)
            seconds = slowed
            self.go_on(seconds * overlap.progress)
        self.stretches[-1][step.phase] += seconds

    def go_on(self, seconds: float) -> None:
        for lane in self.lanes.values():
            left = seconds
            while lane and left > 0:
                key, nbytes, alone = lane[0]
                share = min(left / alone, 1.0)
                self.arrived[key] += share * nbytes
                left -= alone
                if share < 1:
                    lane[0][1:] = nbytes * (1 - share), alone * (1 - share)
                else:
                    lane.pop(0)


def until(lane: list[list[Any]], key: Any, due: float) -> float:
    """Return the seconds until so many bytes of a key are through, and all before them."""
    last = max((place for place, one in enumerate(lane) if one[0] == key), default=-1)
    seconds = 0.0
    for place, (other, nbytes, alone) in enumerate(lane):
        if due <= TOGETHER or place > last:
            break
        seconds += (min(due / nbytes, 1.0) if other == key and nbytes else 1.0) * alone
        due -= nbytes if other == key else 0
    return seconds
