"""Kills work (SIGKILL) just before its n-th change of a file, for every n.

Without ``DISTGNN_FAULTS=all``, which `make faults` sets, tests of long work ask for the changes that publish:
files that only grow in a folder which nobody knows yet are all alike.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

PUBLISHING = {"os.rename", "os.rmdir", "os.chmod", "os.truncate", "fcntl.flock"}
CHANGES = PUBLISHING | {"os.mkdir", "os.remove", "open"}
LONG = CHANGES if os.environ.get("DISTGNN_FAULTS") == "all" else PUBLISHING


def each_step(work: Callable[[], object], changes: set[str] = CHANGES) -> Iterator[int]:
    """Do the work in a child that is killed at the first of these changes, at the second, … until a child
    comes to its end; yield the number of the change after each child, 0 at the end.
    """
    step = 1
    while killed(work, step, changes):
        yield step
        step += 1
    yield 0


def killed(work: Callable[[], object], step: int, changes: set[str] = CHANGES) -> bool:
    """Do the work in a child that is killed just before so many of these changes; True if it did not end."""
    child = os.fork()
    if child == 0:
        steps = 0

        def count(event: str, args: tuple[Any, ...]) -> None:
            nonlocal steps
            reads = event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR))
            if event in changes and not reads:
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
