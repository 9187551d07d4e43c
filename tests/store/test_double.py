"""The order `double` (Plexus section 5.1): two permutations, two versions of the matrix, and node arrays on
the right side.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import wide_grid
from distgnn import UserError, cli
from distgnn.layout import Cut, Layout, partition
from distgnn.operators import make_grid
from distgnn.store import Store, load, load_features, load_targets, prepare
from distgnn.store.format.limits import LIMITS
from distgnn.store.read.node_files import NodeFiles

from .graphs import AWKWARD, Graph, adjacency, assert_same, permuted, random_graph, reseal
from .test_writer import store_small_limits  # noqa: F401

# the first ids of the double order of AWKWARD["prime"] with seed 1
PINNED = [[13, 25, 19, 16, 23, 11], [7, 18, 27, 10, 4, 28]]
ORDERS = [("double",), ("double", "original"), ("original", "double")]


def two_sided(A: sp.csr_array, rows: np.ndarray, cols: np.ndarray) -> sp.csr_array:
    """Return A[rows][:, cols] with sorted indices, keeping stored zeros."""
    i = np.argsort(rows)[np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))]
    j = np.argsort(cols)[A.indices]
    arrangement = np.lexsort((j, i))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(i, minlength=A.shape[0]))])
    return sp.csr_array((A.data[arrangement], j[arrangement].astype(np.int32), indptr), shape=A.shape)


def whole(order: dg.store.Order) -> sp.csr_array:
    return order.block((0, order.shape[0]), (0, order.shape[1]))


def check_double(path: Path, graph: Graph, tolerance: float = 1e-6, **options) -> None:
    """Check both versions against each other, the original order and the dense computation.

    The original order is compared to the bit.
    """
    n, store = graph.n, Store(path)
    even = store.order("double")
    odd = even.layer(1)
    assert even.versions == odd.versions == (even, odd)
    assert [even.layer(k) for k in (0, 2, -2)] == [even] * 3 and [odd.layer(k) for k in (-1, 1, 3)] == [
        odd
    ] * 3
    assert not even.symmetric and not odd.symmetric and even.partition is None
    p, q = even.permutation(0, n), odd.permutation(0, n)
    for version, permutation in ((even, p), (odd, q)):
        assert sorted(permutation) == list(range(n))
        np.testing.assert_array_equal(version.positions(permutation), np.arange(n))
    if n > 4:
        assert (p != q).any()
    A = adjacency(graph, **options)
    for version, rows, cols in ((even, p, q), (odd, q, p)):
        assert_same(whole(version), two_sided(A, rows, cols), tolerance)
        assert version.nnz == A.nnz
        if "original" in store.orders:
            assert_same(whole(version), two_sided(whole(store.order("original")), rows, cols), 0)
        if graph.width:
            np.testing.assert_array_equal(store.features(version), graph.X[version.permutation(0, n)])
        if graph.classes:
            np.testing.assert_array_equal(store.labels(version), graph.labels[version.permutation(0, n)])
            np.testing.assert_array_equal(store.split(version), graph.split[version.permutation(0, n)])
    np.testing.assert_array_equal(store.features("double"), graph.X[q])
    assert store.verify() == []


@pytest.mark.parametrize(("number", "case"), enumerate(AWKWARD))
def test_both_versions(case: str, number: int, tmp_path: Path) -> None:
    orders = ORDERS[number % 3]
    done = prepare(AWKWARD[case], tmp_path / "g.dg", order=orders, shards=(1, 1), seed=3)
    assert done.shards == dict.fromkeys(orders, (1, 1))
    check_double(tmp_path / "g.dg", AWKWARD[case])


@pytest.mark.usefixtures("store_small_limits")
@pytest.mark.parametrize(
    ("number", "case"),
    enumerate(["prime", "directed", "weighted directed", "isolated nodes", "hub", "two nodes"]),
)
@pytest.mark.slow
def test_in_many_pieces(case: str, number: int, tmp_path: Path) -> None:
    prepare(AWKWARD[case], tmp_path / "g.dg", order=ORDERS[number % 2])
    check_double(tmp_path / "g.dg", AWKWARD[case])


@pytest.mark.parametrize(
    ("case", "normalize", "self_loops"),
    [
        ("prime", "gcn", True), ("directed", "gcn", False), ("weighted directed", "row", True),
        ("weighted loops", "row", False), ("directed", "none", True), ("weighted directed", "none", False),
        ("weighted loops", "gcn", True), ("prime", "row", False),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_normalisation(case: str, normalize: str, self_loops: bool, tmp_path: Path) -> None:
    options = {"normalize": normalize, "self_loops": self_loops}
    orders = ORDERS[1 + self_loops]
    prepare(AWKWARD[case], tmp_path / "g.dg", order=orders, dtype="float64", shards=(3, 2), **options)
    check_double(tmp_path / "g.dg", AWKWARD[case], 1e-14, **options)


@pytest.mark.parametrize(("number", "case"), enumerate(AWKWARD))
def test_degrees_are_those_of_the_graph(case: str, number: int, tmp_path: Path) -> None:
    self_loops = number % 2 == 0
    for order in ("original", "double"):
        prepare(AWKWARD[case], tmp_path / order, order=(order,), self_loops=self_loops, normalize="none")
    original, double = (Store(tmp_path / order).manifest for order in ("original", "double"))
    assert double["degrees"] == original["degrees"]
    assert [double[key] for key in ("nnz", "edges", "symmetric")] == [
        original[key] for key in ("nnz", "edges", "symmetric")
    ]


def test_permutations_are_functions_of_seed_and_degrees(tmp_path: Path) -> None:
    """On every machine, for good, whatever order comes first."""
    for name, order in (("g", ("double", "random")), ("h", ("original", "double"))):
        prepare(AWKWARD["prime"], tmp_path / f"{name}.dg", order=order, seed=1)
    one, other = (Store(tmp_path / f"{name}.dg").order("double") for name in "gh")
    for k in (0, 1):
        np.testing.assert_array_equal(one.layer(k).permutation(0, 31), other.layer(k).permutation(0, 31))
    assert (
        one.permutation(0, 6).tolist() == PINNED[0] and one.layer(1).permutation(0, 6).tolist() == PINNED[1]
    )


def test_partitions_of_a_store_that_begins_with_double(tmp_path: Path) -> None:
    graph = AWKWARD["directed"]
    prepare(graph, tmp_path / "g.dg", order=("double",), partitions=[dg.partition.Wanted("random", 3)])
    order = Store(tmp_path / "g.dg").order("random-3")
    assert_same(whole(order), permuted(adjacency(graph), order.permutation(0, graph.n)), 1e-6)


def test_features_of_the_first_layer_are_read_as_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph(47, 200, width=6, classes=3)
    monkeypatch.setattr(LIMITS, "file_bytes", 300)
    prepare(graph, tmp_path / "g.dg", order=("double", "random"))
    store = Store(tmp_path / "g.dg")
    q = store.order("double").layer(-1).permutation(0, 47)
    expected = graph.X[store.order().permutation(0, 47)]
    # the other side has to be gathered
    np.testing.assert_array_equal(store.features(store.order()), expected)
    np.testing.assert_array_equal(store.features(None, (9, 31)), graph.X[9:31])
    monkeypatch.setattr(NodeFiles, "gather", None)
    for order in ("double", store.order().layer(-1), store.order().col_order):
        np.testing.assert_array_equal(store.features(order, (9, 31), (1, 4)), graph.X[q[9:31], 1:4])
    np.testing.assert_array_equal(store.labels(store.order().layer(-1)), graph.labels[q])


def test_the_output_side_must_be_said(tmp_path: Path) -> None:
    prepare(AWKWARD["prime"], tmp_path / "g.dg", order=("double", "random"))
    store = Store(tmp_path / "g.dg")
    for call in (store.labels, store.split):
        with pytest.raises(
            ValueError, match=r'pass store.order\("double"\).layer\(L - 1\) for a network of L layers'
        ):
            call("double")
        assert len(call("random")) == 31


def test_a_manifest_with_too_many_versions(tmp_path: Path) -> None:
    prepare(AWKWARD["prime"], tmp_path / "g.dg", order=("double",))
    path = tmp_path / "g.dg" / "manifest.json"
    content = json.loads(path.read_text())
    entry = content["orders"]["double"]
    # so that a reader that knows but one version finds none, and not the wrong one
    assert set(entry) == {"versions"}
    entry["versions"].append(entry["versions"][0])
    reseal(path.parent, content)
    with pytest.raises(UserError, match=r"manifest.json: damaged .order double has 3 versions"):
        Store(tmp_path / "g.dg")


def test_non_zeros_of_the_second_version_are_counted_too(tmp_path: Path) -> None:
    prepare(AWKWARD["prime"], tmp_path / "g.dg", order=("double",))
    path = tmp_path / "g.dg" / "manifest.json"
    content = json.loads(path.read_text())
    content["orders"]["double"]["versions"][1]["nnz"][0][0] += 1
    reseal(path.parent, content)
    with pytest.raises(
        UserError, match=r"manifest.json: damaged .\d+ non-zeros, but \d+ in the shards of order double"
    ):
        Store(tmp_path / "g.dg")


@pytest.mark.slow
def test_info_has_both_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(AWKWARD["prime"], tmp_path / "g.dg", order=("double", "original"), shards=(2, 3))
    store = Store(tmp_path / "g.dg")
    assert cli.main(["info", str(tmp_path / "g.dg"), "--json", "--ranks", "2"]) == 0
    described = json.loads(capsys.readouterr().out)["orders"]["double"]
    counts = [version.shard_nnz for version in store.order("double").versions]
    balances = [shards.max() / shards.mean() for shards in counts]
    assert [version["balance"] for version in described["versions"]] == pytest.approx(balances)
    assert described["balance"] == pytest.approx(max(balances)) and described["shards"] == [2, 3]
    assert described["largest_shard"] == max(shards.max() for shards in counts)
    assert described["bytes"] == sum(
        path.stat().st_size for path in (tmp_path / "g.dg/orders/double").rglob("shard*")
    )
    assert "block_rows" not in described
    assert cli.main(["info", str(tmp_path / "g.dg")]) == 0
    expected = f"non-zeros max/mean {balances[0]:.2f} and {balances[1]:.2f}, in even and odd layers"
    assert expected in capsys.readouterr().out


@pytest.mark.ranks(1, 4)
@pytest.mark.slow
def test_features_and_targets_on_a_grid(comm, shared_tmp_path: Path) -> None:
    graph = AWKWARD["prime"]
    if comm.Get_rank() == 0:
        prepare(graph, shared_tmp_path / "g.dg", order=("random", "double"))
    comm.Barrier()
    grid, store = make_grid(comm, "1d"), Store(shared_tmp_path / "g.dg")
    orders = [version.row_order for version in store.order("double").versions]
    for order in (None, *orders, store.order("random").row_order):
        layout = Layout(grid, Cut(("rows",), partition(31, comm.Get_size()), order), Cut())
        ids = np.arange(*layout.row_range) if order is None else order.permutation(*layout.row_range)
        np.testing.assert_array_equal(layout.row_ids, ids)
        labels, split = load_targets(store, layout)
        X = load_features(store, layout)
        for values, known in ((X, graph.X), (labels, graph.labels[:, None]), (split, graph.split[:, None])):
            np.testing.assert_array_equal(values.block, known[ids])
            whole = dg.gather(values)
            assert grid.rank or np.array_equal(whole, known)
    grid.free()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("algorithm", ["1d", "1.5d", "2d", "3d-split"])
@pytest.mark.slow
def test_other_algorithms_refuse_it(algorithm: str, comm, shared_tmp_path: Path) -> None:
    if comm.Get_rank() == 0:
        prepare(AWKWARD["prime"], shared_tmp_path / "a.dg", order=("double", "random", "original"))
        prepare(AWKWARD["prime"], shared_tmp_path / "b.dg", order=("double",))
    comm.Barrier()
    grid = wide_grid(comm, algorithm)
    message = "order=double: only algorithm 3d alternates two permutations; use algorithm=3d or {}"
    with pytest.raises(UserError, match=message.format("order=random or original")):
        load(shared_tmp_path / "a.dg", grid, algorithm)
    with pytest.raises(UserError, match=message.format("prepare with order=double,random")):
        load(shared_tmp_path / "b.dg", grid, algorithm, "double")
    grid.free()


def test_a_store_of_before(tmp_path: Path) -> None:
    """Without `versions`, as all stores were written until there was `double`."""
    prepare(AWKWARD["prime"], tmp_path / "g.dg")
    assert "versions" not in Store(tmp_path / "g.dg").manifest["orders"]["random"]
    order = Store(shutil.move(tmp_path / "g.dg", tmp_path / "h.dg")).order()
    assert order.versions == (order,) and order.layer(-1) is order.layer(5) is order
