"""Work that is killed (SIGKILL) just before its n-th change of a file, for every n."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "os.truncate", "fcntl.flock"}


def each_step(work: Callable[[], object], first: int = 1) -> Iterator[int]:
    """Do the work in a child that is killed at step `first`, at the next, … until one comes to its end;
    yields after each the number of the step, 0 at the end."""
    while killed(work, first):
        yield first
        first += 1
    yield 0


def killed(work: Callable[[], object], step: int) -> bool:
    """Was it killed before it came to its end?"""
    child = os.fork()
    if child == 0:
        steps = 0

        def count(event: str, args: tuple[Any, ...]) -> None:
            nonlocal steps
            writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
            if writes or event in CHANGES:
                steps += 1
                if steps == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)
