"""Generated graphs as directories: whole or not at all."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distgnn import gallery
from distgnn.errors import UserError
from distgnn.gallery import GeneratedGraph, PlantedPartition, RMat, directory

from .kinds import drawn, kinds


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


def test_rows_of_another_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a chunk of shape \(2, 3\) in a file of rows \(4,\)"):
        directory.save_rows(tmp_path / "x.npy", np.float32, (4,), [np.zeros((2, 3))])


def test_a_file_of_rows_can_be_read_whatever_their_number(tmp_path: Path) -> None:
    """Also after its header has grown from no rows to thousands."""
    for count in (0, 1, 12_345):
        rows = np.arange(2.0 * count).reshape(count, 2)
        chunks = np.array_split(rows, 3)
        assert directory.save_rows(tmp_path / "x.npy", np.int64, (2,), chunks) == count
        np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), rows)


def test_a_memory_too_small_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(directory.os, "sysconf", pages.__getitem__)
    directory.check_space(5120, 0, tmp_path)
    with pytest.raises(UserError, match="this machine has 0.0 GB of memory"):
        directory.check_space(5121, 0, tmp_path)


def test_the_output_is_checked_before_the_graph_is_made(tmp_path: Path) -> None:
    directory.check_output(tmp_path / "out", 10, force=False)
    gallery.write(RMat(10), tmp_path / "out")
    with pytest.raises(UserError, match="out exists"):
        directory.check_output(tmp_path / "out", 10, force=False)
    directory.check_output(tmp_path / "out", 10, force=True)
