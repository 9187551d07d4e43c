"""What has to be driven while the host computes: MPI moves non-blocking messages only while somebody calls it.

Whoever has messages under way registers a function that drives them; whoever computes for long calls :func:`poll` now and then.
"""

from __future__ import annotations

from collections.abc import Callable

_polls: list[Callable[[], None]] = []


def register(poll: Callable[[], None]) -> None:
    """Call ``poll`` from now on, which must be quick and must not raise in the middle of somebody else's product."""
    _polls.append(poll)


def unregister(poll: Callable[[], None]) -> None:
    """No longer; nothing happens if it was not registered."""
    if poll in _polls:
        _polls.remove(poll)


def pending() -> bool:
    """Is anything under way?"""
    return bool(_polls)


def poll() -> None:
    """Drive everything that is under way."""
    for drive in tuple(_polls):
        drive()
