"""Entries of value 0 are edges: networks on directed graphs beside dense ones that share no code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgnn as dg
from dense_networks import Edges, Parameters, adjacency, attention, cross_entropy, gcn, sage
from distgnn.sampling import spgemm
from distgnn.store import prepare
from distgnn.store.read.neighbours import Neighbours
from distgnn.store.source import Source
from distgnn.train import Run, Settings
from distgnn.train.check import CheckFailedError

N, WIDTH, CLASSES, HEADS, RATE = 120, 12, 4, 2, 0.05
MODELS = "gcn", "sage", "gat", "gatv2"
GRAPHS = list(product((False, True), ("gcn", "row", "none"), (False, True)))  # loops, normalize, weighted
SOME = [(False, "gcn", False), (False, "row", True), (True, "none", False), (True, "gcn", True)]
WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "sampled": {"sampler": "sage", "partition_graph": False},
    "partitioned": {"sampler": "sage", "partition_graph": True},
}


class Web(Source):
    """A directed graph of which half of the nodes have no incoming edges; some have one from themselves.

    With weights, many are 0 of either sign, others negative; unless `signed`, no node's weights sum to less
    than 0, as degrees have it.
    """

    def __init__(self, weighted: bool, signed: bool) -> None:
        r = np.random.default_rng(5)
        self.name, self.n, self.directed, self.width, self.classes = "web", N, True, WIDTH, CLASSES
        there = r.random((N, N)) < 0.02
        there[::2] = False
        targets, sources = np.nonzero(there | np.diag(np.arange(N) % 7 == 0))
        weights = None
        if weighted:
            weights = r.choice([0.0, -0.0, -0.5, 0.25, 2.0], len(sources))
            sums = np.bincount(targets, weights, N)
            weights = weights if signed else np.where(sums[targets] < 0, np.abs(weights), weights)
        self.listed: Edges = sources, targets, weights
        self.labels = (np.arange(N) % CLASSES).astype(np.int32)
        self.split = np.tile([1, 2, 3], N // 3).astype(np.uint8)
        self.X = (np.eye(CLASSES, WIDTH)[self.labels] + r.random((N, WIDTH))).astype(np.float32)

    def edges(self) -> Any:
        yield self.listed

    def features(self, ids: Any) -> Any:
        return self.X[ids]


def parameters(run: Run) -> dict[str, np.ndarray]:
    found = {p.name: dg.gather(p.matrix) for p in run.model.parameters}
    return {name: run.grid.world.share(array) for name, array in found.items()}


def settings(model: str, way: str, ranks: int) -> Settings:
    given: dict[str, Any] = dict(WAYS[way])
    if given:  # all neighbours, and an update of all minibatches: one for each rank
        trained = N // 3
        given |= {"fanout": (N, N), "batch_size": -(-trained // ranks), "batches_per_update": ranks}
        given |= {"rescale": False} if model == "gcn" else {}
    given |= {"heads": (HEADS,)} if model.startswith("gat") else {}
    given |= {"optimizer": "sgd", "lr": RATE, "weight_decay": 0.0, "dropout": 0.0, "bias": True}
    return Settings(model=model, hidden=(6,), dtype="float64", epochs=2, eval_every=0, **given)


def dense(model: str, graph: Web, loops: bool, normalize: str) -> Callable[[Parameters], float]:
    """Return the loss as a function of the parameters."""
    pattern, values = adjacency(N, graph.listed, loops, normalize)
    X, trained = graph.X.astype(np.float64), np.flatnonzero(graph.split == 1)
    logits: dict[str, Callable[[Parameters], np.ndarray]] = {
        "gcn": lambda found: gcn(values, X, found),
        "sage": lambda found: sage(pattern, X, found),
        "gat": lambda found: attention(pattern, X, found, HEADS, False),
        "gatv2": lambda found: attention(pattern, X, found, HEADS, True),
    }
    return lambda found: cross_entropy(logits[model](found), graph.labels, trained)


def slope(loss: Callable[[Parameters], float], found: Parameters, along: Parameters) -> float:
    """Return the derivative of the loss along a direction, by differences."""
    ends = [loss({name: x + step * along[name] for name, x in found.items()}) for step in (1e-6, -1e-6)]
    return (ends[0] - ends[1]) / 2e-6


def check_run(comm: Any, store: Path, model: str, way: str, loss: Callable[[Parameters], float]) -> None:
    """Check that every loss, and every step along a random direction, is that of the dense network."""
    run = Run(store, settings(model, way, comm.size), comm)
    for p in run.model.parameters:
        if p.name.startswith("b"):  # at 0, nodes without entries would stand where ReLU has no derivative
            p.block[...] = 0.1
    before, r = parameters(run), np.random.default_rng(1)
    for record in run.train():
        assert record["loss"] == pytest.approx(loss(before), rel=1e-10)
        after = parameters(run)
        along = {name: r.standard_normal(x.shape) for name, x in before.items()}
        made = sum(float(((before[name] - after[name]) / RATE * along[name]).sum()) for name in along)
        assert made == pytest.approx(slope(loss, before, along), rel=1e-5, abs=1e-8)
        before = after
    run.grid.free()


def prepared(comm: Any, folder: Path, loops: bool, normalize: str, weighted: bool) -> tuple[Web, Path]:
    graph, path = Web(weighted, normalize == "none"), folder / f"{loops}-{normalize}-{weighted}.dg"
    if comm.rank == 0:
        prepare(graph, path, order=("random",), self_loops=loops, normalize=normalize, dtype="float64")
    comm.Barrier()
    return graph, path


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
def test_every_stored_entry_is_an_edge(comm: Any, way: str, shared_tmp_path: Path) -> None:
    for loops, normalize, weighted in GRAPHS if comm.size == 1 and way == "full" else SOME[:: comm.size]:
        graph, store = prepared(comm, shared_tmp_path, loops, normalize, weighted)
        for model in MODELS:
            check_run(comm, store, model, way, dense(model, graph, loops, normalize))


def without_zeros(A: Any) -> Any:
    A = A.copy()
    A.eliminate_zeros()
    return A


def checked(comm: Any, store: Path, wanted: Settings) -> None:
    run = Run(store, wanted, comm)
    try:
        list(run.train())
    finally:
        run.grid.free()


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("way", ["full", "sampled"])
def test_the_check_finds_edges_that_a_run_loses(
    comm: Any, way: str, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference reads the files by itself, and counts what samplers draw."""
    _, store = prepared(comm, shared_tmp_path, False, "gcn", False)
    wanted = replace(settings("sage" if way == "full" else "gat", way, comm.size), check="all")
    checked(comm, store, wanted)
    if way == "full":
        block = Neighbours.block
        monkeypatch.setattr(
            Neighbours, "block",
            lambda own, *window: block(own, *window).multiply(own.source.block(*window) != 0).tocsr(),
        )  # fmt: skip
    else:
        held = spgemm._held
        monkeypatch.setattr(spgemm, "_held", lambda *given: without_zeros(held(*given)))
    with pytest.raises(CheckFailedError, match="expected " if way == "full" else "has [0-9]+ entries"):
        checked(comm, store, wanted)
