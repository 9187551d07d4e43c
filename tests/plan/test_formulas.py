"""The price of an epoch against dry runs, and explanations of a choice."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, grids
from distgnn.plan import Graph, dry_run
from distgnn.plan.choices import plan
from distgnn.plan.explain import explain
from distgnn.plan.formulas import epoch, formula, link
from distgnn.plan.machine import Level, read
from distgnn.plan.tables import explanation
from distgnn.train.settings import Settings

from .machines import slow

MACHINE = read("perlmutter")
N, F, L, NNZ = 4096, 16, 3, 4096 * 20
GRAPH = Graph.of_size(N, NNZ, F, F)
WAYS = [(name, False) for name in ALGORITHMS] + [(name, True) for name in SPARSITY_AWARE]
LEFT_OUT = ("loss",)


def known(n=60, directed=True):
    A = sp.random_array((n, n), density=0.08, rng=np.random.default_rng(1), format="csr", dtype=np.float32)
    A = A if directed else (A + A.T).tocsr()
    return Graph.known(A, 12, 5, np.arange(n) % 5, np.ones(n, np.uint8))


def check_epochs(settings, graph, ranks):
    """Check that every rank of a dry run is charged the price of its epoch; return the dry run."""
    dry = dry_run(settings, graph, ranks, False, evaluation=False)
    for costs in dry.ranks:
        price = epoch(costs.model, bool(settings.train_features))
        charged = {matrix: words for matrix, words in costs.words.items() if matrix not in LEFT_OUT}
        said = {matrix: round(words) for matrix, words in price.by_matrix().items()}
        for matrix in {*said, *charged}:  # the ledger rounds by operation
            assert abs(said.get(matrix, 0) - charged.get(matrix, 0)) <= 2, (settings.grid, said, charged)
        entries = (e for e in costs.epoch.entries() if e["matrix"] not in LEFT_OUT)
        assert price.messages == sum(e["messages"] for e in entries if e["phase"] == "comm"), settings.grid
    return dry


@pytest.mark.parametrize(("algorithm", "aware"), [*WAYS, *((name, "cover") for name in SPARSITY_AWARE)])
def test_an_epoch_costs_its_price_on_every_rank(algorithm, aware):
    """Graphs are directed, or symmetric; A X is kept, features are trained, there are biases, dropout."""
    more = [{}, {"train_features": True}, {"bias": True}, {"dropout": 0.5, "bias": True}]
    for number, grid in enumerate([*grids(algorithm, 4), *grids(algorithm, 6)[:3]]):
        network = {"recipe": "plain", "hidden": (9, 8)} | more[number % 4]
        settings = Settings(algorithm=algorithm, sparsity_aware=aware, grid=grid, **network)
        ranks = int(np.prod([*grid.values()]))
        check_epochs(settings, known(directed=number % 2 == 0), ranks)


@pytest.mark.parametrize(("algorithm", "aware"), [(name, False) for name in ALGORITHMS] + [("rdm", True)])
def test_so_do_layers_that_are_gone_through_again(algorithm, aware):
    network = {"recipe": "plain", "recompute": 2, "hidden": (9, 8, 12, 7, 8)}
    for more in ({}, {"product_order": "aggregate-first", "dropout": 0.5, "recompute": 3}):
        how = {"algorithm": algorithm, "sparsity_aware": aware, "grid": grids(algorithm, 4)[-1]}
        check_epochs(Settings(**how, **network | more), known(), 4)


@pytest.mark.parametrize(("algorithm", "aware"), WAYS)
def test_of_a_graph_of_numbers_it_does_too(algorithm, aware):
    settings = Settings(algorithm=algorithm, sparsity_aware=aware, recipe="plain", hidden=(F, F))
    check_epochs(settings, GRAPH, 4)


def test_a_price_worked_out_by_hand():
    """1D on 4 ranks, CAGNET IV-A: L layers of n f (P-1)/P words forward and back, and 2 (P-1)/P f f of dW."""
    settings = Settings(algorithm="1d", recipe="plain", hidden=(F, F), train_features=True)
    for costs in check_epochs(settings, GRAPH, 4).ranks:
        price = epoch(costs.model, True).by_matrix()
        assert price == {"H": 2 * L * N * F * 3 // 4, "gradients": Fraction(2 * 3, 4) * L * F * F}
        one = replace(MACHINE, levels=[Level("one", None, 1e-6, 1e9)])
        found = formula(costs, True, False, one, {"rows": 4})
        words = sum(price.values())
        assert found.section == "CAGNET, SC'20, IV-A, Algorithm 1" and "n f (P-1)/P" in found.text
        assert found.seconds == pytest.approx(1e-6 * found.messages + 4 * float(words) / 1e9)


@pytest.mark.parametrize("more", [{"model": "gat"}, {"model": "sage"}])
def test_other_layers_have_no_price_and_their_explanation_says_so(more):
    asked = plan(Settings(algorithm="1d", hidden=(F,), **more), {None: GRAPH}, 4, MACHINE)
    found = explain(asked, asked.best)
    assert found.formula is None and found.record()["formula"] is None
    assert explanation(found, 1).endswith("No price for these layers: the dry run alone has their words.")


def test_bandwidth_is_what_the_ranks_of_a_node_share():
    node, network = MACHINE.levels
    grid = {"z": 4, "x": 2, "y": 2}
    bandwidth = lambda grid, group: link(MACHINE, grid, group)[1]  # noqa: E731
    assert [link(MACHINE, grid, axis) for axis in "yx"] == [(node.alpha, node.bandwidth)] * 2
    assert link(MACHINE, grid, "z") == (network.alpha, min(network.bandwidth, network.injection / 4))
    assert bandwidth({"x": 2, "y": 2, "z": 4}, "x") == bandwidth(grid, "z")
    assert bandwidth({"z": 1, "y": 1, "x": 8}, "x") == min(network.bandwidth, network.injection)
    assert bandwidth(grid, "world") == bandwidth(grid, "z+x+y") == min(network.bandwidth, network.injection)
    assert bandwidth(grid, "z+x") == min(network.bandwidth, network.injection / 2)


@pytest.mark.parametrize(
    ("algorithm", "aware"), [*((a, False) for a in ALGORITHMS), *((a, True) for a in SPARSITY_AWARE)]
)
def test_an_explanation_adds_up_to_what_it_explains(algorithm, aware):
    copies = 2 if algorithm == "1.5d" else None  # with more, none but sums may travel
    settings = Settings(algorithm=algorithm, sparsity_aware=aware, hidden=(F, F), replication=copies)
    asked = plan(settings, {None: GRAPH}, 8, MACHINE)
    choice = asked.best
    found = explain(asked, choice)
    record = choice.record()
    assert sum(one["words"] for one in found.collectives) == pytest.approx(record["words"][0], abs=8)
    assert sum(one["messages"] for one in found.collectives) == record["messages"][0]
    exposed = sum(one["exposed"] for one in found.collectives)
    assert exposed == pytest.approx(choice.estimate.phases["comm"])
    assert all(0 <= one["exposed"] <= 1.0001 * one["under_way"] for one in found.collectives)
    assert {one["level"] for one in found.collectives} <= {level.name for level in MACHINE.levels}
    assert sum(found.memory.values()) == max(choice.peak_bytes)
    for phase in found.phases:
        assert phase["seconds"] == choice.estimate.phases[phase["phase"]] and phase["slowdown"] >= -1e-12
        assert phase["alone"] + phase["slowdown"] + phase["others"] == pytest.approx(phase["seconds"])
        assert phase["others"] == pytest.approx(0, abs=1e-12)  # all ranks do alike
    alone = sum(one["seconds"] for one in found.kernels)
    assert sum(one["alone"] for one in found.phases) == pytest.approx(alone + exposed + MACHINE.update)
    computed = choice.seconds - choice.estimate.phases["comm"] - MACHINE.update
    assert alone <= computed * 1.0001 and computed <= alone * (1 + MACHINE.overlap.slowdown) * 1.0001
    assert sum(line["dry_run"] for line in found.formula.words) == pytest.approx(record["words"][0], abs=8)
    paper = found.formula.section.split(",")[0]
    assert found.formula.seconds > 0 and paper in ("CAGNET", "Sparsity-aware", "Plexus", "RDM")


def test_the_rank_that_takes_longest_is_explained():
    """One of the two ranks has a block that is full."""
    A = sp.block_diag([sp.eye_array(32), np.ones((32, 32))], format="csr")
    known = Graph.known(A, F, F, np.zeros(64, np.int32), np.ones(64, np.uint8))
    asked = plan(
        Settings(algorithm="1d", sparsity_aware=False, hidden=(F,)), {None: known}, 2, slow(nonzero=1e-5)
    )
    assert sum(one["nonzeros"] for one in explain(asked, asked.best).kernels) >= 32 * 32


def test_what_a_rank_only_sends_is_explained():
    """In 1.5D with as many copies as blocks, a rank has the block of its copy's stage."""
    known = Graph.known(sp.csr_array(np.ones((64, 64))), F, F, np.zeros(64, np.int32), np.ones(64, np.uint8))
    settings = Settings(algorithm="1.5d", grid="4x4", sparsity_aware=True, hidden=(F,))
    wire = replace(MACHINE, levels=[Level("machine", None, 0.0, 1e6)])
    asked = plan(settings, {None: known}, 16, wire)
    found = explain(asked, asked.best)
    (sent,) = (one for one in found.collectives if one["operation"] == "alltoallv")
    assert sent["messages"] == 0 < sent["under_way"]
    exposed = sum(one["exposed"] for one in found.collectives)
    (waited,) = (one["alone"] for one in found.phases if one["phase"] == "comm")
    assert exposed == pytest.approx(waited)
