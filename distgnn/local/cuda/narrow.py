"""Float32 numbers rounded to 16 bits, bfloat16 or float16, and back."""

from __future__ import annotations

import numpy as np

from distgnn.local.cuda.launch import Array, blocks_for, check, lanes_for, launch, library

FILE = "narrow.cu"
KINDS = {"bfloat16": "Bfloat16", "float16": "Float16"}


def narrow(X: Array, out: Array, kind: str) -> None:
    """Compute ``out = X``, rounded; X float32, out uint16 of the same shape."""
    check("narrow", X.shape, np.float32, X=X)
    check("narrow", X.shape, np.uint16, out=out)
    launch(library(X), FILE, f"narrow<{KINDS[kind]}>", blocks_for(X.size), np.int64(X.size), X, out)


def narrow_rows(X: Array, rows: Array, out: Array, kind: str) -> None:
    """Compute ``out[i] = X[rows[i]]``, rounded; X (m, f) float32, rows int64 (k), out (k, f) uint16."""
    f = X.shape[1]
    check("narrow_rows", X.shape, np.float32, X=X)
    check("narrow_rows", rows.shape, np.int64, rows=rows)
    check("narrow_rows", (rows.size, f), np.uint16, out=out)
    if out.size:
        lanes = lanes_for(f)
        sizes = np.int64(rows.size), rows, X, np.int32(f), out
        name = f"narrow_rows<{KINDS[kind]},{lanes}>"
        launch(library(X), FILE, name, blocks_for(rows.size * lanes), *sizes)


def widen(X: Array, out: Array, kind: str, accumulate: bool) -> None:
    """Compute ``out = X``, or ``out += X``; X uint16, out float32 of the same shape."""
    check("widen", X.shape, np.uint16, X=X)
    check("widen", X.shape, np.float32, out=out)
    arguments = np.int64(X.size), X, np.int32(accumulate), out
    launch(library(X), FILE, f"widen<{KINDS[kind]}>", blocks_for(X.size), *arguments)
