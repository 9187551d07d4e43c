"""Files belong to one store: paths that lead out, hashes compared on opening, what identifies a graph."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgnn as dg
from distgnn import UserError
from distgnn.arrays import backend
from distgnn.comm.group import Comm
from distgnn.files.lock import locked
from distgnn.operators import make_grid
from distgnn.store import Store, load, load_features, load_targets, prepare
from distgnn.store.format import manifest
from distgnn.store.format.limits import LIMITS

from .graphs import AWKWARD, Graph, random_graph, reseal

SHARD = "orders/random/shard-0000-0000.h5"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    prepare(AWKWARD["prime"], tmp_path / "g.dg", shards=(2, 2))
    return tmp_path / "g.dg"


@pytest.mark.parametrize(
    "name", ["../x.h5", "@/x.h5", "nodes/../../x.h5", "./nodes/rows-0000.h5", "nodes//rows-0000.h5", "a\0b"]
)
def test_paths_lead_nowhere_else(name: str, path: Path) -> None:
    content = json.loads((path / "manifest.json").read_text())
    name, rows = name.replace("@", str(path.parent)), content["nodes"]["files"][0]
    (path.parent / "x.h5").write_bytes((path / rows).read_bytes())
    content["nodes"]["files"] = [name]
    content["files"][name] = content["files"].pop(rows)
    reseal(path, content)
    with pytest.raises(UserError, match=r"manifest.json: damaged .* is no path of a file in it"):
        Store(path)


def test_links_lead_nowhere_else(path: Path) -> None:
    shard = path / SHARD
    shard.rename(path / "elsewhere.h5")
    shard.symlink_to(path / "elsewhere.h5")
    assert Store(path).verify() == []
    (path / "elsewhere.h5").rename(path.parent / "x.h5")
    shard.unlink()
    shard.symlink_to(path.parent / "x.h5")
    with pytest.raises(UserError, match=r"shard-0000-0000.h5: is a link out of the store"):
        Store(path)
    shard.unlink()
    (path.parent / "x.h5").rename(shard)
    (path / "nodes").rename(path.parent / "nodes")
    (path / "nodes").symlink_to(path.parent / "nodes")
    with pytest.raises(UserError, match=r"rows-0000.h5: is a link out of the store"):
        Store(path)


def test_a_store_may_be_behind_a_link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to(path)
    assert Store(tmp_path / "here").verify() == []


def test_every_file_is_named_once(path: Path) -> None:
    content = json.loads((path / "manifest.json").read_text())
    files = content["orders"]["random"]["files"]
    files[0][1] = files[0][0]
    reseal(path, content)
    with pytest.raises(UserError, match=r"manifest.json: damaged .it does not name every file once"):
        Store(path)


def test_what_is_no_file(path: Path) -> None:
    (path / SHARD).unlink()
    os.mkfifo(path / SHARD)
    with pytest.raises(UserError, match=r"shard-0000-0000.h5: is not a regular file"):
        Store(path)


@pytest.mark.ranks(1, 3)
@pytest.mark.slow
def test_each_file_is_hashed_by_one_rank(comm: Any, shared_tmp_path: Path, monkeypatch: Any) -> None:
    """And a small store's when it is opened, a large one's when that is asked for."""
    path, hashed = shared_tmp_path / "g.dg", []
    if comm.Get_rank() == 0:
        prepare(AWKWARD["prime"], path, shards=(3, 3))
    comm.Barrier()
    original = manifest.fingerprint
    monkeypatch.setattr(manifest, "fingerprint", lambda file: hashed.append(str(file)) or original(file))
    grid = make_grid(comm, "1d")

    def shared() -> list[str]:
        everybody = [name for names in comm.allgather(hashed) for name in names]
        hashed.clear()
        return sorted(everybody)

    load(path, grid)
    files = [str(path / name) for name in sorted(Store(path, grid.world).manifest["files"])]
    assert shared() == sorted([*files, *files])
    monkeypatch.setattr(LIMITS, "verified_bytes", 0)
    A = load(path, grid)
    assert shared() == []
    load(path, grid, verify=True)
    assert shared() == files
    load_features(path, A.input_layout)
    load(Store(path), grid, verify=True)
    assert shared() == files
    if comm.Get_rank() == 0:
        shard = bytearray((path / SHARD).read_bytes())
        shard[len(shard) // 2] ^= 1
        (path / SHARD).write_bytes(shard)
    comm.Barrier()
    with pytest.raises(UserError, match=rf"g.dg: the bytes of {SHARD} changed since it was written"):
        load(path, grid, verify=True)
    grid.free()


@pytest.mark.ranks(1, 2)
def test_matrix_and_features_are_of_one_store(comm: Any, shared_tmp_path: Path) -> None:
    """Though each is loaded by its path."""
    path, first = shared_tmp_path / "g.dg", comm.Get_rank() == 0
    grid = make_grid(comm, "1d")
    for seed in (0, 1):
        if first:
            prepare(AWKWARD["prime"], path, seed=seed, force=True)
        comm.Barrier()
        A = load(path, grid)
        load_features(path, A.input_layout)
        load_targets(path, A.input_layout)
        comm.Barrier()
    if first:
        prepare(AWKWARD["prime"], path, seed=2, force=True)
    comm.Barrier()
    for call in (load_features, load_targets):
        with pytest.raises(UserError, match=r"g.dg: was replaced while it was read; open it again"):
            call(path, A.input_layout)
    A = load(path, grid)
    load_features(path, A.input_layout)
    grid.free()


@pytest.mark.ranks(2)
def test_ranks_open_the_same_store(comm: Any, shared_tmp_path: Path) -> None:
    mine = shared_tmp_path / f"{comm.Get_rank()}.dg"
    prepare(AWKWARD["prime"], mine, seed=comm.Get_rank())
    with pytest.raises(UserError, match="was replaced while it was opened, or ranks see different files"):
        Store(mine, Comm(comm, backend.get("numpy")))


# -- what a graph is -----------------------------------------------------------------------------------------


def content_of(graph: Graph, path: Path, **options: Any) -> dict[str, str]:
    prepare(graph, path, force=True, **options)
    return Store(path).manifest["content"]


@pytest.mark.parametrize("case", ["prime", "weighted", "directed", "one node", "no edges"])
def test_content_does_not_depend_on_the_cut(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, path = AWKWARD[case], tmp_path / "g.dg"
    expected = content_of(graph, path)
    assert (expected["features"] is None) == (graph.width == 0)
    assert (expected["labels"] is None) == (expected["split"] is None) == (graph.classes == 0)
    for name in ("shard_entries", "sorted_entries", "entries", "file_bytes", "row_bytes", "spilled_bytes"):
        monkeypatch.setattr(LIMITS, name, 50)
    assert content_of(graph, path, order=("double",), seed=4, normalize="none") == expected
    partitions = [dg.partition.Wanted("random", 1)]
    assert content_of(graph, path, order=("original",), partitions=partitions, dtype="float64") == expected


def test_content_changes_with_the_graph(tmp_path: Path) -> None:
    def made(what: str = "") -> Graph:
        graph = random_graph(31, 60, weighted=True, width=4, classes=3)
        if what == "features":
            graph.X[[3, 5]] = graph.X[[5, 3]]  # the same rows, of other nodes
        elif what == "labels":
            graph.labels = np.roll(graph.labels, 1)
        elif what == "split":
            graph.split = np.roll(graph.split, 1)
        elif what == "edges":
            at = int(np.flatnonzero(graph.pairs[:, 0] != graph.pairs[:, 1])[0])
            graph.weights[at] = np.nextafter(10, 11)
        return graph

    before = content_of(made(), tmp_path / "g.dg")
    for what in before:
        found = content_of(made(what), tmp_path / "g.dg")
        assert [name for name in found if found[name] != before[name]] == [what]


@pytest.mark.ranks(2, 3)
@pytest.mark.slow
def test_content_does_not_depend_on_the_ranks(comm: Any, shared_tmp_path: Path) -> None:
    graph = random_graph(97, 400, weighted=True, width=3, classes=3)
    prepare(graph, shared_tmp_path / "together.dg", comm=comm, shards=(3, 2))
    comm.Barrier()
    if comm.Get_rank() == 0:
        alone = content_of(graph, shared_tmp_path / "alone.dg", order=("original",))
        assert Store(shared_tmp_path / "together.dg").manifest["content"] == alone


@pytest.mark.ranks(2)
def test_a_second_writer_is_refused_on_all_ranks(comm: Any, shared_tmp_path: Path) -> None:
    path = shared_tmp_path / "g.dg"
    with locked(path) if comm.Get_rank() == 0 else nullcontext():
        comm.Barrier()
        with pytest.raises(UserError, match=r"g.dg: process \d+ on .* writes it now; wait for that"):
            prepare(AWKWARD["prime"], path, comm=comm)
        comm.Barrier()
    comm.Barrier()
    prepare(AWKWARD["prime"], path, comm=comm)
    comm.Barrier()
    assert [one.name for one in shared_tmp_path.iterdir()] == ["g.dg"]
