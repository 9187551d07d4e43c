"""Planetoid directories: the pickles `ind.NAME.{x,tx,allx,y,ty,ally,graph}` and `ind.NAME.test.index`."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.split import TEST, TRAIN, VAL
from distgnn.store.importers.files import check_declared
from distgnn.store.importers.imported import HIGHEST_ID, Imported
from distgnn.store.importers.pickled.unpickler import load, load_array, load_csr
from distgnn.store.importers.tables import SparseRows
from distgnn.store.importers.text_table import column
from distgnn.store.source import ImportOptions

STANDARD_VALIDATION = 500


class Files:
    """The files of the only data set in a folder."""

    def __init__(self, folder: Path) -> None:
        names = sorted(entry.name[4:-6] for entry in folder.glob("ind.*.graph"))
        if len(names) != 1:
            expected = "expected the files ind.NAME.* of one Planetoid data set"
            raise UserError(f"{folder}: {expected}, found {', '.join(names) or 'none'}")
        self.folder, self.name = folder, names[0]
        self.allx, self.tx = (load_csr(self.path(suffix)) for suffix in ("allx", "tx"))
        hot = "a matrix of one-hot labels"
        self.ally, self.ty, self.y = (load_array(self.path(name), 2, hot) for name in ("ally", "ty", "y"))
        self.known = self.allx.nodes
        self.test = self._test_ids()
        self._check_shapes()

    def path(self, suffix: str) -> Path:
        """Return the path of ``ind.NAME.SUFFIX``."""
        return self.folder / f"ind.{self.name}.{suffix}"

    def _test_ids(self) -> np.ndarray:
        path = self.path("test.index")
        ids = column(path, "one node id per line", self.tx.nodes, self.known)
        if len(np.unique(ids)) != len(ids):
            raise UserError(f"{path}: a test node is listed twice")
        return ids

    def _check_shapes(self) -> None:
        for suffix, have, want in (
            ("ally", self.ally.shape[0], self.known),
            ("tx", self.tx.nodes, len(self.test)),
            ("ty", self.ty.shape[0], len(self.test)),
            ("tx", self.tx.width, self.allx.width),
            ("ty", self.ty.shape[1], self.ally.shape[1]),
        ):
            if have != want:
                others = f"the other files of {self.name} make it {want}"
                raise UserError(f"{self.path(suffix)}: has a side of {have} where {others}")
        if len(self.y) > self.known:
            rows = f"ind.{self.name}.allx has only {self.known} rows"
            raise UserError(f"{self.path('y')}: {len(self.y)} training nodes, but {rows}")


def load_edges(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the neighbour lists {node: [nodes]} as (src, dst)."""
    graph, expected = load(path), "expected {node: [neighbours]}"
    if not isinstance(graph, dict) or not all(type(ends) is list for ends in graph.values()):
        raise UserError(f"{path}: holds something else; {expected}")
    degrees = np.fromiter(map(len, graph.values()), np.int64, len(graph))
    if degrees.sum() > os.path.getsize(path):  # a pickle can repeat one list many times
        raise UserError(
            f"{path}: names {degrees.sum()} neighbours in {os.path.getsize(path)} bytes; {expected}"
        )
    ends = list(itertools.chain.from_iterable(graph.values()))
    for node in itertools.chain(graph, ends):
        if type(node) is not int or not 0 <= node <= HIGHEST_ID:
            raise UserError(f"{path}: node {str(node)[:40]!r} is no node id; {expected}")
    return np.repeat(np.array(list(graph), np.int64), degrees), np.array(ends, np.int64)


def open_source(path: Path, options: ImportOptions) -> Imported:
    """Open the undirected graph with features, labels and standard split of a Planetoid directory.

    Nodes 0..len(allx)-1 have the rows of allx and ally; node test.index[i] has row i of tx and ty, and other
    ids (15 in CiteSeer) no features and no label. Training nodes are the first len(y), validation the 500
    after them, test those of test.index.
    """
    files = Files(path)
    graph, known, test = files.path("graph"), files.known, files.test
    src, dst = load_edges(graph)
    n = 1 + max(known - 1, int(test.max(initial=-1)), int(src.max(initial=-1)), int(dst.max(initial=-1)))
    check_declared(n, path)
    source = Imported(files.name, graph, n, lambda: iter([(src, dst, None)]), options)
    source.set_features(_rows(n, files))
    labels = np.full(n, -1, np.int64)
    for nodes, hot in ((slice(known), files.ally), (test, files.ty)):
        labels[nodes] = np.where(hot.any(axis=1), hot.argmax(axis=1), -1)
    source.set_labels(labels, path, files.ally.shape[1])
    split, first = np.zeros(n, np.uint8), len(files.y)
    split[:first] = TRAIN
    split[first : min(first + STANDARD_VALIDATION, known)] = VAL
    split[test] = TEST
    source.set_split(split, path)
    source.settle_direction(directed=False)
    return source


def _rows(n: int, files: Files) -> SparseRows:
    """Put the rows of both matrices at their nodes; other nodes have no entries."""
    both, shift = (files.allx, files.tx), len(files.allx.columns)
    starts, ends = np.zeros((2, n), np.int64)
    for bounds, (known, test) in ((starts, (r.starts for r in both)), (ends, (r.ends for r in both))):
        bounds[: files.known], bounds[files.test] = known, test + shift
    columns, data = (np.concatenate([getattr(r, part) for r in both]) for part in ("columns", "data"))
    return SparseRows(starts, ends, columns, data, files.allx.width, files.folder)
