"""The demo: runs on four ranks, agrees with itself, leaves logs and a report, and says so when it does not
agree.
"""

from __future__ import annotations

import json

import pytest

from distgnn.cli import demo
from distgnn.operators import ALGORITHMS
from mpi_helpers import mpiexec

pytestmark = pytest.mark.programs


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_demo_trains_with_every_algorithm_and_reports(tmp_path):
    """With the ranks that it is given, again into the directory that it made."""
    out = tmp_path / "out"
    every = f"all {len(ALGORITHMS)} algorithms"
    for ranks, nodes, epochs in ((1, "60", "1"), (4, "400", "3")):
        words = ["demo", "--out", str(out), "--nodes", nodes, "--epochs", epochs]
        done = mpiexec(ranks, "-m", "distgnn", *words)
        assert done.code == 0, done.err
        assert f"training on {ranks} ranks" in done.out
        assert f"{every} have equal losses" in done.out
        assert f"{every} equal a serial training in epochs 1 to {epochs}: " in done.out
    curves = []
    for name in ALGORITHMS:
        events = [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]
        assert [event["event"] for event in events] == ["run", "epoch", "epoch", "epoch", "end"]
        assert len(events[-1]["words"]) == 4 and max(events[-1]["words"]) > 0
        curves.append([event["loss"] for event in events[1:-1]])
    assert all(curve == pytest.approx(curves[0], rel=1e-4) for curve in curves)
    report = (out / "report.md").read_text()
    assert all(f"| {name} |" in report for name in ALGORITHMS)
    page = (out / "report.html").read_text()
    assert f"report: {out / 'report.html'}" in done.out
    assert page.count("words by sender and receiver") == len(ALGORITHMS)


@pytest.mark.slow
def test_demo_does_not_touch_what_it_did_not_make(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    done = mpiexec(2, "-m", "distgnn", "demo", "--out", str(tmp_path), "--nodes", "50", "--epochs", "1")
    assert done.code == 2
    assert done.err.count("distgnn: error:") == 1 and "was not made by this command" in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.tex"]


def log(folder, name, losses):
    """Write a run's log as train does; a loss that is not a number is null."""
    config = {"algorithm": name, "widths": [2, 2]}
    events = [{"event": "run", "config": config, "grid": {"rows": 2}, "ranks": [{}, {}]}]
    epochs = [{"event": "epoch", "epoch": i + 1, "loss": loss} for i, loss in enumerate(losses)]
    events += [epoch | {"seconds": 0.1, "phases": {"spmm": 0.1}} for epoch in epochs]
    costs = {cost: [1, 2] for cost in ("words", "bytes", "messages", "peak_bytes")}
    events += [{"event": "end", "test_acc": 0.5, "epoch_seconds_median": 0.1} | costs]
    events[-1]["check"] = {"epochs": [1, 2], "largest_difference": 1e-8}
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder / f"{name}.jsonl"


@pytest.mark.parametrize("flag", ["--epochs", "--nodes"])
@pytest.mark.slow
def test_demo_refuses_before_it_works(tmp_path, flag):
    done = mpiexec(2, "-m", "distgnn", "demo", "--out", str(tmp_path / "out"), flag, "0")
    assert done.code == 2 and done.err.count(f"argument {flag}") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("losses", "failed"), [([1.0, 0.50001], False), ([1.0, 0.51], True), ([1.0, None], True)]
)
def test_demo_fails_where_losses_differ(tmp_path, losses, failed, capsys):
    rows = [demo.read_log(log(tmp_path, "1d", [1.0, 0.5])), demo.read_log(log(tmp_path, "2d", losses))]
    for line in rows:
        demo.cells(line, rows[0])  # as printed while the demo goes on
    assert demo.conclude(rows, tmp_path) is failed
    assert ("DISAGREE" in capsys.readouterr().out) is failed
