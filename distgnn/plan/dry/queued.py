"""Arrays without numbers of a device: what is done with them is a kernel that the host queues.

CuPy launches one for each function of whole arrays, each assignment and each copy. Kernels that the ledger
charges are steps of their own; those that it knows nothing of are kept as steps here, with the bytes that
they read and write. A sparse product reads the 16 bits that :class:`QueuedRounded` stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from distgnn.arrays import backend
from distgnn.arrays.kernels import Kernels
from distgnn.arrays.tuning import TUNING
from distgnn.local import cuda, memory_of
from distgnn.local.cuda.gemm import FEWEST
from distgnn.local.elementwise import KERNELS as PASSES
from distgnn.local.gemm import KERNELS as DENSE_PRODUCTS
from distgnn.local.initial import KERNELS as WEIGHTS
from distgnn.local.narrow import KERNELS as ROUNDING
from distgnn.local.narrow import numbers_of
from distgnn.local.spmm import KERNELS as SPARSE_PRODUCTS
from distgnn.plan.dry import recorder
from distgnn.plan.dry.backend import SHAPES, TABLES, ShapeBackend
from distgnn.plan.dry.shapes import Functions, ShapeArray


def launched(operation: str, *operands: Any) -> None:
    """Keep a kernel that reads and writes these arrays, if there is anything to do."""
    arrays = [x for x in operands if isinstance(x, ShapeArray)]
    if touched := sum(x.nbytes for x in arrays):
        recorder.launched(operation, touched)


class QueuedArray(ShapeArray):
    """An array without numbers of a device.

    Attributes:
        ends: its dense products are ours, on the tensor cores of Hopper, and end layers where they write.
    """

    __slots__ = ()
    ends = False

    def __getitem__(self, key: Any) -> Any:
        part_of = super().__getitem__(key)
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(part, (ShapeArray, np.ndarray, list)) for part in keys):
            launched("take", part_of, part_of, *keys)
        return part_of

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        target = super().__getitem__(key)
        if not isinstance(value, ShapeArray):
            launched("fill", target)
        elif (value.address, value.shape) != (target.address, target.shape):  # else it was computed in place
            launched("copy", target, value)

    def copy(self) -> ShapeArray:
        copied = super().copy()
        launched("copy", self, copied)
        return copied

    def astype(self, dtype: Any, copy: bool = True) -> ShapeArray:
        made = super().astype(dtype, copy)
        if made is not self:
            launched("astype", self, made)
        return made

    def _reduced(self, axis: int | None, keepdims: bool, dtype: Any) -> ShapeArray:
        made = super()._reduced(axis, keepdims, dtype)
        launched("reduce", self, made)
        return made

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **how: Any) -> Any:
        made = super().__array_ufunc__(ufunc, method, *inputs, **how)
        launched(ufunc.__name__, made, *inputs)
        return made


class QueuedRounded(cuda.Rounded):
    """A matrix in 16 bits of a device, without numbers."""


class HopperArray(QueuedArray):
    """The same of a device of that architecture."""

    __slots__ = ()
    ends = True


class HopperRounded(QueuedRounded):
    """The same of a device of that architecture."""


class QueuedFunctions(Functions):
    """The functions of NumPy that this package uses, each of which queues a kernel or more."""


def _queues(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Make a function one that keeps the kernel it queues."""

    @wraps(function)
    def queued(self: Functions, *operands: Any, **how: Any) -> Any:
        made = function(self, *operands, **how)
        first, *rest = operands
        launched(name, made, *(first if isinstance(first, (tuple, list)) else [first]), *rest)
        return made

    return queued


for _name in (
    "zeros", "ones", "full", "zeros_like", "ones_like", "arange", "concatenate", "stack", "packbits",
    "unpackbits", "flatnonzero", "argwhere", "count_nonzero", "bincount", "cumsum", "where", "vdot",
):  # fmt: skip
    setattr(QueuedFunctions, _name, _queues(getattr(Functions, _name), _name))


class QueuedBackend(ShapeBackend):
    """Arrays without numbers that stand for those of a device.

    Args:
        name: of the backend; kind, rounded: types of its arrays, and of matrices in 16 bits.
    """

    queues = True

    def __init__(self, name: str, kind: type[QueuedArray], rounded: type[QueuedRounded]) -> None:
        self.name, self.kind, self.rounded = name, kind, rounded
        self.xp = QueuedFunctions(kind)
        for made in (kind, rounded):
            backend.register(made, self)
        for table in TABLES:
            table.rows[name] = [Kernels(_OF_DEVICES.get(table, {})), *table.rows[SHAPES.name]]

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.kind(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.xp.zeros(shape, dtype)

    def room(self, nbytes: int) -> Any:
        return self.kind((nbytes,), np.uint8)


# -- kernels that only devices have --------------------------------------------------------------------------


def _rounded(X: QueuedArray, kind: str, beyond: Any) -> QueuedRounded:
    (rows, columns), on = X.shape, backend.of(X)
    bits = on.empty((rows, cuda.pitch(columns)), np.uint16)
    launched("round", X, bits)
    return _room(bits, kind, (rows, columns), beyond)


def _room(bits: QueuedArray, *how: Any) -> QueuedRounded:
    on: Any = backend.of(bits)
    return on.rounded(bits, *how)


def _multiply(A: Any, B: Any, out: Any, accumulate: bool) -> None:
    """Name the product, which was charged, as one that reads 16 bits, if it does."""
    if isinstance(B, cuda.Rounded):
        recorder.annotate(recorder.ROUNDED)


def _multiply_dense(A: Any, B: Any, out: Any, accumulate: bool, form: Any, whole: bool, then: Any) -> None:
    """Do what a product of ours ends with where it writes, or leave it and the rounding to passes."""
    on = backend.of(out)
    ours = memory_of(out).ends and TUNING.long_dimension <= A.shape[0] and FEWEST <= A.shape[1] and not form
    if ours and then is not None and not (then.remember and out.shape[1] % 8):
        then.done = True
        if then.remember:
            then.bits = on.empty((out.size // 8,), np.uint8)
    if isinstance(out, cuda.Rounded) and (accumulate or not ours or not (then is None or then.done)):
        with numbers_of(out, then):
            pass


def _column_sums(block: Any) -> Any:
    sums = backend.of(block).empty((1, block.shape[1]), np.float64)
    launched("column sums", memory_of(block), sums)
    return sums


def _glorot(seed: int, layer: int, shape: Any, rows: Any, cols: Any, dtype: Any) -> Any:
    return backend.of(rows).empty((rows.size, cols.size), dtype)


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing: what it does was charged."""


_OF_DEVICES: dict[Any, Any] = {
    DENSE_PRODUCTS: {"gemm": _multiply_dense},
    WEIGHTS: {"glorot": _glorot},
    SPARSE_PRODUCTS: {"rounded": _rounded, "spmm": _multiply},
    ROUNDING: {
        "room": _room, "round_into": lambda numbers, out: launched("round", numbers, out.bits),
    },
    PASSES: {"column_sums": _column_sums, "update_all": _nothing, "sum_squares": _nothing},
}  # fmt: skip
QUEUED_SHAPES = QueuedBackend("queued shapes", QueuedArray, QueuedRounded)
HOPPER_SHAPES = QueuedBackend("shapes of Hopper", HopperArray, HopperRounded)
