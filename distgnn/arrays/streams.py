"""Order between the stream of a GPU that this process computes on and the streams of a caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def at_home(on: Any) -> Iterator[None]:
    """Make the stream that this process computes on the current one inside.

    What is queued there comes after what is on the caller's current stream, which goes on after it.
    """
    if on.home is None or on.stream() == on.home.ptr:
        yield
        return
    before = end = on.mark()
    try:
        with on.home:
            on.follow(before)
            try:
                yield
            finally:
                end = on.mark()
    finally:
        on.follow(end)


def handed(on: Any, array: Any) -> Any:
    """Return an array that was made :func:`at_home` as one whose memory the caller's current stream has.

    Memory is lent again on the stream that it was made on, which does not wait for the caller's use of it.
    """
    if on.home is None or on.stream() == on.home.ptr:
        return array
    own = array.copy()
    copied = on.mark()
    with on.home:
        on.follow(copied)
    return own


def follow_null(on: Any) -> None:
    """Order what is queued on the current stream from now on after the null stream.

    All streams that take turns with the null stream come before, too.
    """
    event = on.xp.cuda.Event(disable_timing=True)
    event.record(on.xp.cuda.Stream.null)
    on.xp.cuda.get_current_stream().wait_event(event)


def lead_null(on: Any) -> None:
    """Order what is queued on the null stream from now on after the current stream."""
    on.xp.cuda.Stream.null.wait_event(on.mark().event)
