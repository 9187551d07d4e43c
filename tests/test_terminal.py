"""Texts on a terminal: none of a file steers it, whatever the locale and the streams."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import distgnn
from distgnn import cli, terminal

HOSTILE = "\x1b[2Jred\x07\x9b31m\u202egpj\udcff"
CLOSED = """import os, sys
for k in map(int, sys.argv[1]):
    os.close(k)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"""


def test_what_a_terminal_would_obey_is_escaped(capsys: Any) -> None:
    terminal.show(f"a\tb {HOSTILE}", "c\nd")
    assert capsys.readouterr().out == "a\tb \\x1b[2Jred\\x07\\x9b31m\\u202egpj\\udcff\nc\nd\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_locale_shows_every_text(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    file = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, encoding))
    terminal.show("\xc5sa \u4e2d")
    shown = {"ascii": "\\xc5sa \\u4e2d", "latin-1": "\xc5sa \\u4e2d", "utf-8": "\xc5sa \u4e2d"}[encoding]
    assert file.getvalue().decode(encoding) == shown + "\n"


def test_commands_show_no_control_characters(tmp_path: Path, capsys: Any) -> None:
    edges, store = tmp_path / "e\x1b[31m.csv", str(tmp_path / "g\x1b[2J.dg")
    edges.write_text("source,target\n\x1b]0;t\x07,b\nb,c\u202e\n")
    labels = tmp_path / "l.csv"
    labels.write_text("id,la\x1bbel\nb,x\x1b[5m\n")
    assert cli.main(["prepare", str(edges), store, "--labels", str(labels)]) == 0
    assert cli.main(["info", store]) == 0
    for text in capsys.readouterr():
        assert all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("closed", ["1", "2", "12", "012"])
def test_processes_without_streams_work(tmp_path: Path, closed: str) -> None:
    """A file that is opened next must not become the stream that libraries print to."""
    (tmp_path / "e.txt").write_text("0 1\n1 2\n")
    words = ["-m", "distgnn", "prepare", "e.txt", "g.dg"]
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, closed, *words], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(distgnn.__file__).parents[1])},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert cli.main(["info", str(tmp_path / "g.dg"), "--verify"]) == 0


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_pipe_gets_no_more(tmp_path: Path, stream: str) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    streams: Any = {stream: writes, other: subprocess.PIPE}
    words = ["algorithms"] if stream == "stdout" else ["info", "nowhere.dg"]
    done = subprocess.run([sys.executable, "-m", "distgnn", *words], cwd=tmp_path, **streams)
    os.close(writes)
    assert done.returncode == {"stdout": 1, "stderr": 2}[stream] and not getattr(done, other)
