"""Dry runs of graph attention are charged what runs are."""

from __future__ import annotations

import pytest

from chosen_grids import wide
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE
from distgnn.plan import dry_run
from distgnn.train.settings import Settings

from .test_dry_run import compare, graph

WAYS = [(name, False) for name in ALGORITHMS] + [(name, True) for name in SPARSITY_AWARE]


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(("algorithm", "aware"), WAYS)
def test_a_run_is_charged_what_was_planned(comm, algorithm, aware):
    grid = wide(algorithm, comm.Get_size())
    for model in ("gat", "gatv2"):
        options = {"grid": grid, "sparsity_aware": aware, "model": model, "attention_dropout": 0.5}
        compare(comm, Settings(algorithm=algorithm, hidden=(16, 8), **options), graph())


@pytest.mark.parametrize("model", ["gat", "gatv2"])
def test_an_evaluation_without_dropped_attention_is_no_part_of_an_epoch(model):
    network = {"model": model, "hidden": (8,), "dropout": 0.0, "attention_dropout": 0.5}
    ways = (Settings(algorithm="1d", eval_every=every, **network) for every in (0, 1))
    words = [[costs.epoch.words for costs in dry_run(way, graph(), 4).ranks] for way in ways]
    assert words[0] == words[1]
