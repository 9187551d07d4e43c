"""The samplers: what blocks hold, exact distributions, unbiased estimates, and that nothing depends on the
bulk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

from awkward_shapes import awkward
from distgnn import UserError
from distgnn.arrays.tuning import TUNING
from distgnn.local import host
from distgnn.operators import make_grid
from distgnn.sampling import (
    FastGCN,
    Graph,
    GraphSage,
    Ladies,
    Partitioned,
    Replicated,
    Saint,
    Sample,
    Sampler,
    Shadow,
    layerwise,
)
from loops import each
from sampling.exact import LEVEL, assert_mean, p_value, p_value_inclusion, subset_probabilities

DRAWS = 6_000

Make = Callable[[Any, list[int]], Sampler]
SAMPLERS: dict[str, Make] = {
    "sage": lambda G, fanout: GraphSage(G, fanout),
    "sage rescaled": lambda G, fanout: GraphSage(G, fanout, rescale=True),
    "ladies": lambda G, fanout: Ladies(G, fanout),
    "ladies counts": lambda G, fanout: Ladies(G, fanout, importance="counts"),
    "ladies as it is": lambda G, fanout: Ladies(G, fanout, rescale=False),
    "fastgcn": lambda G, fanout: FastGCN(G, fanout),
    "saint": lambda G, fanout: Saint(G, fanout[0], len(fanout), training=np.arange(0, G.n, 2)),
}
SQUARE = {name: A for name, A in awkward().items() if A.shape[0] == A.shape[1]}


def pattern(A: sp.csr_array) -> np.ndarray:
    """Return where A has entries, whatever their values: bool, dense."""
    return sp.csr_array((np.ones(A.nnz, bool), A.indices, A.indptr), shape=A.shape).toarray()


def batches_of(n: int, count: int = 5) -> list[np.ndarray]:
    """Draw distinct vertices, of sizes 0, 3, 6, ... as far as there are."""
    generator = np.random.default_rng(7)
    return [generator.choice(n, min(3 * b, n), replace=False) for b in range(count)]


def same(one: Sample, other: Sample) -> bool:
    pairs = [(one.batch, other.batch)]
    if one.loss_weights is not None and other.loss_weights is not None:
        pairs.append((one.loss_weights, other.loss_weights))
    for a, b in zip(one.blocks, other.blocks, strict=True):
        pairs += [
            (getattr(a, name), getattr(b, name)) for name in ("rows", "cols", "indptr", "indices", "data")
        ]
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.fixture
def directed() -> sp.csr_array:
    """Make A ≠ Aᵀ, with self-loops, a hub row, a hub column, an isolated vertex, very different weights."""
    generator = np.random.default_rng(5)
    A = np.where(generator.random((60, 60)) < 0.08, generator.uniform(0.1, 3, (60, 60)), 0)
    A[4, generator.random(60) < 0.7] = 0.3
    A[generator.random(60) < 0.7, 9] = 2
    A[11] = A[:, 11] = 0
    return sp.csr_array(A)


# -- what blocks hold --


@each("name", SQUARE)
@pytest.mark.parametrize("kind", SAMPLERS)
def test_blocks_fit_together_and_hold_edges_of_the_graph(kind: str, name: str) -> None:
    G, batches = Replicated(SQUARE[name]), batches_of(SQUARE[name].shape[0])
    found = SAMPLERS[kind](G, [2, 3]).sample(batches)
    assert len(found) == len(batches)
    for sample, batch in zip(found, batches, strict=True):
        assert kind == "saint" or np.array_equal(sample.batch, batch)
        assert np.array_equal(sample.blocks[-1].rows, sample.batch) and np.array_equal(
            sample.blocks[0].cols, sample.inputs
        )
        assert np.array_equal(sample.blocks[0].rows, sample.blocks[1].cols)
        assert sample.edges == sum(block.A.nnz for block in sample.blocks)
        for block in sample.blocks:
            assert len(np.unique(block.cols)) == len(block.cols)
            block.A.check_format(full_check=True)
            present = pattern(SQUARE[name])[np.ix_(block.rows, block.cols)]
            there = pattern(block.A)
            # so no edge twice
            assert (there <= present).all() and np.count_nonzero(there) == block.nnz
            if "sage" not in kind:
                assert np.array_equal(there, present)  # all edges between the two layers


@each("name", SQUARE)
def test_sage_takes_so_many_neighbours_and_keeps_the_rows_first(name: str) -> None:
    G = Replicated(SQUARE[name])
    degrees = np.diff(G.A.indptr)
    for sample in GraphSage(G, [2, 3]).sample(batches_of(G.n)):
        for block, fanout in zip(sample.blocks, (3, 2), strict=True):
            assert np.array_equal(np.diff(block.indptr), np.minimum(degrees[block.rows], fanout))
            assert np.array_equal(block.cols[: len(block.rows)], block.rows)
            # no empty column else
            assert set(range(len(block.rows), len(block.cols))) <= set(block.indices.tolist())
            assert np.array_equal(block.A.toarray()[block.A.toarray() != 0], _entries(G.A, block))


def _entries(A: sp.csr_array, block: Any) -> np.ndarray:
    """Return the entries of A at the block's places, by rows."""
    return A.toarray()[np.ix_(block.rows, block.cols)][block.A.toarray() != 0]


@each("name", SQUARE)
@pytest.mark.parametrize("importance", ["zou", "counts"])
def test_ladies_draws_neighbours_of_the_layer_above(name: str, importance: str) -> None:
    G = Replicated(SQUARE[name])
    for sample in Ladies(G, [4, 3], importance=importance).sample(batches_of(G.n)):
        for block, size in zip(sample.blocks, (3, 4), strict=True):
            counted = pattern(G.A) if importance == "counts" else G.A.toarray() != 0
            neighbours = np.flatnonzero(counted[block.rows].any(axis=0))
            assert set(block.cols) <= set(neighbours) and len(block.cols) == min(size, len(neighbours))


def test_without_rescaling_values_are_those_of_the_graph(directed: sp.csr_array) -> None:
    G, batches = Replicated(directed.astype(np.float32)), batches_of(60)
    for sampler in (
        Ladies(G, [9, 7], rescale=False),
        FastGCN(G, [9, 7], rescale=False),
        Saint(G, 9, 2, rescale=False),
    ):
        for sample in sampler.sample(batches):
            assert sample.loss_weights is None
            for block in sample.blocks:
                assert block.data.dtype == np.float32
                assert np.array_equal(block.A.toarray(), G.A.toarray()[np.ix_(block.rows, block.cols)])


@pytest.mark.parametrize("kind", ["sage", "sage rescaled", "ladies", "ladies counts"])
def test_with_room_for_all_neighbours_the_product_is_exact(kind: str, directed: sp.csr_array) -> None:
    H = np.random.default_rng(0).normal(size=(60, 4))
    for sample in SAMPLERS[kind](Replicated(directed), [60, 60]).sample(batches_of(60)):
        top, bottom = sample.blocks[1].A, sample.blocks[0].A
        np.testing.assert_allclose(
            top @ (bottom @ H[sample.inputs]), (directed @ (directed @ H))[sample.batch], atol=1e-12
        )


@each("kind", SAMPLERS)
def test_stored_zeros_are_edges(kind: str) -> None:
    """Zeros of either sign are in the blocks of all samplers, and drawn but where weights decide."""
    values = np.array([0.0, 1, -0.0, 2, 0])
    A = sp.csr_array((values, ([0, 0, 0, 1, 3], [1, 2, 3, 0, 3])), shape=(4, 4))
    samples = SAMPLERS[kind](Replicated(A), [2]).sample([np.arange(4)] * 50)
    drawn = set()
    for (block,) in (sample.blocks for sample in samples):
        drawn |= set(block.cols[block.indices].tolist())
        if "sage" in kind:
            assert np.diff(block.indptr).tolist() == [2, 1, 0, 1]
        else:
            assert np.array_equal(pattern(block.A), pattern(A)[np.ix_(block.rows, block.cols)])
    by_weight = kind != "ladies counts" and "sage" not in kind
    assert drawn == ({0, 2} & set(drawn) if kind == "saint" else {0, 2} if by_weight else {0, 1, 2, 3})
    assert np.array_equal(A.data, values)  # the caller's matrix is left alone


# -- nothing depends on the bulk, the row blocks, or who computes --


@pytest.mark.parametrize("kind", SAMPLERS)
@each("bulk", [1, 2, 3])
def test_the_bulk_changes_nothing(kind: str, bulk: int, directed: sp.csr_array) -> None:
    batches, sampler = batches_of(60, 7), SAMPLERS[kind](Replicated(directed), [5, 4])
    together = sampler.sample(batches, epoch=3)
    for first in range(0, 7, bulk):
        alone = sampler.sample(batches[first : first + bulk], epoch=3, first=first)
        assert all(same(a, b) for a, b in zip(alone, together[first : first + bulk], strict=True))


@each("kind", SAMPLERS)
def test_a_bulk_of_nothing(kind: str, directed: sp.csr_array) -> None:
    """A rank without minibatches takes part in the products of the others."""
    assert SAMPLERS[kind](Replicated(directed), [5, 4]).sample([]) == []


@pytest.mark.parametrize("kind", SAMPLERS)
def test_seed_epoch_minibatch_and_layer_each_change_the_sample(kind: str, directed: sp.csr_array) -> None:
    sampler, batch = SAMPLERS[kind](Replicated(directed), [5, 5]), np.arange(0, 60, 3)
    one = sampler.sample([batch], epoch=1, first=2)[0]
    others = [sampler.sample([batch], epoch=0, first=2)[0], sampler.sample([batch], epoch=1, first=3)[0]]
    sampler.seed += 1
    assert not any(same(one, other) for other in [*others, sampler.sample([batch], epoch=1, first=2)[0]])
    assert not np.array_equal(sampler.keys(0, 0, 4, 0), sampler.keys(0, 0, 4, 1))


@pytest.mark.parametrize("kind", SAMPLERS)
def test_row_blocks_and_missing_kernels_change_nothing(
    kind: str, directed: sp.csr_array, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, sampler = batches_of(60, 7), SAMPLERS[kind](Replicated(directed), [5, 4])
    expected = sampler.sample(batches)
    for limit in (1, 50):
        sampler.graph.entries = limit
        monkeypatch.setattr(TUNING, "product_entries", limit)
        assert all(same(a, b) for a, b in zip(sampler.sample(batches), expected, strict=True))
    monkeypatch.setattr(host, "module", lambda: None)
    assert all(same(a, b) for a, b in zip(sampler.sample(batches), expected, strict=True))


class Cut(Graph):
    """A graph that is cut by rows, as a partitioned one is: partial products of the three parts are summed,
    in either order.
    """

    def __init__(self, A: sp.csr_array, last_first: bool) -> None:
        self.A, self.shape, self.dtype, self.last_first = A, A.shape, A.dtype, last_first

    def multiply(self, Q: sp.csr_array) -> sp.csr_array:
        cuts = np.array_split(np.arange(self.n), 3)
        parts = [Q[:, cut] @ self.A[cut] for cut in (reversed(cuts) if self.last_first else cuts)]
        product = sp.csr_array(parts[0] + parts[1] + parts[2])
        product.sum_duplicates()
        return product

    def row_blocks(self, Q: sp.csr_array) -> Iterator[tuple[tuple[int, int], sp.csr_array]]:
        yield (0, Q.shape[0]), self.multiply(Q)

    def map(self, function: Callable[[Any], Any]) -> Cut:
        mapped = sp.csr_array((function(self.A.data), self.A.indices, self.A.indptr), shape=self.A.shape)
        return Cut(mapped, self.last_first)


@pytest.mark.parametrize("kind", SAMPLERS)
@each("last_first", [False, True])
def test_any_graph_that_multiplies_will_do(kind: str, last_first: bool, directed: sp.csr_array) -> None:
    batches = batches_of(60, 7)
    expected = SAMPLERS[kind](Replicated(directed), [5, 4]).sample(batches)
    found = SAMPLERS[kind](Cut(directed, last_first), [5, 4]).sample(batches)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


def test_sums_of_squares_have_the_same_bits_in_any_order() -> None:
    generator = np.random.default_rng(0)
    values = 10.0 ** generator.uniform(-4, 0, 2000)
    terms = layerwise.squares(values)
    np.testing.assert_allclose(terms, values**2, rtol=2.0**-12)
    sums = {float(np.cumsum(generator.permutation(terms))[-1]) for _ in range(50)}
    assert (
        len(sums) == 1
        and len({float(np.cumsum(generator.permutation(values**2))[-1]) for _ in range(50)}) > 1
    )


# -- distributions --


def small() -> sp.csr_array:
    """Make a graph of eight vertices; weights of three orders of magnitude."""
    generator = np.random.default_rng(2)
    A = np.where(generator.random((8, 8)) < 0.6, 10.0 ** generator.uniform(-1.5, 0, (8, 8)), 0)
    A[0] = np.abs(A[0]) + 0.1
    A[:, 5] = 0
    return sp.csr_array(A)


def members(found: list[Sample], n: int) -> np.ndarray:
    """Return bool (draws, n): True for vertices that are columns of the last block."""
    inside = np.zeros((len(found), n), bool)
    for row, sample in zip(inside, found, strict=True):
        row[sample.blocks[-1].cols] = True
    return inside


def assert_distributed(inside: np.ndarray, weights: np.ndarray, count: int) -> None:
    subsets = subset_probabilities(weights.tolist(), count)
    assert p_value(inside, subsets) > LEVEL and p_value_inclusion(inside, subsets) > LEVEL


@pytest.mark.parametrize("fanout", [1, 3, 5])
@pytest.mark.slow
def test_sage_draws_every_set_of_neighbours_alike(fanout: int) -> None:
    A = small()
    inside = np.zeros((DRAWS, 8), bool)
    for row, sample in zip(
        inside, GraphSage(Replicated(A), [fanout]).sample([np.array([0])] * DRAWS), strict=True
    ):
        row[sample.blocks[0].cols[sample.blocks[0].indices]] = True
    assert_distributed(inside, A.toarray()[0] != 0, fanout)


@pytest.mark.slow
def test_sage_draws_for_vertices_and_layers_independently() -> None:
    """One neighbour each for two vertices with the same two neighbours: all four outcomes alike, also across
    layers.
    """
    A = sp.csr_array(np.array([[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]], float))
    found = GraphSage(Replicated(A), [1, 1]).sample([np.array([0, 1])] * DRAWS)
    outcomes = np.zeros((DRAWS, 4), bool)
    for row, sample in zip(outcomes, found, strict=True):
        outer, inner = sample.blocks[1], sample.blocks[0]
        picked = outer.cols[outer.indices]
        row[int(picked[0] == 3) * 2 + int(inner.cols[inner.indices[0]] == picked[1])] = True
    assert p_value(outcomes, {1 << i: 0.25 for i in range(4)}) > LEVEL


@pytest.mark.parametrize("importance", ["zou", "counts"])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.slow
def test_ladies_draws_by_importance(importance: str, count: int) -> None:
    A, batch = small(), np.array([1, 3, 4])
    rows = A.toarray()[batch]
    weights = (rows**2).sum(axis=0) if importance == "zou" else (rows != 0).sum(axis=0) ** 2.0
    found = Ladies(Replicated(A), [count], importance=importance, seed=1).sample([batch] * DRAWS)
    assert_distributed(members(found, 8), weights, count)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.slow
def test_fastgcn_and_saint_draw_by_column_norms(count: int) -> None:
    A = small()
    weights = (A.toarray() ** 2).sum(axis=0)
    assert_distributed(
        members(FastGCN(Replicated(A), [count]).sample([np.array([1])] * DRAWS), 8), weights, count
    )
    assert_distributed(
        members(Saint(Replicated(A), count, 1, rescale=count > 1).sample([np.array([1])] * DRAWS), 8),
        weights,
        count,
    )


# -- estimates --


def aggregated(found: list[Sample], H: np.ndarray) -> np.ndarray:
    """Return (draws, batch, f): the sampled propagation without weights and activations."""
    results = []
    for sample in found:
        Z = H[sample.inputs]
        for block in sample.blocks:
            Z = block.A @ Z
        results.append(Z)
    return np.array(results)


@pytest.mark.parametrize("kind", ["sage rescaled", "ladies", "ladies counts", "fastgcn"])
@pytest.mark.slow
def test_sampled_aggregation_is_unbiased(kind: str) -> None:
    """The mean of two sampled layers against the full product, within 4.5 standard errors."""
    A, batch = small(), np.array([1, 3, 4])
    H = np.random.default_rng(1).uniform(0.5, 1.5, (8, 2))
    draws = aggregated(SAMPLERS[kind](Replicated(A), [4, 3]).sample([batch] * DRAWS), H)
    assert_mean(draws, (A @ (A @ H))[batch])


def test_without_rescaling_it_is_not() -> None:
    A, batch = small(), np.array([1, 3, 4])
    H = np.random.default_rng(1).uniform(0.5, 1.5, (8, 2))
    draws = aggregated(Ladies(Replicated(A), [4, 3], rescale=False).sample([batch] * 2000), H)
    with pytest.raises(AssertionError):
        assert_mean(draws, (A @ (A @ H))[batch])


@pytest.mark.slow
def test_the_sum_over_a_saint_subgraph_is_unbiased() -> None:
    A, training = small(), np.array([0, 2, 3, 7])
    H = np.random.default_rng(1).uniform(0.5, 1.5, (8, 2))
    found = Saint(Replicated(A), 5, 1, training=training).sample([training] * DRAWS)
    assert all(set(sample.batch) == set(sample.inputs) & set(training) for sample in found)
    sums = np.array([sample.loss_weights @ (sample.blocks[0].A @ H[sample.inputs]) for sample in found])
    rare = (A.toarray() ** 2).sum(axis=0) == 0  # never drawn: neither as a row nor as a column
    kept = np.setdiff1d(training, np.flatnonzero(rare))
    assert_mean(sums, (A @ H)[kept].sum(axis=0))


# -- input --


@pytest.mark.parametrize(
    ("fanout", "layers", "message"),
    [
        ([15, 10], 3, "fanout=15,10: has 2 numbers for 3 layers; expected one per layer"),
        ([], 0, "fanout=: has 0 numbers for 0 layers"),
        ([15, 0], 2, "fanout=15,0: expected whole numbers of at least 1"),
    ],
)
def test_bad_fanout(fanout: list[int], layers: int, message: str) -> None:
    for kind in (GraphSage, Ladies, FastGCN):
        with pytest.raises(UserError, match=message):
            kind(Replicated(sp.eye_array(3)), fanout, layers=layers)


def test_other_bad_input() -> None:
    with pytest.raises(UserError, match="importance=degree: expected zou or counts"):
        Ladies(Replicated(sp.eye_array(3)), [2], importance="degree")
    with pytest.raises(ValueError, match="as many rows as columns"):
        GraphSage(Replicated(sp.csr_array((2, 3))), [2])


@pytest.mark.parametrize("cut", [False, True])
@each("kind", [*SAMPLERS, "shadow"])
def test_a_fanout_beyond_the_graph_takes_everything_and_no_more_memory(
    kind: str, cut: bool, directed: sp.csr_array, backend: Any
) -> None:
    """Beyond what 64 bits hold, too; on the host and a GPU, whole and cut alike."""
    batch = np.array([1, 3])
    grid = make_grid(MPI.COMM_SELF, "1.5d", backend=backend)
    given = Partitioned(grid, directed, backend=backend) if cut else Replicated(directed, backend=backend)
    make = SAMPLERS.get(kind, lambda G, fanout: Shadow(G, fanout, 2))
    graphs = ((10**20, given), (directed.shape[0], Replicated(directed)))
    huge, enough = (make(G, [size, size]).sample([batch])[0] for size, G in graphs)
    for one, other in zip(huge.blocks, enough.blocks, strict=True):
        parts = one.rows, one.cols, one.indptr, one.indices, one.data
        rows, cols, indptr, indices, data = map(backend.to_host, parts)
        assert rows.tolist() == other.rows.tolist() and cols.tolist() == other.cols.tolist()
        found = sp.csr_array((data, indices, indptr), shape=one.shape).toarray()
        np.testing.assert_array_equal(found, other.A.toarray())
    grid.free()


def test_numbers_of_minibatches(directed: sp.csr_array) -> None:
    """The first one's, of any integer type, or the number of each; as many as there are."""
    sampler, batches = GraphSage(Replicated(directed), [2]), [np.array([1, 3]), np.array([2])]
    found = [sampler.sample(batches, first=first) for first in (5, np.int64(5), [5, 6], np.array([5, 6]))]
    for samples in found[1:]:
        for one, other in zip(samples, found[0], strict=True):
            assert one.inputs.tolist() == other.inputs.tolist()
    alone = sampler.sample(batches[1:], first=[6])[0]
    assert alone.inputs.tolist() == found[0][1].inputs.tolist()
    with pytest.raises(ValueError, match="numbers of 1 minibatches given for 2"):
        sampler.sample(batches, first=[5])
