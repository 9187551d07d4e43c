"""Packages and extensions that partitioners need beside this program."""

from __future__ import annotations

import importlib
from typing import Any

from distgnn.errors import ArgumentError
from distgnn.local import host

PACKAGES = {
    "metis": "pymetis", "metis-volume": "pymetis", "kaminpar": "kaminpar", "hypergraph": "mtkahypar",
}  # fmt: skip


def need(method: str, argument: str = "partition") -> Any:
    """Return the package or extension that a method calls, if any; errors name the argument.

    Raises:
        ArgumentError: the package is not installed.
        UserError: the host kernels are not built.
    """
    if method == "volume":
        return host.built()
    if method not in PACKAGES:
        return None
    try:
        return importlib.import_module(PACKAGES[method])
    except ImportError:
        problem = f"needs {PACKAGES[method]}; install with: pip install 'distgnn[partition]'"
        raise ArgumentError(argument, method, problem) from None
