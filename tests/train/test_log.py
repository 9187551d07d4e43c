"""The log file and the progress on the terminal."""

from __future__ import annotations

import io
import json
import sys
import time

import numpy as np
import pytest
from mpi4py import MPI

import distgnn as dg
from distgnn.cli import output
from distgnn.cli.console import progress
from distgnn.train.log import RunLog, cut, end_record


@pytest.fixture
def grid():
    return dg.Grid(MPI.COMM_SELF, backend="numpy", rows=1)


def test_lines_are_json_even_for_numbers_that_json_lacks(grid, tmp_path):
    log = RunLog(grid, tmp_path / "log")
    log.write(
        "epoch",
        {"loss": float("nan"), "accs": [float("inf"), np.float32(0.5)], "n": np.int64(3), "path": tmp_path},
    )
    log.close()

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    (line,) = (tmp_path / "log").read_text().splitlines()
    read = json.loads(line, parse_constant=refuse)
    assert read == {"event": "epoch", "loss": None, "accs": [None, 0.5], "n": 3, "path": str(tmp_path)}


def test_lines_are_there_at_once(grid, tmp_path):
    log = RunLog(grid, tmp_path / "log")
    log.write("run", {})
    assert (tmp_path / "log").read_text() == '{"event": "run"}\n'
    log.close()


def test_existing_logs(grid, tmp_path):
    path = tmp_path / "log"
    path.write_text("old\n")
    with pytest.raises(dg.UserError, match="force=True replaces"):
        RunLog(grid, path)
    log = RunLog(grid, path, after=1)
    log.write("run", {})
    log.close()
    assert path.read_text() == 'old\n{"event": "run"}\n'
    RunLog(grid, path, force=True).close()
    assert path.read_text() == ""
    with pytest.raises(dg.UserError, match="is a directory"):
        RunLog(grid, tmp_path, force=True)


HISTORY = [
    '{"event": "run", "config": {"epochs": 3}}',
    *(f'{{"event": "epoch", "epoch": {epoch}, "loss": 1.0}}' for epoch in (1, 2, 3)),
    '{"event": "end", "epochs": 3}',
    "a note",
    *(f'{{"event": "epoch", "epoch": {epoch}}}' for epoch in (4, 5, 6)),
    '{"event": "end", "epochs": 6}',
]


def test_a_log_is_cut_after_an_epoch(tmp_path):
    path = tmp_path / "log"
    for epoch, kept in ((9, 10), (6, 10), (4, 7), (3, 6), (0, 2)):
        path.write_text("".join(f"{line}\n" for line in HISTORY))
        path.chmod(0o640)
        cut(path, epoch)
        expected = HISTORY[:kept] if epoch else [HISTORY[0], HISTORY[5]]
        assert path.read_text().splitlines() == expected
        assert path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["log"]


def test_a_line_that_was_never_finished_goes(tmp_path):
    path, link = tmp_path / "log", tmp_path / "link"
    path.write_text(HISTORY[0] + "\n" + HISTORY[1][:20])
    link.symlink_to(path)
    log = RunLog(dg.Grid(MPI.COMM_SELF, backend="numpy", rows=1), link, after=1)
    log.write("run", {})
    log.close()
    assert path.read_text() == HISTORY[0] + '\n{"event": "run"}\n' and link.is_symlink()


def test_a_cut_that_fails_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_text("".join(f"{line}\n" for line in HISTORY))

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("distgnn.files.output.os.fsync", fail)
    with pytest.raises(dg.UserError, match="cannot write it .No space left"):
        RunLog(dg.Grid(MPI.COMM_SELF, backend="numpy", rows=1), path, after=2)
    assert path.read_text().splitlines() == HISTORY
    assert [entry.name for entry in tmp_path.iterdir()] == ["log"]


def test_without_a_path_nothing_is_written(grid):
    log = RunLog(grid, None)
    log.write("run", {})
    log.close()


@pytest.mark.ranks(2, 3)
def test_only_the_first_rank_writes_and_all_learn_of_its_failure(comm, shared_tmp_path):
    grid = dg.Grid(comm, backend="numpy", rows=comm.Get_size())
    log = RunLog(grid, shared_tmp_path / "log")
    log.write("run", {"rank": comm.Get_rank()})
    log.close()
    comm.Barrier()
    assert (shared_tmp_path / "log").read_text() == '{"event": "run", "rank": 0}\n'
    comm.Barrier()
    with pytest.raises(dg.UserError, match="force=True replaces"):
        RunLog(grid, shared_tmp_path / "log")


@pytest.mark.ranks(3)
def test_the_end_has_every_rank_in_order(comm):
    grid = dg.Grid(comm, backend="numpy", rows=comm.Get_size())
    with dg.Ledger() as ledger:
        grid.world.bcast(np.zeros(10), root=1, matrix="A")
    end = end_record(grid, ledger, [3.0, 1.0, 2.0])
    assert end["words"] == [10, 0, 10] and end["bytes"] == [80, 0, 80] and end["messages"] == [1, 0, 1]
    assert end["traffic"] == [[0, 0, 0], [10, 0, 10], [0, 0, 0]]
    assert end["epoch_seconds_median"] == 2.0
    assert [(entry["rank"], entry["matrix"]) for entry in end["ledger"]] == [(0, "A"), (1, "A"), (2, "A")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


RECORD = {"epoch": 1, "loss": 1.25, "train_acc": 0.5, "val_acc": 0.25, "test_acc": 0.125, "seconds": 0.5}


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(output, "DELAY", 0)
    with output.watching(sys.stderr), progress(True, 1, 2) as show:
        show(RECORD)
        time.sleep(0.11)  # a bar is drawn ten times a second
        show(RECORD | {"epoch": 2})
    assert sys.stdout.getvalue() == ""
    assert "2/2" in sys.stderr.getvalue() and "loss 1" in sys.stderr.getvalue()


def test_a_file_gets_lines_and_other_ranks_nothing(capsys):
    with progress(False, 1, 2) as show:
        show(RECORD)
    assert capsys.readouterr().out == ""
    with progress(True, 5, 6) as show:
        show(RECORD | {"epoch": 5})
        show({"epoch": 6, "loss": float("nan"), "seconds": 0.5})
    first, second = capsys.readouterr().out.splitlines()
    assert first == "epoch    5  loss 1.250000  train 0.5000  val 0.2500  test 0.1250  0.5000 s"
    assert second == "epoch    6  loss nan  0.5000 s"
