"""Splits in arrays: shares, the part of every node, or three lists of nodes or masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError, did_you_mean
from distgnn.split import NAMES
from distgnn.store.adapters import array
from distgnn.store.array_ids import numbers_of
from distgnn.store.importers.names import Names
from distgnn.store.importers.splits import array_parts
from distgnn.store.source import parse_split, random_split


def split_of(given: Any, n: int, seed: int, labels: np.ndarray | None, names: Names | None) -> np.ndarray:
    """Return the part of every node, uint8 (n); nodes in lists have their ids where nodes have `names`."""
    listed = hasattr(given, "__len__") and not isinstance(given, (str, Mapping))
    parts = [*given] if listed and len(given) == 3 else []
    numbers = np.asarray(parts) if parts and all(np.ndim(part) == 0 for part in parts) else np.zeros(0, "U")
    if numbers.dtype.kind in "iuf" and (n != 3 or (numbers != np.rint(numbers)).any()):
        given = "/".join(map(str, numbers.tolist()))
    if isinstance(given, str):
        parse_split(given)
        return random_split(n, given, seed, labels)
    if isinstance(given, Mapping):
        return _of_lists(_by_part(given), n, names)
    if parts and not numbers.size:
        return _of_lists(dict(zip(NAMES, parts, strict=True)), n, names)
    values = array("split", given)
    if values.shape != (n,):
        expected = f"expected one for each of the {n} nodes, or three lists for train, val and test"
        raise ArgumentError("split", f"{values.size} parts" if values.ndim else given, expected)
    return array_parts(values)


def _of_lists(lists: Mapping[int, Any], n: int, names: Names | None) -> np.ndarray:
    """Return the part of every node of masks, or of lists of nodes."""
    split = np.zeros(n, np.uint8)
    for part, given in lists.items():
        listed, called = array("split", given), NAMES[part][0]
        if listed.dtype == bool and listed.shape == (n,):
            nodes = np.flatnonzero(listed)
        elif listed.dtype == bool or listed.ndim != 1:
            problem = f"expected a mask of the {n} nodes, or a list of nodes"
            raise ArgumentError("split", f"{called}: {listed.dtype} of shape {listed.shape}", problem)
        else:
            nodes = numbers_of("split", listed, names, n, called)
        if len(np.unique(nodes)) < len(nodes):  # a mask of 0 and 1 would pass for ids
            problem = f"lists nodes more than once; a mask must be bool, not {listed.dtype}"
            raise ArgumentError("split", called, problem)
        if split[nodes].any():
            raise ArgumentError("split", called, "has nodes that are in another part, too")
        split[nodes] = part
    return split


def _by_part(given: Mapping[str, Any]) -> dict[int, Any]:
    """Return the lists by part; ArgumentError for an unknown part, for two of one, or none to train."""
    known = {name: part for part, names in NAMES.items() for name in names}
    for name in given:
        if name not in known:
            problem = f"no part has this name; there is train, val and test{did_you_mean(name, known)}"
            raise ArgumentError("split", name, problem)
    lists = {known[name]: nodes for name, nodes in given.items()}
    for part, (name, *_) in NAMES.items():
        if sum(known[other] == part for other in given) > 1 or (name == "train" and part not in lists):
            raise ArgumentError("split", ", ".join(map(str, given)), f"expected one part called {name}")
    return lists
