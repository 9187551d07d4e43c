"""Dry runs of networks whose nodes may have several classes are charged what runs are."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import distgnn as dg
from chosen_grids import wide
from distgnn import cli
from distgnn.errors import ArgumentError
from distgnn.plan import Graph, dry_run
from distgnn.train.settings import Settings

from ..nn.problem import Problem
from ..train.test_multilabel_job import several
from .test_dry_run import HIDDEN, WAYS, compare


def graph():
    p = Problem()
    rows = (np.random.default_rng(2).random((p.n, p.classes)) < 0.4).astype(np.int8)
    rows[p.labels < 0] = -1
    return Graph.known(abs(p.A), p.width, p.classes, rows, p.split)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(("algorithm", "aware"), WAYS)
@pytest.mark.slow
def test_a_run_is_charged_what_was_planned(comm, algorithm, aware):
    grid = wide(algorithm, comm.Get_size())
    settings = Settings(algorithm=algorithm, grid=grid, sparsity_aware=aware, **HIDDEN)
    for metric in ("f1", "rocauc"):
        compare(comm, replace(settings, metric=metric), graph())


@pytest.mark.ranks(3)
@pytest.mark.slow
def test_so_are_minibatches(comm):
    settings = Settings(sampler="sage", fanout=[4, 3, 2], batch_size=3, replication=1, **HIDDEN)
    compare(comm, settings, graph())


@pytest.mark.slow
def test_graphs_of_which_only_sizes_are_known(tmp_path):
    """One word for the loss where softmax needs two of every training node; areas bring whole columns."""
    settings, losses = Settings(algorithm="2d", grid="2x2", hidden=8), {}
    for multilabel, metric in ((False, None), (True, None), (True, "rocauc")):
        uniform = Graph.of_size(1200, 24_000, 8, 4, trained=0.5, multilabel=multilabel)
        costs = dry_run(replace(settings, metric=metric), uniform, 4, False).ranks[0]
        assert costs.peak.get("labels", 0) == (2 * 300 * 2 + 600 * 9 * (metric is not None)) * multilabel
        found = [costs.setup, costs.evaluation]
        losses[multilabel, metric] = [
            sum(entry["words"] for entry in book.entries() if entry["matrix"] == "loss") for book in found
        ]
    assert losses[True, None][1] == round(12 * 3 / 2) < losses[False, None][1]
    setup, evaluation = (a - b for a, b in zip(losses[True, "rocauc"], losses[True, None], strict=True))
    assert (setup, evaluation) == (300 + 300, 300 + (8 - 12) * 3 // 2)  # labels and parts; logits of others
    with pytest.raises(ArgumentError, match="metric=f1: one class of a node has accuracy"):
        dry_run(replace(settings, metric="f1"), Graph.of_size(100, 500, 8, 4), 4)


def test_a_store_is_planned(tmp_path, capsys):
    store = several(tmp_path)
    how = ["plan", store, "--ranks", "4", "--machine", "infiniband-cpu", "--json", "--order", "random"]
    how += ["--algorithm", "2d", "--grid", "2x2"]
    assert cli.main([*how, "--metric", "rocauc"]) == 0
    assert json.loads(capsys.readouterr().out)["graph"]["multilabel"] is True
    assert cli.main([*how, "--metric", "accuracy"]) == 2
    assert "--metric accuracy: several classes of a node have f1 and rocauc" in capsys.readouterr().err
    rough = Graph.of_store(dg.Store(store), "random", exact=False)
    assert rough.multilabel and dry_run(Settings(metric="rocauc"), rough, 2).ranks[0].epoch.words > 0
