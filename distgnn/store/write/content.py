"""Hashes of a graph's content that do not depend on how a store is cut, ordered, or made."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import rng
from distgnn.arrays.backend import module, of
from distgnn.local.entries import hashed
from distgnn.store.source import Source, label_type
from distgnn.store.team import Team

_EDGES, _FEATURES = rng.key(0, rng.CONTENT, 0), rng.key(0, rng.CONTENT, 1)


class Content:
    """Hashes of a graph's content: against mistakes, not against forgers.

    Entries of the matrix and rows of the features: sums of 64-bit hashes, which ranks add up in any order.
    Labels and split, which all ranks hold: SHA-256.
    """

    def __init__(self, source: Source) -> None:
        self._n, self._source = source.n, source
        self._sums = np.zeros(3, np.uint64)  # of entries, of features, of the entries of the transpose
        words = rng.hashes(_FEATURES, np.arange(source.width * source.feature_type.itemsize // 4))
        words |= np.uint64(1)  # odd, so that no bit of a feature is lost
        self._factors = words.reshape(source.width, source.feature_type.itemsize // 4)

    def add_entries(
        self, counts: np.ndarray, cols: np.ndarray, ids: tuple[np.ndarray, np.ndarray],
        weights: np.ndarray | None,
    ) -> np.ndarray:  # fmt: skip
        """Add entries of A before they are scaled, in rows of so many; each once in all.

        `ids`: of the rows and of the columns. Returns how many of each row are on the diagonal.
        """
        weights = None if weights is None else np.ascontiguousarray(weights, np.float64)
        how = self._n, _EDGES, self._source.direction_open
        total, mirrored, loops = hashed(counts, cols, ids, weights, *how)
        self._add(0, total)
        self._add(2, mirrored)
        return loops

    def symmetric(self, team: Team) -> bool:
        """Return True if the entries added so far equal those of the transpose. Collective."""
        entries, _, mirrored = team.total(self._sums.copy()).tolist()
        return entries == mirrored

    def add_features(self, first: int, rows: Any) -> None:
        """Add features of consecutive ids, of the source's type; each once in all.

        Sparse ones have the hash of the same numbers with all their zeros.
        """
        if sp.issparse(rows):
            bits = rows.data.view(np.uint32).reshape(len(rows.data), self._factors.shape[1]).astype(np.uint64)
            sums = (bits * self._factors[rows.indices]).sum(axis=1, dtype=np.uint64)
            hashed = sp.csr_array((sums, rows.indices, rows.indptr), shape=rows.shape)
            words = hashed @ np.ones(rows.shape[1], np.uint64)
        else:
            on = of(rows)
            bits = on.asarray(rows).view(np.uint32).astype(np.uint64)
            factors = on.asarray(self._factors.ravel())
            # The matrix products of a GPU's libraries take no integers.
            words = (bits * factors).sum(axis=1, dtype=np.uint64) if on.on_device else bits @ factors
        ids = rng.hashes(_FEATURES, module(words).arange(first, first + rows.shape[0]))
        self._add(1, int(rng.splitmix64(words ^ ids).sum(dtype=np.uint64)))

    def _add(self, index: int, total: Any) -> None:
        self._sums[index : index + 1] += np.uint64(total)  # NumPy warns if a scalar wraps

    def hashes(self, team: Team) -> dict[str, str | None]:
        """Return the entry `content` of the manifest. Collective."""
        entries, features = (f"{int(total):016x}" for total in team.total(self._sums[:2].copy()))
        source = self._source
        ids = {} if source.ids is None else {"ids": _sha256(source.ids, source.ids.dtype)}
        return {
            "edges": entries, "features": features if source.width else None,
            "labels": _sha256(source.labels, label_type(source)),
            "split": _sha256(source.split, np.uint8), **ids,
        }  # fmt: skip


def _sha256(array: np.ndarray | None, dtype: Any) -> str | None:
    return None if array is None else hashlib.sha256(np.ascontiguousarray(array, dtype).data).hexdigest()
