"""The functions that drive messages while the host computes.

MPI moves non-blocking messages only while somebody calls it. Whoever has messages under way registers a
function that drives them; whoever computes for long calls :func:`poll` now and then; whoever waits for
messages does it in :func:`wait`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

PATIENCE = 5e-5  # seconds of waiting after which a rank takes naps
LONGEST_NAP = 5e-4  # until it has waited for a hundred times as long
LONGEST_REST = 0.02
SOON = 0.01  # seconds for which a rank polls in a collective, as MPI would
LONG = 0.1  # seconds of waiting after which a rank looks whether another has failed

_yield_core: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
#: One list for the whole process, but in :func:`apart`.
_polls: ContextVar[list[Callable[[], None]]] = ContextVar("polls", default=[])  # noqa: B039
#: Those that waits alone call, likewise.
_in_waits: ContextVar[list[Callable[[], None]]] = ContextVar("in_waits", default=[])  # noqa: B039

#: Objects whose ``look()`` may raise, where a device keeps this rank waiting for long (see ``comm/nccl.py``).
guards: WeakSet[Any] = WeakSet()
#: Seconds in which something must come to a wait, see :func:`impatient`.
_silence: ContextVar[float] = ContextVar("silence", default=float("inf"))


def register(poll: Callable[[], None], in_waits: bool = False) -> None:
    """Call ``poll`` from now on: it must be quick and must not raise, as others' products call it.

    ``in_waits``: only in waits, whatever for. Ranks waited for may wait for what it drives.
    """
    polls = (_in_waits if in_waits else _polls).get()
    if poll not in polls:
        polls.append(poll)


def unregister(poll: Callable[[], None], in_waits: bool = False) -> None:
    """Call ``poll`` no longer, if it was registered so."""
    polls = (_in_waits if in_waits else _polls).get()
    if poll in polls:
        polls.remove(poll)


def pending() -> bool:
    """Tell whether anything is under way."""
    return bool(_polls.get())


def poll() -> None:
    """Drive everything that is under way."""
    for drive in tuple(_polls.get()):
        drive()


@contextmanager
def apart() -> Iterator[None]:
    """Drive, in this thread, only what is registered inside. Other threads drive what they did."""
    before = [(polls, polls.get()) for polls in (_polls, _in_waits)]
    for polls, _ in before:
        polls.set([])
    try:
        yield
    finally:
        for polls, others in before:
            polls.set(others)


@contextmanager
def impatient(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in waits inside, of this thread, to which nothing has come for so many seconds."""
    token = _silence.set(seconds)
    try:
        yield
    finally:
        _silence.reset(token)


def wait(
    done: Callable[[], bool], advance: Callable[[], bool], check: Callable[[], object] = lambda: None,
    naps: bool = True,
) -> None:  # fmt: skip
    """Drive own messages until ``done()``, by ``advance()``, which says if any has completed, and others'.

    Where none has completed for LONG seconds, ``check()`` may raise. Without ``naps`` the core is this rank's
    own, and messages that it must hand on wait for it less.
    """
    since = time.perf_counter()
    while not done():
        if advance():
            since = time.perf_counter()
        else:
            waited = time.perf_counter() - since
            _rest(waited if naps else 0)
            if waited > LONG:
                check()
            if waited > _silence.get():
                raise TimeoutError(f"nothing has come from other ranks for {waited:.0f} s")
        poll()
        for drive in tuple(_in_waits.get()):
            drive()


def soon(done: Callable[[], bool], advance: Callable[[], object] = lambda: None) -> bool:
    """Wait for ``done()`` without naps, for SOON seconds at most; return whether it is.

    It is for ranks that have a core each: one that polls would keep the rank that it waits for from a core.
    """
    until = time.perf_counter() + SOON
    while not done():
        if time.perf_counter() > until:
            return False
        advance()
        _yield_core()
    return True


def watch(done: Callable[[], bool], advance: Callable[[], object] = lambda: None) -> None:
    """Wait for a device like :func:`wait`, but without naps: it is a matter of microseconds.

    Unless the device waits for other ranks: after LONG seconds, guards look whether one has failed.
    """
    since = time.perf_counter()
    while not done():
        advance()
        poll()
        _yield_core()
        if guards and time.perf_counter() - since > LONG:
            for guard in tuple(guards):
                guard.look()


def _rest(waited: float) -> None:
    """Leave the core to others for a moment. A nap is a fraction of the seconds waited and adds little."""
    if waited < PATIENCE:
        _yield_core()
    else:
        time.sleep(min(waited / 4, max(LONGEST_NAP, min(waited / 100, LONGEST_REST))))
