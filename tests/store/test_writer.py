"""Files of `prepare` hold the matrix that SciPy and NumPy compute, whatever the shards, the order and the
awkwardness.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from distgnn import UserError
from distgnn.store import Store, prepare
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.shards import ShardGrid
from distgnn.store.write import adjacency, arguments
from loops import each

from .graphs import AWKWARD, Graph, assert_same, permuted, random_graph
from .graphs import adjacency as expected_adjacency

GRIDS = [None, (1, 3), (5, 3)]  # of smaller graphs, as many shards as nodes
ON_ALL_GRIDS = ("prime", "weighted directed")  # others on one
CASES = [
    (case, grid)
    for i, case in enumerate(AWKWARD)
    for j, grid in enumerate(GRIDS)
    if case in ON_ALL_GRIDS or i % 3 == j
]


@pytest.fixture
def store_small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set sizes so small that little graphs spill to disk, split hub shards and come in pieces."""
    monkeypatch.setattr(LIMITS, "shard_entries", 40)
    monkeypatch.setattr(LIMITS, "sorted_entries", 16)
    monkeypatch.setattr(LIMITS, "entries", 5)
    monkeypatch.setattr(LIMITS, "file_bytes", 100)
    monkeypatch.setattr(LIMITS, "row_bytes", 60)
    monkeypatch.setattr(LIMITS, "spilled_bytes", 100)


def check(path: Path, graph: Graph, tolerance: float, **options) -> None:
    """Compare all of the store with all of the graph, in every order."""
    store = Store(path)
    A = expected_adjacency(graph, **options)
    assert (store.n, store.nnz, store.width, store.classes) == (graph.n, A.nnz, graph.width, graph.classes)
    assert store.verify() == []
    for name in store.orders:
        order = store.order(name)
        p = order.permutation(0, graph.n)
        assert sorted(p) == list(range(graph.n))
        np.testing.assert_array_equal(order.positions(p), np.arange(graph.n))
        B = order.block((0, graph.n), (0, graph.n))
        assert B.dtype == order.dtype == store.dtype
        assert_same(B, permuted(A, p), tolerance)
        assert order.nnz == order.shard_nnz.sum() == A.nnz
        np.testing.assert_array_equal(store.features(name), graph.X[p])
        if graph.classes:
            np.testing.assert_array_equal(store.labels(name), graph.labels[p])
            np.testing.assert_array_equal(store.split(name), graph.split[p])
        if order.symmetric:
            assert (B != B.T).nnz == 0


@pytest.mark.parametrize(("case", "grid"), CASES)
@pytest.mark.slow
def test_matrix_and_node_arrays(case: str, grid: tuple[int, int] | None, tmp_path: Path) -> None:
    graph = AWKWARD[case]
    grid = grid and (min(grid[0], graph.n), min(grid[1], graph.n))
    done = prepare(graph, tmp_path / "g.dg", order=("random", "original"), shards=grid)
    assert done.shards == {"random": grid or (1, 1), "original": grid or (1, 1)}
    assert done.edges == graph.distinct_edges() == Store(tmp_path / "g.dg").manifest["edges"]
    check(tmp_path / "g.dg", graph, 1e-6)
    assert Store(tmp_path / "g.dg").symmetric is not graph.directed


@pytest.mark.parametrize("case", AWKWARD)
@pytest.mark.slow
def test_limits_far_below_the_graph(case: str, tmp_path: Path, store_small_limits: None) -> None:
    graph = AWKWARD[case]
    prepare(graph, tmp_path / "g.dg", order=("original", "random"), seed=4)
    check(tmp_path / "g.dg", graph, 1e-6)


NORMALIZED = ["prime", "directed", "weighted", "weighted directed", "isolated nodes", "zero weights"]


@pytest.mark.parametrize(
    ("case", "normalize", "self_loops"),
    [
        (case, normalize, (i + i // 3 + j) % 2 == 0)
        for i, case in enumerate(NORMALIZED)
        for j, normalize in enumerate(arguments.NORMALIZATIONS)
    ],
)
def test_normalisations_in_float64(case: str, normalize: str, self_loops: bool, tmp_path: Path) -> None:
    out = tmp_path / "g.dg"
    prepare(
        AWKWARD[case],
        out,
        normalize=normalize,
        self_loops=self_loops,
        dtype="float64",
        shards=(3, 2),
        order=("original",),
    )
    check(out, AWKWARD[case], 1e-14, normalize=normalize, self_loops=self_loops)
    facts = Store(out).manifest
    assert (facts["normalize"], facts["self_loops"], facts["dtype"]) == (normalize, self_loops, "float64")
    assert Store(out).symmetric == (normalize != "row" and not AWKWARD[case].directed)


def test_negative_weights_need_no_normalisation(tmp_path: Path) -> None:
    graph = Graph(4, [[0, 1], [1, 2], [0, 1]], [-2.0, -0.5, -3.0])
    prepare(graph, tmp_path / "g.dg", normalize="none")
    check(tmp_path / "g.dg", graph, 1e-7, normalize="none")
    with pytest.raises(
        UserError, match=r"normalize=gcn: .* sum to -1.5; negative weights need normalize=none"
    ):
        prepare(graph, tmp_path / "h.dg")


def test_values_in_float32_are_the_rounded_float64(tmp_path: Path) -> None:
    for dtype in arguments.DTYPES:
        prepare(AWKWARD["weighted"], tmp_path / dtype, dtype=dtype)
    single, double = (Store(tmp_path / dtype).order().block((0, 31), (0, 31)) for dtype in arguments.DTYPES)
    np.testing.assert_array_equal(single.data, double.data.astype(np.float32))


def test_listing_both_directions_changes_nothing(tmp_path: Path) -> None:
    once = random_graph(41, 150, weighted=True)
    twice = Graph(
        41,
        np.concatenate([once.pairs, once.pairs[::-1, ::-1]]),
        np.concatenate([once.weights, once.weights[::-1]]),
    )
    for name, graph in (("once", once), ("twice", twice)):
        prepare(graph, tmp_path / name, shards=(2, 2))
    A, B = (Store(tmp_path / name).order().block((0, 41), (0, 41)) for name in ("once", "twice"))
    assert_same(A, B, 0)


@pytest.mark.slow
def test_the_same_bytes_however_the_work_is_cut(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    graph = random_graph(53, 300, width=3, classes=2)
    prepare(graph, tmp_path / "whole", shards=(3, 3), order=("random", "original"))
    graph.chunk = 11
    prepare(graph, tmp_path / "again", shards=(3, 3), order=("random", "original"))
    files = Store(tmp_path / "whole").manifest["files"]
    assert Store(tmp_path / "again").manifest["files"] == files
    request.getfixturevalue("store_small_limits")
    prepare(graph, tmp_path / "pieces", shards=(3, 3), order=("random", "original"))
    whole, pieces = (Store(tmp_path / name) for name in ("whole", "pieces"))
    assert len(pieces.manifest["nodes"]["files"]) > len(whole.manifest["nodes"]["files"]) == 1
    for name in whole.orders:
        a, b = (store.order(name).block((0, 53), (0, 53)) for store in (whole, pieces))
        assert_same(a, b, 0)
        np.testing.assert_array_equal(whole.features(name), pieces.features(name))


def test_random_order_depends_on_the_seed_only(tmp_path: Path) -> None:
    orders = []
    for name, graph, seed in (
        ("a", AWKWARD["prime"], 1),
        ("b", AWKWARD["weighted"], 1),
        ("c", AWKWARD["prime"], 2),
    ):
        prepare(graph, tmp_path / name, seed=seed)
        orders.append(Store(tmp_path / name).order().permutation(0, 31).tolist())
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][:6] == [9, 17, 16, 12, 3, 22]  # on every machine, for good: stores must be reproducible


def test_order_values_are_moved_not_computed_again(tmp_path: Path) -> None:
    """Sums in another order round differently: a node's row must not depend on where it stands."""
    graph = random_graph(61, 900, weighted=True)
    prepare(graph, tmp_path / "g.dg", order=("random", "original"), dtype="float64", shards=(2, 3))
    store = Store(tmp_path / "g.dg")
    A = store.order("original").block((0, 61), (0, 61))
    B = store.order("random").block((0, 61), (0, 61))
    assert_same(B, permuted(A, store.order("random").permutation(0, 61)), 0)


def test_degrees_do_not_count_the_node_itself(tmp_path: Path) -> None:
    edges = [[0, 0], [0, 1], [0, 2], [1, 0], [5, 5]]
    expected = {"min": 0, "mean": 4 / 6, "max": 2, "isolated": 3}
    for loops in (True, False):
        done = prepare(Graph(6, edges), tmp_path / f"{loops}", self_loops=loops)
        assert done.edges == 4  # 0-1 is listed twice
        assert Store(tmp_path / f"{loops}").manifest["degrees"] == expected


def test_manifest_facts(tmp_path: Path) -> None:
    graph = AWKWARD["prime"]
    graph.class_names = ["a", "b", "c"]
    prepare(graph, tmp_path / "g.dg", seed=3)
    facts = Store(tmp_path / "g.dg").manifest
    split = np.bincount(graph.split, minlength=4)
    assert facts["split"] == {"train": split[1], "validation": split[2], "test": split[3]}
    assert facts["labelled"] == np.count_nonzero(graph.labels >= 0)
    assert facts["class_names"] == ["a", "b", "c"]
    assert (facts["version"], facts["source"], facts["seed"], facts["weighted"]) == (
        2,
        "test graph",
        3,
        False,
    )


def test_shard_files_are_chunked_and_checked(tmp_path: Path) -> None:
    prepare(AWKWARD["prime"], tmp_path / "g.dg", shards=(2, 2))
    datasets = []
    for path in (tmp_path / "g.dg").rglob("*.h5"):
        with h5py.File(path) as file:
            datasets += [
                (name, item.fletcher32, item.chunks is not None, item.compression)
                for name, item in file.items()
            ]
    assert {name for name, *_ in datasets} == {
        *("indptr", "indices", "values", "features", "labels", "split", "permutation", "inverse")
    }
    assert all(flags == [True, True, None] for _, *flags in datasets)


def test_indices_are_narrow(tmp_path: Path) -> None:
    prepare(AWKWARD["prime"], tmp_path / "g.dg")
    with h5py.File(tmp_path / "g.dg/orders/random/shard-0000-0000.h5") as file:
        assert [file[name].dtype for name in ("indptr", "indices", "values")] == [
            np.int32,
            np.int32,
            np.float32,
        ]


def test_a_late_weight_is_a_bug_of_the_source(tmp_path: Path) -> None:
    class Changing(Graph):
        def edges(self) -> Iterator:
            yield np.array([0]), np.array([1]), None
            yield np.array([1]), np.array([2]), np.array([2.0])

    with pytest.raises(ValueError, match="first ones had none"):
        prepare(Changing(3), tmp_path / "g.dg")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (Graph(3, [[0, 1], [1, 3]]), "test graph: edge 2 names node 3; node ids must be 0..2"),
        (Graph(3, [[0, 1], [-1, 2]]), "test graph: edge 2 names node -1"),
        (Graph(9, [[0, 1]] * 20 + [[9, 0]]), "test graph: edge 21 names node 9"),
        (
            Graph(3, [[0, 1], [1, 2]], [1, np.nan]),
            "test graph: edge 2 has weight nan; weights must be finite",
        ),
        (
            Graph(3, [[0, 1], [1, 2]], [1, 1e39]),
            r"edge 2 has weight 1e\+39; weights must be finite, float32 numbers",
        ),
        (Graph(0), "test graph: has no nodes"),
    ],
)
def test_bad_edges(graph: Graph, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        prepare(graph, tmp_path / "g.dg")
    assert list(tmp_path.iterdir()) == []


def test_weights_that_only_float64_holds(tmp_path: Path) -> None:
    prepare(Graph(3, [[0, 1], [1, 2]], [1, 1e39]), tmp_path / "g.dg", dtype="float64", normalize="none")
    assert Store(tmp_path / "g.dg").order().block((0, 3), (0, 3)).max() == 1e39
    with pytest.raises(UserError, match="normalize=gcn: a node's edge weights sum to inf"):
        prepare(Graph(3, [[0, 1], [1, 2]], [1e308, 1e308]), tmp_path / "h.dg", dtype="float64")


def test_features_that_no_disk_holds(tmp_path: Path) -> None:
    graph = Graph(1000000)
    graph.width = 1 << 20
    graph.X = np.broadcast_to(np.float32(1), (graph.n, graph.width))
    with pytest.raises(UserError, match=r"g.dg: 1000000 x 1048576 features need 4194.3 GB"):
        prepare(graph, tmp_path / "g.dg")


@pytest.mark.parametrize("bad", ["label", "label length", "split", "feature"])
def test_bad_node_arrays(bad: str, tmp_path: Path) -> None:
    graph = random_graph(10, 20, width=2, classes=3)
    if bad == "label":
        graph.labels[4], message = 3, "node 4 has label 3; expected -1..2"
    elif bad == "label length":
        graph.labels, message = graph.labels[:-1], "9 label values for 10 nodes"
    elif bad == "split":
        graph.split[7], message = 4, "node 7 has split 4; expected 0..3"
    else:
        graph.X[6, 1], message = np.nan, "node 6 has a feature that is not a finite number"
    with pytest.raises(UserError, match=f"test graph: {message}"):
        prepare(graph, tmp_path / "g.dg")
    assert list(tmp_path.iterdir()) == []


def test_complex_values_are_refused(tmp_path: Path) -> None:
    features, weights = random_graph(10, 20, width=2), Graph(3, [[0, 1], [1, 2]], [1, 2])
    features.X, weights.weights = features.X * 1j, weights.weights * 1j
    for graph, what in ((features, "features=complex64"), (weights, "weights=complex128")):
        with pytest.raises(UserError, match=f"{what}: holds complex values"):
            prepare(graph, tmp_path / "g.dg")
    assert list(tmp_path.iterdir()) == []


def test_arrays_of_a_source_are_only_read(tmp_path: Path) -> None:
    graph = Graph(6, [[4, 1], [0, 2], [0, 2], [5, 3], [3, 3]], [1, 2, 3, 4, 5], width=2, classes=3)
    for array in (graph.pairs, graph.weights, graph.X, graph.labels, graph.split):
        array.flags.writeable = False
    prepare(graph, tmp_path / "g.dg", order=["random", "double"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": ["metis"]}, "order=metis: no such order; expected one of original, random, double"),
        ({"order": ["random", "random"]}, "order=random,random: give one or more different orders"),
        ({"order": []}, "order="),
        ({"normalize": "max"}, "normalize=max: expected one of gcn, row, none"),
        ({"dtype": "int8"}, "dtype=int8: expected one of float32, float64"),
    ],
)
def test_bad_arguments(options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        prepare(AWKWARD["two nodes"], tmp_path / "g.dg", **options)
    assert list(tmp_path.iterdir()) == []


@each("text", ["4", "4x", "0x2", "2x-1", "axb", "2x2x2"])
def test_bad_shard_grids(text: str) -> None:
    with pytest.raises(UserError, match=f"shards='{text}': expected ROWSxCOLUMNS, such as 4x4"):
        arguments.parse_shards(text)
    assert arguments.parse_shards("4X12") == (4, 12)


def test_more_shards_than_files_can_be(tmp_path: Path) -> None:
    assert arguments.parse_shards("65536x1") == (65536, 1)
    with pytest.raises(
        UserError, match="shards=257x256: 65792 shards; at most 65536 are possible, such as 256x256"
    ):
        prepare(AWKWARD["prime"], tmp_path / "g.dg", shards=(257, 256))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("grid", [(32, 1), (1, 32), (32, 32)], ids=str)
@pytest.mark.slow
def test_more_shards_than_rows(grid: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=rf"shards={grid[0]}x{grid[1]}: the matrix is 31 x 31, so at most 31x31 is possible"
    ):
        prepare(AWKWARD["prime"], tmp_path / "g.dg", shards=grid)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_as_many_shards_as_rows(tmp_path: Path) -> None:
    graph = random_graph(7, 20)
    prepare(graph, tmp_path / "g.dg", shards=(7, 7))
    check(tmp_path / "g.dg", graph, 1e-6)


def test_default_grid_bounds_the_shards() -> None:
    for n, entries in ((10**6, 10**6), (10**6, 68 * 10**6), (4 * 10**6, 68 * 10**6), (10**8, 10**10)):
        rows, cols = ShardGrid.for_size(n, entries).shape
        assert rows == cols
        assert entries / (rows * cols) <= LIMITS.shard_entries
        assert entries / (rows * cols) * 4 > LIMITS.shard_entries or rows == 1
    assert ShardGrid.for_size(3, 10**9).shape == (4, 4)  # never many more than nodes


def test_a_hub_shard_is_sorted_in_ranges(
    tmp_path: Path, store_small_limits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than a few times LIMITS.sorted_entries are ever sorted at once, except within one row."""
    sizes = []

    def merge(entries: np.ndarray) -> np.ndarray:
        sizes.append(len(entries))
        return original(entries)

    original = adjacency.merged_records
    monkeypatch.setattr(adjacency, "merged_records", merge)
    graph = random_graph(29, 2000)  # nearly all of 29 x 29, most of it several times
    prepare(graph, tmp_path / "g.dg", shards=(1, 1), order=("original",))
    assert max(sizes) <= max(LIMITS.sorted_entries, 2 * 29) + LIMITS.entries
    check(tmp_path / "g.dg", graph, 1e-6)


@pytest.mark.slow
def test_memory_does_not_grow_with_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times the edges at the same n: the same peak.

    The sizes that bound it are scaled down with the graph, and are reached by the smaller of the two.
    """
    monkeypatch.setattr(LIMITS, "sorted_entries", 1 << 12)
    monkeypatch.setattr(LIMITS, "entries", 1 << 11)
    monkeypatch.setattr(LIMITS, "spilled_bytes", 1 << 15)
    # the lesser of two: a table of the interpreter may grow by megabytes in any one
    peaks = [min(_peak(tmp_path / f"{m} {run}", m) for run in (1, 2)) for m in (60_000, 180_000)]
    assert peaks[1] < 1.15 * peaks[0]
    assert peaks[1] < 180_000 * 16  # less than the edges alone


def _peak(out: Path, m: int) -> int:
    class Streamed(Graph):
        def edges(self) -> Iterator:
            for seed in range(m // 5_000):
                pairs = np.random.default_rng(seed).integers(0, self.n, (2, 5_000))
                pairs[:, :1_000] //= 50  # a corner much denser than the rest
                yield pairs[0], pairs[1], None

    tracemalloc.start()
    try:
        prepare(Streamed(3000), out, order=("original", "random"), shards=(3, 3))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
