"""The training of a run on one process: by the serial networks, from the same store and settings."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

from distgnn.layout import block as block_range
from distgnn.nn.finite import NotFiniteError
from distgnn.nn.loss import as_numbers
from distgnn.nn.networks import REFERENCES
from distgnn.nn.reference import GCNReference, SageReference, labelled
from distgnn.nn.reference_optim import ReferenceOptimizer
from distgnn.sampling.block import Sample
from distgnn.sampling.sage import GraphSage
from distgnn.sampling.spgemm import Replicated
from distgnn.split import TRAIN
from distgnn.store.checkpoint import CheckpointReader
from distgnn.store.read.node_files import INDICES
from distgnn.store.read.order import Order
from distgnn.store.read.root import RootStore
from distgnn.store.read.store import Store
from distgnn.train.minibatches import Minibatches, sampler_on
from distgnn.train.resolve import options
from distgnn.train.settings import Settings

Array = Any


class SampleError(Exception):
    """A sample that is not what its sampler draws from the stored matrix."""


class Serial(Protocol):
    """A serial training."""

    def epoch(self, epoch: int, lr: float) -> Iterator[float]:
        """Yield the loss of every update of the next epoch before it is made, with this step size.

        Raise NotFiniteError if the loss or a parameter is not finite.
        """
        ...

    def shaken(self, seed: int, size: float) -> Serial:
        """Copy the training as it stands. In the copy, parameters have relative errors of at most `size`,
        other ones in each update, while losses and gradients are computed.
        """
        ...


class _Training:
    """The state of a serial training: its network and optimiser. `shared`: names of what copies share."""

    network: GCNReference
    shared: Sequence[str] = ("labels", "rows")
    train_features = False
    errors: np.random.Generator | None = None
    size = 0.0

    def shaken(self, seed: int, size: float) -> Any:
        """Copy the training as it stands, with errors of its parameters, see :class:`Serial`."""
        network = self.network
        kept = [getattr(self, name) for name in self.shared] + [network.A, network.nodes]
        other = copy.deepcopy(self, {id(x): x for x in kept + [network.features] * (not self.train_features)})
        other.errors, other.size = np.random.default_rng(seed), size
        return other

    @contextmanager
    def _with_errors(self) -> Iterator[None]:
        """Change the parameters by errors within the context, where the training is a shaken one."""
        errors = self.errors
        arrays = {} if errors is None else self.network.parameters(self.train_features)
        exact = {name: array.copy() for name, array in arrays.items()}
        for array in arrays.values():
            assert errors is not None
            array[...] = array * (1 + self.size * errors.uniform(-1, 1, array.shape))
        yield
        for name, array in arrays.items():
            array[...] = exact[name]


class FullGraph(_Training):
    """An update per epoch, from all training nodes.

    Args:
        network: with its features.
        labels, split: of its rows.
    """

    def __init__(
        self, network: GCNReference, labels: Array, split: Array, optimizer: ReferenceOptimizer,
        train_features: bool,
    ) -> None:  # fmt: skip
        self.network, self.labels, self.optimizer = network, labels, optimizer
        self.rows, self.train_features = labelled(labels, split, TRAIN), train_features

    def epoch(self, epoch: int, lr: float) -> Iterator[float]:
        """Yield the loss of the one update of the epoch."""
        given = self.labels, self.rows, epoch, self.train_features
        with self._with_errors():
            loss, gradients = self.network.epoch_gradients(*given)
        yield loss
        self.network.update(self.optimizer, gradients, lr, epoch)


class OnMinibatches(_Training):
    """An update from every few minibatches, one after the other. They are drawn as in the run, by its sampler
    on a whole graph, and must have entries of the stored matrix; the serial network is trained on them.

    Args: see :class:`FullGraph`; minibatches and A, what is sampled from, have its rows' positions.
    """

    shared = "labels", "A", "sampler", "minibatches"

    def __init__(
        self, network: GCNReference, labels: Array, split: Array, optimizer: ReferenceOptimizer,
        settings: Settings, A: sp.csr_array,
    ) -> None:  # fmt: skip
        self.network, self.labels, self.optimizer = network, labels, optimizer
        nodes = labelled(labels, split, TRAIN)
        self.A, self.sampler = A, sampler_on(settings, Replicated(A), lambda: nodes)
        size, self.per_update = int(settings.batch_size or 1), int(settings.batches_per_update or 1)
        self.minibatches = Minibatches(nodes, size, settings.seed)

    def epoch(self, epoch: int, lr: float) -> Iterator[float]:
        """Yield the mean loss over the minibatches of each update."""
        batches = self.minibatches.epoch(epoch)
        for first in range(0, len(batches), self.per_update):
            with self._with_errors():
                loss, count, gradients = self._group(epoch, first, batches[first : first + self.per_update])
            if not np.isfinite(loss):
                raise NotFiniteError(f"the loss is {loss}", self.network.layers - 1, epoch)
            yield loss / max(count, 1)
            if count:
                mean = {name: g / self.network.dtype.type(count) for name, g in gradients.items()}
                self.network.update(self.optimizer, mean, lr, epoch)

    def _group(self, epoch: int, first: int, batches: Sequence[Array]) -> tuple[float, int, dict[str, Any]]:
        """Return sums over the minibatches of an update: of losses, of their nodes, and of gradients."""
        total, count, sums = 0.0, 0, {name: 0 * w for name, w in self.network.parameters().items()}
        for number, batch in enumerate(batches, first):
            (sample,) = self.sampler.sample_at([batch], epoch=epoch, first=number)
            check_sample(self.A, sample, self.sampler.fanout if isinstance(self.sampler, GraphSage) else None)
            count += len(sample.batch) if sample.loss_weights is None else int(sample.population or 0)
            if len(sample.batch):
                step = (epoch - 1) * len(self.minibatches) + number + 1
                loss, gradients = self._minibatch(sample, step)
                total += loss
                sums = {name: g + gradients[name] for name, g in sums.items()}
        return total, count, sums

    def _minibatch(self, sample: Sample, step: int) -> tuple[float, dict[str, Any]]:
        """Return the sum of losses and its gradients."""
        network, size = self.network, len(sample.batch)
        graphs = [(network.block_operator(block.A), block.cols) for block in sample.blocks]
        weights = size * (np.ones(size) if sample.loss_weights is None else sample.loss_weights)
        given = network.features[sample.inputs], self.labels[sample.batch], np.arange(size), step
        with np.errstate(all="ignore"):
            return network.named_gradients(*given, features=False, graphs=graphs, loss_weights=weights)


def reference(
    store: Store, order: Order, widths: Sequence[int], settings: Settings,
    checkpoint: CheckpointReader | None = None,
) -> Serial:  # fmt: skip
    """Make the serial training of a run, which goes on from a checkpoint if there is one.

    Reads all that it needs of the store; not collective.
    """
    s, n = settings, store.n
    inputs = order.layer(-1)  # features and labels as layer 0 takes them
    ids = inputs.permutation(0, n)
    A, nodes = stored_matrix(store, order, s.dtype), np.arange(n)
    if not s.samples:  # whose draws and masks depend on positions
        A, nodes = A[order.positions(ids)], ids  # rows in the order of the columns
    elif REFERENCES[str(s.model)] is SageReference:
        A = off_diagonal(A)
    network = REFERENCES[str(s.model)](A, widths, **options(s), dtype=s.dtype, nodes=nodes)
    network.features = _features(store, inputs, s)
    labels, split = store.labels(inputs), store.split(inputs)
    if s.standardize_features:
        network.features = _standardized(network.features, network.features[labelled(labels, split, TRAIN)])
    optimizer = ReferenceOptimizer(s.optimizer, s.decays, s.momentum, s.clip)
    if checkpoint is not None:
        _take_over(checkpoint, network.parameters(s.train_features), optimizer)
    labels = as_numbers(labels) if s.loss == "mse" else labels
    training = network, labels, split, optimizer
    return OnMinibatches(*training, s, A) if s.samples else FullGraph(*training, s.train_features)


def _features(store: Store, inputs: Order, settings: Settings) -> Array:
    X = store.features(inputs).astype(settings.dtype)
    if settings.normalize_features:
        sums = np.abs(X).sum(axis=1, keepdims=True, dtype=np.float64)
        X *= (1 / np.where(sums == 0, 1, sums)).astype(X.dtype)
    return X


def _standardized(X: Array, training: Array) -> Array:
    mean = training.mean(axis=0, dtype=np.float64)
    spread = np.sqrt(((training - mean) ** 2).mean(axis=0))
    return ((X - mean) / np.where(spread > 1e-6 * abs(mean), spread, 1)).astype(X.dtype)


def _take_over(
    reader: CheckpointReader, arrays: dict[str, np.ndarray], optimizer: ReferenceOptimizer
) -> None:  # fmt: skip
    """Copy the parameters and the state of the optimiser of a checkpoint."""

    def whole(name: str, like: np.ndarray) -> np.ndarray:
        rows, cols = reader.shapes[name]
        return reader.piece(name, (0, rows), (0, cols)).reshape(like.shape)

    for name, array in arrays.items():
        array[...] = whole(name, array)
        slots = [f"{name}.{slot}" for slot in optimizer.slots]
        if slots[0] in reader.shapes:  # without momentum there is none
            optimizer.state[name] = [whole(slot, array) for slot in slots]
    optimizer.steps = int(reader.meta["steps"])


def stored_matrix(store: Store, order: Any, dtype: Any) -> sp.csr_array:
    """Put the stored entries together, zeros among them: (n, n), at the order's positions."""
    if isinstance(store, RootStore):
        entries = store.held.matrix.tocoo()
        parts = [(order.positions(entries.row), order.positions(entries.col), entries.data)]
    else:
        places = product(range(len(order.rows) - 1), range(len(order.cols) - 1))
        parts = [_shard(order, name, *place) for name, place in zip(order.files, places, strict=True)]
    rows, columns, values = map(np.concatenate, zip(*parts, strict=True))
    return sp.csr_array((values.astype(dtype), (rows, columns)), shape=order.shape)


def _shard(order: Any, name: str, i: int, j: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    (top, bottom), left = block_range(order.rows, i), block_range(order.cols, j)[0]
    nnz = int(order.shard_nnz[i, j])
    with order.members.open(name) as file:
        counts = np.diff(file.array("indptr", (bottom - top + 1,), *INDICES)[:])
        columns = file.array("indices", (nnz,), *INDICES)[:].astype(np.int64)
        values = file.array("values", (nnz,), order.stored_dtype)[:]
    return np.repeat(np.arange(top, bottom), counts), columns + left, values


def off_diagonal(A: sp.csr_array) -> sp.csr_array:
    """Put ones in place of all entries off the diagonal, and nothing on it."""
    entries = A.tocoo()
    others = entries.row != entries.col
    ones = np.ones(np.count_nonzero(others), A.dtype)
    return sp.csr_array((ones, (entries.row[others], entries.col[others])), shape=A.shape)


def check_sample(A: sp.csr_array, sample: Sample, fanout: tuple[int, ...] | None) -> None:
    """Raise SampleError unless the blocks of a sample have entries of A only, each once.

    They must be all between a block's rows and columns, or with `fanout`, so many of each row or all.
    """
    for number, block in enumerate(reversed(sample.blocks)):
        whole = A[block.rows]
        stored, drawn = _ones(whole[:, block.cols], 1), _ones(block.A, 2)
        kinds = (stored + drawn).data  # 1: stored, 2: drawn, 3: both; drawn twice: more
        degrees = np.diff(whole.indptr)
        wanted = stored.nnz if fanout is None else int(np.minimum(degrees, fanout[number]).sum())
        if np.isin(kinds, (1, 3)).all() and drawn.nnz == wanted:
            continue
        where = f"layer {len(sample.blocks) - 1 - number} of a sample has {drawn.nnz} entries"
        raise SampleError(f"{where}, expected {wanted} of the {stored.nnz} stored there")


def _ones(A: Any, value: int) -> sp.csr_array:
    return sp.csr_array((np.full(A.nnz, value), A.indices, A.indptr), shape=A.shape)
