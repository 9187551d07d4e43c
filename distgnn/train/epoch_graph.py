"""An epoch on one GPU as CUDA graphs, captured once and launched in every epoch.

A small graph's epoch is dozens of kernels of microseconds each, and the host takes longer to queue them than
the GPU to run them. What changes from epoch to epoch is in memory that the kernels read: the keys of dropout
and the rates of the optimiser. Everything else is as it was when the work was captured.

Where training draws masks, an evaluation is a pass of its own, and a graph of its own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays.tuning import TUNING
from distgnn.arrays.workspace import Workspace
from distgnn.errors import ArgumentError
from distgnn.local import tuner
from distgnn.local.cuda.cublas import Cublas
from distgnn.nn.dropout import DeviceEpoch
from distgnn.nn.finite import QUIETLY, Watch
from distgnn.nn.gat import GAT
from distgnn.nn.gatv2 import GATv2
from distgnn.nn.gcn import GCN
from distgnn.nn.loss import Targets, Total
from distgnn.nn.metrics import scores
from distgnn.nn.optim import OPTIMIZERS, Optimizer, Parameter
from distgnn.nn.sage import SageMean
from distgnn.operators.dense import DistDense
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.operators.weights import Features

log = logging.getLogger(__name__)

Array = Any
MODELS = GCN, SageMean, GAT, GATv2
GRADIENTS, UPDATE, EVALUATION = "gradients", "update", "evaluation"


@dataclass
class Captured:
    """The epochs of a training that were CUDA graphs.

    Attributes:
        epochs: how many; why_not: what an epoch that was none lacked, to be read behind "a CUDA graph".
    """

    epochs: int = 0
    why_not: str = ""


class EpochGraph:
    """The passes and loss of an epoch, its update, and an evaluation that is a pass of its own: CUDA graphs.

    The first epochs queue their work as usual, until nothing is tried out any more: then all kernels are
    compiled and all memory is there. Where a capture fails, the others do so too, and the log says why.

    Args:
        need_input: whether features are trained; evaluated: whether epochs may be; asked: whether graphs were
            asked for, so that a warning says why there are none.

    Attributes:
        captured: whether epochs launch graphs by now; why_not: as of :class:`Captured`.

    Raises:
        ArgumentError: this cannot be captured.
    """

    def __init__(
        self, model: GCN, X: Features, targets: Targets, optimizer: Optimizer, trained: Sequence[Parameter],
        need_input: bool, evaluated: bool, asked: bool = True,
    ) -> None:  # fmt: skip
        if problem := why_not(model, X, optimizer):
            raise ArgumentError("cuda_graph", True, problem)
        self.model, self.X, self.targets, self.need_input = model, X, targets, need_input
        self.optimizer, self.trained = optimizer, trained
        self.captured, self.failed, self.trials = False, False, -1
        self.settled = False  # the last evaluation tried nothing out
        self.why_not = "is made after the first epochs, when kernels are chosen"
        self.level = logging.WARNING if asked else logging.INFO
        self.taken: tuple[Any, list[Any]] | None = None  # of what the graphs were made
        self.on: Any = model.grid.backend
        layout, shape = model.output_layout, (model.A.shape[0], model.widths[-1])
        empty = self.on.empty(layout.local_shape(shape), model.A.dtype) if evaluated else None
        self.logits = None if empty is None else DistDense(empty, layout, shape)
        self.epoch = DeviceEpoch(self.on, model.seed, len(model.layers)) if model.draws else None
        optimizer.prepare(trained)
        self.rates: np.ndarray | None = None  # in pinned memory, and on the device
        self.factors: Array = None
        self.costs: dict[str, ledger.Ledger] = {}
        self._begin()
        self.multiply: Any = None
        try:
            products = Cublas(self.on.xp, self.on.rounds_to_tf32())
            products.check()
            self.multiply = products.matmul
        except Exception as error:
            self._give_up(error)

    def _begin(self) -> None:
        """Make memory that nothing but this work is given."""
        self.pool, self.workspace = self.on.pool(), Workspace(self.on)
        self.graphs: dict[str, Any] = {}
        self.total: Total | None = None
        self.gradients: list[Array] = []
        self.watch: Watch | None = None

    @QUIETLY
    def step(self, epoch: int, evaluate: bool) -> tuple[float, dict[str, float]]:
        """Compute the loss and the gradients of an epoch; return the loss and, if asked, scores.

        NotFiniteError: the loss or a logit to evaluate is not finite.
        """
        if self._outdated():
            self.watch = None  # one epoch is queued before the next capture
        if self._ready():
            self.total, self.gradients, self.watch = None, [], None  # whose memory the graphs take
            works = {GRADIENTS: self._queue_gradients, UPDATE: self._queue_update}
            self._capture(works, "an epoch is two CUDA graphs from now on")
        if self.epoch is not None:
            self.epoch.set(epoch)
        self._run(GRADIENTS, self._queue_gradients)
        assert self.total is not None
        loss = self.total.begin_reading()
        seen = self._scored(epoch) if evaluate else {}
        mean = loss()
        if not math.isfinite(mean):
            raise self.model.not_finite(self.X, f"the loss is {mean}", epoch)
        return mean, seen

    @QUIETLY
    def evaluate(self, epoch: int) -> dict[str, float]:
        """Score the present weights in a pass of its own, without dropout. NotFiniteError: as of `step`."""
        if self._outdated():
            self.watch = None  # as in `step`
        if self.captured and self.settled and EVALUATION not in self.graphs:
            self._capture({EVALUATION: self._queue_evaluation}, "an evaluation is a CUDA graph from now on")
        before = tuner.trials
        self._run(EVALUATION, self._queue_evaluation)
        self.settled = tuner.trials == before
        return self._scored(epoch)

    def _scored(self, epoch: int) -> dict[str, float]:
        try:
            return {} if self.logits is None else scores(self.logits, self.targets)
        except FloatingPointError as error:
            raise self.model.not_finite(self.X, str(error), epoch) from None

    @QUIETLY
    def update(self) -> None:
        """Update the parameters. NotFiniteError: a gradient or an updated parameter is not finite."""
        self._outdated()
        self.optimizer.steps += 1
        self._set_rates()
        self._run(UPDATE, self._queue_update)
        assert self.watch is not None
        self.optimizer.finish(self.watch)

    def _run(self, what: str, queue: Callable[[], None]) -> None:
        """Launch the graph of this work, or queue it; charge every open ledger what it cost when queued."""
        if what in self.graphs:
            self.graphs[what].launch()
        else:
            with self._apart(what):
                queue()
        for counted in ledger.books().open:
            counted.add(self.costs[what])

    def _set_rates(self) -> None:
        """Queue a copy of the numbers of this step. The copy before it is over."""
        numbers = self.optimizer.numbers(self.trained)
        if self.rates is None:
            self.rates = self.on.pinned(numbers.shape, np.float64)
            self.factors = self.on.empty(numbers.shape, np.float64)
        self.rates[...] = numbers
        self.factors.set(self.rates)

    def _queue_gradients(self) -> None:
        logits = None if self.logits is None or self.model.draws else self.logits.block
        given = self.X, self.targets, self.epoch, self.need_input, logits
        self.total, self.gradients, self.dX = self.model.queue(*given)

    def _queue_evaluation(self) -> None:
        assert self.logits is not None
        self.model.queue_logits(self.X, self.need_input, self.logits.block)

    def _queue_update(self) -> None:
        gradients = self.gradients if self.dX is None else [*self.gradients, self.dX.block]
        self.watch = self.optimizer.queue(self.trained, gradients, self.factors)
        if self.dX is not None:
            self.workspace.give_back(self.dX.block)

    def _ready(self) -> bool:
        """Tell whether an epoch has been queued in which no kernel was tried out, and capture comes now."""
        before, self.trials = self.trials, tuner.trials
        return not (self.captured or self.failed) and before == self.trials and self.watch is not None

    def _capture(self, works: dict[str, Callable[[], None]], message: str) -> None:
        """Make graphs, in memory of the same work before them; say so. None is left where one fails."""
        before = tuner.trials
        try:
            for what, queue in works.items():
                with self._apart(what), self.on.captured() as graphs:
                    queue()
                (self.graphs[what],) = graphs
            if tuner.trials != before:
                raise RuntimeError("a kernel is still being chosen")
        except Exception as error:  # of CuPy, CUDA or cuBLAS: the epoch can be queued all the same
            self._give_up(error)
            self.model.drop()
            self._begin()
            return
        self.captured, self.taken = True, self._made_of()
        ledger.holds(self, "CUDA graph", self.pool.total_bytes())
        log.info(message)

    def _made_of(self) -> tuple[Any, list[Any]]:
        """Return what graphs keep as it is: numbers of the optimiser, and A X of each layer."""
        numbers = self.optimizer.clip, list(self.optimizer.weight_decay), self.optimizer.constants()
        return numbers, [layer.fixed.kept for layer in self.model.layers]

    def _outdated(self) -> bool:
        """Tell whether something that the graphs keep is another by now; then they are used no more."""
        if not self.captured or self.taken is None:
            return False
        (numbers, kept), (before, held) = self._made_of(), self.taken
        same = numbers == before and all(now is then for now, then in zip(kept, held, strict=True))
        if not same:
            self.captured, self.graphs = False, {}
        return not same

    def _give_up(self, error: Exception) -> None:
        what = f"{type(error).__name__}: {error}"
        log.log(self.level, "no CUDA graph, epochs are queued kernel by kernel: %s", what)
        self.failed, self.captured = True, False
        self.why_not = f"failed: {' '.join(what.split())}"

    @contextmanager
    def _apart(self, what: str) -> Iterator[None]:
        """Queue work inside whose memory and products are its own, and whose costs are noted as of this."""
        grid, costs = self.model.grid, ledger.Ledger()
        usual, grid.workspace = grid.workspace, self.workspace
        self.costs[what] = costs
        try:
            with ledger.apart(), costs, self.on.memory_of(self.pool), self.on.by(self.multiply):
                yield
        finally:
            grid.workspace = usual
            costs.peak = {}


def wanted(
    asked: bool | None, model: GCN, X: Features, optimizer: Optimizer, planned: bool = False
) -> bool:  # fmt: skip
    """Tell whether epochs are to be captured.

    Args:
        asked: the setting; None: where they can be, and are of so few nodes that the host's time counts.
        planned: for a GPU, on arrays without numbers; where they cannot be captured they are not.
    """
    if asked and not planned:
        return True
    return not why_not_wanted(asked, model, X, optimizer, planned)


def why_not_wanted(
    asked: bool | None, model: GCN, X: Features, optimizer: Optimizer, planned: bool = False
) -> str:
    """Return what keeps epochs from being captured, or that it was not asked for; see :func:`wanted`."""
    if asked is False:
        return "was not asked for, or a trace of operations was"
    if asked is None and model.A.shape[0] > TUNING.graph_rows:
        return f"has to be asked for with more than {TUNING.graph_rows} nodes"
    return why_not(model, X, optimizer, planned)


def why_not(model: GCN, X: Features, optimizer: Optimizer, planned: bool = False) -> str:
    """Return what keeps epochs from being captured, or an empty text; ``planned``: of :func:`wanted`."""
    on, ranks = model.grid.backend, model.grid.size
    known = type(model) in MODELS  # and none of the user's, which may do anything
    problems = [
        (not (on.on_device or planned), f"is for a GPU, and backend={on.name} computes on none"),
        (ranks > 1, f"is for one rank, and here are {ranks}, whose messages cannot be captured"),
        (not known, f"is for the models gcn, sage, gat and gatv2, not for {type(model).__name__}"),
        (
            type(optimizer) not in OPTIMIZERS.values(),
            f"is for sgd, adam and adamw, not {type(optimizer).__name__}",
        ),
        (isinstance(X, SparseFeatures), "has dense products; X.to_dense() makes features dense"),
    ]
    return next((problem for wrong, problem in problems if wrong), "")
