"""A time without signal handlers, whose exceptions would leave a call half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@contextmanager
def later() -> Iterator[None]:
    """Call handlers of signals that come inside at the end. Only the main thread ever runs handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: dict[int, FrameType | None] = {}
    before: dict[int, Any] = {n: signal.getsignal(n) for n in _STOPS}
    own = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in own:
            signal.signal(number, lambda number, frame: came.setdefault(number, frame))
        yield
    finally:
        for number, handler in own.items():
            signal.signal(number, handler)
        for number, frame in came.items():
            own[number](number, frame)
