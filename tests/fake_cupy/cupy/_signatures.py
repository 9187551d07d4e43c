"""Names and signatures of CuPy 14.2, as the package itself states them (``signatures.json``)."""

from __future__ import annotations

import functools
import inspect
import json
from pathlib import Path
from typing import Any

_KNOWN = json.loads((Path(__file__).parent / "signatures.json").read_text())

#: Functions of the module with their signatures as text, None where it has none.
FUNCTIONS: dict[str, str | None] = _KNOWN["module"]
UFUNCS = frozenset(_KNOWN["ufuncs"])
#: Attributes and methods of ``cupy.ndarray``.
ATTRIBUTES = frozenset(_KNOWN["ndarray"])

#: Methods written in Cython state no signature; these are the ones of the documentation.
METHODS = {
    "all": "(axis=None, out=None, keepdims=False)",
    "any": "(axis=None, out=None, keepdims=False)",
    "argmax": "(axis=None, out=None, dtype=None, keepdims=False)",
    "argmin": "(axis=None, out=None, dtype=None, keepdims=False)",
    "argsort": "(axis=-1, kind=None)",
    "astype": "(dtype, order='K', casting=None, subok=None, copy=True)",
    "clip": "(min=None, max=None, out=None)",
    "copy": "(order='C')",
    "cumsum": "(axis=None, dtype=None, out=None)",
    "diagonal": "(offset=0, axis1=0, axis2=1)",
    "dot": "(b, out=None)",
    "flatten": "(order='C')",
    "max": "(axis=None, out=None, keepdims=False)",
    "mean": "(axis=None, dtype=None, out=None, keepdims=False)",
    "min": "(axis=None, out=None, keepdims=False)",
    "nonzero": "()",
    "prod": "(axis=None, dtype=None, out=None, keepdims=None)",
    "ravel": "(order='C')",
    "repeat": "(repeats, axis=None)",
    "reshape": "(*shape, order='C')",
    "round": "(decimals=0, out=None)",
    "sort": "(axis=-1, kind=None)",
    "squeeze": "(axis=None)",
    "std": "(axis=None, dtype=None, out=None, ddof=0, keepdims=False)",
    "sum": "(axis=None, dtype=None, out=None, keepdims=False)",
    "swapaxes": "(axis1, axis2)",
    "take": "(indices, axis=None, out=None)",
    "transpose": "(*axes)",
    "var": "(axis=None, dtype=None, out=None, ddof=0, keepdims=False)",
    "view": "(dtype=None, type=None)",
}


@functools.cache
def parsed(text: str) -> inspect.Signature:
    """Parse a signature from its text."""
    scope: dict[str, Any] = {}
    exec(f"def function{text}: pass", scope)  # the text is ours
    return inspect.signature(scope["function"])


def check(name: str, text: str | None, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Raise TypeError for arguments that CuPy's function of this name would not take."""
    if text is not None:
        _bound(name, text, len(arguments), tuple(keywords))


@functools.cache
def _bound(name: str, text: str, arguments: int, keywords: tuple[str, ...]) -> None:
    try:
        parsed(text).bind(*[None] * arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        raise TypeError(f"cupy's {name}{text}: {error}") from None
