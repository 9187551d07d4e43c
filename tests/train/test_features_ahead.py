"""Features of the next minibatch travel while one trains: the same numbers and words, whatever ends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import distgnn as dg
from distgnn import gallery, progress
from distgnn.arrays import backend as backends
from distgnn.comm.flight import under_way
from distgnn.comm.links import Links
from distgnn.errors import PeerError
from distgnn.nn import Adam, SageMean
from distgnn.nn.finite import NotFiniteError
from distgnn.operators import make_grid
from distgnn.sampling import GraphSage, Partitioned, Replicated
from distgnn.train import MinibatchTraining
from distgnn.train.stopping import PausedError

N, WIDTH = 1200, 64
GRAPH = gallery.rmat(N, degree=9, features=WIDTH, classes=5)


def training(comm: Any, backend: Any, overlap: bool, partitioned: bool = False, reps: int = 1) -> Any:
    """Make a training whose ranks fetch some 100 KiB of each other for a minibatch."""
    grid = make_grid(comm, "1.5d", {"rows": comm.size // reps, "reps": reps}, backend=backend)
    grid.overlap = overlap
    model: Any = SageMean(dg.distribute(GRAPH.A, grid, "1.5d"), [WIDTH, 16, 5], dropout=0.2)
    targets = model.targets(GRAPH.labels, GRAPH.split)
    graph = Partitioned(grid, GRAPH.A) if partitioned else Replicated(GRAPH.A, backend=grid.backend)
    sampler = GraphSage(graph, [6, 4], seed=2)
    X = dg.scatter(GRAPH.features, model.input_layout)
    return MinibatchTraining(model, X, targets, sampler, 60, 3, bulk=2)


@contextmanager
def trains(run: Any, monkeypatch: Any, before: Any = lambda number: None) -> Iterator[list[bool]]:
    """List of every minibatch that is trained whether features were under way; call ``before`` first."""
    seen: list[bool] = []
    whole = MinibatchTraining.propagate

    def propagate(self: Any, *arguments: Any) -> None:
        seen.append(progress.pending())
        before(len(seen) - 1)
        whole(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(MinibatchTraining, "propagate", propagate)
        yield seen


def nothing_is_abandoned(monkeypatch: Any) -> None:
    """Fail the test where messages are abandoned, though all ranks end alike."""

    def fail(self: Any) -> None:
        raise AssertionError("messages were abandoned")

    monkeypatch.setattr(Links, "fail", fail)


def numbers(run: Any) -> list[Any]:
    return [np.asarray(run.losses), *run.model.get_weights()]


def words(counted: Any) -> Counter[Any]:
    return Counter({(e["operation"], e["matrix"], e["group"]): e["words"] for e in counted.entries()})


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("partitioned", [False, True])
def test_numbers_and_words_are_those_without(
    comm: MPI.Intracomm, backend: Any, partitioned: bool, monkeypatch: Any
) -> None:
    for reps in (1, 2) if comm.size == 4 else (1,):
        found, counts, ahead = [], [], []
        for overlap in (False, True):
            run = training(comm, backend, overlap, partitioned, reps)
            with dg.Ledger() as counted, trains(run, monkeypatch) as seen:
                list(run.train(Adam(0.05), 2, eval_every=0))
            assert not under_way() and not run.grid.workspace._lent
            found.append(numbers(run))
            counts.append(words(counted))
            ahead.append(sum(seen))
            run.grid.free()
        for one, other in zip(*found, strict=True):
            assert np.array_equal(one, other)
        assert counts[0] == counts[1]
        features = sum(size for (_, matrix, _), size in counts[0].items() if matrix == "features")
        assert comm.allreduce(features) > 8192 * comm.size
        assert ahead[0] == 0
        if not backend.on_device:  # all but the last of an epoch, unless all have come; three ranks train
            assert comm.allreduce(ahead[1]) > 0


@pytest.mark.ranks(3)
def test_a_pause_leaves_nothing_under_way(comm: MPI.Intracomm, backend: Any, monkeypatch: Any) -> None:
    nothing_is_abandoned(monkeypatch)
    run = training(comm, backend, True)
    list(run.train(Adam(0.05), 1, eval_every=0))
    expected = numbers(run)
    run.grid.free()
    run = training(comm, backend, True)
    optimizer = Adam(0.05)
    pauses = iter([False, True])
    with pytest.raises(PausedError) as paused:
        list(run.train(optimizer, 1, eval_every=0, pause=lambda: next(pauses)))
    assert not under_way() and not progress.pending() and not run.grid.workspace._lent
    list(run.train(optimizer, 1, eval_every=0, begun=paused.value.begun))
    for one, other in zip(numbers(run), expected, strict=True):
        assert np.array_equal(one, other)
    run.grid.free()


@pytest.mark.ranks(3)
def test_updates_that_are_left_early_leave_nothing_under_way(
    comm: MPI.Intracomm, backend: Any, monkeypatch: Any
) -> None:
    nothing_is_abandoned(monkeypatch)
    run = training(comm, backend, True)
    for _ in range(3):
        updates = run.updates(Adam(0.05), 1)
        next(updates)
        updates.close()
        assert not under_way() and not progress.pending() and not run.grid.workspace._lent
    run.grid.free()


@pytest.mark.ranks(3)
def test_numbers_that_are_not_finite_leave_nothing_under_way(
    comm: MPI.Intracomm, backend: Any, monkeypatch: Any
) -> None:
    nothing_is_abandoned(monkeypatch)
    run = training(comm, backend, True)
    weights = run.model.layers[0].W.block
    weights[0, 0] = np.nan
    with pytest.raises(NotFiniteError, match="epoch 1"):
        list(run.train(Adam(0.05), 1, eval_every=0))
    assert not under_way() and not progress.pending()
    run.grid.world.gather_objects(0)  # communicators are those of before, and answer
    run.grid.free()


@pytest.mark.ranks(3)
@pytest.mark.abandons
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_of_one_rank_ends_all(
    comm: MPI.Intracomm, kind: Any, overlap: bool, monkeypatch: Any
) -> None:
    """In the middle of a minibatch, perhaps with features on their way: others hear of it, and none waits."""
    monkeypatch.setattr(progress, "LONG", 0.05)
    run = training(comm, backends.get("numpy"), overlap)
    expected = (run.model.A @ run.X).block.copy()
    for failed in range(comm.size):

        def fail(number: int, failed: int = failed) -> None:
            if number == 1 and run.grid.rank == failed:
                raise kind

        with trains(run, monkeypatch, fail), pytest.raises((kind, PeerError)) as error:
            list(run.train(Adam(0.05), 1, eval_every=0))
        assert (error.type is kind) == (run.grid.rank == failed)
        assert not progress.pending()
        np.testing.assert_array_equal((run.model.A @ run.X).block, expected)
    run.grid.free()
