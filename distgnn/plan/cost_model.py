"""Seconds of an epoch: the steps of a dry run, replayed on a machine that was measured.

Messages cost α each and their bytes β (CAGNET section IV); panels of a relay cost the longer of the two. Of
an exchange what comes counts or what is sent, whichever takes longer. What β is depends on where the ranks of
a group stand: a level of the network is shared by all groups that cross it at once (Plexus section 4.2). The
replay has one clock per rank and one queue of messages per level, which goes on while the rank computes as
far as the machine's ``overlap`` says, and is waited for where the program waits. Every term is zero or more.
What a rank finds in its caches goes by the graph's ``reuse``.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from distgnn.layout import Axes
from distgnn.plan.dry.recorder import ProgramStep
from distgnn.plan.machine import KINDS, SUMS, Link, Machine, SpmmRates
from distgnn.plan.reuse import EVEN, Reuse

OTHER = "other"  # the phase of what no step accounts for
Phases = dict[str, float]
#: What is sent straight from rank to rank; all else goes around a ring, or up and down a tree.
DIRECT = ("alltoall", "alltoallv", "send", "receive")
#: What ranks do not wait for each other in: a rank goes on with the parts that are there.
APART = ("bcast", "alltoall", "alltoallv")
#: What is passed on from rank to rank, one panel after the other. While one starts, the bytes of others are
#: under way: the longer of the two counts.
RELAY = "bcast"
#: Operations of the ledger, and shapes: of an all-reduce that goes straight from rank to rank, any.
_KINDS = (*((kind, ()) for kind in KINDS if kind != SUMS), ("allreduce", (1,)))
TOGETHER = 1e-3  # bytes: what rounding may leave
FLOAT = 4  # bytes of the numbers that rates are given for


class Route(NamedTuple):
    """Cost for a rank of the messages of an operation in a group.

    Attributes:
        level: whose links are the slowest, by number; call: seconds each time; alpha: seconds per message;
        byte: seconds per byte.
    """

    level: int
    call: float
    alpha: float
    byte: float


class Network:
    """The ranks of a grid on a machine, numbered with the last axis fastest: it is the nearest in a node."""

    def __init__(self, machine: Machine, grid: Mapping[str, int]) -> None:
        self.machine, self.axes = machine, Axes(grid, 0)
        self._routes: dict[tuple[str, str, bool], Route] = {}
        self._places: dict[str, tuple[list[int], list[int]]] = {}

    def together(self, group: str) -> list[int]:
        """Count the ranks of this group that share a unit of each level, from the innermost; at last, all.

        Of the groups along these axes, the most scattered one counts.
        """
        return self._stand(group)[0]

    def _stand(self, group: str) -> tuple[list[int], list[int]]:
        """Count these, and the groups that have ranks in the first unit of the level below each."""
        if group not in self._places:
            every, names = list(self.axes.shape), group.split("+")
            inside = [axis for axis in every if group == "world" or axis in names]
            places: np.ndarray = np.arange(self.axes.size).reshape([*self.axes.shape.values()])
            moved = np.moveaxis(places, [every.index(axis) for axis in inside], range(len(inside)))
            groups = moved.reshape(math.prod(self.axes.shape[axis] for axis in inside), -1)
            units = [level.ranks or self.axes.size for level in self.machine.levels]
            together = [int(np.sum(groups // unit == groups[:1] // unit, axis=0).min()) for unit in units]
            sharing = [int((groups < unit).any(axis=0).sum()) for unit in (1, *units[:-1])]
            self._places[group] = together, sharing
        return self._places[group]

    def seconds(self, step: ProgramStep) -> tuple[int, float]:
        """Return the level that a transfer takes, and its seconds alone."""
        route = self.route(step)
        direct = step.operation in DIRECT or bool(step.shape)
        messages = step.messages if direct or step.operation == "bcast" else min(step.messages, 1)
        alpha, nbytes = messages * route.alpha, step.nbytes * route.byte
        seconds = route.call + (max(alpha, nbytes) if step.operation == RELAY else alpha + nbytes)
        return route.level, seconds * (messages > 0)

    def least(self, words: Mapping[str, float]) -> float:
        """Return for how long so many bytes along these groups keep the busiest level, at the least.

        The messages are of any kind, of those that take the same level; of others the longest counts.
        """
        busy, longest = defaultdict[int, float](float), 0.0
        for group, nbytes in words.items():
            kinds = [ProgramStep("comm", kind, group, "", shape=shape) for kind, shape in _KINDS]
            routes = [self.route(step) for step in kinds]
            seconds = nbytes * min(route.byte for route in routes)
            busy[routes[0].level] += seconds * (len({route.level for route in routes}) == 1)
            longest = max(longest, seconds)
        return max([longest, *busy.values()])

    def skew(self, group: str) -> float:
        """Return seconds that ranks of a group wait for the last of them."""
        return self.machine.skew * math.log2(self.together(group)[-1])

    def route(self, step: ProgramStep) -> Route:
        """Return the cost of such a transfer, however large it is."""
        direct = step.operation in DIRECT or bool(step.shape)
        kind = SUMS if step.operation == "allreduce" and direct else step.operation
        key = kind, step.group, direct
        if key not in self._routes:
            self._routes[key] = (self._direct if direct else self._ring)(kind, step.group)
        return self._routes[key]

    def _ring(self, kind: str, group: str) -> Route:
        """Return the route of a ring.

        Each rank gets everything from its neighbour, so that the slowest link counts; MPI's own take as many
        rounds as a tree is high.
        """
        together, sharing = self._stand(group)
        heights = [1, *together]
        alpha = byte = call = 0.0
        slowest = 0
        for level, (here, count) in enumerate(zip(heights, heights[1:], strict=False)):
            link = self._link(level, kind)
            if count > here:
                each = 1 / min(link.bandwidth, self.machine.levels[level].injection / sharing[level])
                rounds = math.ceil(math.log2(count / here)) * (2 if kind == "allreduce" else 1)
                call = max(call, link.call)
                alpha = max(alpha, link.alpha) if kind == "bcast" else alpha + rounds * link.alpha
                slowest, byte = (level, each) if each > byte else (slowest, byte)
        return Route(slowest, call, alpha, byte)

    def _direct(self, kind: str, group: str) -> Route:
        """Return the route of direct messages. Each rank hears of every other.

        Of those in its node over the node's links, and so on. All ranks of a node send through its injection
        at once, and a rank hears of as many others as it has links. Sums have two tiers (see
        ``comm/tiers.py``): numbers cross the network once per node.
        """
        together = self.together(group)
        size, by_tiers = max(together[-1] - 1, 1), kind == SUMS and len(together) > 1
        mates, top = together[-2] if by_tiers else 1, len(together) - 1
        alpha = byte = call = 0.0
        slowest = 0
        for level, (inside, count) in enumerate(zip([1, *together], together, strict=False)):
            link, share = self._link(level, kind), (count - inside) / size
            if by_tiers:
                share *= 1 / mates if level == top else together[-1] / mates
            if count > inside:
                here = self.machine.levels[level]
                links = min(here.links, count - inside)
                each = min(links * link.bandwidth, here.injection / self._inner(level))
                alpha, call = alpha + share * link.alpha, max(call, link.call)
                if share / each > byte:
                    slowest, byte = level, share / each
        return Route(slowest, call, alpha, byte)

    def _inner(self, level: int) -> int:
        """Count the ranks in a unit of the level below."""
        return min((self.machine.levels[level - 1].ranks or 1) if level else 1, self.axes.size)

    def _link(self, level: int, kind: str) -> Link:
        return self.machine.levels[level].link(kind)


def compute_seconds(
    machine: Machine, step: ProgramStep, itemsize: int = FLOAT, reuse: Reuse = EVEN
) -> float:  # fmt: skip
    """Estimate a local step, alone on its rank; ``itemsize``: of the values; ``reuse``: of the graph."""
    scale = itemsize / FLOAT
    if step.operation == "spmm":
        m, k, nonzeros, width = step.shape
        rates, B = machine.spmm, k * width * itemsize
        near = reuse.share(rates.core, B) if rates.in_core else 0.0
        kept = max(reuse.share(rates.cache, B), near)
        levels = (near, rates.in_core), (kept - near, rates.cached), (1 - kept, rates.uncached)
        return rates.call + sum(
            share * _spmm_seconds(per_nonzero, m, nonzeros, width * scale)
            for share, per_nonzero in levels
            if per_nonzero is not None
        )
    if step.operation == "gemm":
        dense = machine.gemm
        alone = step.flops * scale / dense.flops, step.touched / dense.bandwidth
        return dense.call + max(alone) + (1 - dense.hidden) * min(alone)
    rate = machine.passes.rate(step.phase)
    return rate.call + step.touched / rate.bandwidth if step.touched else 0.0


def _spmm_seconds(rates: SpmmRates, m: int, nonzeros: int, columns: float) -> float:
    return nonzeros * (rates.nonzero + rates.nonzero_column * columns) + m * (
        rates.row + rates.row_column * columns
    )


class _Transfer:
    """A transfer under way: seconds that are left, of bytes that are left."""

    __slots__ = ("key", "nbytes", "seconds")

    def __init__(self, key: tuple[str, str, str], nbytes: float, seconds: float) -> None:
        self.key, self.nbytes, self.seconds = key, nbytes, seconds


class Clock:
    """One rank's seconds, by phase, between the points where the ranks of a group wait for each other.

    Args:
        itemsize, reuse: of the values and of the graph, see :func:`compute_seconds`.

    Attributes:
        launched: seconds in which the host queues the steps for its device.
        stretches: seconds by phase from one such point to the next.
        exposed: seconds waited for, by operation, group and matrix; flight: seconds under way, if `flights`.
    """

    def __init__(
        self, network: Network, itemsize: int = FLOAT, flights: bool = False, reuse: Reuse = EVEN
    ) -> None:  # fmt: skip
        self.network, self.machine, self.itemsize = network, network.machine, itemsize
        self.reuse, self.launched = reuse, 0.0
        self.queues: dict[int, deque[_Transfer]] = defaultdict(deque)  # of each level
        self.sending: dict[int, deque[_Transfer]] = defaultdict(deque)  # the way out
        self.going: dict[tuple[str, str, str], int] = defaultdict(int)  # transfers on the way out
        self.flights = flights
        self.places: dict[tuple[str, str, str], int] = {}  # the queue of each key
        self.unmet: set[tuple[str, str, str]] = set()  # keys that ranks have yet to wait for each other for
        self.arrived: dict[tuple[str, str, str], float] = defaultdict(float)  # bytes not yet waited for
        self.stretches: list[Phases] = [defaultdict(float)]
        self.exposed: dict[tuple[str, str, str], float] = defaultdict(float)
        self.flight: dict[tuple[str, str, str], float] = defaultdict(float)

    def run(self, steps: Sequence[ProgramStep]) -> Clock:
        """Go through the steps of an epoch; what is still under way at its end is waited for."""
        for step in steps:
            if step.phase == "comm":
                self._post(step)
            elif step.phase == "sent":
                self._send(step)
            elif step.phase == "wait":
                self._wait(step)
            else:
                self._compute(step)
        for key in list(self.places):
            self._wait(ProgramStep("wait", *key, nbytes=-1))
        return self

    def _post(self, step: ProgramStep) -> None:
        level, seconds = self.network.seconds(step)
        key = step.operation, step.group, step.matrix
        if seconds > 0:
            if self.flights:
                self.flight[key] += seconds
            self.places[key] = level
            self.unmet.add(key)
            self.queues[level].append(_Transfer(key, step.nbytes, seconds))

    def _send(self, step: ProgramStep) -> None:
        """Send beside receiving. Sending adds to the transfers under way as far as it takes longer."""
        level, seconds = self.network.seconds(step)
        key = step.operation, step.group, step.matrix
        seconds -= self.network.route(step).call * (self.going[key] > 0)  # of transfer operation
        if seconds > 0:
            if self.flights:
                ways = self.queues[level], self.sending[level]
                comes, goes = (sum(t.seconds for t in queue if t.key == key) for queue in ways)
                self.flight[key] += max(goes + seconds - max(comes, goes), 0.0)
            self.places[key] = level
            self.sending[level].append(_Transfer(key, 0.0, seconds))
            self.going[key] += 1

    def _wait(self, step: ProgramStep) -> None:
        """Wait until so many bytes of this key are there, and all that its level moves before them."""
        key = step.operation, step.group, step.matrix
        level, through = self.places.get(key, 0), step.nbytes < 0
        due = math.inf if through else step.nbytes - self.arrived[key]
        seconds = _until(self.queues[level], key, due)
        if through:
            seconds = max(seconds, _until(self.sending[level], key, due))
        if seconds:
            self._go_on(seconds)
        meet = step.operation not in APART
        if meet and key in self.unmet:
            self.unmet.remove(key)
            seconds += self.network.skew(step.group)
        if seconds:
            self.stretches[-1]["comm"] += seconds
            self.exposed[key] += seconds
        self.arrived[key] = 0.0 if step.nbytes < 0 else max(self.arrived[key] - step.nbytes, 0.0)
        if meet:
            self.stretches.append(defaultdict(float))

    def _compute(self, step: ProgramStep) -> None:
        seconds = compute_seconds(self.machine, step, self.itemsize, self.reuse)
        self.launched += self.machine.launch
        overlap = self.machine.overlap
        slowed = seconds * (1 + overlap.slowdown)
        pending = self._pending(slowed * overlap.progress)
        if pending and seconds:
            if pending < slowed * overlap.progress:  # all is there before the computation ends
                slowed = seconds + pending / overlap.progress * overlap.slowdown / (1 + overlap.slowdown)
            seconds = slowed
            self._go_on(seconds * overlap.progress)
        self.stretches[-1][step.phase] += seconds

    def _pending(self, enough: float) -> float:
        """Return the seconds of the transfers under way on the busiest level, or as many as it is enough to
        know of.
        """
        most = 0.0
        for queue in (*self.queues.values(), *self.sending.values()):
            left = 0.0
            for transfer in queue:
                left += transfer.seconds
                if left >= enough:
                    return left
            most = max(most, left)
        return most

    def _go_on(self, seconds: float) -> None:
        """Let so many seconds pass for the transfers under way."""
        arriving = len(self.queues)
        for number, queue in enumerate((*self.queues.values(), *self.sending.values())):
            left = seconds
            while queue and left > 0:
                first = queue[0]
                share = min(left / first.seconds, 1.0)
                self.arrived[first.key] += share * first.nbytes
                left -= first.seconds
                if share < 1:
                    first.nbytes *= 1 - share
                    first.seconds *= 1 - share
                else:
                    self.going[first.key] -= number >= arriving
                    queue.popleft()


def _until(queue: Sequence[_Transfer], key: tuple[str, str, str], due: float) -> float:
    """Return the seconds until so many bytes of a key are through, and all before them."""
    last = max((place for place, transfer in enumerate(queue) if transfer.key == key), default=-1)
    seconds = 0.0
    for place, transfer in enumerate(queue):
        if due <= TOGETHER or place > last:
            break
        share = min(due / transfer.nbytes, 1.0) if transfer.key == key and transfer.nbytes else 1.0
        due -= transfer.nbytes if transfer.key == key else 0
        seconds += share * transfer.seconds
    return seconds


@dataclass(frozen=True)
class Estimate:
    """The seconds of an epoch on the slowest ranks.

    Attributes:
        phases: they add up to ``seconds``; "comm" is what is waited for.
    """

    seconds: float
    phases: Phases


def estimate(
    machine: Machine,
    grid: Mapping[str, int],
    programs: Sequence[Sequence[ProgramStep]],
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
    phases[OTHER] += machine.update + max(launched - sum(phases.values()), 0.0)
    return Estimate(sum(phases.values()), dict(phases))


def _slowest(clocks: Sequence[Clock]) -> Iterator[Phases]:
    """Return of each stretch the slowest rank's.

    Where programs differ in their stretches, the slowest program's.
    """
    if len({len(clock.stretches) for clock in clocks}) == 1:
        for stretches in zip_longest(*(clock.stretches for clock in clocks)):
            yield max(stretches, key=lambda stretch: sum(stretch.values()))
    else:
        yield from max(clocks, key=lambda clock: sum(sum(s.values()) for s in clock.stretches)).stretches
