"""Properties that generated graphs of all kinds share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn import gallery
from distgnn.errors import UserError
from distgnn.gallery import GeneratedGraph, Graph, PlantedPartition, RMat, RoadMap
from loops import each

from .kinds import SMALL, drawn, kinds


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
@each("n", [1, 2, 3, 5, 64, 397])
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


@each("directed", [False, True])
def test_matrix_has_the_listed_edges(directed: bool) -> None:
    made = RMat(97, directed=directed, features=0)
    A, (src, dst) = gallery.in_memory(made).A, drawn(made)
    listed = {*zip(dst, src, strict=True), *(() if directed else zip(src, dst, strict=True))}
    assert {*zip(*A.nonzero(), strict=True)} == listed
    assert set(A.data) == {1.0}


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


@each(
    "options, words",
    [
        ({"n": 0}, "nodes=0: expected"),
        ({"n": (1 << 40) + 1}, "nodes=1099511627777: expected"),
        ({"features": -1}, "features=-1: expected 0 .none. or a positive width"),
        ({"classes": -1}, "classes=-1: expected 0 .no labels. or a positive number"),
        ({"noise": -0.5}, "noise=-0.5: expected a number >= 0"),
        ({"noise": float("nan")}, "noise=nan"),
        ({"noise": float("inf")}, "noise=inf"),
        ({"seed": -1}, "seed=-1: expected 0 to 2"),
        ({"seed": 1 << 63}, "expected 0 to 2"),
        ({"split": "0.6/0.6/0.2"}, "split"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict, words: str) -> None:
    for make in SMALL.values():
        with pytest.raises(UserError, match=words):
            make(**options)


@each(
    "edges, degree, words", [(5, 3.0, "excludes edges=5"), (-1, None, "edges=-1"), (None, -1.0, "degree=-1")]
)
def test_edges_or_a_degree_that_can_be(edges: int | None, degree: float | None, words: str) -> None:
    for make in (RMat, PlantedPartition):
        with pytest.raises(UserError, match=words):
            make(64, edges=edges, degree=degree)


def test_a_degree_counts_entries_of_the_matrix() -> None:
    """Each listed edge of an undirected graph is two of them."""
    assert [RMat(100, degree=6, directed=directed).m for directed in (False, True)] == [300, 600]
    assert RMat(100).m == 800 and RMat(100, edges=7).m == 7


def test_wrappers_draw_the_graphs_of_their_kind() -> None:
    for wrapper, kind, options in (
        (gallery.rmat, RMat, {}),
        (gallery.sbm, PlantedPartition, {"communities": 3}),
        (gallery.road, RoadMap, {}),
    ):
        expected, got = gallery.in_memory(kind(60, seed=2, **options)), wrapper(60, seed=2, **options)
        assert (expected.A != got.A).nnz == 0 and got.classes == expected.classes
        np.testing.assert_array_equal(expected.features, got.features)
