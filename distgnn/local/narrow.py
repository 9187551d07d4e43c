"""Float32 numbers rounded to the 16 bits in which they travel between ranks, and back.

Both types round to nearest, ties to even; infinities and NaN stay what they are. float16 has steps of 2^-24
below 2^-14. Finite numbers that would round to infinity become NaN, which no ReLU takes for 0: in float16
from 65520 on, in bfloat16 the last 2^15 numbers of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays import backend
from distgnn.arrays.kernels import Functions, Kernels, KernelTable
from distgnn.local import cuda, host
from distgnn.local.elementwise import apply
from distgnn.local.epilogue import Ending

Array = Any

#: The types of 16 bits, by name. Arrays of either hold their bits, in uint16, as MPI and NumPy lack bfloat16.
KINDS = ("bfloat16", "float16")
BITS = np.dtype(np.uint16)


#: The largest number that each type holds.
LARGEST = {"bfloat16": 2.0**128 - 2.0**120, "float16": 65504.0}
_INFINITE, _BEYOND = 0x7F800000, {"bfloat16": 0x7F7F8000, "float16": 0x477FF000}


def narrow(X: Array, out: Array, kind: str, beyond: Array) -> Array:
    """Compute ``out = X``, rounded, and return ``out``.

    X float32, C-contiguous; out uint16 of the same shape, on the same device. beyond: int32 (1), there too,
    is raised to the bits of the size of the largest finite number that became NaN.
    """
    KERNELS.kernel("narrow", X)(X, out, kind, beyond)
    return out


def narrow_rows(X: Array, rows: Array, out: Array, kind: str, beyond: Array) -> Array:
    """Compute ``out[i] = X[rows[i]]``, rounded, as :func:`gather_rows` does without rounding.

    beyond: as of :func:`narrow`.
    """
    ledger.charge("spmm", "gather rows", touched=rows.nbytes + 3 * out.nbytes)
    with ledger.timed("spmm", "gather rows", on=backend.of(X)):
        KERNELS.kernel("narrow_rows", X)(X, rows, out, kind, beyond)
    return out


def widen(X: Array, out: Array, kind: str, accumulate: bool = False) -> Array:
    """Compute ``out = X``, or ``out += X`` with ``accumulate``: :func:`narrow` reversed. Return ``out``."""
    KERNELS.kernel("widen", X)(X, out, kind, accumulate)
    return out


def rounded_room(
    shape: tuple[int, int], kind: str, beyond: Array, borrow: Callable[..., Array]
) -> cuda.Rounded:  # fmt: skip
    """Make room for a matrix that nothing but :func:`spmm` reads, in 16 bits that a product writes.

    beyond: as of :func:`narrow`. borrow: makes an array of a shape and a dtype.
    """
    bits = borrow((shape[0], cuda.pitch(shape[1])), BITS)
    return KERNELS.kernel("room", bits)(bits, kind, shape, beyond)


def memory_of(block: Any) -> Array:
    """Return the array that has the numbers of a block: the block, or its bits."""
    return block.bits if isinstance(block, cuda.Rounded) else block


def widened(X: Any) -> Array:
    """Return the numbers of a block in float32: a copy of those that have 16 bits, any other as it is."""
    if not isinstance(X, cuda.Rounded):
        return X
    if X.turned:
        return widened(X.T).T
    on = backend.of(X.bits)
    wide = widen(X.bits, on.empty(X.bits.shape, X.dtype), X.kind)
    return on.xp.ascontiguousarray(wide[:, : X.shape[1]])


@contextmanager
def numbers_of(out: cuda.Rounded, then: Ending | None) -> Iterator[Array]:
    """Give room for the numbers of a product in float32; at the end, do ``then`` and round them."""
    numbers = backend.of(out.bits).empty(out.shape, out.dtype)
    yield numbers
    if then is not None:
        apply(then, numbers)
    KERNELS.kernel("round_into", numbers)(numbers, out)


def _narrow_compiled(X: Array, out: Array, kind: str, beyond: Array) -> None:
    _narrow_rows_compiled(X.reshape(1, -1), None, out.reshape(1, -1), kind, beyond)


def _narrow_rows_compiled(X: Array, rows: Array, out: Array, kind: str, beyond: Array) -> None:
    if most := host.built().narrow(X, rows, out, kind, isa=host.isa()):
        beyond[0] = max(int(beyond[0]), most)


def _widen_compiled(X: Array, out: Array, kind: str, accumulate: bool) -> None:
    flat = X.reshape(-1), out.reshape(-1)
    host.built().widen(*flat, kind, accumulate=accumulate, isa=host.isa())


def _narrow_numpy(X: Array, out: Array, kind: str, beyond: Array) -> None:
    bits = X.view(np.uint32)
    size = bits & np.uint32(0x7FFFFFFF)
    lost = (size >= _BEYOND[kind]) & (size < _INFINITE)
    beyond[0] = max(int(beyond[0]), int(size.max(where=lost, initial=0)))
    if kind == "float16":
        with np.errstate(over="ignore"):
            out.view(np.float16)[...] = np.where(lost, np.float32(np.nan), X)
        return
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    out[...] = np.where(lost | np.isnan(X), bits | np.uint32(0x7FC00000), rounded) >> np.uint32(16)


def _narrow_rows_numpy(X: Array, rows: Array, out: Array, kind: str, beyond: Array) -> None:
    _narrow_numpy(X[rows], out, kind, beyond)


def _widen_numpy(X: Array, out: Array, kind: str, accumulate: bool) -> None:
    if kind == "float16":
        wide = X.view(np.float16).astype(np.float32)
    else:
        wide = (X.astype(np.uint32) << np.uint32(16)).view(np.float32)
    out[...] = out + wide if accumulate else wide


_COMPILED: Functions = {
    "narrow": _narrow_compiled, "narrow_rows": _narrow_rows_compiled, "widen": _widen_compiled,
}  # fmt: skip
_NUMPY: Functions = {"narrow": _narrow_numpy, "narrow_rows": _narrow_rows_numpy, "widen": _widen_numpy}
_CUDA: Functions = {
    "narrow": cuda.narrow, "narrow_rows": cuda.narrow_rows, "widen": cuda.widen, "room": cuda.Rounded,
    "round_into": cuda.round_into,
}  # fmt: skip

KERNELS = KernelTable(numpy=[Kernels(_COMPILED, usable=host.usable), Kernels(_NUMPY)], cupy=[Kernels(_CUDA)])
