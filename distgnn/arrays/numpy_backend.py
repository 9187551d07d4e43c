"""NumPy's arrays on hosts, and what every library of arrays does here."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from scipy import sparse

from distgnn.arrays import memory
from distgnn.arrays.tuning import TUNING
from distgnn.errors import ArgumentError
from distgnn.ledger import HOST, Clock

CACHE_LINE = 64

#: Says whether work that a device was given is done, without waiting for it.
Mark = Callable[[], bool]


def DONE() -> bool:
    """Return True: the mark of what is done already, such as everything on a host."""
    return True


_here = nullcontext()


class Backend:
    """NumPy arrays on the host.

    Attributes:
        bound: the device that this process is bound to, by its place in :meth:`devices`.
        holders: the ranks that share the memory of an array; makes: this one fills blocks that are equal on
            all of them (see ``comm/shared.py``).
    """

    name = "numpy"
    on_device = False
    xp: Any = np
    bound: int | None = None
    holders = 1
    makes = True

    @property
    def queues(self) -> bool:
        """True where the host queues work for a device, which waits for it."""
        return self.on_device

    def once(self, make: Callable[[], list[Any]]) -> list[Any]:
        """Return the blocks that one of the holders makes."""
        return make()

    def devices(self) -> list[str]:
        """List the PCI bus ids of the devices that this process may be bound to; none on a host."""
        return []

    def bind(self, device: int) -> str:
        """Bind this process to the device in this place; returns its name for the log."""
        return "host"

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        """Return a C-contiguous array on this backend's device of the same numbers; copy only if it must."""
        return np.ascontiguousarray(x, dtype=dtype)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Make a C-contiguous array of any content.

        On the host it starts at a cache line: NumPy's large arrays start 16 bytes after one, where a gathered
        row of 16 numbers takes two lines instead of one.
        """
        return _at_cache_line(np.empty, shape, np.dtype(dtype))

    def room(self, nbytes: int) -> Any:
        """Make bytes of any content; many of them go back to the system when the last view of them goes."""
        return memory.mapped(nbytes) if nbytes >= memory.HUGE // 4 else self.empty((nbytes,), np.uint8)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Make a C-contiguous array of zeros, placed like those of :meth:`empty`."""
        return _at_cache_line(np.zeros, shape, np.dtype(dtype))

    def address(self, x: Any) -> int:
        """Return the address at which the array begins in memory."""
        return int(x.ctypes.data)

    def device_of(self, x: Any) -> int | None:
        """Return the device that the array is on, by its place in :meth:`devices`; None on a host."""
        return None

    def to_host(self, x: Any) -> np.ndarray:
        """Return the array as NumPy."""
        return np.asarray(x)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Make a host array that device copies reach at full speed."""
        return np.empty(shape, dtype=dtype)

    def copy_in(self, host: np.ndarray, array: Any) -> None:
        """Copy a host array into an array of the same shape; ``host`` may be reused on return."""
        array[...] = host

    def synchronize(self) -> None:
        """Wait until everything queued on the current stream is done; messages under way are driven."""

    def finish(self) -> None:
        """Wait until everything queued on any stream is done."""

    def mark(self) -> Mark:
        """Mark everything queued on the current stream up to now."""
        return DONE

    def beside(self, lane: str, after: Mark = DONE) -> AbstractContextManager[None]:
        """Make the stream of this name the current one inside, to go on after a mark.

        What is queued there runs beside what is computed. No array may be made there.
        """
        return _here

    def carry(self, source: Any, target: Any, after: Mark) -> Mark:
        """Begin to copy an array to pinned host memory of its shape, or back, after a mark.

        The copy runs beside what is computed.
        """
        target[...] = source
        return DONE

    def queue_out(self, source: Any, target: np.ndarray) -> Mark:
        """Queue a copy to pinned host memory of the same shape, in the order of what is computed."""
        target[...] = source
        return DONE

    def follow(self, mark: Mark) -> None:
        """Order what is queued on the current stream from now on after a mark.

        The host does not wait for it.
        """

    def stream(self) -> int:
        """Return the handle of the current stream, for libraries."""
        return 0

    def nccl(self) -> Any:
        """Return the module of NCCL's communicators, or None where there is none."""
        return None

    def clock(self) -> Clock:
        """Return the clock for work that is queued on the current stream."""
        return HOST

    def use_tf32(self, use: bool) -> None:
        """Let dense products of float32 round what they multiply to TensorFloat-32, or no longer.

        It is for all products of this process, by cuBLAS. Without it, ``CUPY_TF32`` decides.

        ArgumentError: this device does not do that.
        """
        if use:
            raise ArgumentError("tf32", True, f"is for a GPU, and backend={self.name} computes on none")

    def matmul(self, A: Any, B: Any, out: Any = None, accumulate: bool = False) -> Any:
        """Multiply two matrices; add the product to ``out`` with ``accumulate``."""
        if not accumulate:
            return self.xp.matmul(A, B, out=out)
        out += self.xp.matmul(A, B)
        return out

    def at_a_time(self) -> int:
        """Return how many numbers of an array a pass in several operations treats at a time."""
        return TUNING.cached_numbers

    def csr_matrix(self, parts: tuple[Any, Any, Any], shape: tuple[int, int]) -> Any:
        """Make the library's sparse matrix of these values, columns and row pointers."""
        return sparse.csr_array(parts, shape=shape)

    def peak_bytes(self) -> int:
        """Return the most memory this process has held so far, in bytes."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def device_name(self) -> str:
        """Return the name by which its maker calls the GPU; empty on a host."""
        return ""

    def cache_bytes(self) -> int:
        """Return the bytes of the cache that all of a GPU shares; 0 where it is not known, as on hosts."""
        return 0

    def memory_bytes(self) -> int:
        """Return the bytes of memory of the node, or of its control group; on a GPU, those of the device."""
        return memory.of_node()


def _at_cache_line(allocate: Callable[..., Any], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    # In the widest elements: SciPy copies a view that has less than half as many elements as what it views.
    memory = allocate(-(-size // 8) + CACHE_LINE // 8, np.uint64).view(np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)
