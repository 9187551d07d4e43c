"""Curves of scaling from logs: who is in a series, its points, the table and the drawing."""

from __future__ import annotations

import csv
import io
import re
import xml.dom.minidom

import pytest

from distgnn import cli
from distgnn.report import numbers, scaling, svg, tables
from distgnn.report.logs import read_logs
from distgnn.report.svg import Axis

from .runs import log


def run(folder, name, ranks, seconds, grid=None, **config):
    config = {"algorithm": "2d"} | config
    return log(folder / f"{name}.jsonl", ranks=ranks, seconds=seconds, grid=grid or {"rows": ranks}, **config)


@pytest.fixture
def logs(tmp_path):
    """Write logs: 2d on two grids of 8 ranks, with trials; 1d, aware and not, of two widths."""
    return [
        run(tmp_path, "a", 1, 8.0, store="x/a.dg"),
        run(tmp_path, "b", 4, 4.0, seed=1),
        run(tmp_path, "c", 4, 2.0, seed=2),
        run(tmp_path, "d", 8, 9.0, {"rows": 8, "cols": 1}),
        run(tmp_path, "e", 8, 2.0, {"rows": 4, "cols": 2}),
        run(tmp_path, "f", 2, 6.0, algorithm="1d", dropout=0.0),
        run(tmp_path, "g", 8, 2.0, algorithm="1d", dropout=0.0, order="metis-8"),
        run(tmp_path, "h", 2, 5.0, algorithm="1d", dropout=0.5),
        run(tmp_path, "i", 2, 1.0, algorithm="1d", sparsity_aware=True),
    ]


def test_runs_are_put_into_series(logs):
    found = {one.label: one for one in scaling.of_logs(logs)}
    assert found.keys() == {"2d", "1d, dropout 0.0, order none", "1d, dropout 0.0, order metis",
                            "1d, dropout 0.5, order none", "1d aware"}  # fmt: skip
    points = found["2d"].points
    assert [(p.ranks, p.seconds, p.least, p.most, p.trials) for p in points] == [
        (1, 8.0, 8.0, 8.0, 1), (4, 3.0, 2.0, 4.0, 2), (8, 2.0, 2.0, 2.0, 1),
    ]  # fmt: skip
    assert points[2].grid == "rows=4,cols=2" and points[1].words == 1e6  # 3 million in 3 epochs
    assert [found["2d"].speedup(p) for p in points] == pytest.approx([1, 8 / 3, 4])
    assert [found["2d"].efficiency(p) for p in points] == pytest.approx([1, 2 / 3, 0.5])
    (alone,) = found["1d aware"].points
    assert found["1d aware"].speedup(alone) == 2.0  # as if two ranks were perfect
    assert found["1d aware"].colour != found["1d, dropout 0.5, order none"].colour


def test_a_run_that_went_on_counts_from_there_on(tmp_path):
    """Words and ranks of the end are those of the last launch, and so must epochs be that are divided by."""
    first, then = run(tmp_path, "first", 4, 8.0), run(tmp_path, "then", 2, 1.0, epochs=5)
    lines = [line.replace('"epoch": ', '"epoch": 1') for line in then.read_text().splitlines()]
    both = tmp_path / "both.jsonl"
    both.write_text(first.read_text() + "\n".join(lines) + "\n")
    (one,) = scaling.of_logs([both])
    (point,) = one.points
    assert (point.ranks, point.seconds, point.words) == (2, 1.0, 3e6 / 5)
    (row,) = tables.runs(read_logs([both])).rows
    assert row[3] == "2" and "1 s" in row and str(3 + 5) in row

    killed = [line for line in lines if '"end"' not in line]  # the end that is there is of the first launch
    both.write_text(first.read_text() + "\n".join(killed) + "\n")
    (point,) = scaling.of_logs([both])[0].points
    assert (point.ranks, point.seconds, point.words) == (2, 1.0, None)
    both.write_text(first.read_text() + killed[0] + "\n")  # before its first epoch
    (point,) = scaling.of_logs([both])[0].points
    assert (point.ranks, point.seconds, point.words) == (4, 8.0, 1e6)


def test_copies_are_series_of_their_own(tmp_path):
    for copies in (1, 2):
        run(
            tmp_path,
            f"c{copies}",
            4,
            1.0,
            {"rows": 4 // copies, "reps": copies},
            algorithm="1.5d",
            replication=copies,
        )
    assert {one.label for one in scaling.of_logs(sorted(tmp_path.iterdir()))} == {"1.5d", "1.5d c=2"}


def test_the_mean_of_the_last_epochs(tmp_path):
    path = run(tmp_path, "a", 1, 1.0)
    text = path.read_text().replace('"epoch": 1, "loss": 2.0, "val_acc": 0.5, "seconds": 1.0',
                                    '"epoch": 1, "loss": 2.0, "val_acc": 0.5, "seconds": 7.0')  # fmt: skip
    path.write_text(text)
    seconds = [scaling.of_logs([path], last)[0].points[0].seconds for last in (None, 2, 3)]
    assert seconds == [1.0, 1.0, 3.0]


def test_the_command_writes_table_and_figure(logs, tmp_path, capsys):
    page, figure, table = tmp_path / "page.html", tmp_path / "s.svg", tmp_path / "t.csv"
    words = ["report", *logs, "-o", page, "--figure", figure, "--table", table]
    assert cli.main([str(word) for word in words]) == 0
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    row = next(row for row in rows if (row["series"], row["ranks"]) == ("2d", "4"))
    assert (row["seconds"], row["most"], row["speedup"], row["words"]) == ("3", "4", "2.66667", "1000000")
    drawn = figure.read_text()
    xml.dom.minidom.parseString(drawn)
    assert [drawn.count(f">{title}<") for title in ("Speed-up", "Efficiency", "Words")] == [1, 1, 1]
    assert "<h2>Scaling</h2>" in page.read_text() and "2d, 4: 2.67<" in drawn
    elsewhere = [*words[:-5], tmp_path / "other.html", "--table", tmp_path / "t.txt"]
    assert cli.main([str(word) for word in elsewhere]) == 2
    assert cli.main([str(word) for word in words]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "--table" in first and ".md or .csv" in first and "--out" in second and "exists" in second
    assert scaling.markdown(scaling.of_logs(logs)).splitlines()[3].count("|") == 9


def test_points_stand_where_their_numbers_are():
    """On logarithmic axes equal ratios are equal distances."""
    line = svg.Line("x", "red", [(1, 10.0), (2, 20.0), (4, 40.0)])
    drawn = svg.lines("what", [line], Axis("ranks", base=2), Axis("s", base=10))
    xs, ys = ([float(v) for v in re.findall(rf'<circle[^>]* c{axis}="([\d.]+)"', drawn)] for axis in "xy")
    assert xs[2] - xs[1] == pytest.approx(xs[1] - xs[0], abs=0.2)
    assert ys[2] - ys[1] == pytest.approx(ys[1] - ys[0], abs=0.2) and ys[0] > ys[1]


@pytest.mark.parametrize(("low", "high"), [(0.18, 0.61), (3, 3e6), (1.7e6, 3.6e6), (0.8, 1.2)])
def test_a_logarithmic_axis_has_numbers(low, high):
    marks = Axis("s", base=10).marks(low, high)
    assert 3 <= len(marks) <= 10 and all(low <= mark <= high for mark in marks)


def test_a_linear_axis_has_round_numbers():
    assert Axis("s").marks(0.0, 5.3) == [0, 2, 4]
    assert Axis("epoch", whole=True).marks(1, 3) == [1, 2, 3]


@pytest.mark.parametrize(("number", "text"), [
    (0, "0"), (0.01234, "0.0123"), (999.6, "1000"), (1000, "1k"), (35_000_000, "35M"), (999_999, "1M"),
    (123_456, "123k"), (None, ""),
])  # fmt: skip
def test_numbers_are_short(number, text):
    assert numbers.short(number) == text


def test_seconds_and_bytes_have_units():
    found = [numbers.seconds(s) for s in (0, 2e-5, 0.0123, 0.9996, 12.34, 99.7, 3600 * 2.5)]
    assert found == ["0 s", "20 µs", "12.3 ms", "1 s", "12.3 s", "1 min 40 s", "2 h 30 min"]
    assert [numbers.size(b) for b in (0, 512, 2**20 * 1.5)] == ["0 B", "512 B", "1.5 MiB"]
