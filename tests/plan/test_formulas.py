"""The papers' formulas against dry runs, where both count the same."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, grids
from distgnn.plan import Graph, dry_run, formulas
from distgnn.plan.choices import plan
from distgnn.plan.explain import explain
from distgnn.plan.formulas import DENSE, Case, bandwidth, cut, evaluate
from distgnn.plan.machine import Level, read
from distgnn.train.settings import Settings

from .machines import slow

MACHINE = read("perlmutter")
N, F, L, NNZ = 4096, 16, 3, 4096 * 20
WIDTHS = [F] * (L + 1)
GRAPH = Graph.of_size(N, NNZ, F, F)


def both(algorithm, grid, aware=False, graph=GRAPH, **more):
    """Return the formula, and by rank the words of a dry run by matrix, for layers of equal width."""
    case = Case(graph, WIDTHS, grid, MACHINE, 4)
    network = {"recipe": "plain", "hidden": (F,) * (L - 1)} | more
    asked = Settings(algorithm=algorithm, grid=grid, sparsity_aware=aware, **network)
    costs = dry_run(asked, graph, math.prod(grid.values()), False).ranks
    return evaluate(algorithm, aware, case), [one.words for one in costs]


def dense(words):
    return sum(words.get(matrix, 0) for matrix in DENSE)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_1d_gets_all_of_the_formula_but_its_own_part(ranks):
    formula, words = both("1d", {"rows": ranks}, train_features=True)
    assert formula.words[DENSE] == 2 * L * N * F and formula.messages == L * (math.log2(ranks) + 2 * ranks)
    assert all(dense(one) * ranks == (ranks - 1) * formula.words[DENSE] for one in words)
    assert all(one["gradients"] * ranks == 2 * (ranks - 1) * L * F * F for one in words)
    assert formula.words["gradients",] == L * F * F


@pytest.mark.parametrize(("rows", "reps"), [(4, 2), (8, 2), (9, 3), (3, 2), (2, 4), (4, 3)])
def test_1_5d_gets_the_blocks_of_its_stages_and_the_sums(rows, reps):
    formula, words = both("1.5d", {"rows": rows, "reps": reps}, train_features=True)
    block = N // rows * F
    of_H = [one.get("H", 0) + one.get("G", 0) for one in words]
    whole = rows / reps * block * 2 * L  # of a rank that owns none of its stages' blocks
    assert max(of_H) == pytest.approx(whole, rel=0.01)
    assert formula.words["G", "H"] == pytest.approx(whole, rel=0.01)
    all_reduced = 2 * (reps - 1) / reps * formula.words["sums",]
    assert max(one["sums"] for one in words) == pytest.approx(all_reduced, rel=0.01)


@pytest.mark.parametrize("q", [2, 4])
def test_2d_gets_both_matrices_along_rows_and_columns(q):
    formula, words = both("2d", {"rows": q, "cols": q}, train_features=True)
    assert formula.section == "CAGNET, IV-C5"
    non_zeros = 2 * formula.words["A",] * (q - 1) / q  # an index and a value
    pointers = 2 * L * (q - 1) * (N // q + 1)
    assert all(one["A"] == pytest.approx(non_zeros + pointers, rel=1e-3) for one in words)
    assert all(dense(one) < formula.words[DENSE] for one in words)


@pytest.mark.parametrize(("q", "fibers"), [(2, 2), (2, 4)])
@pytest.mark.slow
def test_3d_split_gets_a_layer_of_the_matrix(q, fibers):
    formula, words = both("3d-split", {"rows": q, "cols": q, "fibers": fibers}, train_features=True)
    if q == fibers:
        square = q**2  # P^(2/3)
        assert formula.words == {("A",): 2 * L * NNZ / square, DENSE: pytest.approx(12 * L * N * F / square)}
    non_zeros = 2 * formula.words["A",] * (q - 1) / q
    pointers = [2 * L * (q - 1) * (rows + 1) for rows in (N // q, N // (q * fibers))]
    assert all(non_zeros + min(pointers) <= one["A"] <= non_zeros + max(pointers) for one in words)
    assert all(dense(one) < formula.words[DENSE] for one in words)


@pytest.mark.parametrize(("rows", "cols"), [(1, 8), (2, 4), (4, 2)])
def test_rdm_gets_what_the_formula_says_to_the_word(rows, cols):
    formula, words = both("rdm", {"rows": rows, "cols": cols}, train_features=True)
    assert [dense(one) for one in words] == pytest.approx([formula.words[DENSE]] * len(words))


def test_rdm_on_one_process_row_gets_the_rows_that_cross():
    """In the mean over the ranks; of 3 nodes in 10 no row crosses, nor of a graph of numbers."""
    r, n = np.random.default_rng(2), N // 8
    A = sp.random_array((n, n), density=0.6 / n, rng=r, format="csr")
    known = Graph.known((A + A.T).tocsr(), F, F, np.zeros(n, np.int32), np.ones(n, np.uint8))
    for graph in (known, Graph.of_size(N, N, F, F)):
        formula, words = both("rdm", {"rows": 1, "cols": 4}, aware=True, graph=graph, train_features=True)
        share = formula.words[DENSE] / (2 * L * 2 * graph.n * F / 4 * 3 / 4)
        assert np.mean([dense(one) for one in words]) == pytest.approx(formula.words[DENSE], rel=1e-6)
        assert 0.3 < share < 0.8


@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 2, 1), (1, 2, 4), (2, 1, 4)])
def test_3d_gets_what_plexus_says_to_the_word(sizes):
    formula, words = both("3d", dict(zip("xyz", sizes, strict=True)), train_features=True)
    for (matrix,), expected in formula.words.items():
        assert [one.get(matrix, 0) for one in words] == pytest.approx([expected] * len(words)), matrix


@pytest.mark.parametrize(
    ("algorithm", "aware", "grid", "words", "messages"),
    [("1.5d", False, {"rows": 4, "reps": 2}, {("G", "H"): N, ("sums",): N / 2}, 4),
     ("2d", False, {"rows": 4, "cols": 4}, {("A",): NNZ / 2, DENSE: 2 * N}, 5 * 4 + 3 * 4),
     ("3d-split", False, {"rows": 2, "cols": 2, "fibers": 2}, {("A",): NNZ / 2, DENSE: 3 * N}, 8),
     ("1d", True, {"rows": 4}, {DENSE: 6 * cut(GRAPH, 4)}, 6),
     ("1.5d", True, {"rows": 4, "reps": 2}, {("G", "H"): 4 * cut(GRAPH, 4)}, 4),
     ("rdm", False, {"rows": 1, "cols": 4}, {DENSE: 2 * 2 * N / 4 * 3 / 4}, 2 * 2 * 3),
     ("rdm", False, {"rows": 2, "cols": 4}, {DENSE: 2 * (2 * N / 8 * 3 / 4 + N / 4 / 2)}, 2 * (6 + 1 + 4)),
     ("rdm", True, {"rows": 4, "cols": 2}, {DENSE: N / 4 + 3 * cut(GRAPH, 4)}, 2 * (2 + 3))],
)  # fmt: skip
def test_the_numbers_in_formulas_are_those_of_the_papers(algorithm, aware, grid, words, messages):
    """Formulas of a layer; words of dense matrices by column."""
    found = evaluate(algorithm, aware, Case(GRAPH, WIDTHS, grid, MACHINE, 4))
    for matrices, expected in words.items():
        columns = 1 if matrices == ("A",) else F
        assert found.words[matrices] == pytest.approx(L * columns * expected), matrices
    assert found.messages == pytest.approx(L * messages)


def test_a_rectangle_is_another_section():
    formula, _ = both("2d", {"rows": 4, "cols": 2})
    assert formula.section == "CAGNET, IV-C6"
    assert formula.words == {("A",): 2 * L * NNZ / 4, DENSE: 2 * L * N * F * (1 / 4 + 1 / 2)}


@pytest.mark.parametrize("ranks", [2, 4])
def test_sparsity_aware_gets_no_more_than_the_largest_cut(ranks):
    r = np.random.default_rng(1)
    A = sp.random_array((N // 16, N // 16), density=0.01, rng=r, format="csr")
    known = Graph.known(
        (A + A.T).tocsr(), F, F, np.zeros(A.shape[0], np.int32), np.ones(A.shape[0], np.uint8)
    )
    formula, words = both("1d", {"rows": ranks}, aware=True, graph=known, train_features=True)
    ends = np.linspace(0, A.shape[0], ranks + 1).astype(int)
    B = known.source.block((0, known.n), (0, known.n)).toarray() != 0
    blocks = [(i, j) for i in range(ranks) for j in range(ranks) if i != j]
    expected = max(B[ends[i] : ends[i + 1], ends[j] : ends[j + 1]].any(axis=0).sum() for i, j in blocks)
    assert cut(known, ranks) == expected
    most = max(dense(one) for one in words)
    assert most <= formula.words[DENSE] == 2 * L * (ranks - 1) * expected * F
    if ranks == 2:
        assert most == formula.words[DENSE]


def test_the_cut_of_a_full_matrix_is_a_whole_block():
    full = Graph.of_size(512, 512 * 512, F, F)
    assert cut(full, 4) == pytest.approx(128)
    aware, whole = (evaluate("1d", way, Case(full, WIDTHS, {"rows": 4}, MACHINE, 4)) for way in (True, False))
    assert aware.words[DENSE] == pytest.approx(whole.words[DENSE] * 3 / 4)


def test_the_cut_of_a_histogram_is_that_of_its_cells():
    known = Graph.of_size(1024, 8 * 1024, F, F)
    halves = known.grown(1)
    halves.source.rows = halves.source.cols = np.array([0, 512, 1024])
    halves.source.nnz = np.array([[4096, 0], [0, 4096]])
    assert cut(halves, 2) == 0  # nothing off the diagonal
    assert cut(halves, 4) == pytest.approx(256 * (1 - math.exp(-1024 / 256)))
    assert 0 < cut(known, 2) < 512


def test_bandwidth_is_what_the_ranks_of_a_node_share():
    node, network = MACHINE.levels
    grid = {"z": 4, "x": 2, "y": 2}
    assert [bandwidth(MACHINE, grid, axis) for axis in "yx"] == [node.bandwidth] * 2
    assert bandwidth(MACHINE, grid, "z") == min(network.bandwidth, network.injection / 4)
    assert bandwidth(MACHINE, {"x": 2, "y": 2, "z": 4}, "x") == bandwidth(MACHINE, grid, "z")
    assert bandwidth(MACHINE, {"z": 1, "y": 1, "x": 8}, "x") == min(network.bandwidth, network.injection)


@pytest.mark.parametrize(
    ("algorithm", "aware"), [*((a, False) for a in ALGORITHMS), *((a, True) for a in SPARSITY_AWARE)]
)
def test_an_explanation_adds_up_to_what_it_explains(algorithm, aware):
    assert (algorithm, aware) in formulas.FORMULAS
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
    assert sum(own for *_, own in found.compared) == pytest.approx(record["words"][0], abs=8)
    assert found.formula.seconds > 0 and found.formula.section.split(",")[0] in (
        "CAGNET",
        "Sparsity-aware",
        "Plexus",
        "RDM",
    )


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


def test_every_grid_has_a_formula():
    for algorithm, aware in formulas.FORMULAS:
        for grid in grids(algorithm, 12):
            found = evaluate(algorithm, aware, Case(GRAPH, WIDTHS, grid, MACHINE, 4))
            if algorithm == "3d-split" and grid["rows"] != grid["cols"]:  # the paper has cubes
                assert found is None
                continue
            assert all(words >= 0 for words in found.words.values()) and found.messages >= 0
    assert evaluate("4d", False, Case(GRAPH, WIDTHS, {"rows": 1}, MACHINE, 4)) is None
