"""Answers of the owners of a partitioned graph's rows: draws, rows and sums, and the words that they cost."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from distgnn import progress, rng
from distgnn.comm.steps import at_once
from distgnn.errors import PeerError
from distgnn.gallery import rmat
from distgnn.layout import nested, partition
from distgnn.local.relabel import Relabelling
from distgnn.local.stack import Stack
from distgnn.operators import grids, make_grid
from distgnn.sampling import GraphSage, Ladies, Partitioned, sample_rows
from distgnn.sampling.cluster import Cluster
from distgnn.sampling.owners import Questions, picked_by_owners, words
from distgnn.sampling.saint import Saint
from distgnn.sampling.sampler import Sampler
from distgnn.sampling.shadow import Shadow
from loops import each

from .test_spgemm import uneven

N = 97
A = rmat(N, degree=9, directed=True, features=0, classes=0).A.astype(np.float64)
A.data = 1.0 + np.arange(A.nnz) % 7
DEGREES = np.diff(A.indptr)


def graphs(comm: MPI.Intracomm, backend: Any) -> Iterator[tuple[dg.Grid, np.ndarray, Partitioned]]:
    """Yield a graph on every 1.5D grid, cut evenly and not, and where its rows end."""
    for sizes in grids("1.5d", comm.size):
        grid = make_grid(comm, "1.5d", sizes, backend=backend)
        for cut in (partition, uneven):
            parts = cut(N, grid.shape["rows"])
            yield grid, nested(parts, grid.shape["reps"]), Partitioned(grid, A, parts, backend=backend)
        grid.free()


def minibatches(rank: int, hubs: bool = False) -> list[np.ndarray]:
    """Make lists of distinct vertices of a rank: of many sizes, one empty; on rank 1 none.

    ``hubs``: every list has the vertices of most neighbours, which many lists share then.
    """
    generator, most = np.random.default_rng(rank), np.argsort(-DEGREES)[: 20 * hubs]
    sizes = [] if rank == 1 else [0, 1, 5, 40, 17, 30, *[9] * rank]
    lists = (generator.choice(N, size, replace=False) for size in sizes)
    return [generator.permutation(np.union1d(own, most)) for own in lists]


def keys_of(rank: int) -> np.ndarray:
    return rng.hashes(rng.key(rank, rng.SAMPLE), np.arange(len(minibatches(rank))))


def by_owner(lists: list[np.ndarray], parts: np.ndarray, me: int) -> dict[int, Counter[int]]:
    """Count how often each vertex of another rank's rows is asked for, by that rank."""
    asked: dict[int, Counter[int]] = {q: Counter() for q in range(len(parts) - 1) if q != me}
    for vertex in np.concatenate([np.empty(0, int), *lists]).astype(int).tolist():
        owner = int(np.searchsorted(parts, vertex, side="right")) - 1
        if owner != me:
            asked[owner][vertex] += 1
    return asked


def asked_words(parts: np.ndarray, lists: list[list[np.ndarray]], me: int) -> int:
    """Count the words of the questions that reach a rank."""
    others = [rank for rank in range(len(lists)) if rank != me]
    pairs = sum(by_owner(lists[rank], parts, rank)[me].total() for rank in others)
    return 2 * sum(len(lists[rank]) for rank in others) + pairs


def sent(times: Counter[int], fanout: int) -> int:
    """Count the entries that answer for vertices that are asked for so often."""
    return sum(
        min(DEGREES[v], m * min(fanout, DEGREES[v])) if m > 1 else min(fanout, DEGREES[v])
        for v, m in times.items()
    )


@pytest.mark.ranks(1, 3, 4, 8)
@each("hubs", [False, True])
@each("fanout", [1, 5, 200])
def test_draws_are_those_of_whole_rows_for_the_words_of_the_formula(
    comm: MPI.Intracomm, backend: Any, hubs: bool, fanout: int
) -> None:
    everybody = [minibatches(rank, hubs) for rank in range(comm.size)]
    lists = everybody[comm.rank]
    vertices = np.concatenate([np.empty(0, int), *lists]).astype(int)
    keys = keys_of(comm.rank)
    own = np.repeat(keys, [len(part) for part in lists])
    own = rng.splitmix64(rng.splitmix64(vertices.astype(np.uint64)) ^ own)
    P = A[vertices]
    expected = sample_rows(sp.csr_array((np.ones(P.nnz), P.indices, P.indptr), shape=P.shape), fanout, own)
    for grid, parts, graph in graphs(comm, backend):
        with dg.Ledger() as counted:
            drawn = at_once(graph.draw(Stack.of(lists, backend), fanout, backend.asarray(keys)))
        counts, columns, values, degrees = map(backend.to_host, drawn)
        np.testing.assert_array_equal(counts, np.diff(expected.indptr))
        np.testing.assert_array_equal(columns, expected.indices)
        np.testing.assert_array_equal(degrees, DEGREES[vertices])
        owners = np.repeat(np.arange(vertices.size), counts)
        np.testing.assert_array_equal(values, P.toarray()[owners, columns])
        asked = by_owner(lists, parts, comm.rank)
        pairs = sum(times.total() for times in asked.values())
        entries = sum(sent(times, fanout) for times in asked.values())
        assert counted.words == asked_words(parts, everybody, comm.rank) + pairs + 2 * entries
        others = sum(len(part) for rank, part in enumerate(everybody) if rank != comm.rank)
        reached = asked_words(parts, everybody, comm.rank) - 2 * others
        assert counted.words == words(others, reached, pairs, entries)
        assert counted.messages <= 5 * (grid.size - 1)


@pytest.mark.ranks(1, 3, 4, 6)
@each("hubs", [False, True])
def test_sums_and_rows_for_the_words_of_the_formula(comm: MPI.Intracomm, backend: Any, hubs: bool) -> None:
    """Sums of one rank's lists are in no other's; some owners send sums and some rows."""
    everybody = [minibatches(rank, hubs) for rank in range(comm.size)]
    lists, kinds = everybody[comm.rank], set()
    for _, parts, graph in graphs(comm, backend):
        asked = by_owner(lists, parts, comm.rank)
        with dg.Ledger() as counted:
            S = at_once(graph.sums(Stack.of(lists, backend)))
        indicators = np.array([np.isin(np.arange(N), part) for part in lists]).reshape(-1, N)
        found = sp.csr_array(tuple(map(backend.to_host, (S.data, S.indices, S.indptr))), shape=S.shape)
        assert found.has_canonical_format
        np.testing.assert_array_equal(found.toarray(), indicators.astype(float) @ A.toarray())
        expected = asked_words(parts, everybody, comm.rank)
        for q, times in asked.items():
            block = np.arange(parts[q], parts[q + 1])
            sums = (indicators[:, block].astype(int) @ (A.toarray()[block] != 0)) > 0
            either = len(lists) + 2 * int(sums.sum()), len(times) + 2 * sum(int(DEGREES[v]) for v in times)
            kinds.add(either[0] <= either[1])
            expected += min(either)
        assert counted.words == expected
        distinct = np.unique(np.concatenate([np.empty(0, int), *lists]).astype(int))
        with dg.Ledger() as counted:
            at_once(graph.rows(backend.asarray(distinct)))
        once = [[np.unique(np.concatenate([np.empty(0, int), *part]).astype(int))] for part in everybody]
        asked = by_owner(once[comm.rank], parts, comm.rank)
        fetched = sum(len(times) + 2 * sum(int(DEGREES[v]) for v in times) for times in asked.values())
        assert counted.words == asked_words(parts, once, comm.rank) + fetched
        Q = sp.csr_array(np.random.default_rng(comm.rank).integers(0, 3, (comm.rank, N)).astype(float))
        C = graph.multiply(Q)
        found = sp.csr_array(tuple(map(backend.to_host, (C.data, C.indices, C.indptr))), shape=C.shape)
        np.testing.assert_array_equal(found.toarray(), (Q @ A).toarray())
    kinds = set().union(*comm.allgather(kinds))
    assert comm.size < 3 or kinds == {False, True}


@pytest.mark.ranks(1, 3, 4)
@each("by_owners", [True, False, None])
@each("scaled", [True, False])
def test_edges_for_the_words_of_the_formula(
    comm: MPI.Intracomm, backend: Any, by_owners: bool | None, scaled: bool
) -> None:
    """Picked by owners or from rows, as forced or as is expected to be fewer words."""
    everybody = [minibatches(rank) for rank in range(comm.size)]
    generators = [np.random.default_rng(50 + rank) for rank in range(comm.size)]
    columns = [
        [np.flatnonzero(generator.random(N) < 0.3) for _ in lists]
        for generator, lists in zip(generators, everybody, strict=True)
    ]
    lists, cols = everybody[comm.rank], columns[comm.rank]
    scale = np.random.default_rng(comm.rank).uniform(1, 2, sum(map(len, cols))) if scaled else None
    tops = np.cumsum([0, *map(len, cols)])
    sizes = comm.size, *(sum(len(batch) for of in lists for batch in of) for lists in (columns, everybody))
    owners = picked_by_owners(*sizes, A.nnz / N) if by_owners is None else by_owners
    for _, parts, graph in graphs(comm, backend):
        stacks = Stack.of(lists, backend), Stack.of(cols, backend)
        given = None if scale is None else backend.asarray(scale)
        with pytest.MonkeyPatch.context() as patch, dg.Ledger() as counted:
            patch.setattr("distgnn.sampling.spgemm.picked_by_owners", lambda *_: owners)
            indptr, found, values = at_once(graph.edges(*stacks, given, Relabelling(N)))
        pointers, data = backend.to_host(indptr), backend.to_host(values)
        places, kept = backend.to_host(found.ids), Counter[bool]()
        first = 0
        for number, (rows, own) in enumerate(zip(lists, cols, strict=True)):
            top = pointers[first : first + len(rows) + 1]
            entries = data[top[0] : top[-1]], places[found.slices[number]], top - top[0]
            block = sp.csr_array(entries, shape=(len(rows), N))
            expected = A.toarray()[rows][:, own] * (
                1 if scale is None else scale[tops[number] : tops[number + 1]]
            )
            np.testing.assert_array_equal(block.toarray()[:, : len(own)], expected)
            first += len(rows)
            for row, count in zip(rows, np.count_nonzero(expected, axis=1), strict=True):
                kept[bool(parts[comm.rank] <= row < parts[comm.rank + 1])] += int(count)
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        if owners:
            away = sum(times.total() for times in by_owner(lists, parts, comm.rank).values())
            total = asked_words(parts, everybody, comm.rank) + away + 2 * kept[False]
            total += sum(len(columns[rank]) + sum(map(len, columns[rank])) for rank in others)
        else:
            once = [[np.unique(np.concatenate([np.empty(0, int), *part]).astype(int))] for part in everybody]
            asked = by_owner(once[comm.rank], parts, comm.rank)
            total = asked_words(parts, once, comm.rank)
            total += sum(len(times) + 2 * sum(int(DEGREES[v]) for v in times) for times in asked.values())
        assert counted.words == total and counted.messages <= 7 * (comm.size - 1)


@pytest.mark.ranks(1, 3, 4)
def test_all_rows_are_added_by_one_all_reduce(comm: MPI.Intracomm, backend: Any) -> None:
    for _, _, graph in graphs(comm, backend):
        with dg.Ledger() as counted:
            found = graph.on_host().column_sums()
        np.testing.assert_array_equal(found, A.toarray().sum(axis=0))
        assert counted.words == round(2 * N * (comm.size - 1) / comm.size)


def test_owners_pick_edges_where_rows_would_be_more_words() -> None:
    assert picked_by_owners(4, 512, 512, 30) and not picked_by_owners(64, 512, 512, 30)
    assert not picked_by_owners(4, 512, 10, 30) and not picked_by_owners(4, 0, 0, 30)


@pytest.mark.ranks(4)
def test_copies_save_words_of_features_and_cost_none_elsewhere(comm: MPI.Intracomm) -> None:
    """The graph costs the same words for every c, where all ranks have as many rows."""
    n, found = 96, []
    square = sp.csr_array(A[:n, :n])
    lists = [part[part < n] for part in minibatches(comm.rank)]
    for sizes in grids("1.5d", comm.size):
        grid = make_grid(comm, "1.5d", sizes, backend="numpy")
        graph = Partitioned(grid, square)
        features = dg.sampling.Features(
            dg.scatter(np.ones((n, 5)), dg.layout.Layout(grid, dg.layout.Cut(("rows",)), dg.layout.Cut()))
        )
        with dg.Ledger() as of_graph:
            samples = Ladies(graph, [9, 8], seed=3).sample(lists, first=10 * comm.rank)
        with dg.Ledger() as of_features:
            for number in range(max(comm.allgather(len(samples)))):
                features.fetch(samples[number].inputs if number < len(samples) else [])
        totals = [comm.allreduce(float(counted.words)) for counted in (of_graph, of_features)]
        found.append((grid.shape["reps"], *totals))
        grid.free()
    (one, graph_words, feature_words), *more = sorted(found)
    assert one == 1 and len(more) == 2
    for _, other_graph, other_features in more:
        assert other_graph == graph_words and other_features < feature_words
        feature_words = other_features


SAMPLERS = {
    "sage": lambda graph: GraphSage(graph, [5, 5], seed=3),
    "ladies": lambda graph: Ladies(graph, [9, 8], seed=3),
    "saint": lambda graph: Saint(graph, 9, 2, seed=3),
    "shadow": lambda graph: Shadow(graph, [5, 5], 2, seed=3),
    "cluster": lambda graph: Cluster(graph, 2, np.arange(N) % 4, seed=3),
}


@pytest.mark.ranks(3)
@pytest.mark.abandons
@each("name", SAMPLERS)
def test_an_error_of_one_rank_between_messages_ends_all(
    comm: MPI.Intracomm, monkeypatch: Any, name: str
) -> None:
    """A rank without memory for its draws tells those that wait for them; afterwards all sample again."""
    monkeypatch.setattr(progress, "LONG", 0.05)
    grid = make_grid(comm, "1.5d", replication=1)
    sampler = SAMPLERS[name](Partitioned(grid, A))
    expected = sampler.sample(minibatches(comm.rank))
    place = (Cluster, "_drawn") if name == "cluster" else (Sampler, "keys")
    places = [place, *([(Questions, "_drawn")] if name in ("sage", "shadow") else [])]
    for failed, where in itertools.product(range(comm.size), places):
        with monkeypatch.context() as patch, pytest.raises((MemoryError, PeerError)) as error:
            if comm.rank == failed:
                patch.setattr(*where, lambda *_: (_ for _ in ()).throw(MemoryError()))
            sampler.sample(minibatches(comm.rank))
        assert (error.type is MemoryError) == (comm.rank == failed)
        for sample, before in zip(sampler.sample(minibatches(comm.rank)), expected, strict=True):
            np.testing.assert_array_equal(sample.inputs, before.inputs)
    grid.free()
