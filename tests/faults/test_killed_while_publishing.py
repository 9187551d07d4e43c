"""SIGKILL at every step of writing a store, a generated graph or a checkpoint.

The old one or the new one is there, whole, and the next run leaves no other file.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distgnn import UserError, gallery
from distgnn.files import leftovers, lock
from distgnn.store import Store, checkpoint, prepare
from distgnn.store.format import publish
from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions
from distgnn.store.team import Team
from distgnn.train.checkpoint import check_path, writer

from ..store.graphs import Graph
from .killed import LONG, each_step, killed

pytestmark = [pytest.mark.programs, pytest.mark.slow]

PATH, RING = Graph(4, [[0, 1], [1, 2], [2, 3]]), Graph(5, [[0, 1], [1, 2], [2, 3], [3, 4], [4, 0]])


class Alone(Team):
    """A group of one rank, without MPI, which a child must not call."""

    def share(self, thing: Any, root: int = 0) -> Any:
        return thing


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def save(path: Path, epoch: int) -> None:
    with writer(str(path), Alone(), None):  # type: ignore[arg-type]
        W = np.full((2, 2), epoch, np.float32)
        checkpoint.save(path, Alone(), {"W": (0, 0, W, W.shape)}, {"epoch": epoch})  # type: ignore[arg-type]


def saved(path: Path) -> int:
    """Return the epoch of a checkpoint, checked to be whole."""
    reader = checkpoint.load(path, Alone())  # type: ignore[arg-type]
    np.testing.assert_array_equal(reader.piece("W", (0, 2), (0, 2)), np.full((2, 2), reader.meta["epoch"]))
    return reader.meta["epoch"]


def nodes(path: Path) -> int:
    """Count the nodes of a whole store."""
    store = Store(path)
    return store.order().block((0, store.n), (0, store.n)).shape[0]


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two renames"])
def test_a_store_that_is_replaced(
    exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not exchange:
        monkeypatch.setattr(publish, "_exchange", lambda *_: False)
    path, found = tmp_path / "g.dg", []
    prepare(PATH, path)
    for step in each_step(lambda: prepare(RING, path, force=True), LONG):
        if leftovers.moved_aside(path):
            assert not exchange
            with pytest.raises(
                UserError, match=r"g.dg: no such store; a run that was killed left it as \.g\.dg\."
            ):
                Store(path)
            with pytest.raises(UserError, match="exists; force=True replaces it"):
                prepare(RING, path)
            assert "g.dg: put back, a run was killed while it replaced it" in caplog.text
        found.append(nodes(path))
        if step:
            caplog.clear()
            stray = [name for name in names(tmp_path) if name.endswith((".tmp", ".old"))]
            prepare(PATH, path, force=True)
            for name in stray:
                assert (
                    "g.dg: removed what a run that was killed had left: " in caplog.text
                    and name in caplog.text
                )
        assert step == 0 or names(tmp_path) == {"g.dg"}
    assert found == sorted(found) and {*found} == {4, 5} and found[-2:] == [5, 5]


def test_a_store_that_is_new(tmp_path: Path) -> None:
    path = tmp_path / "g.dg"
    for step in each_step(lambda: prepare(RING, path), LONG):
        assert not path.exists() or nodes(path) == 5
        prepare(PATH, path, force=True)
        assert names(tmp_path) == {"g.dg"} and nodes(path) == 4
        if step:
            for file in [*path.rglob("*.h5"), path / "manifest.json"]:
                file.unlink()
            for folder in sorted(path.rglob("*"), reverse=True):
                folder.rmdir()
            path.rmdir()


def test_a_generated_graph(tmp_path: Path) -> None:
    path = tmp_path / "raw"

    def write(seed: int) -> None:
        gallery.write(gallery.RMat(16, edges=20, features=2, classes=0, seed=seed), path, force=True)

    write(0)
    expected = open_source(path, ImportOptions()).n
    for step in each_step(lambda: write(1)):
        assert open_source(path, ImportOptions()).n == expected
        if step:
            write(0)
        assert names(tmp_path) == {"raw"}


@pytest.mark.parametrize("before", [True, False], ids=["replaced", "first"])
def test_a_checkpoint(before: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, found = tmp_path / "c", []
    if before:
        save(path, 1)
    for step in each_step(lambda: save(path, 2)):
        if before or not path.exists() or not checkpoint.unfinished(path):
            found.append(saved(path) if path.exists() else 0)
            check_path(path, resume=False, force=True)
        else:
            check_path(path, resume=False, force=False)
            with pytest.raises(
                UserError, match="c holds no checkpoint, its first save did not come to an end"
            ):
                check_path(path, resume=True, force=False)
        if step:
            stray = names(path) - {"manifest.json"} if path.exists() and checkpoint.unfinished(path) else ()
            caplog.clear()
            save(path, 1)
            assert all(name in caplog.text for name in stray)
            assert len(names(path)) == 2 and names(tmp_path) == {"c"} and saved(path) == 1
            if not before:
                for file in path.iterdir():
                    file.unlink()
                path.rmdir()
    assert found == sorted(found) and found[-1] == 2


# -- one writer at a time ------------------------------------------------------------------------------------


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.dg"
    with lock.locked(path) as alone:
        assert alone
        with pytest.raises(
            UserError, match=rf"g.dg: process {os.getpid()} on .* writes it now; wait for that"
        ):
            prepare(PATH, path)
        with pytest.raises(UserError, match="writes it now"):
            save(path, 1)
        with pytest.raises(UserError, match="writes it now"):
            check_path(path, resume=False, force=False)
    assert names(tmp_path) == set()


def test_a_dead_writer_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "g.dg"
    assert killed(lambda: prepare(PATH, path), 6)
    assert ".g.dg.lock" in names(tmp_path)
    prepare(PATH, path)
    assert names(tmp_path) == {"g.dg"}


def test_without_locks_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*args: Any) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    stray = tmp_path / ".g.dg.abcdefgh.tmp"
    stray.mkdir()
    prepare(PATH, tmp_path / "g.dg")
    assert nodes(tmp_path / "g.dg") == 4
    assert "g.dg: cannot be locked here" in caplog.text and "No locks available" in caplog.text
    assert stray.exists()  # of somebody who is alive, for all that is known


def test_a_lock_that_is_a_link_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / ".g.dg.lock").symlink_to(tmp_path / "thesis.tex")
    prepare(PATH, tmp_path / "g.dg")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert "g.dg: cannot be locked here" in caplog.text


def test_leftovers_of_others_stay(tmp_path: Path) -> None:
    others = {".g.abcdefgh.tmp", ".g.dg.dg.abcdefgh.old", ".g.dg.tmp", "g.dg.tmp", ".g.dg.ABCDEFGH.tmp"}
    for name in others:
        (tmp_path / name).mkdir()
    prepare(PATH, tmp_path / "g.dg")
    assert names(tmp_path) == others | {"g.dg"}


# -- replaced while it is read -------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [(1, 1), (2, 2)])
def test_a_store_that_is_replaced_under_a_reader(shards: tuple[int, int], tmp_path: Path) -> None:
    """The new store has the same files, or others."""
    path, options = tmp_path / "g.dg", {"order": ("random", "original")}
    prepare(Graph(6, [[0, 1], [1, 2]], width=2, classes=2), path, **options)
    store = Store(path)
    calls: list[Callable[[], object]] = [
        lambda: store.order().block((0, 6), (0, 6)), lambda: store.order().permutation(0, 6),
        store.features, store.labels, store.split, lambda: store.members.refuse(store.verify()),
    ]  # fmt: skip
    for call in calls:
        call()
    prepare(Graph(6, [[0, 3], [1, 5]], width=2, classes=2), path, force=True, shards=shards, **options)
    for call in calls:
        with pytest.raises(UserError, match=r"g.dg: was replaced while it was read; open it again"):
            call()


def test_the_same_again_is_no_other(tmp_path: Path) -> None:
    path = tmp_path / "g.dg"
    prepare(PATH, path)
    store, before = Store(path), {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    prepare(PATH, path, force=True)
    assert store.order().nnz == nodes(path) + 6
    store.order().block((0, 4), (0, 4))
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
