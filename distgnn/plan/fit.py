"""Parameters of a machine that explain seconds which were measured: least squares, none below zero.

What a parameter costs is asked of the cost model: with all others free of charge, the seconds of a sample are
so many times the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used

from distgnn.plan.clock import TRAVELS, Clock, estimate, kernels
from distgnn.plan.cost_model import RELAY, Network
from distgnn.plan.dry.recorder import ProgramStep
from distgnn.plan.machine import (
    EDGES,
    FASTEST,
    PASSES,
    EdgeRate,
    Gemm,
    Level,
    Link,
    Machine,
    Overlap,
    Passes,
    Rate,
    Spmm,
    SpmmRates,
)  # fmt: skip
from distgnn.plan.reuse import EVEN, Reuse

FREE = float("inf")  # a rate at which nothing takes any time
ROUNDS = 10
HIDDEN = (0.25, 0.5, 0.75, 1.0)  # shares of the shorter of flops and bytes that are tried
WEIGHT = 0.25  # of what takes long: the power of its seconds
LEAST_SKEW = 1e-6  # seconds that are tried: fewer are lost in rounding
_PASS = {"byte": Passes(0.0, 1.0), "call": Passes(1.0, FREE)}
_NO_RATES = SpmmRates(0.0, 0.0, 0.0, 0.0)
_NO_EDGES = dict.fromkeys(vars(EdgeRate(0.0, 0.0, 0.0)), 0.0)


@dataclass(frozen=True)
class Measurement:
    """A measurement.

    Attributes:
        what: for tables; seconds: of the slowest rank; steps: what that rank was charged, or one of an epoch.
        grid: of the ranks, by axis, where the steps are messages.
        reuse: of the matrix, where they are sparse products.
        others: of an epoch, what ranks of other kinds were charged.
    """

    what: str
    seconds: float
    steps: Sequence[ProgramStep]
    grid: Mapping[str, int] = field(default_factory=dict)
    others: Sequence[Sequence[ProgramStep]] = ()
    reuse: Reuse = EVEN

    def epoch(self, machine: Machine) -> float:
        """Return the seconds that the cost model gives an epoch."""
        return estimate(machine, self.grid, [self.steps, *self.others]).seconds

    def on(self, machine: Machine) -> float:
        """Return the seconds that the cost model gives the sample, one step after the other, without skew."""
        alone = replace(machine.used(overlap=False), skew=0.0)
        clock = Clock(Network(alone, self.grid or {"rows": 1}), reuse=self.reuse).run(self.steps)
        return sum(sum(stretch.values()) for stretch in clock.stretches)


@dataclass(frozen=True)
class Fit:
    """Parameters, and how well they explain the samples.

    Attributes:
        kind: of messages or computation; level: of the network, or "" for computation.
        values: parameters by name.
        predicted: seconds of each sample.
    """

    kind: str
    level: str
    values: dict[str, float]
    samples: Sequence[Measurement]
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
        """Predicted over measured seconds of each sample, less 1."""
        return np.array(self.predicted) / np.array([sample.seconds for sample in self.samples]) - 1

    def record(self) -> dict[str, Any]:
        """Return the record for JSON."""
        points = [
            {"what": sample.what, "seconds": sample.seconds, "predicted": predicted}
            for sample, predicted in zip(self.samples, self.predicted, strict=True)
        ]
        sizes = np.abs(self.residuals)
        record = {"kind": self.kind, "level": self.level, **self.values, "r2": self.r2}
        record |= {"median_residual": float(np.median(sizes)), "largest_residual": float(sizes.max())}
        return record | {"samples": points}


def of(
    kind: str, level: str, values: dict[str, float], samples: Sequence[Measurement], machine: Machine
) -> Fit:
    """Fit: compare a machine with samples."""
    return Fit(kind, level, values, samples, [sample.on(machine) for sample in samples])


def free(levels: Sequence[Level]) -> Machine:
    """Make a machine with these units of ranks on which nothing takes any time."""
    idle = [replace(level, alpha=0.0, bandwidth=FREE, call=0.0, injection=FREE, kinds={}) for level in levels]
    spmm, gemm = Spmm(0.0, 0.0, _NO_RATES, _NO_RATES), Gemm(0.0, FREE, FREE)
    return Machine("free", "", FREE, idle, spmm, gemm, Passes(0.0, FREE), Overlap(0.0, 0.0), 0.0)


def _nothing() -> Machine:
    """Make a machine on which nothing takes any time, for samples without messages."""
    return free([Level("machine", None, 0.0, FREE)])


def solve(samples: Sequence[Measurement], units: Mapping[str, Machine]) -> dict[str, float]:
    """Solve for how many times each unit the samples took.

    None below zero, and such that relative errors count.

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
        solved = _weighted(design[:, kept], measured)
        times |= {list(units)[column]: float(count) for column, count in zip(kept, solved, strict=True)}
    return times


def _weighted(design: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Return non-negative least squares in which twice too much counts as half too little.

    Residuals are divided by the geometric mean of measured and predicted seconds, with the predictions of the
    round before. What takes long counts more, by the fourth root of its seconds: epochs are made of it, and
    no line fits all sizes.
    """
    scale, solved = measured, np.empty(0)
    for _ in range(ROUNDS):
        weights = measured**WEIGHT / scale
        weighted = design * weights[:, None]
        lengths = np.linalg.norm(weighted, axis=0)
        solved = scipy.optimize.nnls(weighted / lengths, measured * weights)[0] / lengths
        scale = np.sqrt(measured * np.maximum(design @ solved, measured / 100))
    return solved


def _adds(known: np.ndarray, column: np.ndarray) -> bool:
    """Tell whether a column is no combination of the known ones."""
    length = np.linalg.norm(column)
    if not length:
        return False
    if not known.shape[1]:
        return True
    scaled = known / np.linalg.norm(known, axis=0)
    rest = column / length - scaled @ np.linalg.lstsq(scaled, column / length, rcond=None)[0]
    return bool(np.linalg.norm(rest) > 1e-6)


def rate(seconds: float) -> float:
    """Return the rate of so many seconds per byte or flop."""
    return 1 / max(seconds, 1 / FASTEST)


def link(samples: Sequence[Measurement], levels: Sequence[Level], number: int, kind: str) -> Link:
    """Fit the link of a kind of messages at a level, from samples that cross it and no other."""

    def unit(link: Link) -> Machine:
        at = [replace(free(levels).levels[number], kinds={kind: link}, name=levels[number].name)]
        nothing = free(levels)
        return replace(nothing, levels=[*nothing.levels[:number], *at, *nothing.levels[number + 1 :]])

    units = {"byte": unit(Link(0.0, 1.0)), "alpha": unit(Link(1.0, FREE)), "call": unit(Link(0.0, FREE, 1.0))}
    times = solve(samples, units)
    fitted = Link(times["alpha"], rate(times["byte"]), times["call"])
    return _relay(samples, unit, fitted) if kind == RELAY else fitted


def _relay(samples: Sequence[Measurement], unit: Callable[[Link], Machine], start: Link) -> Link:
    """Fit the link of a relay: the longer of alpha and bytes counts, weighted as in :func:`solve`."""
    measured = np.array([sample.seconds for sample in samples])

    def link(alpha: float, byte: float) -> Link:
        return Link(alpha, rate(byte))

    only = Link(1 / FASTEST, start.bandwidth)
    scale = measured / [sample.on(unit(only)) for sample in samples]  # as if bytes alone counted
    starts = (start.alpha, 1 / start.bandwidth), (start.alpha, scale.min() / start.bandwidth)
    return link(*_descended(samples, lambda *seconds: unit(link(*seconds)), starts)[1])


def _descended(
    samples: Sequence[Measurement], machine: Callable[..., Machine], starts: Iterable[Sequence[float]]
) -> tuple[float, list[float]]:
    """Fit seconds of which ``machine`` makes a machine, from the best of some starts: where the longer of two
    terms counts, and no line does. Return how bad the fit is, weighted as in :func:`solve`, and the seconds.
    """
    measured, least = np.array([sample.seconds for sample in samples]), 1 / FASTEST

    def missed(logarithms: np.ndarray) -> np.ndarray:
        on = machine(*np.exp(logarithms).tolist())
        return np.log([sample.on(on) for sample in samples] / measured) * measured**WEIGHT

    firsts = [np.log(np.maximum(start, least)) for start in starts]
    within = np.log(least / 2), np.inf
    solutions = [scipy.optimize.least_squares(missed, first, bounds=within) for first in firsts]
    best = min(solutions, key=lambda solution: solution.cost)
    return float(best.cost), np.exp(best.x).tolist()


def no_faster(fitted: Link, samples: Sequence[Measurement]) -> Link:
    """Limit the link to the highest rate at which bytes came in any of these samples.

    A line through short messages may promise more for long ones.
    """
    rates = [
        sum(step.nbytes for step in sample.steps if step.phase == "comm") / sample.seconds
        for sample in samples
    ]
    return replace(fitted, bandwidth=min(fitted.bandwidth, max(rates)))


def injection(samples: Sequence[Measurement], machine: Machine, number: int) -> float:
    """Return bytes per second out of a unit below this level, of samples in which all its ranks send at once.

    The rate that fits best among many; what is sent cannot be slower than what was measured.
    """
    level = machine.levels[number]
    own = max([level.bandwidth, *(kind_link.bandwidth for kind_link in level.kinds.values())])
    ranks = machine.levels[number - 1].ranks or 1
    rates = own * ranks / np.geomspace(1, 4 * ranks, 200)
    measured = np.array([sample.seconds for sample in samples])

    def missed(trial: float) -> float:
        tried = [*machine.levels[:number], replace(level, injection=trial), *machine.levels[number + 1 :]]
        with_it = replace(machine, levels=tried)
        return float(np.sum(np.log(np.array([timed.on(with_it) for timed in samples]) / measured) ** 2))

    return float(min(rates.tolist(), key=missed))


def spmm(samples: Sequence[Measurement], caches: Sequence[float], cores: Sequence[float] = ()) -> Spmm:
    """Fit rates of sparse products, with the cache of one of these sizes that fits best, and that of a core.

    Non-zeros in no cache never take less time than cached ones. Matrices in which rows of B are found again
    tell what a core has of its own: without any, cores are left out.
    """
    own = [0.0, *(cores if any(sample.reuse is not EVEN for sample in samples) else ())]
    fits = (_spmm(samples, cache, core) for cache in caches for core in own if core < cache)
    return min(fits, key=lambda fitted: fitted[0])[1]


def _spmm(samples: Sequence[Measurement], cache: float, core: float) -> tuple[float, Spmm]:
    """Fit with caches of these sizes; return also how bad the fit is."""
    nothing, names = _nothing(), list(vars(_NO_RATES))
    kinds = ["in_core", "cached", "uncached"][not core :]  # of which each takes at least as long as the last
    nil = dict.fromkeys(kinds, _NO_RATES)
    made = lambda call, rates: Spmm(call, cache, core=core, **rates)  # noqa: E731
    units = {"call": made(1.0, nil)}
    for first, kind in enumerate(kinds):
        slower = {name: dict.fromkeys(kinds[first:], replace(_NO_RATES, **{name: 1.0})) for name in names}
        units |= {f"{kind} {name}": made(0.0, nil | rates) for name, rates in slower.items()}
    times = solve(samples, {name: replace(nothing, spmm=unit) for name, unit in units.items()})
    total = {
        kind: SpmmRates(*(sum(times[f"{below} {name}"] for below in kinds[: place + 1]) for name in names))
        for place, kind in enumerate(kinds)
    }
    spmm_rates = made(times["call"], total)
    fitted = of("spmm", "", {}, samples, replace(nothing, spmm=spmm_rates))
    return float(np.sum(np.log1p(fitted.residuals) ** 2)), spmm_rates


def gemm(samples: Sequence[Measurement]) -> Gemm:
    """Return rates of dense products, with the share of bytes hidden by flops that fits best."""
    nothing = _nothing()
    units = {
        "flop": replace(nothing, gemm=Gemm(0.0, 1.0, FREE)),
        "byte": replace(nothing, gemm=Gemm(0.0, FREE, 1.0)),
        "call": replace(nothing, gemm=Gemm(1.0, FREE, FREE)),
    }
    times, seconds = solve(samples, units), np.array([sample.seconds for sample in samples])
    start = times["call"], times["flop"], times["byte"]
    alone = np.array([[sample.on(units[name]) for sample in samples] for name in ("call", "flop", "byte")])
    most = (seconds / np.maximum(alone, 1 / FASTEST)).min(axis=1)  # of each, as if it were all of a sample

    def made(hidden: float, call: float, flop: float, byte: float) -> Gemm:
        return Gemm(call, rate(flop), rate(byte), hidden)

    def fitted(hidden: float) -> tuple[float, Gemm]:
        on: Any = lambda *seconds: replace(nothing, gemm=made(hidden, *seconds))  # noqa: E731
        starts = start, np.maximum(start, most / 10).tolist(), (most * (0.1, 1.0, 1.0)).tolist()
        missed, terms = _descended(samples, on, starts)
        return missed, made(hidden, *terms)

    summed = made(0.0, *start)
    known = of("gemm", "", {}, samples, replace(nothing, gemm=summed))
    missed = float(np.sum((np.log1p(known.residuals) * seconds**WEIGHT) ** 2)) / 2
    fits = [(missed, summed), *(fitted(hidden) for hidden in HIDDEN)]
    return min(fits, key=lambda pair: pair[0])[1]


def passes(samples: Sequence[Measurement], one_call: bool = False) -> Passes:
    """Return rates of passes over dense blocks, of each phase that there are samples of.

    Args:
        one_call: a call takes as long in all phases as where rows are gathered, of which small ones are
            measured.
    """
    by_phase = {sample.steps[0].phase: list[Measurement]() for sample in samples}
    for sample in samples:
        by_phase[sample.steps[0].phase].append(sample)
    usual = _pass(by_phase.get("spmm") or samples)
    known = usual.call if one_call else None
    rates = {phase: _pass(by_phase[phase], known) for phase in PASSES if phase in by_phase}
    return Passes(usual.call, usual.bandwidth, rates)


def _pass(samples: Sequence[Measurement], call: float | None = None) -> Rate:
    """Fit a rate; ``call``: seconds of each, where they are known."""
    nothing = _nothing()
    units = {name: replace(nothing, passes=rate) for name, rate in _PASS.items()}
    if call is not None:
        calls = replace(nothing, passes=replace(_PASS["call"], call=call))
        units = {"byte": units["byte"]}
        samples = [replace(some, seconds=max(some.seconds - some.on(calls), some.seconds / 2))
                   for some in samples]  # fmt: skip
    times = solve(samples, units) | ({} if call is None else {"call": call})
    return Rate(times["call"], rate(times["byte"]))


def edges(samples: Sequence[Measurement]) -> dict[str, EdgeRate]:
    """Return rates of passes over the non-zeros, of each kind that there are samples of."""
    rates = {}
    for kind in EDGES:
        if some := [sample for sample in samples if edge_pass(sample) == kind]:
            units = {name: {kind: EdgeRate(**_NO_EDGES | {name: 1.0})} for name in _NO_EDGES}
            times = solve(some, {name: replace(_nothing(), edges=unit) for name, unit in units.items()})
            rates[kind] = EdgeRate(**times)
    return rates


def edge_pass(sample: Measurement) -> str:
    """Return the kind of pass over the non-zeros that this is a sample of, as :data:`EDGES` names it."""
    return sample.steps[0].operation.replace(" ", "_")


def beyond(samples: Sequence[Measurement], machine: Machine) -> tuple[float, float]:
    """Fit (update, skew) to the seconds of epochs beyond those of this machine, which has neither."""
    update, skew, _ = _beyond(samples, machine, 0.0)
    return update, skew


def launched(samples: Sequence[Measurement], machine: Machine) -> tuple[float, float, float]:
    """Fit (update, skew, launch) to epochs so small that the device waits for the host which queues them."""
    idle = replace(_nothing(), levels=machine.levels, overlap=machine.overlap)
    return _beyond(samples, idle, 1.0)


def _beyond(
    samples: Sequence[Measurement], machine: Machine, launches: float
) -> tuple[float, float, float]:  # fmt: skip
    """Fit (update, skew, launch); ``launches``: how often each step is launched."""
    seconds = np.array([sample.seconds for sample in samples])
    steps = np.array([sample.epoch(machine) for sample in samples])
    queued = np.array([sum(step.phase not in TRAVELS for step in sample.steps) for sample in samples])
    update, launch, skew = 0.0, 0.0, float(np.min(seconds))
    for _ in range(ROUNDS):  # which rank is the slowest depends on it
        tried = max(skew, LEAST_SKEW)
        waits = np.array([sample.epoch(replace(machine, skew=tried)) for sample in samples]) - steps
        columns = np.ones(len(samples)), waits / tried, queued * launches
        design = np.stack(columns, axis=1) / seconds[:, None]
        update, skew, launch = scipy.optimize.nnls(design, (seconds - steps) / seconds)[0].tolist()
    return update, skew, launch


def captured(samples: Sequence[Measurement], machine: Machine) -> tuple[float, float]:
    """Fit (captured, gap) to the seconds of epochs as CUDA graphs beyond their steps."""
    on = replace(machine, update=0.0, launch=0.0, gap=0.0)
    seconds = np.array([sample.seconds for sample in samples])
    beyond, scale = seconds - [sample.epoch(on) for sample in samples], np.maximum(seconds, LEAST_SKEW)
    counts = np.array([kernels(sample.steps) for sample in samples])
    gaps = [counts] if np.ptp(counts) else []  # else they are part of what each epoch takes
    design = np.stack([np.ones(len(samples)), *gaps], axis=1) / scale[:, None]
    epoch, *gap = scipy.optimize.nnls(design, beyond / scale)[0].tolist()
    return max(epoch, LEAST_SKEW), sum(gap)
