"""The shape of a log's records, which another program may have written: that of ``records.py``."""

from __future__ import annotations

import types
import typing
from functools import cache
from typing import Any

from distgnn.records import Scores

#: Larger numbers have no meaning here and overflow in a drawing.
LARGEST = 1e30
#: Numbers that may be NaN: training may fail, and a part of the split have no labels.
NAN = {"loss", *Scores.__annotations__}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def conforms(value: Any, kind: Any) -> bool:
    """Return whether a value that was read from JSON is of a type of ``records.py``.

    Keys that a record does not declare may be anything. Numbers are finite, but a loss and scores may be NaN,
    which a log writes as null.
    """
    if kind is Any:
        return True
    if typing.is_typeddict(kind):
        known = _hints(kind)
        needed = isinstance(value, dict) and kind.__required_keys__ <= value.keys()
        return needed and all(
            conforms(value[name], known[name]) or (name in NAN and isinstance(value[name], float | None))
            for name in known.keys() & value.keys()
        )
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(conforms(value, choice) for choice in inner)
    if origin is list:
        return isinstance(value, list) and all(conforms(item, inner[0]) for item in value)
    if origin is tuple:
        return isinstance(value, list) and len(value) == len(inner) and all(map(conforms, value, inner))
    if origin is dict:
        return isinstance(value, dict) and all(conforms(item, inner[1]) for item in value.values())
    if kind in (int, float):
        return type(value) in (int, float) and abs(value) <= LARGEST
    return type(value) is kind
