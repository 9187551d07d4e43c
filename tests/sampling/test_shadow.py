"""ShaDow: the subgraph of each root, exact distributions of what is found, and that roots are independent."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, product

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.sampling import Replicated, Sample, Shadow
from sampling.exact import LEVEL, p_value

N = 50
r = np.random.default_rng(4)
DENSE = np.where(r.random((N, N)) < 0.15, r.uniform(0.1, 2, (N, N)), 0) + np.eye(N)
DENSE[7] = DENSE[:, 7] = 0  # a root that nobody gathers for
A = sp.csr_array(DENSE)


def shadow(fanout: list[int], layers: int = 3, **options: int) -> Shadow:
    return Shadow(Replicated(A), fanout, layers, **options)


def alone(sampler: Shadow, roots: np.ndarray, number: int) -> list[Sample]:
    """Sample each root by itself, in the minibatch of this number."""
    return [sampler.sample([[root]], epoch=2, first=number)[0] for root in roots]


def test_a_batch_is_block_diagonal_with_its_roots_first() -> None:
    """The blocks are the subgraphs of its roots, each sampled alone; in a bulk, of two, one and no roots."""
    sampler = shadow([3, 2])
    batches = [np.array([4, 7]), np.array([9]), np.empty(0, np.int64), np.array([7, 30, 31, 2, 11])]
    for number, (sample, roots) in enumerate(zip(sampler.sample(batches, epoch=2), batches, strict=True)):
        assert np.array_equal(sample.batch, roots) and len(sample.blocks) == 3
        first, last = sample.blocks[0], sample.blocks[-1]
        assert first is sample.blocks[1] and np.array_equal(first.rows, first.cols)
        assert np.array_equal(last.rows, roots) and np.array_equal(last.cols, first.cols)
        singles = alone(sampler, roots, number)
        expected = [single.blocks[0] for single in singles]
        at = len(roots) + np.cumsum([0, *(len(block.cols) - 1 for block in expected)])
        whole = np.zeros((at[-1], at[-1]))
        assert len(first.cols) == at[-1]
        for k, block in enumerate(expected):
            places = np.array([k, *range(at[k], at[k + 1])])
            assert np.array_equal(first.cols[places], block.cols)
            whole[np.ix_(places, places)] = block.A.toarray()
        assert np.array_equal(first.A.toarray(), whole)
        assert np.array_equal(last.A.toarray(), whole[: len(roots)])


@pytest.mark.parametrize("fanout", [[3, 2], [4], [50, 50], [1, 1, 1]])
def test_the_subgraph_of_a_root_is_induced(fanout: list[int]) -> None:
    sampler = shadow(fanout, layers=1)
    for root, sample in enumerate(alone(sampler, np.arange(N), 5)):
        (block,) = sample.blocks
        assert block.cols[0] == root and len(np.unique(block.cols)) == len(block.cols)
        assert np.array_equal(block.A.toarray(), DENSE[[root]][:, block.cols])
        near = {root}
        for _ in fanout:
            near |= {int(v) for u in near for v in np.flatnonzero(DENSE[u])}
        assert set(block.cols.tolist()) <= near
        if min(fanout) == N:
            assert set(block.cols.tolist()) == near


def reached(graph: list[list[int]], root: int, fanout: list[int]) -> dict[int, float]:
    """Compute the exact probability of every set of vertices found: bit mask -> probability."""
    found = {frozenset([root]): 1.0}
    for size in fanout:
        after: dict[frozenset[int], float] = defaultdict(float)
        for vertices, probability in found.items():
            draws = [list(combinations(graph[v], min(size, len(graph[v])))) for v in sorted(vertices)]
            share = probability / np.prod([len(choices) for choices in draws])
            for choice in product(*draws):
                after[vertices.union(*choice)] += share
        found = dict(after)
    return {sum(1 << v for v in vertices): p for vertices, p in found.items()}


@pytest.mark.parametrize("fanout", [[2], [2, 1], [1, 2]])
def test_what_is_found_has_the_exact_distribution(fanout: list[int]) -> None:
    """The sets of one root in 6,000 minibatches: χ² at a level of 0.001."""
    graph = [[1, 2, 3, 4], [0, 2, 5], [3, 4], [0, 5, 6], [2], [6, 1], [0]]
    matrix = np.zeros((7, 7))
    for u, neighbours in enumerate(graph):
        matrix[u, neighbours] = 1
    sampler = Shadow(Replicated(sp.csr_array(matrix)), fanout, 1, seed=3)
    members = np.zeros((6000, 7), bool)
    for number, sample in enumerate(sampler.sample([np.array([0])] * 6000)):
        members[number, sample.inputs] = True
    expected = reached(graph, 0, fanout)
    assert abs(sum(expected.values()) - 1) < 1e-12 and p_value(members, expected) > LEVEL


def test_roots_draw_by_themselves() -> None:
    """Vertex 0 is found by both roots; its draw for one says nothing about its draw for the other."""
    matrix = np.zeros((8, 8))
    matrix[6, 0] = matrix[7, 0] = 1
    matrix[0, 1:5] = 1
    sampler = Shadow(Replicated(sp.csr_array(matrix)), [1, 1], 1)
    pairs = np.zeros((4, 4))
    for sample in sampler.sample([np.array([6, 7])] * 4000):
        found = [v for v in sample.inputs.tolist() if 1 <= v <= 4]
        pairs[found[0] - 1, found[1] - 1] += 1
    statistic = ((pairs - 250) ** 2 / 250).sum()
    assert 2 < statistic < 37.7  # χ² of 15 degrees of freedom, 0.001 on either side
