"""Generated graphs: the statistics they promise, independence of chunks, features worth learning, whole
directories.
"""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from awkward_shapes import awkward
from distgnn import gallery
from distgnn.errors import UserError
from distgnn.gallery import (
    GeneratedGraph,
    Graph,
    PlantedPartition,
    RMat,
    RoadMap,
    directory,
    graph,
    rmat_graph,
)
from distgnn.gallery.streams import AliasTable, power_law, stream
from distgnn.store.format.limits import LIMITS

SMALL: dict[str, Callable[..., GeneratedGraph]] = {
    "rmat": lambda n=397, **options: RMat(n, **options),
    "rmat directed": lambda n=397, **options: RMat(n, directed=True, **options),
    "rmat in order": lambda n=397, **options: RMat(n, scramble=False, **options),
    "sbm": lambda n=397, **options: PlantedPartition(
        n, communities=min(n, 8), mixing=0.2 * (n > 1), **options
    ),
    "sbm power laws": lambda n=397, **options: PlantedPartition(
        n, communities=min(n, 8), mixing=0.2 * (n > 1), size_exponent=2.5, degree_exponent=2.5, **options
    ),
    "road": lambda n=397, **options: RoadMap(n, tile=8, **options),
}
kinds = pytest.mark.parametrize("make", SMALL.values(), ids=SMALL.keys())


def drawn(graph: GeneratedGraph) -> np.ndarray:
    """All edges, int64 (2, m)."""
    return np.concatenate([np.empty((2, 0), np.int64), *(np.stack(ends) for ends in graph.edges())], axis=1)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Chunks of at most a few thousand edges or features, so that small graphs have many."""
    monkeypatch.setattr(graph, "EDGE_CHUNK", 1 << 10)
    monkeypatch.setattr(LIMITS, "entries", 1 << 10)
    monkeypatch.setattr(graph, "FEATURE_CHUNK", 1 << 10)
    monkeypatch.setattr(rmat_graph, "DRAWS_AT_ONCE", 1 << 8)
    return 1 << 10


# -- awkward shapes --


def test_awkward_matrices_are_canonical_and_depend_on_the_seed_only() -> None:
    first, again, other = awkward(), awkward(), awkward(seed=1)
    assert first.keys() == again.keys() == other.keys()
    for name, A in first.items():
        assert A.dtype == np.float64, name
        assert A.indices.dtype == A.indptr.dtype == np.int32, name
        assert A.has_canonical_format, name
        np.testing.assert_array_equal(A.toarray(), again[name].toarray())
    assert (first["prime"] != other["prime"]).nnz


def test_awkward_matrices_are_what_they_are_called() -> None:
    cases = awkward()
    assert cases["one"].shape == (1, 1)
    assert cases["no_edges"].nnz == 0
    assert abs(cases["symmetric"] - cases["symmetric"].T).sum() == 0
    assert cases["directed"].multiply(cases["directed"].T).nnz == 0
    assert (
        cases["hub_row"].count_nonzero(axis=1).max() == 37 > 10 > cases["hub_row"].count_nonzero(axis=0).max()
    )
    assert (
        cases["hub_column"].count_nonzero(axis=0).max()
        == 37
        > 10
        > cases["hub_column"].count_nonzero(axis=1).max()
    )
    assert np.ptp(np.flatnonzero(cases["block_of_empty_rows"].count_nonzero(axis=1) == 0)) == 21
    assert cases["mixed_sign"].data.min() < 0 < cases["mixed_sign"].data.max()
    np.testing.assert_allclose(cases["mixed_sign"].sum(axis=1), 0, atol=1e-12)
    assert cases["stored_zeros"].nnz > cases["stored_zeros"].count_nonzero()
    assert cases["wide"].shape[0] < cases["wide"].shape[1]
    assert cases["tall"].shape[0] > cases["tall"].shape[1]


# -- random streams --


def test_streams_differ_by_seed_purpose_and_chunk_and_by_nothing_else() -> None:
    keys = [(0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1)]
    draws = [stream(*key).random(8).tolist() for key in keys]
    assert len({tuple(draw) for draw in draws}) == 4
    assert stream(0, "a").random(8).tolist() == draws[0]


def test_streams_of_neighbouring_chunks_share_no_numbers() -> None:
    words = np.concatenate([stream(0, "a", chunk).bit_generator.random_raw(10_000) for chunk in range(3)])
    assert len(np.unique(words)) == len(words)


def test_alias_table_draws_its_distribution_and_nothing_impossible() -> None:
    probabilities = np.array([0.5, 0.0, 0.31, 0.19])
    shares = np.bincount(AliasTable(probabilities).draw(stream(0, "test"), 100_000), minlength=4) / 100_000
    assert shares[1] == 0
    np.testing.assert_allclose(shares, probabilities, atol=0.008)  # five standard deviations


def test_power_law_has_its_exponent() -> None:
    values = power_law(stream(0, "test"), 100_000, 3.0)
    assert values.min() >= 1
    np.testing.assert_allclose([(values > 2).mean(), (values > 10).mean()], [1 / 4, 1 / 100], rtol=0.15)


# -- what all kinds have in common --


@kinds
def test_a_graph_is_a_function_of_its_seed(make: Callable[..., GeneratedGraph]) -> None:
    first, again, other = (gallery.in_memory(make(seed=seed)) for seed in (3, 3, 4))
    assert (first.A != again.A).nnz == 0
    assert (first.A != other.A).nnz > 0
    for name in ("features", "labels", "split"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
        assert not np.array_equal(getattr(first, name), getattr(other, name))


@kinds
def test_chunks_may_be_drawn_in_any_order(make: Callable[..., GeneratedGraph], small_chunks: int) -> None:
    in_order = [np.stack(ends) for ends in make().edges()]
    assert len(in_order) > 2
    backwards = make()
    for index in reversed(range(len(in_order))):
        np.testing.assert_array_equal(np.stack(backwards.edge_chunk(index)), in_order[index])
    labels = [make().labels(order) for order in (None, lambda: [tuple(ends) for ends in reversed(in_order)])]
    np.testing.assert_array_equal(*labels)


@kinds
@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 397])
def test_arrays_have_their_shapes_and_ids_their_range(make: Callable[..., GeneratedGraph], n: int) -> None:
    made = make(n, features=5)
    edges = drawn(made)
    assert made.m in (None, edges.shape[1])
    assert edges.dtype == np.int64
    assert edges.min(initial=0) >= 0
    assert edges.max(initial=0) < n
    features, labels, split = np.concatenate(list(made.features())), made.labels(), made.split()
    assert features.shape == (n, 5)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    assert labels is not None
    assert labels.shape == (n,)
    assert labels.dtype == np.int32
    assert 0 <= labels.min() <= labels.max() < made.classes
    assert split is not None
    np.testing.assert_allclose(np.bincount(split, minlength=4) / n, [0, 0.6, 0.2, 0.2], atol=1 / n)


@kinds
def test_no_features_and_no_labels(make: Callable[..., GeneratedGraph]) -> None:
    whole = gallery.in_memory(make(features=0, classes=0))
    assert whole.features is whole.labels is whole.split is None
    assert whole.A.nnz
    assert gallery.in_memory(make(features=3, classes=0)).features.shape == (397, 3)  # type: ignore[union-attr]


@kinds
def test_features_are_a_signal_of_length_one_and_noise(make: Callable[..., GeneratedGraph]) -> None:
    clean = np.concatenate(list(make(noise=0).features()))
    noisy = np.concatenate(list(make(noise=0.5).features()))
    np.testing.assert_allclose(np.linalg.norm(clean, axis=1), 1, rtol=0.5)
    np.testing.assert_allclose((noisy - clean).std(), 0.5, rtol=0.02)
    np.testing.assert_allclose((noisy - clean).mean(), 0, atol=0.02)


@pytest.mark.parametrize("directed", [False, True])
def test_matrix_has_the_listed_edges(directed: bool) -> None:
    made = RMat(97, directed=directed, features=0)
    A, (src, dst) = gallery.in_memory(made).A, drawn(made)
    listed = {*zip(dst, src, strict=True), *(() if directed else zip(src, dst, strict=True))}
    assert {*zip(*A.nonzero(), strict=True)} == listed
    assert set(A.data) == {1.0}


# -- R-MAT --


@pytest.mark.parametrize("scale", [5, 8, 13])
def test_rmat_quadrants_have_their_probabilities_on_every_level(scale: int) -> None:
    quadrants = (0.5, 0.25, 0.15, 0.1)
    src, dst = drawn(RMat(scale=scale, edges=40_000, probabilities=quadrants, scramble=False))
    for level in range(scale):
        chosen = 2 * (src >> level & 1) + (dst >> level & 1)
        np.testing.assert_allclose(np.bincount(chosen, minlength=4) / 40_000, quadrants, atol=0.0125)


def test_rmat_endpoint_beyond_the_last_node_loses_its_highest_bit() -> None:
    options = {"edges": 5_000, "scramble": False, "features": 0}
    whole, cut = drawn(RMat(1024, **options)), drawn(RMat(700, **options))
    np.testing.assert_array_equal(cut, np.where(whole < 700, whole, whole - 512))


def test_rmat_degrees_are_skewed_unless_the_quadrants_are_equal() -> None:
    skewed, even = (
        np.bincount(drawn(RMat(4096, probabilities=p)).ravel(), minlength=4096)
        for p in (rmat_graph.GRAPH500, (0.25,) * 4)
    )
    assert skewed.sum() == even.sum() == 16 * 4096
    assert skewed.max() > 30 * skewed.mean()
    assert even.max() < 3 * even.mean()
    assert (skewed == 0).mean() > 0.2 > 0.01 > (even == 0).mean()


def test_rmat_scrambling_only_renumbers() -> None:
    plain, scrambled = (drawn(RMat(500, scramble=scramble)) for scramble in (False, True))
    degrees = [np.bincount(edges.ravel(), minlength=500) for edges in (plain, scrambled)]
    assert not np.array_equal(*degrees)
    np.testing.assert_array_equal(*map(np.sort, degrees))
    assert (
        abs(np.corrcoef(np.arange(500), degrees[1])[0, 1])
        < 0.2
        < -np.corrcoef(np.arange(500), degrees[0])[0, 1]
    )


@pytest.mark.parametrize("directed", [False, True])
def test_rmat_labels_are_those_of_averaged_states(directed: bool) -> None:
    made = RMat(200, degree=6, directed=directed)
    src, dst = drawn(made)
    A = sp.csr_array((np.ones(len(src)), (dst, src)), shape=(200, 200))
    mean = sp.eye_array(200, format="csr") + (A if directed else A + A.T)
    mean = sp.diags_array(1 / mean.sum(axis=1)) @ mean
    directions = gallery.streams.unit_rows(stream(0, "classes"), 8, rmat_graph.DIMENSIONS)
    signal = mean @ mean @ made._directions[made._hidden]
    agree = (signal @ directions.T).argmax(axis=1) == made.labels()
    assert agree.mean() > 0.99  # but for rounding


# -- planted partitions --


@pytest.mark.parametrize("mixing", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("exponent", [None, 2.5])
def test_sbm_share_of_leaving_edges_is_the_mixing(mixing: float, exponent: float | None) -> None:
    made = PlantedPartition(
        2003, communities=12, mixing=mixing, size_exponent=exponent, degree_exponent=exponent
    )
    src, dst = drawn(made)
    community = made.labels()
    assert community is not None
    share = (community[src] != community[dst]).mean()
    assert abs(share - mixing) <= 5 * np.sqrt(mixing * (1 - mixing) / len(src))
    assert not (src == dst).any()


def test_sbm_community_sizes() -> None:
    equal = np.bincount(PlantedPartition(1000, communities=7).labels())  # type: ignore[arg-type]
    power = np.bincount(PlantedPartition(1000, communities=7, size_exponent=2.0).labels())  # type: ignore[arg-type]
    assert equal.sum() == power.sum() == 1000
    assert np.ptp(equal) <= 1
    assert power.min() >= 1
    assert power.max() > 2 * power.min()


def test_sbm_degrees() -> None:
    equal, power = (
        np.bincount(
            drawn(PlantedPartition(3000, degree=20, degree_exponent=exponent)).ravel(), minlength=3000
        )
        for exponent in (None, 2.2)
    )
    assert equal.mean() == power.mean() == 20
    assert 15 < equal.var() < 25  # Poisson
    assert power.var() > 200
    assert power.max() < 2 * np.sqrt(3000 * 20)


def test_sbm_edges_of_a_community_of_one_node_leave() -> None:
    made = PlantedPartition(50, communities=50, mixing=0.0, degree=10)
    src, dst = drawn(made)
    assert not (src == dst).any()


def test_sbm_label_is_the_community_modulo_classes() -> None:
    communities, classes = (PlantedPartition(100, communities=6, classes=c).labels() for c in (None, 4))
    np.testing.assert_array_equal(communities % 4, classes)  # type: ignore[operator]


# -- road maps --


def test_road_edges_join_neighbouring_cells_of_the_map() -> None:
    made = RoadMap(3001, tile=16)
    rows, columns = np.zeros((2, made.n), np.int64)
    for strip in range(made.edge_chunks):
        ids = made._ids(strip, made._strip(strip)[2])
        row, column = np.nonzero(ids >= 0)
        rows[ids[row, column]], columns[ids[row, column]] = row + strip * made.tile, column
    assert len({*zip(rows, columns, strict=True)}) == made.n  # the grid's own embedding: no two edges cross
    src, dst = drawn(made)
    assert set(abs(rows[src] - rows[dst]) + abs(columns[src] - columns[dst])) == {1}
    tiles = rows // made.tile * made.tiles + columns // made.tile
    assert (np.diff(tiles) >= 0).all()


def test_road_degrees_and_giant_component() -> None:
    A = gallery.road(20_000, features=0).A
    degrees = np.diff(A.indptr)
    assert degrees.max() <= 4
    assert 2.0 < degrees.mean() < 2.4
    assert np.isin(degrees, (2, 3)).mean() > 0.85
    assert (degrees == 2).mean() > 0.75
    components = sp.csgraph.connected_components(A, directed=False)[1]
    assert np.bincount(components).max() > 0.95 * 20_000


def test_road_without_junction_spacing_is_the_lattice_with_gaps() -> None:
    degrees = np.diff(
        gallery.road(10_000, spacing=1, missing_roads=0.0, missing_nodes=0.0, features=0).A.indptr
    )
    assert 3.9 < degrees.mean() < 4.0


def test_road_nonzeros_crowd_around_the_diagonal() -> None:
    A = gallery.road(20_000, features=0).A.tocoo()
    blocks = np.zeros((8, 8))
    np.add.at(blocks, (A.row * 8 // 20_000, A.col * 8 // 20_000), 1)
    assert np.trace(blocks) > 0.9 * A.nnz
    assert (blocks == 0).sum() >= 64 - 8 - 2 * (7 + 6)


# -- features that a GCN can learn --


def nearest_centroid_accuracy(X: np.ndarray, whole: Graph) -> float:
    y, train, test = whole.labels, whole.split == 1, whole.split == 3
    assert y is not None
    centroids = np.stack([X[train & (y == c)].mean(axis=0) for c in range(whole.classes)])
    distances = -2 * X @ centroids.T + (centroids**2).sum(axis=1)
    return float((distances.argmin(axis=1) == y)[test].mean())


@pytest.mark.parametrize(
    ("whole", "steps", "gain"),
    [
        (lambda: gallery.sbm(3000, communities=8), 2, 0.5),
        (lambda: gallery.sbm(3000, communities=8, size_exponent=2.5, degree_exponent=2.5), 2, 0.4),
        (lambda: gallery.road(6000, classes=6), 2, 0.2),
        (lambda: gallery.rmat(6000), 1, 0.05),
    ],
    ids=["sbm", "sbm power laws", "road", "rmat"],
)
def test_neighbourhoods_say_more_than_nodes(whole: Callable[[], Graph], steps: int, gain: float) -> None:
    made = whole()
    mean = made.A + sp.eye_array(made.A.shape[0], format="csr")
    mean = sp.diags_array(1 / mean.sum(axis=1)) @ mean
    X = averaged = made.features
    assert X is not None
    for _ in range(steps):
        averaged = mean @ averaged
    alone = nearest_centroid_accuracy(X, made)
    assert 1.5 / made.classes < alone < 0.75  # something to learn, and something left to gain
    assert nearest_centroid_accuracy(averaged, made) > alone + gain


# -- directories --


@kinds
def test_directory_holds_what_matrices_hold(
    make: Callable[..., GeneratedGraph], small_chunks: int, tmp_path: Path
) -> None:
    description = gallery.write(make(seed=5, features=7), tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["out"]
    assert json.loads((tmp_path / "out/graph.json").read_text()) == description
    made = make(seed=5, features=7)
    whole = gallery.in_memory(made)
    arrays = {path.stem: np.load(path, mmap_mode="r") for path in (tmp_path / "out").glob("*.npy")}
    assert arrays.keys() == {"edges", "features", "labels", "split"}
    np.testing.assert_array_equal(arrays["edges"], drawn(made).T)
    for name in ("features", "labels", "split"):
        expected = getattr(whole, name)
        assert arrays[name].dtype == expected.dtype
        assert arrays[name].flags.c_contiguous
        np.testing.assert_array_equal(arrays[name], expected)
    expected = {
        "kind": made.kind,
        "n": 397,
        "edges": len(arrays["edges"]),
        "directed": made.directed,
        "seed": 5,
        "width": 7,
    }
    assert expected.items() <= description.items()


@pytest.mark.slow
def test_memory_does_not_grow_with_edges_or_features(small_chunks: int, tmp_path: Path) -> None:
    def peak(name: str, edges: int, features: int) -> int:
        tracemalloc.start()
        gallery.write(PlantedPartition(3000, edges=edges, features=features), tmp_path / name)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak("warm-up", 3000, 16)
    small, large = peak("small", 10_000, 16), peak("large", 100_000, 512)
    assert large < small + 300_000, (small, large)  # 1.6 MB of edges and 6.1 MB of features


class Breaks(RMat):
    def features(self) -> Any:
        yield from super().features()
        raise KeyboardInterrupt


@pytest.mark.parametrize("force", [False, True])
def test_an_interrupted_write_leaves_everything_as_it_was(force: bool, tmp_path: Path) -> None:
    if force:
        gallery.write(RMat(10), tmp_path / "out")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(KeyboardInterrupt):
        gallery.write(Breaks(20), tmp_path / "out", force=force)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert os.listdir(tmp_path) == (["out"] if force else [])


def test_existing_output_needs_force_and_must_be_a_generated_graph(tmp_path: Path) -> None:
    gallery.write(RMat(10), tmp_path / "out")
    with pytest.raises(UserError, match="out exists.*force=True"):
        gallery.write(RMat(20), tmp_path / "out")
    assert gallery.write(RMat(20), tmp_path / "out", force=True)["n"] == 20
    assert np.load(tmp_path / "out/labels.npy").shape == (20,)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/text").write_text("years of work")
    with pytest.raises(UserError, match="not a distgnn generated graph"):
        gallery.write(RMat(20), tmp_path / "thesis", force=True)
    assert (tmp_path / "thesis/text").read_text() == "years of work"


def test_a_disk_too_small_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10_000}))
    with pytest.raises(UserError, match="free; this graph needs"):
        gallery.write(Breaks(1000), tmp_path / "out")
    assert os.listdir(tmp_path) == []
