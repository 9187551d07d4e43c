"""One pass over memory each: activation and dropout, softmax cross-entropy, optimiser steps, conversion to
bfloat16.

The formulas are those of ``distgnn/gcn`` and ``distgnn/rng.py``; dropout masks agree to the bit, the rest to
rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import rng
from distgnn.local.cuda.launch import Array, blocks_for, c_type, check, launch, library

WARP = 32


def activate(
    X: Array,
    out: Array = None,
    *,
    bias: Array = None,
    relu: bool = False,
    dropout: Dropout | None = None,
    positive: Array = None,
) -> Array:
    """``out = dropout(relu(X + bias))``, each step optional; ``out`` may be X itself and is made when
    missing.

    Args:
        X: (m, f) C-contiguous float32 or float64; bias: (f).
        dropout: the masks of this step.
        positive: uint8 (ceil(m f / 8)), receives the bits of the positive entries of ``out`` in the order of
            ``numpy.packbits``.
    """
    xp = library(X)
    m, f = X.shape
    out = xp.empty(X.shape, X.dtype) if out is None else out
    for name, array in (("X", X), ("out", out)):
        check(f"activate: {name}", array, (m, f), X.dtype)
    check("activate: bias", bias, (f,), X.dtype)
    check("activate: positive", positive, (-(-m * f // 8),), np.uint8)
    keys: tuple[Any, Any] = (None, None)
    threshold, scale = 0, 1.0
    if dropout is not None and dropout.rate > 0:
        keys = dropout.row_keys(xp), dropout.column_keys(xp)
        threshold, scale = dropout.threshold, dropout.scale
        check("activate: dropout rows", keys[0], (m,), np.uint64)
        check("activate: dropout columns", keys[1], (f,), np.uint64)
    launch(
        xp,
        "activation.cu",
        f"activate<{c_type(X)}>",
        blocks_for(-(-X.size // 8)),
        np.int64(X.size),
        np.int32(f),
        X,
        bias,
        np.int32(relu),
        *keys,
        np.uint64(threshold),
        X.dtype.type(scale),
        out,
        positive,
    )
    return out


class Dropout:
    """The masks that `rng.keep_blocks` gives for one key, scaled by 1 / (1 - rate).

    Args:
        rate: probability that an entry is dropped, in [0, 1).
        key: of this use, from `rng.key`.
        rows, columns: int64 global indices of the block's rows and columns, on its device.
    """

    def __init__(self, rate: float, key: int, rows: Array, columns: Array) -> None:
        self.rate, self.key, self.rows, self.columns = rate, key, rows, columns
        self.threshold = min(max(round((1 - rate) * 2.0**32), 0), 2**32)
        self.scale = 1 / (1 - rate)

    def row_keys(self, xp: Any) -> Array:
        return self._keys(xp, self.rows, self.key)

    def column_keys(self, xp: Any) -> Array:
        return self._keys(xp, self.columns, rng.key(self.key, 1))

    def _keys(self, xp: Any, ids: Array, key: int) -> Array:
        keys = xp.empty(ids.shape, np.uint64)
        launch(
            xp,
            "activation.cu",
            "dropout_keys",
            blocks_for(ids.size),
            np.int64(ids.size),
            ids,
            np.uint64(key),
            keys,
        )
        return keys


def keep_positive(G: Array, bits: Array, scale: float = 1.0) -> Array:
    """Zero the entries of G (m, f) whose bit is 0 and multiply the others by ``scale``, in place: the
    backward of `activate`."""
    check("keep_positive: G", G, G.shape, G.dtype)
    check("keep_positive: bits", bits, (-(-G.size // 8),), np.uint8)
    launch(
        library(G),
        "activation.cu",
        f"keep_positive<{c_type(G)}>",
        blocks_for(G.size),
        np.int64(G.size),
        bits,
        G.dtype.type(scale),
        G,
    )
    return G


def softmax_cross_entropy(
    logits: Array, position: Array, labels: Array, gradient: Array = None, count: int | None = None
) -> tuple[Array, Array]:
    """Losses of the training rows, and the gradient of their mean, where one rank holds all classes.

    Args:
        logits: (m, classes) C-contiguous.
        position: int32 (m), the place of a row among the training rows, or -1; labels: int64 (training rows),
            their classes.
        gradient: (m, classes), may be ``logits`` itself; made when missing.
        count: training rows of the whole graph, where there are more than these.

    Returns:
        losses (training rows) and gradient: (softmax - onehot) / count in training rows, 0 in others.
    """
    xp = library(logits)
    m, classes = logits.shape
    gradient = xp.empty(logits.shape, logits.dtype) if gradient is None else gradient
    check("softmax_cross_entropy: logits", logits, (m, classes), logits.dtype)
    check("softmax_cross_entropy: gradient", gradient, (m, classes), logits.dtype)
    check("softmax_cross_entropy: position", position, (m,), np.int32)
    check("softmax_cross_entropy: labels", labels, (labels.size,), np.int64)
    losses = xp.zeros(labels.size, logits.dtype)
    scale = logits.dtype.type(1 / max(labels.size if count is None else count, 1))
    launch(
        xp,
        "softmax_cross_entropy.cu",
        f"softmax_cross_entropy<{c_type(logits)}>",
        blocks_for(m * WARP),
        np.int64(m),
        position,
        labels,
        logits,
        np.int32(classes),
        scale,
        gradient,
        losses,
    )
    return losses, gradient


class CutSoftmax:
    """The same where classes are cut over ranks: three steps with a reduction over those ranks after each of
    the first two.

    Args:
        logits: (m, f) this rank's classes, ``first_class`` and the following; may be empty.
        rows: int64 training rows; position: int32 (m), as in `softmax_cross_entropy`.
    """

    FILE = "softmax_cross_entropy.cu"

    def __init__(self, logits: Array, first_class: int, rows: Array, position: Array) -> None:
        self.logits, self.first_class, self.rows, self.position = logits, first_class, rows, position
        self.xp, self.type = library(logits), c_type(logits)

    def highest(self) -> Array:
        """Of every training row the largest logit here, to be reduced by maximum."""
        return self._statistic("softmax_highest")

    def sums(self, highest: Array) -> Array:
        """Of every training row the sum of exp(logit - highest) here, to be reduced by sum."""
        return self._statistic("softmax_sums", highest)

    def _statistic(self, name: str, *given: Array) -> Array:
        result = self.xp.empty(self.rows.size, self.logits.dtype)
        blocks = blocks_for(self.rows.size * WARP)
        size, f = np.int64(self.rows.size), np.int32(self.logits.shape[1])
        launch(
            self.xp,
            self.FILE,
            f"{name}<{self.type}>",
            blocks,
            size,
            self.rows,
            self.logits,
            f,
            *given,
            result,
        )
        return result

    def gradient(self, labels: Array, highest: Array, sums: Array, count: int, out: Array) -> Array:
        """The gradient of the mean of ``count`` losses into ``out`` (may be the logits); returns the losses
        of the rows whose
        label is a class here, 0 for the others: to be summed over all ranks.
        """
        m, f = self.logits.shape
        dtype = self.logits.dtype
        losses = self.xp.zeros(self.rows.size, dtype)
        launch(
            self.xp,
            self.FILE,
            f"softmax_gradient<{self.type}>",
            blocks_for(m * WARP),
            np.int64(m),
            self.position,
            labels,
            np.int64(self.first_class),
            self.logits,
            np.int32(f),
            highest,
            sums,
            dtype.type(1 / max(count, 1)),
            out,
            losses,
        )
        return losses


def sgd(
    w: Array, gradient: Array, velocity: Array, *, lr: float, momentum: float = 0.0, decay: float = 0.0
) -> None:
    """`gcn.optim.SGD` in one pass, in place; ``velocity`` may be None."""
    number = w.dtype.type
    _check_alike("sgd", w, gradient, velocity)
    launch(
        library(w),
        "optimizers.cu",
        f"sgd<{c_type(w)}>",
        blocks_for(w.size),
        np.int64(w.size),
        number(lr),
        number(momentum),
        number(decay),
        gradient,
        w,
        velocity,
    )


def adam(
    w: Array,
    gradient: Array,
    m: Array,
    v: Array,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    decay: float = 0.0,
    decoupled: bool = False,
) -> None:
    """`gcn.optim.Adam` (or AdamW, ``decoupled``) in one pass, in place; ``step`` counts from 1."""
    number = w.dtype.type
    first, second = betas
    _check_alike("adam", w, gradient, m, v)
    factors = (
        lr / (1 - first**step),
        1 - second**step,
        first,
        second,
        1 - first,
        1 - second,
        epsilon,
        0.0 if decoupled else decay,
        1 - lr * decay if decoupled else 1.0,
    )
    launch(
        library(w),
        "optimizers.cu",
        f"adam<{c_type(w)}>",
        blocks_for(w.size),
        np.int64(w.size),
        *(number(x) for x in factors),
        gradient,
        w,
        m,
        v,
    )


def to_bfloat16(X: Array) -> Array:
    """float32 rounded to bfloat16 (nearest, ties to even), as uint16 of the same shape."""
    check("to_bfloat16", X, X.shape, np.float32)
    xp = library(X)
    out = xp.empty(X.shape, np.uint16)
    launch(xp, "rows.cu", "to_bfloat16", blocks_for(X.size), np.int64(X.size), X, out)
    return out


def _check_alike(name: str, w: Array, *others: Array) -> None:
    check(f"{name}: w", w, w.shape, w.dtype)
    for other in others:
        check(f"{name}: gradient or state", other, w.shape, w.dtype)
