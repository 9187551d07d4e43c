"""Array libraries that hold the numbers, NumPy or CuPy: the only place that knows one from the other."""

from __future__ import annotations

import functools
import math
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
from scipy import sparse

from distgnn import progress
from distgnn.arrays import memory
from distgnn.arrays.tuning import TUNING
from distgnn.errors import ArgumentError
from distgnn.ledger import HOST, Clock

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

    def matmul(self, A: Any, B: Any, out: Any = None) -> Any:
        """Multiply two matrices."""
        return self.xp.matmul(A, B, out=out)

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


INSTALL = "pip install -e '.[cuda13]', or '.[cuda12]' for a driver older than 580"
OLD_DRIVER = 35  # cudaErrorInsufficientDriver
AMPERE = 80  # the compute capability, times ten, from which GPUs have TensorFloat-32
CACHE_LINE = 64
BEFORE_ALL = -5  # the priority of what goes on beside products; a device takes the highest that it has
PAGE = 1 << 16  # bytes that pinned memory is a multiple of


def _at_cache_line(allocate: Callable[..., Any], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    # In the widest elements: SciPy copies a view that has less than half as many elements as what it views.
    memory = allocate(-(-size // 8) + CACHE_LINE // 8, np.uint64).view(np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


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
        self.multiplier: Callable[[Any, Any, Any], Any] | None = None
        self._lanes: dict[str, Any] = {}
        register(cupy.ndarray, self)

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

    def matmul(self, A: Any, B: Any, out: Any = None) -> Any:
        if self.multiplier is None:
            return self.xp.matmul(A, B, out=out)
        out = self.empty((A.shape[0], B.shape[1]), B.dtype) if out is None else out
        return self.multiplier(A, B, out)

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
    def by(self, multiplier: Callable[[Any, Any, Any], Any] | None) -> Iterator[None]:
        """Let this function, called as ``multiplier(A, B, out)``, multiply matrices inside; None: CuPy's."""
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


@functools.cache
def _has_gpu() -> bool:
    return not missing()


@functools.cache
def old_driver() -> str:
    """Return what to do where a GPU is not used as its driver is too old for CuPy; else an empty text."""
    why = "" if _has_gpu() else missing()
    return why if why.startswith("the driver") else ""


def missing() -> str:
    """Return why no GPU can be used here and what to do, for an error; an empty text where one can."""
    try:
        import cupy
    except Exception:  # also where a library that it needs is missing
        return f"CuPy is missing; {INSTALL}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        if getattr(error, "status", None) == OLD_DRIVER:
            return "the driver is too old for this CuPy; pip install -e '.[cuda12]' in place of cuda13"
        return f"CuPy sees no GPU ({' '.join(str(error).split())}); nvidia-smi shows whether there is one"
    return "" if count else "CuPy sees no GPU; nvidia-smi shows whether there is one"


@functools.cache
def _make(name: str) -> Backend:
    return CupyBackend() if name == "cupy" else Backend()


def available() -> list[str]:
    """List the names of the backends that work on this machine."""
    return ["numpy", "cupy"] if _has_gpu() else ["numpy"]


def get(name: str | None = None) -> Backend:
    """Return the backend called ``name``, by default what ``DISTGNN_BACKEND`` says.

    ``auto`` takes a GPU if there is one. ArgumentError: unknown name, or ``cupy`` asked for where no GPU
    answers.
    """
    name = name or os.environ.get("DISTGNN_BACKEND", "auto")
    if name not in ("auto", "numpy", "cupy"):
        raise ArgumentError("backend", name, "no such backend; choose auto, numpy or cupy")
    if name == "cupy" and not _has_gpu():
        raise ArgumentError("backend", name, f"{missing()}; or use numpy")
    return _make("cupy" if name != "numpy" and _has_gpu() else "numpy")


def register(kind: type, on: Backend) -> None:
    """Tell :func:`of` that a backend makes arrays of this type."""
    _backends[kind] = on


def known(array: Any) -> Backend | None:
    """Return the backend of an array that one of them has made, or could have; None for anything else."""
    return _backends.get(type(array))


def of(array: Any) -> Backend:
    """Return the backend an array lives on."""
    if (on := known(array)) is not None:
        return on
    return _make("numpy" if isinstance(array, (np.ndarray, np.generic)) else "cupy")


_backends: dict[type, Backend] = {np.ndarray: _make("numpy")}


def as_array(x: Any) -> Any:
    """Return an array of any backend as it is, and anything else as an array of NumPy."""
    return x if type(x) in _backends else np.asarray(x)


def module(array: Any) -> Any:
    """Return ``numpy``, ``cupy`` or what has their functions for arrays of another backend."""
    return of(array).xp
