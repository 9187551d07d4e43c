"""``distgnn info``: the numbers are those of the graph, and damage is found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from distgnn import cli
from distgnn.layout import partition
from distgnn.store import Store, prepare
from distgnn.store.format.limits import LIMITS
from distgnn.store.read import inspect

from .graphs import AWKWARD, Graph, adjacency, permuted


@pytest.fixture
def info_store(tmp_path: Path) -> Path:
    prepare(AWKWARD["prime"], tmp_path / "g.dg", order=("random", "original"), shards=(2, 3))
    return tmp_path / "g.dg"


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main(["info", *map(str, words)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.slow
def test_json_has_the_facts(info_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = AWKWARD["prime"]
    code, out, _ = answer(capsys, info_store, "--json")
    facts = json.loads(out)
    assert code == 0
    A = adjacency(graph)
    degrees = np.diff(A.indptr) - 1
    assert (facts["n"], facts["nnz"], facts["width"], facts["classes"], facts["edges"]) == (
        31,
        A.nnz,
        5,
        3,
        graph.distinct_edges(),
    )
    assert facts["degrees"] == {
        "min": degrees.min(),
        "mean": pytest.approx(degrees.mean()),
        "max": degrees.max(),
        "isolated": np.count_nonzero(degrees == 0),
    }
    assert sum(facts["split"].values()) == np.count_nonzero(graph.split)
    assert facts["labelled"] == np.count_nonzero(graph.labels >= 0)
    shards = Store(info_store).order("original").shard_nnz
    assert shards.sum() == A.nnz
    described = facts["orders"]["original"]
    assert (described["shards"], described["largest_shard"]) == ([2, 3], shards.max())
    assert described["balance"] == pytest.approx(shards.max() / shards.mean())
    on_disk = sum(path.stat().st_size for path in info_store.rglob("*.h5"))
    assert facts["bytes"] == on_disk
    assert 0 < sum(order["bytes"] for order in facts["orders"].values()) < on_disk
    assert "verified" not in facts


@pytest.mark.parametrize(("ranks", "at_a_time"), [(1, 40), (3, 1 << 22), (3, 40), (40, 1 << 22)])
@pytest.mark.slow
def test_balance_and_volume_of_block_rows(
    ranks: int,
    at_a_time: int,
    info_store: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LIMITS, "counted_entries", at_a_time)
    orders = json.loads(answer(capsys, info_store, "--json", "--ranks", f"1,{ranks}")[1])["orders"]
    parts = partition(31, ranks)
    for name, order in orders.items():
        A = permuted(adjacency(AWKWARD["prime"]), Store(info_store).order(name).permutation(0, 31)).toarray()
        blocks = [
            [A[parts[i] : parts[i + 1], parts[j] : parts[j + 1]] for j in range(ranks)] for i in range(ranks)
        ]
        moved = np.array(
            [
                [0 if i == j else np.count_nonzero(B.any(axis=0)) for j, B in enumerate(row)]
                for i, row in enumerate(blocks)
            ]
        )
        nonzeros = [[np.count_nonzero(B) for B in row] for row in blocks]
        nnz = [sum(row) for row in nonzeros]
        one, cut = order["block_rows"]
        assert (one["ranks"], cut["ranks"]) == (1, ranks) and one["stages"] == [1.0]
        assert cut["nnz"] == nnz
        assert cut["balance"] == pytest.approx(max(nnz) / np.mean(nnz))
        stages = [max(column) for column in zip(*nonzeros, strict=True)]
        assert cut["stage_balance"] == pytest.approx(sum(stages) / np.mean(nnz))
        worst = [
            max(column) / np.mean(column) if any(column) else 1 for column in zip(*nonzeros, strict=True)
        ]
        assert cut["stages"] == pytest.approx(worst)
        assert cut["receives"] == moved.sum(axis=1).tolist()
        assert cut["sends"] == moved.sum(axis=0).tolist()
        assert cut["volume"] == moved.sum()


@pytest.mark.parametrize("at_a_time", [1 << 22, 40])
@pytest.mark.slow
def test_balance_of_grids(
    at_a_time: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grids made of whole shards, and others; both versions of `double`."""
    monkeypatch.setattr(LIMITS, "counted_entries", at_a_time)
    prepare(AWKWARD["directed"], tmp_path / "g.dg", order=("random", "double"), shards=(4, 6))
    grids = ((1, 1), (2, 3), (1, 3), (4, 6), (8, 8), (31, 31), (5, 1))
    for grid in grids if at_a_time > 40 else grids[1::3]:
        check_balance(tmp_path / "g.dg", grid, capsys)


def check_balance(path: Path, grid: tuple[int, int], capsys: pytest.CaptureFixture[str]) -> None:
    """Check the numbers of one grid against the blocks counted one by one."""
    rows, cols = (min(side, 29) for side in grid)
    words = f"{rows}x{cols}"
    found = json.loads(answer(capsys, path, "--json", "--shards", f"1x1,{words}")[1])["orders"]
    text = answer(capsys, path, "--shards", words)[1]
    for name, facts in found.items():
        versions = Store(path).order(name).versions
        expected = []
        for version in versions:
            A = version.block((0, 29), (0, 29)).toarray() != 0
            blocks = [
                np.split(row, partition(29, cols)[1:-1], axis=1)
                for row in np.split(A, partition(29, rows)[1:-1])
            ]
            expected.append(np.array([[np.count_nonzero(block) for block in row] for row in blocks]))
        balances = [counts.max() / counts.mean() for counts in expected]
        for version, counts in zip(facts.get("versions", [facts]), expected, strict=True):
            assert version["cuts"][0] == {
                "grid": [1, 1],
                "largest": counts.sum(),
                "mean": counts.sum(),
                "balance": 1.0,
            }
            assert version["cuts"][1] == {
                "grid": [rows, cols], "largest": counts.max(), "mean": pytest.approx(counts.mean()),
                "balance": pytest.approx(counts.max() / counts.mean()),
            }  # fmt: skip
        assert facts["cuts"][1]["balance"] == pytest.approx(max(balances))
        assert f"non-zeros max/mean {' and '.join(f'{balance:.3f}' for balance in balances)}" in text
    assert text.count(f"  {words} blocks") == 2


def test_text(info_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = answer(capsys, info_store, "--ranks", "2,3", "--verify")
    assert code == 0
    for words in (
        "31 x 31",
        "undirected, unweighted, self-loops, normalised gcn, float32",
        "order random",
        "order original  2x3 shards",
        "  2 block rows  non-zeros max/mean",
        "  3 block rows  non-zeros max/mean",
        "files are as they were written",
    ):
        assert words in out


def test_a_random_order_evens_the_stages_out(tmp_path: Path) -> None:
    """Communities one after the other fill the blocks on the diagonal, so that in every stage one rank does
    all the work.
    """
    n, P = 400, 4
    rng = np.random.default_rng(0)
    edges = np.concatenate([rng.integers(lo, lo + 100, (1500, 2)) for lo in range(0, n, 100)])
    prepare(
        Graph(n, edges), tmp_path / "g.dg", order=("original", "random"), self_loops=False, normalize="none"
    )
    orders = inspect.describe(Store(tmp_path / "g.dg"), [P])["orders"]
    original, random = (orders[name]["block_rows"][0] for name in ("original", "random"))
    assert original["stages"] == [P] * P and original["balance"] < 1.1 < P - 1 < original["stage_balance"]
    assert max(random["stages"]) < 1.5 and random["stage_balance"] < 1.5


def test_text_without_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(AWKWARD["isolated nodes"], tmp_path / "g.dg", self_loops=False, normalize="none")
    out = answer(capsys, tmp_path / "g.dg")[1]
    assert out.count("none") == 3  # features, classes, split
    assert "0 to 2, mean 0.17; 20 isolated nodes" in out
    assert "not normalised" in out


def test_verify_finds_a_changed_byte(
    info_store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "verified_bytes", 0)
    shard = info_store / "orders/original/shard-0001-0002.h5"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert answer(capsys, info_store)[0] == 0  # lengths are right
    code, out, err = answer(capsys, info_store, "--verify")
    assert (code, out) == (2, "")
    assert "the bytes of orders/original/shard-0001-0002.h5 changed since it was written" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.dg"], "nowhere.dg: no such store"),
        (["@", "--ranks", "0"], "--ranks: expected whole numbers"),
        (["@", "--shards", "8"], "--shards '8': expected ROWSxCOLUMNS, such as 4x4"),
        (["@", "--shards", "2x2,0x4"], "--shards '0x4': expected ROWSxCOLUMNS, such as 4x4"),
        (["@", "--shards", "2x2,"], "--shards '': expected ROWSxCOLUMNS, such as 4x4"),
        (["@", "--shards", "8x8,4x32"], "--shards 4x32: the matrix is 31 x 31, so at most 31x31 is possible"),
        (
            ["@", "--shards", "999x999"],
            "--shards 999x999: 998001 shards; at most 65536 are possible, such as 256x256",
        ),
    ],
)
def test_bad_input(
    words: list[str], message: str, info_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = answer(capsys, *(word.replace("@", str(info_store)) for word in words))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_balance_of_nothing() -> None:
    assert inspect.balance(np.zeros((2, 2), int)) == 1
