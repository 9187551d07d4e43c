"""Another graph for a trained network, prepared by the recipe of the graph that it was trained on."""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distgnn.arrays import backend
from distgnn.comm.group import Comm
from distgnn.errors import ArgumentError
from distgnn.split import labelled
from distgnn.store.from_arrays import of_arrays
from distgnn.store.importers.imported import Imported
from distgnn.store.in_memory import hold
from distgnn.store.read.distributed import StoreOrPath
from distgnn.store.read.root import ROOT
from distgnn.store.read.store import Store
from distgnn.terminal import printable

log = logging.getLogger(__name__)

#: The split of a report where none is given: all labelled nodes are the test.
SPLIT = "0/0/1"
#: The default of a graph: the one that the network was trained on.
OWN: Any = type("Own", (), {"__repr__": lambda self: "the graph trained on"})()


@dataclass(frozen=True)
class Another:
    """The arguments of a caller for another graph; see :func:`distgnn.train.fit.fit`.

    Attributes:
        graph: also the path of a store, which has all the rest.
        compared: whether y and the split are wanted.
    """

    graph: Any
    X: Any = None
    y: Any = None
    split: Any = None
    ids: Any = None
    weights: Any = None
    directed: bool | None = None
    compared: bool = False

    def store(self, comm: Comm, meta: Mapping[str, Any]) -> StoreOrPath:
        """Return the store of the graph that rank 0 gives, or its path. Collective.

        Args:
            meta: of the checkpoint of the network.

        Raises:
            ArgumentError: arrays that do not fit together, or labels that the network cannot have (on every
                rank).
        """
        path: str | None = None
        source: Imported | None = None
        with comm.together():
            if comm.rank == ROOT:
                path = self._path()
                source = self._source(meta) if path is None else None
        if (path := comm.share(path, ROOT)) is not None:
            return path
        run = meta["run"]
        recipe = {name: run[f"graph {name}"] for name in ("seed", "normalize", "self_loops")}
        return hold(source, comm, dtype=run["dtype"], **recipe)

    def _path(self) -> str | None:
        """Return the path of a store; ArgumentError where there are arrays beside. Local to rank 0."""
        if not isinstance(self.graph, (str, os.PathLike, Store)):
            return None
        beside = {"X": self.X, "y": self.y, "split": self.split, "ids": self.ids, "weights": self.weights}
        for name, given in (beside | {"directed": self.directed}).items():
            if given is not None:
                raise ArgumentError(name, type(given).__name__, "is for arrays, and a store has its own")
        return os.fspath(self.graph.path if isinstance(self.graph, Store) else self.graph)

    def _source(self, meta: Mapping[str, Any]) -> Imported:
        """Take the arrays; add the reverse of edges where the network knows them so. Local to rank 0."""
        run = meta["run"]
        if self.graph is None:
            problem = "expected another graph; without arguments answers are for the graph trained on"
            raise ArgumentError("graph", None, problem)
        source = self._read(run, self.directed)
        if self.directed is None and source.directed and not run["graph directed"]:
            source = self._read(run, directed=False)
            what = "edges come without their reverse, which is added, as the network was trained with both"
            log.warning("graph: some %s", what)
        if not source.width:
            raise ArgumentError("X", None, "the network needs features, an array (nodes, width)")
        if self.compared:
            _match(source, meta.get("class_names"), run)
        told(source)
        return source

    def _read(self, run: Mapping[str, Any], directed: bool | None) -> Imported:
        asked = True if self.weights is None and run["graph weighted"] else self.weights
        try:
            return of_arrays(
                self.graph, self.X, self.y, self.split, ids=self.ids, weights=asked, directed=directed,
                multilabel=run.get("graph multilabel", False), regression=run.get("loss") == "mse",
                default_split=SPLIT, dtype=run["dtype"], targets=self.compared, backend=backend.get(),
            )  # fmt: skip
        except ArgumentError as error:
            if asked is self.weights or error.argument != "weights":
                raise
            problem = "the network was trained with weights of edges, and this graph has none"
            raise ArgumentError("weights", None, problem) from None


def told(source: Imported) -> None:
    """Log what was left out of arrays, and warn, at the caller's line, of how they were read."""
    if source.left:
        log.info("left out: %s", ", ".join(source.left))
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals["__name__"].startswith("distgnn."):
        level, frame = level + 1, frame.f_back
    for note in source.notes:
        warnings.warn(printable(note), stacklevel=level)


def _match(source: Imported, names: Sequence[str] | None, run: Mapping[str, Any]) -> None:
    """Give labels the numbers that their classes have in the network; ArgumentError for other classes."""
    labels, width = source.labels, run["widths"][-1]
    if labels is None:
        raise ArgumentError("y", None, "a report needs labels")
    if source.regression:
        if source.classes != width:
            raise ArgumentError("y", f"{source.classes} numbers", f"the network predicts {width} of a node")
        return
    if source.multilabel != bool(run.get("graph multilabel")):
        kinds = "one class of a node", "several classes of a node"
        problem = f"the network was trained on {kinds[not source.multilabel]}"
        raise ArgumentError("y", kinds[source.multilabel], problem)
    known = {name: place for place, name in enumerate(names or map(str, range(width)))}
    there = source.class_names or [*map(str, range(source.classes))]
    known_rows = labels[labelled(labels)]
    used = np.flatnonzero((known_rows > 0).any(axis=0)) if source.multilabel else np.unique(known_rows)
    for place in used.tolist():
        if there[place] not in known:
            listed = ", ".join([*known][:20]) + (" ..." if len(known) > 20 else "")
            raise ArgumentError("y", printable(there[place]), f"is no class of the network: {listed}")
    places = np.array([known.get(name, 0) for name in there] or [0])
    if source.multilabel:
        rows = np.where(labelled(labels)[:, None], 0, np.full((len(labels), width), -1)).astype(np.int8)
        rows[:, places[used]] = labels[:, used]
        source.labels = rows
    else:
        source.labels = np.where(labels < 0, -1, places[np.maximum(labels, 0)]).astype(np.int32)
    source.classes, source.class_names = width, None if names is None else [*names]
