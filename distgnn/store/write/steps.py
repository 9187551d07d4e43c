"""The steps of a preparation: stream, bucket, sort, normalise; for one call of `prepare`."""

from __future__ import annotations

import itertools
import logging
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.arrays import backend
from distgnn.layout import block, partition
from distgnn.partition import Wanted, measure
from distgnn.partition.pattern import Pattern
from distgnn.stages import followed, stage
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.members import Members
from distgnn.store.format.shards import ShardGrid
from distgnn.store.read.order import Order
from distgnn.store.source import Edges, Source
from distgnn.store.team import Team
from distgnn.store.write import nodes, orders
from distgnn.store.write.adjacency import AdjacencyWriter
from distgnn.store.write.arguments import check_edges, check_room
from distgnn.store.write.content import Content
from distgnn.store.write.cut import own, pieces, turns
from distgnn.store.write.degrees import Degrees
from distgnn.store.write.features import kept_bytes, sparse_form
from distgnn.store.write.finish import Summary, describe, finish
from distgnn.store.write.orders import MatrixOrder, Version

log = logging.getLogger(__name__)
Shards = tuple[int, int] | None


@dataclass
class Preparation:
    """One call of `prepare`: the data that all its steps share."""

    source: Source
    folder: Path
    dtype: np.dtype
    normalize: str
    self_loops: bool
    seed: int
    summary: Summary
    team: Team

    def __post_init__(self) -> None:
        self.n, self._place = self.source.n, (self.team.rank, self.team.size)
        self.scratch = self.folder / "scratch"
        self.first: tuple[Version, Order] | None = None  # the version that the others are made from
        self.degrees: dict[str, Any] = {}
        self.started = time.perf_counter()
        self.sparse = sparse_form(self.source, self.team)
        if self.sparse is not None:
            self.stage("count features")
        with self.team.together():
            check_room(self.source, kept_bytes(self.source, self.sparse), self.summary.out)
        self.held = Content(self.source)
        self.parts = nodes.row_partition(self.n, nodes.row_bytes(self.source, self.sparse))
        recipe = self.seed, self.dtype, self.self_loops, self.normalize, self.sparse
        self.content = describe(self.source, *recipe)
        self.summary.feature_nnz = None if self.sparse is None else self.sparse.nnz
        for name in ("n", "directed", "width", "classes", "labelled", "split"):
            setattr(self.summary, name, self.content[name])
        self.summary.multilabel, self.summary.regression = self.source.multilabel, self.source.regression

    def run(self, names: Sequence[str], shards: Shards, partitions: Sequence[Wanted]) -> None:
        """Run all stages, one after another. Collective."""
        with self.team.together():
            self.scratch.mkdir(exist_ok=True)
        listed = self._listed_degrees() if "double" in names else None
        made = [orders.make(name, self.n, self.seed, self.team, self.scratch, listed) for name in names]
        del listed
        grid = self._grid(shards)
        first, entry = made[0], None
        if self.source.of_degrees:
            entry = self._write_order(first, grid)
        self._write_nodes(first)
        self.content["orders"] = {first.name: entry or self._write_order(first, grid)}
        self.content.update(degrees=self.degrees, content=self.held.hashes(self.team))
        for order in itertools.chain(made[1:], self._partitioned(partitions)):
            self.content["orders"][order.name] = self._write_order(order, grid)
        with self.team.together():
            if self.team.rank == 0:
                shutil.rmtree(self.scratch)
        finish(self.folder, self.content, self.team)
        self.stage("finish")

    def stage(self, name: str) -> None:
        """Record the end of this stage, its seconds and the peak memory. Collective."""
        peak = max(self.team.gather_objects(backend.get("numpy").peak_bytes()))
        now = time.perf_counter()
        self.summary.stages.append((name, now - self.started, peak))
        log.info("%s: %.1f s, peak memory so far %.0f MiB", name, now - self.started, peak / 2**20)
        self.started = now

    def _grid(self, shards: Shards) -> ShardGrid:
        if shards is not None:
            return ShardGrid(partition(self.n, shards[0]), partition(self.n, shards[1]))
        edges = self.source.edge_count
        if edges is None:
            with self.team.together():
                count = sum(len(src) for _, (src, _, _) in self.source.edge_share(*self._place))
            edges = sum(self.team.gather_objects(count))
            self.stage("count")
        both = 1 if self.source.directed else 2
        return ShardGrid.for_size(self.n, edges * both + self.n * self.self_loops)

    def _listed_degrees(self) -> np.ndarray:
        """Count how many of the listed edges begin or end at each of this rank's nodes; repeats count."""
        first, last = own(self.team, self.n)
        degrees, nothing = np.zeros(last - first, np.int64), np.empty(0, np.int64)
        for edges in turns(self.team, self._edges()):
            orders.count_ends(self.team, self.n, edges[:2] if edges else (nothing, nothing), degrees)
        self.stage("degrees")
        return degrees

    def _write_nodes(self, order: MatrixOrder) -> None:
        folder = self.folder / "nodes"
        with self.team.together():
            folder.mkdir(exist_ok=True)
        how = self.source, order.input, self.team, self.held, self.sparse
        paths, entries = nodes.write_nodes(folder, self.scratch, self.parts, *how)
        self.stage("features")
        files = self._relative(paths)
        self.content["nodes"] = {"order": order.name, "partition": self.parts.tolist(), "files": files}
        if self.sparse is not None:
            self.content["nodes"]["entries"] = entries.tolist()
        if (ids := self.source.ids) is not None:
            with self.team.together():
                parts, paths = nodes.write_ids(folder, ids, self.team)
            named = {"dtype": ids.dtype.str, "partition": parts.tolist(), "files": self._relative(paths)}
            self.content["ids"] = named

    def _edges(self) -> Iterator[Edges]:
        """Yield this rank's share of the source's edges, checked, at most LIMITS.entries at a time."""
        for before, (src, dst, weights) in self.source.edge_share(*self._place):
            for lo in range(0, len(src), LIMITS.entries):
                some = slice(lo, lo + LIMITS.entries)
                edges = src[some], dst[some], None if weights is None else weights[some]
                check_edges(self.source, before + lo, edges, self.dtype)
                yield edges

    def _write_order(self, order: MatrixOrder, grid: ShardGrid) -> dict[str, Any]:
        """Write all versions of an order; return its entry in the manifest."""
        folder = f"orders/{order.name}"
        paths = [folder] if len(order.versions) == 1 else [f"{folder}/even", f"{folder}/odd"]
        entries = []
        for path, version in zip(paths, order.versions, strict=True):
            entries.append(entry := self._write_permutation(path, version, order.partition))
            if self.first is None:
                self._write_first(path, version, entry, grid)
                self.first = version, Order(Members(self.folder), order.name, entry, self.n, self.dtype)
            else:
                self._write_other(path, version, entry, order.partition)
        self.summary.shards[order.name] = len(entry["rows"]) - 1, len(entry["cols"]) - 1
        return entries[0] if len(entries) == 1 else {"versions": entries}

    def _write_permutation(self, path: str, version: Version, vector: np.ndarray | None) -> dict[str, Any]:
        """Write the permutation of a version's rows; return the begun entry for the manifest."""
        folder, stored = self.folder / path, None
        with self.team.together():
            folder.mkdir(parents=True, exist_ok=True)
            if not version.rows.identity:
                paths = nodes.write_permutation(folder, self.parts, version.rows, self.team)
                stored = {"partition": self.parts.tolist(), "files": self._relative(paths)}
        if stored is not None:
            stored["sha256"] = version.rows.sha256()
        cut = None if vector is None else vector.tolist()
        symmetric = self.content["symmetric"] and version.alike
        return {"permutation": stored, "partition": cut, "symmetric": symmetric}

    def _write_first(self, path: str, version: Version, entry: dict[str, Any], grid: ShardGrid) -> None:
        """Write the shards of the first order (of its first version), from the source."""
        edges = self._edges()
        with self.team.together():
            head = next(edges, None)
        kinds = self.team.gather_objects(None if head is None else head[2] is not None)
        weighted = next((kind for kind in kinds if kind is not None), False)
        weight = np.float64 if weighted else None
        writer = AdjacencyWriter(self.folder / path, self.scratch, grid, self.team, weight)
        loops = self._bucket(writer, version, itertools.chain([] if head is None else [head], edges))
        degrees = Degrees(version, grid, self.team, self.scratch, self.held)
        self._write_shards(writer, entry, path, degrees)
        self._settle_direction(version, entry)
        self.summary.nnz = int(writer.nnz.sum())
        others = self.summary.nnz - (self.n if self.self_loops else loops)
        self.summary.edges = loops + others // (1 if self.summary.directed else 2)  # each counts once
        facts = {"edges": self.summary.edges, "nnz": self.summary.nnz, "weighted": weighted}
        self.content.update(facts)
        self.degrees = degrees.statistics
        if self.source.of_degrees:
            with self.team.together():
                by_id = degrees.by_id()
            self.source.take_degrees(by_id)

    def _settle_direction(self, version: Version, entry: dict[str, Any]) -> None:
        """Take a graph whose direction is open for undirected if its matrix is symmetric. Collective."""
        if self.source.direction_open and self.held.symmetric(self.team):
            self.summary.directed = False
            self.content |= {"directed": False, "symmetric": self.normalize != "row"}
            entry["symmetric"] = self.content["symmetric"] and version.alike

    def _bucket(self, writer: AdjacencyWriter, version: Version, edges: Iterable[Edges]) -> int:
        """Put edges, reverses and self-loops into buckets; count nodes with listed loops. Collective."""
        listed, (first, last) = self.source.edge_count, own(self.team, self.n)
        total = None if listed is None else listed // self.team.size
        looped = np.zeros(last - first, np.bool_)
        mine = followed(self._alike(edges, writer.weighted), "import edges", total, "edges", _count)
        for some in turns(self.team, mine):
            src, dst, weights = some or (np.empty(0, np.int64), np.empty(0, np.int64), None)
            orders.count_ends(self.team, self.n, [src[src == dst]], looped)
            self._add_edges(writer, version, src, dst, weights)
        if self.self_loops:
            with self.team.together():
                for lo, hi in pieces(first, last):
                    loops = np.full(hi - lo, -np.inf) if writer.weighted else None
                    writer.add(version.rows.places(lo, hi), version.cols.places(lo, hi), loops)
        return int(self.team.total(np.array(np.count_nonzero(looped))))

    def _alike(self, edges: Iterable[Edges], weighted: bool) -> Iterator[Edges]:
        """Yield the edges; ValueError if weights come after edges without any."""
        for src, dst, weights in edges:
            if weights is not None and not weighted:
                raise ValueError(f"{self.source.name}: some edges have weights, but the first ones had none")
            yield src, dst, weights

    def _add_edges(
        self, writer: AdjacencyWriter, version: Version, src: np.ndarray, dst: np.ndarray, weights: Any
    ) -> None:
        """Put edges, and reverses of an undirected graph, into buckets. Collective."""
        if self.source.directed:
            entries = [(version.rows.positions(dst), version.cols.positions(src))]
        else:
            ends, count = np.concatenate([dst, src]), len(src)
            rows = version.rows.positions(ends)
            cols = rows if version.alike else version.cols.positions(ends)
            entries = [(rows[:count], cols[count:]), (rows[count:], cols[:count])]
        with self.team.together():
            for row, col in entries:
                writer.add(row, col, weights)

    def _write_other(self, path: str, version: Version, entry: Any, vector: np.ndarray | None) -> None:
        """Write the shards of a further order or version, from those of the first: the same values, moved."""
        assert self.first is not None
        matrix = self.first[1]
        grid = ShardGrid(matrix.rows, matrix.cols)
        grid = grid if vector is None else grid.aligned(vector)
        writer = AdjacencyWriter(self.folder / path, self.scratch, grid, self.team, self.dtype)
        mine = self._entries(self.team.deal(matrix.shard_nnz.ravel()))
        total = int(matrix.shard_nnz.sum()) // self.team.size
        followed_mine = followed(mine, f"reorder as {path}", total, "entries", _count)
        for entries in turns(self.team, followed_mine):
            rows, cols, values = entries or (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
            rows, cols = version.rows.positions(rows), version.cols.positions(cols)
            with self.team.together():
                writer.add(rows, cols, values)
        self._write_shards(writer, entry, path)

    def _entries(self, shards: Iterable[int]) -> Iterator[Edges]:
        """Yield (ids of rows, ids of columns, values) of these shards of the first order."""
        assert self.first is not None
        version, matrix = self.first
        for shard in shards:
            i, j = divmod(shard, len(matrix.cols) - 1)
            (top, bottom), (left, right) = block(matrix.rows, i), block(matrix.cols, j)
            row_ids, col_ids = version.rows.ids(top, bottom), version.cols.ids(left, right)
            for rows, cols, values in matrix.shard_entries(i, j, LIMITS.entries):
                yield row_ids[rows - top], col_ids[cols - left], values

    def _partitioned(self, partitions: Sequence[Wanted]) -> Iterator[MatrixOrder]:
        """Yield orders by partition of the first order's graph; rank 0 partitions. Collective."""
        if not partitions:
            return
        assert self.first is not None
        first, quality, part = self.team.rank == 0, None, np.empty(0, np.int32)
        with self.team.together():
            if first:
                entries = self._entries(range(self.first[1].shard_nnz.size))
                entries = followed(entries, "read structure", self.summary.nnz, "entries", _count)
                pattern = Pattern.of_entries(self.n, ((rows, cols) for rows, cols, _ in entries))
        self.stage("read structure")
        for wanted in partitions:
            with self.team.together(), stage(f"partition {wanted.name}"):
                if first:
                    part = np.ascontiguousarray(wanted.make(pattern, self.seed), np.int32)
                    quality = measure(pattern, part, wanted.parts)
            if (shared := self.team.gather_objects(quality)[0]) is not None:
                self.summary.partitions[wanted.name] = shared
            bounds = partition(self.n, self.team.size)[1:-1]
            mine = self.team.swap(np.split(part, bounds if first else np.zeros_like(bounds)))[0]
            self.stage(f"partition {wanted.name}")
            yield orders.by_parts(wanted.name, mine, wanted.parts, self.n, self.team, self.scratch)

    def _write_shards(
        self, writer: AdjacencyWriter, entry: Any, path: str, degrees: Degrees | None = None
    ) -> None:
        """Write the records in the writer's buckets into files, and name them in the version's `entry`."""
        name = path.partition("/")[2]
        writer.spill.pool()
        self.stage(f"bucket {name}")
        writer.write_structure(degrees)
        if degrees is not None:
            degrees.collect()
        self.stage(f"sort {name}")
        scaling = None if degrees is None else degrees.scaling(self.normalize, self.dtype)
        writer.write_values(self.dtype, scaling)
        self.stage(f"values {name}")
        entry["rows"], entry["cols"] = writer.grid.rows.tolist(), writer.grid.cols.tolist()
        entry["nnz"], (height, width) = writer.nnz.tolist(), writer.grid.shape
        paths = ([writer.path(i, j) for j in range(width)] for i in range(height))
        entry["files"] = [self._relative(row) for row in paths]

    def _relative(self, paths: Sequence[Path]) -> list[str]:
        return [path.relative_to(self.folder).as_posix() for path in paths]


def _count(edges: Edges) -> int:
    return len(edges[0])
