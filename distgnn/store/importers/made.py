"""Features and labels made from the graph itself, for graphs without any: Plexus, section 6.2.

Plexus trains Isolate-3-8M, products-14M and europe_osm with 128 random features and 32 classes "based on the
distribution of node degrees". A degree is the number of a node's neighbours, each once and without itself; in
a directed graph, the number of other nodes with an edge to it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from distgnn import rng
from distgnn.errors import ArgumentError
from distgnn.store.importers.imported import HIGHEST_CLASS, HIGHEST_WIDTH, Imported
from distgnn.store.importers.names import whole
from distgnn.store.importers.tables import SparseRows

FEATURES, LABELS = "degree, onehot or random:WIDTH, such as random:128", "degree:CLASSES, such as degree:32"


class Made:
    """Features that `rows` makes of the numbers of nodes."""

    listed: np.ndarray | None = None

    def __init__(self, nodes: int, width: int, rows: Callable[[np.ndarray], np.ndarray]) -> None:
        self.nodes, self.width, self.rows = nodes, width, rows


def one_hot(nodes: int) -> SparseRows:
    """Make features that have a one in column k for node k."""
    pointers = np.arange(nodes + 1)
    return SparseRows(pointers[:-1], pointers[1:], pointers[:-1], None, nodes, "onehot")


def random(nodes: int, width: int, seed: int) -> Made:
    """Draw features uniformly in -1..1."""
    key, columns = rng.key(seed, rng.MADE_FEATURES), np.arange(width)
    return Made(nodes, width, lambda ids: (2 * rng.uniform(key, ids, columns) - 1).astype(np.float32))


def made_features(source: Imported, asked: str) -> bool:
    """Give the source the features that these words ask for; return False for the name of a file."""
    kind, _, size = asked.partition(":")
    if kind not in ("degree", "onehot", "random") or "." in size or "/" in size:
        return False
    width = whole(size)
    if (kind == "random") != bool(width) or (kind != "random" and size) or (width or 0) > HIGHEST_WIDTH:
        raise ArgumentError("features", asked, f"expected a file, or {FEATURES}")
    source.features_made = True
    if kind == "random":
        source.set_features(random(source.n, width or 0, source.options.seed))
    elif kind == "onehot":
        source.set_features(one_hot(source.n))
    else:
        source.set_features(of_degree(source))
    return True


def of_degree(source: Imported) -> Made:
    """Make one column of the degrees, which the source gets later."""
    degrees: list[np.ndarray] = []
    source.of_degrees.append(degrees.append)
    return Made(source.n, 1, lambda ids: degrees[-1][ids, None].astype(np.float32))


def is_made(asked: str) -> bool:
    """Return True for words that ask for labels of the degrees; False for the name of a file."""
    kind, mark, size = asked.partition(":")
    return kind == "degree" and not (mark and ("." in size or "/" in size))


def made_labels(source: Imported, asked: str) -> bool:
    """Give the source the labels that these words ask for; return False for the name of a file."""
    size = asked.partition(":")[2]
    if not is_made(asked):
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
    """Divide nodes into classes of about equal size in the order of degrees, int32 (n).

    Nodes of equal degree are in one class: the number of nodes with a smaller degree decides. So some classes
    may be empty.
    """
    smaller = np.searchsorted(np.sort(degrees), degrees, side="left")
    return (smaller * classes // max(len(degrees), 1)).astype(np.int32)
