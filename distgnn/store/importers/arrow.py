"""Arrays of Arrow: their kinds, conversion, and exchange with NumPy.

`Array.to_numpy` and `pyarrow.array` import pandas where that is installed: 35 MiB.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.names import fractions

TYPES = {"integers": pa.int64(), "numbers": pa.float64(), "words": pa.string()}


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


def kind_of(type: pa.DataType) -> str:
    """Return the kind of the columns of an Arrow type."""
    t = pa.types
    type = type.value_type if t.is_dictionary(type) else type
    if t.is_null(type):
        return "empty"
    if t.is_integer(type):
        return "integers"
    if t.is_string(type) or t.is_large_string(type) or t.is_string_view(type):
        return "words"
    if t.is_floating(type) or t.is_boolean(type) or t.is_decimal(type):
        return "numbers"
    if t.is_list(type) or t.is_large_list(type) or t.is_fixed_size_list(type):
        return {"integers": "vectors", "numbers": "vectors", "words": "lists"}.get(
            kind_of(type.value_type), "other"
        )
    return "other"


def converted(column: pa.Array, kind: str, width: int, given: str) -> pa.Array:
    """Convert a column of a batch to a kind; ValueError or ArrowException for a value that has none."""
    if kind == "words":
        return _as_words(column, given)
    if given == "vectors":
        return _as_vectors(column, width)
    if pa.types.is_dictionary(column.type):
        column.validate(full=True)
        column = column.dictionary_decode()
    if pa.types.is_boolean(column.type):
        if kind == "integers":
            raise ValueError(str(column[0]))
        column = column.cast(pa.int8())
    if kind == "integers" and pa.types.is_floating(column.type):
        return whole_numbers(column)
    return column.cast(TYPES[kind])


def whole_numbers(column: pa.Array) -> pa.Array:
    """Convert whole numbers in floating point to int64; ValueError for others, or what may be rounded."""
    values = numpy_of(column)
    if (wrong := fractions(values)).any():
        value = values[np.argmax(wrong)]
        raise ValueError("nothing" if np.isnan(value) else f"{str(value)!r}")
    return arrow_of(values.astype(np.int64))


def _as_words(column: pa.Array, given: str) -> pa.DictionaryArray:
    """Convert to words: 3.0 becomes 3, several words are put between semicolons."""
    if not pa.types.is_dictionary(column.type):
        if given == "vectors":
            column = column.cast(pa.list_(pa.int64()))
        if given in ("lists", "vectors"):
            column = pc.binary_join(column.cast(pa.list_(pa.string())), ";")
        elif pa.types.is_boolean(column.type):
            column = pc.utf8_capitalize(column.cast(pa.string()))
        elif pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), pa.nulls(len(column), column.type), column)
            try:
                column = column.cast(pa.int64())
            except pa.ArrowInvalid:  # fractions
                pass
        column = column.cast(pa.string()).dictionary_encode()
    column.validate(full=True)  # its indices; a negative one would be another word
    words = column.dictionary.cast(pa.string())
    if (longest := pc.max(pc.binary_length(words)).as_py() or 0) > LIMITS.word_length:
        raise ValueError(f"a word of {longest} characters; expected at most {LIMITS.word_length}")
    if column.null_count:
        last = arrow_of(np.full(len(column), len(words), np.int32))
        indices = pc.if_else(column.is_valid(), column.indices.cast(pa.int32()), last)
        nothing = pa.StringArray.from_buffers(1, pa.py_buffer(np.zeros(2, np.int32)), pa.py_buffer(b""))
        return pa.DictionaryArray.from_arrays(indices, pa.concat_arrays([words, nothing]))
    return pa.DictionaryArray.from_arrays(column.indices.cast(pa.int32()), words)


def _as_vectors(column: pa.Array, width: int) -> pa.FixedSizeListArray:
    lengths = numpy_of(pc.list_value_length(column).fill_null(0))
    if (lengths != width).any():
        raise ValueError(f"{lengths[lengths != width][0]} numbers, {width} in row 1")
    return pa.FixedSizeListArray.from_arrays(column.flatten().cast(pa.float64()), max(width, 1))
