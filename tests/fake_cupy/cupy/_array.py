"""``cupy.ndarray``: numbers in device memory, which NumPy is not let at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import EllipsisType
from typing import Any

import numpy as np

from cupy import _signatures
from cupy._graphs import recorded
from cupy._graphs import refuse as refuse_capture
from cupy._memory import Memory, MemoryPointer, allocate, span_of, spans_of_host
from cupy._streams import Event, ExternalStream, current, launch, synchronize
from cupy._work import DEVICE, Span

TYPES = frozenset("?bhilqBHILQefdFD")
NUMBERS = (int, float, complex, np.generic)
#: What NumPy and CuPy say about an array alike.
FACTS = frozenset({"shape", "strides", "dtype", "size", "itemsize", "nbytes", "ndim"})
#: Methods that wait for the device, as they cannot know the shape of their result.
WAITING = frozenset({"nonzero"})


class Flags:
    """Layout of an array."""

    def __init__(self, flags: Any) -> None:
        self.c_contiguous: bool = flags.c_contiguous
        self.f_contiguous: bool = flags.f_contiguous
        self.owndata: bool = flags.owndata

    def __getitem__(self, name: str) -> bool:
        return {name.upper(): value for name, value in vars(self).items()}[name]


class Capsule:
    """An array under way by DLPack."""

    def __init__(self, array: ndarray) -> None:
        self.array = array


class ndarray:
    """An array on the device. Conversions that CuPy refuses raise TypeError here too.

    ``_numbers`` is the NumPy array in ``_memory`` that holds what the array will hold when all is done.
    """

    __slots__ = ("__weakref__", "_base", "_memory", "_numbers")
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    size: int
    itemsize: int
    nbytes: int
    ndim: int

    def __new__(cls, shape: Any, dtype: Any = float, *, order: str = "C") -> ndarray:
        return fresh(shape, dtype, order)

    @property
    def span(self) -> Span:
        return span_of(self._memory, self._numbers)

    # -- what the host asks for --------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The interface that MPI is given. MPI knows nothing of streams, and may read and write at once."""
        if not DEVICE.announced:
            DEVICE.mpi("address", [self.span], writes=True)
        return {
            "shape": self.shape, "typestr": self._numbers.dtype.str, "descr": self._numbers.dtype.descr,
            "data": (self._numbers.ctypes.data, False), "version": 3, "stream": current().ptr or 1,
            "strides": None if self._numbers.flags.c_contiguous else self.strides,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._memory.device

    def __dlpack__(
        self, *, stream: int | None = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Capsule:  # fmt: skip
        """Give the array to who reads it on a stream, which is ordered after the current one."""
        if stream == -1:
            raise NotImplementedError("MPI is given the CUDA array interface, by which its use is seen")
        handed = Event()
        handed.record(current())
        ExternalStream(0 if stream in (None, 1) else stream).wait_event(handed)
        return Capsule(self)

    def get(
        self, stream: Any = None, order: str = "C", out: np.ndarray | None = None, blocking: bool = True
    ) -> np.ndarray:
        refuse_capture("get")
        stream = current() if stream is None else stream
        if out is not None:
            self._check_host(out, "obtained from")
            if not (out.flags.c_contiguous or out.flags.f_contiguous):
                raise RuntimeError("`out` cannot be specified when copying to non-contiguous ndarray")
        else:
            out = np.empty(self.shape, self.dtype, order)
        if not (self.flags.c_contiguous or self.flags.f_contiguous):
            launch("copy", [self], [])
        DEVICE.queue("device to host", stream.ptr, [self.span], spans_of_host(out))
        DEVICE.counts["device to host"] += 1
        DEVICE.counts["device to host bytes"] += self.nbytes
        out[...] = self._numbers
        if blocking or not spans_of_host(out):  # to pageable memory, the copy waits by itself
            synchronize(stream, "get")
        return out

    def set(self, arr: np.ndarray, stream: Any = None) -> None:
        refuse_capture("set")
        self._check_host(arr, "set to")
        if not (self.flags.c_contiguous or self.flags.f_contiguous):
            raise RuntimeError("Cannot set to non-contiguous array")
        stream = current() if stream is None else stream
        DEVICE.queue("host to device", stream.ptr, spans_of_host(arr), [self.span])
        DEVICE.counts["host to device"] += 1
        DEVICE.counts["host to device bytes"] += self.nbytes
        self._numbers[...] = arr

    def _check_host(self, array: Any, doing: str) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Only numpy.ndarray can be {doing} cupy.ndarray")
        if array.dtype != self.dtype:
            raise TypeError(f"{array.dtype} array cannot be {doing} {self.dtype} array")
        if array.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {array.shape}")

    def _number(self, why: str) -> Any:
        """Return the only number, for which the host waits."""
        if self.size != 1:
            raise TypeError(f"{why}: only arrays of size 1 can be converted to Python scalars")
        return self._copied(why).reshape(-1)[0]

    def _copied(self, why: str) -> np.ndarray:
        DEVICE.counts["device to host"] += 1
        DEVICE.counts["device to host bytes"] += self.nbytes
        DEVICE.queue("device to host", current().ptr, [self.span])
        synchronize(current(), why)
        return self._numbers

    def __bool__(self) -> bool:
        return bool(self._number("bool"))

    def __int__(self) -> int:
        return int(self._number("int"))

    def __float__(self) -> float:
        return float(self._number("float"))

    def __complex__(self) -> complex:
        return complex(self._number("complex"))

    def __index__(self) -> int:
        return self._number("index").__index__()

    def item(self, *place: Any) -> Any:
        return self._copied("item").item(*place)

    def tolist(self) -> Any:
        return self._copied("tolist").tolist()

    def tobytes(self, order: str = "C") -> bytes:
        return self._copied("tobytes").tobytes(order)

    def __format__(self, how: str) -> str:
        return format(self._copied("format").item() if how else self.get(), how)

    def __repr__(self) -> str:
        return f"{self._copied('repr')!r} on a stand-in"

    def __reduce__(self) -> Any:
        return moved, (self.get(),)

    # -- what stays on the device --------------------------------------------------------------------------

    @property
    def T(self) -> ndarray:
        return placed(self._numbers.T, self._memory, self)

    @property
    def base(self) -> ndarray | None:
        return self._base

    @property
    def data(self) -> MemoryPointer:
        return MemoryPointer(self._memory, self._numbers.ctypes.data - self._memory.start)

    @property
    def device(self) -> Any:
        from cupy.cuda import Device

        return Device(self._memory.device)

    @property
    def flags(self) -> Flags:
        return Flags(self._numbers.flags)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[ndarray]:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[place] for place in range(len(self)))

    def __copy__(self) -> ndarray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> ndarray:
        return self.copy()

    @recorded
    def fill(self, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.shape != ():
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        launch("fill", [], [self])
        self._numbers.fill(bare(value))

    @recorded
    def __getitem__(self, key: Any) -> ndarray:
        place, arrays = _index(key)
        if not arrays:
            keys = place if isinstance(place, tuple) else (place,)
            return placed(self._numbers[keys if ... in keys else (*keys, ...)], self._memory, self)
        taken = moved_on(self._numbers[place])
        launch("take", [self, *arrays], [taken])
        if any(array.dtype == bool for array in arrays):
            synchronize(current(), "mask")  # how many are taken
        return taken

    @recorded
    def __setitem__(self, key: Any, value: Any) -> None:
        place, arrays = _index(key)
        if isinstance(value, np.ndarray) and value.shape != ():
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        target = self if arrays else self[key]
        launch("scatter" if arrays else "copy", [*arrays, *arrays_in([value])], [target])
        self._numbers[place] = bare(value)

    def __getattr__(self, name: str) -> Any:
        """Return CuPy's function of this name, computed by NumPy."""
        if name in FACTS:
            return getattr(self._numbers, name)
        if name not in _signatures.ATTRIBUTES or name.startswith("_"):
            raise AttributeError(f"cupy.ndarray has no attribute {name!r}")

        def method(*arguments: Any, **keywords: Any) -> Any:
            _signatures.check(f"ndarray.{name}", _signatures.METHODS.get(name), arguments, keywords)
            return self._call(name, arguments, keywords)

        return method

    @recorded
    def _call(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        refuse(name, (*arguments, *keywords.values()))
        if name == "repeat" and arrays_in(arguments):
            raise ValueError("cupy.repeat: an array of repeats is not supported")
        made = getattr(self._numbers, name)(*bare(arguments), **bare(keywords))
        if keywords.get("out") is not None:
            launch(name, [self], [keywords["out"]])
            return keywords["out"]
        if made is self._numbers:
            return self
        result = wrapped(self._numbers if made is None else made, [self])  # sort() works in place
        results = arrays_in(result if isinstance(result, tuple) else [result])
        if all(one._memory is self._memory for one in results) and made is not None:
            return result
        launch(name, [self], results)
        if name in WAITING:
            synchronize(current(), name)
        return None if made is None else result

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        import cupy

        refuse(f"ufunc {ufunc.__name__}", inputs)
        own = getattr(cupy, ufunc.__name__, None)
        if own is None or method != "__call__":
            return NotImplemented
        if "out" in keywords:
            (keywords["out"],) = keywords["out"]
        return own(*inputs, **keywords)

    def __array_function__(self, function: Any, types: Iterable[type], arguments: Any, keywords: Any) -> Any:
        import cupy

        if function.__name__ not in _signatures.FUNCTIONS or not all(issubclass(t, ndarray) for t in types):
            return NotImplemented
        return getattr(cupy, function.__name__)(*arguments, **keywords)


def placed(numbers: np.ndarray, memory: Memory, base: ndarray | None = None) -> ndarray:
    """Make the array of these numbers in this memory."""
    made = object.__new__(ndarray)
    made._numbers, made._memory, made._base = numbers, memory, base
    return made


def fresh(shape: Any, dtype: Any, order: str = "C") -> ndarray:
    """Make an array in memory of its own, with arbitrary content."""
    shape = tuple(int(n) for n in shape) if isinstance(shape, (tuple, list)) else (int(shape),)
    memory, numbers = allocate(shape, dtype, order)
    return placed(numbers, memory)


def moved_on(numbers: Any) -> ndarray:
    """Put these numbers into device memory; the caller says what queues the copy."""
    numbers = np.asarray(numbers)
    if numbers.dtype.char not in TYPES:
        raise ValueError(f"Unsupported dtype {numbers.dtype}")
    made = fresh(numbers.shape, numbers.dtype, "F" if numbers.flags.fnc else "C")
    made._numbers[...] = numbers
    return made


def moved(numbers: np.ndarray) -> ndarray:
    """Copy a host array to the device."""
    refuse_capture("copy from the host")
    made = moved_on(numbers)
    DEVICE.queue("host to device", current().ptr, [], [made.span])
    DEVICE.counts["host to device"] += 1
    DEVICE.counts["host to device bytes"] += made.nbytes
    return made


def wrapped(result: Any, sources: list[ndarray]) -> Any:
    """Wrap a result of NumPy as a device array: views stay views of the sources."""
    if isinstance(result, (tuple, list)):
        return type(result)(wrapped(one, sources) for one in result)
    if isinstance(result, np.ndarray):
        for source in sources:
            if source.size and result.size and np.may_share_memory(result, source._memory.raw):
                return placed(result, source._memory, source)
    return moved_on(result) if isinstance(result, (np.ndarray, *NUMBERS)) else result


def bare(x: Any) -> Any:
    """Replace the device's arrays by NumPy's."""
    if isinstance(x, ndarray):
        return x._numbers
    if isinstance(x, (tuple, list)):
        return type(x)(map(bare, x))
    return {key: bare(value) for key, value in x.items()} if isinstance(x, dict) else x


def arrays_in(things: Iterable[Any]) -> list[ndarray]:
    """List all arrays of the device among these things."""
    arrays: list[ndarray] = []
    for thing in things:
        if isinstance(thing, ndarray):
            arrays.append(thing)
        elif isinstance(thing, (tuple, list)):
            arrays += arrays_in(thing)
    return arrays


def refuse(name: str, things: Iterable[Any]) -> None:
    """Raise TypeError for a host array, which CuPy does not mix with its own."""
    for thing in things:
        if isinstance(thing, np.ndarray):
            raise TypeError(f"{name}: Unsupported type {type(thing)}")
        if isinstance(thing, (tuple, list)):
            refuse(name, thing)


def _index(key: Any) -> tuple[Any, list[ndarray]]:
    """Return an index for NumPy, and the index arrays in it; host arrays are copied to the device."""
    arrays: list[ndarray] = []

    def one(x: Any) -> Any:
        if isinstance(x, slice):
            return slice(*(None if end is None else end.__index__() for end in (x.start, x.stop, x.step)))
        if isinstance(x, (list, np.ndarray)):
            x = moved(np.asarray(x))
        if isinstance(x, ndarray):
            arrays.append(x)
        return bare(x)

    known = (slice, list, np.ndarray, ndarray, int, np.integer, EllipsisType, type(None))
    keys = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(x, known) for x in keys):
        raise IndexError(f"unsupported index {key!r}")
    return tuple(map(one, keys)) if isinstance(key, tuple) else one(key), arrays
