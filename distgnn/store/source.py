"""A `Source` of a graph, the interface between importers and `prepare`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp

from distgnn import rng
from distgnn.errors import ArgumentError
from distgnn.split import TEST, TRAIN, VAL, labelled

IDS = ("numbers", "integers", "text")  # of nodes: 0..n-1, any whole numbers, words

Edges = tuple[np.ndarray, np.ndarray, "np.ndarray | None"]


@dataclass
class ImportOptions:
    """Options of an import beside the path; `None` leaves a choice to the format or the file.

    `format`: one of `importers.FORMATS`. `features`, `labels`: companion files, or a rule that makes them
    from the graph: degree, onehot, random:WIDTH and degree:CLASSES. `ids`: the kind of node ids in lists of
    edges and tables, one of `IDS`; `node_list`: a table that lists all nodes in order. `id_column`,
    `label_column`, `source_column`, `target_column`, `weight_column`: column names (or numbers from 0) in
    tables; `feature_columns` and `categorical` (words that become columns of zeros and ones): several,
    between commas. `separator`, `comments`: marks in text, which the file shows by default. `missing`:
    refuse, zero or mean, what stands for a feature without a number. `split`: "0.6/0.2/0.2", seeded by
    `seed`, or a file, in place of the input's. `weights`: take edge weights from the file instead of ones.
    `multilabel`: a node may have several classes, though none has in the input. `regression`: labels are
    numbers to predict, one or several of a node. `scratch`: folder for temporary copies of compressed
    features (default: the system's). `used`: the names of columns that an importer has looked up, which fills
    it.
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
    separator: str | None = None
    comments: str | None = None
    feature_columns: str | None = None
    weight_column: str | None = None
    missing: str = "refuse"
    categorical: str | None = None
    seed: int = 0
    directed: bool | None = None
    weights: bool = False
    multilabel: bool = False
    regression: bool = False
    scratch: str | None = None
    used: set[str] = field(default_factory=set, repr=False, compare=False)


class Source:
    """A graph with optional features, labels and split. Nodes are 0..n-1, the "original ids".

    Attributes:
        ids: the user's own ids of the nodes, int64 (n) or UTF-8 in a dtype S (n); None if they are 0..n-1.
        directed: if False, the reverse of every edge belongs to the graph whether or not it is listed.
        direction_open: the graph is `directed` only if the matrix of its merged edges is not symmetric.
        labels: int32[n], -1 = unlabelled, with `classes` classes and perhaps `class_names`; or, if a node may
            have several classes, int8[n, classes], 1 for each class of the node, else 0, and -1 in all of an
            unlabelled row; or, if they are numbers to predict, float32[n, classes], finite, and NaN in all of
            an unlabelled row.
        split: uint8[n]: 0 none, 1 train, 2 validation, 3 test.
        width: columns of the features, 0 without features; feature_names: of these, where they have names;
            feature_type: their dtype, float32 or float64; feature_entries: the entries that are listed where
            the features come sparse, else None.
        edge_count: the number of edges that `edges()` will yield, where known without reading them.
        notes: one line for each oddity of the input.
        readings: the columns that were taken from each file, and their roles.
        left: the columns and files beside them that were not taken.
        of_degrees: functions that make features or labels from the degrees of the nodes.
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
    feature_type: np.dtype = np.dtype(np.float32)
    feature_entries: int | None = None
    feature_names: list[str] | None = None
    edge_count: int | None = None
    notes: Sequence[str] = ()
    readings: Sequence[str] = ()
    left: Sequence[str] = ()
    ids: np.ndarray | None = None
    of_degrees: Sequence[Callable[[np.ndarray], None]] = ()

    def take_degrees(self, degrees: np.ndarray) -> None:
        """Make the features and labels that depend on degrees, if there are any.

        Called once the degrees are known: int64 (n), the neighbours of every node, each counted once, without
        the node itself.
        """

    @property
    def multilabel(self) -> bool:
        """True if a node may have several classes."""
        return self.labels is not None and self.labels.ndim == 2 and not self.regression

    @property
    def regression(self) -> bool:
        """True if the labels are numbers to predict."""
        return self.labels is not None and self.labels.dtype.kind == "f"

    def edges(self) -> Iterator[Edges]:
        """Yield (src int64[k], dst int64[k], weight float64[k] or None), k <= 2**20; may be called again.

        An edge src -> dst is the entry A[dst, src] = weight (1 where the weight is None), once or repeatedly.
        """
        raise NotImplementedError

    def edge_share(self, part: int, parts: int) -> Iterator[tuple[int, Edges]]:
        """Yield the edges of rank `part` of `parts`, with the number of edges before each chunk.

        This method takes every `parts`-th chunk of `edges()`, so each rank reads all edges. Sources that can
        start in mid-file override it.
        """
        before = 0
        for index, edges in enumerate(self.edges()):
            if index % parts == part:
                yield before, edges
            before += len(edges[0])

    def features(self, ids: np.ndarray) -> np.ndarray:
        """Return (len(ids), width) of `feature_type`: the features of these nodes, in this order.

        Raises UserError for a NaN or infinity; the message names the node.
        """
        if self.width:
            raise NotImplementedError
        return np.zeros((len(ids), 0), np.float32)

    def sparse_features(self, ids: np.ndarray) -> sp.csr_array:
        """Return the features of these nodes as CSR, sorted, each entry once and none of them 0.

        Raises UserError as `features`, and for an entry outside the matrix, or that comes twice.
        """
        return sp.csr_array(self.features(ids))


def label_type(source: Source) -> np.dtype:
    """Return the dtype of the labels of a source in a store."""
    return np.dtype(np.float32 if source.regression else np.int8 if source.multilabel else np.int32)


def parse_split(text: str) -> tuple[float, float, float]:
    """Parse the three shares of "0.6/0.2/0.2"; raise ArgumentError unless they sum to at most 1."""
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
    """Split the labelled nodes (all nodes, without labels) at random into the shares of `text`.

    Returns uint8[n]. The place of a node depends on (seed, node id) only: it is the same on every machine and
    NumPy version.
    """
    shares = parse_split(text)
    nodes = np.arange(n) if labels is None else np.flatnonzero(labelled(labels))
    nodes = nodes[np.argsort(rng.hashes(rng.key(seed, rng.SPLIT), nodes), kind="stable")]
    bounds = np.rint(np.cumsum(shares) * len(nodes)).astype(np.int64).clip(0, len(nodes))
    split = np.zeros(n, np.uint8)
    for part, lo, hi in zip((TRAIN, VAL, TEST), [0, *bounds[:2]], bounds, strict=True):
        split[nodes[lo:hi]] = part
    return split
