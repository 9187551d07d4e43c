"""Arrays with one row per node (features, labels, split, permutations), written in files of rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from distgnn.arrays.canonical import check_real
from distgnn.errors import UserError
from distgnn.layout import block, partition
from distgnn.partition.orders import Permutation
from distgnn.stages import followed
from distgnn.store.format import hdf5
from distgnn.store.format.limits import LIMITS
from distgnn.store.source import Source, label_type
from distgnn.store.team import Team
from distgnn.store.write.content import Content
from distgnn.store.write.spill import Spill


def row_bytes(source: Source) -> int:
    """Return the bytes of a node's features, and of its row of labels if it has one."""
    labels = (source.multilabel + 4 * source.regression) * source.classes
    return source.feature_type.itemsize * source.width + labels


def row_partition(n: int, nbytes: int) -> np.ndarray:
    """Return the partition vector of the row files, for rows of `nbytes` bytes."""
    return partition(n, max(1, -(-n * nbytes // LIMITS.file_bytes), -(-n // LIMITS.file_rows)))


def write_permutation(folder: Path, parts: np.ndarray, order: Permutation, team: Team) -> list[Path]:
    """Write this rank's files of `permutation` (position -> original id) and `inverse`; return all paths."""
    paths = [folder / f"permutation-{index:04d}.h5" for index in range(len(parts) - 1)]
    for index in team.deal(np.diff(parts)):
        positions = np.arange(parts[index], parts[index + 1])
        with hdf5.writing(paths[index]) as file:
            hdf5.store_array(file, "permutation", order.ids(positions))
            hdf5.store_array(file, "inverse", order.positions(positions))
    return paths


def write_ids(folder: Path, ids: np.ndarray, team: Team) -> tuple[np.ndarray, list[Path]]:
    """Write this rank's files of the nodes' ids, by number; return the partition vector and all paths."""
    size, n = ids.dtype.itemsize, len(ids)
    parts = partition(n, max(1, -(-n * size // LIMITS.file_bytes), -(-n // LIMITS.file_rows)))
    paths = [folder / f"ids-{index:04d}.h5" for index in range(len(parts) - 1)]
    for index in team.deal(np.diff(parts)):
        some = ids[slice(*block(parts, index))]
        with hdf5.writing(paths[index]) as file:
            text = some.dtype.kind == "S"
            hdf5.store_array(file, "ids", some.view(np.uint8).reshape(-1, size) if text else some)
    return parts, paths


def write_nodes(
    folder: Path, scratch: Path, parts: np.ndarray, source: Source, order: Permutation, team: Team,
    content: Content,
) -> list[Path]:  # fmt: skip
    """Write the features, labels and split that a source has, in this order; return all paths. Collective.

    Each rank reads a share of the features, which is added to the `content`, and writes a share of the files.
    """
    paths = [folder / f"rows-{index:04d}.h5" for index in range(len(parts) - 1)]
    shuffled = source.width and order.permutation is not None
    spilled = _spilled(scratch, parts, source, order, team, content) if shuffled else None
    with team.together():
        for index in followed(dealt := team.deal(np.diff(parts)), "write nodes", len(dealt), "files"):
            _write_rows(paths[index], index, parts, source, order, spilled, content)
    if spilled is not None:
        spilled.close()
    return paths


def _write_rows(
    path: Path, index: int, parts: np.ndarray, source: Source, order: Permutation, spilled: Spill | None,
    content: Content,
) -> None:  # fmt: skip
    lo, hi = block(parts, index)
    ids = order.ids(np.arange(lo, hi))
    with hdf5.writing(path) as file:
        if source.width:
            features = hdf5.create(file, "features", (hi - lo, source.width), source.feature_type)
            if spilled is None:
                for start, rows in _feature_blocks(source, lo, hi, content):
                    features[start - lo : start - lo + len(rows)] = rows
            else:
                features[...] = _assembled(spilled, index, features.shape)
        if source.labels is not None:
            name = "targets" if source.regression else "labels"
            hdf5.store_array(file, name, np.asarray(source.labels[ids], label_type(source)))
        if source.split is not None:
            hdf5.store_array(file, "split", np.asarray(source.split[ids], np.uint8))


def _feature_blocks(source: Source, lo: int, hi: int, content: Content) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first id, rows) of the features of ids lo..hi: every format reads consecutive ids fastest."""
    step = max(1, LIMITS.row_bytes // (source.feature_type.itemsize * source.width))
    for start in range(lo, hi, step):
        ids = np.arange(start, min(start + step, hi))
        rows = np.asarray(source.features(ids))
        check_real("features", rows.dtype)
        rows = rows.astype(source.feature_type, copy=False)
        bad = ~np.isfinite(rows).all(axis=1)
        if bad.any():
            raise UserError(f"{source.name}: node {ids[bad][0]} has a feature that is not a finite number")
        content.add_features(start, rows)
        yield start, rows


def _spilled(
    scratch: Path, parts: np.ndarray, source: Source, order: Permutation, team: Team, content: Content
) -> Spill:
    """Read all features once, from front to back, into one bucket per row file. Collective.

    Each rank reads a share. Reading file by file would be random access to more than fits in memory.
    """
    record = np.dtype([("row", np.int64), ("features", source.feature_type, (source.width,))])
    spill = Spill(scratch / "features", len(parts) - 1, record, team)
    with team.together():
        mine = block(partition(source.n, team.size), team.rank)
        read = _feature_blocks(source, *mine, content)
        for start, features in followed(read, "read features", mine[1] - mine[0], "nodes", _rows):
            positions = order.positions(np.arange(start, start + len(features)))
            buckets = np.searchsorted(parts, positions, side="right") - 1
            rows = np.empty(len(features), record)
            rows["row"] = positions - parts[buckets]
            rows["features"] = features
            spill.add(buckets, rows)
    spill.pool()
    return spill


def _rows(read: tuple[int, np.ndarray]) -> int:
    return len(read[1])


def _assembled(spill: Spill, index: int, shape: tuple[int, int]) -> np.ndarray:
    """Return the features of one row file, in order."""
    features = np.empty(shape, spill.dtype["features"].base)
    for rows in spill.read(index, max(1, LIMITS.row_bytes // spill.dtype.itemsize)):
        features[rows["row"]] = rows["features"]
    spill.drop(index)
    return features
