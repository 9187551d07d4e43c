"""Dry runs in which products repeat others, beside dry runs of every product."""

from contextlib import nullcontext

import pytest

from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, grids
from distgnn.operators.algorithm import Algorithm
from distgnn.plan import Graph
from distgnn.plan.dry import run
from distgnn.plan.dry.run import dry_run
from distgnn.train.settings import Settings

SENT = [(name, False) for name in ALGORITHMS]
SENT += [(name, how) for name in SPARSITY_AWARE for how in (True, "cover")]
NETWORKS = (
    {"recipe": "plain", "hidden": (16, 16)}, {"hidden": (24, 16, 24), "train_features": True, "bias": True},
    {"recipe": "plain", "hidden": (16, 8), "product_order": "aggregate-first"},
    {"hidden": (16,) * 4, "recompute": 2},
    {"model": "sage", "hidden": (16, 16)}, {"hidden": (16, 16), "overlap": False, "wire": "bfloat16"},
    {"recipe": "plain", "hidden": (16, 16), "keep_aggregate": False, "dtype": "float64"},
)  # fmt: skip


def costs(settings, graph, ranks):
    """Return what the busiest rank is charged and holds, beginning with the steps of an epoch."""
    (found, *_) = dry_run(settings, graph, ranks, busiest=True).ranks
    books = found.setup, found.first, found.epoch, found.evaluation
    counted = [[entry | {"seconds": 0, "flight": 0} for entry in book.entries()] for book in books]
    return found.epoch.steps, counted, found.peak, [book.peak for book in books]


@pytest.mark.parametrize(("name", "aware"), SENT)
def test_steps_words_and_memory_are_those_of_every_product(name, aware, monkeypatch):
    ran: list[int] = []
    multiply = Algorithm.multiply
    monkeypatch.setattr(Algorithm, "multiply", lambda *given, **how: ran.append(1) or multiply(*given, **how))
    saved = 0
    for number, network in enumerate(NETWORKS):
        dtype = network.get("dtype", "float32")
        graph = Graph.of_size(4000, 90_000, 16, 5, symmetric=number % 3 < 2, dtype=dtype)
        if "model" in network and (aware == "cover" or name == "3d"):
            continue
        for grid in grids(name, 12)[:4]:
            settings = Settings(algorithm=name, grid=grid, sparsity_aware=aware, **network)
            ran.clear()
            with_repeats, so_many = costs(settings, graph, 12), len(ran)
            ran.clear()
            with monkeypatch.context() as patched:
                patched.setattr(run, "repeats", lambda model: nullcontext())
                every = costs(settings, graph, 12)
            for one, other in zip(with_repeats, every, strict=True):
                assert one == other, (network, grid)
            saved += len(ran) - so_many
    assert saved > 10 or name == "3d"  # of its layers, each has a matrix of its own
