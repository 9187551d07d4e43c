"""A graph prepared in the memory of rank 0, by the rules of ``write/prepare.py`` to the same numbers."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.backend import of
from distgnn.comm.group import Comm
from distgnn.errors import ArgumentError, offered
from distgnn.store.format.shards import ShardGrid
from distgnn.store.read.root import ROOT, Arrays, RootStore, manifest_orders
from distgnn.store.source import Source
from distgnn.store.team import Team
from distgnn.store.write.arguments import NORMALIZATIONS, check_source
from distgnn.store.write.content import Content
from distgnn.store.write.degrees import Degrees
from distgnn.store.write.features import Sparse, kept_blocks, sparse_form
from distgnn.store.write.finish import describe
from distgnn.store.write.merged_rows import merged_rows
from distgnn.store.write.orders import Side, Version


def hold(
    source: Source | None, comm: Comm, *, seed: int = 0, normalize: str = "gcn", self_loops: bool = True,
    dtype: str = "float32",
) -> RootStore:  # fmt: skip
    """Hold the store of a source that rank 0 has (others pass None), without files. Collective.

    Features that need no conversion are not copied: the caller's array must stay as it is, see
    :func:`given_features`.

    Args: as of ``write.prepare.prepare``. Rank 0 needs memory for the graph's arrays, for the matrix and for
    about five bytes per entry more, see ``write/merged_rows.py``.

    Raises:
        UserError: bad arguments or data (on every rank).
    """
    made: tuple[dict[str, Any], Arrays] | None = None
    with comm.together():
        if normalize not in NORMALIZATIONS:
            raise ArgumentError("normalize", normalize, offered(normalize, NORMALIZATIONS))
        if comm.rank == ROOT and source is not None:
            check_source(source)
            made = _prepared(source, seed, normalize, self_loops, np.dtype(dtype))
    manifest = comm.share(None if made is None else made[0], ROOT)
    assert manifest is not None
    return RootStore(comm, manifest, None if made is None else made[1])


def _prepared(
    source: Source, seed: int, normalize: str, self_loops: bool, dtype: np.dtype
) -> tuple[dict[str, Any], Arrays]:
    """Make the manifest and the arrays of a source. Local to rank 0."""
    n, content = source.n, Content(source)
    sparse = sparse_form(source, Team())
    manifest = describe(source, seed, dtype, self_loops, normalize, sparse)
    nodes, whole = Side(Team(), n), np.array([0, n])
    degrees = Degrees(Version(nodes, nodes), ShardGrid(whole, whole), Team(), None, content)
    degrees.begin(0, 0)
    rows = merged_rows(source, self_loops, dtype, degrees.count)
    degrees.end()
    degrees.collect()
    if source.direction_open and content.symmetric(Team()):
        manifest |= {"directed": False, "symmetric": normalize != "row"}
    scaling, weighted, loops, nnz = degrees.scaling(normalize, dtype), rows.weighted, rows.loops, rows.nnz
    matrix = rows.matrix(dtype, None if scaling is None else scaling(0, 0))
    features = _features(source, sparse, content)
    edges = loops + (nnz - (n if self_loops else loops)) // (1 if manifest["directed"] else 2)
    manifest |= {"nnz": nnz, "edges": edges, "weighted": weighted}
    manifest |= {"orders": manifest_orders(), "degrees": degrees.statistics}
    manifest["content"] = content.hashes(Team())
    labels = np.full(n, -1, np.int32) if source.labels is None else source.labels
    split = np.zeros(n, np.uint8) if source.split is None else source.split
    return manifest, Arrays(matrix, features, labels, split)


def given_features(source: Any) -> np.ndarray | None:
    """Return the caller's array of features where the store of `hold` has no copy of it, else None."""
    given: np.ndarray | None = getattr(getattr(source, "table", None), "given", None)
    return given


def _features(source: Source, sparse: Sparse | None, content: Content) -> np.ndarray | sp.csr_array:
    """Return all features in the form that they are kept in, and add them to the `content`."""
    if not source.width:
        return source.features(np.arange(source.n))
    blocks = (rows for _, rows in kept_blocks(source, 0, source.n, sparse, content))
    if sparse is not None:
        return sp.vstack(list(blocks), format="csr")
    if (given := given_features(source)) is not None:
        deque(blocks, maxlen=0)
        return given
    features, done = None, 0
    for rows in blocks:
        if features is None:
            features = of(rows).empty((source.n, source.width), source.feature_type)
        features[done : done + len(rows)] = rows
        done += len(rows)
    return np.empty((0, source.width), source.feature_type) if features is None else features
