"""One training run on a stored graph: from its settings to the last line of its log."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

from distgnn import local, operators, records
from distgnn.arrays.csr import CSR
from distgnn.comm.agree import agree, reduced
from distgnn.comm.session import task
from distgnn.errors import ArgumentError, TrainingError, UserError, check_type
from distgnn.ledger import MOST_EVENTS, Ledger, holds
from distgnn.nn import optim
from distgnn.nn.features import Scaling, are_counts, normalize_rows, scaling_of, standardize
from distgnn.nn.loss import checked_loss, checked_metric, outputs
from distgnn.nn.metrics import scores
from distgnn.nn.networks import NETWORKS
from distgnn.operators.dense import DistDense
from distgnn.report import trace
from distgnn.split import TRAIN, VAL
from distgnn.store.checkpoint import read_alone
from distgnn.store.read.distributed import identity, load, load_features
from distgnn.store.read.store import Store
from distgnn.train import checkpoint, device, network, room, sampler
from distgnn.train.best import Best
from distgnn.train.check import SerialCheck, rounding
from distgnn.train.defaults import from_files
from distgnn.train.full_graph import parameters, train
from distgnn.train.identity import run_identity
from distgnn.train.log import RunLog, end_record, run_record
from distgnn.train.minibatch import STEPS, MinibatchTraining
from distgnn.train.minibatches import check_batch_size
from distgnn.train.overfitting import overfitting
from distgnn.train.refused import check_columns, check_content, check_outputs
from distgnn.train.resolve import resolved
from distgnn.train.schedule import Schedule, changed
from distgnn.train.serial import Serial, reference
from distgnn.train.settings import BATCH_SIZE, Settings
from distgnn.train.stopping import Begun, PausedError, Stop
from distgnn.train.targets import targets_of, training_rows
from distgnn.train.ways import parse_grid

log = logging.getLogger(__name__)

#: Scales of features that differ by more make training hard.
APART = 10.0
TIMED = 1000  # epochs, the latest, over which medians are taken: memory stays as it is


class Run:
    """A network, its data and its training loop, ready to train. Neither prints nor exits. Collective.

    Examples:
        >>> run = Run("graph.dg", Settings(algorithm="2d", epochs=100))  # doctest: +SKIP
        >>> for record in run.train():                                   # doctest: +SKIP
        ...     print(record["epoch"], record["loss"])

    Args:
        store: the path of a store, or an opened one.
        settings: default: a GCN on the whole graph. A run does not plan: ``distgnn.plan.settle`` chooses an
            algorithm and a grid by the graph and the machine; here a grid that is not given is the first of
            ``operators.grids``.
        comm: the ranks of the run; default: all.

    Attributes:
        settings: with all defaults filled in.
        store, order, grid, widths, model, X, targets, optimizer: what the run consists of.
        scaling: of X, where it is standardised, else None.
        first_epoch: 1, or where the checkpoint goes on. check: the serial reference beside, or None.
        best: the epoch whose weights did best in validation, and these weights; see :class:`Best`. They are
            followed where `keep_best`, `patience` or a plateau asks for it.
        record, end: the first and the last line of the log; `end` is empty until the run has ended.
        finished: why a run that resumes has nothing left to train; empty if it has something.
        stopped: where a training ended that was asked to stop, else None.
        log_lost: on rank 0, why the log of a run that has ended is incomplete; empty if it is whole.
        trace_cut: whether earlier events did not fit into the trace.

    Raises:
        UserError: settings that do not fit together, the store, the ranks, or a file that exists; or ranks
            disagree in settings or in the store's manifest (on every rank). Nothing was written then.
        PeerError: another rank failed, in any way.
    """

    def __init__(
        self, store: Store | str | os.PathLike[str], settings: Settings | None = None,
        comm: MPI.Intracomm | None = None,
    ) -> None:  # fmt: skip
        comm = MPI.COMM_WORLD if comm is None else comm
        with task(comm) as ours:
            settings = settings or Settings()
            check_type("settings", settings, Settings, "a Settings, after the store")
            agree(ours, identity(store) | settings.shared())
            s = self.settings = resolved(from_files(settings, store), comm.Get_size())
            name = str(s.algorithm)
            operators.get(name, s.sparsity_aware or False)  # refuses what does not go together
            sizes = parse_grid(s.grid, name)
            self.grid = operators.make_grid(ours, name, sizes, s.replication, s.backend, s.wire)
            try:
                self._make(store)
            except UserError:  # on every rank
                self.grid.free()
                raise

    def _make(self, store: Store | str | os.PathLike[str]) -> None:
        """Open the store and load all that training needs. Collective."""
        s, name = self.settings, str(self.settings.algorithm)
        device.configure(self.grid, s)
        self.optimizer = optim.make(s.optimizer, s.lr, s.weight_decay or s.decays, s.momentum, s.clip)
        self.schedule = Schedule.parse(s.schedule, s.warmup)
        self.rates = [{"lr": s.lr, "weight decay": s.decays} | _if_set(s)]
        self.store = store if isinstance(store, Store) else Store(store, self.grid.world, s.verify)
        with self.grid.world.together():
            self._open()
            if self.grid.rank == 0:
                check_outputs(s)
            self._check_kernels()
        self._check_room()
        self._load()
        what = f"{name} on grid {self.grid}, order {self.order.name}, {self.grid.transport}"
        where = "shared" if self.grid.shares_memory else "own"
        loaded = self.store.path, what, self.grid.nonzeros, where
        log.info("%s: %s; this rank holds %d non-zeros in %s memory", *loaded)
        self.resumed: str | None = None  # the id of the checkpoint
        self.begun: Begun | None = None
        self.finished = ""
        self._stop: Stop | None = None
        self._signal = 0
        self.first_epoch = 1 + (self._resume() if s.resume else 0)
        self.check = self._check() if s.check and not self.finished else None
        self.record = run_record(self.grid, self._config(str(self.store.path)))
        if s.tune_gemm:
            self.record["gemm"] = self.model.tune()
        self.end: records.End = {}
        self.stopped: records.Stopped | None = None
        self.log_lost, self.trace_cut = "", False

    def train(self, stop: Stop | None = None) -> Iterator[records.Epoch]:
        """Train to the last epoch; yields the record of every epoch when it is logged, compared and saved.

        Writes log, trace and checkpoints on the way. Collective: all ranks take all records, once.

        Args:
            stop: called on every rank after every update, of a run with a `check` after every epoch. When it
                is not 0 on some rank, all stop there, and save where the settings have a checkpoint.

        Raises:
            TrainingError: a loss is not that of the serial reference, or a loss, gradient or update is not
                finite (on every rank). The last checkpoint stays.
            UserError: checkpoint or trace can't be written, or another run writes to a file (on every rank).
            PeerError: another rank failed, in any way.
        """
        with task(self.grid.links.current):
            yield from self._train(stop)

    def _train(self, stop: Stop | None) -> Iterator[records.Epoch]:
        s, seconds, steps = self.settings, deque[float](maxlen=TIMED), deque[dict[str, float]](maxlen=TIMED)
        marks = deque[tuple[int, float, float]](maxlen=MOST_EVENTS if s.trace else 0)
        record, end, self._stop = records.Epoch(), records.End(), stop
        self.grid.world.agree({"stop": stop is not None})
        if self.finished:
            return
        kept = self.first_epoch - 1 if s.resume else None
        alone = checkpoint.writer(s.checkpoint, self.grid.world, self.resumed)
        # Opening it empties or cuts an existing log, so all that can be refused was refused before.
        with alone, RunLog(self.grid, s.log, kept, s.force) as run_log:
            run_log.write("run", self.record)
            with Ledger(timing=True, trace=bool(s.trace)) as ledger:
                for record in self._epochs():
                    now = time.perf_counter()
                    marks.append((record["epoch"], now - record["seconds"], now))
                    log_epoch(record)
                    seconds.append(record["seconds"])
                    steps.append(record.get("steps", {}))
                    run_log.write("epoch", record)
                    end = self._compare_and_save(record)
                    yield record
                    if self.best.stopped or self.stopped:
                        break
            words, waited = ledger.words, ledger.exposed
            log.info("trained: %d words received, %.2f s waited for messages on this rank", words, waited)
            if self.stopped is None:
                end |= {"epochs": record["epoch"], "loss": record["loss"]}
                self.end = end | end_record(self.grid, ledger, seconds) | self._best() | self._medians(steps)
                run_log.write("end", self.end)
            else:
                run_log.write("stopped", self.stopped)
        self.log_lost = run_log.lost
        if self.stopped is None:
            self._conclude(ledger, marks)

    def _conclude(self, ledger: Ledger, marks: Sequence[tuple[int, float, float]]) -> None:
        """Give advice, and write the trace. Collective."""
        s = self.settings
        if (advice := overfitting(s, self.end)) and self.grid.rank == 0:
            log.warning("%s", advice)
        if s.trace:
            self.trace_cut = trace.write(s.trace, self.grid.world, ledger.events or [], marks)

    def _open(self) -> None:
        s = self.settings
        self.order = self.store.order(s.order)
        if len(self.order.versions) > 1 and (s.samples or NETWORKS[str(s.model)].needs_own):
            what = "minibatches" if s.samples else f"model={s.model}"
            problem = f"orders rows and columns apart, which {what} can't use; take another"
            raise ArgumentError("order", self.order.name, problem)
        check_content(self.store)
        if s.samples and s.batch_size:
            check_batch_size(s.batch_size, self.store.manifest["split"]["train"])
        loss = checked_loss(s.loss, self.store.loss, self.store.manifest["class_names"])
        if self.store.classes == 1 and loss == "softmax" and self.grid.rank == 0:
            log.warning("%s: all labelled nodes are of one class: there is nothing to learn", self.store.path)
        self.settings = dataclasses.replace(s, loss=loss, metric=checked_metric(s.metric, loss))
        last = outputs(loss, self.store.loss, self.store.classes)
        self.widths = [self.store.width, *s.hidden_widths, last]
        check_columns(s, self.widths, self.grid.shape)

    def _check_kernels(self) -> None:
        """Make a product, so that an environment which asks for missing kernels is refused now."""
        ones, on = np.ones((1, 1), self.settings.dtype), self.grid.backend
        local.spmm(CSR.from_scipy(sp.csr_array(ones), on), on.asarray(ones))

    def _check_room(self) -> None:
        """Raise ArgumentError where the network is beyond the memory. Collective."""
        s = self.settings
        needs = room.of_training(s, self.store.n, self.store.nnz, self.grid.size)
        argument, value = ("layers", s.layers) if s.layers else ("hidden", list(s.hidden))
        room.check_room(self.grid, needs, self.widths, partial(ArgumentError, argument, value))

    def _load(self) -> None:
        """Load operator, model, features, targets and minibatches."""
        s, order, kind = self.settings, self.order.name, NETWORKS[str(self.settings.model)]
        how = order, s.dtype, s.sparsity_aware or False
        A = load(self.store, self.grid, str(s.algorithm), *how, neighbours=kind.neighbours)
        how_to: Any = {"product_order": s.product_order, "keep_aggregate": s.keep_aggregate}
        self.model = kind(A, self.widths, **network.options(s), **how_to)
        self.X = load_features(self.store, self.model.input_layout, dtype=s.dtype)
        holds(self.X, "features", self.X.block.nbytes)
        self.scaling: Scaling | None = None
        self.targets = targets_of(self.store, self.model, str(s.loss), s.metric)
        if self.targets.counts[TRAIN] == 0:
            problem = "no node of the training split has a label, so there is nothing to train on"
            raise UserError(f"{self.store.path}: {problem}")
        self._normalize()
        self.parameters = parameters(self.model, self.X, s.train_features)
        self._follow()
        self.minibatches = self._minibatches() if s.samples else None

    def _normalize(self) -> None:
        """Divide the rows of the features by their sums, where that is asked for or they are counts; or
        standardise the columns, where that is asked for or they differ. Collective.
        """
        s = self.settings
        rows, columns = s.normalize_features, s.standardize_features
        counts = (rows is None or (columns is None and not rows)) and are_counts(self.X)
        if rows is None and counts:
            log.info("features are counts: rows are divided by their sums")
        rows = counts if rows is None else rows
        if rows:
            normalize_rows(self.X)
        if columns or (columns is None and not rows and not counts):
            self.scaling, differ = scaling_of(self.X, training_rows(self.store, self.X.layout))
            if columns is None and not differ > APART:
                self.scaling = None
            elif columns is None and self.grid.rank == 0:
                how = "they are standardised by the training nodes; standardize_features=False leaves them"
                log.warning("scales of features differ by %.2g times: %s", differ, how)
        if self.scaling is not None:
            standardize(self.X, self.scaling)
        columns = self.scaling is not None
        self.settings = dataclasses.replace(s, normalize_features=rows, standardize_features=columns)

    def _follow(self) -> None:
        """Decide whether the best weights are kept, and make what follows validation. Collective.

        Trained features are kept only where that is asked for, as they may be as large as all else together.
        """
        s = self.settings
        if s.keep_best is None:
            validated = s.eval_every and not s.train_features and self._no_validation() is None
            s = self.settings = dataclasses.replace(s, keep_best="val" if validated else "none")
        self.best = Best(self.parameters, s.keep_best == "val", s.patience, self.schedule)
        self.follows = bool(s.watchers)
        if self.follows and (problem := self._no_validation()):
            given = " and ".join(f"{name}={value}" for name, value in s.watchers.items())
            raise UserError(f"{self.store.path}: {problem}, or leave out {given}")

    def _no_validation(self) -> str | None:
        """Return why the labels of the validation nodes give no score, whatever the logits; None: they do.
        Collective.
        """
        layout, shape = self.model.output_layout, (self.store.n, self.widths[-1])
        logits = self.grid.backend.zeros(layout.local_shape(shape), np.dtype(self.settings.dtype))
        measured = scores(DistDense(logits, layout, shape), self.targets)
        name = next(name for name in measured if name.startswith("val_"))
        if not math.isnan(measured[name]):
            return None
        problem = "no node of the validation split has a label; prepare the store with split=0.6/0.2/0.2"
        if self.targets.counts[VAL]:
            reason = "no class is that of some validation nodes and not of others"
            few = "R² needs two validation nodes, and there is one"
            reason = few if self.settings.metric == "r2" else reason
            problem = f"{name} cannot be measured, as {reason}; take another metric or split"
        return problem

    def _minibatches(self) -> MinibatchTraining:
        drawn = sampler.make(self.settings, self.store, self.order.name, self.grid, self.targets)
        nodes = self.targets.counts[TRAIN]
        size = min(self.settings.batch_size or BATCH_SIZE, nodes)
        if size < (self.settings.batch_size or 0) and self.grid.rank == 0:
            log.warning("batch_size=%d: taken as %d, all training nodes", self.settings.batch_size, nodes)
        s = self.settings = dataclasses.replace(self.settings, batch_size=size)
        per_update, bulk = s.batches_per_update or 1, s.bulk or 1
        return MinibatchTraining(self.model, self.X, self.targets, drawn, size, per_update, bulk, s.seed)

    def _epochs(self) -> Iterator[records.Epoch]:
        """Train the epochs that are left, until the ranks agree to stop."""
        if self._asked():  # while the run was made
            self._stop_after(self.first_epoch - 1, self.begun)
            return
        try:
            yield from self._updates()
        except PausedError as paused:
            epoch = paused.begun.epoch - 1
            if self.settings.checkpoint:
                self._save(epoch, begun=paused.begun)
            self._stop_after(epoch, paused.begun)

    def _asked(self) -> bool:
        """Agree on whether some rank is asked to stop, and by which signal. Collective: one word."""
        if self._stop is not None:
            self._signal = reduced(self.grid.world.mpi, self._stop(), MPI.MAX)
        return self._signal != 0

    def _stop_after(self, epoch: int, begun: Begun | None = None) -> None:
        updates = 0 if begun is None else len(begun.totals)
        self.stopped = {"epoch": epoch, "updates": updates, "signal": self._signal}

    def _updates(self) -> Iterator[records.Epoch]:
        s, until = self.settings, (self.optimizer, self.settings.epochs)
        options: Any = {"first_epoch": self.first_epoch, "eval_every": s.eval_every, "timing": True}
        options["before"] = self._before_update
        if self.minibatches is not None:
            pause = None if self._stop is None or self.check else self._asked
            return self.minibatches.train(*until, pause=pause, begun=self.begun, **options)
        return train(self.model, self.X, self.targets, *until, **options | device.of_whole_graph(s))

    def _before_update(self, epoch: int, accuracies: dict[str, float]) -> None:
        """Look at the weights after the last epoch, and set this one's step size."""
        self._observe(epoch - 1, accuracies)
        self.best.stopped = self.best.stale
        factor = self.schedule.at(epoch, self.settings.epochs, self.best.drops)
        self.optimizer.lr = self.settings.lr * factor

    def _observe(self, epoch: int, accuracies: dict[str, float]) -> None:
        """Take the accuracies of the weights after an epoch.

        The best epoch does not depend on where a run ends.
        """
        if self.follows and accuracies and epoch % self.settings.eval_every == 0:
            self.best.observe(epoch, accuracies)

    def _compare_and_save(self, record: records.Epoch) -> records.End:
        """Compare, and save; return the scores of the saved weights, and after the last epoch."""
        s, epoch = self.settings, record["epoch"]
        if self.check is not None:
            whole_graph = [cast(float, record["loss"])]  # None stands in logs alone
            by_update = whole_graph if self.minibatches is None else self.minibatches.losses
            self.check.compare(epoch, record["lr"], by_update)
        due = s.checkpoint and s.checkpoint_every and epoch % s.checkpoint_every == 0
        last = epoch == s.epochs or self.best.stopped
        if not last and self._asked():
            self._stop_after(epoch)
        stopped = s.checkpoint and self.stopped
        return self._save(epoch, last) if due or last or stopped else {}

    def _save(self, epoch: int, last: bool = False, begun: Begun | None = None) -> records.End:
        """Save where the settings have a checkpoint; return the scores of the weights. Collective."""
        s = self.settings
        try:  # weights may be finite, and what the network makes of them not: the last checkpoint stays
            measured = self.model.evaluate(self.X, self.targets, s.train_features)
        except TrainingError as error:
            raise error.in_epoch(epoch) from None
        if last:
            self._observe(epoch, measured)
        if s.checkpoint:
            state = self.grid.world, self.parameters, self.optimizer, epoch, self.identity(), self.rates
            names = self.store.manifest["class_names"]
            checkpoint.save(s.checkpoint, *state, self.best, names, begun, self.scaling)
            log.info("%s: saved after epoch %d", s.checkpoint, epoch)
        return records.End(**records.named(measured))

    def _best(self) -> records.End:
        """Return the best epoch and the comparison for the last line of the log."""
        record: records.End = {} if self.best.found is None else {"best": self.best.found}
        if self.best.stopped:
            record["stopped"] = f"no better epoch in {self.settings.patience}"
        if self.check is not None:
            record["check"] = self.check.record()
        return record

    def _medians(self, steps: Iterable[dict[str, float]]) -> records.End:
        """Return the median seconds of an epoch in each step of minibatch training, by rank. Collective."""
        if self.minibatches is None:
            return {}
        mine = {name: float(np.median([epoch[name] for epoch in steps])) for name in STEPS}
        ranks = self.grid.world.gather_objects(mine)
        return {"steps_median": {name: [rank[name] for rank in ranks] for name in STEPS}}

    def _resume(self) -> int:
        """Take over the state of the checkpoint; returns the epoch after which it was written."""
        s, state = self.settings, (self.parameters, self.optimizer, self.identity())
        names = self.store.manifest["class_names"]
        restored = checkpoint.restore(str(s.checkpoint), self.grid.world, *state, self.best, names)
        self.resumed, epoch, rates, self.begun = restored
        if (reached := epoch + (self.begun is not None)) > s.epochs:
            problem = f"{s.checkpoint} is of epoch {reached} already; ask for more"
            raise ArgumentError("epochs", s.epochs, problem)
        if self.begun is not None and s.check:
            problem = f"{s.checkpoint} is of the middle of an epoch; resume it without the check"
            raise ArgumentError("check", True, problem)
        if self.begun is None and (epoch == s.epochs or self.best.stopped):
            more = "patience" if self.best.stopped else "epochs"
            self.finished = f"{s.checkpoint} has all {epoch} epochs; for more, resume it with more {more}"
            if self.grid.rank == 0:
                log.warning("%s", self.finished)
        if rates and self.grid.rank == 0 and (new := changed(rates[-1], self.rates[-1], epoch)):
            log.warning("%s: goes on with %s", s.checkpoint, new)
        self.rates = [*(rate for rate in rates if rate not in self.rates), *self.rates]
        return epoch

    def _check(self) -> SerialCheck:
        """Make the comparison with a serial training, after a resume from the checkpoint on. Collective."""
        s = self.settings

        def serial() -> Serial:
            saved = read_alone(str(s.checkpoint)) if s.resume else None
            return reference(self.store, self.order, self.widths, s, saved)

        return SerialCheck(self.grid.world, serial, s.checked_updates, rounding(s))

    def identity(self) -> dict[str, Any]:
        """Return the facts that a run must share to go on from this one's checkpoint. The grid is none."""
        return run_identity(self.settings, self.store, self.order.name, self.widths)

    def _config(self, path: str) -> dict[str, Any]:
        """Return the settings with defaults resolved, for the log."""
        config = {"store": path} | dataclasses.asdict(self.settings)
        config |= {"grid": self.grid.shape, "order": self.order.name, "layers": len(self.widths) - 1}
        return config | {"widths": self.widths, "n": self.store.n, "nnz": self.store.nnz}


def log_epoch(record: records.Epoch) -> None:
    """Log the costs of an epoch on this rank."""
    spent = ", ".join(f"{phase} {seconds:.4f}" for phase, seconds in record["phases"].items())
    log.debug("epoch %d: loss %s, %.4f s (%s)", record["epoch"], record["loss"], record["seconds"], spent)


def _if_set(s: Settings) -> dict[str, Any]:
    """Return the other settings on which updates depend."""
    of = f"{s.schedule} of {s.epochs} epochs" if s.schedule == "cosine" else s.schedule
    given = {"schedule": of, "warmup": s.warmup or None, "clip": s.clip}
    return {name: value for name, value in given.items() if value is not None}
