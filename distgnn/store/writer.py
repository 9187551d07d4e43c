"""From a Source to a store: stream, bucket, sort, normalise, publish."""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from distgnn import backend
from distgnn.errors import UserError
from distgnn.layout import partition
from distgnn.partition import Quality, Wanted, check_names, measure
from distgnn.partition.pattern import Pattern
from distgnn.store import manifest, nodes, orders
from distgnn.store.adjacency import PIECE, AdjacencyWriter, Scale, Seen, ShardGrid
from distgnn.store.loader import Order
from distgnn.store.orders import MatrixOrder, Version
from distgnn.store.publish import check_target, new_directory
from distgnn.store.source import Source

log = logging.getLogger(__name__)

NORMALIZATIONS = ("gcn", "row", "none")
DTYPES = ("float32", "float64")
MOST_SHARDS = 1 << 16  # each is a file

Edges = tuple[np.ndarray, np.ndarray, "np.ndarray | None"]


@dataclass
class Summary:
    """What `prepare` did. `partitions`: order -> what it costs. `stages`: (name, seconds, peak resident bytes of the process by
    its end)."""

    out: str
    n: int = 0
    nnz: int = 0
    edges: int = 0
    directed: bool = False
    width: int = 0
    classes: int = 0
    labelled: int = 0
    split: dict[str, int] | None = None
    shards: dict[str, tuple[int, int]] = field(default_factory=dict)
    partitions: dict[str, Quality] = field(default_factory=dict)
    stages: list[tuple[str, float, int]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds, _ in self.stages)

    @property
    def peak_bytes(self) -> int:
        return max((peak for _, _, peak in self.stages), default=0)


def prepare(
    source: Source,
    out: str | os.PathLike[str],
    *,
    order: Sequence[str] = ("random",),
    seed: int = 0,
    shards: tuple[int, int] | None = None,
    normalize: str = "gcn",
    self_loops: bool = True,
    dtype: str = "float32",
    force: bool = False,
    partitions: Sequence[Wanted] = (),
) -> Summary:
    """Write the store `out` (a directory, by custom NAME.dg) from a Source, in this process alone.

    A[i, j] is the weight of edge j -> i (1 without weights), and of i -> j too unless the source is directed; of repeated edges
    the largest weight counts. `self_loops` adds A[i, i] = 1 where there is no such entry. With d the row sums,

        gcn     A[i, j] d_i^-1/2 d_j^-1/2, exactly symmetric where A is       (Kipf and Welling; CAGNET section III)
        row     A[i, j] d_i^-1
        none    A[i, j]

    and 0 in place of 0^-1/2 and 0^-1.

    Args:
        order: the orders to write (`orders.KNOWN`); the first is the default, and features and labels are stored in it (as its
            layer 0 takes them).
        seed: of the random permutations.
        shards: rows and columns of the grid of shards; by default from the sizes, so that a shard stays bounded.
        dtype: of A's values, float32 or float64 (features are always float32).
        force: replace an existing store once the new one is complete.
        partitions: further orders, by partition (``distgnn.partition``), each with the partition vector of its parts.

    Memory: a few arrays of one number per node, and a few hundred MB for the shard in work, whatever the number of edges; with
    partitions, all of A's structure too, and what the partitioner takes. Disk: besides the store, 8 bytes per entry (16 with
    weights) and a copy of the features until it is done.

    Raises:
        UserError: bad arguments or data, or `out` exists. Nothing is left behind then, nor after any other exception.
    """
    check_arguments(out, order=order, normalize=normalize, dtype=dtype, force=force, partitions=partitions)
    _check_source(source)
    for wanted in partitions:
        wanted.check(source.n)
    if shards is not None:
        _check_shards(*shards)
    with new_directory(out, force=force, replaceable=_is_store) as folder:
        work = _Preparation(source, folder, np.dtype(dtype), normalize, self_loops, seed, Summary(str(out)))
        return work.run(order, shards, partitions)


def check_arguments(
    out: str | os.PathLike[str], *, order: Sequence[str], normalize: str = "gcn", dtype: str = "float32", force: bool = False,
    partitions: Sequence[Wanted] = (),
) -> None:  # fmt: skip
    """The UserError that `prepare` would raise for its arguments: worth knowing before a long import."""
    orders.check_names(order)
    check_names(partitions)
    for wanted in partitions:
        wanted.check()
    _choice("--normalize", normalize, NORMALIZATIONS)
    _choice("--dtype", dtype, DTYPES)
    check_target(out, force=force, replaceable=_is_store)


def parse_shards(text: str) -> tuple[int, int]:
    """The grid that `--shards RxC` names."""
    try:
        rows, cols = (int(part) for part in text.lower().split("x"))
        if rows < 1 or cols < 1:
            raise ValueError
    except ValueError:
        raise UserError(f"--shards {text!r}: expected ROWSxCOLUMNS, such as 4x4") from None
    _check_shards(rows, cols)
    return rows, cols


@dataclass
class _Preparation:
    """One call of `prepare`: what all its steps need."""

    source: Source
    folder: Path
    dtype: np.dtype
    normalize: str
    self_loops: bool
    seed: int
    summary: Summary

    def __post_init__(self) -> None:
        self.n = self.summary.n = self.source.n
        self.summary.directed = bool(self.source.directed)
        self.symmetric = not self.source.directed and self.normalize != "row"
        self.scratch = self.folder / "scratch"
        self.started = time.perf_counter()

    def run(self, names: Sequence[str], shards: tuple[int, int] | None, partitions: Sequence[Wanted]) -> Summary:
        self.scratch.mkdir()
        made = [orders.make(name, self.n, self.seed) for name in names]
        first = made[0]
        grid = self._grid(shards)
        parts = nodes.row_partition(self.n, self.source.width)
        content = self._describe()
        for name in ("width", "classes", "labelled", "split"):
            setattr(self.summary, name, content[name])
        content["nodes"] = self._write_nodes(parts, first)
        content["orders"] = {}
        for order in itertools.chain(made, self._partitioned(partitions)):
            entries = []
            for path, version in _paths(order):
                entries.append(entry := self._write_permutation(path, version, order.partition, parts))
                if order is first and len(entries) == 1:
                    degrees = self._write_first(path, version, entry, grid)
                    content.update(edges=self.summary.edges, nnz=self.summary.nnz, weighted=self.weighted, degrees=degrees)
                    self.first = version, Order(self.folder, order.name, entry, self.n, self.dtype)
                else:
                    self._write_other(path, version, entry, order.partition)
            content["orders"][order.name] = entries[0] if len(entries) == 1 else {"versions": entries}
            self.summary.shards[order.name] = len(entry["rows"]) - 1, len(entry["cols"]) - 1
        shutil.rmtree(self.scratch)
        self._finish(content)
        return self.summary

    # -- the parts, in the order they are written --------------------------------------------------------------------------

    def _grid(self, shards: tuple[int, int] | None) -> ShardGrid:
        if shards is not None:
            return ShardGrid(partition(self.n, shards[0]), partition(self.n, shards[1]))
        edges = self.source.edge_count
        if edges is None:
            edges = sum(len(src) for src, _, _ in self.source.edges())
            self._stage("count")
        return ShardGrid.for_size(self.n, edges * (1 if self.source.directed else 2) + self.n * self.self_loops)

    def _write_nodes(self, parts: np.ndarray, order: MatrixOrder) -> dict[str, Any]:
        (self.folder / "nodes").mkdir()
        paths = nodes.write_nodes(self.folder / "nodes", self.scratch, parts, self.source, order.input)
        self._stage("features")
        return {"order": order.name, "partition": parts.tolist(), "files": self._relative(paths)}

    def _write_permutation(
        self, path: str, version: Version, vector: np.ndarray | None, parts: np.ndarray
    ) -> dict[str, Any]:  # fmt: skip
        """The permutation of a version's rows, in files; begins the version's entry in the manifest."""
        folder = self.folder / path
        folder.mkdir(parents=True)
        entry: dict[str, Any] = {"permutation": None, "partition": None if vector is None else vector.tolist()}
        entry["symmetric"] = self.symmetric and version.alike
        if version.rows.permutation is not None:
            paths = nodes.write_permutation(folder, parts, version.rows)
            entry["permutation"] = {"partition": parts.tolist(), "files": self._relative(paths)}
        return entry

    def _write_first(self, path: str, version: Version, entry: dict[str, Any], grid: ShardGrid) -> dict[str, Any]:
        """Shards of the first order (of its first version), from the source. Returns the degree statistics."""
        edges = self._edges()
        head = next(edges, None)
        self.weighted = head is not None and head[2] is not None
        rows, cols = version.rows.positions, version.cols.positions
        writer = self._writer(path, grid, np.float64 if self.weighted else None)
        for src, dst, weights in itertools.chain([] if head is None else [head], edges):
            if weights is not None and not self.weighted:
                raise ValueError(f"{self.source.name}: some edges have weights, but the first ones had none")
            writer.add(rows(dst), cols(src), weights)
            if not self.source.directed:
                writer.add(rows(src), cols(dst), weights)
        if self.self_loops:
            for lo in range(0, self.n, PIECE):
                loops = np.arange(lo, min(lo + PIECE, self.n))
                writer.add(rows(loops), cols(loops), np.full(len(loops), -np.inf) if self.weighted else None)
        degrees = _Degrees(self.n, version)
        self._write_shards(writer, entry, path, degrees.count, lambda: self._scaling(degrees))
        self.summary.nnz = int(writer.nnz.sum())
        return degrees.statistics()

    def _write_other(self, path: str, version: Version, entry: dict[str, Any], vector: np.ndarray | None) -> None:
        """Shards of a further order or version, from those of the first: the same values, moved."""
        grid = ShardGrid(self.first[1].rows, self.first[1].cols)
        writer = self._writer(path, grid if vector is None else grid.aligned(vector), self.dtype)
        for rows, cols, values in self._entries():
            writer.add(version.rows.positions(rows), version.cols.positions(cols), values)
        self._write_shards(writer, entry, path)

    def _entries(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(ids of rows, ids of columns, values) of all that the first order holds by now, in pieces."""
        version, matrix = self.first
        for rows, cols, values in matrix.entries(PIECE):
            yield version.rows.ids(rows), version.cols.ids(cols), values

    def _partitioned(self, partitions: Sequence[Wanted]) -> Iterator[MatrixOrder]:
        """Orders by partition of the graph that the first order holds by now."""
        if not partitions:
            return
        pattern = Pattern.of_entries(self.n, ((rows, cols) for rows, cols, _ in self._entries()))
        self._stage("read structure")
        for wanted in partitions:
            part = wanted.make(pattern, self.seed)
            self.summary.partitions[wanted.name] = measure(pattern, part, wanted.parts)
            self._stage(f"partition {wanted.name}")
            yield orders.by_parts(wanted.name, part, wanted.parts)

    def _writer(self, path: str, grid: ShardGrid, weight: Any) -> AdjacencyWriter:
        return AdjacencyWriter(self.folder / path, self.scratch, grid, weight)

    def _write_shards(
        self, writer: AdjacencyWriter, entry: dict[str, Any], path: str, seen: Seen | None = None, scaling: Any = None
    ) -> None:
        """Turn what the writer has been given into files, and say in the version's `entry` where they are."""
        name = path.partition("/")[2]
        self._stage(f"bucket {name}")
        writer.write_structure(seen)
        self._stage(f"sort {name}")
        writer.write_values(self.dtype, scaling() if scaling else None)
        self._stage(f"values {name}")
        height, width = writer.grid.shape
        entry["rows"], entry["cols"] = writer.grid.rows.tolist(), writer.grid.cols.tolist()
        entry["nnz"] = writer.nnz.tolist()
        entry["files"] = [self._relative([writer.path(i, j) for j in range(width)]) for i in range(height)]

    def _finish(self, content: dict[str, Any]) -> None:
        """Everything to disk, and the manifest that says so."""
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        content["files"] = {path.relative_to(self.folder).as_posix(): manifest.fingerprint(path, sync=True) for path in paths}
        for path in [path for path in self.folder.rglob("*") if path.is_dir()]:
            manifest.sync_folder(path)
        manifest.write(self.folder, content)
        self._stage("finish")

    # -- inside ----------------------------------------------------------------------------------------------------------

    def _describe(self) -> dict[str, Any]:
        source, labels = self.source, self.source.labels
        split = None
        if source.split is not None:
            sizes = np.bincount(source.split, minlength=4).tolist()
            split = {"train": sizes[1], "validation": sizes[2], "test": sizes[3]}
        return {
            "format": manifest.FORMAT, "version": manifest.VERSION, "source": source.name, "seed": self.seed,
            "n": self.n, "nnz": 0, "edges": 0, "dtype": self.dtype.name, "width": int(source.width),
            "classes": int(source.classes), "class_names": source.class_names,
            "labelled": 0 if labels is None else int(np.count_nonzero(labels >= 0)), "split": split,
            "directed": bool(source.directed), "weighted": False, "self_loops": self.self_loops,
            "normalize": self.normalize, "symmetric": self.symmetric,
        }  # fmt: skip

    def _edges(self) -> Iterator[Edges]:
        """The source's edges, checked, in pieces of at most PIECE."""
        for src, dst, weights in self.source.edges():
            for lo in range(0, len(src), PIECE):
                piece = slice(lo, lo + PIECE)
                chunk = (src[piece], dst[piece], None if weights is None else weights[piece])
                _check_edges(self.source.name, self.n, self.summary.edges, *chunk)
                self.summary.edges += len(chunk[0])
                yield chunk

    def _scaling(self, degrees: _Degrees) -> Scale | None:
        if self.normalize == "none":
            return None
        sums = degrees.sums
        if np.any(sums < 0):
            raise UserError(
                f"--normalize {self.normalize}: a node's edge weights sum to {sums.min():g}; "
                "negative weights need --normalize none"
            )
        if self.normalize == "row":
            inverse = np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)
            return lambda rows, cols: inverse[rows]
        root = np.divide(1.0, np.sqrt(sums), out=np.zeros_like(sums), where=sums > 0)
        of_cols = degrees.by_column(root)
        return lambda rows, cols: root[rows] * of_cols[cols]  # this product first: it is the same for (i, j) and (j, i)

    def _relative(self, paths: Sequence[Path]) -> list[str]:
        return [path.relative_to(self.folder).as_posix() for path in paths]

    def _stage(self, name: str) -> None:
        now = time.perf_counter()
        peak = backend.get("numpy").peak_bytes()
        self.summary.stages.append((name, now - self.started, peak))
        log.info("%s: %.1f s, peak memory so far %.0f MiB", name, now - self.started, peak / 2**20)
        self.started = now


def _paths(order: MatrixOrder) -> Iterator[tuple[str, Version]]:
    """Every version of an order and the folder it goes to."""
    folder = f"orders/{order.name}"
    names = [folder] if len(order.versions) == 1 else [f"{folder}/even", f"{folder}/odd"]
    yield from zip(names, order.versions, strict=True)


class _Degrees:
    """Row sums, and neighbours without the node itself, by row of a version of the matrix, added up shard by shard."""

    def __init__(self, n: int, version: Version) -> None:
        self.version = version
        self.sums = np.zeros(n)
        self.neighbours = np.zeros(n, np.int64)

    def count(self, rows: np.ndarray, cols: np.ndarray, weights: np.ndarray | None) -> None:
        lo, hi = rows[0], rows[-1] + 1
        self.sums[lo:hi] += np.bincount(rows - lo, weights)
        others = rows != self.rows_of(cols)
        self.neighbours[lo:hi] += np.bincount(rows - lo, others).astype(np.int64)

    def rows_of(self, cols: np.ndarray) -> np.ndarray:
        """Where the nodes at these columns have their rows."""
        return cols if self.version.alike else self.version.rows.positions(self.version.cols.ids(cols))

    def by_column(self, by_row: np.ndarray) -> np.ndarray:
        """Numbers given by row, by column."""
        return by_row if self.version.alike else by_row[self.rows_of(np.arange(len(by_row)))]

    def statistics(self) -> dict[str, Any]:
        d = self.neighbours
        return {"min": int(d.min()), "mean": float(d.mean()), "max": int(d.max()), "isolated": int(np.count_nonzero(d == 0))}


def _choice(flag: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UserError(f"{flag} {value}: expected one of {', '.join(known)}")


def _check_shards(rows: int, cols: int) -> None:
    if rows * cols > MOST_SHARDS:
        side = math.isqrt(MOST_SHARDS)
        raise UserError(f"--shards {rows}x{cols}: {rows * cols} files; at most {MOST_SHARDS} are possible, such as {side}x{side}")


def _is_store(path: Path) -> bool:
    """May --force replace this? A store, readable or damaged, of this or another schema version."""
    try:
        content = json.loads((path / manifest.NAME).read_text())
    except (OSError, ValueError):
        return path.suffix == ".dg" and (path / manifest.NAME).exists()
    return isinstance(content, dict) and content.get("format") == manifest.FORMAT


def _check_source(source: Source) -> None:
    if source.n < 1:
        raise UserError(f"{source.name}: has no nodes")
    for what, array, most in (("label", source.labels, source.classes - 1), ("split", source.split, 3)):
        if array is None:
            continue
        if len(array) != source.n:
            raise UserError(f"{source.name}: {len(array)} {what} values for {source.n} nodes")
        least = -1 if what == "label" else 0
        if array.min() < least or array.max() > most:
            node = int(np.flatnonzero((array < least) | (array > most))[0])
            raise UserError(f"{source.name}: node {node} has {what} {array[node]}; expected {least}..{most}")


def _check_edges(name: str, n: int, before: int, src: np.ndarray, dst: np.ndarray, weights: np.ndarray | None) -> None:
    for ids in (src, dst):
        if len(ids) and (ids.min() < 0 or ids.max() >= n):
            at = int(np.flatnonzero((ids < 0) | (ids >= n))[0])
            raise UserError(f"{name}: edge {before + at + 1} names node {ids[at]}; node ids must be 0..{n - 1}")
    if weights is not None and not np.isfinite(weights).all():
        at = int(np.flatnonzero(~np.isfinite(weights))[0])
        raise UserError(f"{name}: edge {before + at + 1} has weight {weights[at]}; weights must be finite")
