"""`distgnn report`: a page of what logs and traces say, and one line for what is neither."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest

from distgnn import cli
from distgnn.report import charts, svg, tables
from distgnn.report.colours import ALGORITHMS, OTHERS, PHASES
from distgnn.report.logs import median_phases, read_log, read_logs, read_trace
from distgnn.report.trace import COMPUTE, EPOCHS

from .runs import log, traced


def call(*words: Any) -> int:
    return cli.main([str(word) for word in words])


def cells(page: str) -> str:
    """Return the page without the attributes of its cells."""
    return re.sub(r"<(t[dh]) [^>]*>", r"<\1>", page)


def test_page_holds_the_numbers_and_the_drawings(tmp_path, capsys):
    out = tmp_path / "page.html"
    unfinished = log(tmp_path / "short.jsonl", 2, ended=False)
    trace = traced(tmp_path / "trace.json")
    assert call("report", log(tmp_path / "long.jsonl"), unfinished, "--trace", trace, "-o", out) == 0
    page = cells(out.read_text())
    run = (
        "long",
        "1.5d",
        "rows=2,reps=2",
        "4",
        "8-16-4",
        "3",
        "0.666667",
        "0.7500",
        "250 ms",
        "1 s",
        "30%",
        "11.4 MiB",
    )
    for row in (
        run,  # an epoch has 0.3 of 1 second under way exposed
        ("computing, s", "6", "rank 3", "3.75", "1.5", "1.60"),
        ("non-zeros", "40", "rank 3", "25", "10", "1.60"),
        ("1", "3M", "1M", "3M to rank 0"),  # words sent and received
        ("widths", "8, 16, 4"),
    ):
        assert "".join(f"<td>{cell}</td>" for cell in row) in page
    assert "run not ended" in page and "Timeline of epoch 2 in" in page
    assert "<dd>8 features, 4 classes</dd>" in page and "<dd>4 ranks on node</dd>" in page
    assert page.count("<svg") == 3 + 3 + 1  # of all, of the one that ended, of the trace
    assert "<title>sender 1, receiver 0: 3,000,000</title>" in page
    assert "//" not in page.replace("http://www.w3.org/2000/svg", "") and "<script" not in page
    assert call("report", unfinished, "--out", out) == 2  # exists
    assert call("report", unfinished, "--out", out, "--force") == 0
    assert f"{out}\n" in capsys.readouterr().out
    assert page != cells(out.read_text())


def test_the_top_of_the_page_names_graph_command_and_hosts_once(tmp_path):
    runs = [log(tmp_path / f"{n}.jsonl", store="club.dg", n=1200, nnz=34_000, seed=n) for n in range(9)]
    for n, path in enumerate(runs):
        first, *rest = path.read_text().splitlines()
        run = json.loads(first) | {"command": f"distgnn train club.dg --seed={n}"}
        path.write_text("\n".join([json.dumps(run), *rest]) + "\n")
    assert tables.heading(read_logs(runs[:2])) == [
        ("graph", ["club.dg: 1,200 nodes, 34,000 non-zeros, 8 features, 4 classes"]),
        ("command", ["distgnn train club.dg --seed=0", "distgnn train club.dg --seed=1"]),
        ("host", ["4 ranks on node"]),
    ]
    many = dict(tables.heading(read_logs(runs)))["command"]
    assert len(many) == 4 and many[-1].startswith("and 6 more")
    assert call("report", runs[0], "-o", tmp_path / "page.html") == 0
    assert "<code>distgnn train club.dg --seed=0</code>" in (tmp_path / "page.html").read_text()


def test_every_drawing_shows_its_values_under_the_pointer(tmp_path):
    first, second = log(tmp_path / "a.jsonl"), log(tmp_path / "b.jsonl", epochs=2)
    drawn = charts.losses(read_logs([first, second]))
    strips = re.findall(r'x="([\d.]+)"[^>]* width="([\d.]+)"[^>]*class="strip"[^>]*><title>([^<]*)<', drawn)
    assert [told for *_, told in strips] == [
        "epoch 1\na: 2\nb: 2",
        "epoch 2\na: 1\nb: 1",
        "epoch 3\na: 0.666667",
    ]
    for (left, width, _), (right, *_) in pairwise(strips):
        assert float(left) + float(width) == pytest.approx(float(right), abs=0.02)
    read = read_logs([log(tmp_path / "long.jsonl", epochs=1000)])
    assert 100 < charts.losses(read).count('class="strip"') <= 200
    events = read_trace(traced(tmp_path / "trace.json"))
    timeline = charts.timeline(events, charts.steady(events))
    assert "<title>rank 1 messages, under way: 2 times, 0.036 milliseconds</title>" in timeline


def test_colours_of_drawings_have_others_on_dark_screens(tmp_path):
    """Colours that are no data: texts, rules, paper, cells of a matrix."""
    path = log(tmp_path / "run.jsonl")
    page, figure = tmp_path / "page.html", tmp_path / "figure.svg"
    assert call("report", path, "-o", page, "--figure", figure) == 0
    for text in page.read_text(), figure.read_text():
        dark = text.split("prefers-color-scheme:dark")[1].split("</style>")[0]
        drawn = text.split("</style>")[-1]
        of_data = {*PHASES.values(), *ALGORITHMS.values(), *OTHERS}
        colours = set(re.findall(r'(?:fill|stroke)="(#\w+)"', drawn)) - of_data
        assert colours == {colour for colour in svg.DARK if f'"{colour}"' in drawn}
        assert all(f'[fill="{light}"]{{fill:{other}}}' in dark for light, other in svg.DARK.items())


def test_other_scores_than_accuracy_are_shown(tmp_path):
    path = log(tmp_path / "run.jsonl")
    path.write_text(path.read_text().replace("val_acc", "val_f1").replace("test_acc", "test_f1"))
    assert call("report", path, "-o", tmp_path / "page.html") == 0
    page = cells((tmp_path / "page.html").read_text())
    assert 'aria-label="validation micro F1"' in page


def test_what_logs_hold_is_text_on_the_page(tmp_path):
    path = log(tmp_path / "<b>&.jsonl", hosts="<script>alert(1)</script>")
    assert call("report", path, "-o", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page and "<b>" not in page and "&lt;b&gt;&amp;" in page


def test_bars_are_as_long_as_what_they_stand_for(tmp_path):
    read = read_log(log(tmp_path / "run.jsonl"))
    assert median_phases(read) == pytest.approx({"spmm": 0.2, "gemm": 0.2, "comm": 0.3, "other": 0.0})
    drawn = charts.phases([read])
    widths = {
        part: float(width) for width, part in re.findall(r'width="([\d.]+)"[^>]*><title>run, (\w+)', drawn)
    }
    assert widths["comm"] / widths["spmm"] == pytest.approx(1.5, rel=0.01) and "other" not in widths
    assert "milliseconds" in drawn and "run, comm: 300<" in drawn
    held = charts.memory(read)
    assert "rank 0, layers: 4<" in held and "rank 1, panel 0: 0.5<" in held and ">MiB<" in held


def test_labels_of_bars_fit_their_room():
    for label in "as written, P=4", "CAGNET, P=128":
        drawn = svg.bars("what", [(label, {"a": 1.0})], {"a": "#123456"}, svg.Axis("s"))
        assert f">{label}</text>" in drawn
    assert svg.length("CANE") > svg.length("cane")
    drawn = svg.bars("what", [("a-run-" * 9, {"a": 1.0})], {}, svg.Axis("s"))
    (cut,) = re.findall(r">(a-run[^<]*)</text>", drawn)
    assert cut.endswith("…") and 100 < svg.length(cut) <= 140


def test_equal_runs_are_compared(tmp_path):
    first, second = log(tmp_path / "a" / "run.jsonl"), log(tmp_path / "b" / "run.jsonl", seconds=0.3)
    other = log(tmp_path / "c.jsonl", seed=7)
    lines = second.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | {"loss": 1.001})
    second.write_text("\n".join(lines) + "\n")
    read = read_logs([first, second, other])
    assert [one["name"] for one in read] == ["a/run", "b/run", "c"]
    (group,) = tables.equal_runs(read)
    assert [one["name"] for one in group] == ["a/run", "b/run"]
    (row,) = tables.compared(group).rows
    assert row == [
        "b/run",
        "differ from epoch 2 on, by 1.0e-03 at most",
        "+20.0%",
        "equal",
        "equal",
        "equal",
        "nothing",
    ]
    odd = tables.differing(read)
    assert list(odd.heads) == ["run", "seed"] and [one[1] for one in odd.rows] == ["0", "0", "7"]
    assert tables.losses(read[0], read[2]) == "equal to the last bit in 3 epochs"


def test_the_timeline_is_of_an_epoch_of_median_length_but_not_the_first():
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

    assert charts.steady(epochs(20, 1, 9, 3, 4, 2))["dur"] == 3
    assert charts.steady(epochs(20, 1, 2))["dur"] in (1, 2)
    assert charts.steady(epochs(20))["dur"] == 20


def test_a_timeline_shows_what_overlaps_its_epoch(tmp_path):
    """An epoch of 40 microseconds: the spans of both ranks, from its start, cut at its end."""
    events = read_trace(traced(tmp_path / "trace.json"))
    drawn = charts.timeline(events, charts.steady(events))
    paths = re.findall(r'<path d="M([\d.]+) [\d.]+h([\d.]+)v', drawn)
    assert len(paths) == 2 * 3  # the two messages under way at once are one path, which begins with the first
    left = min(float(x) for x, _ in paths)
    scale = next(float(w) for x, w in paths if float(x) == left) / 10  # pixels in a microsecond: spmm, 10
    found = sorted((round((float(x) - left) / scale), round(float(w) / scale)) for x, w in paths)
    assert found == sorted([(0, 10), (14, 5), (1, 18)] * 2)


def test_losses_that_are_no_numbers_and_runs_without_evaluation_are_drawn(tmp_path):
    path = log(tmp_path / "run.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[1:4]:
        line["loss"] = None
        line["train_acc"] = line["test_acc"] = None  # without labelled nodes there
        del line["val_acc"], line["flight"]
    lines[4]["val_acc"] = None
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert call("report", path, "--out", tmp_path / "page.html") == 0


def test_a_log_that_breaks_off_is_read_up_to_there(tmp_path):
    path = log(tmp_path / "run.jsonl", ended=False)
    path.write_text(path.read_text() + '{"event": "epo')
    assert len(read_log(path)["epochs"]) == 3


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


def test_a_page_that_cannot_be_written(tmp_path, capsys, monkeypatch):
    path = log(tmp_path / "run.jsonl")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "page.html")
    assert call("report", path, "--out", tmp_path, "--force") == 2
    assert call("report", path, "--out", tmp_path / "nowhere" / "page.html") == 2
    assert call("report", path, "--out", tmp_path / "link") == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert "is a directory" in first and "does not exist" in second and "does not exist" in third

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("distgnn.files.output.os.fsync", full)
    assert call("report", path, "--out", tmp_path / "page.html") == 2
    assert "cannot write it (No space left" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("extra", [(), ("--force",)])
def test_train_refuses_a_trace_that_cannot_go_there(tmp_path, capsys, extra):
    from distgnn.errors import UserError
    from distgnn.files.output import check_output

    (tmp_path / "old.json").write_text("kept")
    force = bool(extra)
    with pytest.raises(UserError, match="is a directory"):
        check_output("trace", tmp_path, force)
    with pytest.raises(UserError, match="does not exist"):
        check_output("trace", tmp_path / "nowhere" / "t.json", force)
    if force:
        check_output("trace", tmp_path / "old.json", force)
    else:
        with pytest.raises(UserError, match="exists; force=True replaces"):
            check_output("trace", tmp_path / "old.json", force)


def test_many_ranks_are_drawn_in_groups(tmp_path):
    """The bars are of the fullest ranks, and the cells add up to all words."""
    ranks = 200  # groups of 3 and 4
    out, path = tmp_path / "page.html", log(tmp_path / "many.jsonl", ranks=ranks, grid={"rows": ranks})
    lines = path.read_text().splitlines()
    end = json.loads(lines[-1])
    end["traffic"] = [[i + 1000 * j for j in range(ranks)] for i in range(ranks)]
    end["ledger"] = [{"rank": rank, "phase": "spmm", "seconds": 1.0 + (rank == 77)} for rank in range(ranks)]
    path.write_text("\n".join([*lines[:-1], json.dumps(end)]) + "\n")
    assert call("report", path, "-o", out) == 0
    page = out.read_text()
    tips = re.findall(r"sender [\d-]+, receiver [\d-]+: ([\d,]+)", page)
    assert len(tips) == 64 * 64
    assert sum(int(tip.replace(",", "")) for tip in tips) == sum(map(sum, end["traffic"]))
    assert "sender 0-2, receiver 196-199: " in page
    bars = re.findall(r"rank (\d+), spmm: ", page)
    assert len(bars) == 64 and "77" in bars
    assert "Each bar is the fullest of 3 ranks" in page and len(page) < 1_500_000


@pytest.mark.parametrize(
    ("line", "place", "value"),
    [
        (0, ("ranks",), []), (0, ("ranks", 0), 7), (0, ("ranks", 0, "nnz"), "many"), (0, ("grid",), [2]),
        (0, ("config", "widths"), "8-4"), (0, ("config", "algorithm"), None), (1, ("flight",), "x"),
        (1, ("phases", "spmm"), [1]), (1, ("phases",), [1]), (1, ("val_acc",), {}),
        (1, ("seconds",), float("nan")), (1, ("epoch",), True), (1, ("epoch",), float("nan")),
        (2, ("loss",), "low"), (-1, ("words",), [1, 2]), (-1, ("words", 1), None),
        (-1, ("bytes",), 5), (-1, ("bytes", 0), float("inf")), (-1, ("messages", 0), 10**40),
        (-1, ("buffer_bytes", 1), []), (-1, ("buffer_bytes", 1, "layers"), "all"), (-1, ("traffic", 2), [1]),
        (-1, ("traffic",), [[1]]), (-1, ("ledger", 0, "rank"), 9), (-1, ("ledger", 0, "rank"), [0]),
        (-1, ("ledger", 0, "seconds"), "1"), (-1, ("ledger", 0), {"rank": 0}), (-1, ("test_acc",), []),
        (-1, ("check",), {"updates": 1}), (-1, ("best",), 3), (-1, ("steps_median",), {"draw": [1.0]}),
    ],
)  # fmt: skip
def test_an_entry_of_another_type_is_one_line(tmp_path, capsys, line, place, value):
    path = log(tmp_path / "a.jsonl")
    events = [json.loads(text) for text in path.read_text().splitlines()]
    entry = events[line]
    for name in place[:-1]:
        entry = entry[name]
    entry[place[-1]] = value
    events.append(events[-1])  # an event follows: the log was not cut
    path.write_text("\n".join(map(json.dumps, events)) + "\n")
    assert call("report", path, "-o", tmp_path / "page.html") == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "no event of a log" in error
    assert not (tmp_path / "page.html").exists()


def test_a_loss_that_is_not_finite_is_left_out_of_the_curve(tmp_path):
    path = log(tmp_path / "a.jsonl")
    path.write_text(path.read_text().replace('"loss": 1.0', '"loss": NaN'))
    assert call("report", path, "-o", tmp_path / "page.html") == 0


def test_outputs_are_files_of_their_own(tmp_path, capsys):
    path = log(tmp_path / "run.jsonl")
    before, link = path.read_bytes(), tmp_path / "link.jsonl"
    link.symlink_to(path)
    for words, line in (
        (["--out", tmp_path / "a.svg", "--figure", tmp_path / "a.svg"], "--figure .*: is what --out "),
        (["--out", path, "--force"], "--out .*: is a file that is read; give another name"),
        (["--out", link, "--force"], "--out .*: is a file that is read"),
    ):
        assert call("report", path, *words) == 2
        assert re.search(line, capsys.readouterr().err)
    assert path.read_bytes() == before and sorted(tmp_path.iterdir()) == [link, path]
