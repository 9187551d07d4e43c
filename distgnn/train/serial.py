"""The training of a run on one rank: by the engine, on the host, from the same store and settings."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

from distgnn import operators
from distgnn.comm.grid import Grid
from distgnn.comm.steps import Steps
from distgnn.nn import optim
from distgnn.nn.gcn import GCN
from distgnn.nn.networks import NETWORKS
from distgnn.nn.products import AGGREGATE
from distgnn.operators.dense import DistDense
from distgnn.sampling.block import Sample
from distgnn.sampling.sage import GraphSage
from distgnn.sampling.shadow import Shadow
from distgnn.sampling.spgemm import Replicated
from distgnn.store.checkpoint import CheckpointReader
from distgnn.store.read.order import Order
from distgnn.store.read.root import Held
from distgnn.store.read.store import Store
from distgnn.train import checkpoint, resolve
from distgnn.train.data import load_data
from distgnn.train.full_graph import of_epoch, parameters, update
from distgnn.train.minibatch import MinibatchTraining
from distgnn.train.minibatches import sampler_on, training_nodes
from distgnn.train.parts import part_vector
from distgnn.train.settings import Settings
from distgnn.train.stored import stored_matrix
from distgnn.train.vertices import VertexTraining

Array = Any


class SampleError(Exception):
    """A sample that is not what its sampler draws from the stored matrix."""


class Losses(Protocol):
    """A training that gives the losses of its updates."""

    def epoch(self, epoch: int, lr: float) -> Iterator[float]:
        """Yield the loss of every update of the next epoch, taken before the update, with this step size.

        Raise NotFiniteError if the loss or a parameter is not finite.
        """
        ...


class Serial(Losses, Protocol):
    """A training on one rank that others of the same run can be compared with."""

    def shaken(self, seed: int, size: float) -> Losses:
        """Make a training with the run's dtype that begins as this one began. In that training, parameters
        have relative errors of at most `size`, other ones in each update, while gradients are computed.
        """
        ...


class WholeData:
    """The matrix, features, targets and sampler of a run on one rank. Reads all of the store; not collective.

    Args:
        store, order, widths, settings: of the run. dtype: in which networks compute; numbers are the run's.

    Attributes:
        stored: what samples are drawn from, the stored entries, with nodes in the order of the features.
    """

    def __init__(
        self, store: Store, order: Order, widths: Sequence[int], settings: Settings, dtype: str
    ) -> None:  # fmt: skip
        s = replace(settings, product_order=AGGREGATE)
        inputs = order.layer(-1)  # features and labels as layer 0 takes them
        stored = whole = stored_matrix(store, order, s.dtype)
        if inputs is not order:  # rows in the order of the columns
            stored = stored[order.positions(inputs.permutation(0, store.n))]
        if NETWORKS[str(s.model)].neighbours:
            stored = off_diagonal(stored)
        grid = Grid(MPI.COMM_SELF, backend="numpy", rows=1)
        weakref.finalize(grid, grid.links.free).atexit = False
        A = operators.distribute(Held(stored, inputs.row_order, dtype), grid, "1d")
        self.settings, self.stored, self.network = s, stored, lambda: resolve.network(s, A, widths)
        X, self.targets, *_ = load_data(s, store, self.network(), "the check multiplies these")
        assert isinstance(X, DistDense)
        self.X = X.like(X.block.astype(dtype, copy=False))
        if s.samples and not s.together:
            graph = Replicated(Held(stored, inputs.row_order, s.dtype))
            parts = partial(part_vector, s, order, lambda: whole)
            self.sampler = sampler_on(s, graph, lambda: training_nodes(self.targets)[0], parts)


class OnMinibatches(MinibatchTraining):
    """Training on minibatches whose samples must have entries of the stored matrix."""

    def __init__(self, data: WholeData, model: GCN) -> None:
        s, self.stored = data.settings, data.stored
        sizes = int(s.batch_size or 1), int(s.batches_per_update or 1)
        super().__init__(model, data.X, data.targets, data.sampler, *sizes, seed=s.seed)

    def _sample(self, *given: Any) -> Steps[list[Sample | None]]:
        samples, sampler = (yield from super()._sample(*given)), self.sampler
        for sample in filter(None, samples):
            drawn = sampler.fanout if isinstance(sampler, GraphSage) else None
            check_sample(self.stored, sample, drawn, isinstance(sampler, Shadow))
        return samples


class FirstState(NamedTuple):
    """The parameters that a training begins with, and the state and the steps of its optimiser."""

    blocks: list[Array]
    state: dict[str, dict[str, Array]]
    steps: int


class SerialTraining:
    """A training on one rank, from the parameters of the seed or, if there is one, from a checkpoint."""

    def __init__(self, data: WholeData, saved: CheckpointReader | None = None) -> None:
        self.data, s = data, data.settings
        self.model, self.X = data.network(), data.X
        if s.train_features:
            self.X = data.X.like(data.X.block.copy())
        self.trained = parameters(self.model, self.X, s.train_features)
        self.optimizer = optim.make(s.optimizer, s.lr, s.weight_decay or (), s.momentum, s.clip)
        self.stepper: Any = self.optimizer
        self.minibatches: MinibatchTraining | None = None
        if s.together:
            self.minibatches = VertexTraining.of(s, self.model, data.X, data.targets)
        elif s.samples:
            self.minibatches = OnMinibatches(data, self.model)
        for p in self.trained:  # the numbers of the run
            p.block[...] = p.block.astype(s.dtype)
        if saved is not None:
            self.optimizer.prepare(self.trained)
            checkpoint.take_over(saved, self.trained, self.optimizer)
            self.optimizer.steps = int(saved.meta["steps"])

    def epoch(self, epoch: int, lr: float) -> Iterator[float]:
        """Make the updates of an epoch; see :class:`Losses`."""
        self.optimizer.lr, data = lr, self.data
        with of_epoch(epoch):
            if self.minibatches is not None:
                for loss, nodes in self.minibatches.updates(self.stepper, epoch):
                    yield loss / max(nodes, 1)
                return
            features = data.settings.train_features
            loss, _, gradients, dX = self.model.gradients(self.X, data.targets, epoch, features)
            yield loss
            update(self.stepper, self.trained, gradients, dX)

    def start(self) -> FirstState:
        """Copy the state of the training."""
        optimizer = self.optimizer
        return FirstState(
            [p.block.copy() for p in self.trained], copy.deepcopy(optimizer.state), optimizer.steps
        )

    def begin(self, start: FirstState, seed: int, size: float) -> None:
        """Go on from a state, with errors of the parameters."""
        for p, block in zip(self.trained, start.blocks, strict=True):
            p.block[...] = block
        self.optimizer.prepare(self.trained if start.state else [])
        for name, slots in start.state.items():
            for slot, block in slots.items():
                self.optimizer.state[name][slot][...] = block
        self.optimizer.steps = start.steps
        self.stepper = Shaking(self.optimizer, self.trained, seed, size)


class Shaking:
    """An optimiser between whose steps parameters have random relative errors of at most `size`."""

    def __init__(
        self, optimizer: optim.Optimizer, trained: Sequence[optim.Parameter], seed: int, size: float
    ) -> None:  # fmt: skip
        self.optimizer, self.trained, self.size = optimizer, trained, size
        self.random = np.random.default_rng(seed)
        self.shake()

    def shake(self) -> None:
        """Add errors to the parameters."""
        self.exact = [p.block.copy() for p in self.trained]
        for p in self.trained:
            p.block[...] = p.block * (1 + self.size * self.random.uniform(-1, 1, p.block.shape))

    def step(self, trained: Sequence[optim.Parameter], gradients: Sequence[Array]) -> None:
        """Step from the parameters without errors, and add others."""
        for p, block in zip(trained, self.exact, strict=True):
            p.block[...] = block
        self.optimizer.step(trained, gradients)
        self.shake()


class Reference(SerialTraining):
    """The training of a run in float64, and others beside that show how far rounding moves the run's losses.

    Args: of :class:`WholeData` and :class:`SerialTraining`.
    """

    def __init__(
        self, store: Store, order: Order, widths: Sequence[int], settings: Settings,
        saved: CheckpointReader | None = None,
    ) -> None:  # fmt: skip
        self.load = partial(WholeData, store, order, widths, settings)
        super().__init__(self.load("float64"), saved)
        self.began = self.start()
        self.rough: WholeData | None = self.data if settings.dtype == "float64" else None

    def shaken(self, seed: int, size: float) -> SerialTraining:
        """Make a training with errors; see :class:`Serial`."""
        self.rough = self.rough or self.load(self.data.settings.dtype)
        other = SerialTraining(self.rough)
        other.begin(self.began, seed, size)
        return other


def off_diagonal(A: sp.csr_array) -> sp.csr_array:
    """Put ones in place of all entries off the diagonal, and nothing on it."""
    entries = A.tocoo()
    others = entries.row != entries.col
    ones = np.ones(np.count_nonzero(others), A.dtype)
    return sp.csr_array((ones, (entries.row[others], entries.col[others])), shape=A.shape)


def check_sample(
    A: sp.csr_array, sample: Sample, fanout: tuple[int, ...] | None, some: bool = False
) -> None:  # fmt: skip
    """Raise SampleError unless the blocks of a sample have entries of A only, each once.

    They must be all between a block's rows and columns, or with `fanout`, so many of each row or all; with
    `some`, which are there does not matter.
    """
    for number, block in enumerate(reversed(sample.blocks)):
        whole = A[block.rows]
        stored, drawn = _ones(whole[:, block.cols], 1), _ones(block.A, 2)
        kinds = (stored + drawn).data  # 1: stored, 2: drawn, 3: both; drawn twice: more
        degrees = np.diff(whole.indptr)
        wanted = stored.nnz if fanout is None else int(np.minimum(degrees, fanout[number]).sum())
        if np.isin(kinds, (1, 3)).all() and (some or drawn.nnz == wanted):
            continue
        where = f"layer {len(sample.blocks) - 1 - number} of a sample has {drawn.nnz} entries"
        raise SampleError(f"{where}, expected {wanted} of the {stored.nnz} stored there")


def _ones(A: Any, value: int) -> sp.csr_array:
    return sp.csr_array((np.full(A.nnz, value), A.indices, A.indptr), shape=A.shape)
