"""Orders by partition: the same matrix, cut where the parts end, in files, in commands and on a grid."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import distgnn as dg
from distgnn import UserError, cli
from distgnn.operators import make_grid
from distgnn.partition import Wanted, partition
from distgnn.store import Store, load, prepare
from distgnn.store.format.shards import ShardGrid

from .graphs import AWKWARD, Graph, adjacency
from .test_writer import check, store_small_limits  # noqa: F401


@pytest.mark.parametrize("limits", ["store_small_limits", "tmp_path"])
@pytest.mark.parametrize("case", ["prime", "directed", "weighted directed", "isolated nodes"])
@pytest.mark.slow
def test_the_store_holds_the_same_matrix(
    case: str, limits: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(limits)
    graph = AWKWARD[case]
    part = np.random.default_rng(0).integers(0, 3, graph.n) % 2 * 2  # the second part is empty
    np.savetxt(tmp_path / "parts", part, "%d")
    wanted = [Wanted("random", 4), Wanted(str(tmp_path / "parts"), 3)]
    done = prepare(graph, tmp_path / "g.dg", order=("original",), partitions=wanted, shards=(2, 2))
    check(tmp_path / "g.dg", graph, 1e-6)
    store = Store(tmp_path / "g.dg")
    assert store.orders == ("original", "random-4", "file-3")
    order = store.order("file-3")
    sizes = np.bincount(part, minlength=3)
    assert order.partition.tolist() == [0, sizes[0], sizes[0], graph.n]
    np.testing.assert_array_equal(part[order.permutation(0, graph.n)], np.repeat(np.arange(3), sizes))
    assert done.partitions["file-3"].empty == 1
    assert (store.order("original").partition, len(store.order("random-4").partition)) == (None, 5)


def test_partitions_do_not_depend_on_the_first_order(tmp_path: Path) -> None:
    graph = AWKWARD["prime"]
    A = adjacency(graph)
    for order in ("original", "random"):
        prepare(graph, tmp_path / order, order=(order,), partitions=[Wanted("random", 3)], seed=5)
        permutation = Store(tmp_path / order).order("random-3").permutation(0, graph.n)
        part = partition(A, 3, "random", seed=5)
        np.testing.assert_array_equal(part[permutation], np.sort(part))


def test_shards_end_where_parts_end() -> None:
    grid = ShardGrid(np.array([0, 25, 50, 75, 100]), np.array([0, 100]))
    aligned = grid.aligned(np.array([0, 10, 20, 30, 52, 52, 90, 100]))
    assert (aligned.rows.tolist(), aligned.cols.tolist()) == ([0, 20, 52, 75, 100], [0, 100])
    assert grid.aligned(np.array([0, 0, 100])).rows.tolist() == [0, 25, 50, 75, 100]


def prepare_command(tmp_path: Path, *words: str) -> int:
    pairs = "".join(f"{i},{(7 * i + k) % 40}\n" for i in range(40) for k in (1, 2, 19))
    (tmp_path / "e.csv").write_text("a,b\n" + pairs)
    return cli.main(["prepare", str(tmp_path / "e.csv"), str(tmp_path / "g.dg"), *words])


def test_command_line_and_info(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "parts").write_text("\n".join(["0", "1", "1", "3"] * 10))
    assert (
        prepare_command(tmp_path, "--partition", f"random:4,{tmp_path / 'parts'}:4", "--normalize", "none")
        == 0
    )
    printed = capsys.readouterr().out
    assert (
        "\nrandom-4: sparsity-aware 1D on 4 ranks moves " in printed
        and "1 of the 4 parts are empty\n" in printed
    )
    assert cli.main(["info", str(tmp_path / "g.dg"), "--json", "--width", "250"]) == 0
    orders = json.loads(capsys.readouterr().out)["orders"]
    assert "block_rows" not in orders["random"]  # not asked for
    (cut,) = orders["file-4"]["block_rows"]
    assert cut["ranks"] == 4 and cut["sends"][2] == cut["receives"][2] == 0
    moved, most = sum(cut["sends"]), max(cut["sends"])
    assert cut["send_mb"] == {
        "width": 250, "average": pytest.approx(moved / 4 / 1000), "max": pytest.approx(most / 1000),
        "imbalance_percent": pytest.approx(100 * (4 * most / moved - 1)),
    }  # fmt: skip
    assert (
        f"file-4: sparsity-aware 1D on 4 ranks moves {moved} rows, max/mean sent {4 * most / moved:.2f}; "
        in printed
    )
    assert cli.main(["info", str(tmp_path / "g.dg"), "--ranks", "2,4"]) == 0
    text = capsys.readouterr().out
    assert text.count("  4 block rows") == 3 and text.count("  2 block rows") == 3
    assert (
        f"width 128: a rank sends {moved / 4 * 512 / 1e6:.3g} MB, at most {most * 512 / 1e6:.3g} MB" in text
    )


def test_edge_cut_in_info(tmp_path: Path) -> None:
    from distgnn.partition import Pattern, measure
    from distgnn.store.read.inspect import describe

    for case in ("prime", "directed"):
        graph = AWKWARD[case]
        prepare(graph, tmp_path / case, partitions=[Wanted("random", 3)])
        (cut,) = describe(Store(tmp_path / case))["orders"]["random-3"]["block_rows"]
        A = adjacency(graph)
        q = measure(Pattern.of(A), partition(A, 3, "random"), 3)
        assert (cut["edge_cut"], cut["volume"], cut["sends"]) == (q.edge_cut, q.volume, q.sends.tolist())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "volume:41",
            "--partition volume:41: more parts than the 40 nodes of this graph; expected at most 40",
        ),
        ("random:0", "--partition random:0: expected at least one part"),
        ("nothing:4", "--partition nothing:4: no such method or file; expected one of auto, random, metis,"),
        ("random", "--partition random: expected METHOD:K or FILE:K"),
        ("@short:4", "has 3 numbers for the 40 nodes of this graph; expected one per node"),
        ("@high:4", "node 39 is in part 4; expected 0..3"),
        ("@high:50", "more parts than the 40 nodes"),
    ],
)
def test_bad_input_is_one_line(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short").write_text("0 1 2")
    (tmp_path / "high").write_text("0 " * 39 + "4")
    assert prepare_command(tmp_path, "--partition", words.replace("@", f"{tmp_path}/")) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert not (tmp_path / "g.dg").exists()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.slow
def test_blocks_are_the_parts(comm, aware: bool, backend, shared_tmp_path) -> None:
    """With unequal parts, one of them empty, on 1d and on every replication of 1.5d."""
    graph, ranks = AWKWARD["directed"], comm.Get_size()
    possible = [rows for rows in (1, 2, 4, 8) if ranks % rows == 0]
    if comm.Get_rank() == 0:
        part = np.random.default_rng(1).integers(0, 8, graph.n)
        for rows in possible:
            np.savetxt(shared_tmp_path / f"{rows}", np.where(part % rows == rows // 2, 0, part % rows), "%d")
        wanted = [Wanted(str(shared_tmp_path / f"{rows}"), rows) for rows in possible]
        prepare(graph, shared_tmp_path / "g.dg", partitions=wanted, dtype="float64")
    comm.Barrier()
    store, H = Store(shared_tmp_path / "g.dg"), np.random.default_rng(0).standard_normal((graph.n, 3))
    for rows in possible:
        for name in ("1d", "1.5d"):
            if name == "1d" and rows != ranks:
                continue
            grid = make_grid(comm, name, None, None if name == "1d" else ranks // rows, backend)
            order = store.order(f"file-{rows}")
            A = load(store, grid, name, order.name, sparsity_aware=aware)
            expected = adjacency(graph)
            assert A.output_layout.ranges(H.shape)[0] == tuple(
                order.partition[[grid.coords["rows"], grid.coords["rows"] + 1]]
            )
            X = dg.scatter(H, A.input_layout)
            for product, exact in ((A @ X, expected @ H), (A.T @ X, expected.T @ H)):
                mine = exact[product.layout.row_ids]
                np.testing.assert_allclose(backend.to_host(product.block), mine, rtol=1e-6, atol=1e-7)
            grid.free()


@pytest.mark.ranks(4)
def test_another_number_of_block_rows_is_refused(comm, shared_tmp_path) -> None:
    if comm.Get_rank() == 0:
        prepare(AWKWARD["prime"], shared_tmp_path / "g.dg", partitions=[Wanted("random", 3)])
    comm.Barrier()
    path, ranks = str(shared_tmp_path / "g.dg"), comm.Get_size()
    for name, message in (
        ("1d", f"order=random-3: has 3 parts, and 1d on {ranks} ranks has {ranks} block rows; "
               f"use 3 ranks, or prepare with partition=random:{ranks}"),
        ("1.5d", f"has {ranks} block rows; use 3 C ranks with replication=C"),
        ("rdm", f"has {ranks} block rows; use a grid with rows=3 or rows=1"),
    ):  # fmt: skip
        grid = make_grid(comm, name, {"rows": ranks})
        with pytest.raises(UserError, match=message):
            load(path, grid, name, "random-3")
        grid.free()
    for name in ("1.5d", "rdm"):  # one block row has all parts
        grid = make_grid(comm, name, {"rows": 1})
        assert load(path, grid, name, "random-3").shape == (31, 31)
        grid.free()
    grid = make_grid(comm, "2d")
    assert load(path, grid, "2d", "random-3").shape == (31, 31)  # evenly cut
    grid.free()


def test_graphs_without_edges(tmp_path: Path) -> None:
    prepare(Graph(5), tmp_path / "g.dg", self_loops=False, normalize="none", partitions=[Wanted("random", 2)])
    assert Store(tmp_path / "g.dg").order("random-2").partition.tolist() == [0, 2, 5]
