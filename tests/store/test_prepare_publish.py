"""A store appears whole or not at all, and what was there before survives until then."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from distgnn import UserError
from distgnn.files.lock import locked
from distgnn.store import Store, prepare
from distgnn.store.format import hdf5, manifest, publish, steady

from .graphs import AWKWARD, Graph

GRAPH = AWKWARD["prime"]


class Failing(Graph):
    """Raises in the middle of its edges, or of its features."""

    def __init__(self, error: BaseException, where: str = "edges") -> None:
        super().__init__(31, GRAPH.pairs, width=5)
        self.error, self.where = error, where

    def edges(self) -> Any:
        for count, chunk in enumerate(super().edges()):
            if count == 5 and self.where == "edges":
                raise self.error
            yield chunk

    def features(self, ids: Any) -> Any:
        if self.where == "features":
            raise self.error
        return super().features(ids)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("where", ["edges", "features"])
@pytest.mark.parametrize(
    "error", [UserError("bad"), ValueError("bad"), KeyboardInterrupt(), MemoryError()], ids=repr
)
def test_a_failure_leaves_nothing(error: BaseException, where: str, tmp_path: Path) -> None:
    with pytest.raises(type(error)):
        prepare(Failing(error, where), tmp_path / "g.dg", shards=(3, 3))
    assert names(tmp_path) == set()


def test_a_failure_at_the_very_end_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("at the end")

    monkeypatch.setattr(manifest, "write", fail)
    with pytest.raises(RuntimeError, match="at the end"):
        prepare(GRAPH, tmp_path / "g.dg")
    assert names(tmp_path) == set()


def test_what_exists_is_kept_without_force(tmp_path: Path) -> None:
    prepare(GRAPH, tmp_path / "g.dg")
    before = Store(tmp_path / "g.dg").manifest
    with pytest.raises(UserError, match=r"g.dg exists; force=True replaces it, or give another name"):
        prepare(AWKWARD["hub"], tmp_path / "g.dg")
    assert Store(tmp_path / "g.dg").manifest == before
    assert names(tmp_path) == {"g.dg"}


def test_force_replaces_a_store(tmp_path: Path) -> None:
    prepare(GRAPH, tmp_path / "g.dg", order=("random", "original"))
    prepare(AWKWARD["hub"], tmp_path / "g.dg", force=True)
    store = Store(tmp_path / "g.dg")
    assert (store.n, store.orders) == (37, ("random",))
    assert store.verify() == []
    assert names(tmp_path) == {"g.dg"}
    assert names(tmp_path / "g.dg" / "orders") == {"random"}


def test_a_refused_run_removes_what_killed_ones_left(tmp_path: Path) -> None:
    prepare(GRAPH, tmp_path / "g.dg")
    for name in (".g.dg.abcd1234.tmp", ".g.dg.abcd1234.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text("half")
    (tmp_path / ".g.dg.lock").write_text("process 1 on a host")
    with locked(tmp_path / "g.dg"), pytest.raises(UserError, match="exists; force=True"):
        prepare(GRAPH, tmp_path / "g.dg")
    assert len(names(tmp_path)) == 3  # somebody was at work
    with pytest.raises(UserError, match="exists; force=True"):
        prepare(GRAPH, tmp_path / "g.dg")
    assert names(tmp_path) == {"g.dg"}


def test_force_takes_nothing_else_along(tmp_path: Path) -> None:
    prepare(GRAPH, tmp_path / "g.dg")
    (tmp_path / "g.dg" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="g.dg: holds notes.txt, which is no file of a store; move it"):
        prepare(AWKWARD["hub"], tmp_path / "g.dg", force=True)
    assert (tmp_path / "g.dg" / "notes.txt").read_text() == "mine"


def test_the_old_store_survives_a_failed_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(GRAPH, tmp_path / "g.dg")
    before = Store(tmp_path / "g.dg").manifest
    with pytest.raises(ValueError, match="bad"):
        prepare(Failing(ValueError("bad")), tmp_path / "g.dg", force=True)
    assert Store(tmp_path / "g.dg").manifest == before

    original, calls = os.rename, []

    def rename(source: Any, target: Any) -> None:
        calls.append(Path(source).name)
        if len(calls) == 2:  # the new one is about to take the place that the old one has just left
            raise OSError(errno.EIO, "input/output error")
        original(source, target)

    with monkeypatch.context() as patch, pytest.raises(UserError, match="Input/output error"):
        patch.setattr(publish, "_exchange", lambda *_: False)
        patch.setattr(publish.os, "rename", rename)
        prepare(AWKWARD["hub"], tmp_path / "g.dg", force=True)
    assert Store(tmp_path / "g.dg").manifest == before
    assert names(tmp_path) == {"g.dg"}


@pytest.mark.parametrize("answer", ["old library", "old system", "broken disk"])
def test_systems_without_an_exchange(answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self, *args: Any, **options: Any) -> None:
            if answer != "old library":
                self.renameat2 = self.refuse

        def refuse(self, *args: Any) -> int:
            ctypes.set_errno(errno.EIO if answer == "broken disk" else errno.ENOSYS)
            return -1

    prepare(GRAPH, tmp_path / "g.dg")
    monkeypatch.setattr(publish.ctypes, "CDLL", Library)
    if answer == "broken disk":
        with pytest.raises(UserError, match="g.dg: Input/output error"):
            prepare(AWKWARD["hub"], tmp_path / "g.dg", force=True)
    else:
        prepare(AWKWARD["hub"], tmp_path / "g.dg", force=True)
    assert Store(tmp_path / "g.dg").n == (31 if answer == "broken disk" else 37)
    assert names(tmp_path) == {"g.dg"}


@pytest.mark.parametrize("content", ["", '{"name": "web app"}', "not json"])
def test_force_replaces_nothing_but_stores(content: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    if content:
        (home / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=r"home exists and is not a distgnn store, which force=True replaces"):
        prepare(GRAPH, home, force=True)
    with pytest.raises(UserError, match=r"thesis.tex exists and is not a distgnn store"):
        prepare(GRAPH, home / "thesis.tex", force=True)
    assert (home / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("content", ["{", '{"format": "distgnn-store", "version": 99}'])
def test_force_replaces_damaged_and_foreign_versions(content: str, tmp_path: Path) -> None:
    (tmp_path / "g.dg").mkdir()
    (tmp_path / "g.dg" / "manifest.json").write_text(content)
    prepare(GRAPH, tmp_path / "g.dg", force=True)
    assert Store(tmp_path / "g.dg").n == 31


def test_an_empty_directory_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "g.dg").mkdir()
    prepare(GRAPH, tmp_path / "g.dg")
    assert Store(tmp_path / "g.dg").n == 31


def test_a_link_is_followed(tmp_path: Path) -> None:
    prepare(GRAPH, tmp_path / "there.dg")
    (tmp_path / "here.dg").symlink_to(tmp_path / "there.dg")
    prepare(AWKWARD["hub"], tmp_path / "here.dg", force=True)
    assert (tmp_path / "here.dg").is_symlink()
    assert Store(tmp_path / "there.dg").n == 37


def test_the_parent_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"runs/g.dg: directory .*runs does not exist"):
        prepare(GRAPH, tmp_path / "runs" / "g.dg")
    assert names(tmp_path) == set()


class Disk:
    """A disk whose writes of HDF5 files fail where `fails` of their number says so, and take half of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool], number: int) -> None:
        self.seen = 0
        disk = self

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                disk.seen += 1
                if fails(disk.seen):
                    raise OSError(number, os.strerror(number))
                return super().write(data[: -(-len(data) // 2)])

        monkeypatch.setattr(steady, "open", lambda *how, buffering: File(*how), raising=False)
        monkeypatch.setattr(steady, "BUFFER", 1)  # each is one of the disk


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Disk(monkeypatch, (70).__le__, number)
    with pytest.raises(UserError, match=rf"cannot write .*g.dg: {os.strerror(number)}"):
        prepare(GRAPH, tmp_path / "g.dg", shards=(3, 3))
    assert names(tmp_path) == set()


def test_others_may_read_it_if_the_umask_says_so(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        prepare(GRAPH, tmp_path / "g.dg")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "g.dg").stat().st_mode) == 0o750
    assert all(path.stat().st_mode & 0o040 for path in (tmp_path / "g.dg").rglob("*"))


def test_the_lock_of_another_user_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock may only be read, if the other user's umask says so."""
    original = os.open

    def mine_only(path: Any, flags: int, *mode: int) -> int:
        if Path(path).exists() and flags & os.O_RDWR and str(path).endswith(".lock"):
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, flags, *mode)

    with locked(tmp_path / "g.dg"):
        monkeypatch.setattr(os, "open", mine_only)
        with pytest.raises(UserError, match="g.dg: process .* writes it now; wait for that"):
            prepare(GRAPH, tmp_path / "g.dg")
    monkeypatch.undo()
    prepare(GRAPH, tmp_path / "g.dg")


def test_an_output_that_appears_while_its_lock_is_awaited_is_seen_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "_heal", lambda target: (target / "thesis").mkdir(parents=True))
    begun = False
    with pytest.raises(UserError, match="out"):
        with publish.new_directory(tmp_path / "out", force=False, replaceable=lambda path: True):
            begun = True
    assert not begun and os.listdir(tmp_path) == ["out"]


def test_an_output_that_appears_while_its_work_is_done_is_not_replaced(tmp_path: Path) -> None:
    """Not everybody takes the lock."""
    with pytest.raises(UserError, match="out"):
        with publish.new_directory(tmp_path / "out", force=False, replaceable=lambda path: True) as folder:
            (folder / "store").touch()
            (tmp_path / "out" / "thesis").mkdir(parents=True)
    assert os.listdir(tmp_path) == ["out"] and os.listdir(tmp_path / "out") == ["thesis"]


def open_files() -> int:
    """Count the files and datasets that HDF5 holds open."""
    return h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE | h5py.h5f.OBJ_DATASET)


def test_no_write_that_fails_reaches_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever fails, the disk's error comes, and HDF5 closes its file."""
    values = np.arange(5000.0)

    def store(fails: Callable[[int], bool]) -> int:
        disk = Disk(monkeypatch, fails, errno.EIO)
        with hdf5.writing(tmp_path / "x.h5") as file:
            growing = hdf5.Growing(file, "grown", float, 100)
            for part in np.split(values, 5):
                growing.append(part)
            hdf5.store_array(file, "stored", values)
            hdf5.create(file, "open", values.shape, float)[...] = values  # written when it closes
        return disk.seen

    writes = store(lambda number: False)
    with h5py.File(tmp_path / "x.h5") as file:
        assert all(np.array_equal(file[name], values) for name in ("grown", "stored", "open"))
    for failing in range(1, writes + 1):
        for fails in (failing.__eq__, failing.__le__):  # once, or from there on
            with pytest.raises(OSError, match="Input/output error"):
                store(fails)
            assert not open_files()


def test_nothing_is_written_after_a_write_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first error is the one that comes when the file is closed."""
    disk, path = Disk(monkeypatch, (3).__eq__, errno.EIO), tmp_path / "x"  # two writes for each word
    file = steady.SteadyFile(path, "w")
    assert [file.write(word) for word in (b"one", b"two", b"three")] == [3, 3, 5]
    assert disk.seen == 3 and path.read_bytes() == b"one"
    with pytest.raises(OSError, match="Input/output error"):
        file.close()


def test_a_signal_is_handled_when_the_file_is_closed(tmp_path: Path) -> None:
    come = list[bool]()
    before = signal.signal(signal.SIGUSR1, lambda *_: come.append(bool(open_files())))
    try:
        with hdf5.writing(tmp_path / "x.h5") as file:
            signal.raise_signal(signal.SIGUSR1)
            hdf5.store_array(file, "x", np.ones(3))
            assert come == []
        assert come == [False]
        signal.raise_signal(signal.SIGUSR1)
        assert come == [False, False]
    finally:
        signal.signal(signal.SIGUSR1, before)
