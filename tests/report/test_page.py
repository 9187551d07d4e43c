"""`distgnn report`: a page of what logs and traces say, and one line for what is neither."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from distgnn import cli
from distgnn.report import page as report
from distgnn.report.trace import COMPUTE, EPOCHS, UNDER_WAY, WAITED

pytest.importorskip("matplotlib")


def log(path: Path, epochs: int = 3, ended: bool = True) -> Path:
    config = {"algorithm": "1.5d", "widths": [8, 16, 4]}
    lines: list[dict[str, Any]] = [
        {"event": "run", "config": config, "grid": {"rows": 2, "reps": 2}, "ranks": [{}] * 4}
    ]
    for epoch in range(1, epochs + 1):
        phases = {"spmm": 0.1 * epoch, "gemm": 0.2, "comm": 0.3, "other": 0.0}
        lines.append(
            {
                "event": "epoch",
                "epoch": epoch,
                "loss": 2.0 / epoch,
                "val_acc": 0.5,
                "seconds": 0.25,
                "phases": phases,
            }
        )
        lines[-1]["flight"] = 0.5 * epoch
    if ended:
        end = {
            "words": [1_000_000, 3_000_000, 0, 0],
            "messages": [5, 6, 7, 8],
            "peak_bytes": [2**20] * 4,
            "test_acc": 0.75,
        }
        end["buffer_bytes"] = [{"layers": 2**22}, {"layers": 2**21, "panel 0": 2**19}, {}, {}]
        lines.append({"event": "end"} | end)
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def traced(path: Path) -> Path:
    tracks = [
        (EPOCHS, "epoch", "epoch 1", 0, 50),
        (EPOCHS, "epoch", "epoch 2", 60, 40),
        (COMPUTE, "spmm", "spmm", 61, 10),
    ]
    tracks += [
        (WAITED, "comm", "bcast", 75, 5),
        (UNDER_WAY, "comm", "bcast", 62, 18),
        (UNDER_WAY + 1, "comm", "bcast", 63, 18),
    ]
    found = [{"ph": "X", "pid": rank, "tid": tid, "cat": cat, "name": name, "ts": ts, "dur": dur, "args": {}}
             for rank in (0, 1) for tid, cat, name, ts, dur in tracks]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": found}))
    return path


def call(*words: Any) -> int:
    return cli.main([str(word) for word in words])


@pytest.mark.slow
def test_page_holds_the_numbers_and_the_drawings(tmp_path):
    out = tmp_path / "page.html"
    unfinished = log(tmp_path / "short.jsonl", 2, ended=False)
    trace = traced(tmp_path / "trace.json")
    assert call("report", log(tmp_path / "long.jsonl"), unfinished, "--trace", trace, "--out", out) == 0
    page = out.read_text()
    for words in (
        "<td>long</td><td>1.5d</td><td>rows=2,reps=2</td><td>4</td><td>8-16-4</td><td>3</td>",
        "0.2500",
        "3.00",
        "run not ended",
    ):
        assert words in page
    for words in (
        "<td>1.0000</td><td>30%</td>", "<th>MiB of layers</th>",
        "<td>1</td><td> </td><td>3</td><td>6</td><td>1</td>"
                  "<td>2</td><td>0.5</td>", "<td>widths</td><td>[8, 16, 4]</td>"):  # fmt: skip
        assert words in page
    assert page.count("<svg") == 4 and "Timeline of epoch 2 in" in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )  # opens without a network
    assert call("report", unfinished, "--out", out) == 2  # exists
    assert call("report", unfinished, "--out", out, "--force") == 0
    assert page != out.read_text()


@pytest.mark.slow
def test_phases_are_medians_over_epochs(tmp_path):
    found = report.median_phases(report.read_log(log(tmp_path / "run.jsonl")))
    assert found == pytest.approx({"spmm": 0.2, "gemm": 0.2, "comm": 0.3, "other": 0.0})


@pytest.mark.slow
def test_the_timeline_is_of_an_epoch_of_median_length_but_not_the_first(tmp_path):
    def epochs(*seconds: float) -> list[dict[str, Any]]:
        ends = [sum(seconds[: i + 1]) for i in range(len(seconds))]
        found = [
            {"pid": 1, "tid": EPOCHS, "ts": end - s, "dur": s} for end, s in zip(ends, seconds, strict=True)
        ]
        return [
            {"pid": 2, "tid": EPOCHS, "ts": 0, "dur": 99},
            *reversed(found),
            {"pid": 0, "tid": COMPUTE, "ts": 0, "dur": 7},
        ]

    assert report.steady(epochs(20, 1, 9, 3, 4, 2))["dur"] == 3
    assert report.steady(epochs(20, 1, 2))["dur"] in (1, 2)
    assert report.steady(epochs(20))["dur"] == 20


@pytest.mark.slow
def test_a_timeline_shows_what_overlaps_its_epoch(tmp_path):
    events = report.read_trace(traced(tmp_path / "trace.json"))
    (axes,) = report.draw_timeline(events, report.steady(events)).axes
    bars = [path for drawn in axes.collections for path in drawn.get_paths()]
    drawn = sorted(tuple(round(float(x), 6) for x in path.get_extents().intervalx) for path in bars)
    assert drawn == sorted([(0.001, 0.011), (0.015, 0.020), (0.002, 0.020), (0.003, 0.021)] * 2)
    assert [round(limit, 6) for limit in axes.get_xlim()] == [0, 0.04]


@pytest.mark.slow
def test_losses_that_are_no_numbers_and_runs_without_evaluation_are_drawn(tmp_path):
    path = log(tmp_path / "run.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[1:4]:
        line["loss"] = None
        del line["val_acc"], line["flight"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert call("report", path, "--out", tmp_path / "page.html") == 0


@pytest.mark.slow
def test_a_log_that_breaks_off_is_read_up_to_there(tmp_path):
    path = log(tmp_path / "run.jsonl", ended=False)
    path.write_text(path.read_text() + '{"event": "epo')
    assert len(report.read_log(path)["epochs"]) == 3


RUN = (
    '{"event": "run", "config": {"algorithm": "1d", "widths": [2, 2]}, "grid": {"rows": 1}, "ranks": [{}]}\n'
)
EPOCH = '{"event": "epoch", "epoch": 1, "loss": 1.0, "seconds": 1.0, "phases": {"spmm": 0.5}}\n'


@pytest.mark.parametrize(("content", "message"), [
    (None, "cannot read it"),
    ("hello\n", "line 1: no event of a log"),
    (RUN, "holds no epoch"),
    ("[1]\n", "line 1: no event of a log"),
    ('{"event": "run", "config": {}}\n', "line 1: no event of a log"),
    (RUN + '{"event": "epoch", "loss": 1.0}\n', "line 2: no event of a log"),
    (RUN + EPOCH + '{"event": "epoch", "loss": 1.0}\n' + EPOCH, "line 3: no event of a log"),
    (RUN + EPOCH + '{"event": "end", "words": 3}\n' + EPOCH, "line 3: no event of a log"),
])  # fmt: skip
@pytest.mark.slow
def test_what_is_no_log_is_refused(tmp_path, capsys, content, message):
    path = tmp_path / "run.jsonl"
    if content is not None:
        path.write_text(content)
    assert call("report", path, "--out", tmp_path / "page.html") == 2
    line = capsys.readouterr().err
    assert message in line and str(path) in line and line.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "no JSON",
        '{"traceEvents": []}',
        '{"traceEvents": [1]}',
        '{"traceEvents": [{"ph": "X", "tid": 0}]}',
    ],
)
@pytest.mark.slow
def test_what_is_no_trace_is_refused(tmp_path, capsys, content):
    (tmp_path / "trace.json").write_text(content)
    words = (
        "report",
        log(tmp_path / "run.jsonl"),
        "--trace",
        tmp_path / "trace.json",
        "--out",
        tmp_path / "page.html",
    )
    assert call(*words) == 2
    assert "no trace of epochs" in capsys.readouterr().err


@pytest.mark.slow
def test_a_page_that_cannot_be_written(tmp_path, capsys):
    path = log(tmp_path / "run.jsonl")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "page.html")
    assert call("report", path, "--out", tmp_path, "--force") == 2
    assert call("report", path, "--out", tmp_path / "nowhere" / "page.html") == 2
    assert call("report", path, "--out", tmp_path / "link") == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert "is a directory" in first and "does not exist" in second and "cannot write it" in third


@pytest.mark.slow
def test_without_matplotlib_the_extra_is_named(tmp_path, capsys, monkeypatch):
    real = builtins.__import__

    def missing(name: str, *arguments: Any) -> Any:
        if name == "matplotlib":
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert call("report", log(tmp_path / "run.jsonl"), "--out", tmp_path / "page.html") == 2
    assert "distgnn[plot]" in capsys.readouterr().err


@pytest.mark.parametrize("extra", [(), ("--force",)])
@pytest.mark.slow
def test_train_refuses_a_trace_that_cannot_go_there(tmp_path, capsys, extra):
    from distgnn.errors import UserError
    from distgnn.report.files import check_output

    (tmp_path / "old.json").write_text("kept")
    force = bool(extra)
    with pytest.raises(UserError, match="is a directory"):
        check_output("trace", tmp_path, force)
    with pytest.raises(UserError, match="does not exist"):
        check_output("trace", tmp_path / "nowhere" / "t.json", force)
    if force:
        check_output("trace", tmp_path / "old.json", force)
    else:
        with pytest.raises(UserError, match="exists; use force=True"):
            check_output("trace", tmp_path / "old.json", force)
