"""Plans count covers: those of a graph that is known, and what is expected where non-zeros lie anywhere."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.errors import ArgumentError
from distgnn.gallery import rmat
from distgnn.layout import block, partition
from distgnn.local.covers import cover
from distgnn.nn.reference import normalize
from distgnn.plan import Graph, dry_run, plan
from distgnn.plan.dry.covers import expected
from distgnn.plan.machine import with_nodes_of
from distgnn.plan.pricing import ALL_RANKS, COVERED_RANKS, counted
from distgnn.train.settings import Settings
from distgnn.train.ways import Way

from .machines import slow

FAR = with_nodes_of(slow(bandwidth=1e7), 1)
SETTINGS = Settings(hidden=(64, 64))


def known(A, width=64, classes=64):
    n, values = A.shape[0], normalize(A).astype(np.float32)
    return Graph.known(values, width, classes, np.arange(n) % classes, np.ones(n, np.uint8))


@pytest.fixture(scope="module")
def power_law():
    return known(rmat(1 << 11, degree=32, features=0, classes=0).A)


@pytest.fixture(scope="module")
def mesh():
    line = sp.diags_array([np.ones(47), np.ones(47)], offsets=[-1, 1])
    return known(sp.csr_array(sp.kronsum(line, line)))


BLOCKS = (3000, 3000, 1500), (3000, 3000, 9000), (2000, 4000, 5000), (5000, 1000, 8000)


@pytest.mark.parametrize(("rows", "columns", "nonzeros"), BLOCKS)
def test_expected_sizes_are_those_of_random_blocks(rows, columns, nonzeros):
    sizes = []
    for seed in range(5):
        r = np.random.default_rng(seed)
        entries = np.ones(nonzeros), (r.integers(rows, size=nonzeros), r.integers(columns, size=nonzeros))
        sizes.append(sum(int(side.sum()) for side in cover(sp.csr_array(entries, shape=(rows, columns)))))
    assert expected(rows, columns, nonzeros) == pytest.approx(np.mean(sizes), rel=0.01)
    assert expected(columns, rows, nonzeros) == pytest.approx(expected(rows, columns, nonzeros), abs=2)


def test_no_more_is_expected_than_there_can_be():
    assert expected(5, 3, 0) == 0 and expected(0, 3, 0) == 0
    assert expected(4, 9, 36) == 4 and expected(100, 100, 1) == 1
    for sizes in product((1, 3, 40, 5000), (1, 3, 40, 5000), (1, 2, 7, 300)):
        assert expected(*sizes) <= min(sizes)


def test_words_are_those_of_the_covers(power_law):
    """Three layers make five products of 64 columns: features are not trained. A is symmetric."""
    A, ends = power_law.source.matrix, partition(1 << 11, 4)
    sizes = np.zeros((4, 4), int)
    for i in range(4):
        for j in set(range(4)) - {i}:
            (top, bottom), (left, right) = block(ends, i), block(ends, j)
            sizes[i, j] = sum(int(side.sum()) for side in cover(A[top:bottom, left:right]))
    planned = dry_run(replace(SETTINGS, algorithm="1d", sparsity_aware="cover"), power_law, 4)
    for rank, costs in enumerate(planned.ranks):
        words = sum(number for matrix, number in costs.words.items() if matrix in ("H", "G", "sums"))
        assert words == 5 * 64 * sizes[rank].sum()


def seconds(graph, ranks):
    """Return the least seconds of 1d, and of rdm with all of A on each rank, by what they send."""
    best = {}
    for name, grid in (("1d", None), ("rdm", {"rows": 1})):
        for choice in plan(replace(SETTINGS, algorithm=name, grid=grid), graph, ranks, FAR).choices:
            best.setdefault((name, choice.way.sparsity_aware), choice.seconds)
    return best


def fastest(graph, ranks):
    return min(seconds(graph, ranks).items(), key=lambda item: item[1])[0]


def test_covers_and_rdm_are_taken_where_they_are_best(power_law, mesh):
    """Power laws take covers on 2 ranks and rdm on 16, of which rows without neighbours of other ranks stay;
    meshes take block rows, which need few rows.
    """
    assert fastest(power_law, 2) == ("1d", "cover")
    assert fastest(power_law, 16) == ("rdm", True)
    assert fastest(mesh, 16)[1] in (True, "cover")


def test_a_graph_of_numbers_is_expected_to_have_those_of_a_random_one():
    n, nnz = 1 << 11, 40_000
    r = np.random.default_rng(0)
    A = sp.csr_array((np.ones(nnz), (r.integers(n, size=nnz), r.integers(n, size=nnz))), shape=(n, n))
    random, numbers = known(A), Graph.of_size(n, normalize(A).nnz, 64, 64, symmetric=False)
    settings = replace(SETTINGS, algorithm="1d", sparsity_aware="cover")
    exact = dry_run(settings, random, 8)
    one = dry_run(settings, numbers, 8, busiest=True).ranks[0]
    assert one.epoch.words == pytest.approx(np.mean([costs.epoch.words for costs in exact.ranks]), rel=0.03)
    rows = dry_run(replace(settings, sparsity_aware=True), numbers, 8, busiest=True).ranks[0]
    assert one.epoch.words < rows.epoch.words


def test_the_busiest_alone_does_not_know_the_covers_of_others(power_law):
    settings = replace(SETTINGS, algorithm="1d", sparsity_aware="cover")
    with pytest.raises(ArgumentError, match="on all ranks, not on the busiest"):
        dry_run(settings, power_law, 8, busiest=True)
    (refused,) = plan(settings, power_law, 2 * COVERED_RANKS, FAR).infeasible
    assert "counted on up to 32 ranks" in refused.reason
    way = Way("1d", {"rows": ALL_RANKS + 1}, None, "cover")
    assert len(set(map(id, counted(SETTINGS, power_law, ALL_RANKS + 1, way).ranks))) == ALL_RANKS + 1
    way = replace(way, grid={"rows": COVERED_RANKS + 1})
    with pytest.raises(ArgumentError, match="on all ranks, not on the busiest"):
        counted(SETTINGS, power_law, COVERED_RANKS + 1, way)
