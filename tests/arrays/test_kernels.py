"""Tables of kernels: the first that is usable for an array's backend and dtype is taken."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn.arrays import backend
from distgnn.arrays.kernels import Kernels, KernelTable


class Other(np.ndarray):
    """Arrays of another backend."""


def test_the_first_usable_kernel_for_backend_and_dtype_is_taken(monkeypatch):
    built = [True]
    table = KernelTable(
        numpy=[
            Kernels({"add": "compiled"}, "fd", lambda: built[0]),
            Kernels({"add": "arrays", "sort": "arrays"}),
        ]
    )
    real, whole = np.zeros(1), np.zeros(1, int)
    assert table.kernel("add", real) == "compiled" and table.kernel("add", whole) == "arrays"
    assert table.kernel("sort", real) == "arrays"
    built[0] = False
    assert table.kernel("add", real) == "arrays"


def test_a_backend_registers_its_arrays_and_its_kernels(monkeypatch):
    class Strange(backend.Backend):
        name = "strange"

    monkeypatch.setitem(backend._backends, Other, Strange())
    table = KernelTable(numpy=[Kernels({"add": "numpy"})])
    table.register("strange", {"add": "strange"})
    array = np.zeros(1).view(Other)
    assert table.kernel("add", array) == table.on(backend.of(array), "add") == "strange"
    assert backend.as_array(array) is array and backend.of(np.zeros(1)).name == "numpy"


def test_an_operation_without_a_kernel_is_refused():
    table = KernelTable(numpy=[Kernels({"add": "floats"}, "f")])
    assert table.find("add", np.zeros(1)) is None
    with pytest.raises(TypeError, match="add: no kernel takes float64 arrays of the backend numpy"):
        table.kernel("add", np.zeros(1))
