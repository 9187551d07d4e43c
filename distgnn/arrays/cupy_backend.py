"""CuPy's arrays on one GPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import numpy as np

from distgnn import progress
from distgnn.arrays.numpy_backend import DONE, Backend, Mark
from distgnn.arrays.tuning import TUNING
from distgnn.errors import ArgumentError
from distgnn.ledger import Clock

AMPERE = 80  # the compute capability, times ten, from which GPUs have TensorFloat-32
BEFORE_ALL = -5  # the priority of what goes on beside products; a device takes the highest that it has
PAGE = 1 << 16  # bytes that pinned memory is a multiple of


class CupyBackend(Backend):
    """CuPy arrays on one GPU, which ``comm/devices.py`` chooses.

    The thread that binds it computes on a stream of its own from then on.
    """

    name = "cupy"
    on_device = True
    home: Any = None  # the stream that this process computes on

    def __init__(self) -> None:
        import cupy

        self.xp = cupy
        self.multiplier: Callable[..., Any] | None = None
        self._lanes: dict[str, Any] = {}

    def devices(self) -> list[str]:
        runtime = self.xp.cuda.runtime
        return [runtime.deviceGetPCIBusId(device) for device in range(runtime.getDeviceCount())]

    def bind(self, device: int) -> str:
        if CupyBackend.bound != device:
            self.xp.cuda.Device(device).use()
            self.xp.cuda.Device(device).synchronize()
            self._lanes.clear()
            # From now on not the null stream, with which an MPI's own streams may take turns. Entered for
            # good: CuPy forgets a stream in `use` where the context of another one ends.
            CupyBackend.home = self.xp.cuda.Stream(non_blocking=True)
            CupyBackend.home.__enter__()
            CupyBackend.bound = device
        return f"cuda:{device}"

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        return self.xp.ascontiguousarray(self.xp.asarray(x, dtype=dtype))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.xp.empty(shape, dtype=dtype)

    def room(self, nbytes: int) -> Any:
        return self.xp.empty((nbytes,), np.uint8)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.xp.zeros(shape, dtype=dtype)

    def address(self, x: Any) -> int:
        return int(x.data.ptr)

    def device_of(self, x: Any) -> int:
        return int(x.data.device_id)

    def to_host(self, x: Any) -> np.ndarray:
        if progress.guards:
            self.synchronize()
        return self.xp.asnumpy(x)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        count, cuda = math.prod(shape), self.xp.cuda
        # Not CuPy's pool, which rounds up to a power of two and keeps all that it ever had.
        pages = max(1, -(-count * np.dtype(dtype).itemsize // PAGE))
        memory = cuda.PinnedMemoryPointer(cuda.PinnedMemory(pages * PAGE), 0)
        return np.frombuffer(memory, dtype, count).reshape(shape)

    def copy_in(self, host: np.ndarray, array: Any) -> None:
        array.set(host)
        self.synchronize()

    def synchronize(self) -> None:
        if progress.pending() or progress.guards:
            progress.watch(self.mark())
        else:
            self.xp.cuda.get_current_stream().synchronize()

    def finish(self) -> None:
        self.xp.cuda.Device().synchronize()

    def mark(self) -> Mark:
        event = self.xp.cuda.Event(disable_timing=True)
        event.record()
        return _Event(self.xp.cuda.runtime, event)

    @contextmanager
    def beside(self, lane: str, after: Mark = DONE) -> Iterator[None]:
        if lane not in self._lanes:  # non-blocking, or it would take turns with the null stream
            self._lanes[lane] = self.xp.cuda.Stream(non_blocking=True, priority=BEFORE_ALL)
        with self._lanes[lane]:
            self.follow(after)
            yield

    def carry(self, source: Any, target: Any, after: Mark) -> Mark:
        if not source.size:
            return after
        out = isinstance(target, np.ndarray)
        with self.beside("out" if out else "in", after):  # a device copies both ways at once
            source.get(out=target, blocking=False) if out else target.set(source)
            return self.mark()

    def queue_out(self, source: Any, target: np.ndarray) -> Mark:
        source.get(out=target, blocking=False)
        return self.mark()

    def follow(self, mark: Mark) -> None:
        if isinstance(mark, _Event):
            self.xp.cuda.get_current_stream().wait_event(mark.event)

    def stream(self) -> int:
        return int(self.xp.cuda.get_current_stream().ptr)

    def nccl(self) -> Any:
        from cupy.cuda import nccl  # there without the library, too

        return nccl if nccl.available else None

    def clock(self) -> Clock:
        return event_clock(self.xp)

    def use_tf32(self, use: bool) -> None:
        from cupy._core import _routines_linalg as linalg

        if use and int(self.xp.cuda.Device().compute_capability) < AMPERE:
            raise ArgumentError("tf32", True, "is for GPUs from compute capability 8.0 on, which this is not")
        linalg.set_compute_type(np.float32, linalg.COMPUTE_TYPE_TF32 if use else linalg.COMPUTE_TYPE_TBD)

    def rounds_to_tf32(self) -> bool:
        """Tell whether products of float32 do so."""
        from cupy._core import _routines_linalg as linalg

        return bool(linalg.get_compute_type(np.float32) == linalg.COMPUTE_TYPE_TF32)

    def matmul(self, A: Any, B: Any, out: Any = None, accumulate: bool = False) -> Any:
        if self.multiplier is not None:
            out = self.empty((A.shape[0], B.shape[1]), B.dtype) if out is None else out
            return self.multiplier(A, B, out, accumulate)
        if not accumulate or self.rounds_to_tf32() or not (A.size and B.size):
            return super().matmul(A, B, out, accumulate)
        from cupy import cublas  # whose products, unlike those of `matmul`, are exact with TF32, too

        return cublas.gemm("N", "N", A, B, out=out, beta=1.0)

    def pool(self) -> Any:
        """Make a pool of memory for :meth:`memory_of`. What came from it is nobody else's while it lives."""
        return self.xp.cuda.MemoryPool()

    def memory_of(self, pool: Any) -> AbstractContextManager[None]:
        """Take the memory of arrays that are made inside from a pool."""
        context: AbstractContextManager[None] = self.xp.cuda.using_allocator(pool.malloc)
        return context

    @contextmanager
    def captured(self) -> Iterator[list[Any]]:
        """Note what is queued on the current stream inside, in place of doing it.

        Gives a list that holds the CUDA graph afterwards. It keeps no memory: who launches it must.
        """
        stream, graphs = self.xp.cuda.get_current_stream(), list[Any]()
        stream.begin_capture()
        try:
            yield graphs
        except BaseException:
            with suppress(Exception):  # what it captured is of no use
                stream.end_capture()
            raise
        graphs.append(stream.end_capture())

    @contextmanager
    def by(self, multiplier: Callable[..., Any] | None) -> Iterator[None]:
        """Let a function, called as ``multiplier(A, B, out, accumulate)``, multiply inside; None: CuPy's."""
        self.multiplier = multiplier
        try:
            yield
        finally:
            self.multiplier = None

    def at_a_time(self) -> int:
        return TUNING.launched_numbers

    def csr_matrix(self, parts: tuple[Any, Any, Any], shape: tuple[int, int]) -> Any:
        from cupyx.scipy import sparse

        return sparse.csr_matrix(parts, shape=shape)

    def peak_bytes(self) -> int:
        return int(self.xp.get_default_memory_pool().total_bytes())

    def device_name(self) -> str:
        return str(self._properties()["name"].decode())

    def cache_bytes(self) -> int:
        return int(self._properties()["l2CacheSize"])

    def _properties(self) -> dict[str, Any]:
        properties: dict[str, Any] = self.xp.cuda.runtime.getDeviceProperties(self.xp.cuda.Device().id)
        return properties

    def memory_bytes(self) -> int:
        return int(self.xp.cuda.runtime.memGetInfo()[1])


class _Event:
    """A mark of a CUDA stream. ``event.done`` would be False for ever after a kernel that failed."""

    NOT_READY = 600  # cudaErrorNotReady

    def __init__(self, runtime: Any, event: Any) -> None:
        self.runtime, self.event = runtime, event

    def __call__(self) -> bool:
        status = self.runtime.eventQuery(self.event.ptr)
        if status not in (0, self.NOT_READY):
            raise self.runtime.CUDARuntimeError(status)
        return bool(status == 0)


@functools.cache
def event_clock(xp: Any) -> Clock:
    """Return the clock of events on the current stream. Its seconds wait for the second event."""

    def mark() -> Any:
        event = xp.cuda.Event()
        event.record()
        return event

    def seconds(start: Any, end: Any) -> float:
        if not end.done:
            end.synchronize()
        return xp.cuda.get_elapsed_time(start, end) / 1e3

    return mark, seconds
