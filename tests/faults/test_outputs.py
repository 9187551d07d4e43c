"""Outputs replace regular files only, and a disk that takes no more is one line on all ranks."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
from collections.abc import Iterator

import numpy as np
import pytest

import distgnn as dg
from distgnn import cli
from distgnn.files import lock, output
from distgnn.report import logs, page, trace
from distgnn.store import checkpoint
from distgnn.store.format import publish
from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions
from distgnn.train.log import RunLog

from .killed import each_step

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def small_files(size: int, here: bool = True) -> Iterator[None]:
    """Limit this process's files to this size.

    Python ignores the signal; writing gets EFBIG.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if here:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.ranks(1, 2, 4)
def test_a_log_that_the_disk_does_not_take(comm, shared_tmp_path):
    log = RunLog(dg.Grid(comm, backend="numpy", rows=comm.size), shared_tmp_path / "log")
    log.write("run", {})
    with (
        small_files(100, comm.rank == 0),
        pytest.raises(dg.UserError, match=r"^log=.*cannot write it \(File too large\)$"),
    ):
        log.write("epoch", {"what": "x" * 1000})
    log.close()
    comm.Barrier()
    assert (shared_tmp_path / "log").read_text() == '{"event": "run"}\n'


@pytest.mark.ranks(1, 2, 4)
def test_a_trace_that_the_disk_does_not_take(comm, shared_tmp_path):
    world, path = dg.Grid(comm, backend="numpy", rows=comm.size).world, shared_tmp_path / "trace"
    with small_files(100, comm.rank == 0), pytest.raises(dg.UserError, match=r"^trace=.*File too large"):
        trace.write(path, world, [], [(epoch, 0.0, 1.0) for epoch in range(100)])
    comm.Barrier()
    assert list(shared_tmp_path.iterdir()) == []


@pytest.mark.ranks(1, 2, 4)
def test_a_checkpoint_that_the_disk_does_not_take(comm, shared_tmp_path):
    world, path = dg.Grid(comm, backend="numpy", rows=comm.size).world, shared_tmp_path / "saved"
    rows, last = 2000, comm.size - 1
    pieces = {"W": (rows * comm.rank, 0, np.ones((rows, 4)), (rows * comm.size, 4))}
    checkpoint.save(path, world, pieces, {"epoch": 1})
    before = sorted(path.iterdir())
    with small_files(5000, comm.rank == last), pytest.raises(dg.UserError, match="saved: File too large"):
        checkpoint.save(path, world, pieces, {"epoch": 2})
    comm.Barrier()
    assert sorted(path.iterdir()) == before and checkpoint.load(path, world).meta == {"epoch": 1}


def test_a_device_or_pipe_is_no_output(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to(os.devnull)
    for name in ("pipe", "null"):
        for force in (False, True):
            with pytest.raises(dg.UserError, match="is no regular file"):
                output.check_output("log", tmp_path / name, force)
        with pytest.raises(dg.UserError, match="is no regular file"):
            page.write([], [], str(tmp_path / name), True)
        for words in (["prepare", __file__], ["generate", "rmat"]):
            assert cli.main([*words, str(tmp_path / name), "--force"]) == 2
        with pytest.raises(dg.UserError, match="is not a distgnn checkpoint"):
            checkpoint.next_generation(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.timeout(20)
def test_what_a_report_cannot_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "deep").write_text("[" * 100_000)
    for read in (logs.read_log, logs.read_trace):
        with pytest.raises(dg.UserError, match="pipe: is no regular file"):
            read(tmp_path / "pipe")
        with pytest.raises(dg.UserError, match="expected what train"):
            read(tmp_path / "deep")


@pytest.mark.timeout(20)
def test_a_store_whose_manifest_is_a_pipe_is_not_replaced(tmp_path, capsys):
    (tmp_path / "g.dg").mkdir()
    os.mkfifo(tmp_path / "g.dg" / "manifest.json")
    (tmp_path / "e.csv").write_text("0,1\n")
    assert cli.main(["prepare", str(tmp_path / "e.csv"), str(tmp_path / "g.dg"), "--force"]) == 2
    assert "exists and is not a distgnn store" in capsys.readouterr().err


def test_more_nodes_than_disk_or_memory_hold(tmp_path, capsys, monkeypatch):
    for kind in ("rmat", "sbm", "road"):
        assert cli.main(["generate", kind, str(tmp_path / "g"), "--nodes", str(1 << 40)]) == 2
        line = capsys.readouterr().err
        assert "--nodes 1099511627776: " in line and " GB free" in line and line.count("\n") == 1
    from distgnn.gallery import directory

    monkeypatch.setattr(directory, "NODE_BYTES", 1 << 40)
    assert cli.main(["generate", "rmat", str(tmp_path / "g"), "--nodes", "100"]) == 2
    assert " GB of memory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_whose_writer_is_killed_is_the_old_or_the_new_one(tmp_path):
    path, found = tmp_path / "trace", []

    def write(text: bytes) -> None:
        with output.replaced(path) as file:
            file.write(text)

    write(b"old")
    for step in each_step(lambda: write(b"new")):
        found.append(path.read_bytes())
        write(b"old" if step else b"new")
        assert [entry.name for entry in tmp_path.iterdir()] == ["trace"]
    assert found == sorted(found, reverse=True) and {*found} == {b"old", b"new"}


def test_a_lock_that_the_disk_does_not_take(tmp_path):
    with small_files(3), pytest.raises(dg.UserError, match="cannot write .*g.dg: File too large"):
        with lock.locked(tmp_path / "g.dg"):
            raise AssertionError
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_is_a_mount_point(tmp_path, capsys, monkeypatch):
    (tmp_path / "e.csv").write_text("0,1\n")
    words = ["prepare", str(tmp_path / "e.csv"), str(tmp_path / "g.dg"), "--force"]
    assert cli.main(words) == 0

    def busy(*_):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(publish, "_exchange", busy)
    assert cli.main(words) == 2
    assert capsys.readouterr().err.endswith("g.dg: Device or resource busy\n")
    assert {entry.name for entry in tmp_path.iterdir()} == {"e.csv", "g.dg"}


def test_temporary_copies_have_no_name(tmp_path):
    (tmp_path / "e.csv").write_text("0,1\n1,2\n")
    (tmp_path / "x.csv").write_text("1,2\n3,4\n5,6\n")
    np.savez_compressed(tmp_path / "x.npz", features=np.ones((3, 2)))
    (tmp_path / "scratch").mkdir()
    for name in ("x.csv", "x.npz"):
        options = ImportOptions(features=str(tmp_path / name), scratch=str(tmp_path / "scratch"))
        for _ in each_step(lambda options=options: open_source(tmp_path / "e.csv", options)):
            assert list((tmp_path / "scratch").iterdir()) == []
