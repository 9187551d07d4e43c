"""Ends a run in which ranks wait for each other for ever, and prints where each of them was.

A rank inside an MPI call runs no Python, so no exception can be raised there. A thread of every rank watches
the clock instead. When a test is over its time it asks all ranks of this machine for their stacks by a signal
that a C handler answers, prints them and ends the process; the launcher then ends the others.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from pathlib import Path

from mpi4py import MPI

WORLD = MPI.COMM_WORLD


class Watchdog:
    """One per process, for the whole session; collective to make.

    Args:
        folder: the same for all ranks; the stacks are collected there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stacks = open(folder / f"stack-{WORLD.Get_rank()}", "w")
        faulthandler.register(signal.SIGUSR1, file=self._stacks, all_threads=False)
        here = MPI.Get_processor_name()
        self._neighbours = [pid for host, pid in WORLD.allgather((here, os.getpid())) if host == here]
        self._terminal = os.dup(sys.__stderr__.fileno())  # later, pytest captures what file descriptor 2 gets
        self._changed = threading.Condition()
        self._deadline = float("inf")
        self._reason = ""
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def watch(self, test: str, seconds: float) -> None:
        """Set the limit of ``test``: it must end, on all ranks, within ``seconds`` from now."""
        self._set(time.monotonic() + seconds, f"{test} has not ended after {seconds:g} s")
        # Should code hold the interpreter lock so that the thread cannot run, C code ends the process.
        faulthandler.dump_traceback_later(seconds + 10, exit=True, file=self._terminal)

    def hurry(self, seconds: float, failure: str) -> None:
        """Let the other ranks end within ``seconds`` after this rank has failed, or they wait for it."""
        deadline = time.monotonic() + seconds
        if deadline < self._deadline:
            self._set(deadline, f"{failure}\nand the other ranks have not ended {seconds:g} s later")

    def rest(self) -> None:
        """End the watch: the test has ended."""
        faulthandler.cancel_dump_traceback_later()
        self._set(float("inf"), "")

    def _set(self, deadline: float, reason: str) -> None:
        with self._changed:
            self._deadline, self._reason = deadline, reason
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while time.monotonic() < self._deadline:
                left = self._deadline - time.monotonic()
                self._changed.wait(None if left == float("inf") else max(left, 0))
            reason = self._reason
        self._end(reason)

    def _end(self, reason: str) -> None:
        rank, size = WORLD.Get_rank(), WORLD.Get_size()
        try:
            os.close(os.open(self._folder / "ended", os.O_CREAT | os.O_EXCL))
        except FileExistsError:  # another rank is at it, and will take this one's stack
            time.sleep(5)
            os._exit(1)
        for pid in self._neighbours:
            os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)
        lines = [f"\nHANG: rank {rank} of {size}: {reason}"]
        for other in range(size):
            lines.append(f"--- rank {other} was here, innermost call first ---\n{self._stack(other)}")
        os.write(
            self._terminal,
            "\n".join([*lines, f"HANG: run ended by the watchdog on rank {rank}", ""]).encode(),
        )
        time.sleep(0.2)
        os._exit(1)

    def _stack(self, rank: int) -> str:
        """Return the stack that ``rank`` answered, without pytest's own calls."""
        try:
            frames = (self._folder / f"stack-{rank}").read_text().splitlines()[1:]
        except FileNotFoundError:
            return "  (on another machine)"
        outer = (index for index, frame in enumerate(frames) if "/_pytest/" in frame or "/pluggy/" in frame)
        return "\n".join(frames[: next(outer, None)]) or "  (no answer)"
