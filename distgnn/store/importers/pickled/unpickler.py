"""Pickles of NumPy arrays, SciPy CSR matrices and plain containers, read without trusting them.

A pickle is a program, so the unpickler refuses all names that are not on a list. The list has stand-ins for
NumPy's and SciPy's own objects: their `__setstate__` accepts any state, so that a damaged file can crash the
process. Stand-ins check the state and build the arrays anew.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.arrays import indices
from distgnn.store.importers.files import open_plain, reading
from distgnn.store.importers.tables import SparseRows

MOST_SIDES = 32  # dimensions of an array, as in NumPy 1
KEYS = (str, int, float, bytes, type(None))
_LOADS: dict[int, Any] = dict(pickle._Unpickler.dispatch)


class PickledType:
    """A stand-in for `numpy.dtype`: numbers of a plain kind, in either byte order."""

    def __init__(self, code: str, align: Any = False, copy: Any = False):
        if not isinstance(code, str) or not re.fullmatch(r"b1|[iu][1248]|f[248]", code):
            raise ValueError(f"values of type {code!r}, expected numbers")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order, parts = state[1], state[2:5]
        if order not in ("<", ">", "|", "=") or parts != (None, None, None):
            raise ValueError("values that are not plain numbers")
        self.dtype = self.dtype.newbyteorder(order)


class PickledArray:
    """A stand-in for `numpy.ndarray`; `array` is empty until the state has come."""

    raw: bytes | str = b""
    shape: tuple[int, ...] = (0,)
    dtype, fortran = np.dtype(np.uint8), False

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, self.fortran, raw = state
        if not isinstance(kind, PickledType) or not isinstance(raw, (bytes, str)):
            raise ValueError("an array without the bytes of its numbers")
        shape, dtype = tuple(map(_whole, shape)), kind.dtype
        if len(shape) > MOST_SIDES or max(shape, default=0) >> 40:
            raise ValueError("an array of an impossible shape")
        if len(raw) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{len(raw)} bytes for an array of shape {shape}")
        self.raw, self.shape, self.dtype = raw, shape, dtype

    @property
    def array(self) -> np.ndarray:
        """The numbers in the machine's byte order.

        Python 2 wrote bytes as strings, in latin1. They are encoded here, so that a pickle cannot ask for
        many copies of them.
        """
        data = self.raw.encode("latin1") if isinstance(self.raw, str) else self.raw
        array = np.ndarray(self.shape, self.dtype, data, order="F" if self.fortran else "C")
        return array.astype(self.dtype.newbyteorder("="), copy=False)


class PickledMatrix:
    """A stand-in for `scipy.sparse.csr_matrix`: its state is a dictionary that becomes its attributes."""


def _whole(size: Any) -> int:
    if type(size) is not int or size < 0:
        raise ValueError(f"a size of {size!r}")
    return size


def _scalar(kind: Any, raw: Any) -> Any:
    holder = PickledArray()
    holder.__setstate__((1, (), kind, False, raw))
    return holder.array.item()


# Names of the same few things in Python 2 and 3, NumPy 1 and 2, and SciPy before and after 1.8.
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): PickledType,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): lambda *_: PickledArray() for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"scipy.sparse.{csr}", "csr_matrix"): PickledMatrix for csr in ("csr", "_csr")},
    **{(module, "list"): None for module in ("__builtin__", "builtins")},  # the argument of a defaultdict
    ("collections", "defaultdict"): lambda *_: {},
    ("_codecs", "encode"): None,  # the unpickler's own
}


def _with_keys(load: Callable[[Any], None], step: int) -> Callable[[Any], None]:
    """Wrap a step of the unpickler in a check of the keys: every `step`-th of its arguments."""

    def checked(unpickler: Any) -> None:
        _check_keys(unpickler.stack[::step])
        load(unpickler)

    return checked


def _check_keys(keys: list[Any]) -> None:
    """Raise ValueError for tuples and the like: to hash deeply nested ones overflows the stack."""
    if not all(isinstance(key, KEYS) for key in keys):
        raise ValueError("a key that is neither a word nor a number")


class RestrictedUnpickler(pickle._Unpickler):
    """An unpickler of the names in `allowed`.

    Only objects of the types `stateful` may get a state, which would replace the checked one. The unpickler
    is in Python: the one in C allocates as much as a file declares.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(_LOADS)
    stack: list[Any]  # the base class's, of which type checkers do not know
    stateful: tuple[type, ...] = (PickledType, PickledArray, PickledMatrix)

    def __init__(self, data: bytes, path: Path):
        super().__init__(io.BytesIO(data), encoding="latin1")
        self.path, self.left = path, len(data)

    allowed = ALLOWED
    loads = "only NumPy arrays, SciPy CSR matrices and dictionaries of lists are loaded"

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for one of the few classes that data need; UserError for any other."""
        if (module, name) not in self.allowed:
            raise UserError(f"{self.path}: this pickle asks for {module}.{name}; {self.loads}")
        return self.encode if name == "encode" else self.allowed[module, name]

    def encode(self, text: str, encoding: str = "latin1") -> bytes:
        """Encode bytes in latin1, as `_codecs.encode` does for old protocols, within the file's size."""
        self.left -= len(text)
        if encoding != "latin1" or self.left < 0:
            raise ValueError(f"encoding {encoding!r}" if self.left >= 0 else "more bytes than the file")
        return text.encode("latin1")

    def _build(self) -> None:
        if not isinstance(self.stack[-2], self.stateful):
            raise ValueError("a state of what has none")
        _LOADS[pickle.BUILD[0]](self)

    def _bytearray(self) -> None:
        raise ValueError("a bytearray, whose declared length would be allocated")

    def _item(self) -> None:
        _check_keys(self.stack[-2:-1])
        _LOADS[pickle.SETITEM[0]](self)

    dispatch[pickle.BUILD[0]], dispatch[pickle.SETITEM[0]] = _build, _item
    dispatch[pickle.BYTEARRAY8[0]] = _bytearray
    for _code, _step in (pickle.DICT, 2), (pickle.SETITEMS, 2), (pickle.FROZENSET, 1), (pickle.ADDITEMS, 1):
        dispatch[_code[0]] = _with_keys(_LOADS[_code[0]], _step)


def load(path: Path) -> Any:
    """Load a pickle, with stand-ins; UserError if it is damaged or asks for more."""
    with reading(path), open_plain(path) as file:
        data = file.read()
    return loaded(RestrictedUnpickler(data, path), path)


def loaded(unpickler: RestrictedUnpickler, path: Path) -> Any:
    """Run an unpickler; UserError as `load`."""
    try:
        return unpickler.load()
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: not a complete pickle of numbers ({what})") from None


def load_array(path: Path, dimensions: int, expected: str) -> np.ndarray:
    """Load the array in a pickle; `expected` describes it in errors."""
    return _array(load(path), path, dimensions, expected)


def _array(holder: Any, path: Path, dimensions: int, expected: str) -> np.ndarray:
    if not isinstance(holder, PickledArray) or len(holder.shape) != dimensions or not all(holder.shape[1:]):
        raise UserError(f"{path}: expected {expected}")
    with _meant(path, expected):
        return holder.array


def load_csr(path: Path) -> SparseRows:
    """Load the CSR matrix in a pickle, every index checked; a dense matrix is converted."""
    pickled, expected = load(path), "a feature matrix"
    if isinstance(pickled, PickledArray):
        array = _array(pickled, path, 2, expected)
        rows, columns = array.nonzero()
        return SparseRows.of_entries(rows, columns, array[rows, columns], array.shape, path)
    with _meant(path, expected):
        state = vars(pickled) if isinstance(pickled, PickledMatrix) else {}
        data, columns, indptr = (state[name].array for name in ("data", "indices", "indptr"))
        height, width = map(_whole, state["_shape"] if "_shape" in state else state["shape"])
    if data.ndim != 1 or columns.ndim != 1:
        raise UserError(f"{path}: arrays of shapes {data.shape} and {columns.shape}; expected {expected}")
    indices(columns, width, path, "column")
    return SparseRows.compressed(indptr, columns, data, (height, width), path)


@contextmanager
def _meant(path: Path, expected: str) -> Iterator[None]:
    """Raise UserError for parts that are missing or odd."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not {expected} ({type(error).__name__} {error})") from None
