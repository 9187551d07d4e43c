"""One training run on a stored graph: from its settings to the last line of its log."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

from distgnn import local, records
from distgnn.arrays.csr import CSR
from distgnn.arrays.memory import trim
from distgnn.comm.agree import agree, reduced
from distgnn.comm.narrow import check_overflow
from distgnn.comm.session import task
from distgnn.errors import ArgumentError, TrainingError, UserError, check_type
from distgnn.ledger import MOST_EVENTS, Ledger
from distgnn.nn import optim
from distgnn.nn.loss import outputs
from distgnn.nn.networks import NETWORKS
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.report import trace
from distgnn.report.comparison import Report
from distgnn.store.checkpoint import read_alone
from distgnn.store.read.distributed import StoreOrPath, identity, load
from distgnn.store.read.store import Store
from distgnn.train import checkpoint, resolve, room
from distgnn.train.best import Best, overfitting
from distgnn.train.check import SerialCheck, rounding
from distgnn.train.data import load_data
from distgnn.train.epoch_graph import Captured
from distgnn.train.full_graph import parameters, train
from distgnn.train.log import RunLog, end_record, run_record
from distgnn.train.minibatch import STEPS, MinibatchTraining
from distgnn.train.minibatches import bulk_at_most, make_sampler
from distgnn.train.predict import reported
from distgnn.train.schedule import Schedule, changed
from distgnn.train.serial import Reference
from distgnn.train.settings import Settings
from distgnn.train.stopping import Begun, PausedError, Stop
from distgnn.train.vertices import VertexTraining

log = logging.getLogger(__name__)

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
        self, store: StoreOrPath, settings: Settings | None = None, comm: MPI.Intracomm | None = None
    ) -> None:
        comm = MPI.COMM_WORLD if comm is None else comm
        with task(comm) as ours:
            settings = settings or Settings()
            check_type("settings", settings, Settings, "a Settings, after the store")
            agree(ours, identity(store, ours) | settings.shared())
            s = resolve.resolved(resolve.from_files(settings, store, ours), comm.Get_size())
            self.grid = resolve.make_grid(ours, s, s.backend)
            try:
                self._make(s, store)
            except UserError:  # on every rank
                self.grid.free()
                raise

    def _make(self, s: Settings, store: StoreOrPath) -> None:
        """Open the store and load all that training needs. Collective."""
        resolve.set_precision(self.grid, s)
        self.optimizer = optim.make(s.optimizer, s.lr, s.weight_decay or (), s.momentum, s.clip)
        self.schedule = Schedule.parse(s.schedule, s.warmup)
        self.store = store if isinstance(store, Store) else Store(store, self.grid.world, s.verify)
        with self.grid.world.together():
            s, self.order = resolve.of_store(s, self.store)
            last = outputs(str(s.loss), self.store.loss, self.store.classes)
            self.widths = [self.store.width, *s.hidden_widths, last]
            if self.grid.rank == 0:
                if self.store.classes == 1 and s.loss == "softmax":
                    what = "all labelled nodes are of one class: there is nothing to learn"
                    log.warning("%s: %s", self.store.path, what)
                resolve.check_outputs(s)
            self._check_kernels(s.dtype)
        graph = self.store.n, self.store.nnz
        needs = room.of_training(s, *graph, self.grid.size, self.store.feature_nnz)
        asked: Any = ("layers", s.layers) if s.layers else ("hidden", list(s.hidden))
        room.check_room(self.grid, needs, self.widths, partial(ArgumentError, *asked))
        self._load(s)
        self._begin()
        trim()  # of what reading left

    def _begin(self) -> None:
        """Go on from the checkpoint, and make the comparison and the first record. Collective."""
        s = self.settings
        what = f"{s.algorithm} on grid {self.grid}, order {self.order.name}, {self.grid.transport}"
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
            self.record["gemm"] = self.model.tune(isinstance(self.X, SparseFeatures))
        self.end: records.End = {}
        self.captured = Captured(why_not="is for training on the whole graph")
        self.stopped: records.Stopped | None = None
        self.log_lost, self.trace_cut = "", False

    def train(self, stop: Stop | None = None) -> Generator[records.Epoch, None, None]:
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
                if self.grid.backend.on_device:
                    self.end["cuda_graph"] = cast(records.Captured, dataclasses.asdict(self.captured))
                run_log.write("end", self.end)
            else:
                run_log.write("stopped", self.stopped)
        self.log_lost = run_log.lost
        if self.stopped is None:
            self._conclude(ledger, marks)

    def report(self) -> Report | None:
        """Compare predictions with labels, as ``Predictor.report`` does; with the best weights, where these
        were kept, which the network has from then on. Collective, after the training.
        """
        with task(self.grid.links.current):
            if self.best.blocks:
                self.best.restore()
            Z, names = self.model.forward(self.X), self.store.manifest["class_names"]
            return reported(Z, self.store, str(self.settings.loss), names)

    def _conclude(self, ledger: Ledger, marks: Sequence[tuple[int, float, float]]) -> None:
        """Give advice, and write the trace. Collective."""
        s = self.settings
        if (advice := overfitting(s, self.end)) and self.grid.rank == 0:
            log.warning("%s", advice)
        if s.trace:
            self.trace_cut = trace.write(s.trace, self.grid.world, ledger.events or [], marks)

    def _check_kernels(self, dtype: str) -> None:
        """Make a product, so that an environment which asks for missing kernels is refused now."""
        ones, on = np.ones((1, 1), dtype), self.grid.backend
        local.spmm(CSR.from_scipy(sp.csr_array(ones), on), on.asarray(ones))

    def _load(self, s: Settings) -> None:
        """Load operator, model, features, targets and minibatches. Collective."""
        neighbours, aware = NETWORKS[str(s.model)].neighbours, s.sparsity_aware or False
        A = load(self.store, self.grid, str(s.algorithm), self.order.name, s.dtype, aware, neighbours)
        self.model = resolve.network(s, A, self.widths)
        self.X, self.targets, self.scaling, s = load_data(s, self.store, self.model)
        self.settings, self.follows = s, bool(s.watchers)
        self.parameters = parameters(self.model, self.X, s.train_features)
        self.best = Best(self.parameters, s.keep_best == "val", s.patience, self.schedule)
        rates = [{"lr": s.lr, "weight decay": s.decays} | _if_set(s)]
        names, kept = self.store.manifest["class_names"], (self.parameters, self.optimizer, self.identity())
        self.state = checkpoint.State(*kept, rates, self.best, names, self.scaling, s)
        self.minibatches: MinibatchTraining | None = None
        given = self.model, self.X, self.targets
        if s.together:
            self.minibatches = VertexTraining.of(s, *given)
        elif s.samples:
            drawn = make_sampler(s, self.store, self.order.name, self.grid, self.targets)
            bulk, sizes = int(s.bulk or 1), (int(s.batch_size or 0), s.batches_per_update or 1)
            self.minibatches = MinibatchTraining(*given, drawn, *sizes, bulk, s.seed)
            bulk = bulk_at_most(bulk, len(self.minibatches.turns), self.grid.rank == 0)
            self.settings = dataclasses.replace(s, bulk=bulk)

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
        # A trace is of operations, which an epoch that is launched as a graph does not have.
        cuda_graph = False if s.cuda_graph is None and s.trace else s.cuda_graph
        options |= {"train_features": s.train_features, "cuda_graph": cuda_graph}
        options["captured"] = self.captured
        return train(self.model, self.X, self.targets, *until, **options)

    def _before_update(self, epoch: int, accuracies: dict[str, float]) -> None:
        """Look at the weights after the last epoch, and set this one's step size."""
        self._observe(epoch - 1, accuracies)
        self.best.stopped = self.best.stale
        factor = self.schedule.at(epoch, self.settings.epochs, self.best.drops)
        self.optimizer.lr = self.settings.lr * factor

    def _observe(self, epoch: int, accuracies: dict[str, float]) -> None:
        """Take the accuracies after an epoch; the best epoch does not depend on where a run ends."""
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
            if self.minibatches is not None:
                measured = self.minibatches.evaluate()
            else:
                measured = self.model.evaluate(self.X, self.targets, s.train_features)
            check_overflow(self.grid)
        except TrainingError as error:
            raise error.in_epoch(epoch) from None
        if last:
            self._observe(epoch, measured)
        if s.checkpoint:
            checkpoint.save(s.checkpoint, self.grid.world, self.state, epoch, begun)
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
        s, ours = self.settings, self.state.rates
        restored = checkpoint.restore(str(s.checkpoint), self.grid.world, self.state)
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
        if rates and self.grid.rank == 0 and (new := changed(rates[-1], ours[-1], epoch)):
            log.warning("%s: goes on with %s", s.checkpoint, new)
        self.state.rates = [*(rate for rate in rates if rate not in ours), *ours]
        return epoch

    def _check(self) -> SerialCheck:
        """Make the comparison with a serial training, after a resume from the checkpoint on. Collective."""
        s = self.settings

        def serial() -> Reference:
            saved = read_alone(str(s.checkpoint)) if s.resume else None
            return Reference(self.store, self.order, self.widths, s, saved)

        return SerialCheck(self.grid.world, serial, s.checked_updates, rounding(s))

    def identity(self) -> dict[str, Any]:
        """Return the facts that a run must share to go on from this one's checkpoint. The grid is none."""
        return checkpoint.run_identity(self.settings, self.store, self.order.name, self.widths)

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
