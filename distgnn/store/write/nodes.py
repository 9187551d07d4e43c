"""Arrays with one row per node (features, labels, split, permutations), written in files of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from distgnn.layout import block, partition
from distgnn.stages import followed
from distgnn.store.format import hdf5
from distgnn.store.format.limits import LIMITS
from distgnn.store.source import Source, label_type
from distgnn.store.team import Team
from distgnn.store.write.content import Content
from distgnn.store.write.features import FeatureWriter, Sparse, kept_bytes
from distgnn.store.write.orders import Side


def row_bytes(source: Source, sparse: Sparse | None) -> int:
    """Return the mean bytes of a node's features, and of its row of labels if it has one."""
    labels = (source.multilabel + 4 * source.regression) * source.classes
    return -(-kept_bytes(source, sparse) // source.n) + labels


def row_partition(n: int, nbytes: int) -> np.ndarray:
    """Return the partition vector of the row files, for rows of `nbytes` bytes."""
    return partition(n, max(1, -(-n * nbytes // LIMITS.file_bytes), -(-n // LIMITS.file_rows)))


def write_permutation(folder: Path, parts: np.ndarray, order: Side, team: Team) -> list[Path]:
    """Write this rank's files of `permutation` (position -> original id) and `inverse`; return all paths."""
    paths = [folder / f"permutation-{index:04d}.h5" for index in range(len(parts) - 1)]
    for index in team.deal(np.diff(parts)):
        rows = block(parts, index)
        with hdf5.writing(paths[index]) as file:
            hdf5.store_array(file, "permutation", order.ids(*rows), len(paths))
            hdf5.store_array(file, "inverse", order.places(*rows), len(paths))
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
            hdf5.store_array(file, "ids", some.view(np.uint8).reshape(-1, size) if text else some, len(paths))
    return parts, paths


def write_nodes(
    folder: Path, scratch: Path, parts: np.ndarray, source: Source, order: Side, team: Team,
    content: Content, sparse: Sparse | None,
) -> tuple[list[Path], np.ndarray]:  # fmt: skip
    """Write the features, labels and split that a source has, in this order. Collective.

    Each rank reads a share of the features, which is added to the `content`, and writes a share of the files.
    Returns all paths, and the entries of sparse features in each file.
    """
    paths = [folder / f"rows-{index:04d}.h5" for index in range(len(parts) - 1)]
    features = FeatureWriter(scratch, parts, source, sparse, order, team, content)
    features.collect()
    with team.together():
        for index in followed(dealt := team.deal(np.diff(parts)), "write nodes", len(dealt), "files"):
            lo, hi = block(parts, index)
            ids = order.ids(lo, hi)
            with hdf5.writing(paths[index]) as file:
                if source.width:
                    features.write(file, index)
                if source.labels is not None:
                    name = "targets" if source.regression else "labels"
                    hdf5.store_array(
                        file, name, np.asarray(source.labels[ids], label_type(source)), len(paths)
                    )
                if source.split is not None:
                    hdf5.store_array(file, "split", np.asarray(source.split[ids], np.uint8), len(paths))
    features.close()
    return paths, features.nnz
