"""Predictions of a trained network for every node: classes, probabilities, embeddings, from a checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from distgnn import operators
from distgnn.arrays import backend as backends
from distgnn.arrays.blocking import rows_within
from distgnn.arrays.memory import trim
from distgnn.arrays.tuning import TUNING
from distgnn.comm.agree import agree
from distgnn.comm.group import Comm
from distgnn.comm.session import task
from distgnn.errors import ArgumentError, UserError
from distgnn.files.output import check_output, replaced, writing
from distgnn.nn.features import OwnedFeatures, gone, normalize_rows
from distgnn.nn.loss import outputs
from distgnn.nn.metrics import scores
from distgnn.nn.networks import NETWORKS
from distgnn.nn.whole_weights import collect
from distgnn.operators.dense import DistDense, by_node
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.operators.weights import Features
from distgnn.report.comparison import Report, empty
from distgnn.store import checkpoint
from distgnn.store.read.distributed import StoreOrPath, identity, load, load_features
from distgnn.store.read.root import RootStore
from distgnn.store.read.store import Store
from distgnn.train import room
from distgnn.train.answers import ACTIVE, Answer, finite, normal, one_class, several_classes, unchanged
from distgnn.train.checkpoint import OWN, Collected, opened, saved_scaling, take_features, take_over
from distgnn.train.data import as_taken, standardized, targets_of
from distgnn.train.prediction_files import Csv, Npz
from distgnn.train.resolve import from_files, special
from distgnn.train.settings import Settings
from distgnn.train.stopping import Begun
from distgnn.train.ways import parse_grid

FORMATS = (".npz", ".csv")
#: Facts of a graph, in a checkpoint, that say nothing of its matrix and its features.
OF_TARGETS = ("source", "classes", "labelled", "split", "labels", "multilabel", "ids")
Reader = checkpoint.CheckpointReader | Collected

log = logging.getLogger(__name__)


class Predictor:
    """A trained network on a stored graph: the one it was trained on, or one prepared alike. Collective.

    Examples:
        >>> with np.load(Predictor("graph.dg", "weights").write("p.npz")) as found:  # doctest: +SKIP
        ...     found["label"], found["probability"]

    Args:
        store: its path, or an opened one; weights: the path of the checkpoint, which says what network it
            is, or one in memory.
        comm: the ranks; default: all.
        algorithm, grid, order, backend: as in ``Settings``, and with its defaults, whatever the network was
            trained with. They change no prediction beyond rounding.
        which: weights: "last", or "best", of the epoch with the highest validation accuracy; default:
            best where that was kept.

    Attributes:
        model: the network with its weights. epoch: after which they were these.
        loss: "softmax", "binary" where nodes may have several classes, "mse" where it predicts numbers.
        class_names: of the classes that it was trained on, or None where they have none. A checkpoint of
            before these were kept has those of the store.

    Raises:
        UserError: a store or checkpoint that can't be read, or that do not fit together; ranks that disagree
            (on every rank).
    """

    def __init__(
        self, store: StoreOrPath, weights: str | os.PathLike[str] | Collected,
        comm: MPI.Intracomm | None = None, algorithm: str | None = None,
        grid: str | Mapping[str, int] | None = None, order: str | None = None, backend: str | None = None,
        which: str | None = None,
    ) -> None:  # fmt: skip
        comm = MPI.COMM_WORLD if comm is None else comm
        with task(comm) as ours:
            arguments = {"algorithm": algorithm, "grid": grid, "order": order, "which": which}
            agree(ours, identity(store, ours) | arguments)
            self._make(store, weights, ours, arguments | {"backend": backend})

    def _make(self, store: Any, weights: Any, comm: Any, given: Mapping[str, Any]) -> None:
        """Open both and load all that predictions need. Collective."""
        alone = Comm(comm, backends.get("numpy"))
        reader = weights if isinstance(weights, Collected) else opened(weights, alone)
        trained = reader.meta["run"]
        filled = from_files(
            Settings(algorithm=given["algorithm"], order=given["order"], model=trained["model"]), store, comm
        )
        algorithm = filled.algorithm or "1d"
        sizes = parse_grid(given["grid"], algorithm)
        self.grid = operators.make_grid(comm, algorithm, sizes, backend=given["backend"])
        own = "binary" if trained.get("graph multilabel") else "softmax"
        self.loss: str = trained.get("loss", own)
        try:
            self._fill(store, reader, given["which"], algorithm, filled.order)
        except UserError:  # on every rank
            self.grid.free()
            raise
        self._made: tuple[int, DistDense] | None = None  # the last layer that was made, and its output

    def _fill(self, store: Any, reader: Reader, which: str | None, algorithm: str, order: str | None) -> None:
        """Load matrix, features and weights. Collective."""
        trained = reader.meta["run"]
        best, self.epoch = chosen(reader, which)
        self.store = store if isinstance(store, Store) else Store(store, self.grid.world)
        with self.grid.world.together():
            self._check(trained, reader.root)
            self._columns = self._by_name(trained, reader.root)
            self.class_names = self._names(reader.meta, trained["widths"][-1])
        graph = self.store.n, self.store.nnz
        ways, known = (trained["model"], trained["dtype"], algorithm), self.store.feature_nnz
        needs = room.of_predicting(*ways, *graph, self.grid.size, known)
        refuse = lambda problem: UserError(f"{reader.root}: {problem}")  # noqa: E731
        room.check_room(self.grid, needs, trained["widths"], refuse)
        self._trained = trained
        self._scaling = saved_scaling(reader.meta) if trained.get("standardize_features") else None
        self._load(trained, algorithm, order)
        self._X = self._features()
        trim()  # of what reading left
        with self.grid.world.together():
            stored = self.store.order(trained["order"]).layer(-1) if trained["train_features"] else None
        places = None if stored is None else stored.positions
        if isinstance(reader, Collected):
            reader.take_over(self.model.parameters, best, self._X, places)
            return
        with self.grid.world.together():
            take_over(reader, self.model.parameters, best=best)
            if places is not None:
                take_features(reader, self._X, places, best)

    def _load(self, trained: Mapping[str, Any], algorithm: str, order: str | None) -> None:
        """Load the matrix, and make the network without its weights. Collective."""
        network, dtype = NETWORKS[trained["model"]], trained["dtype"]
        A = load(self.store, self.grid, algorithm, order, dtype, neighbours=network.neighbours)
        options: Any = {name: trained.get(name, False) for name in ("bias", "residual", "layer_norm")}
        options |= special(trained["model"], trained)
        self.model = network(A, trained["widths"], **options)

    def _features(self) -> Features:
        """Load the features; the network owns those that can be loaded again. Collective."""
        trained, layout = self._trained, self.model.input_layout
        X = load_features(self.store, layout, dtype=trained["dtype"], columns=self._columns)
        X = as_taken(X, self.model, "they were trained" * trained["train_features"])
        if trained["normalize_features"]:
            normalize_rows(X)
        if self._scaling is not None:
            X = standardized(X, self._scaling)
        stays = trained["train_features"] or trained["model"] not in OWN
        return X if stays or isinstance(X, SparseFeatures) else OwnedFeatures(X)

    @property
    def X(self) -> Features:
        """The features, n x width, which stay from now on.

        A pass before has let them go, as a rule. They are loaded anew then, which is collective.
        """
        if gone(self._X):
            self._X = self._features()
        if isinstance(self._X, OwnedFeatures):
            self._X = self._X.like(self._X.block)
        return self._X

    def _check(self, trained: Mapping[str, Any], weights: Any) -> None:
        """Raise UserError if the network can't be applied to this graph."""
        if trained["model"] not in NETWORKS:
            problem = f"holds weights of model={trained['model']}; enter it in distgnn.nn.NETWORKS first"
            raise UserError(f"{weights}: {problem}")
        same = [f"graph {fact}" for fact in ("width", "normalize", "self_loops")]
        if self.store.manifest["edges"]:
            same.append("graph weighted")
            # arrays are as directed as they are
            either = isinstance(self.store, RootStore) and trained["graph directed"]
            same += [] if either else ["graph directed"]
        if trained["train_features"]:  # these belong to the nodes they were trained for
            same = [name for name in trained if name.startswith(("graph ", "content of "))]
            same = [name for name in same if name.split()[-1] not in OF_TARGETS]
        content = {f"content of {name}": hash for name, hash in self.store.manifest["content"].items()}
        here = {f"graph {name}": value for name, value in self.store.manifest.items()} | content
        named = trained.get("graph feature_names") and self.store.manifest.get("feature_names")
        for name in same:
            if here.get(name) != trained[name] and not (named and name == "graph width"):
                what = "features per node:" if name == "graph width" else name
                problem = (
                    f"the network was trained with {what} {trained[name]}, this graph has {here.get(name)}"
                )
                own = "; features that were trained belong to the nodes of their graph, so there it predicts"
                problem += f"{own} alone" if trained["train_features"] else ""
                raise self._unfit(weights, problem)

    def _unfit(self, weights: Any, problem: str) -> UserError:
        which = "the graph" if isinstance(self.store, RootStore) else self.store.path
        return UserError(f"{which} does not fit {weights}: {problem}")

    def _by_name(self, trained: Mapping[str, Any], weights: Any) -> list[int] | None:
        """Find the columns of the store that the network was trained with; None for all as they are."""
        then, now = trained.get("graph feature_names"), self.store.manifest.get("feature_names")
        if not then or not now or then == now:
            return None
        for name in then:
            if now.count(name) != 1 or then.count(name) != 1:
                there = "there is none here" if name not in now else "several columns are called so"
                problem = f"the network was trained with a feature {name}, and {there}: {', '.join(now[:20])}"
                raise self._unfit(weights, problem)
        others = [name for name in now if name not in then]
        if others and self.grid.rank == 0:
            what = f"{len(others)} features, such as {others[0]}, are left out, as training did without them"
            log.warning("%s: %s", self.store.path, what)
        return [now.index(name) for name in then]

    def _names(self, meta: Mapping[str, Any], classes: int) -> list[str] | None:
        """Return the names of the network's classes. Warn if the store's classes have others."""
        here = self.store.manifest["class_names"]
        names = meta.get("class_names", here)
        names = names if names and len(names) == classes else None
        trained = names or [str(number) for number in range(classes)]
        self._renamed = "class_names" in meta and bool(here) and here != trained
        if self._renamed and self.grid.rank == 0:
            pairs = enumerate(zip(here, trained, strict=False))
            differs = next(
                (f"class {k} is {now} here, was {then}" for k, (now, then) in pairs if now != then), ""
            )
            what = f"its classes are not the network's ({differs or f'{len(here)} here, {classes} there'})"
            log.warning(
                "%s: %s; predictions have the network's names and get no score", self.store.path, what
            )
        return names

    def scores(self, metric: str | None = None) -> dict[str, float]:
        """Compute train_acc, val_acc and test_acc, or the like of another metric, as in ``Settings``.

        NaN without labelled nodes; empty for a graph without labels or with other classes, or other names.
        Collective.
        """
        if not self._comparable():
            return {}
        Z = self._forward(len(self.model.layers))
        return scores(Z, targets_of(self.store, self.model, self.loss, metric))

    def report(self) -> Report | None:
        """Compare the predictions with the labels, by part of the split and class. Collective.

        Returns:
            on rank 0, which holds the labels, a :class:`~distgnn.report.comparison.ClassReport` or
            ``NumberReport``; None elsewhere.

        Raises:
            ArgumentError: a graph without labels, or with other classes, on every rank.
        """
        if not self._comparable():
            problem = f"{self.store.path} has no labels of the network's classes, or no split"
            raise ArgumentError("report", True, problem)
        return reported(self._forward(len(self.model.layers)), self.store, self.loss, self.class_names)

    def _comparable(self) -> bool:
        """Tell whether the store has labels for what the network predicts."""
        own, names = self.store.loss, self.store.manifest["class_names"]
        alike = own == self.loss or (self.loss == "mse" and not names)
        alike = alike and outputs(self.loss, own, self.store.classes) == self.model.widths[-1]
        return alike and not self._renamed and bool(self.store.manifest["split"])

    def embeddings(self, layer: int) -> np.ndarray | None:
        """Gather what :meth:`write` writes of a layer, on rank 0; None elsewhere. Collective."""
        with task(self.grid.links.current):
            agree(self.grid.world.mpi, {"layer": layer})
            self._check_layer(layer)
            hidden, world = layer < len(self.model.layers), self.grid.world
            Z, answer = self._forward(layer), self._activation(layer) if hidden else unchanged
            with world.together():
                whole, done = np.empty(Z.shape, Z.dtype) if world.rank == 0 else None, 0
            for rows in by_node(Z, rows_within(TUNING.written_numbers, Z.shape[1])):
                with world.together():
                    if whole is not None and rows is not None:
                        whole[done : done + len(rows)] = answer(rows)[0]
                        done += len(rows)
            return whole

    def _check_layer(self, layer: Any) -> None:
        last = len(self.model.layers)
        if isinstance(layer, bool) or not isinstance(layer, int | np.integer) or not 1 <= layer <= last:
            raise ArgumentError("layer", layer, f"the network has layers 1 to {last}")

    def _activation(self, layer: int) -> Callable[[np.ndarray], Answer]:
        """Apply the activation to whole rows of a hidden layer's output. Collective."""
        norm, active = self.model.layers[layer].norm, ACTIVE[self.model.activation]
        if norm is None:
            return active
        gain, shift = collect(norm.gain), collect(norm.shift)
        return lambda rows: active(normal(rows) * gain + shift)

    def _forward(self, layer: int) -> DistDense:
        """Return a layer's output, before its activation; begin at an earlier result if there is one."""
        if self._made is None or self._made[0] != layer:
            done, H = self._made if self._made and self._made[0] < layer else (0, self._X)
            self._made = None
            if done == 0 and self.grid.world.lowest(int(not gone(H))) == 0:
                H = self._X = self._features()
            if done and isinstance(H, DistDense) and self._trained["model"] in OWN:
                H = OwnedFeatures(H)
            Z = self.model.forward(H, layers=layer, after=done, scratch=isinstance(H, OwnedFeatures))
            self.grid.workspace.clear()  # of panels and layers, before numbers pass through rank 0
            self._made = layer, Z
        return self._made[1]

    def write(self, path: str | os.PathLike[str], layer: int | None = None, force: bool = False) -> Path:
        """Write what the network says of every node; returns the path. Collective.

        Row i is node i. A file ``.npz`` gets "label", int32 (n), and "probability", (n, classes); with a
        ``layer``, counted from 1, its "embedding" instead, (n, width): after the activation, and of the last
        layer the logits. Where nodes or classes have names, "id" (n) and "class_name" (classes) are these; of
        classes as in the graph that the network was trained on. A ``.csv`` gets a line for each node: its id,
        the name of its class, and these numbers, in columns "probability_CLASS", by name where classes have
        names, and texts such as ``=A1`` as :mod:`distgnn.files.sheet` says. Where a node may have several
        classes, "label" is int8 (n, classes), 1 where the probability is
        above one half, else 0, and a line has as many, in columns "label_CLASS". A network that predicts
        numbers gives "prediction" alone, (n, columns), in columns "prediction_0" ... of a ``.csv``. Rank 0
        writes a part at a time and holds no more than that and, for an ``.npz``, the labels.

        Raises:
            ArgumentError: no such layer, another kind of file, or one that may not be replaced or written.
            UserError: another run writes it, or a number is not finite (on every rank).
        """
        with task(self.grid.links.current):
            return self._write(Path(path), layer, force)

    def _write(self, path: Path, layer: int | None, force: bool) -> Path:
        world, last = self.grid.world, len(self.model.layers)
        agree(world.mpi, {"out": path, "layer": layer, "force": force})
        with world.together():
            if path.suffix not in FORMATS:
                raise ArgumentError("out", path, f"expected a file {' or '.join(FORMATS)}")
            if layer is not None:
                self._check_layer(layer)
            if world.rank == 0:
                check_output("out", path, force)
        Z = self._forward(last if layer is None else layer)
        hidden = layer is not None and layer < last
        kind = {"mse": unchanged, "binary": several_classes, "softmax": one_class}[self.loss]
        name = "embedding" if layer is not None else "prediction" if self.loss == "mse" else "probability"
        answer: Any = kind if layer is None else self._activation(layer) if hidden else unchanged
        with ExitStack() as stack:
            writer = None
            with world.together(), writing("out", path):
                if world.rank == 0:
                    form = Csv if path.suffix == ".csv" else Npz
                    like = answer(np.zeros((0, Z.shape[1])))[1]
                    opened = stack.enter_context(replaced(path))
                    writer = form(opened, Z, name, like, self.store, self.class_names)
            for rows in by_node(Z, rows_within(TUNING.written_numbers, Z.shape[1])):
                with world.together(), writing("out", path):
                    if writer is not None and rows is not None:
                        writer.write(*answer(rows))
            with world.together(), writing("out", path):
                if writer is not None:
                    writer.close()
                stack.close()
        return path


def chosen(reader: Reader, which: str | None) -> tuple[bool, int]:
    """Tell whether to take the best weights of a checkpoint, and after which epoch the weights were that are
    taken.

    ArgumentError: neither "best" nor "last", or "best" where it was not kept (on every rank alike).
    """
    if which not in (None, "best", "last"):
        raise ArgumentError("which", which, "expected best or last")
    state = reader.meta.get("best", {})
    if state.get("kept") and which != "last":
        return True, int(state["found"]["epoch"])
    if which == "best":
        problem = f"{reader.root} has the last one only; the best is kept by keep_best=val of train"
        raise ArgumentError("which", which, problem)
    if (begun := Begun.of(reader.meta)) is not None:
        log.warning("%s: was saved after %d updates of epoch %d", reader.root, len(begun.totals), begun.epoch)
    return False, int(reader.meta["epoch"])


def reported(Z: DistDense, store: Store, loss: str, names: Sequence[str] | None) -> Report | None:
    """Compare the logits of a graph with its labels, a part at a time, on rank 0. Collective."""
    report, world = None, Z.grid.world
    with world.together():
        if world.rank == 0:
            report = empty(loss, store.labels(), store.split(), names or range(Z.shape[1]))
    for rows in by_node(Z, rows_within(TUNING.written_numbers, Z.shape[1])):
        with world.together():
            if report is not None and rows is not None:
                report.add(finite(rows))
    return report
