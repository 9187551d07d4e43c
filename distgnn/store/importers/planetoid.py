"""Planetoid directories: `ind.NAME.{x,tx,allx,y,ty,ally,graph,test.index}` (Cora, CiteSeer, PubMed).

All but the last are pickles, which `pickles.py` reads without trusting them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse

from distgnn.errors import UserError
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.pickles import load, load_array, load_csr
from distgnn.store.importers.tables import SparseRows
from distgnn.store.importers.text import Table
from distgnn.store.source import EDGE_CHUNK, TEST, TRAIN, VALIDATION, Edges, ImportOptions

STANDARD_VALIDATION = 500


def load_edges(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The neighbour lists {node: [nodes]} as (src, dst)."""
    graph = load(path)
    try:
        if not isinstance(graph, dict):
            raise TypeError(f"{type(graph).__name__} instead of a dictionary")
        degrees = np.fromiter((len(ends) for ends in graph.values()), np.int64, len(graph))
        src = np.repeat(np.array(list(graph), dtype=np.int64), degrees)
        dst = np.fromiter((end for ends in graph.values() for end in ends), np.int64, len(src))
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: expected {{node: [neighbours]}} ({error})") from None
    return src, dst


def data_name(folder: Path) -> str:
    """NAME of the only data set in the folder."""
    names = sorted(entry.name[4:-6] for entry in folder.glob("ind.*.graph"))
    if len(names) != 1:
        have = ", ".join(names) or "none"
        raise UserError(f"{folder}: expected the files ind.NAME.* of one Planetoid data set, found {have}")
    return names[0]


def _test_ids(path: Path, first: int) -> np.ndarray:
    table = Table(
        path,
        np.dtype([("id", np.int64)]),
        "one node id per line",
        check=lambda rows: f"not above {first - 1}" if rows["id"].min() < first else None,
    )
    parts = [rows["id"] for rows in table]
    ids = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    if len(np.unique(ids)) != len(ids):
        raise UserError(f"{path}: a test node is listed twice")
    return ids


def open_source(path: Path, options: ImportOptions) -> Imported:
    """The undirected graph, binary features as they are, labels and the standard split of a Planetoid
    directory.

    Nodes 0..len(allx)-1 have the rows of allx and ally; node test.index[i] has row i of tx and ty. An id that
    is missing from test.index (CiteSeer has 15) is a node with zero features and no label. Training nodes are
    the first len(y), validation the 500 after them, test those of test.index.
    """

    def part(suffix: str) -> Path:
        return path / f"ind.{name}.{suffix}"

    name = data_name(path)
    allx, tx = load_csr(part("allx")), load_csr(part("tx"))
    ally, ty, y = (
        load_array(part(suffix), 2, "a matrix of one-hot labels") for suffix in ("ally", "ty", "y")
    )
    known = allx.shape[0]
    test = _test_ids(part("test.index"), known)
    for suffix, have, want in (
        ("ally", ally.shape[0], known),
        ("ally", min(ally.shape[1], 1), 1),
        ("tx", tx.shape[0], len(test)),
        ("ty", ty.shape[0], len(test)),
        ("tx", tx.shape[1], allx.shape[1]),
        ("ty", ty.shape[1], ally.shape[1]),
    ):
        if have != want:
            raise UserError(
                f"{part(suffix)}: has a side of {have} where the other files of {name} make it {want}"
            )
    if y.shape[0] > known:
        raise UserError(
            f"{part('y')}: {y.shape[0]} training nodes, but ind.{name}.allx has only {known} rows"
        )
    src, dst = load_edges(part("graph"))
    n = 1 + max(known - 1, int(test.max(initial=-1)), int(src.max(initial=-1)), int(dst.max(initial=-1)))
    if n > 1 << 31:
        raise UserError(f"{part('graph')}: node id {n - 1} is too large for a Planetoid data set")

    def stream() -> Iterator[Edges]:
        for lo in range(0, len(src), EDGE_CHUNK):
            yield src[lo : lo + EDGE_CHUNK], dst[lo : lo + EDGE_CHUNK], None

    source = Imported(name, part("graph"), n, stream, options, _rows(n, allx, tx, test, path))
    labels = np.full(n, -1, np.int64)
    labels[:known], labels[test] = _hot(ally), _hot(ty)
    source.set_labels(labels, path, ally.shape[1])
    split = np.zeros(n, np.uint8)
    split[: len(y)] = TRAIN
    split[len(y) : min(len(y) + STANDARD_VALIDATION, known)] = VALIDATION
    split[test] = TEST
    source.set_split(split, path)
    source.settle_direction(directed=False)
    return source


def _hot(rows: np.ndarray) -> np.ndarray:
    return np.where(rows.any(axis=1), rows.argmax(axis=1), -1)


def _rows(
    n: int, allx: scipy.sparse.csr_matrix, tx: scipy.sparse.csr_matrix, test: np.ndarray, path: Path
) -> SparseRows:
    """The rows of both matrices at the nodes they belong to, none for the rest."""
    order = np.argsort(test, kind="stable")
    counts = np.zeros(n, np.int64)
    counts[: allx.shape[0]] = np.diff(allx.indptr)
    counts[test] = np.diff(tx.indptr)
    stacked = scipy.sparse.vstack([allx, tx[order]], format="csr")
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return SparseRows(indptr, stacked.indices, stacked.data, allx.shape[1], path)
