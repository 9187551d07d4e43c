"""Arrays on a GPU of libraries that are not here: what a caller hands in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def filled(xp: Any, numbers: np.ndarray, stream: Any) -> Any:
    """Queue on a stream what fills an array of CuPy, of which nobody waits for the end."""
    with stream:
        array = xp.full(numbers.shape, 1, numbers.dtype)
        array[...] = xp.asarray(numbers)
    return array


class Tensor:
    """An array of another library, which orders who reads it by DLPack after its own stream."""

    def __init__(self, array: Any, stream: Any) -> None:
        self.array, self.stream, self.taken = array, stream, 0
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        self.taken += 1
        with self.stream:
            return self.array.__dlpack__(stream=stream, **options)


class Interface(Tensor):
    """An array of another library, which names its stream in the CUDA array interface; it has no DLPack."""

    __dlpack_device__ = property()  # type: ignore[assignment]
    __dlpack__ = property()  # type: ignore[assignment]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self.taken += 1
        array = self.array
        return {
            "shape": array.shape, "typestr": array.dtype.str, "strides": array.strides, "version": 3,
            "data": (int(array.data.ptr) if array.size else 0, True), "stream": self.stream.ptr or 1,
        }  # fmt: skip


class SparseTensor:
    """A sparse tensor, in compressed rows, as PyTorch has it."""

    layout = "torch.sparse_csr"

    def __init__(self, parts: Iterable[Any], shape: tuple[int, int], stream: Any) -> None:
        self.parts, self.shape = [Tensor(part, stream) for part in parts], shape
        self.dtype, self.requires_grad = "torch.float32", False

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.parts[0].__dlpack_device__()

    def values(self) -> Tensor:
        return self.parts[0]

    def col_indices(self) -> Tensor:
        return self.parts[1]

    def crow_indices(self) -> Tensor:
        return self.parts[2]


def spoil(given: Any, stream: Any) -> None:
    """Write other numbers into an array, on the stream of its library."""
    with stream:
        getattr(given, "array", given).fill(99)


def forms(xp: Any, numbers: np.ndarray, stream: Any) -> dict[str, Any]:
    """Return the same numbers as an array of each kind, under way on a stream."""
    made = filled(xp, numbers, stream)
    turned = filled(xp, np.ascontiguousarray(numbers[::-1]), stream)
    wide = filled(xp, np.repeat(numbers, 2, axis=-1), stream)
    return {
        "cupy": filled(xp, numbers, stream),
        "dlpack": Tensor(made, stream),
        "interface": Interface(filled(xp, numbers, stream), stream),
        "columns first": Tensor(filled(xp, np.ascontiguousarray(numbers.T), stream).T, stream),
        "every second": Tensor(wide[..., ::2], stream),
        "negative strides": Interface(turned[::-1], stream),
    }
