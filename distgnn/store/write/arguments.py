"""The arguments of `prepare` and their checks."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

from distgnn.errors import ArgumentError
from distgnn.partition import Wanted, check_names, orders
from distgnn.store.format import manifest
from distgnn.store.format.publish import check_target

NORMALIZATIONS = ("gcn", "row", "none")
DTYPES = ("float32", "float64")
MOST_SHARDS = 1 << 16  # each is a file


def check_arguments(
    out: str | os.PathLike[str], *, order: Sequence[str], normalize: str = "gcn", dtype: str = "float32",
    force: bool = False, partitions: Sequence[Wanted] = (),
) -> None:  # fmt: skip
    """The UserError that `prepare` would raise for its arguments: worth knowing before a long import."""
    orders.check_names(order)
    check_names(partitions)
    for wanted in partitions:
        wanted.check()
    for name, value, known in (("normalize", normalize, NORMALIZATIONS), ("dtype", dtype, DTYPES)):
        if value not in known:
            raise ArgumentError(name, value, f"expected one of {', '.join(known)}")
    check_target(out, force=force, replaceable=is_store)


def parse_shards(text: str) -> tuple[int, int]:
    """The grid that "RxC" names; ArgumentError unless it is one, of at most MOST_SHARDS shards."""
    try:
        rows, cols = (int(part) for part in text.lower().split("x"))
        if rows < 1 or cols < 1:
            raise ValueError
    except ValueError:
        raise ArgumentError("shards", repr(text), "expected ROWSxCOLUMNS, such as 4x4") from None
    check_shards(rows, cols)
    return rows, cols


def check_shards(rows: int, cols: int, n: int | None = None) -> None:
    """ArgumentError for more than MOST_SHARDS, or for shards of a matrix of `n` nodes that must be empty."""
    grid = f"{rows}x{cols}"
    if rows * cols > MOST_SHARDS:
        side = math.isqrt(MOST_SHARDS)
        problem = f"{rows * cols} shards; at most {MOST_SHARDS} are possible, such as {side}x{side}"
        raise ArgumentError("shards", grid, problem)
    if n is not None and max(rows, cols) > n:
        raise ArgumentError("shards", grid, f"the matrix is {n} x {n}, so at most {n}x{n} is possible")


def is_store(path: Path) -> bool:
    """May this be replaced? A store, readable or damaged, of this or another schema version."""
    try:
        content = json.loads((path / manifest.NAME).read_text())
    except (OSError, ValueError):
        return path.suffix == ".dg" and (path / manifest.NAME).exists()
    return isinstance(content, dict) and content.get("format") == manifest.FORMAT
