"""Arrow's arrays as NumPy's; its own `to_numpy` and `pa.array` import pandas, where that is installed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def numpy_of(column: pa.Array) -> np.ndarray:
    """Return the numbers of a column, which are not copied unless some are missing; these are NaN."""
    if not column.null_count:
        return np.from_dlpack(column)
    stored = [None, column.buffers()[1]]
    given = pa.Array.from_buffers(column.type, len(column), stored, offset=column.offset)
    numbers = np.array(np.from_dlpack(given), np.result_type(np.from_dlpack(given), np.float32))
    numbers[places(column.is_null())] = np.nan
    return numbers


def arrow_of(numbers: np.ndarray) -> pa.Array:
    """Return numbers in the same memory as an array of Arrow."""
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def places(mask: pa.Array) -> np.ndarray:
    """Return the places at which a mask is true, int64, in ascending order."""
    return np.from_dlpack(pc.indices_nonzero(mask)).astype(np.int64)


def as_bytes(words: pa.Array) -> np.ndarray:
    """Convert strings to UTF-8 in a dtype S."""
    width = max(pc.max(pc.binary_length(words)).as_py() or 1, 1)
    padded = pc.ascii_rpad(words.cast(pa.large_string()), width=width, padding="\0")
    return np.frombuffer(padded.buffers()[2] or b"", f"S{width}", len(words))
