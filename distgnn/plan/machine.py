"""Machines as the cost model knows them, read from TOML: the levels of a network, and rates of a rank.

A file says what it measured in SI units, bytes and seconds; ``machines/`` holds those that ship, each figure
with its source. ``distgnn calibrate`` writes one for the machine that it runs on.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from distgnn.errors import ArgumentError, UserError, offered
from distgnn.files.text import read_toml

SHIPPED = Path(__file__).with_name("machines")

SUMS = "sums"  # all-reduces of ours: on hosts, messages go straight from rank to rank
#: The kinds of messages that have rates of their own, where a level gives them: operations of the ledger, of
#: which an all-reduce is MPI's, and those sums.
KINDS = (
    "bcast", "allgather", "reduce_scatter", "allreduce", SUMS, "reduce", "alltoall", "alltoallv", "send",
    "receive",
)  # fmt: skip
#: The phases of the ledger whose passes have rates of their own, where a machine gives them.
PASSES = ("activation", "loss", "optimizer")
#: The passes of attention over the non-zeros that have rates of their own, where a machine gives them.
EDGES = ("softmax", "softmax_back", "sddmm", "additive_scores", "slope_sums")
_SHARE = "a number from 0 to 1"
FASTEST = 1e15  #: The rate that is written where no time was found.


@dataclass(frozen=True)
class Link:
    """Cost for a rank of one kind of message.

    Attributes:
        alpha: seconds per message; bandwidth: bytes per second into a rank; call: seconds per operation.
    """

    alpha: float
    bandwidth: float
    call: float = 0.0


@dataclass(frozen=True)
class Level:
    """A level of the network: ranks that share a unit, such as a device, a node or the whole machine.

    Attributes:
        name: of the unit; ranks: in a unit, of consecutive numbers; None: all there are.
        alpha, bandwidth, call: of messages between ranks that share this unit and none below it, see
            :class:`Link`.
        injection: bytes per second out of one unit of the level below, all of its ranks together.
        links: how many ranks send to one at once at this bandwidth each, in messages that go straight from
            rank to rank: more than 1 where pairs have links of their own.
        kinds: links that differ, see :data:`KINDS`.
    """

    name: str
    ranks: int | None
    alpha: float
    bandwidth: float
    call: float = 0.0
    injection: float = math.inf
    links: int = 1
    kinds: Mapping[str, Link] = field(default_factory=dict)

    def link(self, kind: str) -> Link:
        """Return the link of a kind of messages at this level; for our sums MPI's, if that alone is given."""
        known = self.kinds.get(kind) or (self.kinds.get("allreduce") if kind == SUMS else None)
        return known or Link(self.alpha, self.bandwidth, self.call)


@dataclass(frozen=True)
class SpmmRates:
    """Seconds of a sparse product, in which rows of B are found in a cache or are not.

    Attributes:
        nonzero, nonzero_column: per non-zero, and per non-zero and column of B.
        row, row_column: per row of A, and per row and column.
    """

    nonzero: float
    nonzero_column: float
    row: float
    row_column: float


@dataclass(frozen=True)
class Spmm:
    """Cost of sparse products, in float32.

    Attributes:
        call: seconds each; cache: bytes of B in the cache of the rank.
        cached, uncached: rates of non-zeros whose row of B is found there, and of others.
        core: bytes of B in the cache of each of its cores (of a GPU: multiprocessors); in_core: rates of what
            is found there.
    """

    call: float
    cache: float
    cached: SpmmRates
    uncached: SpmmRates
    core: float = 0.0
    in_core: SpmmRates | None = None


@dataclass(frozen=True)
class Gemm:
    """Cost of dense products, in float32.

    Attributes:
        call: seconds each; flops: per second; bandwidth: bytes of the operands per second.
        hidden: which share of the shorter of flops and bytes goes on beside the longer one.
    """

    call: float
    flops: float
    bandwidth: float
    hidden: float = 0.0


@dataclass(frozen=True)
class Rate:
    """Cost of passes over dense blocks: seconds each, bytes per second read and written."""

    call: float
    bandwidth: float


@dataclass(frozen=True)
class Passes(Rate):
    """Cost of rows gathered and added, and of all passes for which ``kinds``, by phase, has no rate."""

    kinds: Mapping[str, Rate] = field(default_factory=dict)

    def rate(self, phase: str) -> Rate:
        """Return the rate of a phase, or that of all passes."""
        return self.kinds.get(phase, self)


@dataclass(frozen=True)
class EdgeRate:
    """Cost of a pass over the non-zeros, in float32.

    Attributes:
        call: seconds each; nonzero, nonzero_column: per non-zero, and per non-zero and column: head of a
            softmax, column of the dense matrices of others.
    """

    call: float
    nonzero: float
    nonzero_column: float


@dataclass(frozen=True)
class Overlap:
    """Messages while a rank computes.

    Attributes:
        progress: how fast they go on, as a share of their speed while the rank waits for them.
        slowdown: by which share the computation takes longer.
    """

    progress: float
    slowdown: float


@dataclass(frozen=True)
class Measured:
    """Circumstances of a machine's measurement.

    Attributes:
        ranks: how many measured it; date: of that day; r2: of each fit, see :attr:`fit.Fit.r2`.
    """

    ranks: int
    date: str
    r2: Mapping[str, float]


@dataclass(frozen=True)
class Machine:
    """A machine to plan for. All rates are those of one rank.

    Attributes:
        memory: bytes of a rank; levels: from the innermost to the whole machine.
        update: seconds of an epoch that no step of it accounts for.
        skew: seconds by which the last of two ranks that meet is late; of more, for each doubling of them.
        launch: seconds in which a host queues a step for its device, which computes meanwhile; 0: on hosts.
        captured: in place of `update`, of an epoch that a device runs as CUDA graphs; 0: the same.
        gap: seconds between two kernels of CUDA graphs, beside the `call` of each, of equal ones in a row.
        tf32: rates of dense products that round to TensorFloat-32; None: as those of others.
        rounded: rates of sparse products that read 16 bits; None: as those of others.
        edges: of passes over the non-zeros, see :data:`EDGES`; the others take as long as their bytes.
        device: the name of the GPU that the rates are of; empty: of hosts, or of no GPU alone.
        shared_memory: ranks of a node hold A once where they hold the same block of it: on hosts.
        measured: by ``distgnn calibrate``; None where figures have other sources.
    """

    name: str
    title: str
    memory: float
    levels: Sequence[Level]
    spmm: Spmm
    gemm: Gemm
    passes: Passes
    overlap: Overlap
    update: float
    skew: float = 0.0
    launch: float = 0.0
    captured: float = 0.0
    gap: float = 0.0
    tf32: Gemm | None = None
    rounded: Spmm | None = None
    edges: Mapping[str, EdgeRate] = field(default_factory=dict)
    device: str = ""
    shared_memory: bool = False
    measured: Measured | None = None

    @property
    def node(self) -> int | None:
        """Ranks that share what is next to the whole machine; None where nothing is."""
        return self.levels[-2].ranks if len(self.levels) > 1 else None

    @cached_property
    def routes(self) -> dict[Any, Any]:
        """Routes of groups that are known, see :class:`~distgnn.plan.cost_model.Network`."""
        return {}

    def used(self, overlap: bool, tf32: bool = False) -> Machine:
        """Return the machine of a run, in which messages go on during computations, or do not, and dense
        products round to TensorFloat-32, or do not.
        """
        on = replace(self, gemm=self.tf32 or self.gemm) if tf32 else self
        return on if overlap else replace(on, overlap=Overlap(0.0, 0.0))

    def graphed(self) -> Machine:
        """Return the machine of a run whose epochs are CUDA graphs."""
        return replace(self, launch=0.0, update=self.captured or self.update)

    def toml(self) -> str:
        """Write the file that :func:`read` makes this machine of."""
        return _written(self)


def known() -> list[str]:
    """Return the names of the machines that ship."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def of_device(name: str) -> str:
    """Return the name of the machine that ships with the rates of this GPU; empty where none does."""
    return next((shipped for shipped in known() if name and read(shipped).device == name), "")


def read(name: str | os.PathLike[str] | Machine) -> Machine:
    """Read a machine that ships, by name, or from a TOML file, by path. A :class:`Machine` stays as it is.

    Raises:
        UserError: there is none; a field is missing, unknown or absurd (the message says which).
        ArgumentError: another type.
    """
    if isinstance(name, Machine):
        return name
    if not isinstance(name, (str, os.PathLike)):
        raise ArgumentError("machine", repr(name), "expected a name, the path of a TOML file or a Machine")
    path = SHIPPED / f"{name}.toml" if str(name) in known() else Path(name)
    try:
        content = read_toml(path)
    except OSError as error:
        ways = f"{offered(name, known())}; or give the path of a TOML file (distgnn calibrate writes one)"
        raise UserError(f"machine {name}: there is none ({error.strerror}); {ways}") from error
    except ValueError as error:
        raise UserError(f"machine {path}: not valid TOML: {error}") from error
    return of(content, str(path))


def with_nodes_of(machine: Machine, ranks: int, memory: float | None = None) -> Machine:
    """Give the machine so many ranks per node, if it has nodes: units of its last level but one.

    Levels within a node that no longer divide it are left out.

    Args:
        memory: bytes of a rank; default: as it was.
    """
    *inner, network = machine.levels
    node = [replace(level, ranks=ranks) for level in inner[-1:]]
    inside = [unit for unit in inner[:-1] if unit.ranks and unit.ranks < ranks and ranks % unit.ranks == 0]
    return replace(machine, levels=[*inside, *node, network], memory=memory or machine.memory)


def of(content: Mapping[str, Any], where: str = "machine") -> Machine:
    """Make the machine of the tables of a TOML file. ``where``: the name in errors."""
    made = _table(Machine, content, where, "")
    levels = made.levels
    if not levels or levels[-1].ranks is not None or any(level.ranks is None for level in levels[:-1]):
        raise UserError(
            f"{where}: the last [[levels]], and no other, must have no ranks: it is the whole machine"
        )
    sizes = [level.ranks for level in levels[:-1]]
    for inner, outer in zip([1, *sizes], sizes, strict=False):
        if outer is None or inner is None or outer % inner or (outer == inner and outer > 1):
            problem = f"must be a multiple of the level before it and larger ({inner})"
            raise UserError(f"{where}: levels: ranks={outer}: {problem}")
    return made


_TABLES: dict[str, type] = {
    "spmm": Spmm, "cached": SpmmRates, "uncached": SpmmRates, "in_core": SpmmRates, "gemm": Gemm,
    "tf32": Gemm, "rounded": Spmm, "passes": Passes, "overlap": Overlap, "measured": Measured,
}  # fmt: skip
#: What may be 0.
_ZERO = "alpha call row row_column nonzero nonzero_column update skew launch captured gap".split()
#: More than any machine takes: seconds per message, call or epoch; per row or non-zero. And rates and bytes.
_LONGEST, _LONG, _LARGEST = 10.0, 1e-3, 1e18
#: Less than any machine does in a second; of all else at least 1.
_SLOWEST = {"flops": 1e6, "bandwidth": 1e3, "injection": 1e3, "cache": 0.0, "core": 0.0}


def _table(cls: type, content: Any, where: str, prefix: str) -> Any:
    """Make a dataclass of a table; check every field of it."""
    if not isinstance(content, Mapping):
        raise UserError(f"{where}: {prefix.rstrip('.')} must be a table")
    wanted = {member.name: member for member in fields(cls)}
    for name in content:
        if name not in wanted:
            raise UserError(f"{where}: unknown field {prefix}{name}; known: {', '.join(wanted)}")
    values = {}
    for name, member in wanted.items():
        if name in content:
            values[name] = _value(name, content[name], where, prefix)
        elif (
            member.default is MISSING
            and member.default_factory is MISSING
            and (cls, name) != (Level, "ranks")
        ):
            raise UserError(f"{where}: {prefix}{name} is missing")
    return cls(**({"ranks": None} if cls is Level else {}) | values)


def _value(name: str, value: Any, where: str, prefix: str) -> Any:
    if name == "levels":
        if not isinstance(value, list):
            raise UserError(f"{where}: levels must be tables: [[levels]]")
        return [_table(Level, entry, where, f"levels[{i}].") for i, entry in enumerate(value)]
    if name in ("kinds", "edges"):
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: {prefix}{name} must be tables: [{prefix}{name}.NAME]")
        known, cls = _rates(name, prefix)
        for kind in value:
            if kind not in known:
                raise UserError(f"{where}: unknown field {prefix}{name}.{kind}; known: {', '.join(known)}")
        return {kind: _table(cls, entry, where, f"{prefix}{name}.{kind}.") for kind, entry in value.items()}
    if name in _TABLES:
        return _table(_TABLES[name], value, where, f"{prefix}{name}.")
    if name == "r2":
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: {prefix}r2 must be a table")
        return {
            kind: _number(name, entry, f"{where}: {prefix}r2.{kind}={entry!r}")
            for kind, entry in value.items()
        }
    if name in ("name", "title", "date", "device"):
        if not isinstance(value, str):
            raise UserError(f"{where}: {prefix}{name}={value!r}: expected text")
        return value
    if name == "shared_memory":
        if not isinstance(value, bool):
            raise UserError(f"{where}: {prefix}{name}={value!r}: expected true or false")
        return value
    return _number(name, value, f"{where}: {prefix}{name}={value!r}")


def _rates(name: str, prefix: str) -> tuple[tuple[str, ...], type]:
    """Return the names and the type of the tables that a table of this name has, after this prefix."""
    if name == "edges":
        return EDGES, EdgeRate
    return (PASSES, Rate) if prefix == "passes." else (KINDS, Link)


def _number(name: str, value: Any, what: str) -> float | int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < math.inf:
        raise UserError(f"{what}: expected a number")
    if name in ("ranks", "links"):
        if not isinstance(value, int) or value < 1:
            raise UserError(f"{what}: expected a whole number, 1 or more")
        return value
    if name in ("progress", "hidden"):
        good, right = 0 <= value <= 1, _SHARE
    elif name == "r2":
        good, right = value <= 1, "a number up to 1"
    elif name == "slowdown":
        good, right = 0 <= value <= 10, "a number from 0 to 10"
    elif name in _ZERO:
        most = _LONG if name.startswith(("row", "nonzero")) else _LONGEST
        good, right = 0 <= value <= most, f"seconds from 0 to {most:g}"
    else:
        least = _SLOWEST.get(name, 1.0)
        good = least <= value <= _LARGEST
        right = f"a number from {least:g} to {_LARGEST:g}, of bytes, or of bytes or flops per second"
    if not good:
        raise UserError(f"{what}: expected {right}")
    return float(value)


def _written(table: Any, prefix: str = "") -> str:
    """Write the lines of a dataclass; its tables after its numbers, as TOML wants it."""
    lines, tables = [], []
    for member in fields(table):
        value = getattr(table, member.name)
        if isinstance(value, (str, int, float)) and value != math.inf:
            text = json.dumps(value, ensure_ascii=False) if isinstance(value, (str, bool)) else repr(value)
            lines.append(f"{member.name} = {text}")
        elif member.name == "levels":
            tables += [f"\n[[levels]]\n{_written(level, 'levels.')}" for level in value]
        elif member.name == "r2":
            numbers = (
                f"{json.dumps(kind, ensure_ascii=False)} = {number!r}" for kind, number in value.items()
            )
            tables.append("\n".join([f"\n[{prefix}r2]", *numbers]))
        elif member.name in ("kinds", "edges"):
            tables += [f"\n[{prefix}{member.name}.{kind}]\n{_written(each)}" for kind, each in value.items()]
        elif hasattr(value, "__dataclass_fields__"):
            tables.append(f"\n[{prefix}{member.name}]\n{_written(value, f'{prefix}{member.name}.')}")
    return "\n".join([*lines, *tables])


def shown(name: str, value: float) -> str:
    """Write a parameter of a machine, by the last word of its name, with its unit."""
    kind = name.rpartition(" ")[2]
    if kind in ("progress", "slowdown", "hidden"):
        return f"{value:.0%}"
    if value >= FASTEST:
        return "no limit found"
    if kind == "flops":
        return f"{value / 1e9:.3g} GFLOP/s"
    if kind in ("bandwidth", "injection"):
        return f"{value / 1e9:.3g} GB/s" if value >= 1e9 else f"{value / 1e6:.3g} MB/s"
    if kind in ("cache", "core"):
        return f"{value / 2**20:.3g} MiB"
    return f"{value * 1e6:.3g} us" if value >= 1e-8 or not value else f"{value * 1e9:.3g} ns"
