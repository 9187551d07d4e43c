"""The ways to train that settings leave open: algorithms, shapes of grids, and orders of their axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, cast

from distgnn import operators
from distgnn.errors import ArgumentError
from distgnn.layout import written
from distgnn.train.settings import AUTO, Settings

Sizes = dict[str, int]
#: The words behind an algorithm that sends some rows alone.
SENDS: dict[bool | str, str] = {False: "", True: " sparsity-aware", "cover": " with covers"}


@dataclass(frozen=True)
class Way:
    """A way to train: the part of the settings that a plan chooses.

    Attributes:
        grid: sizes by axis, the last the nearest in a node; order: of the nodes, by its name in the store.
        sparsity_aware: whether needed rows alone are sent, or "cover".
    """

    algorithm: str
    grid: Sizes
    order: str | None
    sparsity_aware: bool | str

    @property
    def as_1d(self) -> bool:
        """Ranks that stand in rows alone: words and messages are then those of `1d`."""
        return self.algorithm != "1d" and [axis for axis in self.grid if self.grid[axis] > 1] == ["rows"]

    def settings(self, given: Settings) -> Settings:
        """Return the given settings with this way to train."""
        chosen: Any = {"algorithm": self.algorithm, "grid": self.grid, "order": self.order}
        return replace(given, **chosen, replication=None, sparsity_aware=self.sparsity_aware)

    def record(self, node: int | None = None) -> dict[str, Any]:
        """Return the way for JSON, with the axes within a node from the nearest on.

        Args:
            node: ranks of a node; default: all.
        """
        near, ranks = list[str](), 1
        for axis, size in reversed(self.grid.items()):
            if size > 1 and (node is None or ranks < node):
                near, ranks = [*near, axis], ranks * size
        record = {"algorithm": self.algorithm, "grid": self.grid, "axes_in_node": near, "order": self.order}
        return record | {"sparsity_aware": self.sparsity_aware}

    def __str__(self) -> str:
        return f"{self.algorithm} {written(self.grid)}{SENDS[self.sparsity_aware]}"


def parse_grid(grid: str | Mapping[str, int] | None, algorithm: str) -> dict[str, int] | None:
    """Read the sizes by axis from ``2x2``, in the order of the algorithm's axes, or from ``rows=2,reps=2``,
    in the order given, which :func:`operators.make_grid` explains. ArgumentError: anything else.
    """
    if grid is None or isinstance(grid, Mapping):
        return None if grid is None else dict(grid)
    axes = operators.get(algorithm).axes
    try:
        if "=" in grid:
            pairs: Any = [word.split("=") for word in grid.split(",")]
            sizes = {name.strip(): int(size) for name, size in pairs}
            if len(sizes) < len(pairs):
                raise ValueError("an axis is named twice")
            return sizes
        return dict(zip(axes, map(int, grid.lower().split("x")), strict=True))
    except ValueError:
        example = f"write {'x'.join('2' for _ in axes)} or {','.join(f'{axis}=2' for axis in axes)}"
        problem = f"algorithm {algorithm} has the axes {', '.join(axes)}; {example}"
        raise ArgumentError("grid", grid, problem) from None


def named_sizes(settings: Settings, algorithm: str) -> Sizes:
    """Return the sizes of axes that the grid of the settings names; none of a grid "auto"."""
    return parse_grid(None if settings.grid == AUTO else settings.grid, algorithm) or {}


def arrangements(settings: Settings, ranks: int) -> Iterator[Way]:
    """Yield the ways to train on so many ranks, with their axes in every order that makes a difference."""
    for way in ways(settings, ranks):
        for grid in axis_orders(way.grid, list(named_sizes(settings, way.algorithm))):
            yield replace(way, grid=grid)


def ways(settings: Settings, ranks: int, order: str | None = None) -> Iterator[Way]:
    """Yield the algorithms and shapes of grids for these settings, each shape once.

    A single block row of 1.5D, which nobody sends rows, is sparsity-aware only on one rank, where scaling
    begins, or where that is asked for.

    Covers are left out on grids on which another algorithm is 1D, as 1D has them, and of a single block row,
    whose covers are needed rows.
    """
    rows, able = settings.sparsity_aware, asked(settings)
    rows = True if rows == AUTO else rows  # goes by measured seconds
    for name, sizes in able.items():
        for grid in operators.grids(name, ranks):
            if sizes.items() <= grid.items():
                single = grid.get("rows") == 1 < ranks
                sends = name in operators.SPARSITY_AWARE and (rows or name == "rdm" or not single)
                twice = name != "1d" and "1d" in able and grid.get("rows") == ranks > 1
                twice |= single and not rows
                sent = [aware for aware in SENDS if not aware or (sends and not (twice and aware == "cover"))]
                given = {axis: grid[axis] for axis in (*sizes, *(a for a in grid if a not in sizes))}
                yield from (Way(name, given, order, some) for some in sent if rows in (None, some))


def asked(settings: Settings) -> dict[str, Sizes]:
    """Return the algorithms that have all that these settings ask for, with the sizes of axes that they name.

    Raises:
        ArgumentError: the settings name an algorithm that there is not, or what it can't read or send.
    """
    able: dict[str, Sizes] = {}
    free, copies = settings.algorithm in (None, AUTO), cast(Any, settings.replication)
    for name in operators.ALGORITHMS if free else [str(settings.algorithm)]:
        try:
            axes = operators.get(name, settings.sparsity_aware or False).axes
            sizes = named_sizes(settings, name)
        except ArgumentError:
            if not free:
                raise
            continue  # 2x2, say, has sizes for two axes
        same = copies is None or sizes.setdefault("reps", copies) == copies
        if same and sizes.keys() <= {*axes} and min(sizes.values(), default=1) > 0:
            able[name] = sizes
    return able


def axis_orders(grid: Sizes, named: Sequence[str] = ()) -> Iterator[Sizes]:
    """Yield the grid with its axes in every order that leaves the named axes in theirs. Axes of size 1, whose
    place makes no difference, come first.
    """
    single = {axis: size for axis, size in grid.items() if size == 1}
    for order in permutations(axis for axis, size in grid.items() if size > 1):
        if [axis for axis in order if axis in named] == [axis for axis in named if axis in order]:
            yield single | {axis: grid[axis] for axis in order}
