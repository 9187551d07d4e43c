"""Data-parallel training on minibatches (Tripathy et al., section 6 and figure 3).

Every rank trains minibatches of its own with weights that all have. One all-reduce sums the gradients of an
update, which takes the same minibatches whatever the number of ranks, so it is the same to rounding.
Accuracies are those of the whole graph, by the distributed product that the network is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from distgnn.arrays import backend
from distgnn.arrays.backend import Backend
from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.comm.steps import Steps, side_by_side
from distgnn.local import elementwise
from distgnn.nn.buffers import LayerGraph
from distgnn.nn.finite import check_features
from distgnn.nn.gcn import GCN
from distgnn.nn.loss import LossRows, Targets
from distgnn.nn.optim import Optimizer
from distgnn.operators.dense import DistDense
from distgnn.operators.moves import told
from distgnn.operators.one_rank import Alone, OneRank
from distgnn.operators.operator import DistSparse
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.operators.weights import Features
from distgnn.sampling.block import Block, Sample
from distgnn.sampling.fetch import Coming, Wanted
from distgnn.sampling.fetch import Features as FeatureRows
from distgnn.sampling.sampler import Sampler
from distgnn.train.behind import Behind
from distgnn.train.full_graph import Before, Record, run_epochs, update
from distgnn.train.minibatches import Turn, after, bulks, training_nodes, turns
from distgnn.train.part_batches import minibatches_of
from distgnn.train.stopping import Begun, PausedError

Array = Any

#: Parts of an epoch, as figure 4 of Tripathy et al. has them, and what follows them.
STEPS = ("sampling", "fetching", "propagation", "update")


class MinibatchTraining:
    """A network, its features and labels, and the source of its minibatches. Collective.

    Args:
        model: a GCN or a SageMean, on 1.5D.
        X: features in `model.input_layout`, dense or sparse; targets: made by `model`.
        sampler: on a graph in the same order, replicated or partitioned over `model.grid`.
        per_update: minibatches whose average gradient makes an update; as many ranks can work at a time.
        bulk: minibatches that a rank samples at a time.
        seed: of the minibatches.

    Attributes:
        losses: of each update of the last epoch, the mean over its minibatches before it was made.
        ahead: where messages make a bulk and the grid overlaps, make the next one while one is trained.

    Raises:
        ArgumentError: no training nodes, or a batch size that does not fit; or ranks differ in their samplers
            or in numbers (on every rank).
        ValueError: a SageMean or residual connections with a sampler that does not keep a vertex's own
            features first; features, targets or a sampler whose nodes are in another order than the
            network's.
    """

    def __init__(
        self, model: GCN, X: Features, targets: Targets, sampler: Sampler, batch_size: int, per_update: int,
        bulk: int = 1, seed: int = 0,
    ) -> None:  # fmt: skip
        if (model.needs_own or model.residual) and not sampler.rows_first:
            problem = f"needs every vertex's own features first, where {type(sampler).__name__} has others"
            network = type(model).__name__ if model.needs_own else "a network with residual connections"
            raise ValueError(f"{network} {problem}")
        given = {"features": X.layout.rows.order, "targets": targets.layout.rows.order}
        for what, order in (given | {"the sampler's graph": sampler.ids.order}).items():
            if order != model.input_layout.rows.order:
                raise ValueError(f"the nodes of {what} are in another order than the network's")
        settings = {"batch_size": batch_size, "batches_per_update": per_update, "bulk": bulk, "seed": seed}
        model.grid.world.agree(sampler.facts() | settings)
        self.model, self.X, self.targets, self.sampler, self.bulk = model, X, targets, sampler, bulk
        self.grid: Grid = model.grid
        there = sampler.graph.backend
        if there.on_device and not self.grid.backend.on_device:
            raise ValueError("the sampler's graph is on a GPU and the network is not; give both one backend")
        nodes, self.labels = map(there.asarray, training_nodes(targets))
        self.nothing = nodes[:0]
        self.minibatches = minibatches_of(sampler, nodes, batch_size, seed)
        self.turns = turns(len(self.minibatches), per_update, self.grid.size)
        self.features, self.alone = FeatureRows(X), Alone(self.grid)
        self.clock, self.losses = StepClock(self.grid.backend), list[float]()
        self.ahead = self.grid.size > 1 and (sampler.graph.collective or self.features.column.size > 1)

    def train(
        self, optimizer: Optimizer, epochs: int, *, first_epoch: int = 1, eval_every: int = 1,
        timing: bool = False, before: Before | None = None, pause: Callable[[], bool] | None = None,
        begun: Begun | None = None,
    ) -> Iterator[Record]:  # fmt: skip
        """Train as :func:`distgnn.train.train` does. The loss is the mean over the epoch's minibatches, each
        with the weights that it was trained with; `steps` are this rank's seconds in `STEPS`, with waiting.

        Args:
            pause: called after every update but the last of an epoch; where it says True, on all ranks alike,
                PausedError ends the training.
            begun: the first epoch, if some of its updates were made before.
        """
        settings = {"epochs": epochs, "first_epoch": first_epoch, "eval_every": eval_every}
        self.grid.world.agree(optimizer.facts() | settings)
        check_features(self.X)
        step = partial(self._epoch, optimizer, before, pause, begun)

        def evaluate(epoch: int) -> dict[str, float]:
            return begun.scores if begun is not None and epoch == begun.epoch else self.evaluate()

        return run_epochs(self.model, step, evaluate, range(first_epoch, epochs + 1), eval_every, timing)

    def evaluate(self) -> dict[str, float]:
        """Score the present weights on the whole graph, as ``GCN.evaluate``. Collective.

        Its memory, and that of minibatches, are not held beside each other.
        """
        self.grid.workspace.clear()
        try:
            return self.model.evaluate(self.X, self.targets, False)
        finally:
            self.grid.workspace.clear()

    def _epoch(
        self, optimizer: Optimizer, before: Before | None, pause: Callable[[], bool] | None,
        begun: Begun | None, epoch: int, _: bool, scores: dict[str, float],
    ) -> Record:  # fmt: skip
        if before is not None:
            with told(self.grid):
                before(epoch, scores)
        totals = [*begun.totals] if begun is not None and epoch == begun.epoch else []
        with closing(self.updates(optimizer, epoch, len(totals))) as updates:
            for total in updates:
                totals.append(total)
                with told(self.grid):
                    within = len(totals) < sum(turn.updates for turn in self.turns)
                    paused = pause is not None and within and pause()
                if paused:
                    raise PausedError(Begun(epoch, totals, scores))
        self.losses = [loss / max(nodes, 1) for loss, nodes in totals]
        loss, nodes = np.sum(totals, axis=0)
        loss = float(loss / nodes) if nodes else float("nan")
        return {"loss": loss, "lr": optimizer.lr, "steps": self.clock.seconds()}

    def updates(self, optimizer: Optimizer, epoch: int, made: int = 0) -> Generator[list[float], None, None]:
        """Make the updates of an epoch, of which so many are made; yield after each the sum of the losses
        before it and the number of their nodes. Collective.
        """
        sums, step = GradientSums(self.model), self.clock.step
        self.clock.spans.clear()
        behind = Behind(self._bulks(epoch, made), self.ahead and self.grid.overlap)
        # what is under way: a bulk, and the features of the next turn
        with told(self.grid), behind, ExitStack() as messages:
            sampled = iter(behind)
            following = self._next(sampled)
            coming = self._coming(messages, following)
            while following is not None:
                turn, sample, _ = following
                with step("sampling"):
                    behind.go_on()
                with step("fetching"):
                    H = coming.take()
                    messages.close()
                following = self._next(sampled)
                coming = self._coming(messages, following)
                with step("sampling"):
                    behind.go_on()
                number = turn.numbers[self.grid.rank]
                with step("propagation"), told(self.grid), coming.driven():
                    if sample is not None and number is not None:
                        self.propagate(sample, H, (epoch - 1) * len(self.minibatches) + number + 1, sums)
                with step("sampling"):
                    behind.go_on()
                if turn.updates:
                    with step("update"):
                        total = self._update(sums, optimizer).tolist()
                    yield total

    def _coming(self, messages: ExitStack, following: Ready | None) -> Coming:
        """Begin to fetch the features of a turn's sample; of no turn nothing. Collective."""
        if following is None:
            return Coming(self.features, Wanted(self.nothing))
        with self.clock.step("fetching"):
            return messages.enter_context(self.features.coming(following.features, self.grid.overlap))

    def _next(self, sampled: Iterator[Ready]) -> Ready | None:
        """Give the next turn, for which the rest of a bulk may have to be made. Collective."""
        with self.clock.step("sampling"):
            return next(sampled, None)

    def _bulks(self, epoch: int, made: int) -> Iterable[Steps[list[Ready]]]:
        """Give what makes the bulks of an epoch, of which so many updates are made."""
        batches = self.minibatches.epoch(epoch)
        return (self._bulk(epoch, bulk, batches) for bulk in bulks(after(self.turns, made), self.bulk))

    def _bulk(self, epoch: int, bulk: list[Turn], batches: list[Any]) -> Steps[list[Ready]]:
        """Sample the minibatches of some turns, and ask for their features. Collective."""
        with told(self.grid):
            samples = yield from self._sample(epoch, bulk, batches)
            inputs = [self.nothing if sample is None else sample.inputs for sample in samples]
            features = yield from side_by_side([self.features.wanted(ids) for ids in inputs])
        return [Ready(*turn) for turn in zip(bulk, samples, features, strict=True)]

    def _sample(self, epoch: int, bulk: list[Turn], batches: list[Any]) -> Steps[list[Sample | None]]:
        """Sample this rank's minibatches of some turns, on a partitioned graph with all ranks."""
        numbers = [turn.numbers[self.grid.rank] for turn in bulk]
        wanted = [number for number in numbers if number is not None]
        steps = self.sampler.steps([batches[n] for n in wanted], epoch=epoch, first=wanted)
        drawn = iter((yield from steps))
        return [None if number is None else next(drawn) for number in numbers]

    def propagate(self, sample: Sample, H: Array, step: int, sums: GradientSums) -> None:
        """Add loss and gradients of a minibatch to `sums`."""
        weights, on = sample.loss_weights, self.grid.backend
        sums.nodes += len(sample.batch) if weights is None else sample.population
        if not len(sample.batch):
            if not isinstance(H, CSR):
                self.grid.workspace.give_back(H)
            return
        known = self.minibatches.training
        labels = self._labels(backend.module(known).searchsorted(known, sample.batch))
        if weights is not None:
            weights = on.asarray(weights.astype(H.dtype))
        targets = LossRows(on.xp.arange(len(labels)), on.asarray(labels), weights=weights)
        graphs = [self._graph(block) for block in sample.blocks]
        X = (SparseFeatures if isinstance(H, CSR) else DistDense)(H, self.alone.whole, H.shape)
        loss, gradients = self.model.minibatch_gradients(graphs, X, targets, step)
        sums.loss += loss
        for total, gradient in zip(sums.gradients, gradients, strict=True):
            total += gradient

    def _labels(self, places: Array) -> Array:
        """Pick the labels of these training nodes, as `LossRows` takes them."""
        labels = self.labels[places]
        if self.targets.loss != "binary":
            return labels
        bits = backend.module(labels).unpackbits(labels.reshape(-1))
        return bits.reshape(len(labels), -1)[:, : self.targets.classes]

    def _graph(self, block: Block) -> LayerGraph:
        """Make an operator of the block, with the sampler's values or the values of a mean."""
        dtype = self.model.A.dtype
        values = block.means(dtype) if self.model.means else block.data
        A = DistSparse(OneRank(self.alone, block.shape, values, block.indices, block.indptr, dtype))
        return LayerGraph(A, block.cols)

    def _update(self, sums: GradientSums, optimizer: Optimizer) -> np.ndarray:
        """Step with the average gradient; return (sum of losses, number of nodes). Collective."""
        self.grid.world.allreduce(sums.values, matrix="gradients")
        total = self.grid.backend.to_host(sums.values[-2:]).astype(np.float64)
        if not np.isfinite(total).all():  # on every rank: all have the same sums
            raise self.model.not_finite(self.X, f"the loss is {total[0]}")
        if elementwise.average(sums.values[:-2], sums.nodes, total[1]):
            update(optimizer, self.model.parameters, sums.gradients)
        sums.values[...] = 0
        return total


class Ready(NamedTuple):
    """A turn, this rank's sample for it, if any, and the features that the sample reads."""

    turn: Turn
    sample: Sample | None
    features: Wanted


class StepClock:
    """A clock of the parts of an epoch; on a GPU by events, which it waits for when the epoch ends."""

    def __init__(self, on: Backend) -> None:
        self.on = on
        self.mark, self.between = on.clock()
        self.spans: list[tuple[str, Any, Any]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time the part that runs within the context."""
        start = self.mark()
        yield
        self.spans.append((name, start, self.mark()))

    def seconds(self) -> dict[str, float]:
        """Return the seconds by name, all of `STEPS`, and begin again at 0."""
        totals = dict.fromkeys(STEPS, 0.0)
        self.on.synchronize()
        for name, start, end in self.spans:
            totals[name] += self.between(start, end)
        self.spans.clear()
        return totals


class GradientSums:
    """GradientSums over the minibatches of an update, side by side for one all-reduce.

    Attributes:
        values: 1-D, all of them, zeros at first. The others are views: loss and nodes, 0-D; gradients, in the
            order of the parameters and the shapes of their blocks.
    """

    def __init__(self, model: GCN) -> None:
        blocks = [parameter.block for parameter in model.parameters]
        ends = np.cumsum([0, *(block.size for block in blocks)]).tolist()
        self.values = model.grid.backend.zeros((ends[-1] + 2,), model.A.dtype)
        views = (self.values[first:last] for first, last in pairwise(ends))
        self.gradients = [view.reshape(block.shape) for view, block in zip(views, blocks, strict=True)]
        self.loss, self.nodes = self.values[-2:-1].reshape(()), self.values[-1:].reshape(())
