"""Minibatches planned: words are a run's; the choice fits the memory, and a larger one would not."""

from __future__ import annotations

import json
import re
import weakref
from collections import Counter
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import distgnn as dg
from distgnn import cli
from distgnn.errors import UserError
from distgnn.gallery import rmat
from distgnn.ledger import Ledger
from distgnn.plan.dry.batches import nbytes_of
from distgnn.plan.minibatches import BULKS, plan_minibatches
from distgnn.plan.settle import settle
from distgnn.sampling.prices import DRAWS, Expected, Question
from distgnn.store import Store
from distgnn.train import Run
from distgnn.train.minibatch import STEPS, MinibatchTraining
from distgnn.train.settings import Settings

from ..train.stores import events, small_store
from ..train.stores import run as trained
from .machines import slow, written

SAMPLERS: dict[str, dict[str, Any]] = {
    "sage": {"fanout": (9, 7)}, "ladies": {"fanout": (256, 256)}, "fastgcn": {"fanout": (256, 256)},
    "saint": {"fanout": (500,)}, "cluster": {"parts": "random:1229"},
}  # fmt: skip
BATCHES: dict[str, Any] = {"hidden": (8,), "batch_size": 16, "partition_graph": True, "dropout": 0.0}


def settings(sampler: str = "sage", **changed: Any) -> Settings:
    given = BATCHES | SAMPLERS[sampler] | {"replication": "auto", "bulk": "auto"} | changed
    return Settings(sampler=sampler, **given)


@pytest.fixture(scope="module")
def store(tmp_path_factory: Any) -> Store:
    return Store(made(tmp_path_factory.mktemp("minibatches")))


def made(folder: Path) -> str:
    graph = rmat(1 << 11, degree=16, features=8, classes=5)
    dg.prepare(graph.A, graph.features, graph.labels, "0.6/0.2/0.2", out=folder / "graph.dg")
    return str(folder / "graph.dg")


def with_memory(nbytes: float) -> Any:
    return replace(slow(), memory=nbytes)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_words_are_those_of_an_epoch(comm: Any, sampler: str, shared_tmp_path: Path) -> None:
    """On 2 x 2 ranks, in the mean; the bulk of 3 is none of the turns' divisors."""
    path = made(shared_tmp_path) if comm.Get_rank() == 0 else ""
    path = comm.bcast(path)
    given = settings(sampler, replication=2, bulk=3, batch_size=40)  # of which all are drawn
    run = Run(path, given, comm)
    assert run.minibatches is not None
    epoch = run.minibatches.train(run.optimizer, 1, eval_every=0)
    with Ledger() as book:
        next(epoch)
    epoch.close()
    words: Counter[str] = Counter()
    for entries in comm.allgather(book.entries()):
        for e in entries:
            words.update({e["matrix"]: e["words"] / 4} if e["words"] else {})
    if comm.Get_rank() == 0:
        planned = plan_minibatches(given, Store(path), 4, slow()).choices[0]
        found = {matrix: float(number) for matrix, number in planned.price.by_matrix().items()}
        assert found.keys() == words.keys() >= {"rows", "adjacency", "features", "gradients"}
        assert found == pytest.approx(dict(words), rel=0.02)
    run.grid.free()


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("cut", [False, True])
def test_the_choice_fits_the_memory_and_a_larger_one_would_not(store: Store, sampler: str, cut: bool) -> None:
    given = settings(sampler, partition_graph=cut)
    memory = plan_minibatches(replace(given, bulk=3, replication=2), store, 4, slow()).choices[0].memory.peak
    chosen = plan_minibatches(given, store, 4, with_memory(memory)).choices
    assert {(choice.way.grid["reps"], choice.bulk >= 3) for choice in chosen} >= {(1, True), (2, True)}
    assert [choice.seconds for choice in chosen] == sorted(choice.seconds for choice in chosen)
    for choice in {choice.way.grid["reps"]: choice for choice in chosen}.values():
        one = replace(given, grid=dict(choice.way.grid), replication=None, bulk=choice.bulk + 1)
        larger = plan_minibatches(one, store, 4, slow()).choices[0].memory.peak
        assert choice.memory.peak <= memory < larger or choice.bulk == turns_of(store) // BULKS
        if larger > memory:
            with pytest.raises(UserError, match=f"^bulk={choice.bulk + 1}: .* bulk={choice.bulk} would do$"):
                plan_minibatches(one, store, 4, with_memory(memory))


def turns_of(store: Store) -> int:
    """Count the turns of 4 ranks, two for each update of 8 minibatches; there are as many parts as nodes."""
    batches = -(-int(store.manifest["split"]["train"]) // 16)
    return 2 * (batches // 8) + -(-(batches % 8) // 4)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("cut", [True, False])
def test_with_room_for_all_an_epoch_has_few_bulks(store: Store, overlap: bool, cut: bool) -> None:
    """One, where none is sampled behind training: without overlap, or without messages."""
    for choice in plan_minibatches(settings(partition_graph=cut, overlap=overlap), store, 4, slow()).choices:
        behind = overlap and (cut or choice.way.grid["rows"] > 1)
        assert choice.bulk == turns_of(store) // (BULKS if behind else 1)


def test_copies_move_fewer_features_and_a_bulk_fewer_rows(store: Store, monkeypatch) -> None:
    """A bulk: where whole rows travel, once for all its minibatches."""

    def of(c: int, k: int) -> dict[str, float]:
        one = plan_minibatches(settings("ladies", replication=c, bulk=k), store, 4, slow()).choices[0]
        return {matrix: float(number) for matrix, number in one.price.by_matrix().items()}

    assert of(2, 1)["features"] == pytest.approx(2 / 3 * of(1, 1)["features"])  # 1 - c/P of them
    assert "features" not in of(4, 1)
    monkeypatch.setattr("distgnn.sampling.prices.picked_by_owners", lambda *_: False)
    assert of(1, 8)["adjacency"] < 0.9 * of(1, 1)["adjacency"]


def test_a_bulk_takes_what_its_memory_was_planned_as(store: Store) -> None:
    """The blocks of the largest two bulks of an epoch that follow each other, byte by byte."""
    planned = plan_minibatches(settings(replication=1, bulk=4, partition_graph=False), store, 1, slow())
    run = Run(store, planned.choices[0].way.settings(replace(settings(), bulk=4, partition_graph=False)))
    assert run.minibatches is not None
    drawn = run.minibatches.sampler.sample_at(run.minibatches.minibatches.epoch(1), epoch=1)
    sizes = list(map(nbytes_of, drawn))
    most = max(sum(sizes[first : first + 8]) for first in range(0, len(sizes), 4))
    assert most <= planned.choices[0].memory.bulk <= 1.5 * most


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("bulk", [1, 4])
def test_bulks_that_are_held_are_planned(
    comm: Any, overlap: bool, bulk: int, shared_tmp_path: Path, monkeypatch: Any
) -> None:
    """Arrays of minibatches, and of what asks for their features, whenever one is trained."""
    path = made(shared_tmp_path) if comm.Get_rank() == 0 else ""
    path = comm.bcast(path)
    given = settings(replication=1, bulk=bulk, overlap=overlap)
    run = Run(path, given, comm)
    assert run.minibatches is not None
    arrays, held = list[Any](), list[int]()
    sampled, trained = MinibatchTraining._bulk, MinibatchTraining.propagate

    def watched(self: Any, *arguments: Any) -> Any:
        bulk = yield from sampled(self, *arguments)
        for _, sample, wanted in bulk:
            rows = wanted.rows
            known = [wanted.places, *rows.needed.values(), *rows.asked.values()]
            for block in () if sample is None else sample.blocks:
                known += [block.cols, block.indptr, block.indices, block.data]
            whole = [array if array.base is None else array.base for array in known if hasattr(array, "base")]
            arrays.extend({id(array): weakref.ref(array) for array in whole}.values())
        return bulk

    def counted(self: Any, *arguments: Any) -> None:
        live = {id(array): array.nbytes for ref in arrays if (array := ref()) is not None}
        held.append(sum(live.values()))
        trained(self, *arguments)

    monkeypatch.setattr(MinibatchTraining, "_bulk", watched)
    monkeypatch.setattr(MinibatchTraining, "propagate", counted)
    list(run.minibatches.train(run.optimizer, 1, eval_every=0))
    run.grid.free()
    most = comm.allreduce(max(held), MPI.MAX)
    if comm.Get_rank() == 0:
        planned = plan_minibatches(given, Store(path), comm.Get_size(), slow()).choices[0].memory.bulk
        assert 0.9 * most <= planned <= (1.9 if bulk == 1 else 1.5) * most
    comm.Barrier()


def test_rows_read_by_some_minibatches_are_the_mean_over_all_choices_of_them() -> None:
    r = np.random.default_rng(0)
    lengths, M = r.integers(1, 9, 30), 6
    sets = [np.unique(r.integers(0, 30, 12)) for _ in range(M)]
    expected = Expected([Question(DRAWS, ids, lengths[ids], 3, 5) for ids in sets], 30, int(lengths.sum()))
    for m in range(1, M + 1):
        times = [np.bincount(np.concatenate(some), minlength=30) for some in combinations(sets, m)]
        asked = expected.of(m)
        assert asked.distinct == pytest.approx(np.mean([np.count_nonzero(some) for some in times]))
        sent = [np.minimum(some * np.minimum(lengths, 3), lengths).sum() for some in times]
        assert asked.entries == pytest.approx(np.mean(sent))
        assert asked.vertices == pytest.approx(m * np.mean([ids.size for ids in sets]))
        assert asked.partial == 5 * m
    beyond = expected.of(20)
    assert expected.of(M).distinct <= beyond.distinct <= 30 and beyond.entries <= lengths.sum()


@pytest.mark.ranks(4)
def test_a_run_takes_what_is_planned_and_trains_the_same(comm: Any, shared_tmp_path: Path) -> None:
    path = made(shared_tmp_path) if comm.Get_rank() == 0 else ""
    path = comm.bcast(path)
    machine = written(shared_tmp_path, slow()) if comm.Get_rank() == 0 else ""
    machine = comm.bcast(machine)
    words: list[Any] = [path, "--partition-graph", "--dtype", "float64", "--hidden", 8, "--eval-every", 0]
    words += ["--sampler", "sage", "--fanout", "5,3", "--batch-size", 32, "--epochs", 2]
    logs = [shared_tmp_path / f"{name}.jsonl" for name in ("given", "auto")]
    trained(comm, *words, "--log", logs[0])
    chosen = ["--bulk", "auto", "--replication", "auto", "--machine", machine]
    trained(comm, *words, "--log", logs[1], *chosen)
    if comm.Get_rank() == 0:
        same: dict[str, Any] = {"fanout": (5, 3), "batch_size": 32, "dtype": "float64", "dropout": None}
        asked = settings("sage", **same)
        settled = settle(asked, path, 4, slow())
        start = events(logs[1], "run")[0]
        assert (start["grid"], start["config"]["bulk"]) == (settled.settings.grid, settled.settings.bulk)
        assert start["plan"]["seconds"] == settled.seconds
        losses = [[epoch["loss"] for epoch in events(log, "epoch")] for log in logs]
        np.testing.assert_allclose(*losses, rtol=1e-9)
    comm.Barrier()


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--bulk=0"], "--bulk: expected a whole number, at least 1, or auto, not '0'"),
        (["--replication=all"], "--replication: expected a whole number, at least 1, or auto, not 'all'"),
        (["--bulk=auto", "--replication=3"], "--replication 3: "),
        (["--bulk=auto", "--order=auto"], "of minibatches the grid and the bulk are planned, not the order"),
        (["--bulk=auto", "--fanout=5"], "--fanout 5: has 1 numbers for 2 layers"),
        (["--bulk=auto"], "minibatches are not planned: a plan reads the graph on one rank"),
    ],
)
def test_what_has_no_sense_is_refused_on_all_ranks(
    comm: Any, words: list[str], line: str, shared_tmp_path: Path
) -> None:
    path = small_store(shared_tmp_path, comm)
    if comm.Get_rank() == 0:
        written(shared_tmp_path, with_memory(100.0 if words == ["--bulk=auto"] else 1e9))
    comm.Barrier()
    machine = str(shared_tmp_path / "slow.toml")
    with pytest.raises((UserError, SystemExit)) as caught, redirect_stderr(StringIO()) as said:
        trained(comm, path, "--sampler", "sage", "--machine", machine, *words)
    text = said.getvalue() if isinstance(caught.value, SystemExit) else str(caught.value)
    assert line in text and "\n" not in text.strip()


def test_a_plan_of_minibatches_ends_in_a_command_that_trains_and_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, machine = small_store(tmp_path), written(tmp_path, slow())
    asked = f"plan {path} --ranks 1 --machine {machine} --sampler sage --fanout 3,2 --batch-size 4".split()
    assert cli.main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 110 for line in lines[:-1])
    heads = [line.split() for line in lines if line.startswith("   ")]
    assert heads[0] == ["grid", "bulk", "ms", *STEPS]
    assert heads[2][:3] == ["memory", "in", "all"]
    command = lines[-1].split(" distgnn ")[1].split()
    assert cli.main([*command, "--epochs", "1"]) == 0
    assert "equal those of a serial training" in capsys.readouterr().out
    assert cli.main([*asked, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["choices"][0]["bulk"] == int(command[command.index("--bulk") + 1])


@pytest.mark.parametrize(
    ("memory", "cut", "would"),
    [
        (0.9, True, r"a smaller batch_size or fanout|\d+ ranks would do"),
        (0.9, False, r"partition_graph=True would do|\d+ ranks would do"),
    ],
)
def test_what_would_do_where_nothing_fits(store: Store, memory: float, cut: bool, would: str) -> None:
    given = settings(partition_graph=cut, bulk=1)
    least = min(choice.memory.peak for choice in plan_minibatches(given, store, 4, slow()).choices)
    short = with_memory(memory * least)
    with pytest.raises(UserError, match=f"^no minibatch fits: 1.5d .* a rank needs .*; ({would})") as caught:
        plan_minibatches(replace(given, bulk="auto"), store, 4, short)
    if found := re.search(r"(\d+) ranks would do", str(caught.value)):
        ranks = int(found[1])
        assert plan_minibatches(replace(given, bulk="auto"), store, ranks, short).choices


def test_a_bulk_beyond_an_epoch_is_an_epoch(store: Store, tmp_path: Path, capsys: Any, caplog: Any) -> None:
    """Said once, and the command that trains has what is taken."""
    machine = written(tmp_path, slow())
    words = ["plan", str(store.path), "--machine", machine, "--sampler", "sage", "--batch-size", "16"]
    assert cli.main([*words, "--ranks", "4", "--partition-graph", "--bulk", "100000"]) == 0
    most = turns_of(store)
    assert f" --bulk {most} " in capsys.readouterr().out.splitlines()[-1]
    assert caplog.text.count(f"bulk=100000: taken as {most}, all minibatches of a rank in an epoch") == 1


@pytest.mark.parametrize("words", ["--ranks 2,4", "--ranks 4 --explain 1"])
def test_what_is_for_the_whole_graph_is_refused(store: Store, words: str, capsys: Any) -> None:
    asked = ["plan", str(store.path), "--machine", "perlmutter", "--sampler", "sage", *words.split()]
    assert cli.main(asked) == 2
    assert "is for the whole graph; minibatches are planned for one" in capsys.readouterr().err
