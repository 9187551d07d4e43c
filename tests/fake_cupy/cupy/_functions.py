"""Functions and ufuncs of the module, by NumPy on the numbers of device arrays."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from cupy import _signatures
from cupy._array import NUMBERS, arrays_in, bare, moved_on, ndarray, refuse, wrapped
from cupy._core._routines_linalg import rounded
from cupy._graphs import recorded
from cupy._streams import current, launch, synchronize
from cupy._work import DEVICE

#: How often a function waits for the device, as the shape or the check of its result needs a number.
WAITS = {"argwhere": 1, "bincount": 2, "flatnonzero": 1, "nonzero": 1, "unique": 1}


def function(name: str) -> Callable[..., Any]:
    """Make CuPy's function of this name."""
    numpys, signature = getattr(np, name), _signatures.FUNCTIONS[name]

    @functools.wraps(numpys, updated=())
    @recorded
    def call(*arguments: Any, **keywords: Any) -> Any:
        _signatures.check(name, signature, arguments, keywords)
        refuse(name, (*arguments, *keywords.values()))
        if name == "repeat" and isinstance(arguments[1], ndarray):
            raise ValueError("cupy.repeat: an array of repeats is not supported")
        if name == "bincount" and not arguments[0].size:
            raise ValueError("zero-size array to reduction operation minimum which has no identity")
        out = keywords.get("out")
        given = {key: value for key, value in keywords.items() if value is not None}
        with np.errstate(all="ignore"):
            made = numpys(*bare(arguments), **bare(given))
        reads = arrays_in((*arguments, *keywords.values()))
        result = out if out is not None else wrapped(made, reads)
        results = arrays_in(result if isinstance(result, (tuple, list)) else [result])
        if not results or out is not None or any(one._base is None for one in results):  # else a view
            launch(name, reads, results)
        for _ in range(WAITS.get(name, 0)):
            synchronize(current(), name)
        return result

    return call


class ufunc:
    """An element-wise function."""

    def __init__(self, name: str) -> None:
        self.__name__, self._numpys = name, getattr(np, name)

    @recorded
    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        if wrong := keywords.keys() - {"out", "dtype", "casting"}:
            raise TypeError(f"Wrong arguments {wrong}")
        out = keywords.get("out", inputs[self._numpys.nin] if len(inputs) > self._numpys.nin else None)
        if out is not None and not isinstance(out, ndarray):
            raise TypeError(f"{self.__name__}: return arrays must be of type cupy.ndarray")
        for one in inputs:
            if not isinstance(one, (ndarray, *NUMBERS)):
                raise TypeError(f"Unsupported type {type(one)}")
        with np.errstate(all="ignore"):
            made = self._numpys(*bare(inputs), **bare(keywords))
        result = wrapped(made, []) if out is None else out
        results = arrays_in(result if isinstance(result, tuple) else [result])
        launch(self.__name__, arrays_in(inputs), results)
        return result

    @recorded
    def outer(self, a: Any, b: Any) -> Any:
        result = moved_on(self._numpys.outer(bare(a), bare(b)))
        launch(self.__name__, arrays_in([a, b]), [result])
        return result

    @recorded
    def at(self, a: ndarray, indices: Any, b: Any = None) -> None:
        if self.__name__ not in ("add", "subtract", "maximum", "minimum", "bitwise_and", "bitwise_or"):
            raise NotImplementedError(f"`{self.__name__}.at` is not supported yet")
        launch(f"{self.__name__}.at", arrays_in([indices, b]), [a])
        self._numpys.at(a._numbers, bare(indices), bare(b))


def matmul(x1: ndarray, x2: ndarray, out: ndarray | None = None, **keywords: Any) -> ndarray:
    """Multiply two matrices."""
    refuse("matmul", (x1, x2, out))
    if DEVICE.capture is not None:
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
    if keywords:
        raise TypeError(f"Wrong arguments {keywords}")
    made = np.matmul(rounded(x1._numbers), rounded(x2._numbers))
    if out is None:
        out = moved_on(made)
    elif out.shape != made.shape:
        raise ValueError(f"matmul: out has shape {out.shape}, the product {made.shape}")
    else:
        out._numbers[...] = made
    launch("matmul", [x1, x2], [out])
    return out


def operators(ufuncs: dict[str, Any]) -> None:
    """Give arrays Python's operators."""
    for name, ufunc_name in _BINARY.items():
        setattr(ndarray, f"__{name}__", _operator(ufuncs[ufunc_name]))
        setattr(ndarray, f"__r{name}__", _operator(ufuncs[ufunc_name], swapped=True))
        setattr(ndarray, f"__i{name}__", _operator(ufuncs[ufunc_name], in_place=True))
    for name, ufunc_name in _COMPARISONS.items():
        setattr(ndarray, f"__{name}__", _operator(ufuncs[ufunc_name]))
    for name, ufunc_name in _UNARY.items():
        setattr(ndarray, f"__{name}__", functools.partialmethod(_call, ufuncs[ufunc_name]))


def _call(self: ndarray, ufunc: Any) -> Any:
    return ufunc(self)


def _operator(ufunc: Any, swapped: bool = False, in_place: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: ndarray, other: Any) -> Any:
        refuse(ufunc.__name__, [other])
        if not isinstance(other, (ndarray, *NUMBERS)):
            return NotImplemented
        if in_place:
            return ufunc(self, other, out=self)
        return ufunc(other, self) if swapped else ufunc(self, other)

    return method


_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "power", "lshift": "left_shift",
    "rshift": "right_shift", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "matmul": "matmul",
}  # fmt: skip
_COMPARISONS = {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
    "ne": "not_equal",
}  # fmt: skip
_UNARY = {"neg": "negative", "invert": "invert", "abs": "absolute", "pos": "positive"}

UFUNCS: dict[str, Any] = {
    name: ufunc(name) for name in sorted(_signatures.UFUNCS) if isinstance(getattr(np, name, None), np.ufunc)
}
FUNCTIONS = {
    name: function(name)
    for name in _signatures.FUNCTIONS
    if callable(getattr(np, name, None)) and name not in UFUNCS
}
operators({**UFUNCS, "matmul": matmul, "true_divide": UFUNCS.get("true_divide", operator.truediv)})
