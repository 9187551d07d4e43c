"""The arguments of `prepare`, the source among them, and their checks."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from distgnn.arrays.canonical import check_real
from distgnn.errors import ArgumentError, UserError, offered
from distgnn.partition import Wanted, check_names, orders
from distgnn.store.format import manifest
from distgnn.store.format.publish import check_target
from distgnn.store.source import Edges, Source

NORMALIZATIONS = ("gcn", "row", "none")
DTYPES = ("float32", "float64")
MOST_SHARDS = 1 << 16  # each shard is a file


def check_arguments(
    out: str | os.PathLike[str], *, order: Sequence[str], normalize: str = "gcn", dtype: str = "float32",
    force: bool = False, partitions: Sequence[Wanted] = (),
) -> None:  # fmt: skip
    """Raise the UserError that `prepare` would raise for its arguments: call it before a long import."""
    orders.check_names(order)
    check_names(partitions)
    for wanted in partitions:
        wanted.check()
    for name, value, known in (("normalize", normalize, NORMALIZATIONS), ("dtype", dtype, DTYPES)):
        if value not in known:
            raise ArgumentError(name, value, offered(value, known))
    check_target(out, force=force, replaceable=is_store)


def parse_shards(text: str) -> tuple[int, int]:
    """Parse a grid "RxC"; raise ArgumentError unless it is one, of at most MOST_SHARDS shards."""
    try:
        rows, cols = (int(part) for part in text.lower().split("x"))
        if rows < 1 or cols < 1:
            raise ValueError
    except ValueError:
        raise ArgumentError("shards", repr(text), "expected ROWSxCOLUMNS, such as 4x4") from None
    check_shards(rows, cols)
    return rows, cols


def check_shards(rows: int, cols: int, n: int | None = None) -> None:
    """Raise ArgumentError for more than MOST_SHARDS, or for more shard rows or columns than `n` nodes."""
    grid = f"{rows}x{cols}"
    if rows * cols > MOST_SHARDS:
        side = math.isqrt(MOST_SHARDS)
        problem = f"{rows * cols} shards; at most {MOST_SHARDS} are possible, such as {side}x{side}"
        raise ArgumentError("shards", grid, problem)
    if n is not None and max(rows, cols) > n:
        raise ArgumentError("shards", grid, f"the matrix is {n} x {n}, so at most {n}x{n} is possible")


def is_store(path: Path) -> bool:
    """Return True for a store, readable or damaged, of any schema version, which may be replaced.

    Raises UserError if the directory of the store holds other files.
    """
    claim = manifest.claims(path, manifest.STORE)
    known = path.suffix == ".dg" and (path / manifest.NAME).exists() if claim is None else claim
    strange = sorted(set(os.listdir(path)) - {manifest.NAME, "nodes", "orders"}) if known else []
    if strange:
        raise UserError(f"{path}: holds {strange[0]}, which is no file of a store; move it elsewhere")
    return known


def check_source(source: Source) -> None:
    """Raise UserError for a source without nodes, or with labels or a split that do not fit them."""
    if source.n < 1:
        raise UserError(f"{source.name}: has no nodes")
    least, most = -1.0, float(1 if source.multilabel else source.classes - 1)
    if source.regression:
        least, most = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)
    checked = ("label", source.labels, least, most), ("split", source.split, 0, 3)
    for what, array, least, most in checked:
        if array is None:
            continue
        if len(array) != source.n:
            raise UserError(f"{source.name}: {len(array)} {what} values for {source.n} nodes")
        if (array < least).any() or (array > most).any():
            place = np.argwhere((array < least) | (array > most))[0]
            problem = f"node {place[0]} has {what} {array[tuple(place)]}"
            raise UserError(f"{source.name}: {problem}; expected {least:.8g}..{most:.8g}")
    labels = source.labels
    if labels is not None and source.regression and labels.shape != (source.n, source.classes):
        raise UserError(f"{source.name}: labels of shape {labels.shape}; expected {source.classes} columns")
    if labels is not None and source.multilabel:
        fits = 1 < labels.shape[1] == source.classes
        if not fits or ((labels < 0) != (labels[:, :1] < 0)).any():
            expected = f"rows of {source.classes} classes, at least 2, -1 in all of a row without labels"
            raise UserError(f"{source.name}: labels of shape {labels.shape}; expected {expected}")


def check_room(source: Source, needed: int, out: str | os.PathLike[str]) -> None:
    """Raise UserError if the features alone need more bytes than the disk takes."""
    free = shutil.disk_usage(Path(out).absolute().parent).free
    if needed > free:
        what = f"{source.n} x {source.width} features need {needed / 1e9:.1f} GB"
        raise UserError(f"{out}: {what}, and the disk has {free / 1e9:.1f} GB free")


def check_edges(source: Source, before: int, edges: Edges, dtype: np.dtype) -> None:
    """Raise UserError for the first impossible edge, or the first weight that the dtype can't hold.

    A weight must be a finite number of the matrix's dtype. `before`: the number of edges before these.
    """
    src, dst, weights = edges
    for ids in (src, dst):
        if len(ids) and (ids.min() < 0 or ids.max() >= source.n):
            at = int(np.flatnonzero((ids < 0) | (ids >= source.n))[0])
            what = f"names node {ids[at]}; node ids must be 0..{source.n - 1}"
            raise UserError(f"{source.name}: edge {before + at + 1} {what}")
    if weights is None:
        return
    check_real("weights", np.asarray(weights).dtype)
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(weights.astype(dtype))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        where, what = f"{source.name}: edge {before + at + 1} has weight {weights[at]}", "must be finite"
        raise UserError(f"{where}; weights {what}{f', {dtype} numbers' if np.isfinite(weights[at]) else ''}")
