"""OGB node-property directories: `raw/` with the graph and `split/NAME/` with its three lists of nodes.

The graph is in CSV files (`edge`, `num-node-list`, `num-edge-list`, `node-label`, `node-feat` or its .npy),
or in `data.npz` with edge_index and node_feat, and `node-label.npz`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.split import TEST, TRAIN, VAL
from distgnn.store.importers.arrays import Npz, indices, open_npy
from distgnn.store.importers.features import text_numbers
from distgnn.store.importers.files import check_declared
from distgnn.store.importers.graph_arrays import edge_streams
from distgnn.store.importers.imported import HIGHEST_ID, Imported, Stream
from distgnn.store.importers.labels import take_labels
from distgnn.store.importers.table import WantedColumn, numbers_of
from distgnn.store.importers.tables import DenseRows, FeatureRows
from distgnn.store.importers.text_table import TextTable, column
from distgnn.store.source import Edges, ImportOptions

# The graphs for which OGB's own loader adds the reverse of every edge; the directory itself does not say so.
UNDIRECTED = ("products", "proteins")


def _file(folder: Path, stem: str) -> Path:
    """Return the path of stem.csv.gz, or of stem.csv if only that exists."""
    packed, plain = folder / f"{stem}.csv.gz", folder / f"{stem}.csv"
    return plain if plain.exists() and not packed.exists() else packed


def _one_count(path: Path) -> int:
    """Read the only number of a num-*-list file: these directories hold one graph."""
    counts = column(path, "one count", 100)
    if len(counts) != 1 or not 0 <= counts[0] <= HIGHEST_ID:
        raise UserError(f"{path}: expected the size of one graph, found {counts[:3].tolist()}")
    return int(counts[0])


def open_source(path: Path, options: ImportOptions) -> Imported:
    """Open the graph, directed unless OGB adds reverse edges to this data set; `directed` overrides."""
    raw = path / "raw"
    n, stream, table, edges = _archived(raw, options) if (raw / "data.npz").exists() else _csv(raw, options)
    check_declared(n, raw)
    if table and table.nodes != n:
        raise UserError(f"{raw}: features of {table.nodes} nodes for a graph of {n}")
    data_set = path.resolve().name  # resolves ogbn_products/. too
    source = Imported(data_set, edges, n, stream, options)
    source.set_features(table)
    _set_labels(source, raw, options)
    if options.split is None:
        _set_split(source, path / "split")
    source.settle_direction(directed=not any(name in data_set for name in UNDIRECTED))
    return source


def _csv(raw: Path, options: ImportOptions) -> tuple[int, Stream, FeatureRows | None, Path]:
    path, array = _file(raw, "edge"), raw / "node-feat.npy"
    n, edges = _one_count(_file(raw, "num-node-list")), _one_count(_file(raw, "num-edge-list"))
    table = TextTable.plain(path, ["integers"] * 2, separator=",")
    wanted, promised = [WantedColumn(k, "integers", "a node id") for k in range(2)], (edges, "num-edge-list")

    def stream() -> Iterator[Edges]:
        return ((src, dst, None) for src, dst in numbers_of(table, wanted, 0, n - 1, promised))

    features: FeatureRows | None = None
    if array.exists():
        features = DenseRows(open_npy(array), array)
    elif _file(raw, "node-feat").exists():
        features = text_numbers(_file(raw, "node-feat"), options, "refuse")
    return n, stream, features, path


def _archived(raw: Path, options: ImportOptions) -> tuple[int, Stream, FeatureRows | None, Path]:
    path, table = raw / "data.npz", None
    archive = Npz(path, options.scratch)
    if "edge_index" not in archive:
        raise UserError(f"{path}: has no array 'edge_index'; it has {archive.described()}")
    _, ends = edge_streams(archive)
    if "node_feat" in archive:
        table = DenseRows(archive.stored("node_feat"), archive.where("node_feat"))

    def stream() -> Iterator[Edges]:
        return ((src, dst, None) for src, dst in ends())

    return _archived_nodes(archive, table), stream, table, path


def _archived_nodes(archive: Npz, table: DenseRows | None) -> int:
    if "num_nodes_list" in archive:
        counts = archive.integers("num_nodes_list").ravel()
        if len(counts) != 1:
            raise UserError(f"{archive.where('num_nodes_list')}: {len(counts)} graphs, expected one")
        return int(counts[0])
    if table is None:
        neither = "has neither 'num_nodes_list' nor 'node_feat'"
        raise UserError(f"{archive.path}: {neither}, so the number of nodes is unknown")
    return table.nodes


def _set_labels(source: Imported, raw: Path, options: ImportOptions) -> None:
    """Set labels if there are any: a class of each node or a row of zeros and ones, NaN for none."""
    path = raw / "node-label.npz"
    if path.exists():
        values: Any = Npz(path, options.scratch).stored("node_label")
    elif (path := _file(raw, "node-label")).exists():
        values = text_numbers(path, options, "nothing").array
    else:
        return
    take_labels(source, values, path)


def _set_split(source: Imported, folder: Path) -> None:
    """Set the split from the three lists of the only split in the folder, if there is one."""
    choices = sorted(filter(Path.is_dir, folder.glob("*")))
    if not choices:
        return
    if len(choices) > 1:
        splits = f"has {len(choices)} splits, {', '.join(c.name for c in choices)}"
        raise UserError(f"{folder}: {splits}; keep one of them or give split=TRAIN/VAL/TEST")
    split = np.zeros(source.n, np.uint8)
    for part, name in ((TRAIN, "train"), (VAL, "valid"), (TEST, "test")):
        path = _file(choices[0], name)
        ids = column(path, "one node id per line", source.n)
        ids = indices(ids, source.n, path)
        if split[ids].any():
            raise UserError(f"{path}: node {ids[split[ids] > 0][0]} is in another part of the split already")
        split[ids] = part
    source.set_split(split, folder)
