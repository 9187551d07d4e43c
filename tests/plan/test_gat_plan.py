"""Dry runs of graph attention are charged what runs are."""

from __future__ import annotations

import pytest

from chosen_grids import wide
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE
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
