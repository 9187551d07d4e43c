"""Features and labels made of the graph itself, for graphs that come without: Plexus, section 6.2.

Plexus trains Isolate-3-8M, products-14M and europe_osm with 128 random features and 32 classes "based on the
distribution of node degrees". A degree is the number of a node's neighbours, each once and without itself; in
a directed graph, of those with an edge to it.
"""

from __future__ import annotations

import numpy as np

from distgnn import rng
from distgnn.errors import ArgumentError
from distgnn.store.importers.imported import HIGHEST_CLASS, HIGHEST_WIDTH, Imported
from distgnn.store.importers.text import whole

FEATURES, LABELS = "degree, onehot or random:WIDTH, such as random:128", "degree:CLASSES, such as degree:32"


class Made:
    """Features of node k as a function of k."""

    complete = True

    def __init__(self, nodes: int, width: int, seed: int = 0) -> None:
        self.nodes, self.width, self.key = nodes, width, rng.key(seed, rng.MADE_FEATURES)

    def missing(self) -> np.ndarray:
        return np.zeros(self.nodes, bool)


class OneHot(Made):
    """Node k has a one in column k."""

    def rows(self, ids: np.ndarray) -> np.ndarray:
        rows = np.zeros((len(ids), self.width), np.float32)
        rows[np.arange(len(ids)), ids] = 1
        return rows


class Random(Made):
    """Uniform in -1..1."""

    def rows(self, ids: np.ndarray) -> np.ndarray:
        return (2 * rng.uniform(self.key, ids, np.arange(self.width)) - 1).astype(np.float32)


class OfDegree(Made):
    """One column: the degree, as soon as it is known."""

    degrees: np.ndarray

    def take(self, degrees: np.ndarray) -> None:
        self.degrees = degrees

    def rows(self, ids: np.ndarray) -> np.ndarray:
        return self.degrees[ids, None].astype(np.float32)


def made_features(source: Imported, asked: str) -> bool:
    """Give the source the features that these words ask for; False for the name of a file."""
    kind, _, size = asked.partition(":")
    if kind not in ("degree", "onehot", "random") or "." in size or "/" in size:
        return False
    width = whole(size)
    if (kind == "random") != bool(width) or (kind != "random" and size) or (width or 0) > HIGHEST_WIDTH:
        raise ArgumentError("features", asked, f"expected a file, or {FEATURES}")
    if kind == "random":
        source.set_features(Random(source.n, width or 0, source.options.seed))
    elif kind == "onehot":
        source.set_features(OneHot(source.n, source.n))
    else:
        table = OfDegree(source.n, 1)
        source.set_features(table)
        source.of_degrees.append(table.take)
    return True


def made_labels(source: Imported, asked: str) -> bool:
    """Give the source the labels that these words ask for; False for the name of a file."""
    kind, mark, size = asked.partition(":")
    if kind != "degree" or (mark and ("." in size or "/" in size)):
        return False
    classes = whole(size)
    if not classes or classes > HIGHEST_CLASS:
        raise ArgumentError("labels", asked, f"expected a file, or {LABELS}")
    source.set_labels(np.zeros(source.n, np.int64), asked, classes)  # until the degrees are known
    source.labels_made = True

    def take(degrees: np.ndarray) -> None:
        source.labels = classes_of(degrees, classes)

    source.of_degrees.append(take)
    return True


def classes_of(degrees: np.ndarray, classes: int) -> np.ndarray:
    """int32 (n): classes of about equal size in the order of degrees. Nodes of equal degree are in one class,
    by how many nodes have a smaller one, so that some classes may be empty."""
    smaller = np.searchsorted(np.sort(degrees), degrees, side="left")
    return (smaller * classes // max(len(degrees), 1)).astype(np.int32)
