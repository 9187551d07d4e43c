"""Signals that ask a training to stop when its next update is made."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from distgnn.comm.launch import is_first

#: Of `scancel` and preemption, of `sbatch --signal=USR1@SECONDS`, and of Ctrl-C.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
#: The exit code of a run that was asked to stop, and may go on: EX_TEMPFAIL of sysexits.h.
CODE = 75
#: Seconds in which a second Ctrl-C is the same one, which a launcher passes on.
SAME = 1.0


class Stop:
    """A signal that this process got, as a function for ``Run.train``: its number, 0 before. A context in
    which these signals do no more than that; another Ctrl-C interrupts at once.
    """

    def __init__(self) -> None:
        self.number, self._since = 0, 0.0
        self._before: dict[int, Callable[..., Any] | int | None] = {}

    def __call__(self) -> int:
        return self.number

    def __enter__(self) -> Stop:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._keep)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _keep(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if number == self.number == signal.SIGINT and now - self._since > SAME:
            raise KeyboardInterrupt
        if not self.number:
            self._since = now
            if is_first():
                once_more = "; Ctrl-C once more stops at once" if number == signal.SIGINT else ""
                line = f"distgnn: {signal.Signals(number).name}: stops after this update{once_more}\n"
                os.write(2, line.encode())
        self.number = number
