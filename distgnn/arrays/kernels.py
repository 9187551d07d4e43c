"""Tables of kernels: the functions that compute an operation, by the backend that holds its arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from distgnn.arrays import backend
from distgnn.arrays.backend import Backend

Kernel = Callable[..., Any]
Functions = Mapping[str, Kernel]  # by the names of operations


def always() -> bool:
    """Return True: the kernels need nothing that a machine may lack."""
    return True


class Kernels(NamedTuple):
    """Kernels of one kind.

    Attributes:
        functions: by the names of operations.
        types: characters of the dtypes that they take; None: all.
        usable: says whether this machine has them.
    """

    functions: Functions
    types: str | None = None
    usable: Callable[[], bool] = always


class KernelTable:
    """The kernels of a family of operations.

    Args:
        rows: by the name of a backend its kernels, best first: an operation takes the first that are usable
            for the dtype of its array.
    """

    def __init__(self, **rows: list[Kernels]) -> None:
        self.rows = rows

    def register(self, name: str, functions: Functions) -> None:
        """Add a backend of this name, whose kernels take all dtypes."""
        self.rows[name] = [Kernels(functions)]

    def on(self, where: Backend, operation: str) -> Kernel:
        """Return the kernel of a backend for an operation that takes all dtypes."""
        return next(k.functions[operation] for k in self.rows[where.name] if operation in k.functions)

    def find(self, operation: str, array: Any) -> Kernel | None:
        """Return the kernel for an array, which decides by its backend and dtype; None: there is none."""
        char = array.dtype.char
        for functions, types, usable in self.rows[backend.of(array).name]:
            if operation in functions and (types is None or char in types) and usable():
                return functions[operation]
        return None

    def kernel(self, operation: str, array: Any) -> Kernel:
        """Return the kernel for an array; TypeError where there is none."""
        function = self.find(operation, array)
        if function is None:
            name = backend.of(array).name
            raise TypeError(f"{operation}: no kernel takes {array.dtype} arrays of the backend {name}")
        return function
