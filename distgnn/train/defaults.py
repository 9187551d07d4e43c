"""Defaults that stored files decide: the order of the nodes, and an algorithm that takes it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from distgnn.errors import UserError
from distgnn.nn.networks import NETWORKS
from distgnn.store.checkpoint import CHECKPOINT
from distgnn.store.format import manifest
from distgnn.store.read.store import Store
from distgnn.train.settings import AUTO, Settings

#: The algorithm that takes an order with two versions of the matrix.
ALTERNATING = "3d"
_UNREADABLE = (UserError, AttributeError, KeyError, TypeError)


def from_files(settings: Settings, store: Store | str | os.PathLike[str]) -> Settings:
    """Fill in the order of the nodes and the algorithm where they are not given. Local to a rank.

    The order is that of the checkpoint to resume, where the checkpoint depends on one; else the first of the
    store that the other settings can take. The algorithm is ``3d`` on an order with two versions, and stays
    open on others. What stays None has the defaults of :class:`Settings`. A store or checkpoint that can't be
    read decides nothing: opening it says what is wrong.
    """
    s = settings
    to_plan = s.order == AUTO  # the algorithm is then the one for the first order
    if s.algorithm == AUTO or (s.order is not None and (s.algorithm is not None or s.samples)):
        return s
    doubled = _doubled(store)
    given, first = (None if to_plan else s.order) or resumed_order(s), next(iter(doubled), None)
    single = [name for name, two in doubled.items() if not two]
    order = given or (single[0] if single and doubled.get(first) and takes_one(s) else first)
    algorithm = ALTERNATING if doubled.get(order) and not takes_one(s) else s.algorithm
    return replace(s, order=s.order if to_plan or order == first else order, algorithm=algorithm)


def resumed_order(settings: Settings) -> str | None:
    """Return the order that the checkpoint to resume depends on, if there is one that can be read."""
    if not (settings.resume and settings.checkpoint):
        return None
    try:
        return manifest.read(settings.checkpoint, CHECKPOINT)["meta"]["run"].get("order")
    except _UNREADABLE:
        return None


def _doubled(store: Store | str | os.PathLike[str]) -> dict[str | None, bool]:
    """Return the orders of a store by name, and whether they have two versions of the matrix."""
    try:
        orders = (store.manifest if isinstance(store, Store) else manifest.read(Path(store)))["orders"]
        return {name: len(entry.get("versions", ())) > 1 for name, entry in orders.items()}
    except _UNREADABLE:
        return {}


def takes_one(s: Settings) -> bool:
    """Return whether these settings rule out two versions of the matrix."""
    needs_own = s.model in NETWORKS and NETWORKS[str(s.model)].needs_own
    return bool(s.samples or needs_own or s.sparsity_aware) or s.algorithm not in (None, ALTERNATING)
