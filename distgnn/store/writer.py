"""From a Source to a store: stream, bucket, sort, normalise, publish; in one process or by all ranks of a
job.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.arrays import backend
from distgnn.errors import UserError
from distgnn.layout import partition
from distgnn.partition import Quality, Wanted, check_names, measure, orders
from distgnn.partition.orders import MatrixOrder, Version
from distgnn.partition.pattern import Pattern
from distgnn.store import manifest, nodes
from distgnn.store.adjacency import PIECE, AdjacencyWriter, Observer, Scale, ShardGrid
from distgnn.store.loader import Order
from distgnn.store.publish import check_target
from distgnn.store.source import Source
from distgnn.store.team import Team, of, shared_directory

log = logging.getLogger(__name__)

NORMALIZATIONS = ("gcn", "row", "none")
DTYPES = ("float32", "float64")
MOST_SHARDS = 1 << 16  # each is a file

Edges = tuple[np.ndarray, np.ndarray, "np.ndarray | None"]


@dataclass
class Summary:
    """What `prepare` did. `partitions`: order -> what it costs. `stages`: (name, seconds, peak resident bytes
    of the process by its end, of several ranks the most)."""

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
    comm: Any = None,
) -> Summary:
    """Write the store `out` (a directory, by custom NAME.dg) from a Source, in this process alone or by all
    ranks of `comm`.

    A[i, j] is the weight of edge j -> i (1 without weights), and of i -> j too unless the source is directed;
    of repeated edges the largest weight counts. `self_loops` adds A[i, i] = 1 where there is no such entry.
    With d the row sums,

        gcn     A[i, j] d_i^-1/2 d_j^-1/2, exactly symmetric where A is       (Kipf and Welling; CAGNET section III)
        row     A[i, j] d_i^-1
        none    A[i, j]

    and 0 in place of 0^-1/2 and 0^-1.

    Args:
        order: the orders to write (`orders.KNOWN`); the first is the default, and features and labels are
            stored in it (as its layer 0 takes them).
        seed: of the random permutations.
        shards: rows and columns of the grid of shards, each at most n; by default from the sizes, so that a
            shard stays bounded.
        dtype: of A's values, float32 or float64 (features are always float32).
        force: replace an existing store once the new one is complete.
        partitions: further orders, by partition (``distgnn.partition``), each with the partition vector of
            its parts.
        comm: mpi4py communicator of the ranks that do this together, which share a file system and have the
            same source and arguments; collective then. None: this process, without MPI. The store is the same
            to the byte.

    In a team each rank takes a share of the edges and the features (see `Source.edge_share`), sorts it into
    buckets on disk, one for every file, and writes its share of the files from what all ranks have put there.
    Partitions are made by rank 0.

    Memory, of each rank: a few arrays of one number per node, and a few hundred MB for the shard in work,
    whatever the number of edges; with partitions, on rank 0 all of A's structure too, and what the
    partitioner takes. Disk: besides the store, 8 bytes per entry (16 with weights) and a copy of the features
        until it is done.

    Raises:
        UserError: bad arguments or data, or `out` exists; on all ranks. Nothing is left behind then, nor
            after any other exception.
    """
    team = of(comm, out)
    with team.together():
        check_arguments(
            out, order=order, normalize=normalize, dtype=dtype, force=force, partitions=partitions
        )
        _check_source(source)
        for wanted in partitions:
            wanted.check(source.n)
        if shards is not None:
            check_shards(*shards, source.n)
    with shared_directory(team, out, force=force, replaceable=_is_store) as folder:
        work = _Preparation(
            source, folder, np.dtype(dtype), normalize, self_loops, seed, Summary(str(out)), team
        )
        return work.run(order, shards, partitions)
    raise AssertionError("unreachable: the directory is there or that has raised")


def check_arguments(
    out: str | os.PathLike[str], *, order: Sequence[str], normalize: str = "gcn", dtype: str = "float32",
    force: bool = False, partitions: Sequence[Wanted] = (),
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
    """The grid that `--shards RxC` names; UserError unless both are positive and no more than MOST_SHARDS
    together.
    """
    try:
        rows, cols = (int(part) for part in text.lower().split("x"))
        if rows < 1 or cols < 1:
            raise ValueError
    except ValueError:
        raise UserError(f"--shards {text!r}: expected ROWSxCOLUMNS, such as 4x4") from None
    check_shards(rows, cols)
    return rows, cols


def check_shards(rows: int, cols: int, n: int | None = None) -> None:
    """UserError for a grid of more than MOST_SHARDS, or, of a matrix of `n` nodes, with shards that must be
    empty.
    """
    if rows * cols > MOST_SHARDS:
        side = math.isqrt(MOST_SHARDS)
        raise UserError(
            f"--shards {rows}x{cols}: {rows * cols} shards; at most {MOST_SHARDS} are possible, such as {side}x{side}"
        )
    if n is not None and max(rows, cols) > n:
        raise UserError(f"--shards {rows}x{cols}: the matrix is {n} x {n}, so at most {n}x{n} is possible")


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
    team: Team

    def __post_init__(self) -> None:
        self.n = self.summary.n = self.source.n
        self.summary.directed = bool(self.source.directed)
        self.symmetric = not self.source.directed and self.normalize != "row"
        self.scratch = self.folder / "scratch"
        self.started = time.perf_counter()

    def run(
        self, names: Sequence[str], shards: tuple[int, int] | None, partitions: Sequence[Wanted]
    ) -> Summary:
        with self.team.together():
            self.scratch.mkdir(exist_ok=True)
        listed = self._listed_degrees() if "double" in names else None
        with self.team.together():
            made = [orders.make(name, self.n, self.seed, listed) for name in names]
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
                    content.update(
                        edges=self.summary.edges,
                        nnz=self.summary.nnz,
                        weighted=self.weighted,
                        degrees=degrees,
                    )
                    self.first = version, Order(self.folder, order.name, entry, self.n, self.dtype)
                else:
                    self._write_other(path, version, entry, order.partition)
            content["orders"][order.name] = entries[0] if len(entries) == 1 else {"versions": entries}
            self.summary.shards[order.name] = len(entry["rows"]) - 1, len(entry["cols"]) - 1
        with self.team.together():
            if self.team.rank == 0:
                shutil.rmtree(self.scratch)
        self._finish(content)
        return self.summary

    # -- the parts, in the order they are written ------------------------------------------------------------

    def _grid(self, shards: tuple[int, int] | None) -> ShardGrid:
        if shards is not None:
            return ShardGrid(partition(self.n, shards[0]), partition(self.n, shards[1]))
        edges = self.source.edge_count
        if edges is None:
            with self.team.together():
                count = sum(len(src) for _, (src, _, _) in self._share())
            edges = sum(self.team.every(count))
            self._stage("count")
        return ShardGrid.for_size(
            self.n, edges * (1 if self.source.directed else 2) + self.n * self.self_loops
        )

    def _listed_degrees(self) -> np.ndarray:
        """int64 (n,): how many of the listed edges begin or end at each node; repeats count."""
        degrees = np.zeros(self.n, np.int64)
        with self.team.together():
            for src, dst, _ in self._edges():
                np.add.at(degrees, src, 1)
                np.add.at(degrees, dst, 1)
        self.summary.edges = 0  # they are read again
        self.team.total(degrees)
        self._stage("degrees")
        return degrees

    def _write_nodes(self, parts: np.ndarray, order: MatrixOrder) -> dict[str, Any]:
        with self.team.together():
            (self.folder / "nodes").mkdir(exist_ok=True)
        paths = nodes.write_nodes(
            self.folder / "nodes", self.scratch, parts, self.source, order.input, self.team
        )
        self._stage("features")
        return {"order": order.name, "partition": parts.tolist(), "files": self._relative(paths)}

    def _write_permutation(
        self, path: str, version: Version, vector: np.ndarray | None, parts: np.ndarray
    ) -> dict[str, Any]:  # fmt: skip
        """The permutation of a version's rows, in files; begins the version's entry in the manifest."""
        folder = self.folder / path
        entry: dict[str, Any] = {
            "permutation": None,
            "partition": None if vector is None else vector.tolist(),
        }
        entry["symmetric"] = self.symmetric and version.alike
        with self.team.together():
            folder.mkdir(parents=True, exist_ok=True)
            if version.rows.permutation is not None:
                paths = nodes.write_permutation(folder, parts, version.rows, self.team)
                entry["permutation"] = {"partition": parts.tolist(), "files": self._relative(paths)}
        return entry

    def _write_first(
        self, path: str, version: Version, entry: dict[str, Any], grid: ShardGrid
    ) -> dict[str, Any]:
        """Shards of the first order (of its first version), from the source. Returns the degree statistics."""
        edges = self._edges()
        with self.team.together():
            head = next(edges, None)
        kinds = self.team.every(None if head is None else head[2] is not None)
        self.weighted = next((kind for kind in kinds if kind is not None), False)
        writer = self._writer(path, grid, np.float64 if self.weighted else None)
        with self.team.together():
            self._bucket(writer, version, itertools.chain([] if head is None else [head], edges))
        self.summary.edges = sum(self.team.every(self.summary.edges))
        degrees = _Degrees(self.n, version, self.team, self.scratch if self.weighted else None)
        self._write_shards(writer, entry, path, degrees, lambda: self._scaling(degrees))
        self.summary.nnz = int(writer.nnz.sum())
        return degrees.statistics()

    def _bucket(self, writer: AdjacencyWriter, version: Version, edges: Iterable[Edges]) -> None:
        """This rank's share of the matrix: edges, their reverses where they have one, and self-loops."""
        rows, cols = version.rows.positions, version.cols.positions
        for src, dst, weights in edges:
            if weights is not None and not self.weighted:
                raise ValueError(f"{self.source.name}: some edges have weights, but the first ones had none")
            writer.add(rows(dst), cols(src), weights)
            if not self.source.directed:
                writer.add(rows(src), cols(dst), weights)
        if self.self_loops:
            first, last = partition(self.n, self.team.size)[self.team.rank : self.team.rank + 2].tolist()
            for lo in range(first, last, PIECE):
                loops = np.arange(lo, min(lo + PIECE, last))
                writer.add(rows(loops), cols(loops), np.full(len(loops), -np.inf) if self.weighted else None)

    def _write_other(
        self, path: str, version: Version, entry: dict[str, Any], vector: np.ndarray | None
    ) -> None:
        """Shards of a further order or version, from those of the first: the same values, moved."""
        grid = ShardGrid(self.first[1].rows, self.first[1].cols)
        writer = self._writer(path, grid if vector is None else grid.aligned(vector), self.dtype)
        with self.team.together():
            for rows, cols, values in self._entries(self.team.deal(self.first[1].shard_nnz.ravel())):
                writer.add(version.rows.positions(rows), version.cols.positions(cols), values)
        self._write_shards(writer, entry, path)

    def _entries(
        self, shards: Sequence[int] | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(ids of rows, ids of columns, values) of what the first order holds by now (in these shards), in
        pieces.
        """
        version, matrix = self.first
        for rows, cols, values in matrix.entries(PIECE, None if shards is None else set(shards)):
            yield version.rows.ids(rows), version.cols.ids(cols), values

    def _partitioned(self, partitions: Sequence[Wanted]) -> Iterator[MatrixOrder]:
        """Orders by partition of the graph that the first order holds by now. Partitioners work in one
        process: rank 0's.
        """
        if not partitions:
            return
        first, file = self.team.rank == 0, self.scratch / "parts.npy"
        with self.team.together():
            if first:
                pattern = Pattern.of_entries(self.n, ((rows, cols) for rows, cols, _ in self._entries()))
        self._stage("read structure")
        for wanted in partitions:
            quality = None
            with self.team.together():
                if first:
                    part = wanted.make(pattern, self.seed)
                    quality = measure(pattern, part, wanted.parts)
                    np.save(file, part)
            if (found := self.team.every(quality)[0]) is not None:
                self.summary.partitions[wanted.name] = found
            with self.team.together():
                part = np.load(file)
            self._stage(f"partition {wanted.name}")
            yield orders.by_parts(wanted.name, part, wanted.parts)

    def _writer(self, path: str, grid: ShardGrid, weight: Any) -> AdjacencyWriter:
        return AdjacencyWriter(self.folder / path, self.scratch, grid, self.team, weight)

    def _write_shards(
        self,
        writer: AdjacencyWriter,
        entry: dict[str, Any],
        path: str,
        degrees: _Degrees | None = None,
        scaling: Any = None,
    ) -> None:
        """Turn what the writer has been given into files, and say in the version's `entry` where they are."""
        name = path.partition("/")[2]
        writer.pool()
        self._stage(f"bucket {name}")
        writer.write_structure(degrees)
        if degrees is not None:
            degrees.collect(writer.grid)
        self._stage(f"sort {name}")
        with self.team.together():
            scale = scaling() if scaling else None
        writer.write_values(self.dtype, scale)
        self._stage(f"values {name}")
        height, width = writer.grid.shape
        entry["rows"], entry["cols"] = writer.grid.rows.tolist(), writer.grid.cols.tolist()
        entry["nnz"] = writer.nnz.tolist()
        entry["files"] = [self._relative([writer.path(i, j) for j in range(width)]) for i in range(height)]

    def _finish(self, content: dict[str, Any]) -> None:
        """Everything to disk, and the manifest that says so."""
        sizes: dict[str, int] = {}
        with self.team.together():
            if self.team.rank == 0:
                paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
                sizes = {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in paths}
        # as rank 0 sees them: file systems in a network may show others something older
        sizes = self.team.every(sizes)[0]
        names, found = list(sizes), {}
        with self.team.together():
            for index in self.team.deal(list(sizes.values())):
                found[names[index]] = manifest.fingerprint(self.folder / names[index], sync=True)
        prints = {name: one for some in self.team.every(found) for name, one in some.items()}
        content["files"] = {name: prints[name] for name in names}
        with self.team.together():
            if self.team.rank == 0:
                for path in [path for path in self.folder.rglob("*") if path.is_dir()]:
                    manifest.sync_folder(path)
                manifest.write(self.folder, content)
        self._stage("finish")

    # -- inside ----------------------------------------------------------------------------------------------

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

    def _share(self) -> Iterator[tuple[int, Edges]]:
        return self.source.edge_share(self.team.rank, self.team.size)

    def _edges(self) -> Iterator[Edges]:
        """This rank's share of the source's edges, checked, in pieces of at most PIECE."""
        for before, (src, dst, weights) in self._share():
            for lo in range(0, len(src), PIECE):
                piece = slice(lo, lo + PIECE)
                chunk = (src[piece], dst[piece], None if weights is None else weights[piece])
                _check_edges(self.source.name, self.n, before + lo, *chunk)
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
        # this product first: it is the same for (i, j) and (j, i)
        return lambda rows, cols: root[rows] * of_cols[cols]

    def _relative(self, paths: Sequence[Path]) -> list[str]:
        return [path.relative_to(self.folder).as_posix() for path in paths]

    def _stage(self, name: str) -> None:
        peak = max(self.team.every(backend.get("numpy").peak_bytes()))
        now = time.perf_counter()
        self.summary.stages.append((name, now - self.started, peak))
        log.info("%s: %.1f s, peak memory so far %.0f MiB", name, now - self.started, peak / 2**20)
        self.started = now


def _paths(order: MatrixOrder) -> Iterator[tuple[str, Version]]:
    """Every version of an order and the folder it goes to."""
    folder = f"orders/{order.name}"
    names = [folder] if len(order.versions) == 1 else [f"{folder}/even", f"{folder}/odd"]
    yield from zip(names, order.versions, strict=True)


class _Degrees(Observer):
    """Row sums, and neighbours without the node itself, by row of a version of the matrix, added up shard by
    shard.

    Sums of counts are exact. Those of weights are rounded, so the shards of a row are always added from left
    to right: in a team, whose ranks write them at the same time, through files in `scratch` (None: no
        weights).
    """

    def __init__(self, n: int, version: Version, team: Team, scratch: Path | None) -> None:
        self.version, self.team = version, team
        self.scratch = scratch if team.size > 1 else None
        self.sums = np.zeros(n)
        self.neighbours = np.zeros(n, np.int64)

    def begin(self, i: int, j: int, rows: tuple[int, int]) -> None:
        self.shard, self.rows = (i, j), rows
        self.partial = np.zeros(rows[1] - rows[0])

    def end(self) -> None:
        if self.scratch is None:
            self.sums[slice(*self.rows)] += self.partial
        else:
            with open(_sums(self.scratch, *self.shard), "wb") as file:
                file.write(self.partial.data)

    def collect(self, grid: ShardGrid) -> None:
        """Add up what all ranks have counted. Collective."""
        if self.scratch is not None:
            with self.team.together():
                for i in self.team.deal(np.diff(grid.rows)):
                    for j in range(grid.shape[1]):
                        self.sums[grid.rows[i] : grid.rows[i + 1]] += np.fromfile(
                            path := _sums(self.scratch, i, j)
                        )
                        path.unlink()
        self.team.total(self.sums)
        self.team.total(self.neighbours)

    def count(self, rows: np.ndarray, cols: np.ndarray, weights: np.ndarray | None) -> None:
        lo, hi = rows[0], rows[-1] + 1
        self.partial[lo - self.rows[0] : hi - self.rows[0]] += np.bincount(rows - lo, weights)
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
        return {
            "min": int(d.min()),
            "mean": float(d.mean()),
            "max": int(d.max()),
            "isolated": int(np.count_nonzero(d == 0)),
        }


def _sums(scratch: Path, i: int, j: int) -> Path:
    return scratch / f"sums-{i:04d}-{j:04d}"


def _choice(flag: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UserError(f"{flag} {value}: expected one of {', '.join(known)}")


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


def _check_edges(
    name: str, n: int, before: int, src: np.ndarray, dst: np.ndarray, weights: np.ndarray | None
) -> None:
    for ids in (src, dst):
        if len(ids) and (ids.min() < 0 or ids.max() >= n):
            at = int(np.flatnonzero((ids < 0) | (ids >= n))[0])
            raise UserError(
                f"{name}: edge {before + at + 1} names node {ids[at]}; node ids must be 0..{n - 1}"
            )
    if weights is not None and not np.isfinite(weights).all():
        at = int(np.flatnonzero(~np.isfinite(weights))[0])
        raise UserError(f"{name}: edge {before + at + 1} has weight {weights[at]}; weights must be finite")
