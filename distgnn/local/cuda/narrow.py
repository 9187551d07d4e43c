"""Float32 numbers rounded to 16 bits, bfloat16 or float16, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from distgnn.local.cuda.launch import Array, blocks_for, check, lanes_for, launch, library

FILE = "narrow.cu"
KINDS = {"bfloat16": "Bfloat16", "float16": "Float16"}


@dataclass(frozen=True)
class Rounded:
    """A float32 matrix (k, f) in 16 bits, as a sparse product reads it; made by :func:`rounded`.

    Attributes:
        bits: uint16 (k, pitch), columns from f on are zeros. pitch: a multiple of `vector(f)`.
        kind: a name in `KINDS`.
    """

    bits: Array
    kind: str
    shape: tuple[int, int]
    dtype: ClassVar[np.dtype] = np.dtype(np.float32)
    itemsize: ClassVar[int] = 4

    @property
    def flags(self) -> Any:
        """Return those of the bits."""
        return self.bits.flags

    @property
    def strides(self) -> tuple[int, ...]:
        """Return those of the bits."""
        return self.bits.strides


def vector(f: int) -> int:
    """Return the columns of 16 bits that one load of a product fetches: 8, or 4 of at most 4."""
    return 8 if f > 4 else 4


def rounded(X: Array, kind: str, beyond: Array) -> Rounded:
    """Round X (k, f), float32, in one pass, to rows of whole vectors; ``beyond`` as of :func:`narrow`."""
    (k, f), xp = X.shape, library(X)
    check("rounded", (k, f), np.float32, X=X)
    pitch = -(-f // vector(f)) * vector(f)
    bits = xp.empty((k, pitch), np.uint16)
    arguments = np.int64(bits.size), X, np.int32(f), np.int32(pitch), bits, beyond
    launch(xp, FILE, f"narrow_padded<{KINDS[kind]}>", blocks_for(bits.size // 4), *arguments)
    return Rounded(bits, kind, (k, f))


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
