"""CUDA graphs: work that is captured in place of being done, and is done at every launch of the graph.

A graph knows addresses. It keeps no memory alive, takes numbers as they were when it was captured, and works
on what is in memory when it is launched. What a capture makes is NaN until then. Memory that is gone raises
an error here, where a GPU would write over what is there now.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cupy._work import DEVICE

F = TypeVar("F", bound=Callable[..., Any])
NOBODYS = 0xFF


class Place(NamedTuple):
    """An array as a graph knows it."""

    memory: weakref.ref[Any]
    numbers: np.ndarray


class Step(NamedTuple):
    """A captured call; ``made``: arrays in memory of their own that it returned."""

    call: Callable[..., Any]
    arguments: Any
    keywords: Any
    made: list[Place]


class Capture:
    """Work that a stream captures."""

    def __init__(self, stream: int) -> None:
        self.stream, self.steps, self.inside = stream, list[Step](), False

    def record(self, call: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        """Note a call. It is made for the shapes of its results alone: memory stays as it was."""
        from cupy._array import arrays_in
        from cupy._streams import current

        if current().ptr != self.stream:
            raise NotImplementedError("the stand-in captures one stream, and nothing is done beside it")
        memories = {id(x._memory): x._memory for x in arrays_in([*arguments, *keywords.values()])}
        before = [(memory, memory.raw.copy()) for memory in memories.values()]
        self.inside = True
        try:
            result = call(*arguments, **keywords)
        finally:
            self.inside = False
            for memory, raw in before:
                memory.raw[:] = raw
        own = [x for x in arrays_in([result]) if id(x._memory) not in memories]
        for x in own:
            x._memory.raw[:] = NOBODYS
        self.steps.append(Step(call, *map(_placed, (arguments, keywords)), list(map(_place, own))))
        return result


class Graph:
    """Captured work, as ``Stream.end_capture`` returns it."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps

    def launch(self, stream: Any = None) -> None:
        from cupy._array import arrays_in
        from cupy._streams import current

        if stream is not None and stream != current():
            raise NotImplementedError("the stand-in launches graphs on the current stream")
        refuse("launch of a graph")
        DEVICE.counts["launches"] += 1
        DEVICE.launches["graph"] += 1
        DEVICE.replaying = True
        try:
            for step in self.steps:
                result = step.call(*_array(step.arguments), **_array(step.keywords))
                results = arrays_in([result])[-len(step.made) :] if step.made else []
                for place, made in zip(step.made, results, strict=True):
                    _array(place)._numbers[...] = made._numbers
        finally:
            DEVICE.replaying = False

    def upload(self, stream: Any = None) -> None:
        """Do nothing."""


def recorded(call: F) -> F:
    """Make a function one that a capture notes."""

    @functools.wraps(call)
    def either(*arguments: Any, **keywords: Any) -> Any:
        capture = DEVICE.capture
        if capture is None or capture.inside:
            return call(*arguments, **keywords)
        return capture.record(call, arguments, keywords)

    return either  # type: ignore[return-value]


def refuse(what: str) -> None:
    """Raise the error of CUDA for what no stream may do that captures."""
    if DEVICE.capture is not None:
        raise RuntimeError(f"cudaErrorStreamCaptureUnsupported: {what}: operation not permitted")


def _place(x: Any) -> Place:
    return Place(weakref.ref(x._memory), x._numbers)


def _placed(x: Any) -> Any:
    from cupy._array import ndarray

    if isinstance(x, ndarray):
        return _place(x)
    if isinstance(x, (tuple, list)):
        return type(x)(map(_placed, x))
    return {key: _placed(value) for key, value in x.items()} if isinstance(x, dict) else x


def _array(x: Any) -> Any:
    from cupy._array import placed

    if isinstance(x, Place):
        memory = x.memory()
        if memory is None:
            raise RuntimeError("a graph uses memory that was freed")
        return placed(x.numbers, memory)
    if isinstance(x, (tuple, list)):
        return type(x)(map(_array, x))
    return {key: _array(value) for key, value in x.items()} if isinstance(x, dict) else x
