"""Ids of nodes in arrays: the users' own names, and the numbers of nodes that arrays list."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.errors import ArgumentError
from distgnn.store.adapters import array
from distgnn.store.importers.names import Names, encoded, shown


def names_of(ids: Any) -> Names:
    """Check and wrap the users' ids of nodes."""
    names = array("ids", ids)
    if names.ndim != 1 or names.dtype.kind not in "iuOUST":
        given = f"{names.dtype} of shape {names.shape}"
        raise ArgumentError("ids", given, "expected a whole number or a string for each node")
    return wrapped("ids", as_ids("ids", names.copy()))


def wrapped(argument: str, ids: np.ndarray) -> Names:
    """Wrap ids, int64 or UTF-8, of which none comes twice."""
    try:
        return Names(ids, argument)
    except ValueError as error:
        raise ArgumentError(argument, f"{len(ids)} of them", str(error)) from None


def as_ids(argument: str, names: np.ndarray) -> np.ndarray:
    """Convert ids to int64, of the same memory where that is possible, or UTF-8.

    ArgumentError for a value that is neither a number nor text.
    """
    given = f"{names.dtype} of shape {names.shape}"
    words = names.reshape(-1).tolist() if names.dtype.kind in "OUST" else []
    whole = names.dtype.kind in "iu" or (bool(words) and all(type(word) is int for word in words))
    long = whole and names.size > 0 and names.dtype.kind != "i"
    if long and not -(1 << 63) <= int(names.min()) <= int(names.max()) < 1 << 63:
        raise ArgumentError(argument, given, "has ids beyond 2**63 - 1; pass them as strings")
    if whole:
        return names.astype(np.int64, copy=False)
    kinds: Any = (str, bytes) if any(isinstance(word, (str, bytes)) for word in words) else int
    if odd := [word for word in words if not isinstance(word, kinds)]:
        others = "whole numbers" if kinds is int else "strings"
        raise ArgumentError(argument, given, f"has {odd[0]!r} beside {others}; expected one kind")
    try:
        return encoded(word.decode() if isinstance(word, bytes) else word for word in words)
    except ValueError as error:
        raise ArgumentError(argument, given, f"has {error}") from None


def numbers_of(
    argument: str, nodes: np.ndarray, names: Names | None, n: int, part: str | None = None
) -> np.ndarray:
    """Look up the numbers of the nodes (of a `part`), given by id where nodes have ids, else by number.

    Raises:
        ArgumentError: an unknown node, or values that are no ids.
    """
    words = names is not None and names.words
    if not nodes.size:
        return np.zeros(0, np.int64)
    if nodes.ndim != 1 or nodes.dtype.kind not in ("OUST" if words else "iuO"):
        expected = "strings, as in ids" if words else "whole numbers"
        given, mask = f"{nodes.dtype} of shape {nodes.shape}", f", or a mask of the {n} nodes"
        raise ArgumentError(argument, f"{part}: {given}" if part else given, f"expected {expected}{mask}")
    ids = as_ids(argument, nodes)
    if names is not None:
        numbers = names.find(ids) if names.words == (ids.dtype.kind == "S") else np.full(len(ids), -1)
    else:
        numbers = np.where((ids >= 0) & (ids < n), ids, -1)
    if numbers.min() < 0:
        unknown = ids[np.flatnonzero(numbers < 0)[0]]
        where = f", though {part} has it" if part else ""
        raise ArgumentError(argument, shown(unknown), f"is no node of this graph{where}")
    return numbers
