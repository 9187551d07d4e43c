"""Parameters of a machine that explain seconds which were measured: least squares, none below zero.

What a parameter costs is asked of the cost model: with all others free of charge, the seconds of a sample are
so many times the parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from distgnn.ledger import Step
from distgnn.plan.cost_model import Network, compute_seconds, estimate
from distgnn.plan.machine import PASSES, Gemm, Level, Link, Machine, Overlap, Passes, Rate, Spmm, SpmmRates

FREE = float("inf")  # a rate at which nothing takes any time
ROUNDS = 10
FASTEST = 1e15  # the rate that is written where no time was found
_PASS = {"byte": Passes(0.0, 1.0), "call": Passes(1.0, FREE)}
_NO_RATES = SpmmRates(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Sample:
    """What was measured.

    Attributes:
        what: for tables; seconds: of the slowest rank; steps: what that rank was charged.
        grid: of the ranks, by axis, where the steps are messages.
    """

    what: str
    seconds: float
    steps: Sequence[Step]
    grid: Mapping[str, int] = field(default_factory=dict)

    def on(self, machine: Machine) -> float:
        """The seconds that the cost model gives it, one step after the other."""
        network = Network(machine, self.grid or {"rows": 1})
        return sum(
            network.seconds(step)[1] if step.phase == "comm" else compute_seconds(machine, step)
            for step in self.steps
            if step.phase != "wait"
        )


@dataclass(frozen=True)
class Fit:
    """How well the parameters explain the samples.

    Attributes:
        kind: of messages or computation; level: of the network, or "" for computation.
        values: parameters by name.
        predicted: seconds of each sample.
    """

    kind: str
    level: str
    values: dict[str, float]
    samples: Sequence[Sample]
    predicted: Sequence[float]

    @property
    def r2(self) -> float:
        """Share of the variance of the seconds that is explained; 1 for a perfect fit, below 0 for one worse
        than their mean. Large messages count most.
        """
        measured = np.array([sample.seconds for sample in self.samples])
        spread = float(((measured - measured.mean()) ** 2).sum())
        missed = float(((measured - np.array(self.predicted)) ** 2).sum())
        return 1 - missed / spread if spread else float(missed == 0)

    @property
    def residuals(self) -> np.ndarray:
        """Of each sample, predicted over measured seconds, less 1."""
        return np.array(self.predicted) / np.array([sample.seconds for sample in self.samples]) - 1

    def record(self) -> dict[str, Any]:
        """For JSON."""
        points = [
            {"what": sample.what, "seconds": sample.seconds, "predicted": predicted}
            for sample, predicted in zip(self.samples, self.predicted, strict=True)
        ]
        sizes = np.abs(self.residuals)
        told = {"kind": self.kind, "level": self.level, **self.values, "r2": self.r2}
        told |= {"median_residual": float(np.median(sizes)), "largest_residual": float(sizes.max())}
        return told | {"samples": points}


def of(kind: str, level: str, values: dict[str, float], samples: Sequence[Sample], machine: Machine) -> Fit:
    """How well a machine explains samples."""
    return Fit(kind, level, values, samples, [sample.on(machine) for sample in samples])


def free(levels: Sequence[Level]) -> Machine:
    """A machine with these units of ranks on which nothing takes any time."""
    idle = [replace(level, alpha=0.0, bandwidth=FREE, call=0.0, injection=FREE, kinds={}) for level in levels]
    spmm, gemm = Spmm(0.0, 0.0, _NO_RATES, _NO_RATES), Gemm(0.0, FREE, FREE)
    return Machine("free", "", FREE, idle, spmm, gemm, Passes(0.0, FREE), Overlap(0.0, 0.0), 0.0)


def _nothing() -> Machine:
    """Where nothing takes any time, for samples without messages."""
    return free([Level("machine", None, 0.0, FREE)])


def solve(samples: Sequence[Sample], units: Mapping[str, Machine]) -> dict[str, float]:
    """How many times each unit the samples took; none below zero, and such that relative errors count.

    Args:
        units: machines by name. Where the samples can't tell two of them apart, the first takes all.
    """
    design = np.array([[sample.on(unit) for unit in units.values()] for sample in samples])
    measured = np.array([sample.seconds for sample in samples])
    kept: list[int] = []
    for column in range(len(units)):
        if _adds(design[:, kept] / measured[:, None], design[:, column] / measured):
            kept.append(column)
    times = dict.fromkeys(units, 0.0)
    if kept:
        found = _weighted(design[:, kept], measured)
        times |= {list(units)[column]: float(one) for column, one in zip(kept, found, strict=True)}
    return times


def _weighted(design: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Non-negative least squares in which twice too much counts as half too little: residuals are divided by
    the geometric mean of measured and predicted seconds, with the predictions of the round before. What takes
    long counts more, by the fourth root of its seconds: epochs are made of it, and no line fits all sizes.
    """
    scale, found = measured, np.empty(0)
    for _ in range(ROUNDS):
        weights = measured**0.25 / scale
        weighted = design * weights[:, None]
        lengths = np.linalg.norm(weighted, axis=0)
        found = nnls(weighted / lengths, measured * weights)[0] / lengths
        scale = np.sqrt(measured * np.maximum(design @ found, measured / 100))
    return found


def _adds(known: np.ndarray, column: np.ndarray) -> bool:
    """Is a column no combination of those known?"""
    length = np.linalg.norm(column)
    if not length:
        return False
    if not known.shape[1]:
        return True
    scaled = known / np.linalg.norm(known, axis=0)
    rest = column / length - scaled @ np.linalg.lstsq(scaled, column / length, rcond=None)[0]
    return bool(np.linalg.norm(rest) > 1e-6)


def rate(seconds: float) -> float:
    """The rate of so many seconds per byte or flop."""
    return 1 / max(seconds, 1 / FASTEST)


def link(samples: Sequence[Sample], levels: Sequence[Level], number: int, kind: str) -> Link:
    """The link of a kind of messages at a level, of samples that cross it and no other."""

    def unit(one: Link) -> Machine:
        at = [replace(free(levels).levels[number], kinds={kind: one}, name=levels[number].name)]
        nothing = free(levels)
        return replace(nothing, levels=[*nothing.levels[:number], *at, *nothing.levels[number + 1 :]])

    units = {"byte": unit(Link(0.0, 1.0)), "alpha": unit(Link(1.0, FREE)), "call": unit(Link(0.0, FREE, 1.0))}
    times = solve(samples, units)
    return Link(times["alpha"], rate(times["byte"]), times["call"])


def injection(samples: Sequence[Sample], machine: Machine, number: int) -> float:
    """Bytes per second out of a unit below this level, of samples in which all its ranks send at once.

    The rate that fits best among many; what is sent cannot be slower than what was measured.
    """
    level = machine.levels[number]
    own = max([level.bandwidth, *(one.bandwidth for one in level.kinds.values())])
    ranks = machine.levels[number - 1].ranks or 1
    rates = own * ranks / np.geomspace(1, 4 * ranks, 200)
    measured = np.array([sample.seconds for sample in samples])

    def missed(found: float) -> float:
        tried = [*machine.levels[:number], replace(level, injection=found), *machine.levels[number + 1 :]]
        with_it = replace(machine, levels=tried)
        return float(np.sum(np.log(np.array([one.on(with_it) for one in samples]) / measured) ** 2))

    return float(min(rates.tolist(), key=missed))


def spmm(samples: Sequence[Sample], caches: Sequence[float]) -> Spmm:
    """Rates of sparse products, with the one of these sizes of a cache that fits best. What is found in no
    cache never takes less time than what is.
    """
    return min((_spmm(samples, cache) for cache in caches), key=lambda found: found[0])[1]


def _spmm(samples: Sequence[Sample], cache: float) -> tuple[float, Spmm]:
    """With a cache of this size; and how bad that is."""
    nothing, names = _nothing(), list(vars(_NO_RATES))
    rates = {name: replace(_NO_RATES, **{name: 1.0}) for name in names}
    units = {"call": Spmm(1.0, cache, _NO_RATES, _NO_RATES)}
    units |= {name: Spmm(0.0, cache, rate, rate) for name, rate in rates.items()}
    units |= {f"more {name}": Spmm(0.0, cache, _NO_RATES, rate) for name, rate in rates.items()}
    times = solve(samples, {name: replace(nothing, spmm=unit) for name, unit in units.items()})
    cached = SpmmRates(*(times[name] for name in names))
    uncached = SpmmRates(*(times[name] + times[f"more {name}"] for name in names))
    found = Spmm(times["call"], cache, cached, uncached)
    fitted = of("spmm", "", {}, samples, replace(nothing, spmm=found))
    return float(np.sum(np.log1p(fitted.residuals) ** 2)), found


def gemm(samples: Sequence[Sample]) -> Gemm:
    """Rates of dense products."""
    nothing = _nothing()
    units = {
        "flop": replace(nothing, gemm=Gemm(0.0, 1.0, FREE)),
        "byte": replace(nothing, gemm=Gemm(0.0, FREE, 1.0)),
        "call": replace(nothing, gemm=Gemm(1.0, FREE, FREE)),
    }
    times = solve(samples, units)
    return Gemm(times["call"], rate(times["flop"]), rate(times["byte"]))


def passes(samples: Sequence[Sample]) -> Passes:
    """Rates of passes over dense blocks, of each phase that there are samples of."""
    by_phase = {sample.steps[0].phase: list[Sample]() for sample in samples}
    for sample in samples:
        by_phase[sample.steps[0].phase].append(sample)
    rates = {phase: _pass(found) for phase, found in by_phase.items()}
    usual = rates.get("spmm") or _pass(samples)
    return Passes(usual.call, usual.bandwidth, {phase: rates[phase] for phase in PASSES if phase in rates})


def _pass(samples: Sequence[Sample]) -> Rate:
    nothing = _nothing()
    units = {name: replace(nothing, passes=rate) for name, rate in _PASS.items()}
    times = solve(samples, units)
    return Rate(times["call"], rate(times["byte"]))


def beyond(samples: Sequence[Sample], machine: Machine) -> tuple[float, float]:
    """(update, skew) that explain what epochs take longer than this machine, which has neither, says."""
    seconds = np.array([sample.seconds for sample in samples])
    with_skew = replace(machine, skew=1.0)
    steps, waits = (
        np.array([estimate(one, sample.grid, [sample.steps]).seconds for sample in samples])
        for one in (machine, with_skew)
    )
    design = np.stack([np.ones(len(samples)), waits - steps], axis=1) / seconds[:, None]
    update, skew = nnls(design, (seconds - steps) / seconds)[0].tolist()
    return update, skew
