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
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from distgnn.layout import Axes
from distgnn.plan.dry.recorder import ROUNDED, ProgramStep
from distgnn.plan.machine import KINDS, SUMS, Link, Machine, SpmmRates
from distgnn.plan.reuse import EVEN, Reuse
from distgnn.plan.shares import Received

#: What is sent straight from rank to rank; all else goes around a ring, or up and down a tree.
DIRECT = ("alltoall", "alltoallv", "send", "receive")
#: What is passed on from rank to rank, one panel after the other. While one starts, the bytes of others are
#: under way: the longer of the two counts.
RELAY = "bcast"
Stand = tuple[tuple[int, ...], tuple[int, ...]]
FLOAT, HALF = 4, 2  # bytes of the numbers that rates are given for, and of 16 bits


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
        self._places: dict[str, Stand] = {}
        self._least: dict[tuple[str, str], tuple[bool, Route]] = {}  # whether its level is known

    def together(self, group: str) -> list[int]:
        """Count the ranks of this group that share a unit of each level, from the innermost; at last, all.

        Of the groups along these axes, the most scattered one counts.
        """
        return list(self._stand(group)[0])

    def _stand(self, group: str) -> Stand:
        """Count these, and the groups that have ranks in the first unit of the level below each."""
        if group not in self._places:
            sizes, names = self.axes.shape, group.split("+")
            inside = tuple(group == "world" or axis in names for axis in sizes)
            units = tuple(level.ranks or self.axes.size for level in self.machine.levels)
            self._places[group] = _stand((*sizes.values(),), inside, units)
        return self._places[group]

    def seconds(self, step: ProgramStep) -> tuple[int, float]:
        """Return the level that a transfer takes, and its seconds alone."""
        route = self.route(step)
        direct = _is_direct(step)
        messages = step.messages if direct or step.operation == "bcast" else min(step.messages, 1)
        alpha, nbytes = messages * route.alpha, step.nbytes * route.byte
        seconds = route.call + (max(alpha, nbytes) if step.operation == RELAY else alpha + nbytes)
        return route.level, seconds * (messages > 0)

    def least(self, received: Iterable[Received]) -> float:
        """Return for how long what is received keeps the busiest level, at the least.

        Messages of a kind that is not known are of any, of those that take the same level; of others the
        longest counts.
        """
        busy, longest = defaultdict[int, float](float), 0.0
        for group, kind, nbytes, messages in received:
            key = group, kind
            if key not in self._least:
                steps = [_of_kind(kind)] if kind else self._unlike
                routes = [self.route(step._replace(group=group)) for step in steps]
                self._least[key] = len({route.level for route in routes}) == 1, min(routes, key=_byte)
            known, route = self._least[key]
            seconds = nbytes * route.byte
            if kind == RELAY:
                seconds = max(messages * route.alpha, seconds) + messages * route.call
            elif kind:
                seconds += messages * route.alpha + route.call
            longest = max(longest, seconds)
            if known:
                busy[route.level] += seconds
        return max([longest, *busy.values()])

    @property
    def _unlike(self) -> list[ProgramStep]:
        """Transfers whose routes differ: of every kind, and sums on one rank that go straight to it."""
        known = self.machine.routes
        if "unlike" not in known:
            steps = [*map(_of_kind, KINDS), ProgramStep("comm", "reduce", "", "", shape=(1,))]
            kinds: dict[Any, ProgramStep] = {}
            for kind, step in zip((*KINDS, "reduce"), steps, strict=True):
                links = tuple(self._link(level, kind) for level in range(len(self.machine.levels)))
                kinds.setdefault((_is_direct(step), kind == SUMS, links), step)
            known["unlike"] = list(kinds.values())
        return known["unlike"]

    def skew(self, group: str) -> float:
        """Return seconds that ranks of a group wait for the last of them."""
        return self.machine.skew * math.log2(self.together(group)[-1])

    def route(self, step: ProgramStep) -> Route:
        """Return the cost of such a transfer, however large it is."""
        direct = _is_direct(step)
        kind = SUMS if step.operation == "allreduce" and direct else step.operation
        key = kind, step.group, direct
        if key not in self._routes:
            known = self.machine.routes  # of other grids, whose groups stand alike
            where = kind, direct, self.axes.size, self._stand(step.group)
            if where not in known:
                known[where] = (self._direct if direct else self._ring)(kind, step.group)
            self._routes[key] = known[where]
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


def _is_direct(step: ProgramStep) -> bool:
    return step.operation in DIRECT or bool(step.shape)


def _of_kind(kind: str) -> ProgramStep:
    """Return a transfer of a kind; sums of ours go straight from rank to rank."""
    operation, shape = ("allreduce", (1,)) if kind == SUMS else (kind, ())
    return ProgramStep("comm", operation, "", "", shape=shape)


def _byte(route: Route) -> float:
    return route.byte


@cache
def _stand(sizes: tuple[int, ...], inside: tuple[bool, ...], units: tuple[int, ...]) -> Stand:
    """Return what :meth:`Network._stand` does, of the groups along these axes; ranks of a unit by level."""
    places: np.ndarray = np.arange(math.prod(sizes)).reshape(sizes)
    along = [axis for axis, is_inside in enumerate(inside) if is_inside]
    moved = np.moveaxis(places, along, range(len(along)))
    groups = moved.reshape(math.prod(sizes[axis] for axis in along), -1)
    together = (int(np.sum(groups // unit == groups[:1] // unit, axis=0).min()) for unit in units)
    sharing = (int((groups < unit).any(axis=0).sum()) for unit in (1, *units[:-1]))
    return tuple(together), tuple(sharing)


def compute_seconds(
    machine: Machine, step: ProgramStep, itemsize: int = FLOAT, reuse: Reuse = EVEN
) -> float:  # fmt: skip
    """Estimate a local step, alone on its rank; ``itemsize``: of the values; ``reuse``: of the graph."""
    scale = itemsize / FLOAT
    if step.operation in ("spmm", ROUNDED):
        m, k, nonzeros, width = step.shape
        rounds = step.operation == ROUNDED
        rates = machine.rounded or machine.spmm if rounds else machine.spmm
        B = k * width * (HALF if rounds else itemsize)
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
    edges = machine.edges.get(step.operation.replace(" ", "_")) if step.phase == "spmm" else None
    if edges is not None:
        nonzeros, columns = step.shape
        return edges.call + nonzeros * (edges.nonzero + edges.nonzero_column * columns * scale)
    rate = machine.passes.rate(step.phase)
    return rate.call + step.touched / rate.bandwidth if step.touched else 0.0


def _spmm_seconds(rates: SpmmRates, m: int, nonzeros: int, columns: float) -> float:
    return nonzeros * (rates.nonzero + rates.nonzero_column * columns) + m * (
        rates.row + rates.row_column * columns
    )
