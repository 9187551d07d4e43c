"""Choice of the grids on which tests run: few, on which an algorithm takes all its steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distgnn.operators import grids, make_grid


def wide(algorithm: str, ranks: int) -> dict[str, int]:
    """Return the first grid with the most axes longer than 1: an algorithm takes all its steps on it."""
    return _widest(algorithm, ranks)[0]


def some_grids(algorithm: str, ranks: int) -> list[dict[str, int]]:
    """Return all grids of up to 3 ranks, which have one long axis each; of more ranks, those with the most
    axes longer than 1, and of more than 4 ranks no more than two, whose axes differ.
    """
    widest = _widest(algorithm, ranks) if ranks > 3 else grids(algorithm, ranks)
    return widest if ranks <= 4 else widest[:: max(1, len(widest) - 1)]


def _widest(algorithm: str, ranks: int) -> list[dict[str, int]]:
    possible = grids(algorithm, ranks)
    long = [sum(size > 1 for size in sizes.values()) for sizes in possible]
    return [sizes for sizes, axes in zip(possible, long, strict=True) if axes == max(long)]


def wide_grid(comm: Any, algorithm: str, backend: Any = None) -> Any:
    """Make the grid of `wide`."""
    return make_grid(comm, algorithm, wide(algorithm, comm.Get_size()), backend=backend)


def each_grid(comm: Any, algorithm: str, backend: Any) -> Iterator[Any]:
    """Make each grid of `some_grids`."""
    for sizes in some_grids(algorithm, comm.Get_size()):
        yield make_grid(comm, algorithm, sizes, backend=backend)
