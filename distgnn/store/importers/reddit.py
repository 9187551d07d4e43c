"""A directory with the pair `NAME_graph.npz` (a SciPy matrix) and `NAME_data.npz` (feature, label,
node_types, node_ids)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.arrays import Npz
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.npz import scipy_matrix
from distgnn.store.importers.tables import DenseRows
from distgnn.store.source import ImportOptions


def find_pair(folder: Path) -> tuple[Path, Path] | None:
    """The only NAME_graph.npz of the folder that has its NAME_data.npz beside it."""
    graphs = sorted(folder.glob("*_graph.npz"))
    pairs = [(path, path.with_name(path.name.removesuffix("_graph.npz") + "_data.npz")) for path in graphs]
    pairs = [pair for pair in pairs if pair[1].exists()]
    return pairs[0] if len(pairs) == 1 else None


def open_source(path: Path, options: ImportOptions) -> Imported:
    """Row i of `feature`, `label`, `node_types` (1 train, 2 validation, 3 test) is node node_ids[i]'s."""
    pair = find_pair(path)
    if pair is None:
        raise UserError(f"{path}: expected exactly one pair NAME_graph.npz and NAME_data.npz")
    graph, data = pair
    source = scipy_matrix(Npz(graph, options.scratch), graph, options)
    source.name = graph.name.removesuffix("_graph.npz")
    archive = Npz(data, options.scratch)
    places = _places(archive, source.n)
    table = DenseRows(archive.stored("feature"), archive.where("feature"), places)
    if len(table.array) != source.n:
        raise UserError(f"{table.path}: {len(table.array)} rows for {source.n} nodes")
    source.set_features(table)
    source.set_labels(_node_array(archive, "label", source.n)[places], data)
    if "node_types" in archive:
        source.set_split(_node_array(archive, "node_types", source.n)[places], data)
    return source


def _node_array(archive: Npz, name: str, n: int) -> np.ndarray:
    array = archive.integers(name).ravel()
    if len(array) != n:
        raise UserError(f"{archive.where(name)}: {len(array)} entries for {n} nodes")
    return array


def _places(archive: Npz, n: int) -> np.ndarray:
    """The inverse of `node_ids`: in which row a node is."""
    if "node_ids" not in archive:
        return np.arange(n)
    ids = _node_array(archive, "node_ids", n)
    places = np.full(n, -1, np.int64)
    if n and ids.min() >= 0 and ids.max() < n:
        places[ids] = np.arange(n)
    if (places < 0).any():
        raise UserError(f"{archive.where('node_ids')}: expected every node 0..{n - 1} once")
    return places
