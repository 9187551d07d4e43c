"""Outputs replace regular files only, and a disk that takes no more is one line on all ranks."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import resource
import stat
from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI

import distgnn as dg
from distgnn import cli
from distgnn.cli import train
from distgnn.files import lock, output
from distgnn.report import logs, page, trace
from distgnn.store import checkpoint
from distgnn.store.format import publish
from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions
from distgnn.train.export import export_weights
from distgnn.train.log import RunLog
from distgnn.train.predict import Predictor
from distgnn.train.run import Run
from distgnn.train.settings import Settings

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
def test_a_log_that_the_disk_does_not_take(comm, shared_tmp_path, caplog):
    run_log = RunLog(dg.Grid(comm, backend="numpy", rows=comm.size), shared_tmp_path / "log")
    run_log.write("run", {})
    with small_files(100, comm.rank == 0):
        run_log.write("epoch", {"what": "x" * 1000})
    run_log.write("epoch", {})  # the disk has room again, and the log no hole
    run_log.close()
    comm.Barrier()
    lost = f"{shared_tmp_path / 'log'}: this log is incomplete (File too large)"
    assert run_log.lost == ("" if comm.rank else lost)
    warned = [record.getMessage() for record in caplog.records]
    assert warned == ([] if comm.rank else [f"{lost}; training goes on"])
    assert (shared_tmp_path / "log").read_text() == '{"event": "run"}\n'


@pytest.mark.ranks(1, 3)
def test_training_outlives_its_log(comm, shared_tmp_path, capsys):
    if comm.rank == 0:
        arrays = np.array([[0, 1, 2], [1, 2, 0]]), np.eye(3), np.array([0, 1, 0]), ["train", "train", "val"]
        dg.prepare(*arrays, out=shared_tmp_path / "g.dg")
    comm.Barrier()
    words = f"train {shared_tmp_path}/g.dg --quiet --epochs 5 --log {shared_tmp_path}/log"
    with small_files(4000, comm.rank == 0):
        code = train.run(cli.parse(words.split()), comm)
    said = capsys.readouterr().err.splitlines()
    ends = [json.loads(line).get("epoch", 0) for line in (shared_tmp_path / "log").read_text().splitlines()]
    assert code == 0 and ends == [*range(len(ends))] and 1 <= len(ends) <= 5
    lost = f"distgnn: warning: {shared_tmp_path}/log: this log is incomplete (File too large)"
    assert said == ([] if comm.rank else [lost])


def test_a_log_has_one_writer(tmp_path):
    grid, path = dg.Grid(MPI.COMM_SELF, backend="numpy", rows=1), tmp_path / "log"
    first = RunLog(grid, path)
    first.write("run", {})
    for how in ({"force": True}, {"after": 0}):
        with pytest.raises(dg.UserError, match=f"log: process {os.getpid()} on .* writes it now; wait"):
            RunLog(grid, path, **how)
    first.write("epoch", {"epoch": 1})
    first.close()
    assert len(path.read_text().splitlines()) == 2 and [*tmp_path.iterdir()] == [path]
    RunLog(grid, path, after=0).close()
    assert path.read_text() == '{"event": "run"}\n'


def test_a_log_of_messages_that_the_disk_does_not_take(tmp_path, capsys):
    (tmp_path / "e.csv").write_text("0,1\n")
    words = ["info", str(tmp_path / "e.csv"), "--log-dir"]
    with small_files(30):
        assert cli.main([*words, str(tmp_path / "logs")]) == 2
    warning, error = capsys.readouterr().err.splitlines()
    assert warning.endswith("logs/rank-0000.log: this log is incomplete (File too large)")
    assert "e.csv" in error and (tmp_path / "logs" / "rank-0000.log").stat().st_size == 30
    assert cli.main([*words, str(tmp_path / "e.csv" / "logs")]) == 2
    assert capsys.readouterr().err.endswith("e.csv/logs: cannot write it (Not a directory)\n")


@pytest.mark.ranks(1, 3)
def test_predictions_and_exports_that_the_disk_does_not_take(comm, shared_tmp_path):
    path = shared_tmp_path
    if comm.rank == 0:
        draw = np.random.default_rng(0)
        arrays = draw.integers(0, 900, (2, 3000)), draw.random((900, 4), np.float32), np.arange(900) % 3
        dg.prepare(*arrays, "0.6/0.2/0.2", out=path / "g.dg")
    comm.Barrier()
    [*Run(path / "g.dg", Settings(epochs=1, checkpoint=str(path / "kept")), comm).train()]
    comm.Barrier()
    before = sorted(path.iterdir())
    comm.Barrier()
    predictor, problem = Predictor(path / "g.dg", path / "kept", comm), r"^out=.*write it \(File too large\)$"
    for name, size in itertools.product(("p.npz", "p.csv"), (200, 9000, 11000)):
        with small_files(size, comm.rank == 0), pytest.raises(dg.UserError, match=problem):
            predictor.write(path / name)
    if comm.rank == 0:
        with small_files(200), pytest.raises(dg.UserError, match=problem):
            export_weights(path / "kept", path / "w.npz")
    comm.Barrier()
    assert sorted(path.iterdir()) == before


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
