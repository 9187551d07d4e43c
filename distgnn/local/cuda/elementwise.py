"""One pass over memory each: ReLU and dropout, layer norm, backward passes, softmax and binary loss, Adam.

What they compute is said in ``distgnn/local/elementwise.py``. Dropout masks agree with it to the bit, the
rest to rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import rng
from distgnn.arrays import backend
from distgnn.arrays.tuning import TUNING
from distgnn.local.cuda.launch import WARP, Array, blocks_for, c_type, check, lanes_for, launch, library
from distgnn.local.cuda.narrow import Rounded, pitch, stored
from distgnn.local.epilogue import Ending, Epilogue, Kept, Mask

SUMMED_PARTS = 512  # of the rows whose columns are summed, at most
HASHED_COLUMNS = 8  # for whose mask each row's thread hashes them
NORM_COLUMNS = 128  # in the registers of a warp of layer_norm_backward


def dropout(
    block: Array, out: Array, k: int, rows: Array, cols: Array, keep: float, relu: bool = False
) -> Array:
    """See ``local.elementwise.dropout``; block (m, f), rows int64 (m), cols int64 (f). Returns ``out``."""
    if relu or out is not block or cols.size > HASHED_COLUMNS:
        activate(block, out, (k, rows, cols, keep), relu)
        return out
    check("dropout", block.shape, block.dtype, block=block)
    (m, f), (places, seeds, share) = block.shape, _mask(block, (k, rows, cols, keep))
    arguments = np.int64(m), np.int32(f), *places, *seeds, *share, block
    launch(library(block), "activation.cu", f"drop_rows<{c_type(block)}>", blocks_for(m), *arguments)
    return out


def positive_bits(block: Array) -> Array:
    """See ``local.elementwise.positive_bits``."""
    return activate(block, None, None, remember=True)


def activate(
    block: Array, out: Array, mask: Mask | None, relu: bool = False,
    remember: bool = False, bias: Array = None,
) -> Array:  # fmt: skip
    """See ``local.elementwise.activate``; without ``out``, nothing but the bits is made."""
    xp, f = library(block), block.shape[-1]
    check("dropout" if mask else "activate", block.shape, block.dtype, block=block, out=out)
    check("activate", (1, f), block.dtype, bias=bias)
    words: Array = xp.empty(-(-block.size // WARP), np.uint32) if remember else None
    ends = bias, np.int32(relu), *factors(xp, block, mask)
    arguments = np.int64(block.size), np.int32(f), block, *ends, out, words
    launch(xp, "activation.cu", f"activate<{c_type(block)}>", blocks_for(-(-block.size // 8)), *arguments)
    return words.view(np.uint8)[: -(-block.size // 8)] if remember else None


def factors(xp: Any, block: Array, mask: Mask | None) -> tuple[Any, ...]:
    """Hash rows and columns; return the keys, the threshold and the scale of a mask, as kernels take them."""
    if mask is None:
        return None, None, np.uint64(0), block.dtype.type(1)
    (rows, cols), seeds, share = _mask(block, mask)
    keys = xp.empty(rows.size + cols.size, np.uint64)
    hashed = np.int64(rows.size), rows, np.int64(cols.size), cols, *seeds, keys
    launch(xp, "activation.cu", "dropout_keys", blocks_for(keys.size), *hashed)
    return keys[: rows.size], keys[rows.size :], *share


def _mask(block: Array, mask: Mask) -> tuple[tuple[Array, Array], tuple[Any, ...], tuple[Any, Any]]:
    """Return the rows and columns of a mask; the keys, or where they are; the threshold and the scale."""
    k, rows, cols, keep = mask
    check("dropout", block.shape[:1], np.int64, rows=rows)
    check("dropout", block.shape[1:], np.int64, cols=cols)
    check("dropout", (2,), np.uint64, k=None if isinstance(k, int) else k)
    keys = (k, rng.key(k, 1), None) if isinstance(k, int) else (0, 0, k)
    share = np.uint64(rng.keep_threshold(keep)), block.dtype.type(1 / keep)
    return (rows, cols), (*map(np.uint64, keys[:2]), keys[2]), share


def ending(xp: Any, then: Ending | None, out: Array) -> tuple[Any, ...]:
    """Return what a product is told of what becomes of ``out``, as of common.cuh; say that it is done.

    ``out``: (m, f), with f a multiple of 8 where bits are remembered.
    """
    if isinstance(then, Kept):
        check("ending", (-(-out.size // 8),), np.uint8, bits=then.bits)
        then.done = True
        return None, np.int32(0), None, None, np.uint64(0), out.dtype.type(then.scale), None, then.bits
    then = then or Epilogue()
    check("ending", (1, out.shape[1]), out.dtype, bias=then.bias)
    then.bits = xp.empty(out.size // 8, np.uint8) if then.remember else None
    then.done = True
    return then.bias, np.int32(then.relu), *factors(xp, out, then.mask), then.bits, None


def elu(block: Array, mask: Mask | None) -> None:
    """See ``local.elementwise.elu``."""
    _elu(block, None, 1.0, mask)


def elu_back(G: Array, H: Array, scale: float, mask: Mask | None) -> None:
    """See ``local.elementwise.elu_back``."""
    check("elu_back", G.shape, G.dtype, H=H)
    _elu(G, H, scale, mask)


def _elu(x: Array, H: Array, share: float, mask: Mask | None) -> None:
    check("elu", x.shape, x.dtype, x=x)
    xp, number = library(x), x.dtype.type
    arguments = np.int64(x.size), np.int32(x.shape[1]), H, number(share), *factors(xp, x, mask), x
    launch(xp, "activation.cu", f"elu<{c_type(x)}>", blocks_for(-(-x.size // 8)), *arguments)


def keep_positive(G: Array, bits: Array, scale: float = 1.0) -> Array:
    """See ``local.elementwise.keep_positive``; G (m, f), uint8 bits. Returns G."""
    check("keep_positive", G.shape, G.dtype, G=G)
    check("keep_positive", (-(-G.size // 8),), np.uint8, bits=bits)
    arguments = np.int64(G.size), bits, G.dtype.type(scale), G
    blocks = blocks_for(-(-G.size // 8))
    launch(library(G), "activation.cu", f"keep_positive<{c_type(G)}>", blocks, *arguments)
    return G


def layer_norm(
    Z: Array, gain: Array, shift: Array, epsilon: float, normal: Array, out: Array
) -> Array:  # fmt: skip
    """See ``local.elementwise.layer_norm``; gain and shift (1, f)."""
    xp, (m, f) = library(Z), Z.shape
    check("layer_norm", (m, f), Z.dtype, Z=Z, normal=normal, out=out)
    check("layer_norm", (1, f), Z.dtype, gain=gain, shift=shift)
    scales = xp.empty((m, 1), np.float64)
    arguments = np.int64(m), np.int32(f), np.float64(epsilon), gain, shift, Z, normal, out, scales
    launch(xp, "layer_norm.cu", f"layer_norm<{c_type(Z)}>", blocks_for(m * WARP), *arguments)
    return scales


def layer_norm_backward(normal: Array, scales: Array, gain: Array, G: Array) -> Array:
    """See ``local.elementwise.layer_norm_backward``; f is at most NORM_COLUMNS."""
    xp, (m, f) = library(G), G.shape
    check("layer_norm_backward", (m, f), G.dtype, normal=normal, G=G)
    check("layer_norm_backward", (1, f), G.dtype, gain=gain)
    check("layer_norm_backward", (m, 1), np.float64, scales=scales)
    height = min(max(m >> 12, 4), 64)  # a function of m alone, as it decides in which order is summed
    sums = xp.empty((-(-m // height), 2 * f), np.float64)
    arguments = np.int64(m), np.int32(f), np.int32(height), normal, scales, gain, G, sums
    kernel = f"layer_norm_backward<{c_type(G)}>"
    launch(xp, "layer_norm.cu", kernel, blocks_for(len(sums) * WARP), *arguments)
    return column_sums(sums).reshape(2, f)


def summed_parts(m: int) -> tuple[int, int]:
    """Return the rows of a part whose columns are summed, of m, and the number of parts."""
    height = max(-(-m // SUMMED_PARTS), TUNING.summed_rows)  # of m alone, as sums follow it
    return height, max(-(-m // height), 1)


def column_sums(block: Array, made: Any = None) -> Array:
    """See ``local.elementwise.column_sums``; in one launch, or two of many rows.

    ``made``: the type of the sums, that of the block or, of float64, float32.
    """
    (m, f), (kind, read, across) = block.shape, stored(block)
    xp = library(read)
    check("column_sums", (m, int(across)), read.dtype, block=read)
    (height, parts), lanes = summed_parts(m), lanes_for(f)
    turns = [(m, height, parts, np.dtype(np.float64))] * (parts > 1)
    for rows, at_a_time, count, dtype in [*turns, (parts if turns else m, m, 1, made or block.dtype)]:
        sums = xp.empty((count, f), dtype)
        sizes = np.int64(rows), np.int32(f), np.int32(lanes), np.int64(at_a_time), across
        name = f"column_sums<{kind},{c_type(sums)}>"
        launch(xp, "column_sums.cu", name, (count, -(-f // lanes)), *sizes, read, sums)
        kind, read, across = stored(sums)
    return sums


def softmax_cross_entropy(
    logits: Array, position: Array, labels: Array, gradient: Any = None, count: int | None = None
) -> tuple[Array, Any]:
    """Compute the losses, float64, and the gradient of ``local.elementwise.cross_entropy``.

    position: int32 (m), the place of a row among the training rows, or -1; gradient: made when missing, may
    be ``logits``, or in bfloat16; count: by default of these training rows.
    """
    xp, (m, classes), number = library(logits), logits.shape, logits.dtype.type
    gradient = xp.empty(logits.shape, logits.dtype) if gradient is None else gradient
    kind, numbers, across = stored(gradient)
    rounded = isinstance(gradient, Rounded)
    check("softmax_cross_entropy", (m, classes), np.float32 if rounded else logits.dtype, logits=logits)
    check("softmax_cross_entropy", (m, classes), logits.dtype, gradient=None if rounded else gradient)
    check("softmax_cross_entropy", (m, pitch(classes)), np.uint16, gradient=numbers if rounded else None)
    check("softmax_cross_entropy", (m,), np.int32, position=position)
    check("softmax_cross_entropy", (labels.size,), np.int64, labels=labels)
    losses = xp.empty(labels.size, np.float64)
    share = number(1 / max(labels.size if count is None else count, 1))
    wide, on = 16 // logits.itemsize, backend.of(logits)
    V = 1 if classes % wide or (on.address(logits) | on.address(numbers)) % 16 else wide
    K = 1 if V > 1 and classes <= V * WARP else 4
    rows = max(wide * wide // (K * V), 1)  # of a group, IN_FLIGHT numbers
    lanes = lanes_for(-(-classes // (V * K)))
    name = f"softmax_cross_entropy<{c_type(logits)},{kind},{V},{K}>"
    arguments = np.int64(m), position, labels, logits, np.int32(classes), np.int32(lanes), share
    out = across, numbers, gradient.beyond if rounded else None, losses
    blocks = blocks_for(-(-m // rows) * lanes)
    launch(xp, "softmax_cross_entropy.cu", name, blocks, *arguments, *out)
    return losses, gradient


def count_hits(logits: Array, rows: Array, labels: Array, parts: Array) -> Array:
    """See ``local.elementwise.count_hits``."""
    xp, f = library(logits), logits.shape[1]
    check("count_hits", logits.shape, logits.dtype, logits=logits)
    check("count_hits", rows.shape, np.int64, rows=rows, labels=labels, parts=parts)
    hits = xp.zeros(4, np.int64)
    arguments = np.int64(rows.size), rows, labels, parts, logits, np.int32(f), hits
    launch(xp, "scores.cu", f"count_hits<{c_type(logits)}>", blocks_for(rows.size * WARP), *arguments)
    return hits


def binary_cross_entropy(
    logits: Array, position: Array, labels: Array, gradient: Array = None, share: float = 1.0
) -> tuple[Array, Array]:
    """See ``local.elementwise.binary_cross_entropy``; position and gradient as for softmax cross-entropy."""
    xp, (m, width), number = library(logits), logits.shape, logits.dtype.type
    gradient = xp.empty(logits.shape, logits.dtype) if gradient is None else gradient
    check("binary_cross_entropy", (m, width), logits.dtype, logits=logits, gradient=gradient)
    check("binary_cross_entropy", (m,), np.int32, position=position)
    check("binary_cross_entropy", (len(labels), width), np.uint8, labels=labels)
    losses = xp.zeros(len(labels), logits.dtype)
    arguments = np.int64(m), position, labels, logits, np.int32(width), number(share), gradient, losses
    name = f"binary_cross_entropy<{c_type(logits)}>"
    launch(xp, "binary_cross_entropy.cu", name, blocks_for(m * WARP), *arguments)
    return losses, gradient
