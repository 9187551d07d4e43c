"""Answers to rows of logits: probabilities and labels, numbers, or embeddings."""

from __future__ import annotations

import numpy as np

from distgnn.errors import UserError
from distgnn.nn.norm import EPSILON

Answer = tuple[np.ndarray, "np.ndarray | None"]  # numbers, and labels where they are asked for


def softmax(rows: np.ndarray) -> np.ndarray:
    """Convert logits to probabilities, row by row."""
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def sigmoid(rows: np.ndarray) -> np.ndarray:
    """Convert logits to probabilities, each by itself."""
    powers = np.exp(-abs(rows))
    return np.where(rows >= 0, rows.dtype.type(1), powers) / (1 + powers)


def normal(rows: np.ndarray) -> np.ndarray:
    """Return rows of mean 0 and variance 1, as layer norm has them before its gain and shift."""
    centred = rows - rows.mean(axis=1, keepdims=True, dtype=np.float64)
    scales = np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPSILON)
    return (centred / scales).astype(rows.dtype)


def one_class(rows: np.ndarray) -> Answer:
    """Return the probabilities of classes, and the likeliest one."""
    return finite(softmax(rows)), rows.argmax(axis=1).astype(np.int32)


def several_classes(rows: np.ndarray) -> Answer:
    """Return the probability of each class by itself, and whether it is above one half."""
    return sigmoid(finite(rows)), (rows > 0).astype(np.int8)


def _positive(rows: np.ndarray) -> Answer:
    return finite(np.maximum(rows, 0)), None


def _elu(rows: np.ndarray) -> Answer:
    return finite(np.maximum(rows, np.expm1(np.minimum(rows, 0)))), None


ACTIVE = {"relu": _positive, "elu": _elu}


def unchanged(rows: np.ndarray) -> Answer:
    """Return finite numbers as they are."""
    return finite(rows), None


def finite(rows: np.ndarray) -> np.ndarray:
    """Return the rows; UserError: a number is not finite."""
    if not np.isfinite(rows).all():
        raise UserError("a prediction is not finite; the weights or the features are too large")
    return rows
