"""Loops over cases inside a test."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with each value of these arguments, one after another; a failure begins with its case.

    Takes what ``pytest.mark.parametrize`` takes, and makes one test instead of many: for arguments, such as a
    width or a dtype, that need no fixtures of their own. A decorator above another one is the outer loop.
    """
    arguments = [name.strip() for name in names.split(",")]
    cases = [dict(zip(arguments, value if len(arguments) > 1 else (value,), strict=True)) for value in values]
    assert cases, "a test without cases would pass"

    def loop(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def looped(**fixtures: Any) -> None:
            for case in cases:
                try:
                    test(**fixtures, **case)
                except (Exception, pytest.fail.Exception) as error:
                    raise AssertionError(f"{_text(case)}: {error}") from error

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in arguments]
        assert len(kept) == len(signature.parameters) - len(arguments), f"{test.__name__} lacks {names}"
        looped.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return looped

    return loop


def _text(case: dict[str, Any]) -> str:
    """Write the arguments as in a call; classes and functions by name."""
    return ", ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in case.items())
