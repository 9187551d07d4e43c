"""``--print-config``: settings with their values and sources, as a file for ``--config``."""

from __future__ import annotations

import json
from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Container, Iterator, Mapping
from typing import Any

from distgnn.cli import config


def written(
    parser: ArgumentParser, values: Mapping[str, Any], filled: Mapping[str, Any], sources: Mapping[str, str],
    unfit: Container[str],
) -> str:  # fmt: skip
    """Write a line for each setting: ``lr = 0.01  # default``; a comment where no value is given.

    Args:
        values: by dest, as parsed; `filled`: those that a recipe fills in.
        sources: flag name -> where the value comes from, without those of recipes and defaults.
        unfit: flags that a file may not have, whose lines are comments.
    """
    rows = [*_rows(parser, values, filled, sources, unfit)]
    width = min(40, max(len(setting) for setting, _ in rows))
    return "\n".join(f"{setting:<{width}}  # {source}" for setting, source in rows)


def _rows(
    parser: ArgumentParser, values: Mapping[str, Any], filled: Mapping[str, Any], sources: Mapping[str, str],
    unfit: Container[str],
) -> Iterator[tuple[str, str]]:  # fmt: skip
    flags = config.settable(parser)
    dests = {name: action.dest for name, action in flags.items()}
    for name, action in flags.items():
        value, source = values[action.dest], sources.get(name, "default")
        if value is None and filled.get(action.dest) is not None:
            value, source = filled[action.dest], f"recipe {filled['recipe']}"
        if value is None or (isinstance(value, list) and not value):
            yield f"# {name}", "not given"
            continue
        if action.nargs == 0 and not isinstance(action, BooleanOptionalAction):
            if value != action.const and [*dests.values()].count(action.dest) > 1:
                continue  # its opposite has a line
            value = value == action.const
        line = f"{name} = {_toml(value)}"
        yield (f"# {line}", f"{source}; not in a file") if name in unfit else (line, source)


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, (int, float)) else json.dumps(str(value), ensure_ascii=False)
