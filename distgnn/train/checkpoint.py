"""The state of training in a checkpoint: the blocks that ranks hold, so that any other grid can go on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import distgnn
from distgnn.comm.group import Comm
from distgnn.errors import ArgumentError, UserError
from distgnn.files.lock import check_unlocked, locked
from distgnn.nn.activation import ACTIVATIONS
from distgnn.nn.features import Scaling
from distgnn.nn.optim import Optimizer, Parameter
from distgnn.operators.dense import gather, scatter
from distgnn.operators.weights import Features
from distgnn.store import checkpoint
from distgnn.store.checkpoint import CHECKPOINT, CheckpointReader, Piece
from distgnn.store.format import manifest
from distgnn.store.format.facts import NONE, check_names, check_types
from distgnn.store.format.limits import LIMITS
from distgnn.store.read.store import Store
from distgnn.train.best import Best
from distgnn.train.settings import OF_ATTENTION, Settings, check_fields, public
from distgnn.train.stopping import Begun

Array = Any
OWN = ("gcn", "sage", "gat", "gatv2")  # networks whose weights have the widths of their layers
_OPTIONS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("order", "loss", "activation"), (str,)), "heads": (list,),
    "attention_dropout": (int, float),
}  # fmt: skip
_META = {"epoch": (int,), "steps": (int,), "run": (dict,), "rates": (list,)}
_MAY_BE = dict.fromkeys(("best", "settings", "metrics"), (dict,)) | {"begun": (dict, NONE), "distgnn": (str,)}
_RUN: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("train_features", "normalize_features", "bias"), (bool,)),
    **dict.fromkeys(("model", "dtype", "graph normalize"), (str,)), "widths": (list,), "graph width": (int,),
    **dict.fromkeys(("graph self_loops", "graph directed", "graph weighted"), (bool,)),
}  # fmt: skip
_RUN_SWITCHES = ("standardize_features", "residual", "layer_norm", "graph multilabel")
#: What a store's manifest says of the graph itself, and not of how it is cut into files.
GRAPH = "source seed n nnz edges directed weighted self_loops normalize width classes labelled split".split()
#: Settings that a run shares with the one whose checkpoint it goes on from, with SHARED_BATCHES.
SHARED = (
    "seed dropout bias optimizer momentum dtype model sampler "
    "train_features normalize_features standardize_features"
).split()
SHARED_BATCHES = ("fanout", "batch_size", "batches_per_update", "importance", "rescale")
_BEST = dict.fromkeys(("drops", "since", "seen"), (int,)) | dict.fromkeys(("kept", "stopped"), (bool,))
BEST = "best."  #: before the names of the best weights in a checkpoint


@dataclass
class State:
    """The state of a training that a checkpoint keeps.

    Attributes:
        parameters, optimizer: weights, biases and trained features, and their optimiser.
        run: what must be the same in a run that goes on from here, as JSON: see :func:`run_identity`.
        rates: what need not be: step sizes and weight decays of the updates so far, as JSON, the latest last.
        best: the best weights so far.
        class_names: of the classes that are trained on, where they have names.
        scaling: of the features, where they are standardised.
        settings: of the run, resolved.
    """

    parameters: Sequence[Parameter]
    optimizer: Optimizer
    run: Mapping[str, Any]
    rates: list[dict[str, Any]]
    best: Best
    class_names: Sequence[str] | None
    scaling: Scaling | None
    settings: Settings

    def blocks(self) -> Iterator[tuple[Parameter, str, Array]]:
        """Yield this rank's blocks by the names they have in a checkpoint, with the parameter of each."""
        self.optimizer.prepare(self.parameters)
        for p in self.parameters:
            yield from ((p, name, block) for name, block in _blocks(p, self.optimizer))
            if self.best.blocks:
                yield p, BEST + p.name, self.best.blocks[p.name]

    def meta(self, epoch: int) -> dict[str, Any]:
        """Describe a checkpoint after an epoch, beside its matrices, as JSON."""
        meta = {"epoch": epoch, "steps": self.optimizer.steps, "run": dict(self.run), "rates": self.rates}
        if self.scaling is not None:
            meta["scaling"] = {name: numbers.tolist() for name, numbers in self.scaling._asdict().items()}
        kept = [field.name for field in public(self.settings) if field.metadata["group"] != "output"]
        meta |= {"settings": {name: getattr(self.settings, name) for name in kept}}
        meta |= {"distgnn": distgnn.__version__}
        return meta | {"best": self.best.state(), "class_names": self.class_names}


def save(path: str, comm: Comm, state: State, epoch: int, begun: Begun | None = None) -> None:
    """Write weights, biases, trained features, and the optimiser's state after `epoch`; and the best weights
    so far, where they are kept. Collective.

    Args:
        begun: the next epoch, if some of its updates are made.

    Raises:
        UserError: `path` cannot be written; the previous checkpoint is intact then (on every rank).
    """
    pieces: dict[str, Piece] = {}
    for p, name, block in state.blocks():
        if p.matrix.layout.primary:
            rows, cols = p.matrix.row_range, p.matrix.col_range
            pieces[name] = (rows[0], cols[0], p.matrix.grid.backend.to_host(block), p.matrix.shape)
    meta = state.meta(epoch)
    checkpoint.save(path, comm, pieces, meta if begun is None else meta | {"begun": begun.state()})


@dataclass
class Collected:
    """A checkpoint in the memory of rank 0.

    Attributes:
        root: what errors call it.
        meta, shapes: as of a :class:`CheckpointReader`, on every rank.
        pieces: whole matrices, as ``store.checkpoint.save`` takes them from one rank; empty on other ranks.
    """

    root: Path
    meta: dict[str, Any]
    shapes: Mapping[str, tuple[int, int]]
    pieces: Mapping[str, Piece]

    @classmethod
    def read(cls, path: str | os.PathLike[str], comm: Comm) -> Collected:
        """Read a checkpoint. Collective; errors of :func:`opened`."""
        reader, pieces = opened(path, comm), dict[str, Piece]()
        with comm.together():
            for name, shape in reader.shapes.items() if comm.rank == 0 else ():
                pieces[name] = (0, 0, reader.piece(name, (0, shape[0]), (0, shape[1])), shape)
        return cls(reader.root, reader.meta, reader.shapes, pieces)

    def take_over(
        self, parameters: Sequence[Parameter], best: bool, X: Features,
        positions: Callable[[np.ndarray], np.ndarray] | None,
    ) -> None:  # fmt: skip
        """Copy the parameters and, given the positions of nodes, trained features in place. Collective; see
        :func:`take_over` and :func:`take_features`.
        """
        prefix = BEST if best else ""
        for p in parameters:
            self._cut(prefix + p.name, p.matrix, slice(None))
        if positions is not None:
            self._cut(f"{prefix}X", X, positions(np.arange(X.shape[0])))

    def _cut(self, name: str, matrix: Any, rows: Any) -> None:
        _check_shape(self, name, matrix)
        whole = self.pieces[name][2][rows] if self.pieces else None
        matrix.block[...] = scatter(whole, matrix.layout, matrix.dtype).block


def collected(state: State, epoch: int) -> Collected:
    """Return all that :func:`save` would write. Collective."""
    pieces: dict[str, Piece] = {}
    shapes: dict[str, tuple[int, int]] = {}
    for p, name, block in state.blocks():
        shapes[name] = p.matrix.shape
        whole, rows = gather(p.matrix.like(block)), p.matrix.layout.rows
        if whole is not None:  # by node: a checkpoint has the rows in the order of the layout
            whole = whole if rows.order is None else whole[rows.ids(0, len(whole))]
            pieces[name] = (0, 0, whole, p.matrix.shape)
    return Collected(Path("the network"), state.meta(epoch), shapes, pieces)


def restore(path: str, comm: Comm, state: State) -> tuple[str, int, list[dict[str, Any]], Begun | None]:
    """Take parameters, the state of their optimiser and the best weights from a checkpoint, in place, on any
    grid; return its id, `epoch`, `rates` and `begun`. Collective.

    Raises:
        UserError: no checkpoint there, a damaged one, or one of a run with other settings (on every rank).
    """
    run, parameters, optimizer, best = state.run, state.parameters, state.optimizer, state.best
    reader = opened(path, comm)
    theirs = reader.meta.get("run", {})
    if "fanout" in theirs:
        theirs = theirs | {"fanout": _at_most(theirs["fanout"], run["graph n"])}
    for name in [*run, *(name for name in theirs if name not in run)]:
        then, now = theirs.get(name, False), run.get(name, False)  # a switch that is off may be left out
        if then != now:
            problem = f"was written by a run with {name} {then}, this one has {now}"
            raise UserError(f"{path}: {problem}")
    if reader.meta.get("class_names", state.class_names) != state.class_names:
        raise UserError(f"{path}: was written by a run with other names of classes than this store has")
    optimizer.prepare(parameters)
    with comm.together():
        take_over(reader, parameters, optimizer)
        if best.take(reader.meta.get("best", {})):
            for p in parameters:
                _fill(best.blocks[p.name], reader, BEST + p.name, p)
    optimizer.steps = int(reader.meta["steps"])
    begun = Begun.of(reader.meta)
    return reader.members.id, int(reader.meta["epoch"]), list(reader.meta["rates"]), begun


def _at_most(fanout: Any, nodes: int) -> Any:
    """Return a fan-out with no more than all nodes, as a run has it; checkpoints of before may have more."""
    numbers = isinstance(fanout, list) and all(isinstance(number, int) for number in fanout)
    return [min(number, nodes) for number in fanout] if numbers else fanout


def take_over(
    reader: CheckpointReader, parameters: Sequence[Parameter], optimizer: Optimizer | None = None,
    best: bool = False,
) -> None:  # fmt: skip
    """Copy the parameters and the state of their optimiser, or without it, in place.

    With `best` the best ones. Raise UserError if some are missing, or have other shapes.
    """
    for p in parameters:
        alone = [(BEST + p.name if best else p.name, p.block)]
        for name, block in alone if optimizer is None else _blocks(p, optimizer):
            _fill(block, reader, name, p)


def take_features(
    reader: CheckpointReader, X: Features, positions: Callable[[np.ndarray], np.ndarray], best: bool = False
) -> None:  # fmt: skip
    """Take trained features in place, whatever the order of their nodes in the checkpoint; with `best` the
    best ones. Reads the rows of this rank, LIMITS.row_bytes at a time, and the rows between them.

    Args:
        positions: of nodes, given by id, in the checkpoint's order.

    Raises:
        UserError: there are none, or they have another shape.
    """
    name = BEST + "X" if best else "X"
    _check_shape(reader, name, X)
    there = positions(X.layout.row_ids)
    here = np.argsort(there, kind="stable")
    there = there[here]
    step = max(LIMITS.row_bytes // max(X.dtype.itemsize * X.shape[1], 1), 1)
    for start in range(0, X.shape[0], step):
        some = slice(*np.searchsorted(there, (start, start + step)).tolist())
        if len(wanted := there[some]):
            rows = int(wanted[0]), int(wanted[-1]) + 1
            window = reader.piece(name, rows, X.col_range)[wanted - rows[0]]
            on = X.grid.backend
            block: Any = X.block
            block[on.asarray(here[some])] = on.asarray(window, dtype=X.dtype)


def _check_shape(reader: CheckpointReader | Collected, name: str, matrix: Features) -> None:
    if reader.shapes.get(name) != matrix.shape:
        raise UserError(f"{reader.root}: holds no {name} of shape {matrix.shape}")


def _fill(block: Array, reader: CheckpointReader, name: str, like: Parameter) -> None:
    matrix = like.matrix
    _check_shape(reader, name, matrix)
    window = reader.piece(name, matrix.row_range, matrix.col_range)
    block[...] = matrix.grid.backend.asarray(window, dtype=np.dtype(block.dtype))


@contextmanager
def writer(path: str | None, comm: Comm, resumed: str | None) -> Iterator[None]:
    """Hold a checkpoint as its only writer; remove the leftovers of killed runs. Collective to enter.

    `resumed`: the id of the restored checkpoint, if any.

    Raises:
        UserError: another run writes it, or has since it was restored (on every rank).
    """
    with ExitStack() as stack:
        with comm.together():
            if path is not None and comm.rank == 0:
                if stack.enter_context(locked(path)):
                    checkpoint.clean(Path(path))
                if resumed is not None and manifest.read(path, CHECKPOINT)["id"] != resumed:
                    raise UserError(f"{path}: another run has written it in between; resume again")
        yield


def check_path(path: Path, resume: bool, force: bool) -> None:
    """Raise UserError unless a checkpoint can be written at `path`, or gone on from there."""
    parent = path.absolute().parent
    if not parent.is_dir():
        raise ArgumentError("checkpoint", path, f"directory {parent} does not exist")
    if path.exists() and checkpoint.unfinished(path):
        if resume:
            problem = f"{path} holds no checkpoint, its first save did not come to an end; start anew"
            raise ArgumentError("resume", True, problem)
    elif path.exists() and not resume:
        if not force:
            problem = "exists; resume=True goes on from it, force=True replaces it"
            raise ArgumentError("checkpoint", path, problem)
        checkpoint.next_generation(path)  # refuses what is no checkpoint
    check_unlocked(path)
    folder = path if path.exists() else parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ArgumentError("checkpoint", path, f"cannot write to {folder} ({error.strerror})") from None


def _blocks(parameter: Parameter, optimizer: Optimizer) -> list[tuple[str, Array]]:
    """Return a parameter's block and its optimiser state by the names they have in a checkpoint."""
    name, state = parameter.name, optimizer.state[parameter.name]
    return [(name, parameter.block), *((f"{name}.{slot}", state[slot]) for slot in optimizer.slots)]


def run_identity(s: Settings, store: Store, order: str, widths: Sequence[int]) -> dict[str, Any]:
    """Return the facts by name that a run shares with the one whose checkpoint it goes on from, without what
    is off.

    Args:
        s: resolved; order: of the nodes; widths: of the features and of each layer.
    """
    shared = (*SHARED, *(SHARED_BATCHES if s.samples else ()))
    identity: dict[str, Any] = {f"graph {name}": store.manifest[name] for name in GRAPH}
    identity |= {f"content of {name}": hash for name, hash in store.manifest["content"].items()}
    identity |= {"graph multilabel": True} if store.multilabel else {}
    names = store.manifest.get("feature_names")
    identity |= {"graph feature_names": names} if names else {}
    identity |= {"loss": "mse"} if s.loss == "mse" else {}  # the others follow from the labels
    identity |= {"widths": list(widths)} | {name: getattr(s, name) for name in shared}
    # Trained features are saved by position and samples depend on it; all else is equal in every order.
    identity |= {"order": order} if s.train_features or s.samples else {}
    some = "wire", "mixed_precision", "residual", "layer_norm", "parts", "renormalize", *OF_ATTENTION
    identity |= {name: getattr(s, name) for name in some if getattr(s, name)}
    return identity | ({"activation": s.activation} if s.activation != "relu" else {})


def opened(path: str | os.PathLike[str], comm: Comm) -> CheckpointReader:
    """Open the checkpoint of a run. Collective.

    Raises:
        UserError: of ``store.checkpoint.load``, or something that no run has written; on every rank.
    """
    reader = checkpoint.load(path, comm)
    try:
        _check_meta(reader.meta, reader)
    except (ValueError, TypeError) as error:
        raise manifest.damaged(reader.root, CHECKPOINT, error) from None
    return reader


def saved_scaling(meta: Mapping[str, Any]) -> Scaling:
    """Return the scaling of the features of a checkpoint that has one."""
    return Scaling(*(np.asarray(meta["scaling"][name], np.float64) for name in Scaling._fields))


def saved_settings(meta: Mapping[str, Any]) -> Settings:
    """Return the settings of the run of a checkpoint, as far as it has them. ValueError: wrong ones."""
    run, known = meta["run"], {field.name for field in public(Settings)}
    given = meta.get("settings", run | {"hidden": run["widths"][1:-1]})  # of before: those of its identity
    try:
        settings = Settings(**{name: value for name, value in given.items() if name in known})
        check_fields(settings)
    except (UserError, TypeError) as error:
        raise ValueError(f"meta.settings: {error}") from None
    return settings


def _check_meta(meta: Mapping[str, Any], reader: CheckpointReader) -> None:
    check_types(meta, _META | {name: kinds for name, kinds in _MAY_BE.items() if name in meta}, "meta.")
    if min(meta["epoch"], meta["steps"]) < 0 or not all(isinstance(rate, dict) for rate in meta["rates"]):
        raise ValueError("meta has a negative count, or rates of another kind")
    check_names(meta.get("class_names"))
    if begun := meta.get("begun"):
        check_types(begun, {"epoch": (int,), "totals": (list,), "scores": (dict,)}, "meta.begun.")
        if np.asarray(begun["totals"], np.float64).shape[1:] != (2,):
            raise ValueError("meta.begun.totals has no pairs of numbers")
    check_types(measured := meta.get("metrics", {}), dict.fromkeys(measured, (int, float)), "meta.metrics.")
    _check_run(meta["run"], reader)
    if meta["run"].get("standardize_features"):
        check_types(meta, {"scaling": (dict,)}, "meta.")
        check_types(meta["scaling"], dict.fromkeys(Scaling._fields, (list,)), "meta.scaling.")
        mean, spread = saved_scaling(meta)
        fits = mean.shape == spread.shape == (meta["run"]["widths"][0],)
        if not fits or not np.isfinite([mean, spread]).all() or not (spread > 0).all():
            raise ValueError("meta.scaling has no mean and spread of each feature")
    if best := meta.get("best", {}):
        check_types(best, _BEST | {"found": (dict, NONE)}, "meta.best.")
        if best["kept"] and best["found"] is None:
            raise ValueError("meta.best has weights of no epoch")
        if best["found"] is not None:
            check_types(best["found"], {"epoch": (int,)}, "meta.best.found.")
            check_types(best["found"], dict.fromkeys(best["found"], (int, float)), "meta.best.found.")


def _check_run(run: dict[str, Any], reader: CheckpointReader) -> None:
    """Raise ValueError for settings that no run has, or widths that the checkpoint's weights have not."""
    check_types(run, _RUN, "meta.run.")
    check_types(run, {name: (bool,) for name in _RUN_SWITCHES if name in run}, "meta.run.")
    check_types(run, {name: kinds for name, kinds in _OPTIONS.items() if name in run}, "meta.run.")
    check_names(names := run.get("graph feature_names"), "meta.run.graph feature_names")
    if names is not None and len(names) != run["graph width"]:
        raise ValueError("meta.run has not as many names as features")
    if run["train_features"] and "order" not in run:
        raise ValueError("meta.run has trained features, and no order")
    if run["dtype"] not in ("float32", "float64"):
        raise ValueError(f"meta.run.dtype is {run['dtype']!r}")
    widths = run["widths"]
    if len(widths) < 2 or not all(type(width) is int and width > 0 for width in widths):
        raise ValueError(f"meta.run.widths is {widths!r:.40}; expected a list of whole numbers, at least 1")
    heads = run.get("heads", [])
    if heads and (len(heads) != len(widths) - 1 or not all(type(k) is int and k > 0 for k in heads)):
        raise ValueError(f"meta.run.heads is {heads!r:.40}; expected a number for each layer, at least 1")
    if run.get("activation", "relu") not in ACTIVATIONS:
        raise ValueError(f"meta.run.activation is {run['activation']!r:.40}")
    for layer, (fan_in, fan_out) in enumerate(zip(widths, widths[1:], strict=False)):
        rows, cols = reader.shapes.get(f"W{layer}", (0, 0))
        averaged = heads[-1] if heads and layer == len(heads) - 1 else 1
        if run["model"] in OWN and (fan_in > rows or fan_out * averaged != cols):
            raise ValueError(f"layer {layer} has widths {fan_in} and {fan_out}, but weights {rows} x {cols}")
