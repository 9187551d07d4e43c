"""A trained network and its answers for the nodes of a graph, in the memory of rank 0."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from distgnn.arrays import backend
from distgnn.comm.group import Comm
from distgnn.errors import ArgumentError, UserError
from distgnn.split import SPLITS
from distgnn.store import checkpoint
from distgnn.store.array_ids import numbers_of
from distgnn.store.checkpoint import Piece
from distgnn.store.importers.names import Names
from distgnn.train.checkpoint import check_path, writer
from distgnn.train.predict import sigmoid, softmax
from distgnn.train.settings import Settings


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A trained network, with its logits for every node. :func:`fit` makes it.

    Nothing here is collective. Rank 0 has the answers; on the other ranks `predict` and `scores` return None
    and `save` does nothing. Their types say Any for that, so that a program for one rank checks no None.

    Attributes:
        settings: with all defaults filled in.
        history: the record of every epoch: "epoch", "loss", "seconds", "val_acc" where it was evaluated ...
        metrics: of the weights that predict, by part: "train_acc", "val_acc" and "test_acc", or f1 or
            rocauc, or r2 and mae; NaN for a part without labelled nodes.
        epoch: after which the weights were these: the last, or with ``keep_best="val"`` the best.
        classes: what the classes are called, in the order of the columns of `scores`: strings as in y, else
            0, 1, ...
        multilabel: whether a node may have several classes. regression: whether the network predicts numbers.
    """

    settings: Settings
    history: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, float]
    epoch: int
    classes: np.ndarray
    multilabel: bool
    regression: bool
    _logits: np.ndarray | None
    _names: Names | None
    _state: tuple[Mapping[str, Piece], Mapping[str, Any]]

    def __repr__(self) -> str:
        written = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        width = f"{len(self.classes)} {'numbers' if self.regression else 'classes'}"
        return f"<Model {self.settings.model}, {width}, epoch {self.epoch}: {written}>"

    @property
    def loss(self) -> float:
        """The training loss of the last epoch."""
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

    def predict(self, nodes: Any = None) -> np.ndarray | Any:
        """Predict the class of each node, in the order of the rows of X: one of `classes`; or where a node
        may have several, int8 (nodes, classes), 1 for each class whose probability is above one half; or
        predict numbers, (nodes), or (nodes, columns) of several.

        Args:
            nodes: some of them, by the ids that `fit` was given, else by number; or a mask. Default: all.

        Returns:
            an array on rank 0, None elsewhere.

        Raises:
            ArgumentError: an unknown node.
        """
        if self._logits is None:
            return None
        logits = self._rows(nodes)
        if self.regression:
            return logits[:, 0] if logits.shape[1] == 1 else logits
        return (logits > 0).astype(np.int8) if self.multilabel else self.classes[logits.argmax(axis=1)]

    def scores(self, nodes: Any = None, logits: bool = False) -> np.ndarray | Any:
        """Return the probability of every class, (nodes, classes), or its logit, of the run's dtype. Rows of
        probabilities sum to 1, unless a node may have several classes. Of a network that predicts numbers,
        return these, (nodes, columns). See :meth:`predict`
        for arguments, ranks and errors.
        """
        if self._logits is None:
            return None
        rows = self._rows(nodes)
        if logits or self.regression:
            return rows
        return sigmoid(rows) if self.multilabel else softmax(rows)

    def save(self, path: str | os.PathLike[str], force: bool = False) -> Path:
        """Write a checkpoint, from rank 0. `distgnn predict STORE --checkpoint PATH` and `distgnn export`
        take it, and so does ``Predictor``, for a store that was prepared from such arrays.

        Args:
            path: a directory to create. force: replace the checkpoint that is there.

        Raises:
            UserError: something is there, or it can't be written.
        """
        path = Path(path)
        if self._logits is not None:
            check_path(path, resume=False, force=force)
            alone = Comm(MPI.COMM_SELF, backend.get("numpy"), "self")
            with writer(os.fspath(path), alone, None):
                checkpoint.save(path, alone, *self._state)
        return path

    def _score(self, part: str) -> float:
        assert part in SPLITS
        return next(value for name, value in self.metrics.items() if name.startswith(f"{part}_"))

    def _rows(self, nodes: Any) -> np.ndarray:
        """Copy the logits of some nodes."""
        assert self._logits is not None
        if nodes is None:
            return self._logits.copy()
        wanted = np.atleast_1d(np.asarray(nodes))
        if wanted.dtype == bool:
            if wanted.shape != (len(self._logits),):
                problem = f"a mask of shape {wanted.shape}; expected ({len(self._logits)},)"
                raise ArgumentError("nodes", "bool", problem)
            return self._logits[wanted]
        return self._logits[numbers_of("nodes", wanted, self._names, len(self._logits))]


def finite(logits: np.ndarray | None) -> np.ndarray | None:
    """Return the logits themselves; UserError where some are not finite."""
    if logits is not None and not np.isfinite(logits).all():
        raise UserError("a prediction is not finite; the weights or the features are too large")
    return logits
