"""What a store holds, in numbers: for `distgnn info`, for reports and for choosing an order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.layout import Range, as_partition, block
from distgnn.store.loader import Order, Store

ENTRIES = 1 << 22  # looked at a time

_FACTS = (
    *("source", "n", "nnz", "edges", "directed", "weighted", "symmetric", "self_loops", "normalize", "dtype", "seed"),
    *("degrees", "width", "classes", "class_names", "labelled", "split"),
)


def describe(store: Store, ranks: Sequence[int] = ()) -> dict[str, Any]:
    """Facts of the manifest, and of every order its shards: their grid, entries, max/mean entries and bytes.

    With `ranks` also how the order behaves when cut into each of those numbers of block rows (see `block_rows`), which reads all
    of it for each; an order by partition also as it was made for. An order of two versions has these facts of each, and has no
    block rows: only the 3D product takes it.
    """
    facts = {name: store.manifest[name] for name in _FACTS}
    facts["orders"] = {name: _describe_order(store, store.order(name), ranks) for name in store.orders}
    facts["bytes"] = sum(file["bytes"] for file in store.manifest["files"].values())
    return facts


def _describe_order(store: Store, order: Order, ranks: Sequence[int]) -> dict[str, Any]:
    versions = [_describe_shards(store, version) for version in order.versions]
    if len(versions) > 1:
        worst = {key: max(version[key] for version in versions) for key in ("largest_shard", "balance")}
        return versions[0] | worst | {"bytes": sum(version["bytes"] for version in versions), "versions": versions}
    described = versions[0]
    own = [] if order.partition is None else [len(order.partition) - 1]
    counts = [*own, *(count for count in ranks if count not in own)]
    if counts:
        described["block_rows"] = [block_rows(order, count) for count in counts]
    return described


def _describe_shards(store: Store, order: Order) -> dict[str, Any]:
    """One version of an order."""
    return {
        "shards": list(order.shard_nnz.shape),
        "largest_shard": int(order.shard_nnz.max()),
        "balance": balance(order.shard_nnz),
        "bytes": sum(store.manifest["files"][name]["bytes"] for name in order.files),
    }


def balance(counts: np.ndarray) -> float:
    """Largest over mean: 1 is perfect; 1 where there is nothing."""
    return float(counts.max() / counts.mean()) if counts.sum() else 1.0


def block_rows(order: Order, ranks: int) -> dict[str, Any]:
    """Entries and communication volume of A @ H with one block row of A and H per rank, cut evenly or as the order says.

    `receives` and `sends`: per rank, the rows of H that must come and go when only those with a non-zero in the receiver's block
    row are sent (sparsity-aware 1D: NnzCols of section 4 there). Times the width they are words. `volume`: their sum.
    `edge_cut`: entries off the diagonal blocks; of a symmetric matrix, half of them.
    `stage_balance`: what the fullest block of every stage adds up to, against the mean of a rank: how much longer the product
    takes where all wait for each other after each stage (MG-GCN section 5.2). `stages`: max/mean entries of each stage, which
    multiplies one column of blocks.
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
    """(bool[n]: columns with an entry in these rows, number of entries in each block of columns)."""
    n = order.shape[0]
    touched, entries = np.zeros(n, bool), np.zeros(len(parts) - 1, np.int64)
    step = max(1, n * ENTRIES // max(1, order.nnz))
    for lo in range(*rows, step):
        window = order.block((lo, min(lo + step, rows[1])), (0, n))
        touched[window.indices] = True
        # The bounds between blocks, so that empty blocks count nothing.
        entries += np.diff(np.concatenate([[0], np.cumsum(np.bincount(window.indices, minlength=n))])[parts])
    return touched, entries
