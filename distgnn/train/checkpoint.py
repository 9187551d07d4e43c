"""The state of training in a checkpoint: the blocks that ranks hold, so that any other grid can go on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.comm.group import Comm
from distgnn.errors import ArgumentError, UserError
from distgnn.files.lock import check_unlocked, locked
from distgnn.layout import Cut
from distgnn.nn.features import Scaling
from distgnn.nn.optim import Optimizer, Parameter
from distgnn.operators.dense import DistDense, gather
from distgnn.store import checkpoint
from distgnn.store.checkpoint import CheckpointReader, Piece
from distgnn.store.format import manifest
from distgnn.store.format.limits import LIMITS
from distgnn.train.best import Best
from distgnn.train.saved import opened
from distgnn.train.stopping import Begun

Array = Any
BEST = "best."  #: before the names of the best weights in a checkpoint


def save(
    path: str | os.PathLike[str], comm: Comm, parameters: Sequence[Parameter], optimizer: Optimizer,
    epoch: int, run: Mapping[str, Any], rates: Sequence[Mapping[str, Any]] = (), best: Best | None = None,
    class_names: Sequence[str] | None = None, begun: Begun | None = None, scaling: Scaling | None = None,
) -> None:  # fmt: skip
    """Write weights, biases, trained features, and the optimiser's state after `epoch`; and the best weights
    so far, where they are kept. Collective.

    Args:
        run: what must be the same in a run that goes on from here, as JSON.
        rates: what need not be: step sizes and weight decays of the updates so far, as JSON, the latest last.
        class_names: of the classes that are trained on, where they have names.
        begun: the next epoch, if some of its updates are made.
        scaling: of the features, where they are standardised.

    Raises:
        UserError: `path` cannot be written; the previous checkpoint is intact then (on every rank).
    """
    optimizer.prepare(parameters)
    pieces: dict[str, Piece] = {}
    for p in parameters:
        if p.matrix.layout.primary:
            for name, block in [*_blocks(p, optimizer), *_best(p, best)]:
                rows, cols = p.matrix.row_range, p.matrix.col_range
                pieces[name] = (rows[0], cols[0], p.matrix.grid.backend.to_host(block), p.matrix.shape)
    meta = _meta(optimizer, epoch, run, rates, best, class_names, scaling)
    checkpoint.save(path, comm, pieces, meta if begun is None else meta | {"begun": begun.state()})


def collected(
    parameters: Sequence[Parameter], optimizer: Optimizer, epoch: int, run: Mapping[str, Any],
    rates: Sequence[Mapping[str, Any]] = (), best: Best | None = None,
    class_names: Sequence[str] | None = None, scaling: Scaling | None = None,
) -> tuple[dict[str, Piece], dict[str, Any]]:  # fmt: skip
    """Return on rank 0 all that :func:`save` would write, in whole matrices, as ``store.checkpoint.save``
    takes it from one rank; on the others no pieces. Collective.
    """
    optimizer.prepare(parameters)
    pieces: dict[str, Piece] = {}
    for p in parameters:
        for name, block in [*_blocks(p, optimizer), *_best(p, best)]:
            whole = gather(p.matrix.like(block))
            if whole is not None:
                pieces[name] = (0, 0, _in_order(whole, p.matrix.layout.rows), p.matrix.shape)
    return pieces, _meta(optimizer, epoch, run, rates, best, class_names, scaling)


def _in_order(whole: Array, rows: Cut) -> Array:
    """Put the rows of a matrix by node into the order of the layout, in which a checkpoint keeps them."""
    return whole if rows.order is None else whole[rows.ids(0, len(whole))]


def _meta(
    optimizer: Optimizer, epoch: int, run: Mapping[str, Any], rates: Sequence[Mapping[str, Any]],
    best: Best | None, class_names: Sequence[str] | None, scaling: Scaling | None,
) -> dict[str, Any]:  # fmt: skip
    """Describe a checkpoint, beside its matrices, as JSON."""
    meta = {"epoch": epoch, "steps": optimizer.steps, "run": dict(run), "rates": list(rates)}
    meta |= {} if scaling is None else {"scaling": {k: v.tolist() for k, v in scaling._asdict().items()}}
    return meta | {"best": best.state() if best else {}, "class_names": class_names}


def restore(
    path: str | os.PathLike[str], comm: Comm, parameters: Sequence[Parameter], optimizer: Optimizer,
    run: Mapping[str, Any], best: Best | None = None, class_names: Sequence[str] | None = None,
) -> tuple[str, int, list[dict[str, Any]], Begun | None]:  # fmt: skip
    """Take all of that from a checkpoint, in place, on any grid; returns its id, `epoch`, `rates` and
    `begun`. Collective.

    Raises:
        UserError: no checkpoint there, a damaged one, or one of a run with other settings (on every rank).
    """
    reader = opened(path, comm)
    theirs = reader.meta.get("run", {})
    for name in [*run, *(name for name in theirs if name not in run)]:
        then, now = theirs.get(name, False), run.get(name, False)  # a switch that is off may be left out
        if then != now:
            problem = f"was written by a run with {name} {then}, this one has {now}"
            raise UserError(f"{path}: {problem}")
    if reader.meta.get("class_names", class_names) != class_names:
        raise UserError(f"{path}: was written by a run with other names of classes than this store has")
    optimizer.prepare(parameters)
    with comm.together():
        take_over(reader, parameters, optimizer)
        if best is not None and best.take(reader.meta.get("best", {})):
            for p in parameters:
                _fill(best.blocks[p.name], reader, BEST + p.name, p)
    optimizer.steps = int(reader.meta["steps"])
    begun = Begun.of(reader.meta)
    return reader.members.id, int(reader.meta["epoch"]), list(reader.meta["rates"]), begun


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
    reader: CheckpointReader, X: DistDense, positions: Callable[[np.ndarray], np.ndarray], best: bool = False
) -> None:  # fmt: skip
    """Take trained features in place, whatever the order of their nodes in the checkpoint; with `best` the
    best ones. Reads the rows of this rank, LIMITS.row_bytes at a time, and those between them.

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
            X.block[on.asarray(here[some])] = on.asarray(window, dtype=X.dtype)


def _check_shape(reader: CheckpointReader, name: str, matrix: DistDense) -> None:
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
                if resumed is not None and manifest.read(path, checkpoint.CHECKPOINT)["id"] != resumed:
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


def _best(parameter: Parameter, best: Best | None) -> list[tuple[str, Array]]:
    """Return a parameter's block of the best weights, where they are kept, likewise."""
    blocks = {} if best is None else best.blocks
    return [(BEST + parameter.name, blocks[parameter.name])] if blocks else []
