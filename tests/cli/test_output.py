"""Output of commands beside their results: progress, messages, files of ranks. A library prints nothing."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from distgnn import cli, stages
from distgnn.cli import output
from distgnn.errors import UserError
from mpi_helpers import mpiexec

LINE = r"distgnn: train: \d+%, ([\d.]+k? epochs/s, \d+ s left|\d+ s so far)(; loss [\d.]+.*)?"


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph")
    words = [str(folder / "g"), str(folder / "g.dg")]
    assert cli.main(["generate", "sbm", words[0], "--nodes", "300", "--features", "8", "-q"]) == 0
    assert cli.main(["prepare", *words, "-q"]) == 0
    return folder


@pytest.mark.slow
def test_progress_goes_to_stderr_under_mpiexec(graph):
    """Rank 0 has a pipe there. Lines come at most as often as they may."""
    program = "import sys; from distgnn.cli import main, output; output.EVERY = 0.05; sys.exit(main())"
    logs = str(graph / "logs")
    words = [
        "train",
        str(graph / "g.dg"),
        "--epochs",
        "150",
        "--log-dir",
        logs,
        "--checkpoint",
        str(graph / "w"),
    ]
    done = mpiexec(2, "-c", program, *words)
    assert done.code == 0, done.err
    said = [line for line in done.err.splitlines() if line.startswith("distgnn: train: ")]
    assert len(said) < 150 and all(re.fullmatch(LINE, line) for line in said[:-1])
    assert any(" left; loss " in line for line in said)
    assert said[-1].startswith("distgnn: train: done, 150 epochs in ")
    assert "distgnn:" not in done.out and "%" not in done.out and "accuracy after the last update" in done.out
    for rank in (0, 1):
        text = (graph / "logs" / f"rank-{rank:04d}.log").read_text()
        assert all(f" rank {rank} " in line for line in text.splitlines())
        assert f"epochs {150}" in text and "epoch 150: loss" in text and "w: saved after epoch 150" in text
        held = re.search(r"this rank holds (\d+) non-zeros", text)
        assert held and 0 < int(held[1])
        assert "DEBUG" in text and text.splitlines()[-1].endswith("train is done")


def test_levels(graph, capfd):
    def err(*words):
        assert cli.main(["train", str(graph / "g.dg"), "--epochs", "2", *words]) == 0
        return capfd.readouterr().err

    assert err() == err("-q") == ""
    told = err("-v")
    assert "distgnn: info: " in told and "this rank holds" in told and "epoch 2" not in told
    assert not logging.getLogger("distgnn").isEnabledFor(logging.INFO)  # as before


def test_no_progress_where_quiet(graph, capfd, monkeypatch):
    monkeypatch.setattr(output, "EVERY", 0.001)
    for words, lines in ((), True), (("-q",), False):
        assert cli.main(["train", str(graph / "g.dg"), "--epochs", "20", *words]) == 0
        assert ("distgnn: train: " in capfd.readouterr().err) is lines


def test_warnings_are_shown_unless_quiet(graph, capfd, monkeypatch):
    log = logging.getLogger("distgnn.store")
    monkeypatch.setattr("distgnn.cli.info.run", lambda args: log.warning("look at %s", "this"))
    for words, expected in ((), "distgnn: warning: look at this\n"), (("-q",), ""):
        assert cli.main(["info", str(graph / "g.dg"), *words]) == 0
        assert capfd.readouterr().err == expected


def test_errors_are_printed_once_and_kept_in_the_file(graph, tmp_path, capfd):
    for words, code in (("info", "nowhere.dg"), 2), (("algorithms",), 0):
        assert cli.main([*words, "--log-dir", str(tmp_path / "logs")]) == code
    err = capfd.readouterr().err
    assert err.count("nowhere.dg: no such store") == 1 and err.startswith("distgnn: error: ")
    text = (tmp_path / "logs" / "rank-0000.log").read_text()
    assert " ERROR " in text and text.count("nowhere.dg: no such store") >= 1 and "algorithms is done" in text
    (tmp_path / "file").touch()
    assert cli.main(["algorithms", "--log-dir", str(tmp_path / "file")]) == 2
    assert "--log-dir" in capfd.readouterr().err


def test_machine_readable_output_is_clean(graph, capfd):
    assert cli.main(["info", str(graph / "g.dg"), "--json", "-v"]) == 0
    json.loads(capfd.readouterr().out)


@pytest.mark.slow
def test_a_library_says_nothing(graph):
    program = f"""
import logging, distgnn as dg
from distgnn.train import Run, Settings
logging.getLogger("distgnn.train").info("unheard")
list(Run({str(graph / "g.dg")!r}, Settings(epochs=1, quiet=True)).train())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")  # but warnings: they reach a person


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    told = SimpleNamespace(monotonic=lambda: now[0])  # theirs alone: the tests' watchdog reads the true one
    for module in output, stages:
        monkeypatch.setattr(module, "time", told)
    return now


def test_lines_come_every_few_seconds_and_less_often_later(clock):
    stream = io.StringIO()
    said = []
    with stages.watched(output.Lines(stream)), stages.stage("import", 10_000, "edges") as advance:
        for second in range(1, 1001):
            clock[0] = 100.0 + second
            advance(10)
            said += [second] * (len(stream.getvalue().splitlines()) - len(said))
    assert said[:3] == [5, 10, 15] and all(b - a >= 5 for a, b in zip(said, said[1:], strict=False))
    assert said[-1] - said[-2] >= 15
    first, *_, last = stream.getvalue().splitlines()
    assert first == "distgnn: import: 0%, 10 edges/s, 16 min 35 s left"
    assert last == "distgnn: import: done, 10k edges in 16 min 40 s"


def test_the_innermost_stage_speaks_and_short_ones_are_silent(clock):
    stream = io.StringIO()
    with stages.watched(output.Lines(stream)), stages.stage("outer", 2) as outer:
        with stages.stage("inner", unit="B") as inner:
            clock[0] += 6
            outer(1), inner(6 << 20)
        clock[0] += 1
    inside, over = stream.getvalue().splitlines()
    assert inside == "distgnn: inner: 6 MiB, 1 MiB/s, 6 s so far" and over.startswith(
        "distgnn: inner: done, 6 MiB"
    )


@pytest.mark.parametrize("bars", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError])
def test_an_interrupted_stage_says_that_it_was_stopped(clock, bars, error):
    stream = io.StringIO()
    watcher = output.Bars(stream) if bars else output.Lines(stream)
    with pytest.raises(error), stages.watched(watcher), stages.stage("import", 10_000, "edges") as advance:
        clock[0] += 6
        advance(3000)
        raise error
    assert stream.getvalue().splitlines()[-1].endswith("distgnn: import: stopped, 3k edges of 10k in 6 s")
    assert "done" not in stream.getvalue()


def test_what_does_not_advance_says_how_long_it_lasts(monkeypatch):
    """A thread beside the stage tells."""
    monkeypatch.setattr(output, "EVERY", 0.04)
    stream, over = io.StringIO(), output.threading.Event()
    with output.watching(stream), stages.stage("partition"):
        for _ in range(500):
            if stream.getvalue():
                break
            over.wait(0.01)
    assert stream.getvalue().startswith("distgnn: partition: 0 s so far\n")
