"""Signals that ask a command to stop: a training when its next update is made, others at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from distgnn.comm.launch import is_first

#: Of `scancel` and preemption, of `sbatch --signal=USR1@SECONDS`, of Ctrl-C, and of a closed terminal.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
#: The exit code of a run that was asked to stop, and may go on: EX_TEMPFAIL of sysexits.h.
CODE = 75
#: Seconds in which a second Ctrl-C is the same one, which a launcher passes on.
SAME = 1.0


@contextmanager
def handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle these signals inside, but for those that are ignored; put the handlers of before back."""
    wanted = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in wanted}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def interruptible(first: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let one of these signals interrupt what is inside, which may then tidy up; call `first` before that."""

    def interrupt(number: int, frame: Any) -> None:
        for further in SIGNALS:
            signal.signal(further, signal.SIG_IGN)
        first()
        raise KeyboardInterrupt

    with handled(interrupt):
        yield


class Stop:
    """A signal that this process got, as a function for ``Run.train``: its number, 0 before."""

    def __init__(self) -> None:
        self.number, self._since = 0, 0.0

    def __call__(self) -> int:
        return self.number

    def keep(self, number: int, frame: Any) -> None:
        """Handle a signal. Another Ctrl-C interrupts at once."""
        now = time.monotonic()
        if number == self.number == signal.SIGINT and now - self._since > SAME:
            raise KeyboardInterrupt
        if not self.number:
            self._since = now
            if is_first():
                once_more = "; Ctrl-C once more stops at once" if number == signal.SIGINT else ""
                line = f"distgnn: {signal.Signals(number).name}: stops after this update{once_more}\n"
                with suppress(OSError):  # a closed pipe
                    os.write(2, line.encode())
        self.number = number
