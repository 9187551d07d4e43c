"""Features and gradients rounded to 16 bits while they travel between ranks.

Numbers are rounded where they are sent and float32 again where they arrive. All that is computed, sums over
ranks too, is computed in float32. Where ranks hold copies, the one that sends rounds its own, too, so that
copies stay equal to the bit.

A finite number that 16 bits can't hold travels as NaN, and the rank that rounds it notes its size. In
training all ranks learn of it with a word that they reduce after each update anyway (see ``nn/finite.py``);
``A @ H``, a forward pass by itself, a checkpoint and the error of a loss that is not finite reduce a word.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays.backend import DONE, Backend, Mark
from distgnn.arrays.workspace import Workspace
from distgnn.comm.staging import Lent
from distgnn.errors import ArgumentError, WireOverflowError, offered
from distgnn.local.narrow import BITS, KINDS, LARGEST

Array = Any

#: The streams on which numbers are rounded: the two lanes, and that of what is computed.
LANES = ("narrow", "sums", "")
_FORWARD = 1 << 32  # beside the bits of a number, in what ranks reduce
_PLACES = ("a gradient of the backward pass", "a panel or sum of the forward pass")
_REMEDY = {"float16": "take wire=bfloat16, or no wire", "bfloat16": "take no wire"}


class Narrow:
    """The 16 bits of the messages of a grid.

    Args:
        kind: bfloat16 or float16; backend: of the arrays that are sent.

    Attributes:
        memory: lends arrays of 16 bits on the backend.
        backward: whether what is rounded now are gradients.

    Raises:
        ArgumentError: another kind.
    """

    def __init__(self, kind: str, backend: Backend) -> None:
        if kind not in KINDS:
            raise ArgumentError("wire", kind, offered(kind, KINDS))
        self.kind, self.backend = kind, backend
        self.memory = Lent(Workspace(backend, "numbers of 16 bits"))
        self.backward = False
        self._beyond: Array = None  # of each lane: backward, forward

    def takes(self, array: Array) -> bool:
        """Tell whether an array can travel in 16 bits: float32 can, indices and what is rounded can't."""
        return bool(array.dtype == np.float32)

    def fill(self, wire: Array, array: Array, computed: Mark) -> Mark:
        """Round ``array``, once it is computed, into ``wire``; return the mark of when MPI may read that."""
        if not self.backend.on_device:
            self.into(array, wire)
            return DONE
        staged = isinstance(wire, np.ndarray)
        rounded = self.memory.borrow(array.shape, BITS) if staged else wire
        self._made()
        with self.backend.beside("narrow", computed):
            self.into(array, rounded, "narrow")
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
        return self.into(array, self.memory.borrow(array.shape, BITS))

    def into(self, array: Array, bits: Array, lane: str = "") -> Array:
        """Round ``array`` into ``bits``, on the stream of this lane, and return them."""
        return local.narrow(array, bits, self.kind, self._place(lane))

    def rows_into(self, array: Array, rows: Array, bits: Array) -> Array:
        """Round rows of ``array`` into ``bits`` and return them."""
        return local.narrow_rows(array, rows, bits, self.kind, self._place())

    def operand(self, array: Array) -> Any:
        """Return what sparse products read of ``array``, see :func:`distgnn.local.rounded`."""
        return local.rounded(array, self.kind, self._place())

    @functools.cached_property
    def read(self) -> bool:
        """Tell whether :meth:`operand` has 16 bits."""
        return local.reads_rounded(self.backend.empty((0, 1), np.float32))

    def room(self, shape: tuple[int, int], memory: Workspace) -> Any:
        """Lend room of ``memory`` for what nothing but sparse products read; products write its 16 bits."""
        return local.rounded_room(shape, self.kind, self._place(), memory.borrow)

    def again(self, room: Any) -> Any:
        """Return this :meth:`room` for what is rounded from now on."""
        return replace(room, beyond=self._place())

    def round(self, array: Array) -> None:
        """Round in place."""
        bits = self.rounded(array)
        local.widen(bits, array, self.kind)
        self.give_back(bits)

    def give_back(self, bits: Array) -> None:
        """Take back what was lent, when all that is queued has read it."""
        self.memory.give_back(bits, self.backend.mark())

    # -- what did not fit ------------------------------------------------------------------------------------

    @contextmanager
    def gradients(self) -> Iterator[None]:
        """Take what is rounded inside for gradients, in errors."""
        self.backward = True
        try:
            yield
        finally:
            self.backward = False

    def overflow(self) -> int:
        """Return a number below 0 if a number of this rank did not fit, and forget it; else 0.

        The least of all ranks' is of the forward pass, if any is, and there of the largest number.
        """
        if self._beyond is None:
            return 0
        backward, forward = self.backend.to_host(self._beyond).reshape(-1, 2).max(axis=0).tolist()
        if backward or forward:
            self._beyond[...] = 0
            self.backend.synchronize()
        return -(forward + _FORWARD) if forward else -backward

    def error(self, overflow: int, call: str = "") -> WireOverflowError:
        """Make the error of :meth:`overflow`; ``call``: in which it was found."""
        forward, bits = divmod(-overflow, _FORWARD)
        size, where = np.int32(bits).view(np.float32), call or _PLACES[forward]
        problem = f"a number of size {size:.6g} in {where} is too large for {self.kind} messages, which hold"
        return WireOverflowError(f"{problem} up to {LARGEST[self.kind]:.6g}; {_REMEDY[self.kind]}")

    def _made(self) -> Array:
        """Return the memory of what did not fit, which no lane can make."""
        if self._beyond is None:
            self._beyond = self.backend.zeros((2 * len(LANES),), np.int32)
            self.backend.synchronize()
        return self._beyond

    def _place(self, lane: str = "") -> Array:
        place = 2 * LANES.index(lane) + (not self.backward)
        return self._made()[place : place + 1]


def check_overflow(grid: Any, call: str = "") -> None:
    """Raise WireOverflowError, on every rank, where a number of some rank did not fit into 16 bits.

    Collective, one word, where the grid's messages have 16 bits; else nothing is done.
    """
    if grid.narrow is not None and (overflow := grid.world.lowest(grid.narrow.overflow())):
        raise grid.narrow.error(overflow, call)
