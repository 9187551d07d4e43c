"""Counts of kernel launches, waits for the device and copies, per epoch and per minibatch.

The numbers are what there is, so that a change of any is seen. Fewer is better. The loss, for which the host
looks when all of backward is queued, is a copy and no wait.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

import distgnn as dg
from distgnn import gallery
from distgnn.arrays.tuning import TUNING
from distgnn.local import tuner
from distgnn.nn import GCN, Adam
from distgnn.nn.networks import NETWORKS
from distgnn.operators import make_grid
from distgnn.sampling import GraphSage, Replicated
from distgnn.train import MinibatchTraining
from distgnn.train.full_graph import train
from loops import each
from mpi_helpers import gpu
from train.test_epoch_graph import stand_in_of_cublas

N, WIDTH, CLASSES = 256, 16, 5
COUNTED = ("launches", "synchronizations", "device to host", "host to device")


def problem(
    comm, algorithm, network=GCN, widths=(WIDTH, WIDTH, CLASSES), wire=None, mixed=False, **options
):  # fmt: skip
    """Make a network, its features and targets, with all nodes to train."""
    A = gallery.rmat(N, degree=16).A.astype(np.float32)
    random = np.random.default_rng(0)
    grid = make_grid(comm, algorithm, backend="cupy", wire=wire)
    grid.mixed = mixed
    model = network(dg.distribute(A, grid, algorithm), widths, **options)
    labels = random.integers(0, CLASSES, N).astype(np.int32)
    targets = model.targets(labels, np.ones(N, np.uint8))
    H = dg.scatter(random.standard_normal((N, WIDTH)).astype(np.float32), model.input_layout)
    return A, model, H, targets


@pytest.fixture(autouse=True)
def untuned(monkeypatch):
    """Turn off the trials of products."""
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "0")


#: By ranks and whether MPI takes device pointers. An epoch has an evaluation; its two layers are narrow.
EPOCH = {
    ("plain", 1, "cupy"): (14, 3, 3, 0),
    ("plain", 1, "cupy-staged"): (14, 3, 3, 0),
    ("plain", 2, "cupy"): (17, 6, 6, 3),
    ("plain", 2, "cupy-staged"): (17, 6, 8, 5),
    ("dropout and bias", 1, "cupy"): (24, 3, 3, 0),
    ("dropout and bias", 1, "cupy-staged"): (24, 3, 3, 0),
    ("dropout and bias", 2, "cupy"): (30, 6, 6, 3),
    ("dropout and bias", 2, "cupy-staged"): (30, 6, 11, 8),
}
#: Of one rank without dropout and with it, also of attention: launches of an evaluated epoch, without CUDA
#: graphs and with them. Graphs are two, and with dropout three; beside them the scores are counted, from 0.
LAUNCHES = {
    ("gcn", 0.0): (14, 4), ("gcn", 0.5): (22, 5),
    ("sage", 0.0): (21, 4), ("sage", 0.5): (36, 5),
    ("gat", 0.0): (38, 4), ("gat", 0.5): (63, 5),
    ("gatv2", 0.0): (47, 4), ("gatv2", 0.5): (74, 5),
}  # fmt: skip
#: Of one rank with dense products of ours, an evaluated epoch of three layers, by wire and mixed precision.
ROUNDED = {(None, False): 20, ("bfloat16", False): 20, ("bfloat16", True): 20}
#: Of 4 ranks with NCCL: launches of ours and calls of NCCL, of an epoch with an evaluation; with a product
#: for each panel, and with two for all.
JOINED = {
    ("1d", "gcn"): ((21, 15), (17, 11)),
    ("1d", "sage"): ((28, 15), (24, 11)),
    ("1d", "gat"): ((110, 58), (70, 46)),
}  # fmt: skip
#: Of a rank in an epoch without evaluation, whose four minibatches the ranks share.
FOUR_MINIBATCHES = {
    (1, "cupy"): (173, 34, 12, 32),
    (1, "cupy-staged"): (173, 34, 12, 32),
    (2, "cupy"): (93, 14, 8, 22),
    (2, "cupy-staged"): (93, 14, 12, 26),
}
OPTIONS = {"plain": {}, "dropout and bias": {"dropout": 0.5, "bias": True}}


def counted(stand_in, epochs, before):
    """Count launches, synchronizations and copies in both directions, in the epoch after ``before``."""
    for _ in range(before):
        next(epochs)
    with stand_in.observed() as seen:
        next(epochs)
    return tuple(seen.counts[name] for name in COUNTED)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("options", OPTIONS)
def test_an_epoch(comm, stand_in, options, request):
    _, model, H, targets = problem(comm, "1d", **OPTIONS[options])
    epochs = train(model, H, targets, Adam(0.01), 7)
    way = request.node.callspec.params["stand_in"]
    assert counted(stand_in, epochs, 5) == EPOCH[options, comm.size, way]


@pytest.mark.ranks(4)
@pytest.mark.skipif(gpu.real(), reason="NCCL wants a GPU for each rank")
@each("algorithm, network", JOINED)
def test_launches_with_joined_panels(comm, monkeypatch, algorithm, network):
    """A panel at a time, and all that come at once; NCCL's calls among them, of which there is one kernel."""
    counts = []
    for joined in (0, 1 << 30):
        monkeypatch.setattr(TUNING, "joined_panels_on_device", joined)
        with gpu.backend(gpu.NCCL, monkeypatch):
            seen_by = sys.modules["cupy.stand_in"]
            _, model, H, targets = problem(comm, algorithm, NETWORKS[network])
            epochs = train(model, H, targets, Adam(0.01), 7)
            for _ in range(5):
                next(epochs)
            with seen_by.observed() as seen:
                next(epochs)
            moved = sum(count for name, count in seen.launches.items() if name.startswith("nccl"))
            counts.append((seen.counts["launches"] - moved, moved))
            model.input_layout.grid.free()
    assert tuple(counts) == JOINED[algorithm, network]


@pytest.mark.ranks(1)
@pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)
@each("network, dropout", LAUNCHES)
def test_launches_of_each_network(comm, stand_in, monkeypatch, network, dropout):
    stand_in_of_cublas(monkeypatch)
    options = {"attention_dropout": dropout} if NETWORKS[network].attends else {}
    launches = []
    for cuda_graph in (False, True):
        _, model, H, targets = problem(comm, "1d", NETWORKS[network], dropout=dropout, **options)
        epochs = train(model, H, targets, Adam(0.01), 6, cuda_graph=cuda_graph)
        launches.append(counted(stand_in, epochs, 4)[0])
    assert tuple(launches) == LAUNCHES[network, dropout]


@pytest.mark.ranks(1)
@pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)
@each("wire, mixed", ROUNDED)
def test_launches_where_products_round(comm, stand_in, monkeypatch, wire, mixed):
    """No pass rounds: products and the loss write what sparse products read."""
    monkeypatch.setattr("distgnn.arrays.tuning.TUNING.long_dimension", 50)
    widths = [WIDTH, WIDTH, 2 * WIDTH, WIDTH]
    _, model, H, targets = problem(comm, "1d", widths=widths, wire=wire, mixed=mixed)
    epochs = train(model, H, targets, Adam(0.01), 6)
    assert counted(stand_in, epochs, 4)[0] == ROUNDED[wire, mixed]


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("network", NETWORKS)
def test_phases_are_measured_without_a_wait(comm, stand_in, network):
    """`distgnn train` and `dg.fit` measure phases always."""
    _, model, H, targets = problem(comm, "1d", network=NETWORKS[network], dropout=0.5)
    counts, records = {}, []
    for timing in (False, True):
        epochs = train(model, H, targets, Adam(0.01), 5, timing=timing)
        counts[timing] = counted(stand_in, epochs, 3)
        records.append(next(epochs))
    assert counts[True] == counts[False]
    assert records[0]["phases"]["spmm"] == 0 < records[1]["phases"]["spmm"]
    assert min(records[1]["phases"].values()) >= 0


@pytest.mark.ranks(1)
def test_trials_of_attention_end(comm, stand_in, monkeypatch):
    """Attention multiplies other values each time, of the same pattern."""
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "1")
    monkeypatch.setattr("distgnn.arrays.tuning.TUNING.look_ahead_nonzeros", 1)
    _, model, H, targets = problem(comm, "1d", network=NETWORKS["gat"])
    made = []
    for _ in train(model, H, targets, Adam(0.01), 16):
        made.append(tuner.trials)
    assert made[-1] == made[-2] > made[0] > 0


@pytest.mark.ranks(1, 2)
def test_minibatches(comm, stand_in, request):
    A, model, H, targets = problem(comm, "1.5d")
    sampler = GraphSage(Replicated(A), [10, 5])
    training = MinibatchTraining(model, H, targets, sampler, N // 4, comm.size)
    way = request.node.callspec.params["stand_in"]
    epochs = training.train(Adam(0.01), 5, eval_every=0)
    assert counted(stand_in, epochs, 3) == FOUR_MINIBATCHES[comm.size, way]
