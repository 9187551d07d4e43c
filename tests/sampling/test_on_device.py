"""Sampling on a GPU: the samples of the host, to the bit, and how often the host is asked for sizes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from distgnn import Ledger, local
from distgnn.arrays.tuning import TUNING
from distgnn.local.relabel import Relabelling
from distgnn.local.stack import Stack
from distgnn.nn import GCN, Adam
from distgnn.operators import make_grid
from distgnn.sampling import Cluster, Ladies, Replicated, Sample, Sampler, Shadow
from distgnn.train import MinibatchTraining
from mpi_helpers import gpu

from ..operators.orders import Permuted
from .test_relabel import SIZES, problem
from .test_samplers import SAMPLERS, batches_of

N = 60
ALL = SAMPLERS | {
    "cluster": lambda G, _: Cluster(G, 2, np.arange(N) % 7, training=np.arange(0, N, 2), rescale=True),
    "cluster, renormalized": lambda G, _: Cluster(G, 2, np.arange(N) % 7),
    "shadow": lambda G, fanout: Shadow(G, fanout, 3),
}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield CuPy, or its stand-in, to be compared with the host."""
    with gpu.backend(gpu.AWARE, monkeypatch) as chosen:
        yield chosen


def graph(dtype: type) -> sp.csr_array:
    """Make a graph with a hub row, a hub column, an isolated vertex, and weights that differ much.

    Some are 0, of either sign, and some negative.
    """
    generator = np.random.default_rng(5)
    A = np.where(generator.random((N, N)) < 0.08, generator.uniform(0.1, 3, (N, N)), 0)
    A[4, generator.random(N) < 0.7] = 0.3
    A[generator.random(N) < 0.7, 9] = 2
    A[11] = A[:, 11] = 0
    made = sp.csr_array(A).astype(dtype)
    made.data[::9], made.data[4::9] = 0, -0.0
    made.data[7::9] *= -1
    return made


def compare(device: Any, found: list[Sample], expected: list[Sample]) -> None:
    """Compare draws to the bit, and values to rounding, as a GPU has logarithms of its own."""
    for ours, theirs in zip(found, expected, strict=True):
        pairs = [(ours.batch, theirs.batch)]
        for one, other in zip(ours.blocks, theirs.blocks, strict=True):
            pairs += [
                (getattr(one, name), getattr(other, name)) for name in ("rows", "cols", "indptr", "indices")
            ]
            close(device, one.data, other.data)
            close(device, one.means(np.float32), other.means(np.float32))
            assert device.to_host(one.A.indices).tolist() == other.A.indices.tolist()
        for one, other in pairs:
            assert one.dtype == np.int64 and device.to_host(one).tolist() == other.tolist()
        assert (ours.loss_weights is None) == (theirs.loss_weights is None)
        if theirs.loss_weights is not None:
            close(device, ours.loss_weights, theirs.loss_weights)
        assert ours.population == theirs.population


def close(device: Any, one: Any, other: Any) -> None:
    assert one.dtype == other.dtype
    np.testing.assert_allclose(device.to_host(one), other, rtol=1e-12 if other.dtype == np.float64 else 1e-6)


@pytest.mark.parametrize(("kind", "dtype"), list(zip(ALL, cycle((np.float32, np.float64)), strict=False)))
def test_samples_are_those_of_the_host(
    kind: str, dtype: type, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In ids, of a stored order, some minibatches empty; FastGCN's rows a few at a time."""
    monkeypatch.setattr(TUNING, "device_entries", 150)
    A, batches = Permuted(graph(dtype), np.random.default_rng(1).permutation(N)), batches_of(N)
    there, here = (ALL[kind](Replicated(A, backend=on), [6, 4]) for on in (device, "numpy"))
    compare(device, there.sample(batches, epoch=2, first=3), here.sample(batches, epoch=2, first=3))
    on_device = [device.asarray(batch) for batch in batches[2:4]]
    compare(device, there.sample(on_device, first=5), here.sample(batches[2:4], first=5))
    assert there.sample([]) == []


@pytest.mark.parametrize("importance", ["zou", "counts"])
def test_the_ledger_counts_the_same_products(importance: str, device: Any) -> None:
    counted = []
    for on in (device, "numpy"):
        sampler = Ladies(Replicated(graph(np.float32), backend=on), [6, 4], importance=importance)
        with Ledger() as ledger:
            sampler.sample(batches_of(N))
        counted.append(ledger.flops)
    assert counted[0] == counted[1] > 0


def test_products_are_those_of_scipy(device: Any) -> None:
    """Values of both signs that cancel, empty rows, and sums in the same order."""
    A = graph(np.float32)
    Q = sp.random_array((9, N), density=0.3, random_state=2, format="csr", dtype=np.float32)
    Q.data[::3] *= -1
    A.data[::5] *= -1
    Q.data[Q.indptr[3] : Q.indptr[5]] = 1
    for right in (A, sp.csr_array(np.repeat([[1.0, -1.0]], 30, axis=0).reshape(N, 1)).astype(np.float32)):
        found, expected = Replicated(right, backend=device).multiply(Q), Replicated(right).multiply(Q)
        assert found.shape == expected.shape and found.ends.tolist() == expected.indptr.tolist()
        for name in ("indptr", "indices", "data"):
            assert device.to_host(getattr(found, name)).tolist() == getattr(expected, name).tolist()
        assert right is not A or (expected.data == 0).any()
        from cupyx.scipy.sparse import csr_matrix

        by_cusparse = local.spgemm(*map(csr_matrix, (Q.astype(right.dtype), right)))
        np.testing.assert_allclose(by_cusparse.get().toarray(), expected.toarray(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", SIZES)
def test_ids_are_numbered_as_on_the_host(sizes: list[tuple[int, int]], device: Any) -> None:
    ids, known = problem(sizes)
    there = [Stack.cut(device.asarray(stack.ids), stack.bounds) for stack in (ids, known)]
    for found, expected in zip(
        Relabelling(40).extend(*there), Relabelling(40).extend(ids, known), strict=True
    ):
        assert found.slices == expected.slices
        for one, other in zip(found[:2], expected[:2], strict=True):
            assert device.to_host(one).tolist() == other.tolist()


def test_weights_that_cannot_be_drawn_from(device: Any) -> None:
    huge = graph(np.float64)
    huge.data[:] = 1e200
    with pytest.raises(ValueError, match="row 0 has weights"):
        Ladies(Replicated(huge, backend=device), [3]).sample([np.arange(5)])


def training(device: Any, sampler: Sampler, A: sp.csr_array) -> MinibatchTraining:
    grid = make_grid(MPI.COMM_SELF, "1.5d", backend=device)
    model = GCN(dg.distribute(A, grid, "1.5d"), [8, 6, 3])
    targets = model.targets(np.arange(N, dtype=np.int32) % 3, np.ones(N, np.uint8))
    X = dg.scatter(np.random.default_rng(0).standard_normal((N, 8)).astype(np.float32), model.input_layout)
    return MinibatchTraining(model, X, targets, sampler, 10, per_update=2, seed=3)


@pytest.mark.parametrize("kind", ["sage rescaled", "ladies", "fastgcn", "saint"])
@pytest.mark.slow
def test_training_is_that_of_the_host(kind: str, device: Any) -> None:
    A, losses = graph(np.float32) + sp.eye_array(N, dtype=np.float32).tocsr(), []
    for where in (device, "numpy"):
        sampler = SAMPLERS[kind](Replicated(sp.csr_array(A), backend=where), [20, 20])
        run = training(device, sampler, sp.csr_array(A))
        losses.append([record["loss"] for record in run.train(Adam(0.01), 2, eval_every=0)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


#: Sampler -> waits and copies to the host for a bulk of two layers. GraphSAGE asks in every layer how many
#: entries were drawn, and where the lists of entries and vertices end; LADIES how many products there are,
#: where the rows of P end, how many columns were drawn, how many entries their rows have and how many of them
#: are kept. FastGCN makes no products. GraphSAINT samples once, and asks twice for the rows that count.
WAITS = {"sage": 4, "ladies": 10, "fastgcn": 6, "saint": 6}


@pytest.mark.parametrize("kind", WAITS)
def test_the_host_is_asked_for_sizes_only(kind: str, device: Any) -> None:
    stand_in = pytest.importorskip("cupy.stand_in", reason="CuPy itself does not count")
    sampler = SAMPLERS[kind](Replicated(graph(np.float32), backend=device), [6, 4])
    batches = [device.asarray(batch) for batch in batches_of(N)[1:]]
    for some in (batches[:1], batches):  # whatever the number of minibatches
        with stand_in.observed() as seen:
            sampler.sample_at(some)
        counts = seen.counts
        assert counts["synchronizations"] == counts["device to host"] == WAITS[kind]
        assert counts["device to host bytes"] <= 8 * WAITS[kind] * 2 * (len(some) + 1)
        assert counts["host to device bytes"] <= 8 * 8 * (len(some) + 1)


#: At most, of a minibatch of training with two layers and a bulk of one: launches, waits, copies either way.
#: Beside sampling, the host waits for the loss, and in an update for its sums and for what Adam finds.
A_MINIBATCH = {
    "sage rescaled": (140, 7, 7, 3),
    "ladies": (160, 13, 13, 5),
    "fastgcn": (125, 9, 9, 7),
    "saint": (130, 9, 9, 3),
}


@pytest.mark.parametrize("kind", A_MINIBATCH)
@pytest.mark.slow
def test_a_minibatch_moves_scalars_only(kind: str, device: Any) -> None:
    stand_in = pytest.importorskip("cupy.stand_in", reason="CuPy itself does not count")
    A = sp.csr_array(graph(np.float32) + sp.eye_array(N, dtype=np.float32))
    run = training(device, SAMPLERS[kind](Replicated(A, backend=device), [10, 10]), A)
    epochs = run.train(Adam(0.01), 2, eval_every=0)
    next(epochs)
    with stand_in.observed() as seen:
        next(epochs)
    minibatches = len(run.minibatches)
    counted = [
        seen.counts[name] / minibatches
        for name in ("launches", "synchronizations", "device to host", "host to device")
    ]
    assert all(number <= most for number, most in zip(counted, A_MINIBATCH[kind], strict=True)), counted
    for way in ("device to host", "host to device"):
        assert seen.counts[f"{way} bytes"] <= 300 * minibatches
