"""Features and gradients rounded to 16 bits while they travel between ranks.

Numbers are rounded where they are sent and float32 again where they arrive. All that is computed, sums over
ranks too, is computed in float32. Where ranks hold copies, the one that sends rounds its own, too, so that
copies stay equal to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays.backend import DONE, Backend, Mark
from distgnn.arrays.workspace import Workspace
from distgnn.comm.staging import Lent
from distgnn.errors import ArgumentError, offered
from distgnn.local.narrow import BITS, KINDS

Array = Any


class Narrow:
    """The 16 bits of the messages of a grid.

    Args:
        kind: bfloat16 or float16; backend: of the arrays that are sent.

    Attributes:
        memory: lends arrays of 16 bits on the backend.

    Raises:
        ArgumentError: another kind.
    """

    def __init__(self, kind: str, backend: Backend) -> None:
        if kind not in KINDS:
            raise ArgumentError("wire", kind, offered(kind, KINDS))
        self.kind, self.backend = kind, backend
        self.memory = Lent(Workspace(backend, "numbers of 16 bits"))

    def takes(self, array: Array) -> bool:
        """Tell whether an array can travel in 16 bits: float32 can, indices and what is rounded can't."""
        return bool(array.dtype == np.float32)

    def fill(self, wire: Array, array: Array, computed: Mark) -> Mark:
        """Round ``array``, once it is computed, into ``wire``; return the mark of when MPI may read that."""
        if not self.backend.on_device:
            local.narrow(array, wire, self.kind)
            return DONE
        staged = isinstance(wire, np.ndarray)
        rounded = self.memory.borrow(array.shape, BITS) if staged else wire
        with self.backend.beside("narrow", computed):
            local.narrow(array, rounded, self.kind)
            made = self.backend.mark()
        if not staged:
            return made
        copied = self.backend.carry(rounded, wire, made)
        self.memory.give_back(rounded, copied)
        return copied

    def unwire(self, wire: Array, array: Array, read: Mark) -> Mark:
        """Bring what came in ``wire`` to ``array``, once that is read; return the mark to use it from."""
        if not self.backend.on_device:
            local.widen(wire, array, self.kind)
            return DONE
        staged = isinstance(wire, np.ndarray)
        came = self.memory.borrow(array.shape, BITS) if staged else wire
        brought = self.backend.carry(wire, came, DONE) if staged else DONE
        with self.backend.beside("narrow", brought):
            self.backend.follow(read)
            local.widen(came, array, self.kind)
            made = self.backend.mark()
        if staged:
            self.memory.give_back(came, made)
        return made

    def add_up(self, numbers: Sequence[Array], total: Array) -> None:
        """Compute in ``total``, float32, the sum of arrays of 16 bits, in their order."""
        for place, array in enumerate(numbers):
            local.widen(array, total, self.kind, accumulate=place > 0)

    def rounded(self, array: Array) -> Array:
        """Lend the rounded numbers of ``array``; ``memory`` takes them back."""
        return local.narrow(array, self.memory.borrow(array.shape, BITS), self.kind)

    def round(self, array: Array) -> None:
        """Round in place."""
        bits = self.rounded(array)
        local.widen(bits, array, self.kind)
        self.give_back(bits)

    def give_back(self, bits: Array) -> None:
        """Take back what was lent, when all that is queued has read it."""
        self.memory.give_back(bits, self.backend.mark())
