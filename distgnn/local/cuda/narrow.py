"""Float32 numbers rounded to 16 bits, bfloat16 or float16, and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from distgnn.local.cuda.launch import Array, blocks_for, c_type, check, lanes_for, launch, library

FILE = "narrow.cu"
KINDS = {"bfloat16": "Bfloat16", "float16": "Float16"}


@dataclass(frozen=True)
class Rounded:
    """A float32 matrix (k, f) in 16 bits, as a sparse product reads it.

    :func:`rounded` makes it of one in float32. A product writes it, too.

    Attributes:
        bits: uint16 (k, pitch), columns from f on are zeros. pitch: that of :func:`pitch`.
        kind: a name in `KINDS`; beyond: as of :func:`narrow`, where it is still to be written.
        turned: the matrix is that of the bits, transposed; shape: its own.
    """

    bits: Array
    kind: str
    shape: tuple[int, int]
    beyond: Array = None
    turned: bool = False
    dtype: ClassVar[np.dtype] = np.dtype(np.float32)
    itemsize: ClassVar[int] = 4

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """Return the count of numbers."""
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        """Return the bytes that hold them."""
        return int(self.bits.nbytes)

    @property
    def T(self) -> Rounded:
        """Return the transposed matrix, in the same memory."""
        return replace(self, shape=self.shape[::-1], turned=not self.turned)

    @property
    def flags(self) -> Any:
        """Return how the numbers lie, as those of an array."""
        return SimpleNamespace(c_contiguous=not self.turned, f_contiguous=self.turned)

    @property
    def strides(self) -> tuple[int, ...]:
        """Return those of the bits."""
        return self.bits.strides


def vector(f: int) -> int:
    """Return the columns of 16 bits that one load of a product fetches: 8, or 4 of at most 4."""
    return 8 if f > 4 else 4


def stored(X: Array | Rounded) -> tuple[str, Array, np.int32]:
    """Return the C++ type of the numbers of X, the array that has them, and how many a row of that has."""
    number, array = (KINDS[X.kind], X.bits) if isinstance(X, Rounded) else (c_type(X), X)
    return number, array, np.int32(array.shape[1])


def pitch(f: int) -> int:
    """Return the numbers of a row of f columns of :class:`Rounded`: whole vectors."""
    return -(-f // vector(f)) * vector(f)


def rounded(X: Array, kind: str, beyond: Array) -> Rounded:
    """Round X (k, f), float32, in one pass, to rows of whole vectors; ``beyond`` as of :func:`narrow`."""
    k, f = X.shape
    made = Rounded(library(X).empty((k, pitch(f)), np.uint16), kind, (k, f), beyond)
    round_into(X, made)
    return made


def round_into(X: Array, out: Rounded) -> None:
    """Round X, float32, into ``out``, of the same shape."""
    check("rounded", out.shape, np.float32, X=X)
    sizes = np.int64(out.bits.size), X, *map(np.int32, (out.shape[1], out.bits.shape[1]))
    name = f"narrow_padded<{KINDS[out.kind]}>"
    launch(library(X), FILE, name, blocks_for(out.bits.size // 4), *sizes, out.bits, out.beyond)


def narrow(X: Array, out: Array, kind: str, beyond: Array) -> None:
    """Compute ``out = X``, rounded; X float32, out uint16 of the same shape; ``beyond`` int32 (1)."""
    check("narrow", X.shape, np.float32, X=X)
    check("narrow", X.shape, np.uint16, out=out)
    check("narrow", (1,), np.int32, beyond=beyond)
    launch(library(X), FILE, f"narrow<{KINDS[kind]}>", blocks_for(X.size), np.int64(X.size), X, out, beyond)


def narrow_rows(X: Array, rows: Array, out: Array, kind: str, beyond: Array) -> None:
    """Compute ``out[i] = X[rows[i]]``, rounded; X (m, f) float32, rows int64 (k), out (k, f) uint16."""
    f = X.shape[1]
    check("narrow_rows", X.shape, np.float32, X=X)
    check("narrow_rows", rows.shape, np.int64, rows=rows)
    check("narrow_rows", (rows.size, f), np.uint16, out=out)
    if out.size:
        lanes = lanes_for(f)
        sizes = np.int64(rows.size), rows, X, np.int32(f), out, beyond
        name = f"narrow_rows<{KINDS[kind]},{lanes}>"
        launch(library(X), FILE, name, blocks_for(rows.size * lanes), *sizes)


def widen(X: Array, out: Array, kind: str, accumulate: bool) -> None:
    """Compute ``out = X``, or ``out += X``; X uint16, out float32 of the same shape."""
    check("widen", X.shape, np.uint16, X=X)
    check("widen", X.shape, np.float32, out=out)
    arguments = np.int64(X.size), X, np.int32(accumulate), out
    launch(library(X), FILE, f"widen<{KINDS[kind]}>", blocks_for(X.size), *arguments)
