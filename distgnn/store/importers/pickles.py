"""Reading pickles of NumPy arrays, SciPy CSR matrices and plain containers without trusting them.

A pickle is a program, so the unpickler refuses all names but those on a list. Not even these are NumPy's and
SciPy's own objects, whose `__setstate__` believes any state, so that a damaged file can crash the process:
stand-ins check the state and build the arrays anew.
"""

from __future__ import annotations

import collections
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from distgnn.errors import UserError
from distgnn.store.importers.text import reading


class PickledType:
    """Stands for `numpy.dtype`: numbers of a plain kind, in either byte order."""

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
    """Stands for `numpy.ndarray`; `array` is there once the state has come."""

    array: np.ndarray | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, PickledType) or not isinstance(raw, (bytes, str)):
            raise ValueError("an array without the bytes of its numbers")
        # Python 2 wrote bytes as strings, which the latin1 encoding keeps byte for byte.
        data = raw.encode("latin1") if isinstance(raw, str) else raw
        sizes = tuple(int(size) for size in shape)
        if min(sizes, default=0) < 0:
            raise ValueError(f"an array of shape {sizes}")
        self.array = np.frombuffer(data, kind.dtype).reshape(sizes, order="F" if fortran else "C")


class PickledMatrix:
    """Stands for `scipy.sparse.csr_matrix`: its state is a dictionary that becomes its attributes."""


def _scalar(kind: Any, raw: Any) -> Any:
    holder = PickledArray()
    holder.__setstate__((1, (), kind, False, raw))
    return None if holder.array is None else holder.array.item()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """`_codecs.encode`, with which Python 3 writes bytes in old protocols."""
    if encoding != "latin1":
        raise ValueError(f"encoding {encoding!r}")
    return text.encode("latin1")


# What Python 2 and 3, NumPy 1 and 2 and SciPy before and after 1.8 called the same few things.
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): PickledType,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): lambda *_: PickledArray() for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"scipy.sparse.{csr}", "csr_matrix"): PickledMatrix for csr in ("csr", "_csr")},
    **{(module, "list"): list for module in ("__builtin__", "builtins")},
    ("collections", "defaultdict"): collections.defaultdict,
    ("_codecs", "encode"): _encode,
}


class RestrictedUnpickler(pickle.Unpickler):
    """Loads nothing but what `ALLOWED` lists."""

    def __init__(self, file: Any, path: Path):
        super().__init__(file, encoding="latin1")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            loaded = "only NumPy arrays, SciPy CSR matrices and dictionaries of lists are loaded"
            raise UserError(f"{self.path}: this pickle asks for {module}.{name}; {loaded}") from None


def load(path: Path) -> Any:
    """What the pickle holds, with stand-ins; UserError if it is damaged or asks for more."""
    with reading(path), open(path, "rb") as file:
        try:
            return RestrictedUnpickler(file, path).load()
        except (UserError, OSError):
            raise
        except Exception as error:  # a damaged pickle can raise nearly anything
            what = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{path}: not a complete pickle of numbers ({what})") from None


def load_array(path: Path, dimensions: int, expected: str) -> np.ndarray:
    """The array in a pickle; `expected` says in words what it should be."""
    holder = load(path)
    if not isinstance(holder, PickledArray) or holder.array is None or holder.array.ndim != dimensions:
        raise UserError(f"{path}: expected {expected}")
    return holder.array


def load_csr(path: Path) -> scipy.sparse.csr_matrix:
    """The CSR matrix in a pickle, every index checked; a dense matrix is converted."""
    matrix = load(path)
    try:
        if isinstance(matrix, PickledArray):
            if matrix.array is None or matrix.array.ndim != 2:
                raise ValueError("an array that is no matrix")
            return scipy.sparse.csr_matrix(matrix.array)
        state = vars(matrix) if isinstance(matrix, PickledMatrix) else {}
        data, indices, indptr = (state[name].array for name in ("data", "indices", "indptr"))
        shape = tuple(int(size) for size in state.get("_shape", state.get("shape", ())))
        if indices.dtype.kind not in "iu" or indptr.dtype.kind not in "iu":
            raise ValueError("its indices are no integers")
        native = (array.astype(array.dtype.newbyteorder("=")) for array in (data, indices, indptr))
        matrix = scipy.sparse.csr_matrix(tuple(native), shape=shape)
        matrix.check_format(full_check=True)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise UserError(f"{path}: not a feature matrix ({error})") from None
    return matrix
