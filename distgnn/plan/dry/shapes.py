"""Arrays that have a shape and a dtype and no numbers: what a dry run computes with.

Views know where they begin, so that buffers are told apart and used again as real ones are. A number that is
read from such an array is zero. Indexing by numbers that nobody knows gives as many rows as there are
indices, by truth values none.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple, Self

import numpy as np

Shape = tuple[int, ...]

_LINE = 64  # bytes: no two arrays share an address
_end = _LINE  # of the memory that arrays pretend to have


class Flags(NamedTuple):
    """Place of an array in memory."""

    c_contiguous: bool


_BY_ROWS = Flags(True)


class ShapeArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array without numbers.

    Attributes:
        shape, dtype, size, strides (bytes), address: as of an array of NumPy.
        known: the host array that it was made from, or a range of the same numbers, or None; it is not
            followed any further.
    """

    __slots__ = ("__weakref__", "_strides", "address", "dtype", "known", "shape", "size")

    def __init__(
        self, shape: Any, dtype: Any = float, strides: Shape | None = None, address: int | None = None
    ) -> None:
        self.shape: Shape = tuple(map(int, shape)) if isinstance(shape, (tuple, list)) else (int(shape),)
        self.dtype: np.dtype = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)
        self.size = math.prod(self.shape)
        self._strides = strides  # None: row by row
        self.address = _allocate(self.nbytes) if address is None else address
        self.known: np.ndarray | range | None = None

    @property
    def strides(self) -> Shape:
        return _strides(self.shape, self.itemsize) if self._strides is None else self._strides

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def flags(self) -> Flags:
        if self._strides is None or self.size == 0:
            return _BY_ROWS
        expected = _strides(self.shape, self.itemsize)
        dense = all(n == 1 or a == b for n, a, b in zip(self.shape, self._strides, expected, strict=True))
        return _BY_ROWS if dense else Flags(False)

    @property
    def T(self) -> ShapeArray:
        return self._view(self.shape[::-1], self.dtype, self.address, self.strides[::-1])

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[ShapeArray]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"ShapeArray({self.shape}, {self.dtype})"

    # -- numbers, of which there are none --------------------------------------------------------------------

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError(f"{self!r} has no numbers that NumPy could use")

    def __bool__(self) -> bool:
        return False

    def __float__(self) -> float:
        return 0.0

    def __int__(self) -> int:
        return 0

    def item(self) -> Any:
        return self.dtype.type(0).item()

    def tolist(self) -> Any:
        return np.zeros(self.shape, self.dtype).tolist()

    # -- views -----------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        if type(key) is slice and key.step is None and self.shape:
            return self._rows(*key.indices(self.shape[0])[:2])
        if type(key) is int and len(self.shape) == 1:
            return self._number(key) if self.known is None else self.known[key]
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(part, (ShapeArray, np.ndarray, list)) for part in keys):
            return type(self)(_picked(self.shape, keys), self.dtype)
        return self._sliced(keys)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.known = None

    def _number(self, place: int) -> ShapeArray:
        stride = self.dtype.itemsize if self._strides is None else self._strides[0]
        return self._view((), self.dtype, self.address + range(self.shape[0])[place] * stride, (), 1)

    def _rows(self, first: int, last: int) -> ShapeArray:
        height, count = max(self.shape[0], 1), last - first if last > first else 0
        row = self.nbytes // height if self._strides is None else self._strides[0]
        size, shape = self.size // height * count, (count, *self.shape[1:])
        return self._view(shape, self.dtype, self.address + first * row, self._strides, size)

    def _sliced(self, keys: tuple[Any, ...]) -> ShapeArray:
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            missing = self.ndim - sum(part is not None for part in keys) + 1
            keys = (*keys[:at], *[slice(None)] * missing, *keys[at + 1 :])
        shape: list[int] = []
        strides: list[int] = []
        address, sizes = self.address, iter(zip(self.shape, self.strides, strict=True))
        for part in keys:
            if part is None:
                shape.append(1)
                strides.append(0)
                continue
            size, stride = next(sizes)
            if isinstance(part, slice):
                places = range(*part.indices(size))
                shape.append(len(places))
                strides.append(stride * places.step)
                address += stride * places.start
            else:
                address += stride * range(size)[operator.index(part)]  # IndexError where there is none
        for size, stride in sizes:
            shape.append(size)
            strides.append(stride)
        return self._view(tuple(shape), self.dtype, address, tuple(strides))

    @classmethod
    def _view(
        cls, shape: Shape, dtype: np.dtype, address: int, strides: Shape | None = None,
        size: int | None = None,
    ) -> Self:  # fmt: skip
        view = object.__new__(cls)
        view.shape, view.dtype, view.size = shape, dtype, math.prod(shape) if size is None else size
        view._strides, view.address, view.known = strides, address, None
        return view

    def reshape(self, *shape: Any) -> ShapeArray:
        if shape == (-1,) and self._strides is None:
            return self._view((self.size,), self.dtype, self.address, None, self.size)
        asked = list(shape[0]) if isinstance(shape[0], (tuple, list)) else list(shape)
        if -1 in asked:
            rest = -math.prod(asked)
            asked[asked.index(-1)] = self.size // rest if rest else 0
        if math.prod(asked) != self.size:
            raise ValueError(f"cannot reshape {self!r} into {tuple(asked)}")
        if not self.flags.c_contiguous:
            return type(self)(tuple(asked), self.dtype)
        return self._view(tuple(asked), self.dtype, self.address, None, self.size)

    def ravel(self) -> ShapeArray:
        return self.reshape(-1)

    def view(self, dtype: Any) -> ShapeArray:
        kind = np.dtype(dtype)
        last, odd = divmod(self.shape[-1] * self.dtype.itemsize, kind.itemsize)
        if odd or not self.flags.c_contiguous:
            raise ValueError(f"cannot view {self!r} as {kind}")
        return self._view((*self.shape[:-1], last), kind, self.address)

    # -- what would be computed ------------------------------------------------------------------------------

    def copy(self) -> ShapeArray:
        return type(self)(self.shape, self.dtype)

    def astype(self, dtype: Any, copy: bool = True) -> ShapeArray:
        return self if not copy and self.dtype == dtype else type(self)(self.shape, dtype)

    def _reduced(self, axis: int | None, keepdims: bool, dtype: Any) -> ShapeArray:
        axes = set(range(self.ndim)) if axis is None else {axis % self.ndim}
        kept = [1 if i in axes else n for i, n in enumerate(self.shape) if keepdims or i not in axes]
        return type(self)(tuple(kept), dtype)

    def sum(self, axis: int | None = None, keepdims: bool = False, dtype: Any = None) -> ShapeArray:
        return self._reduced(axis, keepdims, dtype or np.zeros(0, self.dtype).sum().dtype)

    def max(self, axis: int | None = None) -> ShapeArray:
        return self._reduced(axis, False, self.dtype)

    min = max

    def argmax(self, axis: int | None = None) -> ShapeArray:
        return self._reduced(axis, False, np.int64)

    def any(self) -> ShapeArray:
        return self._reduced(None, False, bool)

    all = any

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **_: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        if out is not None and not out[0].size:  # absent ranks may be taken to send rows that it has not
            return out[0]
        shape = (_product if ufunc is np.matmul else _together)(*map(np.shape, inputs))
        if out is None:
            return type(self)(shape, _result(ufunc, *map(_kind, inputs)))
        if _together(shape, out[0].shape) != out[0].shape:
            raise ValueError(f"{ufunc.__name__}: a result of shape {shape} does not fit {out[0]!r}")
        out[0].known = None
        return out[0]


@dataclass(frozen=True)
class ShapeMatrix:
    """A sparse matrix of which no more is known than how many non-zeros it has, anywhere in it.

    Attributes:
        filled: how many rows and columns have a non-zero, where that is known.
    """

    shape: tuple[int, int]
    nnz: int
    dtype: np.dtype
    filled: tuple[int, int] | None = None

    @cached_property
    def T(self) -> ShapeMatrix:
        return ShapeMatrix(self.shape[::-1], self.nnz, self.dtype, self.filled and self.filled[::-1])

    @cached_property
    def data(self) -> ShapeArray:
        """The values."""
        return ShapeArray((self.nnz,), self.dtype)

    def as_canonical(self) -> ShapeMatrix:
        """Return the matrix: of what it has no order, none is wrong."""
        return self

    def columns_read(self) -> Any:
        """Return int64, rising: as many columns as have a non-zero in the mean, if each is anywhere."""
        return self._columns

    @cached_property
    def _columns(self) -> ShapeArray:
        width = self.shape[1]
        count = columns_filled(width, self.nnz) if self.filled is None else self.filled[1]
        columns = ShapeArray((count,), np.int64)
        columns.known = range(width) if count == width else None
        return columns


def columns_filled(width: int, nonzeros: int) -> int:
    """Return how many of so many columns have a non-zero in the mean, if each is anywhere."""
    missed = (1 - 1 / width) ** nonzeros if width else 0
    return min(round(width * (1 - missed)), nonzeros)


class Functions:
    """The functions of NumPy that this package uses, on arrays without numbers, of this kind."""

    def __init__(self, kind: type[ShapeArray] = ShapeArray) -> None:
        self.kind = kind

    def __getattr__(self, name: str) -> Any:
        """Return a function of single elements, which NumPy hands back to the array, or a type."""
        function = getattr(np, name)
        if not isinstance(function, (np.ufunc, type)):
            raise AttributeError(f"arrays without numbers have no {name}")
        return function

    def empty(self, shape: Any, dtype: Any = float) -> ShapeArray:
        return self.kind(shape, dtype)

    zeros = ones = empty

    def full(self, shape: Any, value: Any, dtype: Any = None) -> ShapeArray:
        return self.kind(shape, np.asarray(value).dtype if dtype is None else dtype)

    def empty_like(self, x: Any, dtype: Any = None) -> ShapeArray:
        return self.kind(x.shape, dtype or x.dtype)

    zeros_like = ones_like = empty_like

    def arange(self, *bounds: int, dtype: Any = np.int64) -> ShapeArray:
        return self.kind((len(range(*bounds)),), dtype)

    def asarray(self, x: Any, dtype: Any = None) -> ShapeArray:
        if isinstance(x, ShapeArray):
            return x if dtype is None else x.astype(dtype, copy=False)
        host = np.asarray(x, dtype)
        made = self.kind(host.shape, host.dtype)
        made.known = host
        return made

    def ascontiguousarray(self, x: Any, dtype: Any = None) -> ShapeArray:
        x = self.asarray(x, dtype)
        return x if x.flags.c_contiguous else x.copy()

    def asfortranarray(self, x: ShapeArray) -> ShapeArray:
        return x if x.T.flags.c_contiguous else x.T.copy().T

    def concatenate(self, arrays: Sequence[ShapeArray], axis: int = 0) -> ShapeArray:
        shape = list(arrays[0].shape)
        shape[axis] = sum(x.shape[axis] for x in arrays)
        return self.kind(tuple(shape), np.result_type(*(x.dtype for x in arrays)))

    def stack(self, arrays: Sequence[ShapeArray]) -> ShapeArray:
        return self.kind((len(arrays), *arrays[0].shape), np.result_type(*(x.dtype for x in arrays)))

    def packbits(self, x: ShapeArray) -> ShapeArray:
        return self.kind((-(-x.size // 8),), np.uint8)

    def unpackbits(self, x: ShapeArray) -> ShapeArray:
        return self.kind((8 * x.size,), np.uint8)

    def flatnonzero(self, x: ShapeArray) -> ShapeArray:
        return self.kind((0,), np.int64)

    def argwhere(self, x: ShapeArray) -> ShapeArray:
        return self.kind((0, x.ndim), np.int64)

    def count_nonzero(self, x: ShapeArray) -> int:
        return 0

    def bincount(self, x: ShapeArray, minlength: int = 0) -> ShapeArray:
        return self.kind((minlength,), np.int64)

    def cumsum(self, x: ShapeArray) -> ShapeArray:
        return self.kind(x.shape, x.dtype)

    def sort(self, x: ShapeArray) -> ShapeArray:
        return x.copy()

    def where(self, condition: Any, x: Any, y: Any) -> ShapeArray:
        operands = condition, x, y
        kind = np.result_type(
            *(_kind(operand)(0) if isinstance(_kind(operand), type) else _kind(operand) for operand in (x, y))
        )
        return self.kind(np.broadcast_shapes(*map(np.shape, operands)), kind)

    def vdot(self, x: ShapeArray, y: ShapeArray) -> ShapeArray:
        return self.kind((), x.dtype)


def _allocate(nbytes: int) -> int:
    global _end
    address, _end = _end, _end + -(-max(nbytes, 1) // _LINE) * _LINE
    return address


def _strides(shape: Shape, itemsize: int) -> Shape:
    sizes = itertools.accumulate(reversed(shape[1:]), lambda stride, n: stride * max(n, 1), initial=itemsize)
    return tuple(sizes)[::-1] if shape else ()


def _picked(shape: Shape, keys: tuple[Any, ...]) -> Shape:
    """Return the shape of what arrays of indices, or of truth values, pick along the first axes."""
    indices = [(0,) if np.dtype(index.dtype) == bool else index.shape for index in map(_indices, keys)]
    return (*np.broadcast_shapes(*indices), *shape[len(keys) :])


def _indices(key: Any) -> Any:
    if isinstance(key, slice) or key is None:
        raise TypeError("arrays without numbers take either slices or arrays of indices")
    return key if isinstance(key, ShapeArray) else np.asarray(key)


def _together(*shapes: Shape) -> Shape:
    first = shapes[0]
    return first if all(shape in ((), first) for shape in shapes) else np.broadcast_shapes(*shapes)


def _product(a: Shape, b: Shape) -> Shape:
    if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
        raise ValueError(f"matrices of shapes {a} and {b} don't multiply")
    return a[0], b[1]


def _kind(x: Any) -> Any:
    """Return the fact that decides the type of a result: a dtype, or the type of a number of Python."""
    return x.dtype if hasattr(x, "dtype") else type(x)


@cache
def _result(ufunc: np.ufunc, *kinds: Any) -> np.dtype:
    shape = (0, 0) if ufunc is np.matmul else (0,)
    operands = [kind(0) if isinstance(kind, type) else np.zeros(shape, kind) for kind in kinds]
    with np.errstate(all="ignore"):
        return np.dtype(ufunc(*operands).dtype)
