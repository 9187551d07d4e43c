"""Part vectors: valid, repeatable, within their bounds, and as good as the method says on graphs whose best
parts are known.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn import UserError, gallery
from distgnn.local import host
from distgnn.partition import (
    METHODS,
    Pattern,
    Wanted,
    auto,
    largest_over_mean,
    measure,
    packages,
    partition,
    volume,
)
from loops import each

methods = pytest.mark.parametrize("method", METHODS)


def available(method: str) -> None:
    try:
        Wanted(method, 1).check()
    except UserError as error:
        pytest.skip(str(error))


def random_matrix(n: int, nnz: int, seed: int = 0, symmetric: bool = False) -> sp.csr_array:
    rng = np.random.default_rng(seed)
    A = sp.csr_array((np.ones(nnz), rng.integers(0, n, (2, nnz))), shape=(n, n))
    return sp.csr_array(A + A.T) if symmetric else A


def communities(count: int = 8, size: int = 60, seed: int = 0) -> sp.csr_array:
    """Make groups with many edges inside and few between, their nodes in random order."""
    rng = np.random.default_rng(seed)
    inside = rng.integers(0, size, (2, 6 * size * count)) + np.repeat(np.arange(count) * size, 6 * size)
    across = rng.integers(0, size * count, (2, count * size // 4))
    name = rng.permutation(size * count)
    src, dst = name[np.concatenate([inside, across], axis=1)]
    A = sp.csr_array((np.ones(len(src)), (src, dst)), shape=(size * count,) * 2)
    return sp.csr_array(A + A.T)


GRAPHS = {
    "communities": communities(),
    "directed": random_matrix(90, 400),
    "road": gallery.road(500, features=0, classes=0).A,
    "rmat": gallery.rmat(512, degree=8, features=0, classes=0).A,
    "a star": sp.csr_array(
        sp.coo_array((np.ones(80), ([0] * 40 + [*range(1, 41)], [*range(1, 41)] + [0] * 40)), shape=(41, 41))
    ),
    "no edges": sp.csr_array((30, 30)),
    "only loops": sp.eye_array(30, format="csr"),
}
graphs = pytest.mark.parametrize("graph", GRAPHS)


def counted(A: sp.csr_array, part: np.ndarray, parts: int) -> tuple[list[int], list[int], int]:
    """Count (rows sent by each part, received by each, entries between parts), entry by entry."""
    moves, cut = set(), 0
    for i, j in zip(*A.nonzero(), strict=True):
        cut += part[i] != part[j]
        if part[i] != part[j]:
            moves.add((int(j), int(part[i])))
    sends, receives = [0] * parts, [0] * parts
    for j, to in moves:
        sends[part[j]] += 1
        receives[to] += 1
    return sends, receives, cut


@graphs
@each("parts", [1, 2, 5, 30])
def test_quality_is_what_counting_finds(graph: str, parts: int) -> None:
    A = GRAPHS[graph]
    part = np.random.default_rng(parts).integers(0, max(parts - 1, 1), A.shape[0])
    q = measure(Pattern.of(A), part, parts)
    sends, receives, cut = counted(A, part, parts)
    assert (q.sends.tolist(), q.receives.tolist(), q.volume) == (sends, receives, sum(sends))
    assert q.edge_cut == (cut if graph == "directed" else cut / 2)
    assert q.nodes.tolist() == np.bincount(part, minlength=parts).tolist()
    assert q.nonzeros.tolist() == [int(A[part == k].nnz) for k in range(parts)]
    assert q.empty >= (parts > 1)


def each_method_graph_and_number() -> list[tuple[str, str, int]]:
    """Pair every method with every graph, and each of both with every number of parts."""
    numbers = (1, 7, 30)
    pairs = ((i, j) for i in range(len(METHODS)) for j in range(len(GRAPHS)))
    return [([*METHODS][i], [*GRAPHS][j], numbers[(i + j) % 3]) for i, j in pairs]


@pytest.mark.parametrize(("method", "graph", "parts"), each_method_graph_and_number())
@pytest.mark.slow
def test_parts_are_valid_and_repeatable(method: str, graph: str, parts: int, monkeypatch: Any) -> None:
    available(method)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # on several threads KaMinPar finds others each time
    A = GRAPHS[graph]
    part = partition(A, parts, method, seed=3)
    assert part.dtype == np.int32 and part.shape == (A.shape[0],)
    assert 0 <= part.min() and part.max() < parts
    np.testing.assert_array_equal(partition(A, parts, method, seed=3), part)


@methods
def test_communities_are_found(method: str) -> None:
    available(method)
    A = GRAPHS["communities"]
    moved = measure(Pattern.of(A), partition(A, 8, method), 8).volume
    baseline = measure(Pattern.of(A), partition(A, 8, "random"), 8).volume
    assert moved > 0.9 * baseline if method == "random" else moved < 0.2 * baseline


def uneven(nodes: int, directed: bool) -> Pattern:
    """Make a graph with hubs and communities of very different size.

    Its parts send very different volumes unless a method balances them.
    """
    A = gallery.sbm(
        nodes,
        communities=nodes // 50,
        size_exponent=2.0,
        degree_exponent=2.5,
        degree=12,
        mixing=0.1,
        features=0,
        seed=1,
    ).A
    return Pattern.of(sp.csr_array(sp.triu(A) + sp.tril(A, -nodes // 2)) if directed else A)


@pytest.mark.parametrize(("nodes", "directed"), [(1500, False), (2000, True)])
@pytest.mark.slow
def test_volume_relieves_the_busiest_sender(nodes: int, directed: bool) -> None:
    """The busiest part of `volume` sends less than METIS's and Mt-KaHyPar's.

    All parts together send hardly more.
    """
    available("volume"), available("metis"), available("hypergraph")
    pattern, parts = uneven(nodes, directed), 8
    ours, few_edges, best = (
        measure(pattern, partition(pattern, parts, method), parts)
        for method in ("volume", "metis", "hypergraph")
    )
    assert ours.sends.max() <= 0.9 * min(best.sends.max(), few_edges.sends.max())
    assert ours.volume <= 1.03 * best.volume
    assert largest_over_mean(ours.receives) <= 1.40
    assert largest_over_mean(ours.nonzeros) <= 1.10


@pytest.mark.parametrize("of_start", [1, 1.03])
@pytest.mark.slow
def test_volume_keeps_to_the_total(of_start: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its busiest sender is no worse than the start's, though on a road map few rows can move."""
    available("volume"), available("kaminpar")
    monkeypatch.setattr(volume, "OF_START", of_start)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    pattern = Pattern.of(gallery.road(10_000, features=0, seed=3).A)
    ours, start = (measure(pattern, partition(pattern, 16, method), 16) for method in ("volume", "kaminpar"))
    assert ours.sends.max() <= start.sends.max() and ours.volume <= of_start * start.volume
    assert largest_over_mean(ours.nonzeros) <= 1.101 and ours.empty == 0


@pytest.mark.slow
def test_volume_returns_its_start_if_the_busiest_would_send_more(monkeypatch: pytest.MonkeyPatch) -> None:
    available("kaminpar")

    class Worse:
        @staticmethod
        def volume_refine(
            pointers: Any, columns: Any, part: Any, sends: Any, receives: Any, **rest: Any
        ) -> None:
            part[:], sends[:] = 0, [10**6, *[0] * (len(sends) - 1)]

    monkeypatch.setattr(packages.host, "built", lambda: Worse)
    monkeypatch.setattr(volume, "OF_START", 10**6)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    start = partition(GRAPHS["road"], 4, "kaminpar")
    np.testing.assert_array_equal(partition(GRAPHS["road"], 4, "volume"), start)


@pytest.mark.slow
def test_volume_needs_no_other_partitioner(monkeypatch: pytest.MonkeyPatch) -> None:
    available("volume")
    for package in set(packages.PACKAGES.values()):
        monkeypatch.setitem(sys.modules, package, None)
    pattern = Pattern.of(GRAPHS["road"])
    q, baseline = (measure(pattern, partition(pattern, 8, method), 8) for method in ("volume", "random"))
    assert q.volume < 0.25 * baseline.volume and q.empty == 0
    assert largest_over_mean(q.nonzeros) <= 1.10
    one = partition(GRAPHS["communities"], 8, "volume", seed=1)
    np.testing.assert_array_equal(partition(GRAPHS["communities"], 8, "volume", seed=1), one)


def refine(pattern: Pattern, part: np.ndarray, parts: int, **settings: Any) -> np.ndarray:
    """Change `part`; int64 (2, parts): rows sent and received, as the kernel counts."""
    volumes = np.empty((2, parts), np.int64)
    defaults = {"send_bound": 1, "receive_bound": 1.3, "heat": 0.5, "seed": 1}
    host.built().volume_refine(pattern.indptr, pattern.indices, part, *volumes, **defaults | settings)
    return volumes


@graphs
def test_refinement_counts_what_it_moves(graph: str) -> None:
    """The volumes, kept up to date over thousands of moves, are the parts' own."""
    available("volume")
    pattern, parts = Pattern.of(GRAPHS[graph]), 6
    part = np.random.default_rng(0).integers(0, parts, pattern.n).astype(np.int32)
    before = measure(pattern, part, parts)
    capacity, work = int(2 * pattern.nnz / parts) + 50, 500 * (pattern.n + pattern.nnz)
    volumes = refine(pattern, part, parts, capacity=capacity, work=work)
    q = measure(pattern, part, parts)
    assert volumes.tolist() == [q.sends.tolist(), q.receives.tolist()]
    assert q.volume < before.volume or q.volume == before.volume == 0


def test_rows_leave_a_part_with_more_than_its_capacity() -> None:
    """A path cut unevenly is cut in the middle."""
    available("volume")
    pattern = Pattern.of(sp.diags_array([np.ones(7), np.ones(7)], offsets=[-1, 1], format="csr"))
    part = np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int32)
    refine(pattern, part, 2, capacity=7, work=200 * 22)
    assert np.bincount(part).tolist() == [4, 4]


@pytest.mark.parametrize("graph", ["path", "ring", "tree", "tree on a grid"])
@pytest.mark.slow
def test_what_is_one_road_or_dead_end_is_cut_all_the_same(graph: str) -> None:
    """No crossing is left in these, or a dead end with most of the nodes: cells of more than a part."""
    available("volume")
    after = np.arange(1, 2000)
    tree = after - 1 - np.random.default_rng(0).integers(0, np.minimum(after, 50))
    grid = np.arange(2000, 2400).reshape(20, 20)
    streets = [
        np.stack([grid[:, :-1].ravel(), grid[:, 1:].ravel()]),
        np.stack([grid[:-1].ravel(), grid[1:].ravel()]),
    ]
    ends = {
        "path": [(after - 1, after)],
        "ring": [(after - 1, after), ([1999], [0])],
        "tree": [(tree, after)],
        "tree on a grid": [(tree, after), ([0], [2210]), *streets],
    }[graph]
    rows, columns = np.concatenate(ends, axis=1)
    A = sp.coo_array((np.ones(len(rows)), (rows, columns)), shape=(max(rows.max(), columns.max()) + 1,) * 2)
    q = measure(Pattern.of(A + A.T), partition(A + A.T, 8, "volume"), 8)
    assert q.empty == 0 and largest_over_mean(q.nonzeros) <= 1.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"part": [0, 2, 1]}, "part: must lie in 0..1, got 2 at position 1"),
        ({"part": [0, -1, 1]}, "part: must lie in 0..1, got -1 at position 1"),
        ({"columns": [1, 3, 0, 2]}, "columns: must lie in 0..2, got 3 at position 1"),
        ({"pointers": [0, 3, 2, 4]}, "pointers: must not fall, got 3 and 2 from position 1 on"),
        ({"pointers": [0, 1, 2, 3]}, "pointers: must rise from 0 to 4"),
        ({"pointers": [0, 4]}, r"pointers: need shape \(4,\)"),
    ],
)
def test_refinement_refuses_what_is_no_matrix(changes: dict[str, list[int]], message: str) -> None:
    available("volume")
    arrays = {"pointers": [0, 2, 3, 4], "columns": [1, 2, 0, 2], "part": [0, 1, 1]} | changes
    kinds = {"pointers": np.int64, "columns": np.int32, "part": np.int32}
    pointers, columns, part = (np.array(arrays[name], kind) for name, kind in kinds.items())
    with pytest.raises(ValueError, match=message):
        refine(Pattern(pointers, columns), part, 2, capacity=10, work=10)


def test_bad_arguments() -> None:
    A = GRAPHS["directed"]
    for method, parts, message in (
        ("magic", 4, "partition=magic:4: no such method or file; expected one of auto, random, metis"),
        ("random", 91, "more parts than the 90 nodes of this graph; expected at most 90"),
        ("random", 0, "expected at least one part"),
    ):
        with pytest.raises(UserError, match=message):
            partition(A, parts, method)
    with pytest.raises(ValueError, match="square"):
        partition(A[:5], 2, "random")


@methods
def test_bounds_without_slack_are_kept_as_well_as_can_be_and_less_is_refused(method: str) -> None:
    available(method)
    A = random_matrix(60, 240, symmetric=True)
    assert set(partition(A, 3, method, imbalance=1.0)) == {0, 1, 2}
    with pytest.raises(UserError, match=r"imbalance=0\.9: expected 1 or more"):
        partition(A, 3, method, imbalance=0.9)


@pytest.mark.parametrize(
    ("method", "package"), [("metis", "pymetis"), ("metis-volume", "pymetis"), ("hypergraph", "mtkahypar")]
)
def test_a_missing_package_is_named_with_its_extra(
    method: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"{package}; install with: pip install 'distgnn\[partition\]'"):
        partition(GRAPHS["road"], 4, method)


def test_patterns_do_not_care_how_a_matrix_is_stored() -> None:
    A = sp.coo_array((np.array([0.0, 2, 3, 4]), ([0, 1, 1, 2], [1, 2, 2, 0])), shape=(3, 3))
    pattern = Pattern.of(A)
    assert (pattern.indptr.tolist(), pattern.indices.tolist()) == ([0, 1, 2, 3], [1, 2, 0])
    assert not pattern.symmetric
    chunks = [(np.array([2]), np.array([0])), (np.array([1, 0]), np.array([2, 1]))]
    again = Pattern.of_entries(3, chunks)
    assert (again.indptr.tolist(), again.indices.tolist()) == ([0, 1, 2, 3], [1, 2, 0])
    assert Pattern.of_entries(2, []).nnz == 0


@each("large, there, method", [(False, True, "volume"), (True, True, "kaminpar"), (True, False, "metis")])
def test_auto_takes_a_cut_of_edges_where_volume_takes_minutes(monkeypatch, large, there, method):
    available(method)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(auto, "LARGE", Pattern.of(communities()).nnz + (not large))
    monkeypatch.setattr(auto, "find_spec", lambda _: "kaminpar" if there else None)
    assert (partition(communities(), 8) == partition(communities(), 8, method)).all()
