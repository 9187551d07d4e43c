"""A `Source` of a graph, the interface between importers and `prepare`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from distgnn import rng
from distgnn.errors import ArgumentError
from distgnn.split import TEST, TRAIN, VAL

IDS = ("numbers", "integers", "text")  # of nodes: 0..n-1, any whole numbers, words

Edges = tuple[np.ndarray, np.ndarray, "np.ndarray | None"]


@dataclass
class ImportOptions:
    """What the user may say about an input beyond its path; `None` means "what the format or the file says".

    `format`: one of `importers.FORMATS`. `features`, `labels`: companion files, or what to make of the graph:
    degree, onehot, random:WIDTH and degree:CLASSES. `ids`: what names nodes in lists of edges and tables,
    one of `IDS`; `node_list`: a table that lists them all, node by node. `id_column`, `label_column`,
    `source_column`, `target_column`: column names (or numbers from 0) in tables. `split`: "0.6/0.2/0.2",
    seeded by `seed`, or a file, in place of the input's. `weights`: take edge weights from the file instead
    of ones. `scratch`: folder for temporary copies of compressed features (default: the system's).
    """

    format: str | None = None
    features: str | None = None
    labels: str | None = None
    ids: str | None = None
    node_list: str | None = None
    id_column: str | None = None
    label_column: str | None = None
    source_column: str | None = None
    target_column: str | None = None
    split: str | None = None
    seed: int = 0
    directed: bool | None = None
    weights: bool = False
    scratch: str | None = None


class Source:
    """A graph with optional features, labels and split. Nodes are 0..n-1, the "original ids"; `ids` are what
    their user calls them, int64 (n) or UTF-8 in a dtype S (n), or None where that is the same.

    `directed` False: the reverse of every edge belongs to the graph whether or not it is listed.
    `direction_open`: it is `directed` only if the matrix of its merged edges is not symmetric. `labels`
    int32[n], -1 = unlabelled, with `classes` classes and perhaps `class_names`; or, of nodes that may have
    several, int8[n, classes], 1 for each that a node has, else 0, and -1 in all of an unlabelled row. `split`
    uint8[n]: 0 none, 1 train, 2 validation, 3 test. `width`: of the features, 0 without. `edge_count`: how
    many edges `edges()` will yield, where known without reading them. `notes`: a line each about what looks
    odd in the input. `readings`: which columns of which file were taken for what.
    """

    name: str = "graph"
    n: int = 0
    directed: bool = False
    direction_open: bool = False
    labels: np.ndarray | None = None
    classes: int = 0
    class_names: list[str] | None = None
    split: np.ndarray | None = None
    width: int = 0
    edge_count: int | None = None
    notes: Sequence[str] = ()
    readings: Sequence[str] = ()
    ids: np.ndarray | None = None
    of_degrees: Sequence[Callable[[np.ndarray], None]] = ()

    def take_degrees(self, degrees: np.ndarray) -> None:
        """int64 (n), the neighbours of every node, each once and without itself, as soon as they are known,
        for the features and labels that are made `of_degrees`, if there are any."""

    @property
    def multilabel(self) -> bool:
        """Whether a node may have several classes."""
        return self.labels is not None and self.labels.ndim == 2

    def edges(self) -> Iterator[Edges]:
        """Yield (src int64[k], dst int64[k], weight float64[k] or None), k <= 2**20; may be called again.

        An edge src -> dst is the entry A[dst, src] = weight (1 where the weight is None), once or repeatedly.
        """
        raise NotImplementedError

    def edge_share(self, part: int, parts: int) -> Iterator[tuple[int, Edges]]:
        """The share of rank `part` of `parts` in `edges()`, with the number of edges before each chunk.

        Here every `parts`-th chunk, and each rank reads all. What can start in mid-file overrides this.
        """
        before = 0
        for index, edges in enumerate(self.edges()):
            if index % parts == part:
                yield before, edges
            before += len(edges[0])

    def features(self, ids: np.ndarray) -> np.ndarray:
        """float32 (len(ids), width): of these nodes, in this order; UserError names a NaN or infinity."""
        if self.width:
            raise NotImplementedError
        return np.zeros((len(ids), 0), np.float32)


def labelled(labels: np.ndarray) -> np.ndarray:
    """bool[n]: which nodes have a label, or a row of them."""
    return labels.reshape(len(labels), -1)[:, 0] >= 0


def parse_split(text: str) -> tuple[float, float, float]:
    """The three shares of "0.6/0.2/0.2"; ArgumentError where they are not three that sum to at most 1."""
    try:
        train, validation, test = shares = tuple(float(part) for part in text.split("/"))
    except ValueError:
        problem = "expected three numbers TRAIN/VAL/TEST, such as 0.6/0.2/0.2"
        raise ArgumentError("split", repr(text), problem) from None
    if not all(0 <= share <= 1 for share in shares) or sum(shares) > 1 + 1e-9:
        problem = "the shares must lie in 0..1 and sum to at most 1, such as 0.6/0.2/0.2"
        raise ArgumentError("split", repr(text), problem)
    return train, validation, test


def random_split(n: int, text: str, seed: int, labels: np.ndarray | None = None) -> np.ndarray:
    """uint8[n]: a seeded split of the labelled nodes (of all nodes without labels) into the shares of `text`.

    A node's place depends on (seed, node id) only, so it is the same on every machine and NumPy version.
    """
    shares = parse_split(text)
    nodes = np.arange(n) if labels is None else np.flatnonzero(labelled(labels))
    nodes = nodes[np.argsort(rng.hashes(rng.key(seed, rng.SPLIT), nodes), kind="stable")]
    bounds = np.rint(np.cumsum(shares) * len(nodes)).astype(np.int64).clip(0, len(nodes))
    split = np.zeros(n, np.uint8)
    for part, lo, hi in zip((TRAIN, VAL, TEST), [0, *bounds[:2]], bounds, strict=True):
        split[nodes[lo:hi]] = part
    return split
