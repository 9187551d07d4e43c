"""Passes over the dense blocks of an epoch, each by the kernel for the block's backend and dtype.

Kernels make one pass over memory where array operations take several. Both agree to the bit, but for Adam's
roundings. A block may be empty on some ranks: its dtype decides, so that all ranks take the same kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.arrays.kernels import Functions, Kernels, KernelTable
from distgnn.local import array_elementwise, cuda, host, host_elementwise
from distgnn.local.array_elementwise import clear_others as clear_others
from distgnn.local.epilogue import Ending, Kept, Mask
from distgnn.local.update import Part, Update

Array = Any


def relu(block: Array) -> None:
    """Compute max(block, 0), in place."""
    KERNELS.kernel("relu", block)(block)


def elu(block: Array, mask: Mask | None = None) -> None:
    """Compute x where it is positive, else exp(x) - 1, in place (Clevert, Unterthiner, Hochreiter, 2016).

    mask: of :func:`activate`; then the dropout of that.
    """
    KERNELS.kernel("elu", block)(block, mask)


def elu_back(G: Array, H: Array, scale: float = 1.0, mask: Mask | None = None) -> None:
    """Multiply ``G`` in place by the derivative of ELU, 1 or exp(x), where ELU is ``scale * H``.

    mask: as of :func:`elu`; G is multiplied by it, too.
    """
    KERNELS.kernel("elu_back", G)(G, H, scale, mask)


def positive_bits(block: Array) -> Array:
    """Return ``numpy.packbits(block > 0)``: what ReLU remembers for its backward pass."""
    return KERNELS.kernel("positive_bits", block)(block)


def keep_positive(G: Array, bits: Array, scale: float = 1.0) -> None:
    """Set entries of ``G`` whose bit is 0 to zero and multiply the others by ``scale``, in place.

    The backward of ReLU and dropout, since what dropout zeroed is not positive.
    """
    KERNELS.kernel("keep_positive", G)(G, bits, scale)


def dropout(
    block: Array, out: Array, k: int, rows: Array, cols: Array, keep: float, relu: bool = False
) -> Array:
    """Compute ``out = block * rng.keep_mask(k, rows, cols, keep) / keep``; return ``out``.

    With ``relu``, of the positive part. ``out`` may be ``block``. No array of the block's size is made.
    """
    return KERNELS.kernel("dropout", block)(block, out, k, rows, cols, keep, relu)


def dropout_entries(
    A: CSR, row_numbers: Array, out: Array, k: int, rows: Array, cols: Array, keep: float
) -> None:  # fmt: skip
    """Compute in ``out`` (nnz) the values of A that :func:`dropout` of the same dense block would give.

    row_numbers: the row of each entry; k, rows, cols, keep: as there.
    """
    touched = 2 * out.nbytes + row_numbers.nbytes + A.indices.nbytes
    ledger.charge("activation", "dropout of entries", touched=touched)
    with ledger.timed("activation", "dropout of entries", on=backend.of(out)):
        KERNELS.kernel("dropout_entries", out)(A, row_numbers, out, k, rows, cols, keep)


def activate(
    block: Array, out: Array, mask: Mask | None, relu: bool, remember: bool, bias: Array = None
) -> Array:  # fmt: skip
    """Compute ``out``, the dropout of ``block + bias`` or of its positive part with ``relu``: one pass.

    Returns ``positive_bits(out)`` with ``remember``, else None.

    mask: ``k, rows, cols, keep`` of :func:`dropout`; None for none, then ``out`` is ``block``. On a GPU k may
        be uint64 (2) in its memory, that of rows and that of columns, read when the pass is made.
    bias: (1, f), added to each row; None for none. With one, ``out`` is ``block``.
    """
    fused = KERNELS.find("activate", block)
    if fused is not None:
        return fused(block, out, mask, relu, remember, bias)
    if bias is not None:
        out += bias
    if mask is not None:
        dropout(block, out, *mask, relu=relu)
    elif relu:
        KERNELS.kernel("relu", out)(out)
    return positive_bits(out) if remember else None


def apply(then: Ending, Z: Array) -> None:
    """Do what becomes of Z in one pass over it, unless it is done."""
    if then.any and not then.done:
        ledger.charge("activation", "relu, dropout", touched=2 * Z.nbytes)
        with ledger.timed("activation", "relu, dropout", on=backend.of(Z)):
            if isinstance(then, Kept):
                keep_positive(Z, then.bits, then.scale)
            elif then.relu or then.mask is not None:
                then.bits = activate(Z, Z, then.mask, then.relu, then.remember, then.bias)
            else:
                Z += then.bias
    then.done = True


def has_layer_norm(Z: Array) -> bool:
    """Tell whether a kernel does layer norm of blocks such as this one in one pass."""
    return Z.shape[1] <= cuda.NORM_COLUMNS and KERNELS.find("layer_norm", Z) is not None


def layer_norm(
    Z: Array, gain: Array, shift: Array, epsilon: float, normal: Array | None, out: Array
) -> Array:  # fmt: skip
    """Compute ``out = gain N + shift`` for N, the rows of Z with mean 0 and variance 1, in one pass.

    Returns 1 / sqrt(variance + epsilon), float64 (rows, 1).

    gain, shift: (1, f). normal: where N goes, None: nowhere. It or ``out`` may be Z.
    """
    scales: Array = KERNELS.kernel("layer_norm", Z)(Z, gain, shift, epsilon, normal, out)
    return scales


def layer_norm_backward(normal: Array, scales: Array, gain: Array, G: Array) -> Array:
    """Put the gradient of Z in place of ``G``, that of ``out``, in one pass; arguments of :func:`layer_norm`.

    Returns the gradients of gain and shift, float64 (2, f).
    """
    sums: Array = KERNELS.kernel("layer_norm_backward", G)(normal, scales, gain, G)
    return sums


def cross_entropy(
    logits: Array, rows: Array, labels: Array, position: Callable[[int], Array], count: int, out: Any = None
) -> tuple[Array, Any] | None:
    """Compute the softmax cross-entropy of these rows in one pass.

    Returns float64 losses, and the gradient of their sum over ``count``, 0 in other rows. None where no
    kernel does this block.

    rows: int64, rising; labels: int64, the column of each. position: makes, of the number of all rows, int32
    places of these in ``rows``, or -1. out: for the gradient, made when missing; may be ``logits``, or on a
    GPU of :func:`rounded_room`, in bfloat16.
    """
    kernel = KERNELS.find("cross_entropy", logits)
    return None if kernel is None else kernel(logits, rows, labels, position, count, out)


def count_hits(logits: Array, rows: Array, labels: Array, parts: Array) -> Array | None:
    """Count the rows of ``logits`` whose largest entry, the first of equal ones, is in the row's column.

    Returns int64 (4), by part, in place 0 how many rows have an entry that is not finite. None where no
    kernel does this block.

    rows: int64; labels: int64, the column of each; parts: int64, 1 to 3, of each.
    """
    kernel = KERNELS.find("count_hits", logits)
    return None if kernel is None else kernel(logits, rows, labels, parts)


def binary_cross_entropy(
    logits: Array, rows: Array, labels: Array, position: Callable[[int], Array], share: float,
    out: Array = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Compute the binary cross-entropy of all entries of these rows in one pass.

    Returns float64 sums of each row's losses, and ``share`` times their gradient, 0 in other rows.

    labels: uint8, 0 or 1, (len(rows), width of the logits); the others as in :func:`cross_entropy`, but the
    gradient has the type of the logits.
    """
    kernel = KERNELS.kernel("binary_cross_entropy", logits)
    return kernel(logits, rows, labels, position, share, out)


def squared_error(
    logits: Array, rows: Array, labels: Array, position: Callable[[int], Array], share: float,
    out: Array = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Compute squared differences of all entries of these rows from float labels.

    Returns float64 sums of each row's, and ``share`` times their gradient, 0 in other rows. Arguments: as of
    :func:`binary_cross_entropy`.
    """
    return KERNELS.kernel("squared_error", logits)(logits, rows, labels, position, share, out)


def column_sums(block: Array) -> Array:
    """Sum the columns (1, f), in float64; on a GPU those of a matrix in 16 bits, too."""
    return KERNELS.kernel("column_sums", block)(block)


def adam(w: Array, g: Array, m: Array, v: Array, **factors: float) -> None:
    """Make one step of Adam on flat arrays of one type, in place; ``g`` may be used as scratch.

    w <- shrink w;  g <- g + decay w;  m <- first m + (1 - first) g;  v <- second v + (1 - second) g²;
    w <- w - rate m / (sqrt(v / correction) + epsilon), with ``factors`` of these names.
    """
    KERNELS.kernel("adam", w)(w, g, m, v, **factors)


def update_all(kind: str, parts: Sequence[Part], update: Update, **constants: float) -> bool:
    """Make one step of an optimiser on all parameters in one pass, in place; False: no kernel does it.

    "sgd": g <- g + decay w;  v <- momentum v + g where there are slots, else g;  w <- w - rate v. "adam": as
    :func:`adam`. Gradients are scaled down first, as :class:`Update` says.
    """
    if len({part.w.dtype for part in parts}) != 1:
        return False
    kernel = KERNELS.find("update_all", parts[0].w)
    if kernel is not None:
        kernel(kind, parts, update, **constants)
    return kernel is not None


def sum_squares(arrays: Sequence[Array], square: Array) -> bool:
    """Sum the squares of all numbers of arrays of one type into ``square``, float64 (1), in float64.

    False: no kernel does it.
    """
    if len({array.dtype for array in arrays}) != 1:
        return False
    kernel = KERNELS.find("sum_squares", arrays[0])
    if kernel is not None:
        kernel(arrays, square)
    return kernel is not None


def average(sums: Array, count: Array, known: float) -> bool:
    """Divide by a count, which the host knows as well, in place.

    Returns False where the count is 0 and nothing is done.
    """
    return KERNELS.kernel("average", sums)(sums, count, known)


def _elu(block: Array, mask: Mask | None) -> None:
    array_elementwise.elu(block)
    if mask is not None:
        dropout(block, block, *mask)


def _elu_back(G: Array, H: Array, scale: float, mask: Mask | None) -> None:
    if mask is not None:
        dropout(G, G, *mask)
    array_elementwise.elu_back(G, H, scale)


def _softmax_on_gpu(
    logits: Array, rows: Array, labels: Array, position: Callable[[int], Array], count: int, out: Any
) -> tuple[Array, Any]:
    return cuda.softmax_cross_entropy(logits, position(len(logits)), labels, out, count)


def _binary_on_gpu(
    logits: Array, rows: Array, labels: Array, position: Callable[[int], Array], share: float, out: Array
) -> tuple[Array, Array]:
    losses, gradient = cuda.binary_cross_entropy(logits, position(len(logits)), labels, out, share)
    return losses.astype(np.float64), gradient


def _update_on_gpu(kind: str, parts: Sequence[Part], update: Update, **constants: float) -> None:
    (cuda.adam if kind == "adam" else cuda.sgd)(parts, update, **constants)


_COMPILED: Functions = {
    "positive_bits": host_elementwise.positive_bits, "keep_positive": host_elementwise.keep_positive,
    "dropout": host_elementwise.dropout, "activate": host_elementwise.activate,
    "cross_entropy": host_elementwise.cross_entropy,
    "binary_cross_entropy": host_elementwise.binary_cross_entropy, "adam": host_elementwise.adam,
}  # fmt: skip
_CUDA: Functions = {
    "activate": cuda.activate, "elu": cuda.elu, "elu_back": cuda.elu_back,
    "positive_bits": cuda.positive_bits, "keep_positive": cuda.keep_positive, "dropout": cuda.dropout,
    "layer_norm": cuda.layer_norm, "layer_norm_backward": cuda.layer_norm_backward,
    "cross_entropy": _softmax_on_gpu, "binary_cross_entropy": _binary_on_gpu, "update_all": _update_on_gpu,
    "sum_squares": cuda.sum_squares, "count_hits": cuda.count_hits, "column_sums": cuda.column_sums,
}  # fmt: skip
_ARRAYS: Functions = {
    "relu": array_elementwise.relu, "elu": _elu, "elu_back": _elu_back,
    "positive_bits": array_elementwise.positive_bits, "keep_positive": array_elementwise.keep_positive,
    "dropout": array_elementwise.dropout, "dropout_entries": array_elementwise.dropout_entries,
    "binary_cross_entropy": array_elementwise.binary_cross_entropy, "adam": array_elementwise.adam,
    "column_sums": array_elementwise.column_sums, "average": array_elementwise.average,
    "squared_error": array_elementwise.squared_error,
}  # fmt: skip

KERNELS = KernelTable(
    numpy=[Kernels(_COMPILED, "fd", host.usable), Kernels(_ARRAYS)],
    cupy=[Kernels(_CUDA, "fd"), Kernels(_ARRAYS)],
)
