"""A dry run is charged what a run is, on every rank; arrays without numbers cost nothing."""

import numpy as np
import pytest
from nn.problem import Problem, some_grids

from distgnn import ledger
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE
from distgnn.plan import Graph, count, dry_run
from distgnn.train.settings import Settings

WIDTHS = [11, 8, 7, 5]
CASES = {
    "plain": {},
    "dropout": {"dropout": 0.5, "bias": True, "optimizer": "sgd"},
    "trained features": {"train_features": True, "overlap": False, "product_order": "aggregate-first"},
}


def graph(symmetric=False):
    p = Problem()
    return Graph.known(p.A + p.A.T if symmetric else p.A, p.labels, p.split, np.float32)


def entries(book):
    """What is counted, by key, but for what a rank does alone where nothing travels."""
    counted = "phase operation group matrix calls messages words bytes flops".split()
    return [tuple(entry[name] for name in counted) for entry in book.entries() if entry["group"] != "self"]


def summary(costs):
    books = {"setup": costs.setup, "first": costs.first, "epoch": costs.epoch, "evaluation": costs.evaluation}
    return {name: entries(book) for name, book in books.items()}


def run(comm, *what):
    """The real ranks' costs, in books of their own: other tests hold memory, too."""
    before = ledger.switch(ledger.books())
    try:
        return count(comm, "numpy", *what)
    finally:
        ledger.switch(before)


def compare(comm, *what):
    """Costs of this real rank and of the virtual one of its number: equal, and so is memory within 5 %."""
    planned = None
    if comm.Get_rank() == 0:
        planned = [(summary(c), c.peak) for c in dry_run(what[0], what[1], comm.Get_size(), what[2]).ranks]
    expected, peak = comm.bcast(planned)[comm.Get_rank()]
    real = run(comm, *what)
    assert summary(real) == expected
    total = sum(real.peak.values())
    assert abs(sum(peak.values()) - total) <= 0.05 * total
    assert {name for name, size in peak.items() if size} == {name for name, size in real.peak.items() if size}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_is_charged_what_was_planned(comm, algorithm, case):
    for grid in some_grids(algorithm, comm.Get_size()):
        compare(comm, Settings(algorithm=algorithm, grid=grid, **CASES[case]), graph(), WIDTHS)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("algorithm", SPARSITY_AWARE)
def test_the_same_where_only_needed_rows_travel(comm, algorithm, case):
    for grid in some_grids(algorithm, comm.Get_size()):
        settings = Settings(algorithm=algorithm, grid=grid, sparsity_aware=True, **CASES[case])
        compare(comm, settings, graph(), WIDTHS)
