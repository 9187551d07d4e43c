"""The module ``cupy.cublas``: a product that is added to a matrix."""

from __future__ import annotations

from cupy._array import ndarray, refuse
from cupy._streams import launch
from cupy._work import DEVICE


def gemm(
    transa: str, transb: str, a: ndarray, b: ndarray, out: ndarray, alpha: float = 1.0, beta: float = 0.0
) -> ndarray:  # fmt: skip
    """Compute out = a b + beta out, of matrices that lie by rows or by columns, in float32 with TF32, too."""
    refuse("gemm", (a, b, out))
    if DEVICE.capture is not None:
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
    if (transa, transb, alpha) != ("N", "N", 1.0) or min(*a.shape, *b.shape) == 0:
        raise NotImplementedError("the stand-in multiplies what is not empty, as it lies, with alpha 1")
    assert a.dtype == b.dtype == out.dtype and out.shape == (a.shape[0], b.shape[1])
    launch("gemm", [a, b, out], [out])
    product = a._numbers @ b._numbers
    out._numbers[...] = product + out._numbers * beta if beta else product
    return out
