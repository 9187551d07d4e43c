"""Graphs as arrays with the names that PyG, DGL and OGB give them, in .npz and .pt files.

edge_index (2, edges), or src and dst; x, y, edge_weight; train_mask, val_mask, test_mask, or train_idx, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.split import NAMES
from distgnn.store.importers.arrays import Archive, indices, integers
from distgnn.store.importers.files import check_declared
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.labels import take_labels
from distgnn.store.importers.tables import DenseRows
from distgnn.store.source import Edges, ImportOptions

ENDS = (("src", "dst"), ("row", "col"), ("u", "v"))
FEATURES = ("x", "node_feat", "feat", "feature", "features")
LABELS = ("y", "label", "labels", "node_label")
WEIGHTS = ("edge_weight", "edge_weights", "weight", "weights", "edge_attr")
COUNTS = ("num_nodes", "n")
Ends = Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]


def has_graph(archive: Archive) -> bool:
    """Return True if the archive has edges."""
    return "edge_index" in archive or any(src in archive and dst in archive for src, dst in ENDS)


def open_arrays(archive: Archive, path: Path, options: ImportOptions) -> Imported:
    """Open the graph: column k of edge_index is an edge from its first row to its second.

    Row i of the other arrays is node i's.
    """
    features = [name for name in FEATURES if name in archive]
    table = DenseRows(archive.stored(features[0]), archive.where(features[0])) if features else None
    count, ends = edge_streams(archive)
    weights = weight_name(archive, count, options)

    def stream() -> Iterator[Edges]:
        values = iter(()) if weights is None else archive.stream(weights, 0, count)
        held = np.zeros(0)
        for src, dst in ends():
            while weights is not None and len(held) < len(src):
                held = np.concatenate([held, next(values).astype(np.float64)])
            yield src, dst, None if weights is None else held[: len(src)]
            held = held[len(src) :]

    n = nodes(archive, table)
    n = highest(ends) + 1 if n is None else n
    check_declared(n, path)
    source = Imported(path.stem, path, n, stream, options)
    source.edge_count = count
    more = weights if options.weights else None, first(archive, COUNTS)
    taken = [*end_names(archive), *filter(None, more)]
    if table is not None and not options.features:
        source.set_features(table)
        taken += features[:1]
    if (label := first(archive, LABELS)) is not None and not options.labels:
        set_labels(source, archive, label)
        taken.append(label)
    if options.split is None:
        taken += set_parts(source, archive)
    source.note_arrays(archive, taken)
    source.settle_direction(directed=True)
    return source


def highest(ends: Ends) -> int:
    """Find the highest end of an edge, -1 without edges."""
    return max((int(max(src.max(initial=-1), dst.max(initial=-1))) for src, dst in ends()), default=-1)


def first(archive: Archive, names: tuple[str, ...]) -> str | None:
    """Find the first of these names that the archive has."""
    return next((name for name in names if name in archive), None)


def end_names(archive: Archive) -> tuple[str, ...]:
    """Find the array or the two arrays that have the ends of edges."""
    if "edge_index" in archive:
        return ("edge_index",)
    return next(pair for pair in ENDS if pair[0] in archive and pair[1] in archive)


def edge_streams(archive: Archive) -> tuple[int, Ends]:
    """Return the number of edges, and a function that yields (sources, targets) of some at a time."""
    if "edge_index" not in archive:
        return _two_arrays(archive)
    header, where = archive.header("edge_index"), archive.where("edge_index")
    if len(header.shape) != 2 or header.shape[0] != 2:
        raise UserError(f"{where}: shape {header.shape}, expected (2, edges)")
    edges = header.shape[1]

    def stream() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if header.fortran:  # column after column, so the ends of an edge lie side by side
            held = np.zeros(0, header.dtype)
            for ends in archive.stream("edge_index", 0, 2 * edges):
                held = np.concatenate([held, ends])
                whole = len(held) // 2 * 2
                yield integers(held[0:whole:2], where), integers(held[1:whole:2], where)
                held = held[whole:]
            return
        sides = archive.stream("edge_index", 0, edges), archive.stream("edge_index", edges, edges)
        for src, dst in zip(*sides, strict=True):
            yield integers(src, where), integers(dst, where)

    return edges, stream


def _two_arrays(archive: Archive) -> tuple[int, Ends]:
    names = end_names(archive)
    shapes = [archive.header(name).shape for name in names]
    if len(shapes[0]) != 1 or shapes[0] != shapes[1]:
        problem = f"{names[0]} and {names[1]} have shapes {shapes[0]} and {shapes[1]}"
        raise UserError(f"{archive.path}: {problem}; expected (edges,) of both")

    def stream() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        sides = (archive.stream(name, 0, shapes[0][0]) for name in names)
        for src, dst in zip(*sides, strict=True):
            yield integers(src, archive.where(names[0])), integers(dst, archive.where(names[1]))

    return shapes[0][0], stream


def weight_name(archive: Archive, edges: int, options: ImportOptions) -> str | None:
    """Find the array of weights, one for each edge; None without one."""
    for name in WEIGHTS:
        if name in archive:
            shape = archive.header(name).shape
            if shape in ((edges,), (edges, 1)):
                return name
            if name != "edge_attr":
                raise UserError(f"{archive.where(name)}: shape {shape}, expected ({edges},)")
    if options.weights:
        raise UserError(
            f"{archive.path}: weights=True, but it has no edge_weight; it has {archive.described()}"
        )
    return None


def nodes(archive: Archive, table: DenseRows | None) -> int | None:
    """Return the number of nodes if an array gives it, else None."""
    if (name := first(archive, COUNTS)) is not None:
        count = archive.read(name).ravel()
        if len(count) != 1 or count.dtype.kind not in "iu":
            raise UserError(f"{archive.where(name)}: expected the number of nodes")
        return int(count[0])
    if table is not None:
        return table.nodes
    masks = (f"{part}_mask" for part in ("train", "val", "test"))
    if (name := first(archive, (*LABELS, *masks))) is not None:
        return (*archive.header(name, "biufUS").shape, 0)[0]
    return None


def set_labels(source: Imported, archive: Archive, name: str) -> None:
    """Take labels node by node: numbers, rows of zeros and ones, or strings."""
    words = archive.header(name, "biufUS").dtype.kind in "US"
    take_labels(source, archive.read(name) if words else archive.stored(name), archive.where(name))


def set_parts(source: Imported, archive: Archive) -> list[str]:
    """Set the split from masks or lists of nodes, if there are any; return the names of these arrays."""
    split, n, taken = np.zeros(source.n, np.uint8), source.n, list[str]()
    for part, names in NAMES.items():
        name = first(archive, tuple(f"{name}_{end}" for end in ("mask", "idx", "index") for name in names))
        if name is None:
            continue
        values, where = archive.read(name), archive.where(name)
        taken.append(name)
        if name.endswith("_mask"):
            if values.ndim == 2 and values.shape[1]:
                source.notes.append(f"{where}: {values.shape[1]} splits, of which the first is taken")
                values = values[:, 0]
            if values.shape != (n,):
                raise UserError(f"{where}: shape {values.shape}, expected ({n},)")
            if (wrong := ~np.isin(values, (0, 1))).any():
                node = int(np.argmax(wrong))
                raise UserError(f"{where}: node {node} has {values[node]}; expected 0 or 1 for each node")
            chosen = np.flatnonzero(values)
        else:
            chosen = indices(values.ravel(), n, where)
        if split[chosen].any():
            node = chosen[split[chosen] > 0][0]
            raise UserError(f"{where}: node {node} is in another part of the split already")
        split[chosen] = part
    if taken:
        source.set_split(split, archive.path)
    return taken
