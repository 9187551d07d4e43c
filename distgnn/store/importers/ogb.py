"""OGB node-property directories: `raw/` with the graph and `split/NAME/` with its three lists of nodes.

Two layouts exist: CSV files (`edge.csv.gz`, `num-node-list.csv.gz`, `num-edge-list.csv.gz`,
`node-feat.csv.gz`, `node-label.csv.gz`) and, for the largest graphs, archives (`data.npz` with edge_index and
node_feat, `node-label.npz`). Features may also lie beside the CSV files as `node-feat.npy`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.arrays import Npz, integers, open_npy
from distgnn.store.importers.feature_files import dense_csv
from distgnn.store.importers.imported import HIGHEST_ID, Imported, Stream, check_ids
from distgnn.store.importers.tables import DenseRows, Features
from distgnn.store.importers.text import Table
from distgnn.store.source import TEST, TRAIN, VALIDATION, Edges, ImportOptions

# The graphs for which OGB's own loader adds the reverse of every edge; the directory itself does not say so.
UNDIRECTED = ("products", "proteins")


def is_ogb(path: Path) -> bool:
    return any((path / "raw" / name).exists() for name in ("edge.csv.gz", "edge.csv", "data.npz"))


def _file(folder: Path, stem: str) -> Path:
    """stem.csv.gz, or stem.csv where only that exists."""
    packed = folder / f"{stem}.csv.gz"
    plain = folder / f"{stem}.csv"
    return plain if plain.exists() and not packed.exists() else packed


def _one_count(path: Path) -> int:
    """The only number of a num-*-list file: these directories hold one graph."""
    counts = _column(path, "one count")
    if len(counts) != 1 or not 0 <= counts[0] <= HIGHEST_ID:
        raise UserError(f"{path}: expected the size of one graph, found {counts[:3].tolist()}")
    return int(counts[0])


def _column(path: Path, expected: str) -> np.ndarray:
    """A file with one integer per line."""
    parts = [rows["value"] for rows in Table(path, np.dtype([("value", np.int64)]), expected, ",")]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def open_source(path: Path, options: ImportOptions) -> Imported:
    """The graph; undirected for the data sets to which OGB adds reverse edges, else directed (`directed`
    overrides).
    """
    raw = path / "raw"
    n, stream, table, edges = _archived(raw, options) if (raw / "data.npz").exists() else _csv(raw, options)
    if table and table.nodes != n:
        raise UserError(f"{raw}: features of {table.nodes} nodes for a graph of {n}")
    data_set = path.resolve().name  # of ogbn_products/. too
    source = Imported(data_set, edges, n, stream, options, table)
    labels, where = _labels(raw)
    if labels is not None:
        source.set_labels(labels, where)
    split = _split(path / "split", n)
    if split is not None:
        source.set_split(split, path / "split")
    source.settle_direction(directed=not any(name in data_set for name in UNDIRECTED))
    return source


def _csv(raw: Path, options: ImportOptions) -> tuple[int, Stream, Features | None, Path]:
    path = _file(raw, "edge")
    n = _one_count(_file(raw, "num-node-list"))
    edges = _one_count(_file(raw, "num-edge-list"))

    def outside(rows: np.ndarray) -> str | None:
        inside = all(rows[side].min() >= 0 and rows[side].max() < n for side in ("src", "dst"))
        return None if inside else f"node id outside 0..{n - 1}"

    table = Table(path, np.dtype([("src", np.int64), ("dst", np.int64)]), "SOURCE,TARGET", ",", check=outside)

    def stream() -> Iterator[Edges]:
        count = 0
        for rows in table:
            count += len(rows)
            yield rows["src"], rows["dst"], None
        if count != edges:
            raise UserError(
                f"{path}: {count} edges, but num-edge-list promises {edges}; is the file truncated?"
            )

    features: Features | None = None
    if (raw / "node-feat.npy").exists():
        features = DenseRows(open_npy(raw / "node-feat.npy"), raw / "node-feat.npy")
    elif _file(raw, "node-feat").exists():
        features = dense_csv(_file(raw, "node-feat"), options.scratch)
    return n, stream, features, path


def _archived(raw: Path, options: ImportOptions) -> tuple[int, Stream, Features | None, Path]:
    path = raw / "data.npz"
    archive = Npz(path, options.scratch)
    header = archive.header("edge_index")
    if len(header.shape) != 2 or header.shape[0] != 2:
        raise UserError(f"{path}, array 'edge_index': shape {header.shape}, expected (2, edges)")
    edges = header.shape[1]
    table = (
        DenseRows(archive.stored("node_feat"), f"{path}, array 'node_feat'")
        if "node_feat" in archive
        else None
    )
    if "num_nodes_list" in archive:
        counts = integers(archive.read("num_nodes_list"), f"{path}, array 'num_nodes_list'").ravel()
        if len(counts) != 1:
            raise UserError(f"{path}, array 'num_nodes_list': {len(counts)} graphs, expected one")
        n = int(counts[0])
    elif table:
        n = table.nodes
    else:
        raise UserError(
            f"{path}: has neither 'num_nodes_list' nor 'node_feat', so the number of nodes is unknown"
        )

    def stream() -> Iterator[Edges]:
        where = f"{path}, array 'edge_index'"
        if header.fortran:  # column after column, so the ends of an edge lie side by side
            for ends in archive.stream("edge_index", 0, 2 * edges):
                yield integers(ends[0::2], where), integers(ends[1::2], where), None
            return
        sides = archive.stream("edge_index", 0, edges), archive.stream("edge_index", edges, edges)
        for src, dst in zip(*sides, strict=True):
            yield integers(src, where), integers(dst, where), None

    return n, stream, table, path


def _labels(raw: Path) -> tuple[np.ndarray | None, Path]:
    """One class per node; NaN where a node has none."""
    path = raw / "node-label.npz"
    if path.exists():
        values = Npz(path).read("node_label")
        if values.ndim == 2 and values.shape[1] != 1:
            raise UserError(f"{path}: {values.shape[1]} labels per node; expected one class per node")
        return _classes(values.ravel().astype(np.float64), path), path
    path = _file(raw, "node-label")
    if not path.exists():
        return None, path
    table = Table(path, np.dtype([("label", np.float64)]), "one class per node", ",")
    parts = [rows["label"] for rows in table]
    return _classes(np.concatenate(parts) if parts else np.zeros(0), path), path


def _classes(values: np.ndarray, path: Path) -> np.ndarray:
    values = np.where(np.isnan(values), -1, values)
    if not np.isfinite(values).all() or (values != np.rint(values)).any():
        raise UserError(
            f"{path}: labels must be whole numbers, found {values[values != np.rint(values)][:1]}"
        )
    return values.astype(np.int64)


def _split(folder: Path, n: int) -> np.ndarray | None:
    """The three lists of the only split in the folder; None where there is none."""
    choices = sorted(entry for entry in folder.glob("*") if entry.is_dir())
    if not choices:
        return None
    if len(choices) > 1:
        raise UserError(
            f"{folder}: has {len(choices)} splits, {', '.join(c.name for c in choices)}; keep one of them "
            "or give --split"
        )
    split = np.zeros(n, np.uint8)
    for part, name in ((TRAIN, "train"), (VALIDATION, "valid"), (TEST, "test")):
        path = _file(choices[0], name)
        ids = _column(path, "one node id per line")
        check_ids(ids, n, path)
        if split[ids].any():
            raise UserError(f"{path}: node {ids[split[ids] > 0][0]} is in another part of the split already")
        split[ids] = part
    return split
