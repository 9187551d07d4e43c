"""Rows drawn and numbered, and edges kept, in one pass: beside the steps one after another, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.local import host, neighbours
from distgnn.local.relabel import Relabelling
from distgnn.local.stack import Stack
from distgnn.sampling import GraphSage, Ladies, Replicated
from distgnn.sampling.graph import Graph
from loops import each

N = 300
pytestmark = pytest.mark.skipif(not host.usable(), reason="the host kernels are not built here")


def uneven(dtype: Any, wide: bool = False, alike: bool = False) -> sp.csr_array:
    """Make a graph with a hub, a chain of small rows, and rows without entries."""
    random = np.random.default_rng(5)
    dense = random.random((N, N)) < np.where(np.arange(N) % 50 == 7, 0.9, 0.02)[:, None]
    dense[::9] = False
    A = sp.csr_array(np.where(dense, 2.5 if alike else random.uniform(-1, 1, (N, N)), 0)).astype(dtype)
    if wide:
        A.indices, A.indptr = A.indices.astype(np.int64), A.indptr.astype(np.int64)
    return A


class Stepwise(Replicated):
    """A replicated graph that has no kernel for several steps at once."""

    def kernel(self, operation: str) -> None:
        return None

    def edges(self, *arguments: Any) -> Any:
        return Graph.edges(self, *arguments)


def drawn(sampler: Any) -> list[Any]:
    batches = [np.arange(40), np.array([7, 0, 9]), np.empty(0, np.int64), np.arange(N)[::-1]]
    samples = sampler.sample(batches, epoch=3, first=5)
    return [
        array
        for sample in samples
        for block in sample.blocks
        for array in (block.rows, block.cols, block.indptr, block.indices, block.data)
    ]


@each("fanout", [[1, 1], [5, 3], [2 * N, 40]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("how", ["", "wide", "alike"])
def test_samples_are_those_of_the_steps(fanout: list[int], dtype: Any, how: str) -> None:
    A = uneven(dtype, how == "wide", how == "alike")
    assert A.indices.dtype == (np.int64 if how == "wide" else np.int32)
    for make in (GraphSage, lambda graph, sizes: GraphSage(graph, sizes, rescale=True), Ladies):
        sampler = make(Replicated(A), fanout)
        expected = drawn(make(Stepwise(A), fanout))
        for _ in range(2):  # room that is used again is as it was
            for one, other in zip(drawn(sampler), expected, strict=True):
                assert np.array_equal(one, other) and one.dtype.kind == other.dtype.kind


def test_the_kernels_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were they not, the test above would compare the steps with themselves."""
    graph = Replicated(uneven(np.float32))
    assert graph.kernel("neighbours") is neighbours.draw and graph.kernel("edges") is neighbours.edges
    assert Graph.kernel(graph, "edges") is None


def test_values_of_a_mapped_graph_are_its_own() -> None:
    """Values alike, of which one is taken, are no more alike after a map."""
    graph = Replicated(uneven(np.float64, alike=True))
    first = GraphSage(graph, [4]).sample([np.arange(N)])[0].blocks[0].data
    assert (first == 2.5).all()
    other = graph.map(lambda values: np.arange(len(values), dtype=np.float64))
    block = GraphSage(other, [4]).sample([np.arange(N)])[0].blocks[0]
    assert (np.diff(block.data) != 0).any()
    dense = np.zeros((N, N))
    dense[graph.A.nonzero()] = np.arange(graph.A.nnz)
    rows = np.repeat(np.arange(N), np.diff(block.indptr))
    assert np.array_equal(block.data, dense[block.rows[rows], block.cols[block.indices]])


@pytest.mark.parametrize("wrong", [-1, N])
def test_columns_that_are_no_nodes_are_refused(wrong: int) -> None:
    A = uneven(np.float32)
    labels, everything = Relabelling(N), Stack.of([np.arange(N)])
    A.indices[A.nnz // 2] = wrong
    arguments = A, A.indptr.astype(np.int64), everything
    problem = rf"indices: entry {A.nnz // 2} must lie in 0..{N - 1}"
    with pytest.raises(ValueError, match=problem):
        neighbours.draw(*arguments, N, np.zeros(1, np.uint64), labels, False)
    with pytest.raises(ValueError, match=problem):
        neighbours.edges(*arguments, everything, None, labels)
    assert (labels.table == -1).all()


def test_rows_that_are_none_are_refused() -> None:
    A, labels, keys = uneven(np.float32), Relabelling(N), np.zeros(1, np.uint64)
    pointers = A.indptr.astype(np.int64)
    for ids, problem in (([N], rf"ids: must lie in 0..{N - 1}, got {N}"), ([-1], "got -1")):
        with pytest.raises(ValueError, match=problem):
            neighbours.draw(A, pointers, Stack.of([np.array(ids)]), 3, keys, labels, False)
    for wrong in (-1, A.nnz + 1):
        fallen = pointers.copy()
        fallen[8] = wrong
        rows = Stack.of([np.array([7])])
        with pytest.raises(ValueError, match="pointers: "):
            neighbours.draw(A, fallen, rows, 3, keys, labels, False)
        with pytest.raises(ValueError, match="pointers: |negative dimensions"):
            neighbours.edges(A, fallen, rows, rows, None, labels)
