"""Memory of the device and pinned memory of the host, which work is queued on; pools that count bytes."""

from __future__ import annotations

import bisect
import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cupy._streams import current
from cupy._work import DEVICE, Span

ALIGNMENT = 512  # of every allocation, as CuPy's pool has it
TOTAL = 80 << 30  # bytes of a device
NOBODYS = 0xFF  # in every byte that was not written: NaN in every float
BESIDE = 64  # bytes before and behind memory that nobody may write
_UNTOUCHED = bytes([NOBODYS]) * BESIDE

_starts: list[int] = []
_by_start: dict[int, weakref.ref[Memory]] = {}


class Memory:
    """A piece of memory.

    Attributes:
        start: address of the first byte; size: how many; raw: these bytes, of the device; beside: others,
            that nobody may write.
        pending: what is queued on it (see ``_work.py``). pool: that it is counted in.
        device, stream: that were current; rounded: the size to a multiple of the alignment.
    """

    raw: np.ndarray
    beside: tuple[np.ndarray, ...] = ()

    def __init__(self, start: int, size: int, pool: MemoryPool) -> None:
        self.start, self.size, self.pool = start, size, pool
        self.device = DEVICE.number
        self.stream, self.rounded = current().ptr, -(-size // ALIGNMENT) * ALIGNMENT
        self.pending = DEVICE.left(self.stream, self.rounded, start) if pool is POOL else []
        pool.take(self.rounded)
        bisect.insort(_starts, start)
        _by_start[start] = weakref.ref(self)

    def __del__(self) -> None:
        del _starts[bisect.bisect_left(_starts, self.start)]
        del _by_start[self.start]
        self.pool.give_back(self.rounded)
        if self.pool is PINNED_POOL:
            DEVICE.freed_pinned(self)
        else:
            DEVICE.freed(self)

    @property
    def ptr(self) -> int:
        return self.start

    def whole(self) -> bool:
        """Tell whether nobody wrote beside memory of the device."""
        return all(part.tobytes() == _UNTOUCHED for part in self.beside)


class MemoryPointer:
    """An address within memory."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem, self.ptr, self.device_id = mem, mem.start + offset, mem.device

    def __int__(self) -> int:
        return self.ptr


class MemoryPool:
    """Keeps what is freed, and so only grows until all free blocks are let go."""

    def __init__(self, allocator: Any = None) -> None:
        self._used = self._total = 0
        self._lent: list[Memory] = []

    def malloc(self, size: int) -> Any:
        """Raise an error: it stands for the pool in ``using_allocator`` alone."""
        raise NotImplementedError("the stand-in takes memory of a pool as an allocator only")

    def keeps(self, memory: Memory) -> None:
        """Keep memory as long as the pool lives: it is lent again to those alone who use the pool."""
        self._lent.append(memory)

    def used_bytes(self) -> int:
        return self._used

    def total_bytes(self) -> int:
        return self._total

    def free_bytes(self) -> int:
        return self._total - self._used

    def free_all_blocks(self, stream: Any = None) -> None:
        self._total = self._used

    def n_free_blocks(self) -> int:
        return int(self._total > self._used)

    def take(self, size: int) -> None:
        self._used += size
        self._total = max(self._total, self._used)

    def give_back(self, size: int) -> None:
        self._used -= size


class PinnedMemoryPool(MemoryPool):
    """The same for pinned memory."""


POOL, PINNED_POOL = MemoryPool(), PinnedMemoryPool()
_pools: list[MemoryPool] = []  # of the contexts of allocators that are open


@contextmanager
def using_allocator(allocator: Any = None) -> Iterator[None]:
    """Take memory inside from the pool whose ``malloc`` this is."""
    pool = getattr(allocator, "__self__", None)
    if not isinstance(pool, MemoryPool):
        raise NotImplementedError(f"the stand-in has no allocator {allocator!r}")
    _pools.append(pool)
    try:
        yield
    finally:
        _pools.pop()


class PinnedMemory:
    """Host memory of ``size`` bytes that the device copies at full speed, used through one pointer."""

    def __init__(self, size: int, flags: int = 0) -> None:
        self.size = size


class PinnedMemoryPointer(bytearray):
    """Pinned memory of the host; it has the buffer interface, and lives as long as who uses that."""

    def __init__(self, mem: PinnedMemory, offset: int) -> None:
        if offset:
            raise NotImplementedError("the stand-in has pointers to the beginning of pinned memory only")
        super().__init__(bytes([NOBODYS]) * max(mem.size, 1))
        DEVICE.counts["pinned"] += 1
        self.mem = mem
        self.memory = Memory(_address(np.frombuffer(self, np.uint8)), mem.size, PINNED_POOL)

    @property
    def ptr(self) -> int:
        return self.memory.start


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    return PinnedMemoryPointer(PinnedMemory(size), 0)


def allocate(shape: tuple[int, ...], dtype: Any, order: str = "C") -> tuple[Memory, np.ndarray]:
    """Allocate memory of the device, and the array in it."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + ALIGNMENT + 2 * BESIDE, np.uint8)
    address = _address(room)
    offset = BESIDE + -(address + BESIDE) % ALIGNMENT
    pool = _pools[-1] if _pools else POOL
    memory = Memory(address + offset, size, pool)
    memory.raw = room[offset : offset + size]
    if pool is not POOL:
        pool.keeps(memory)
    memory.beside = room[offset - BESIDE : offset], room[offset + size :][:BESIDE]
    room[offset - BESIDE : offset + size + BESIDE] = NOBODYS
    array = memory.raw.view(dtype)
    return memory, array.reshape(shape[::-1]).T if order == "F" else array.reshape(shape)


def find(address: int) -> Memory | None:
    """Return the memory that holds this address."""
    place = bisect.bisect_right(_starts, address) - 1
    memory = _by_start[_starts[place]]() if place >= 0 else None
    return memory if memory is not None and address < memory.start + max(memory.size, 1) else None


def bounds(array: np.ndarray) -> tuple[int, int]:
    """Return the addresses of the first byte of an array and behind its last one."""
    if array.flags.c_contiguous or not array.size:
        start = _address(array)
        return start, start + array.nbytes
    return np.lib.array_utils.byte_bounds(array)


def span_of(memory: Memory, array: np.ndarray) -> Span:
    """Return the span from the first to the last byte of an array in this memory."""
    return memory, *bounds(array)


def spans_at(address: int, nbytes: int) -> list[Span]:
    """Return the span of ``nbytes`` bytes at an address in device or pinned memory; else an empty list."""
    memory = find(address)
    return [] if memory is None else [(memory, address, address + nbytes)]


def spans_of_host(array: np.ndarray) -> list[Span]:
    """Return the span of a host array in pinned memory; else an empty list."""
    start, end = bounds(array)
    return spans_at(start, end - start)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]
