"""Subgraphs of drawn vertices planned: sizes and words are a run's; what is chosen fits beside the graph."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distgnn import cli
from distgnn.errors import UserError
from distgnn.ledger import Ledger
from distgnn.plan.dry.batches import scored
from distgnn.plan.dry.graphs import Graph
from distgnn.plan.settle import settle
from distgnn.plan.subgraphs import drawn, plan_subgraphs
from distgnn.sampling.ids import Ids
from distgnn.store import Store
from distgnn.train import Run
from distgnn.train.resolve import resolved, to_plan
from distgnn.train.settings import Settings
from distgnn.train.vertices import Vertices

from ..train.stores import events, small_store
from ..train.stores import run as trained
from .machines import slow, written
from .test_minibatches import made

GIVEN: dict[str, Any] = {"sampler": "vertices", "hidden": (8,), "batch_size": 500, "dropout": 0.0}


@pytest.fixture(scope="module")
def store(tmp_path_factory: Any) -> Store:
    return Store(made(tmp_path_factory.mktemp("subgraphs")))


def asked(ranks: int, **changed: Any) -> Settings:
    settings = to_plan(Settings(**(GIVEN | {"algorithm": "auto"} | changed)), ranks)
    assert settings is not None
    return settings


@pytest.mark.parametrize("size", [1, 64, 512, 2048])
def test_a_step_is_expected_to_have_so_many_entries(store: Store, size: int) -> None:
    """In the mean over all steps of ten epochs, with the diagonal apart."""
    A = store.order().block((0, store.n), (0, store.n)).tocsr()
    planned = drawn(Graph.of_store(store, exact=False), size)
    vertices = Vertices(Ids(store.n, None), size)
    steps = [part for epoch in range(10) for part in vertices.epoch(epoch)][: 2 * store.n // size]
    entries, loops = [], []
    for part in steps:
        inside = A[part][:, part]
        entries.append(inside.nnz)
        loops.append(np.count_nonzero(inside.diagonal()))
    assert planned.n == size == planned.source.shape[1] and planned.counts[1] >= 1
    assert planned.nnz == pytest.approx(np.mean(entries), rel=0.08)
    assert planned.loops == pytest.approx(np.mean(loops), rel=0.02)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("algorithm", ["1d", "2d", "3d-split", "3d", "rdm"])
def test_words_are_those_of_a_step(comm: Any, algorithm: str, shared_tmp_path: Path) -> None:
    """No less than the mean rank of a run has, and no more than the one with most, but for 5 %."""
    path = made(shared_tmp_path) if comm.Get_rank() == 0 else ""
    path = comm.bcast(path)
    given = Settings(**GIVEN, algorithm=algorithm)
    run = Run(path, given, comm)
    assert run.minibatches is not None
    epochs = run.minibatches.train(run.optimizer, 1, eval_every=0)
    with Ledger() as book:
        next(epochs)
    epochs.close()
    words = comm.allgather(sum(e["words"] for e in book.entries()))
    if comm.Get_rank() == 0:
        planned = plan_subgraphs(replace(given, grid=run.grid.shape), Store(path), 4, slow())
        choice = planned.step.best
        assert planned.steps == 5 and planned.size == 410 and choice.way.grid == run.grid.shape
        found = planned.steps * max(choice.by_rank(lambda costs: costs.epoch.words))
        assert 0.95 * np.mean(words) <= found <= 1.05 * max(words) <= 1.3 * np.mean(words)
    run.grid.free()


def test_what_is_chosen_fits_beside_the_whole_graph(store: Store) -> None:
    """A little less memory than all ways need leaves out some of them, and very little all."""
    whole = plan_subgraphs(asked(4), store, 4, slow())
    algorithms = {choice.way.algorithm for choice in whole.step.choices}
    assert algorithms == {"1d", "1.5d", "2d", "3d-split", "3d", "rdm"} and not whole.step.infeasible
    graph = store.nnz * 8 // 4  # of a rank that has its share, by 1D
    short = plan_subgraphs(asked(4), store, 4, replace(slow(), memory=3 * graph))
    left_out = {way.way.algorithm for way in short.step.infeasible}
    assert "1.5d" in left_out and "1d" in {choice.way.algorithm for choice in short.step.choices}
    assert all(way.peak > 3 * graph for way in short.step.infeasible)
    for memory in (0.5, 1.9):
        with pytest.raises(UserError, match="^no subgraph fits: .* a rank needs .*; more ranks, or memory"):
            plan_subgraphs(asked(4), store, 4, replace(slow(), memory=memory * graph))
    one = plan_subgraphs(asked(4, algorithm="2d", grid="auto"), store, 4, slow())
    assert {choice.way.algorithm for choice in one.step.choices} == {"2d"}


def test_a_rank_has_memory_for_a_step_beside_the_graph_and_for_scores(store: Store) -> None:
    """The larger of both counts: scores of all nodes where steps are small. A byte less leaves a way out."""
    graph, larger = Graph.of_store(store, exact=False, layers=2), set[bool]()
    for size in (20, store.n):
        given = asked(4, batch_size=size, algorithm="2d", grid="auto")
        for choice in plan_subgraphs(given, store, 4, slow()).step.choices:
            settings = resolved(choice.way.settings(given), 4)
            held, scores = (sum(books.values()) for books in scored(settings, graph, 4))
            step = held + max(choice.peak_bytes)
            larger.add(scores > step)
            asked_of = replace(given, grid=choice.way.grid)
            plan_subgraphs(asked_of, store, 4, replace(slow(), memory=max(step, scores)))
            with pytest.raises(UserError, match="beside the whole graph"):
                plan_subgraphs(asked_of, store, 4, replace(slow(), memory=max(step, scores) - 1))
    assert larger == {False, True}


def test_a_step_may_have_fewer_nodes_than_there_are_ranks(store: Store) -> None:
    """A step of a run may, too. Its plan has a node for each rank."""
    planned = plan_subgraphs(asked(16, batch_size=3), store, 16, slow())
    assert planned.size == 3 and planned.steps == -(-store.n // 3) and planned.step.choices
    more = asked(store.n + 1, batch_size=3, algorithm="2d", grid="auto")
    with pytest.raises(UserError, match=f"ranks are more than the graph has nodes, {store.n}$"):
        plan_subgraphs(more, store, store.n + 1, slow())


def test_an_epoch_has_its_steps_and_draws(store: Store) -> None:
    """Seconds are as many steps, and what draws take, which copies of the graph multiply."""
    planned = plan_subgraphs(asked(4), store, 4, slow())
    for choice in planned.step.choices:
        phases = planned.phases(choice)
        copies = choice.way.grid.get("reps", 1)
        assert phases["sampling"] == pytest.approx(copies * planned.drawing) and planned.drawing > 0
        assert sum(phases.values()) == pytest.approx(5 * choice.seconds + phases["sampling"])
    settled = settle(Settings(**GIVEN, algorithm="auto"), store, 4, slow())
    best = planned.step.best
    assert settled.way == best.way and settled.seconds == sum(planned.phases(best).values())
    assert "minibatches at a time" not in str(settled)
    assert settle(Settings(**GIVEN, algorithm="2d"), store, 4, slow()).way is None


@pytest.mark.ranks(4)
def test_a_run_takes_what_is_planned_and_trains_the_same(comm: Any, shared_tmp_path: Path) -> None:
    path = small_store(shared_tmp_path, comm)
    machine = written(shared_tmp_path, slow()) if comm.Get_rank() == 0 else ""
    machine = comm.bcast(machine)
    words: list[Any] = [path, "--sampler", "vertices", "--batch-size", 20, "--dtype", "float64"]
    logs = [shared_tmp_path / f"{name}.jsonl" for name in ("given", "auto")]
    words += ["--epochs", 2]
    trained(comm, *words, "--algorithm", "2d", "--log", logs[0])
    trained(comm, *words, "--algorithm", "auto", "--machine", machine, "--log", logs[1], planned=True)
    if comm.Get_rank() == 0:
        start = events(logs[1], "run")[0]
        assert start["plan"]["seconds"] > 0 and start["plan"]["phases"]["sampling"] > 0
        assert start["config"]["batch_size"] == 20 and start["config"]["sampler"] == "vertices"
        losses = [[epoch["loss"] for epoch in events(log, "epoch")] for log in logs]
        np.testing.assert_allclose(*losses, rtol=1e-9)
    comm.Barrier()


def test_a_plan_ends_in_a_command_that_trains_and_checks(tmp_path: Path, capsys: Any) -> None:
    path, machine = small_store(tmp_path), written(tmp_path, slow())
    words = f"plan {path} --ranks 1 --machine {machine} --sampler vertices --batch-size 20".split()
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 110 for line in lines[:-1])
    assert "An epoch of choice 1 has 3 steps of up to 20 nodes and takes" in "".join(lines)
    command = lines[-1].split(" distgnn ")[1].split()
    assert cli.main([*command, "--epochs", "1"]) == 0
    assert "equal those of a serial training" in capsys.readouterr().out
    assert cli.main([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["steps"], record["nodes_of_step"]) == (3, 20)
    assert len(record["epoch_seconds"]) == len(record["choices"])


def test_subgraphs_of_single_nodes_are_not_planned(tmp_path: Path, capsys: Any) -> None:
    words = f"plan {small_store(tmp_path)} --ranks 2 --machine perlmutter --sampler shadow"
    assert cli.main(words.split()) == 2
    said = capsys.readouterr().err
    assert "--sampler shadow: is not planned; give numbers for bulk and replication" in said
