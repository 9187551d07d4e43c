"""Shared parts of the importer tests: the matrix that a source stands for, and the one line of an error."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions, Source


def adjacency(source: Source) -> np.ndarray:
    """Return the dense matrix that the writer would make of the source.

    Reverses are added; of repeated entries the largest is kept.
    """
    matrix = np.zeros((source.n, source.n))
    for src, dst, weight in source.edges():
        assert src.dtype == dst.dtype == np.int64 and len(src) == len(dst) <= LIMITS.entries
        assert weight is None or (weight.dtype == np.float64 and len(weight) == len(src))
        value = np.ones(len(src)) if weight is None else weight
        np.maximum.at(matrix, (dst, src), value)
        if not source.directed:
            np.maximum.at(matrix, (src, dst), value)
    return matrix


def all_features(source: Source) -> np.ndarray:
    features = source.features(np.arange(source.n))
    assert features.dtype == np.float32 and features.shape == (source.n, source.width)
    backwards = source.features(np.arange(source.n)[::-1])
    assert np.array_equal(features, backwards[::-1])
    return features


def read_all(source: Source) -> None:
    """Read everything twice, as the writer does."""
    for _ in range(2):
        assert sum(len(edges[0]) for edges in source.edges()) >= 0
        source.features(np.arange(source.n))


def refused(path: Path, *words: str, **options: object) -> str:
    """Open and read a file: it must raise a UserError of one line with these words (regular expressions)."""
    with pytest.raises(UserError) as caught:
        read_all(open_source(path, ImportOptions(**options)))  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert re.search(word, message), f"{word!r} is not in {message!r}"
    return message


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def write_gz(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(text)
    return path


def truncate(path: Path, keep: float) -> Path:
    """Cut the file to this share of its bytes."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return path
