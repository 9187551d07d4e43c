"""Statistics of a store: for `distgnn info`, for reports and for choosing an order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.layout import Range, as_partition, block, partition
from distgnn.store.format.limits import LIMITS
from distgnn.store.read.order import Order
from distgnn.store.read.store import Store

_FACTS = (
    "id", "content", "source", "n", "nnz", "edges", "directed", "weighted", "symmetric", "self_loops",
    "normalize", "dtype", "seed", "degrees", "width", "classes", "class_names", "labelled", "split",
)  # fmt: skip


def describe(store: Store, ranks: Sequence[int] = (), cuts: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    """Return facts of the manifest, and for every order its shards' grid, entries, balance and bytes.

    With `ranks` also facts of the order in as many block rows (see `block_rows`), which reads the whole order
    for each number of ranks; an order by partition has these facts for its parts too. An order of two
    versions has shard facts for each version, and no block rows. With `cuts` also how evenly each order fills
    these grids of blocks (see `cut_counts`).
    """
    facts = {name: store.manifest[name] for name in _FACTS} | {"multilabel": store.multilabel}
    facts |= {"regression": True} if store.regression else {}
    facts |= {} if store.feature_nnz is None else {"feature_nnz": store.feature_nnz}
    facts["orders"] = {name: _describe_order(store, store.order(name), ranks, cuts) for name in store.orders}
    facts["ids"] = {"own": store.has_ids, "first": store.ids((0, min(3, store.n))).tolist()}
    facts["bytes"] = sum(file["bytes"] for file in store.manifest["files"].values())
    return facts


def _describe_order(store: Store, order: Order, ranks: Sequence[int], cuts: Any) -> dict[str, Any]:
    versions = [_describe_shards(store, version, cuts) for version in order.versions]
    if len(versions) > 1:
        nbytes = sum(version["bytes"] for version in versions)
        return _worst(versions) | {"bytes": nbytes, "versions": versions}
    described = versions[0]
    parts = [] if order.partition is None else [len(order.partition) - 1]
    if counts := [*parts, *(count for count in ranks if count not in parts)]:
        described["block_rows"] = [block_rows(order, count) for count in counts]
    return described


def _describe_shards(store: Store, order: Order, cuts: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return facts of the shards of one version of an order."""
    entries, files = order.shard_nnz, store.manifest["files"]
    described: dict[str, Any] = {"shards": list(entries.shape), "largest_shard": int(entries.max())}
    described |= {"balance": balance(entries), "bytes": sum(files[name]["bytes"] for name in order.files)}
    for cut in cuts:
        counts = cut_counts(order, *cut)
        sizes = {"largest": int(counts.max()), "mean": float(counts.mean()), "balance": balance(counts)}
        described.setdefault("cuts", []).append({"grid": list(cut), **sizes})
    return described


def _worst(versions: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the facts of versions of one matrix: take the version with the worst balance."""
    worst = max(versions, key=lambda version: version["balance"])
    if "cuts" not in worst:
        return dict(worst)
    cuts = zip(*(version["cuts"] for version in versions), strict=True)
    return worst | {"cuts": [max(alike, key=lambda cut: cut["balance"]) for alike in cuts]}


def balance(counts: np.ndarray) -> float:
    """Return the largest count over the mean: 1 is perfect. Return 1 if all counts are 0."""
    return float(counts.max() / counts.mean()) if counts.sum() else 1.0


def cut_counts(order: Order, rows: int, cols: int) -> np.ndarray:
    """Count the entries in each block of an even cut of A, int64 (rows, cols) (Plexus Table 3).

    Blocks of 2D and 3D products are such blocks. Reads the whole order, unless blocks are made of whole
    shards.
    """
    n = order.shape[0]
    row_parts, col_parts = partition(n, rows), partition(n, cols)
    if np.isin(row_parts, order.rows).all() and np.isin(col_parts, order.cols).all():
        by_rows = np.add.reduceat(order.shard_nnz, np.searchsorted(order.rows, row_parts[:-1]), axis=0)
        return np.add.reduceat(by_rows, np.searchsorted(order.cols, col_parts[:-1]), axis=1)
    counts = np.zeros(rows * cols, np.int64)
    for row, col, _ in order.entries(LIMITS.counted_entries):
        block_row = np.searchsorted(row_parts, row, side="right") - 1
        block_col = np.searchsorted(col_parts, col, side="right") - 1
        counts += np.bincount(block_row * cols + block_col, minlength=rows * cols)
    return counts.reshape(rows, cols)


def block_rows(order: Order, ranks: int) -> dict[str, Any]:
    """Return entries and communication volume of A @ H with one block row of A and H per rank.

    Rows are cut evenly, or into the order's parts if it has `ranks` parts.

    `receives` and `sends`: per rank, the rows of H that sparsity-aware 1D moves (NnzCols of section 4 there);
    `volume`: their sum. `edge_cut`: entries off the diagonal blocks; of a symmetric matrix, half of them.
    `stage_balance`: the sum of the fullest blocks of all stages over the mean of a rank (MG-GCN section 5.2).
    `stages`: max/mean entries of each stage, which multiplies one column of blocks.
    """
    n = order.shape[0]
    vector = order.partition if order.partition is not None and len(order.partition) == ranks + 1 else None
    parts = as_partition(vector, n, ranks)
    receives, sends = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    blocks = np.zeros((ranks, ranks), np.int64)
    for rank in range(ranks):
        lo, hi = block(parts, rank)
        needed, blocks[rank] = _touched(order, (lo, hi), parts)
        needed[lo:hi] = False
        receives[rank] = np.count_nonzero(needed)
        before = np.concatenate([[0], np.cumsum(needed)])
        sends += np.diff(before[parts])
    nnz = blocks.sum(axis=1)
    slowest = int(blocks.max(axis=0).sum())
    return {
        "ranks": ranks, "nnz": nnz.tolist(), "balance": balance(nnz),
        "stage_balance": slowest / (nnz.sum() / ranks) if nnz.sum() else 1.0,
        "stages": [balance(stage) for stage in blocks.T],
        "edge_cut": int(blocks.sum() - np.trace(blocks)) // (2 if order.symmetric else 1),
        "receives": receives.tolist(), "sends": sends.tolist(), "volume": int(receives.sum()),
    }  # fmt: skip


def _touched(order: Order, rows: Range, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (bool[n]: columns with an entry in these rows, number of entries in each block of columns)."""
    n = order.shape[0]
    touched, entries = np.zeros(n, bool), np.zeros(len(parts) - 1, np.int64)
    step = max(1, n * LIMITS.counted_entries // max(1, order.nnz))
    for lo in range(*rows, step):
        window = order.block((lo, min(lo + step, rows[1])), (0, n))
        touched[window.indices] = True
        before = np.concatenate([[0], np.cumsum(np.bincount(window.indices, minlength=n))])
        entries += np.diff(before[parts])  # empty blocks count nothing
    return touched, entries
