"""Memory in which copies of arrays stand while MPI moves them.

An MPI that is not CUDA-aware is given arrays of a device in pinned host memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from distgnn import progress
from distgnn.arrays.backend import DONE, Backend, Mark
from distgnn.arrays.workspace import Workspace


class Lent:
    """Memory that is lent, and lent again when no copy needs it any more."""

    def __init__(self, memory: Workspace) -> None:
        self.memory = memory
        self.late: list[tuple[Any, Mark]] = []  # given back, but not read yet

    def borrow(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Borrow an array of any content, until it is given back."""
        late, self.late = self.late, []
        for array, read in late:
            self.give_back(array, read)
        return self.memory.borrow(shape, dtype)

    def give_back(self, array: Any, read: Mark = DONE) -> None:
        """Take an array back; ``read``: the mark of the last copy from it."""
        if read():
            self.memory.give_back(array)
        else:
            self.late.append((array, read))


class Staging(Lent):
    """Pinned host memory for the arrays of a device. To pin memory takes longer than to copy into it."""

    def __init__(self, device: Backend) -> None:
        super().__init__(Workspace(_Pinned(device), "pinned copies"))


class _Pinned(Backend):
    """Host arrays that a device copies at full speed."""

    def __init__(self, device: Backend) -> None:
        self.device = device

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return self.device.pinned(shape, dtype)

    def finish(self) -> None:
        self.device.finish()


def read_later(on: Backend, array: Any) -> Callable[[], np.ndarray]:
    """Begin to copy an array to the host; return a function, to be called once, that waits for the numbers.

    What is queued in between is computed meanwhile, and may overwrite the array.
    """
    if not on.on_device:
        return lambda: array
    copy = staging(on).borrow(array.shape, array.dtype)
    copied = on.queue_out(array, copy)

    def read() -> np.ndarray:
        progress.watch(copied)
        numbers = copy.copy()
        staging(on).give_back(copy)
        return numbers

    return read


@functools.cache
def staging(device: Backend) -> Staging:
    """Return the pinned memory of this process for a device."""
    return Staging(device)
