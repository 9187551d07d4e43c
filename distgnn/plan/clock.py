"""Clock of a rank: its steps, replayed beside the messages that are under way.

A step that comes again and again is priced once, and what repeats it goes through a loop of a few additions.
Seconds are added up in the order of the steps.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import NamedTuple

from distgnn.plan.cost_model import FLOAT, Network, compute_seconds
from distgnn.plan.dry.recorder import OTHER, ProgramStep
from distgnn.plan.machine import Machine
from distgnn.plan.reuse import EVEN, Reuse

#: What ranks do not wait for each other in: a rank goes on with the parts that are there.
APART = ("bcast", "alltoall", "alltoallv")
TRAVELS = ("comm", "sent", "wait")  # phases of steps in which a rank computes nothing
UPDATE = "optimizer"  # the phase whose steps, one for each parameter, a device does in one
TOGETHER = 1e-3  # bytes: what rounding may leave
Phases = dict[str, float]
Key = tuple[str, str, str]  # operation, group, matrix


class Program:
    """Steps of a rank, of which each kind is kept once.

    Attributes:
        kinds: the steps that differ; runs: the number of a kind, and how often it comes in a row.
    """

    def __init__(self, steps: Iterable[ProgramStep]) -> None:
        numbers: dict[ProgramStep, int] = {}
        self.runs = [
            (numbers.setdefault(step, len(numbers)), len(list(run))) for step, run in groupby(steps)
        ]
        self.kinds = list(numbers)


class _Transfer:
    """A transfer under way: seconds that are left, of bytes that are left."""

    __slots__ = ("key", "nbytes", "seconds")

    def __init__(self, key: Key, nbytes: float, seconds: float) -> None:
        self.key, self.nbytes, self.seconds = key, nbytes, seconds


class _Lane(deque[_Transfer]):
    """Transfers of one level, one after another; ``out``: they are sent, and not received."""

    out = False

    def lasts(self, seconds: float) -> int:
        """Return how many times so many seconds may pass, at the least, before the first transfer ends."""
        return int(self[0].seconds / seconds) - 1


class _Kind(NamedTuple):
    """A kind of step on a network.

    Attributes:
        nbytes: of a transfer or a wait; meets: ranks wait for each other; seconds: alone.
        level, call, lane: of a transfer.
    """

    step: ProgramStep
    key: Key
    nbytes: float
    meets: bool
    seconds: float = 0.0
    level: int = 0
    call: float = 0.0
    lane: _Lane | None = None


class Clock:
    """One rank's seconds, by phase, between the points where the ranks of a group wait for each other.

    Args:
        itemsize, reuse: of the values and of the graph, see :func:`~distgnn.plan.cost_model.compute_seconds`.

    Attributes:
        launched: seconds in which the host queues the steps for its device, but for those that no charge
            accounts for: `launch` has them, as they come with others.
        stretches: seconds by phase from one such point to the next.
        exposed: seconds waited for, by operation, group and matrix; flight: seconds under way, if `flights`.
        places: the level of each of these.
    """

    def __init__(
        self, network: Network, itemsize: int = FLOAT, flights: bool = False, reuse: Reuse = EVEN
    ) -> None:  # fmt: skip
        self.network, self.machine, self.itemsize = network, network.machine, itemsize
        self.reuse, self.launched = reuse, 0.0
        self.lanes: dict[tuple[bool, int], _Lane] = {}  # by whether they are sent, and the level
        self.going: dict[Key, int] = defaultdict(int)  # transfers on the way out
        self.flights = flights
        self.places: dict[Key, int] = {}
        self.ways: dict[Key, tuple[_Lane, _Lane]] = {}  # in, and out
        self.unmet: set[Key] = set()  # keys that ranks have yet to wait for each other for
        self.arrived: dict[Key, float] = defaultdict(float)  # bytes not yet waited for
        self.stretches: list[Phases] = [defaultdict(float)]
        self.exposed: dict[Key, float] = defaultdict(float)
        self.flight: dict[Key, float] = defaultdict(float)

    def run(self, program: Program | Sequence[ProgramStep]) -> Clock:
        """Go through the steps of an epoch; what is still under way at its end is waited for."""
        program = program if isinstance(program, Program) else Program(program)
        kinds = [self._kind(step) for step in program.kinds]
        go = {"comm": self._post, "sent": self._send, "wait": self._wait}
        ways = [go.get(step.phase) for step in program.kinds]
        for number, times in program.runs:
            kind, take = kinds[number], ways[number]
            if take is None:
                self._compute(kind, times)
            else:
                for _ in range(times):
                    take(kind)
        for key in list(self.places):
            self._wait(self._kind(ProgramStep("wait", *key, nbytes=-1)))
        return self

    def _kind(self, step: ProgramStep) -> _Kind:
        key = step.operation, step.group, step.matrix
        if step.phase in ("comm", "sent"):
            level, seconds = self.network.seconds(step)
            lane, call = self._lane(step.phase == "sent", level), self.network.route(step).call
            return _Kind(step, key, step.nbytes, False, seconds, level, call, lane)
        if step.phase == "wait":
            return _Kind(step, key, step.nbytes, step.operation not in APART)
        alone = compute_seconds(self.machine, step, self.itemsize, self.reuse)
        return _Kind(step, key, 0.0, False, alone)

    def _lane(self, out: bool, level: int) -> _Lane:
        if (out, level) not in self.lanes:
            self.lanes[out, level] = lane = _Lane()
            lane.out = out
        return self.lanes[out, level]

    def _post(self, kind: _Kind) -> None:
        if kind.seconds > 0:
            if self.flights:
                self.flight[kind.key] += kind.seconds
            self.unmet.add(kind.key)
            self._put(kind, kind.nbytes, kind.seconds)

    def _put(self, kind: _Kind, nbytes: float, seconds: float) -> None:
        if self.places.get(kind.key) != kind.level:
            self.places[kind.key] = kind.level
            self.ways[kind.key] = self._lane(False, kind.level), self._lane(True, kind.level)
        kind.lane.append(_Transfer(kind.key, nbytes, seconds))  # type: ignore[union-attr]

    def _send(self, kind: _Kind) -> None:
        """Send beside receiving. Sending adds to the transfers under way as far as it takes longer."""
        key = kind.key
        seconds = kind.seconds - kind.call * (self.going[key] > 0)  # of transfer operation
        if seconds > 0:
            if self.flights:
                ways = self._lane(False, kind.level), self._lane(True, kind.level)  # in, and out
                comes, goes = (sum(t.seconds for t in lane if t.key == key) for lane in ways)
                self.flight[key] += max(goes + seconds - max(comes, goes), 0.0)
            self._put(kind, 0.0, seconds)
            self.going[key] += 1

    def _wait(self, kind: _Kind) -> None:
        """Wait until so many bytes of this key are there, and all that its level moves before them."""
        key, expected, ways, seconds = kind.key, kind.nbytes, self.ways.get(kind.key), 0.0
        through = expected < 0
        if ways is not None:
            due = math.inf if through else expected - self.arrived[key]
            seconds = _until(ways[0], key, due)
            if through:
                seconds = max(seconds, _until(ways[1], key, due))
        if seconds:
            self._go_on(seconds)
        if kind.meets and key in self.unmet:
            self.unmet.remove(key)
            seconds += self.network.skew(kind.step.group)
        if seconds:
            self.stretches[-1]["comm"] += seconds
            self.exposed[key] += seconds
        self.arrived[key] = 0.0 if through else max(self.arrived[key] - expected, 0.0)
        if kind.meets:
            self.stretches.append(defaultdict(float))

    def _compute(self, kind: _Kind, times: int) -> None:
        """Compute so many times, slower while messages travel."""
        for _ in range(times if self.machine.launch and kind.step.phase != OTHER else 0):
            self.launched += self.machine.launch
        overlap, phase = self.machine.overlap, kind.step.phase
        seconds, total = kind.seconds, self.stretches[-1][phase]
        slowed = seconds * (1 + overlap.slowdown)
        hidden = slowed * overlap.progress
        while times and seconds and (busy := [lane for lane in self.lanes.values() if lane]):
            if times > 2 and hidden and (again := min(times, *(lane.lasts(hidden) for lane in busy))) > 0:
                for lane in busy:
                    self._shorten(lane[0], hidden, again)
                for _ in range(again):
                    total += slowed
                times -= again
                continue
            taken = slowed
            if busy[0][0].seconds < hidden and (pending := _pending(busy, hidden)) < hidden:
                # all is there before the computation ends
                taken = seconds + pending / overlap.progress * overlap.slowdown / (1 + overlap.slowdown)
            total += taken
            self._go_on(taken * overlap.progress)
            times -= 1
        for _ in range(times):
            total += seconds
        self.stretches[-1][phase] = total

    def _shorten(self, transfer: _Transfer, seconds: float, times: int) -> None:
        """Let so many seconds pass so many times for a transfer that takes longer."""
        left, nbytes, came = transfer.seconds, transfer.nbytes, self.arrived[transfer.key]
        for _ in range(times):
            share = seconds / left
            came += share * nbytes
            nbytes *= 1 - share
            left *= 1 - share
        transfer.seconds, transfer.nbytes, self.arrived[transfer.key] = left, nbytes, came

    def _go_on(self, seconds: float) -> None:
        """Let so many seconds pass for the transfers under way."""
        for lane in filter(None, self.lanes.values()):
            left = seconds
            while lane and left > 0:
                first = lane[0]
                if left < first.seconds:
                    share = left / first.seconds
                    self.arrived[first.key] += share * first.nbytes
                    first.nbytes *= 1 - share
                    first.seconds *= 1 - share
                    break
                self.arrived[first.key] += first.nbytes
                left -= first.seconds
                self.going[first.key] -= lane.out
                lane.popleft()


def _pending(busy: Iterable[_Lane], enough: float) -> float:
    """Return the seconds of the transfers under way on the busiest level, or as many as it is enough to know
    of.
    """
    most = 0.0
    for lane in busy:
        left = 0.0
        for transfer in lane:
            left += transfer.seconds
            if left >= enough:
                return left
        most = max(most, left)
    return most


def _until(lane: _Lane, key: Key, due: float) -> float:
    """Return the seconds until so many bytes of a key are through, and all before them."""
    last = len(lane) - 1
    while last >= 0 and lane[last].key != key:
        last -= 1
    seconds = 0.0
    for place, transfer in enumerate(lane):
        if due <= TOGETHER or place > last:
            break
        share = 1.0
        if transfer.key == key and transfer.nbytes:
            share = min(due / transfer.nbytes, 1.0)
            due -= transfer.nbytes
        seconds += share * transfer.seconds
    return seconds


@dataclass(frozen=True)
class Estimate:
    """The seconds of an epoch on the slowest ranks.

    Attributes:
        phases: they add up to ``seconds``; "comm" is what is waited for.
        kernels: launched by the rank that launches most, if it has a device.
    """

    seconds: float
    phases: Phases
    kernels: int = 0


def estimate(
    machine: Machine,
    grid: Mapping[str, int],
    programs: Sequence[Program | Sequence[ProgramStep]],
    itemsize: int = FLOAT,
    reuse: Reuse = EVEN,
) -> Estimate:
    """Estimate the seconds of these programs, one for each kind of rank, on a grid of the machine's ranks.

    Between points where ranks wait for each other, the slowest counts. A device waits for a host that takes
    longer to queue an epoch than the device to compute it.

    Args:
        itemsize, reuse: of the values and of the graph, see :func:`compute_seconds`.
    """
    network = Network(machine, grid)
    clocks = [Clock(network, itemsize, reuse=reuse).run(steps) for steps in programs]
    phases: Phases = defaultdict(float)
    for stretch in _slowest(clocks):
        for phase, seconds in stretch.items():
            phases[phase] += seconds
    launched = max((clock.launched for clock in clocks), default=0.0)
    count = max((kernels(steps) for steps in programs), default=0)
    waits = max(launched - sum(phases.values()), 0.0) if machine.launch else count * machine.gap
    phases[OTHER] += machine.update + waits
    return Estimate(sum(phases.values()), dict(phases), count)


def kernels(program: Program | Sequence[ProgramStep]) -> int:
    """Count the kernels of a rank's steps: one each where it computes, but one for a whole update."""
    program, count, before = program if isinstance(program, Program) else Program(program), 0, ""
    for number, times in program.runs:
        phase = program.kinds[number].phase
        count += 0 if phase in TRAVELS or phase == before == UPDATE else 1 if phase == UPDATE else times
        before = phase
    return count


def _slowest(clocks: Sequence[Clock]) -> Iterator[Phases]:
    """Return of each stretch the slowest rank's.

    Where programs differ in their stretches, the slowest program's.
    """
    if len({len(clock.stretches) for clock in clocks}) == 1:
        for stretches in zip_longest(*(clock.stretches for clock in clocks)):
            yield max(stretches, key=lambda stretch: sum(stretch.values()))
    else:
        yield from max(clocks, key=lambda clock: sum(sum(s.values()) for s in clock.stretches)).stretches
