"""Training in one call, from arrays to a model: ``fit(edge_index, X, y)``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import fields
from typing import Any, NamedTuple, Unpack

import numpy as np
from mpi4py import MPI

from distgnn.arrays import backend
from distgnn.comm.freed import freed
from distgnn.comm.group import Comm
from distgnn.comm.session import task
from distgnn.errors import ArgumentError, check_type, did_you_mean
from distgnn.nn.metrics import scores
from distgnn.operators.dense import gather
from distgnn.store.from_arrays import of_arrays
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.names import Names
from distgnn.store.in_memory import given_features, hold
from distgnn.store.read.root import ROOT, RootStore
from distgnn.store.read.store import Store
from distgnn.train.another import told
from distgnn.train.checkpoint import Collected, collected
from distgnn.train.keywords import FitSettings
from distgnn.train.model import Kept, Model, finite
from distgnn.train.run import Run
from distgnn.train.settings import Settings

#: The split where none is given: shares of the labelled nodes.
SPLIT = "0.6/0.2/0.2"
#: Settings of a run on files, or of a terminal.
ELSEWHERE = ("quiet", "verify")
#: Arguments that are no settings, for hints.
ARGUMENTS = "graph X y split ids nodes weights directed normalize self_loops comm on_epoch".split()
#: What other libraries ask for.
FOLLOWS = "in_channels out_channels in_feats out_feats num_features num_classes n_classes input_dim".split()


def fit(
    graph: Any = None, X: Any = None, y: Any = None, split: Any = None, *, ids: Any = None,
    nodes: int | None = None, weights: Any = None, directed: bool | None = None, normalize: str = "gcn",
    self_loops: bool = True, seed: int = 0, comm: MPI.Intracomm | None = None,
    on_epoch: Callable[[Mapping[str, Any]], object] | None = None,
    **settings: Unpack[FitSettings],
) -> Model:  # fmt: skip
    """Train a network on a graph in memory, without files. Collective.

    Examples:
        >>> model = dg.fit(data.edge_index, data.x, data.y, hidden=64, lr=0.01)     # doctest: +SKIP
        >>> model.predict(), model.scores(), model.test_score                       # doctest: +SKIP

    Rank 0 has the arrays. What other ranks give for graph, X, y, split, ids and weights does not matter, such
    as None; all else is the same everywhere. The numbers equal a ``Run`` on the store of ``prepare``.

    Arrays may be on the GPU of rank 0: of CuPy, or of any library that has DLPack or the CUDA array
    interface, such as CUDA tensors. Dense X does not go through the host, and the model keeps a copy of it on
    the GPU; the others are copied to the host, where the graph is prepared.

    Args:
        graph, X, y, ids, nodes, weights, directed: see :func:`distgnn.prepare`.
        split: as there; default: that of the graph, as PyG's masks, else shares 0.6/0.2/0.2 of the labelled
            nodes, drawn by `seed`.
        normalize, self_loops: of the matrix, see ``store.write.prepare``.
        seed: of weights, dropout, samples, the order of the nodes and a split by shares.
        comm: the ranks; default: all.
        on_epoch: called on rank 0 with the record of each epoch, which `Model.history` then has. An error in
            it ends the training on all ranks.
        settings: of :class:`Settings`: with loss="mse", y are numbers to predict, (nodes) or (nodes,
            columns), NaN for unlabelled nodes; model, hidden, epochs, lr, dropout, algorithm, sampler ...

    Returns:
        the model, with its answers on rank 0.

    Raises:
        ArgumentError: an unknown setting, or arrays that do not fit together, or X on a GPU where the
            training does not compute (on every rank).
        UserError, TrainingError: see :class:`Run`.
        PeerError: another rank failed, in any way; the program may catch it and go on with another call.
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    check_type("comm", comm, MPI.Intracomm, "an mpi4py communicator")
    source: Imported | None = None
    with task(comm) as ours, freed(Comm(ours.Dup(), backend.get("numpy"), "fit")) as own:
        chosen = _settings({**settings, "seed": seed})
        if not (on_epoch is None or callable(on_epoch)):
            raise ArgumentError("on_epoch", on_epoch, "expected a function of an epoch's record")
        own.agree(chosen.shared() | {"normalize": normalize, "self_loops": self_loops})
        with own.together():
            if own.rank == ROOT:
                source = _source(
                    graph, X, y, split, ids=ids, nodes=nodes, weights=weights, directed=directed, seed=seed,
                    regression=chosen.loss == "mse", dtype=chosen.dtype,
                    backend=backend.get(chosen.backend),
                )  # fmt: skip
        store = hold(source, own, seed=seed, normalize=normalize, self_loops=self_loops, dtype=chosen.dtype)
        given, names = given_features(source), None if source is None else source.names
        source = None  # copies of the caller's edges go with it
        run = Run(store, chosen, own.mpi)
        with freed(run.grid):
            trained = _trained(run, on_epoch)
            del run
        return _kept(trained, store, given, names, own, comm)


class Trained(NamedTuple):
    """The results of a training, of the weights that predict. ``logits``: of all nodes, on rank 0."""

    settings: Settings
    history: list[Any]
    metrics: dict[str, float]
    epoch: int
    weights: Collected
    logits: np.ndarray | None
    how: dict[str, Any]


def _settings(given: dict[str, Any]) -> Settings:
    """Make the settings; ArgumentError for an unknown name."""
    known = [field.name for field in fields(Settings) if field.name not in ELSEWHERE]
    for name, value in given.items():
        if name not in known:
            plain = isinstance(value, (str, int, float, bool, type(None)))
            value = value if plain else type(value).__name__
            if name in FOLLOWS:
                raise ArgumentError(name, value, "follows from X and y; leave it out")
            hint = did_you_mean(name, [*known, *ARGUMENTS]) or f"; there is {', '.join(known)}"
            raise ArgumentError(name, value, f"no setting has this name{hint}")
    return Settings(**given)


def _source(graph: Any, X: Any, y: Any, split: Any, **given: Any) -> Imported:
    """Take the graph, with all that training needs. Local to rank 0."""
    if graph is None:
        raise ArgumentError("graph", None, "training needs edges")
    if isinstance(graph, (str, os.PathLike, Store)):
        run = "distgnn.train.Run(STORE, Settings(...)) trains on a store, which dg.prepare makes of files"
        raise ArgumentError("graph", getattr(graph, "path", graph), f"expected arrays in memory; {run}")
    source = of_arrays(graph, X, y, split, default_split=SPLIT, **given)
    needed = {"graph": source.n, "X": source.width, "y": source.classes}
    expected = {"graph": "edges", "X": "features, an array (nodes, width)"}
    expected["y"] = "classes or numbers, an array"
    for name, there in needed.items():
        if not there:
            raise ArgumentError(name, None, f"training needs {expected[name]}")
    told(source)
    return source


def _trained(run: Run, on_epoch: Callable[..., object] | None) -> Trained:
    """Train to the end, and collect on rank 0 the numbers of the model's answers. Collective."""
    history = []
    with closing(run.train()) as epochs:
        for record in epochs:
            history.append(record)
            if on_epoch is not None and run.grid.rank == ROOT:
                on_epoch(record)
    s, epoch = run.settings, run.first_epoch - 1  # of a checkpoint that has all epochs already
    epoch = int(history[-1]["epoch"]) if history else epoch
    weights = collected(run.state, epoch)
    if run.best.blocks:
        run.best.restore()
        assert run.best.found is not None
        epoch = int(run.best.found["epoch"])
    Z = run.model.forward(run.X)
    run.grid.workspace.clear()  # rank 0 has room for the numbers of all nodes
    metrics, whole = scores(Z, run.targets), gather(Z)
    with run.grid.world.together():
        logits = finite(whole)
    weights.meta |= {"metrics": metrics}
    how = {"algorithm": s.algorithm, "grid": run.grid.shape, "backend": s.backend}
    return Trained(s, history, metrics, epoch, weights, logits, how)


def _kept(
    trained: Trained, store: RootStore, given: np.ndarray | None, names: Names | None, own: Comm,
    comm: MPI.Intracomm,
) -> Model:  # fmt: skip
    """Make the model, which keeps the graph, once the matrices of the run are gone. Collective.

    ``given``: the caller's features, where the store has no copy; names: of the nodes. On rank 0, else None.
    """
    with own.together():
        copied = given is None or backend.of(given).on_device
        if not copied and store.arrays is not None and store.arrays.features is given:
            store.arrays.features = given.copy()  # which the caller may change from now on
    words = own.share(names is not None and names.words, ROOT)
    kept = Kept(store.manifest, words, Kept.shared(store), trained.logits, names)
    t = trained
    return Model(t.settings, t.history, t.metrics, t.epoch, t.weights, comm, t.how, kept)
