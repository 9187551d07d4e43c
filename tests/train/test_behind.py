"""The next bulk is sampled behind the training of one: the same numbers and words, whatever ends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from distgnn import gallery, progress
from distgnn.comm.flight import under_way
from distgnn.comm.links import Links
from distgnn.comm.steps import Steps
from distgnn.errors import PeerError
from distgnn.nn import GCN, Adam, NotFiniteError, SageMean
from distgnn.operators import make_grid
from distgnn.operators.moves import told
from distgnn.sampling import Cluster, FastGCN, GraphSage, Ladies, Partitioned, Replicated, Saint, Shadow
from distgnn.sampling.fetch import Coming, Features
from distgnn.sampling.sampler import Sampler
from distgnn.train import MinibatchTraining
from distgnn.train.behind import Behind
from distgnn.train.stopping import PausedError
from loops import each

N, WIDTH = 400, 12
GRAPH = gallery.rmat(N, degree=7, features=WIDTH, classes=4)
SPARSE = sp.csr_array(np.where(abs(GRAPH.features) > 0.4, GRAPH.features, 0))
SAMPLERS: dict[str, Callable[[Any], Sampler]] = {
    "sage": lambda graph: GraphSage(graph, [4, 3], seed=2),
    "ladies": lambda graph: Ladies(graph, [40, 30], seed=2),
    "fastgcn": lambda graph: FastGCN(graph, [40, 30], seed=2),
    "saint": lambda graph: Saint(graph, 60, 2, seed=2),
    "shadow": lambda graph: Shadow(graph, [3, 2], 2, seed=2),
    "cluster": lambda graph: Cluster(graph, 2, np.arange(N) % 24, seed=2),
}


def training(
    comm: Any, backend: Any, ahead: bool, name: str = "sage", cut: bool = True, reps: int = 1, bulk: int = 2,
    X: Any = GRAPH.features, size: int = 16,
) -> Any:  # fmt: skip
    """Make a training of some bulks in an epoch; features of the next minibatch travel in any case."""
    grid = make_grid(comm, "1.5d", {"rows": comm.size // reps, "reps": reps}, backend=backend)
    network: Any = SageMean if name == "sage" else GCN
    model = network(dg.distribute(GRAPH.A, grid, "1.5d"), [WIDTH, 8, 4], dropout=0.2)
    on = {"backend": grid.backend}
    graph = Partitioned(grid, GRAPH.A, **on) if cut else Replicated(GRAPH.A, **on)
    features, targets = dg.scatter(X, model.input_layout), model.targets(GRAPH.labels, GRAPH.split)
    sampler, size = SAMPLERS[name](graph), 2 if name == "cluster" else size
    run = MinibatchTraining(model, features, targets, sampler, size, comm.size, bulk=bulk)
    run.ahead = run.ahead and ahead
    return run


def watched(monkeypatch: Any) -> list[int]:
    """List, of every minibatch that is trained, how many steps of the next bulk were taken before."""
    taken, points = list[int](), Behind.go_on

    def go_on(self: Any) -> None:
        points(self)
        taken.append(0 if self.coming is None else self.coming.taken)

    monkeypatch.setattr(Behind, "go_on", go_on)
    return taken


def ended_by(comm: MPI.Intracomm, run: Any, monkeypatch: Any, failed: int, change: Any) -> None:
    """Train with this change on one rank, which has no memory then: all ranks end, and wait for nothing."""
    with monkeypatch.context() as patch, pytest.raises((MemoryError, PeerError)) as error:
        if comm.rank == failed:
            patch.setattr(*change)
        list(run.train(Adam(0.05), 1, eval_every=0))
    assert (error.type is MemoryError) == (comm.rank == failed)
    assert not progress.pending()


def numbers(run: Any) -> list[Any]:
    return [np.asarray(run.losses), *run.model.get_weights()]


def counts(counted: Any) -> Counter[Any]:
    keys = {(e["operation"], e["matrix"], e["group"]): (e["words"], e["messages"]) for e in counted.entries()}
    return Counter({(*key, kind): each[kind] for key, each in keys.items() for kind in (0, 1)})


def nothing_left(run: Any) -> bool:
    return not (under_way() or progress.pending() or run.grid.workspace._lent)


def nothing_is_abandoned(monkeypatch: Any) -> None:
    """Fail the test where messages are abandoned, though all ranks end alike."""

    def fail(self: Any) -> None:
        raise AssertionError("messages were abandoned")

    monkeypatch.setattr(Links, "fail", fail)


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("cut", [True, False])
@each("name, bulk", [*((name, 2) for name in SAMPLERS), ("sage", 1), ("sage", 30), ("ladies", 1)])
def test_numbers_words_and_messages_are_those_without(
    comm: MPI.Intracomm, backend: Any, cut: bool, name: str, bulk: int, monkeypatch: Any
) -> None:
    for reps in (1, 2) if comm.size == 4 else (1,):
        found, charged, taken = [], [], []
        for ahead in (False, True):
            run = training(comm, backend, ahead, name, cut, reps, bulk)
            with dg.Ledger(timing=True) as counted, monkeypatch.context() as patch:
                taken.append(watched(patch))
                list(run.train(Adam(0.05), 1, eval_every=0))
            assert nothing_left(run)
            found.append(numbers(run))
            charged.append(counts(counted))
            run.grid.free()
        for one, other in zip(*found, strict=True):
            assert np.array_equal(one, other)
        assert charged[0] == charged[1]
        assert not any(taken[0])
        travels = comm.size > 1 and (cut or reps < comm.size)
        assert any(taken[1]) == (travels and bulk < len(run.turns))
        assert comm.allgather(taken[1]) == [taken[1]] * comm.size  # all take as many steps at each point


@pytest.mark.ranks(3)
def test_steps_are_spread_over_the_minibatches(comm: MPI.Intracomm, backend: Any, monkeypatch: Any) -> None:
    """At each point as many as are due, and before the next bulk is used none is left."""
    run = training(comm, backend, True, bulk=3, size=8)
    taken = watched(monkeypatch)
    list(run.train(Adam(0.05), 1, eval_every=0))
    steps = 4 * 2 + 2  # of two layers, and for the features
    assert len(run.turns) > 6  # before the first one, the first minibatch of the first bulk is asked for
    assert taken[:7] == [-(-steps * point // 7) for point in range(1, 8)]
    assert taken[7:16] == [-(-steps * point // 9) for point in range(1, 10)]
    run.grid.free()


def test_bulks_are_made_one_ahead() -> None:
    """No third bulk begins while one is used, and items are let go when they have been given."""
    begun = list[int]()

    def made(number: int) -> Steps[list[Any]]:
        begun.append(number)
        yield
        yield
        return [(number, item) for item in range(2)]

    for ahead in (True, False):
        begun.clear()
        with Behind((made(number) for number in range(3)), ahead) as behind:
            for number, item in behind:
                assert len(begun) == min(number + 1 + (ahead and item > 0), 3)
                behind.go_on()
                assert len(begun) == min(number + 1 + ahead, 3)
                behind.go_on()
        assert begun == [0, 1, 2]


@pytest.mark.ranks(2, 3)
def test_sparse_features_travel_while_a_minibatch_trains(
    comm: MPI.Intracomm, backend: Any, monkeypatch: Any
) -> None:
    found, travelled = [], []
    whole = MinibatchTraining.propagate
    for overlap in (False, True):
        run = training(comm, backend, False, cut=False, X=SPARSE)
        run.grid.overlap, pending = overlap, list[bool]()

        def propagate(self: Any, *arguments: Any, pending: Any = pending) -> None:
            pending.append(progress.pending())
            whole(self, *arguments)

        with dg.Ledger() as counted, monkeypatch.context() as patch:
            patch.setattr(MinibatchTraining, "propagate", propagate)
            list(run.train(Adam(0.05), 2, eval_every=0))
        assert nothing_left(run)
        found.append([*numbers(run), counts(counted)])
        travelled.append(comm.allreduce(sum(pending)))
        run.grid.free()
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)
    assert travelled[0] == 0 and (backend.on_device or travelled[1] > 0)


@pytest.mark.ranks(2, 3)
@each("sparse", [False, True])
def test_a_pause_leaves_nothing_under_way(
    comm: MPI.Intracomm, backend: Any, sparse: bool, monkeypatch: Any
) -> None:
    nothing_is_abandoned(monkeypatch)
    given = {"X": SPARSE} if sparse else {}
    run = training(comm, backend, True, "ladies", **given)
    list(run.train(Adam(0.05), 1, eval_every=0))
    expected, updates = numbers(run), len(run.losses)
    run.grid.free()
    for pause in (1, 2, updates - 1):
        run, optimizer = training(comm, backend, True, "ladies", **given), Adam(0.05)
        pauses = iter([False] * (pause - 1) + [True])
        with pytest.raises(PausedError) as paused:
            list(run.train(optimizer, 1, eval_every=0, pause=lambda pauses=pauses: next(pauses)))
        assert nothing_left(run)
        list(run.train(optimizer, 1, eval_every=0, begun=paused.value.begun))
        for one, other in zip(numbers(run), expected, strict=True):
            assert np.array_equal(one, other)
        run.grid.free()


@pytest.mark.ranks(3)
@pytest.mark.abandons
def test_an_error_of_one_rank_between_updates_ends_all(comm: MPI.Intracomm, monkeypatch: Any) -> None:
    """A caller's function may fail. Its rank waits for nothing that others would send later."""
    monkeypatch.setattr(progress, "LONG", 0.05)
    run = training(comm, "numpy", True, "ladies")
    expected = (run.model.A @ run.X).block.copy()
    for failed in range(comm.size):
        with pytest.raises((ZeroDivisionError, PeerError)) as error, told(run.grid):
            with closing(run.updates(Adam(0.05), 1)) as updates:
                for number, _ in enumerate(updates):
                    if number == 1 and run.grid.rank == failed:
                        raise ZeroDivisionError
        assert (error.type is ZeroDivisionError) == (run.grid.rank == failed)
        assert not progress.pending()
        np.testing.assert_array_equal((run.model.A @ run.X).block, expected)
    run.grid.free()


@pytest.mark.ranks(3)
@pytest.mark.abandons
@each("given", ["before", "pause"])
def test_an_error_of_a_function_that_is_called_in_an_epoch_ends_all(
    comm: MPI.Intracomm, monkeypatch: Any, given: str
) -> None:
    monkeypatch.setattr(progress, "LONG", 0.05)
    run = training(comm, "numpy", True, "ladies")
    for failed in range(comm.size):

        def fails(*_: Any, failed: int = failed) -> bool:
            if run.grid.rank == failed:
                raise ZeroDivisionError
            return False

        with pytest.raises((ZeroDivisionError, PeerError)) as error:
            list(run.train(Adam(0.05), 2, eval_every=0, **{given: fails}))
        assert (error.type is ZeroDivisionError) == (run.grid.rank == failed)
        assert not progress.pending()
    run.grid.free()


@pytest.mark.ranks(3, 4)
@pytest.mark.abandons
@pytest.mark.parametrize("cut", [True, False])
@each("name", SAMPLERS)
def test_a_rank_without_memory_in_a_step_ends_all(
    comm: MPI.Intracomm, cut: bool, name: str, monkeypatch: Any
) -> None:
    """In the first bulk, and in the second while a minibatch trains: in the sampler, or with the features."""
    monkeypatch.setattr(progress, "LONG", 0.05)
    run = training(comm, "numpy", True, name, cut, reps=2 if comm.size == 4 else 1)
    expected = (run.model.A @ run.X).block.copy()
    places = [(Cluster, "_drawn") if name == "cluster" else (Sampler, "keys"), (Features, "wanted")]
    of_a_bulk = 2 if name in ("sage", "ladies", "fastgcn", "shadow") else 1
    for failed, (owner, place), most in [
        (1, places[0], 0), (0, places[0], of_a_bulk), (comm.size - 1, places[1], run.bulk)
    ]:  # fmt: skip
        calls, whole = [0], getattr(owner, place)

        def failing(*arguments: Any, calls: Any = calls, whole: Any = whole, most: int = most) -> Any:
            calls[0] += 1
            if calls[0] > most:
                raise MemoryError
            return whole(*arguments)

        ended_by(comm, run, monkeypatch, failed, (owner, place, failing))
        np.testing.assert_array_equal((run.model.A @ run.X).block, expected)
    run.grid.free()


@pytest.mark.ranks(3)
@each("sparse", [False, True])
def test_a_loss_that_is_not_finite_leaves_nothing_under_way(
    comm: MPI.Intracomm, sparse: bool, monkeypatch: Any
) -> None:
    """All ranks raise the same, with the next bulk and the next features under way."""
    nothing_is_abandoned(monkeypatch)
    run = training(comm, "numpy", True, "ladies", X=SPARSE if sparse else GRAPH.features)
    whole = MinibatchTraining.propagate

    def propagate(self: Any, sample: Any, H: Any, step: int, sums: Any) -> None:
        whole(self, sample, H, step, sums)
        sums.loss += np.nan

    monkeypatch.setattr(MinibatchTraining, "propagate", propagate)
    with pytest.raises(NotFiniteError):
        list(run.train(Adam(0.05), 1, eval_every=0))
    assert nothing_left(run)
    run.grid.free()


@pytest.mark.ranks(3)
@pytest.mark.abandons
@each("sparse", [False, True])
def test_a_rank_that_fails_beside_the_steps_ends_all(
    comm: MPI.Intracomm, sparse: bool, monkeypatch: Any
) -> None:
    """No bulk is under way: with the first features, as they are taken, and in an update."""
    monkeypatch.setattr(progress, "LONG", 0.05)
    run = training(comm, "numpy", False, X=SPARSE if sparse else GRAPH.features)
    X = dg.scatter(GRAPH.features, run.model.input_layout)
    expected = (run.model.A @ X).block.copy()
    places = [(Coming, "_begin"), (Coming, "take"), (MinibatchTraining, "_update")]
    for failed, (owner, place) in enumerate(places):

        def failing(*_: Any) -> None:
            raise MemoryError

        ended_by(comm, run, monkeypatch, failed, (owner, place, failing))
        np.testing.assert_array_equal((run.model.A @ X).block, expected)
    run.grid.free()


@pytest.mark.ranks(2)
def test_seconds_are_of_the_steps(comm: MPI.Intracomm, monkeypatch: Any) -> None:
    """Sampling has its own seconds in the ledger, without those of the training between its steps."""
    run = training(comm, "numpy", True, bulk=3)
    whole = MinibatchTraining.propagate

    def propagate(self: Any, *arguments: Any) -> None:
        with dg.ledger.timed("training", "propagate"):
            whole(self, *arguments)

    monkeypatch.setattr(MinibatchTraining, "propagate", propagate)
    for record in run.train(Adam(0.05), 1, eval_every=0, timing=True):
        phases = record["phases"]
        assert phases["sampling"] > 0 and phases["training"] > 0
        assert sum(phases.values()) == pytest.approx(record["seconds"])  # none counts twice
    run.grid.free()
