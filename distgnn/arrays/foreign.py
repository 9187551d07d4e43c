"""A caller's own arrays on a GPU, of any library, taken in without a copy: the one place that knows how.

CuPy's arrays are taken as they are, others by DLPack (``__dlpack__``, which PyTorch and JAX have), or else by
the CUDA array interface (``__cuda_array_interface__``, which Numba has). The caller's streams and ours:

- Reading comes after writing. Who gives an array by DLPack orders our stream after its own; CuPy waits for
  the stream that the CUDA array interface names. Besides, we read after what was queued on CuPy's current
  stream, and on the null stream with all that take turns with it.
- Writing, and freeing, comes after reading. For an array of CuPy these streams go on after we have read it;
  of other libraries we do not know the stream, and wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays import backend as backends
from distgnn.arrays import streams
from distgnn.arrays.backend import Backend
from distgnn.errors import ArgumentError

#: Memory of a GPU, in DLPack's numbers: its own, and managed memory.
GPUS = (2, 13)
#: What the libraries raise for an array that they do not give, or do not take.
REFUSALS = (AttributeError, BufferError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)


def gpu_of(given: Any) -> int | None:
    """Return the number of the GPU that an array or a sparse matrix is on; None for a host, or no array."""
    if isinstance(given, (np.ndarray, np.generic)) or sp.issparse(given):
        return None
    try:
        if hasattr(given, "tocsr"):  # of CuPy
            return gpu_of(given.data)
        if hasattr(given, "__dlpack_device__"):
            kind, number = given.__dlpack_device__()
            return int(number) if int(kind) in GPUS else None
        return _gpu_at(given) if hasattr(given, "__cuda_array_interface__") else None
    except REFUSALS:  # freed, or of a kind that is no array
        return None


def sparse_on_gpu(given: Any) -> bool:
    """Tell whether this is a sparse matrix of CuPy, or a sparse tensor of PyTorch on a GPU."""
    return (bool(_layout(given)) or hasattr(given, "tocsr")) and gpu_of(given) is not None


def csr_parts(given: Any) -> tuple[Any, Any, Any]:
    """Return values, columns and row pointers of a sparse matrix on a GPU, as arrays of its library."""
    if layout := _layout(given):
        csr = plain(given) if layout == "sparse_csr" else plain(given).to_sparse_csr()
        return csr.values(), csr.col_indices(), csr.crow_indices()
    csr = given.tocsr()
    return csr.data, csr.indices, csr.indptr


def _layout(given: Any) -> str:
    """Return the layout of a sparse tensor of PyTorch, else an empty text."""
    layout = str(getattr(given, "layout", "")).removeprefix("torch.")
    return layout if layout in ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc") else ""


@contextmanager
def borrowed(argument: str, given: Any, on: Backend) -> Iterator[Any]:
    """Give a caller's array on a GPU as one of ``on``, of the same memory, to be read inside.

    What is no array on a GPU is given as it is. A process without a device is bound to that of the array.
    Once the context is left, the caller may write to the array or free it. The current stream is ours inside.

    Args:
        argument: the name of the array in errors.

    Raises:
        ArgumentError: ``on`` computes elsewhere, or no such array can be taken.
    """
    if (gpu := gpu_of(given)) is None:
        yield given
        return
    check_place(argument, given, on)
    if on.bound is None:
        on.bind(gpu)
    with streams.at_home(on):
        array = taken(argument, given, on)
        try:
            yield array
        finally:
            if array is given:
                streams.lead_null(on)
            else:
                on.synchronize()


def taken(argument: str, given: Any, on: Backend) -> Any:
    """Return a caller's array on a GPU as one of ``on``, of the same memory.

    It may be read on the current stream. The caller must keep it as it is; see :func:`borrowed`.

    ArgumentError: as of :func:`borrowed`.
    """
    check_place(argument, given, on)
    array = _shared(argument, given, on)
    streams.follow_null(on)
    return array


def block(given: Any, on: Backend) -> Any:
    """Return a rank's own block as an array of ``on``, of the same memory: one that is so already as it is.

    ArgumentError: it is on a GPU where ``on`` does not compute.
    """
    known = backends.known(given)
    if known is None:
        if gpu_of(given) is None:
            return given
        check_place("block", given, on)
        with streams.at_home(on):
            return taken("block", given, on)
    if known.on_device and (not on.on_device or known.device_of(given) != on.bound):
        check_place("block", given, on)
    return given


def on_host(argument: str, given: Any) -> Any:
    """Copy an array on a GPU to one of NumPy, a sparse matrix there to one of SciPy; leave all else.

    ArgumentError: CuPy is missing here, or no such array can be taken.
    """
    if (gpu := gpu_of(given)) is None:
        return given
    if sparse_on_gpu(given):
        copies = tuple(on_host(argument, part) for part in csr_parts(given))
        return sp.csr_array(copies, shape=tuple(map(int, given.shape)))
    if "cupy" not in backends.available():
        raise _unreachable(argument, given)
    on: Any = backends.get("cupy")
    with on.xp.cuda.Device(gpu):
        array = _shared(argument, given, on)
        streams.follow_null(on)
        return on.xp.asnumpy(array)


def check_place(argument: str, given: Any, on: Backend) -> None:
    """Raise ArgumentError for an array on a GPU that ``on`` does not compute on."""
    if (gpu := gpu_of(given)) is None:
        return
    if not on.on_device:
        if "cupy" not in backends.available():
            raise _unreachable(argument, given)
        problem = f"is on a GPU, and backend={on.name} computes on the host: take backend=cupy, or pass "
        raise ArgumentError(argument, kind(given), problem + copy(argument, given))
    if on.bound is not None and gpu != on.bound:
        problem = f"is on GPU {gpu}, and this rank computes on GPU {on.bound}: pass a copy that is there, or "
        raise ArgumentError(argument, kind(given), problem + copy(argument, given))


def plain(given: Any) -> Any:
    """Return a tensor without its gradient, and in float32 where it is of bfloat16, which NumPy has not."""
    if getattr(given, "requires_grad", False) is True:
        given = given.detach()
    if str(getattr(given, "dtype", "")).rpartition(".")[2] == "bfloat16":
        given = given.float() if hasattr(given, "float") else given.astype(np.float32)
    return given


def kind(given: Any) -> str:
    """Return what an error calls an array: its library and its type."""
    library = type(given).__module__.partition(".")[0]
    return f"{library}.{type(given).__name__}"


def _shared(argument: str, given: Any, on: Any) -> Any:
    """Return an array of CuPy of the same memory."""
    if isinstance(given, on.xp.ndarray):
        return given
    try:
        own = plain(given)
        array = on.xp.from_dlpack(own) if hasattr(own, "__dlpack__") else on.xp.asarray(own)
    except REFUSALS as error:
        problem = f"cannot be taken from its GPU ({' '.join(str(error).split())})"
        raise ArgumentError(argument, kind(given), problem) from None
    if array.size and not on.address(array):
        raise ArgumentError(argument, kind(given), "has no memory: it was freed")
    return array


def _gpu_at(given: Any) -> int:
    """Return the GPU of an array by its address; where CuPy is missing, the first one."""
    address = given.__cuda_array_interface__["data"][0]
    if "cupy" not in backends.available():
        return 0
    runtime = backends.get("cupy").xp.cuda.runtime
    return int(runtime.pointerGetAttributes(address).device if address else runtime.getDevice())


def copy(argument: str, given: Any) -> str:
    """Return the call that copies an array to the host, for an error."""
    return f"{argument}.get()" if hasattr(given, "get") else f"{argument}.cpu()"


def _unreachable(argument: str, given: Any) -> ArgumentError:
    problem = f"is on a GPU, where {backends.missing()}; or pass {copy(argument, given)}"
    return ArgumentError(argument, kind(given), problem)
