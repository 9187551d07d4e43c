"""A trained network and its answers, for the nodes that it was trained on and for other graphs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from mpi4py import MPI

from distgnn.arrays import backend as backends
from distgnn.comm.freed import freed
from distgnn.comm.group import Comm
from distgnn.comm.session import task
from distgnn.errors import ArgumentError, UserError
from distgnn.report.comparison import Report, empty
from distgnn.split import SPLITS
from distgnn.store import checkpoint
from distgnn.store.array_ids import numbers_of
from distgnn.store.checkpoint import CHECKPOINT
from distgnn.store.format import manifest
from distgnn.store.importers.names import Names
from distgnn.store.read.root import ROOT, Arrays, RootStore
from distgnn.train.another import OWN, Another
from distgnn.train.answers import sigmoid, softmax
from distgnn.train.checkpoint import Collected, check_path, saved_settings, writer
from distgnn.train.predict import Predictor, chosen
from distgnn.train.settings import Settings

log = logging.getLogger(__name__)

T = TypeVar("T")
#: By content: matrices and features of the graphs of models, one of each for all that have it.
_SHARED: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()


@dataclass(frozen=True)
class Kept:
    """The graph that a model was trained on.

    Attributes:
        manifest: of its store, on every rank. words: whether ids of its nodes are text, on every rank.
        arrays: its arrays; logits: of its nodes, by node; names: ids of the nodes, where they have some. Rank
            0 has them, the others None.
    """

    manifest: Mapping[str, Any]
    words: bool
    arrays: Arrays | None
    logits: np.ndarray | None
    names: Names | None

    @staticmethod
    def shared(store: RootStore) -> Arrays | None:
        """Return the arrays of a store, with the matrix and the features of earlier ones that are equal."""
        if store.arrays is None:
            return None
        facts, own = store.manifest, store.arrays
        recipe = (facts[name] for name in ("n", "normalize", "self_loops", "directed", "dtype"))
        matrix = _SHARED.setdefault(("A", facts["content"]["edges"], *recipe), own.matrix)
        kind = type(own.features), own.features.shape, str(own.features.dtype)
        features = _SHARED.setdefault(("X", facts["content"]["features"], *kind), own.features)
        return Arrays(matrix, features, own.labels, own.split)


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A trained network: :func:`fit` makes it, :meth:`load` reads it.

    Rank 0 has the answers; the other ranks get None, for which their types say Any, so that a program for one
    rank checks no None. Answers for the nodes trained on need no other rank, but
    for `embeddings`; all answers for another graph are collective, on the ranks of the training or of `load`.

    Attributes:
        settings: with all defaults filled in; of a loaded model as far as its file has them.
        history: the record of every epoch: "epoch", "loss", "seconds", "val_acc" where it was evaluated ...;
            empty where the model was loaded.
        metrics: of the weights that predict, by part: "train_acc", "val_acc" and "test_acc", or f1 or
            rocauc, or r2 and mae; NaN for a part without labelled nodes.
        epoch: after which the weights were these: the last, or with ``keep_best="val"`` the best.
        classes: what the classes are called, in the order of the columns of `scores`: strings as in y, else
            0, 1, ...
        multilabel: whether a node may have several classes. regression: whether the network predicts numbers.
        features: the number of features per node.
    """

    settings: Settings
    history: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, float]
    epoch: int
    _weights: Collected
    _comm: MPI.Intracomm
    _how: Mapping[str, Any]
    _kept: Kept | None = None
    classes: np.ndarray = field(init=False)
    multilabel: bool = field(init=False)
    regression: bool = field(init=False)
    features: int = field(init=False)

    def __post_init__(self) -> None:
        meta = self._weights.meta
        run, names = meta["run"], meta.get("class_names")
        known = {"classes": np.arange(run["widths"][-1]) if names is None else np.array(names)}
        several = {"multilabel": run.get("graph multilabel", False), "regression": run.get("loss") == "mse"}
        for name, value in (known | several | {"features": run["widths"][0]}).items():
            object.__setattr__(self, name, value)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], comm: MPI.Intracomm | None = None, *, which: str | None = None,
        algorithm: str | None = None, grid: str | Mapping[str, int] | None = None, backend: str | None = None,
    ) -> Model:  # fmt: skip
        """Read a model that `save` wrote, or ``distgnn train --checkpoint``. Collective.

        The graph that it was trained on is not in it: the model answers for graphs that it is given.

        Examples:
            >>> model = dg.Model.load("weights")                                    # doctest: +SKIP
            >>> model.predict(edge_index, X), model.predict_proba("other.dg")       # doctest: +SKIP

        Args:
            path: of the checkpoint. comm: the ranks; default: all.
            which: "last", or "best"; default: the best weights, where they were kept.
            algorithm, grid, backend: of the products that answers take, see ``Predictor``.

        Raises:
            UserError: no checkpoint there, a damaged one, or one of another version (on every rank).
            ArgumentError: no best weights are there.
        """
        comm = MPI.COMM_WORLD if comm is None else comm
        with task(comm) as ours, freed(Comm(ours.Dup(), backends.get("numpy"), "load")) as own:
            own.agree({"which": which, "algorithm": algorithm, "grid": grid})
            weights = Collected.read(path, own)
            best, epoch = chosen(weights, which)
        meta = weights.meta
        try:
            settings = saved_settings(meta)
        except ValueError as error:
            raise manifest.damaged(weights.root, CHECKPOINT, error) from None
        if "class_names" not in meta and comm.Get_rank() == ROOT:
            log.warning("%s: was saved without names of classes; they are called 0, 1, ...", weights.root)
        scored = meta["best"]["found"] if best else meta.get("metrics", {})
        metrics = {name: value for name, value in scored.items() if name != "epoch"}
        how = {"algorithm": algorithm, "grid": grid, "backend": backend, "which": which}
        return cls(settings, (), metrics, epoch, weights, comm, how)

    def __repr__(self) -> str:
        written = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        width = f"{len(self.classes)} {'numbers' if self.regression else 'classes'}"
        return f"<Model {self.settings.model}, {width}, epoch {self.epoch}: {written or 'no scores'}>"

    @property
    def loss(self) -> float:
        """The training loss of the last epoch. UserError: a model that was loaded, or no epoch was left."""
        if not self.history:
            saved = "a saved model has no losses; train with log=FILE for them"
            problem = saved if self._kept is None else "no epoch was left to train, so there is no loss"
            raise UserError(f"{self._weights.root}: {problem}")
        return float(self.history[-1]["loss"])

    @property
    def train_score(self) -> float:
        """The metric on the training nodes."""
        return self._score("train")

    @property
    def val_score(self) -> float:
        """The metric on the validation nodes; NaN where there are none."""
        return self._score("val")

    @property
    def test_score(self) -> float:
        """The metric on the test nodes; NaN where there are none."""
        return self._score("test")

    def predict(
        self, graph: Any = OWN, X: Any = OWN, *, nodes: Any = None, ids: Any = None, weights: Any = None,
        directed: bool | None = None,
    ) -> np.ndarray | Any:  # fmt: skip
        """Predict the class of each node, in the order of the rows of X: one of `classes`; or where a node
        may have several, int8 (nodes, classes), 1 for each class whose probability is above one half; or
        predict numbers, (nodes), or (nodes, columns) of several.

        Examples:
            >>> model.predict(), model.predict([3, 5])      # of the graph trained on   # doctest: +SKIP
            >>> model.predict(edge_index, X)                # of another                # doctest: +SKIP

        Args:
            graph, X, ids, weights, directed: another graph, as :func:`fit` takes it, or the path of a store;
                a pathlib.Path where ids of nodes trained on are text. Self-loops, normalisation, directions,
                use of weights and the scaling of features are as in training. Rank 0 gives the graph; what
                others give does not matter, such as None, but all call. Default: the graph trained on, for
                which rank 0 may call alone.
            nodes: some of the graph trained on, by the ids that `fit` was given, else by number; or a mask;
                also in the place of `graph`. Default: all.

        Returns:
            an array on rank 0, None elsewhere.

        Raises:
            ArgumentError: an unknown node, or arrays that do not fit together (on every rank).
            UserError: a graph with other features, or another recipe (on every rank).
        """
        logits = self._logits(graph, X, nodes, ids, weights, directed)
        if logits is None:
            return None
        if self.regression:
            return logits[:, 0] if logits.shape[1] == 1 else logits
        return (logits > 0).astype(np.int8) if self.multilabel else self.classes[logits.argmax(axis=1)]

    def predict_proba(
        self, graph: Any = OWN, X: Any = OWN, *, nodes: Any = None, ids: Any = None, weights: Any = None,
        directed: bool | None = None,
    ) -> np.ndarray | Any:  # fmt: skip
        """Return the probability of every class, (nodes, classes), of the network's dtype. Rows sum to 1,
        unless a node may have several classes. See :meth:`predict` for arguments, ranks and errors.

        UserError: the network predicts numbers.
        """
        if self.regression:
            raise UserError("the network predicts numbers, which have no probabilities; predict gives them")
        logits = self._logits(graph, X, nodes, ids, weights, directed)
        return None if logits is None else self._probabilities(logits)

    def scores(self, nodes: Any = None, logits: bool = False) -> np.ndarray | Any:
        """Return what `predict_proba` returns of nodes trained on, or logits. Of a network that predicts
        numbers, return these, (nodes, columns). Not collective; see :meth:`predict` for nodes and errors.
        """
        rows = self._logits(OWN, OWN, nodes)
        return rows if rows is None or logits or self.regression else self._probabilities(rows)

    def embeddings(
        self, layer: int, graph: Any = OWN, X: Any = OWN, *, ids: Any = None, weights: Any = None,
        directed: bool | None = None,
    ) -> np.ndarray | Any:  # fmt: skip
        """Compute the embedding of each node after a layer, (nodes, width), in the order of the rows of X.
        Collective.

        Args:
            layer: from 1; after its activation, and of the last layer the logits.
            graph, X, ids, weights, directed: another graph, see :meth:`predict`; default: the one trained on.

        Returns:
            an array on rank 0, None elsewhere.

        Raises:
            ArgumentError: no such layer, or arrays that do not fit together. UserError: see :meth:`predict`.
        """
        other = self._other(graph, X, ids=ids, weights=weights, directed=directed)
        return self._on(other, "embeddings", lambda predictor: predictor.embeddings(layer))

    def report(
        self, graph: Any = OWN, X: Any = OWN, y: Any = None, split: Any = None, *, ids: Any = None,
        weights: Any = None, directed: bool | None = None,
    ) -> Report | Any:  # fmt: skip
        """Compare predictions with labels: by part of the split and class confusion, precision, recall, F1
        and support; of numbers R² and errors. Printed, it is a table.

        Args:
            graph, X, ids, weights, directed: another graph, see :meth:`predict`; default: the one trained on.
            y: labels of the other graph, called as in training; split: see :func:`fit`; default: that of the
                graph, else all labelled nodes are the test.

        Returns:
            a :class:`~distgnn.report.comparison.ClassReport` or ``NumberReport`` on rank 0, None elsewhere.

        Raises:
            ArgumentError: no labels, or other classes than the network has. See :meth:`predict` for others.
        """
        given = {"ids": ids, "weights": weights, "directed": directed}
        if (other := self._other(graph, X, y=y, split=split, **given, compared=True)) is not None:
            return self._on(other, "report", Predictor.report)
        kept = self._own()
        if kept.logits is None or kept.arrays is None:
            return None
        loss = "mse" if self.regression else "softmax"
        made = empty(loss, kept.arrays.labels, kept.arrays.split, self.classes.tolist())
        made.add(kept.logits)
        return made

    def save(self, path: str | os.PathLike[str], force: bool = False) -> Path:
        """Write a checkpoint, from rank 0, which :meth:`load` reads. `distgnn predict STORE --checkpoint
        PATH` and `distgnn export` take it, and so does ``Predictor``, for a store that was prepared from such
        arrays. The graph is not in it, but for features that were trained.

        Args:
            path: a directory to create. force: replace the checkpoint that is there.

        Raises:
            UserError: something is there, or it can't be written.
        """
        path = Path(path)
        if self._comm.Get_rank() == ROOT:
            check_path(path, resume=False, force=force)
            alone = Comm(MPI.COMM_SELF, backends.get("numpy"), "self")
            with writer(os.fspath(path), alone, None):
                checkpoint.save(path, alone, self._weights.pieces, self._weights.meta)
        return path

    def _score(self, part: str) -> float:
        assert part in SPLITS
        for name, value in self.metrics.items():
            if name.startswith(f"{part}_"):
                return value
        raise UserError(f"{self._weights.root}: has no scores; report(graph, X, y) measures some")

    def _probabilities(self, logits: np.ndarray) -> np.ndarray:
        return sigmoid(logits) if self.multilabel else softmax(logits)

    def _own(self) -> Kept:
        """Return the graph trained on; UserError where the model was loaded."""
        if self._kept is None:
            problem = "a saved model has no graph; give one: model.predict(graph, X)"
            raise UserError(f"{self._weights.root}: {problem}")
        return self._kept

    def _other(self, graph: Any, X: Any, **given: Any) -> Another | None:
        """Return the other graph that is meant; None for the one trained on."""
        if graph is OWN and X is OWN:
            for name, value in given.items():
                if value is not None and name != "compared":
                    raise ArgumentError(name, type(value).__name__, "is of another graph; give that too")
            return None
        return Another(None if graph is OWN else graph, None if X is OWN else X, **given)

    def _logits(self, graph: Any, X: Any, nodes: Any = None, *given: Any) -> np.ndarray | None:
        """Return a copy of the logits of the nodes that are meant, on rank 0."""
        if X is OWN and nodes is None and _lists_nodes(graph, self._kept):
            graph, nodes = OWN, graph
        other = self._other(graph, X, **dict(zip(("ids", "weights", "directed"), given, strict=False)))
        if other is not None:
            if nodes is not None:
                problem = "are of the graph trained on; of another, take rows of the result"
                raise ArgumentError("nodes", type(nodes).__name__, problem)
            layers = len(self._weights.meta["run"]["widths"]) - 1
            return self._on(other, "logits", lambda predictor: predictor.embeddings(layers))
        kept = self._own()
        return None if kept.logits is None else _rows(kept.logits, nodes, kept.names)

    def _on(self, other: Another | None, what: str, answer: Callable[[Predictor], T]) -> T:
        """Answer for another graph, or for the one trained on, by a forward pass. Collective."""
        kept = self._own() if other is None else None
        with task(self._comm) as ours, freed(Comm(ours.Dup(), backends.get("numpy"), "predict")) as own:
            own.agree({"the answer": what, "the graph": "another" if kept is None else "trained on"})
            if kept is not None:
                store: Any = RootStore(own, dict(kept.manifest), kept.arrays)
            else:
                assert other is not None
                store = other.store(own, self._weights.meta)
            predictor = Predictor(store, self._weights, own.mpi, **self._how)
            with freed(predictor.grid):
                return answer(predictor)


def _lists_nodes(given: Any, kept: Kept | None) -> bool:
    """Tell whether this is a node, or a list or a mask of some, and no graph."""
    if isinstance(given, str):  # else the path of a store
        return kept is not None and kept.words
    if isinstance(given, (list, tuple)):
        return not len(given) or isinstance(given[0], (str, int, np.generic))
    return isinstance(given, (int, range)) or getattr(given, "ndim", 2) < 2


def _rows(logits: np.ndarray, nodes: Any, names: Names | None) -> np.ndarray:
    """Copy the logits of some nodes."""
    if nodes is None:
        return logits.copy()
    wanted = np.atleast_1d(np.asarray(nodes))
    if wanted.dtype == bool:
        if wanted.shape != (len(logits),):
            problem = f"a mask of shape {wanted.shape}; expected ({len(logits)},)"
            raise ArgumentError("nodes", "bool", problem)
        return logits[wanted]
    return logits[numbers_of("nodes", wanted, names, len(logits))]


def finite(logits: np.ndarray | None) -> np.ndarray | None:
    """Return the logits themselves; UserError where some are not finite."""
    if logits is not None and not np.isfinite(logits).all():
        raise UserError("a prediction is not finite; the weights or the features are too large")
    return logits
