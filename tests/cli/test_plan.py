"""``distgnn plan``: the ranking, one choice explained, curves, and one line for bad input."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distgnn import cli
from distgnn.plan.machine import read
from distgnn.plan.pricing import amount
from distgnn.plan.tables import digits
from distgnn.report.numbers import short
from distgnn.store import prepare
from mpi_helpers import mpiexec

from ..train.stores import Communities

GRAPH = "--nodes-of-graph 4000 --nnz 60000 --features 16 --classes 8".split()
MACHINE = ["--machine", "perlmutter"]
WIDTH = 110


def call(*words: Any) -> int:
    return cli.main(["plan", *map(str, words)])


def printed(capsys: Any, *words: Any) -> str:
    assert call(*words) == 0
    return str(capsys.readouterr().out)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plan") / "small.dg"
    prepare(Communities(), path, order=("random", "double"))
    return str(path)


def log(path: Path, grid: dict[str, int], algorithm: str, seconds: float) -> Path:
    """Write the log of a run of three epochs, the second of these seconds."""
    ranks = [{}] * grid["rows"]
    config = {"algorithm": algorithm, "widths": [16, 16, 8], "sparsity_aware": False, "order": "random"}
    lines: list[dict[str, Any]] = [{"event": "run", "config": config, "grid": grid, "ranks": ranks}]
    for epoch, part in enumerate((0.5, 1, 3), 1):
        lines.append({"event": "epoch", "epoch": epoch, "loss": 1.0, "seconds": part * seconds, "phases": {}})
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


@pytest.mark.slow
def test_the_table_has_the_best_first_in_plain_columns(capsys):
    text = printed(capsys, *GRAPH, *MACHINE, "--ranks", 16)
    lines = text.splitlines()
    assert text.isascii() and all(len(line) <= WIDTH for line in lines)
    assert lines[0].split() == "algorithm grid ms spmm gemm comm other words messages memory".split()
    numbered = [line.split()[0] for line in lines[1:] if line[:1].isdigit()]
    assert numbered[:12] == [str(place) for place in range(1, 13)]
    best = json.loads(printed(capsys, *GRAPH, *MACHINE, "--ranks", 16, "--json"))["choices"][0]
    cells = lines[1].split()[3:]
    spent = [best["seconds"], *(best["phases"][phase] for phase in ("spmm", "gemm", "comm"))]
    assert cells[:4] == [digits(1e3 * part) for part in spent]
    assert cells[5:7] == [short(max(best[what])) for what in ("words", "messages")]
    assert " ".join(cells[7:]) == amount(max(best["peak_bytes"]))
    everything = printed(capsys, *GRAPH, *MACHINE, "--ranks", 16, "--all")
    more = next(int(line.split()[2]) for line in lines if line.startswith("..."))
    shapes = sum(int(line.split()[2]) for line in lines if line.endswith("--all plans them"))
    placed, known = sum(line[:1].isdigit() for line in everything.splitlines()), len(numbered) + more
    assert placed >= known + shapes and (shapes > 0 or placed == known)
    names = {"1d", "1.5d", "2d", "3d-split", "3d"}
    assert names <= {line.split()[1] for line in lines[1:] if line.split()[:1] and line.split()[0].isdigit()}


def test_choices_within_the_error_of_a_plan_are_one_group(capsys):
    lines = printed(capsys, *GRAPH, *MACHINE, "--ranks", 4, "--all").splitlines()
    found = json.loads(printed(capsys, *GRAPH, *MACHINE, "--ranks", 4, "--json"))["choices"]
    limit = 1.1 * found[0]["seconds"]
    alike = sum(one["seconds"] <= limit for one in found)
    assert 1 < alike < len(found)
    said = f"--- 1 to {alike} are within 10%, the error of a plan: any of them will do ---"
    assert lines[1 + alike] == said


def test_grids_of_rows_alone_say_that_they_move_what_1d_moves(capsys):
    """`2d` on 4x1 and the like: the words and messages of each rank are those of `1d`."""
    found = json.loads(printed(capsys, *GRAPH, *MACHINE, "--ranks", 4, "--json"))["choices"]
    in_rows, seen = {}, set()
    for place, one in enumerate(found, 1):
        sent = tuple(one["words"]), tuple(one["messages"])
        if one["grid"].get("rows") == 4:
            in_rows.setdefault(one["sparsity_aware"], set()).add(sent)
            seen |= {(one["algorithm"], place)}
    assert {name for name, _ in seen} >= {"1d", "1.5d", "2d", "3d-split", "rdm"}
    assert all(len(sent) == 1 for sent in in_rows.values())
    places = ", ".join(str(place) for name, place in sorted(seen, key=lambda one: one[1]) if name != "1d")
    said = "As all their ranks stand in rows, these move what 1d moves, the same words: "
    assert f"{said}{places}." in printed(capsys, *GRAPH, *MACHINE, "--ranks", 4, "--all").replace("\n", " ")
    words = [*GRAPH, *MACHINE, "--ranks", 4, "--algorithm", "2d", "--grid", "4x1", "--explain", 1]
    assert printed(capsys, *words).splitlines()[1] == f"{said}2d."


@pytest.mark.parametrize(
    "words", ["", "--model sage --sparsity-aware", "--hidden 8,4 --dropout 0.5 --no-overlap"]
)
def test_a_plan_of_a_store_ends_in_a_command_that_trains_and_checks(capsys, store, words):
    command = printed(capsys, store, *MACHINE, "--ranks", 1, *words.split()).splitlines()[-1]
    start, *flags = command.split(" distgnn ")
    assert start == "mpiexec -n 1" and flags[0].endswith(" --check")
    args = cli.parse(flags[0].split())
    asked = cli.parse(["plan", store, *MACHINE, "--ranks", "1", *words.split()])
    shared = ("model", "hidden", "dropout", "overlap", "sparsity_aware")
    assert all(getattr(args, name) == getattr(asked, name) for name in shared)
    best = json.loads(printed(capsys, store, *MACHINE, "--ranks", 1, "--json", *words.split()))["choices"][0]
    assert (args.algorithm, args.order) == (best["algorithm"], best["order"])
    assert cli.main([*flags[0].split(), "--epochs", "2"]) == 0
    assert "equal those of a serial training" in capsys.readouterr().out


@pytest.mark.slow
def test_json_has_the_keys_of_every_choice(capsys):
    found = json.loads(printed(capsys, *GRAPH, *MACHINE, "--ranks", 4, "--json"))
    seconds = [one["seconds"] for one in found["choices"]]
    assert found.keys() == {"machine", "graph", "settings", "ranks", "advice", "choices", "infeasible"}
    assert found["graph"] == {"nodes": 4000, "nnz": 60000, "features": 16, "classes": 8}
    assert (found["machine"], found["ranks"], found["settings"]["hidden"]) == ("perlmutter", 4, [16])
    assert seconds == sorted(seconds)
    one = found["choices"][0]
    assert one["axes_in_node"] == [axis for axis, size in reversed(one["grid"].items()) if size > 1]
    assert len(one["words"]) == len(one["messages"]) == len(one["peak_bytes"]) == 4


@pytest.mark.slow
def test_what_does_not_fit_is_listed_with_its_reason(capsys, tmp_path):
    peaks = [
        max(c["peak_bytes"])
        for c in json.loads(printed(capsys, *GRAPH, *MACHINE, "--ranks", 8, "--json"))["choices"]
    ]
    small = tmp_path / "small.toml"
    small.write_text(replace(read("perlmutter"), memory=float(sorted(peaks)[5])).toml())
    text = printed(capsys, *GRAPH, "--machine", small, "--ranks", 8)
    assert (
        "Infeasible:" in text
        and "a rank needs" in text
        and all(len(line) <= WIDTH for line in text.splitlines())
    )
    small.write_text(replace(read("perlmutter"), memory=float(min(peaks)) / 2).toml())
    assert call(*GRAPH, "--machine", small, "--ranks", 8) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no way to train fits into" in line and "would do" in line


@pytest.mark.parametrize("algorithm", ["1d", "1.5d", "2d", "3d-split", "3d"])
def test_a_choice_is_explained(capsys, algorithm):
    words = [*GRAPH, *MACHINE, "--ranks", 8, "--algorithm", algorithm, "--explain", 1]
    text = printed(capsys, *words)
    assert text.isascii() and all(len(line) <= WIDTH for line in text.splitlines())
    assert text.startswith(f"1. {algorithm} ")
    papers = "CAGNET, SC'20, IV-", "Plexus, 2025", "Sparsity-aware, ICPP'24, 4."
    assert any(section in text for section in papers)
    assert "Kernels of this rank" in text and "Memory of the fullest rank" in text
    found = json.loads(printed(capsys, *words, "--json"))
    assert found.keys() == {"choice", "phases", "collectives", "kernels", "memory", "formula"}
    assert found["formula"]["words"][0].keys() == {"matrix", "formula", "dry_run"}
    best = json.loads(printed(capsys, *words[:-2], "--json"))["choices"][0]
    assert found["choice"] == best
    first = found["collectives"][0]
    names = [first[what] for what in ("operation", "group", "matrix", "level")]
    (cells,) = [line.split()[4:] for line in text.splitlines() if line.split()[:4] == names]
    counts = [str(first["calls"]), str(first["messages"]), short(first["words"]), short(first["bytes"])]
    assert cells == [*counts, digits(1e3 * first["under_way"]), digits(1e3 * first["exposed"])]


@pytest.mark.slow
def test_orders_of_a_store_are_choices(capsys, store):
    found = json.loads(printed(capsys, store, *MACHINE, "--ranks", 4, "--json"))
    assert {(one["algorithm"], one["order"]) for one in found["choices"]} == {
        *((name, "random") for name in ("1d", "1.5d", "2d", "3d-split", "3d", "rdm")), ("3d", "double")
    }  # fmt: skip
    assert {one["order"] for one in found["infeasible"]} == {"double"}
    table = printed(capsys, store, *MACHINE, "--ranks", 4)
    assert table.split()[:3] == ["algorithm", "grid", "order"] and "only algorithm 3d alternates" in table
    one = json.loads(printed(capsys, store, *MACHINE, "--ranks", 4, "--order", "double", "--json"))
    assert {choice["order"] for choice in one["choices"]} == {"double"}


def test_settings_have_the_names_and_sources_that_train_has(capsys, tmp_path, monkeypatch):
    def widths(*words):
        return json.loads(printed(capsys, *GRAPH, *MACHINE, "--ranks", 2, "--json", *words))

    narrow, wide = widths("--algorithm", "1d"), widths("--algorithm", "1d", "--hidden", "64")
    assert narrow["choices"][0]["words"] < wide["choices"][0]["words"]
    (tmp_path / "plan.toml").write_text('algorithm = "1d"\n[plan]\nhidden = 64\n[train]\nepochs = 3\n')
    assert widths("--config", tmp_path / "plan.toml") == wide
    whole = widths("--algorithm", "1d", "--sparsity-aware", "no")["choices"]
    assert [one["sparsity_aware"] for one in whole] == [False]
    monkeypatch.setenv("DISTGNN_HIDDEN", "64")
    assert widths("--algorithm", "1d") == wide


@pytest.mark.slow
def test_numbers_of_ranks_make_curves(capsys, tmp_path):
    text = printed(capsys, *GRAPH, *MACHINE, "--ranks", "1..4")
    assert [line.split()[0] for line in text.splitlines()[:4]] == ["ranks", "1", "2", "4"]
    run = log(tmp_path / "run.jsonl", {"rows": 2}, "1d", 0.25)
    beside = printed(capsys, *GRAPH, *MACHINE, "--ranks", "2,3", "--logs", run)
    assert beside.splitlines()[-1].split()[:5] == ["run", "2", "1d", "rows=2", "250"]
    predicted = json.loads(printed(capsys, *GRAPH, *MACHINE, "--ranks", 2, "--algorithm", "1d", "--json"))
    whole = next(one for one in predicted["choices"] if not one["sparsity_aware"])
    assert float(beside.split()[-1]) == pytest.approx(1e3 * whole["seconds"], rel=0.01)
    found = json.loads(printed(capsys, *GRAPH, *MACHINE, "--ranks", "2,3", "--json"))
    assert found.keys() == {"machine", "graph", "settings", "ranks", "strong"} and [
        point["ranks"] for point in found["strong"]["points"]
    ] == [2, 3]


@pytest.mark.slow
def test_curves_are_drawn_on_a_page_and_in_an_svg(capsys, tmp_path):
    out, drawing = tmp_path / "curves.html", tmp_path / "curves.svg"
    run = log(tmp_path / "run.jsonl", {"rows": 2}, "1d", 0.25)
    words = [*GRAPH, *MACHINE, "--ranks", "1..4", "--out", out, "--svg", drawing, "--logs", run]
    assert call(*words) == 0
    page = re.sub(' (class|data-head)="[^"]*"', "", out.read_text())
    assert page.count("<svg") == 2 and "<td>rows=2</td><td>250</td>" in page
    assert "The same graph" in page and "As much of the graph per rank" in page
    assert "distgnn plan, perlmutter: 4000 nodes, 60000 non-zeros, gcn 16-16-8</title>" in page
    crosses = re.findall("<title>1d, measured, 2: 250</title>", drawing.read_text())
    assert len(crosses) == 1 and "Weak scaling: as much of the graph per rank as on 1<" in drawing.read_text()
    assert drawing.read_text().count(">milliseconds of an epoch<") == 2
    capsys.readouterr()
    assert call(*words) == 2  # they exist
    assert "--out" in capsys.readouterr().err
    found = json.loads(printed(capsys, *words, "--force", "--json"))
    assert {"machine", "graph", "settings", "ranks", "strong", "weak"} == found.keys()
    one = next(way for way in found["strong"]["points"][0]["choices"] if way["algorithm"] == "1d")
    assert f"<title>1d, 1: {short(1e3 * one['seconds'])}</title>" in drawing.read_text()


BAD = {
    "unknown machine": ([*GRAPH, "--ranks", 4, "--machine", "summit"], ["summit", "perlmutter", "frontier"]),
    "no machine": ([*GRAPH, "--ranks", 4], ["--machine"]),
    "no ranks": ([*GRAPH, *MACHINE], ["--ranks"]),
    "zero ranks": ([*GRAPH, *MACHINE, "--ranks", "0"], ["--ranks", "'0'"]),
    "text for ranks": ([*GRAPH, *MACHINE, "--ranks", "many"], ["--ranks", "'many'"]),
    "ranks backwards": ([*GRAPH, *MACHINE, "--ranks", "8..2"], ["--ranks", "'8..2'"]),
    "ranks twice": ([*GRAPH, *MACHINE, "--ranks", "4,4"], ["--ranks", "'4,4'"]),
    "no graph": ([*MACHINE, "--ranks", 4], ["store", "--nodes-of-graph", "--nnz", "--features", "--classes"]),
    "half a graph": ([*GRAPH[:4], *MACHINE, "--ranks", 4], ["--features, --classes"]),
    "two graphs": (["a.dg", *GRAPH, *MACHINE, "--ranks", 4], ["--nodes-of-graph 4000"]),
    "a multilabel store": (["a.dg", "--multilabel", *MACHINE, "--ranks", 4], ["--multilabel: is for"]),
    "a directed store": (["a.dg", "--directed", *MACHINE, "--ranks", 4], ["--directed"]),
    "too many non-zeros": (
        [*"--nodes-of-graph 9 --nnz 82 --features 2 --classes 2".split(), *MACHINE, "--ranks", 2],
        ["--nnz 82", "81"],
    ),
    "too many ranks": ([*GRAPH, *MACHINE, "--ranks", 1 << 21], ["--ranks 2097152", "at most 1048576"]),
    "no store": (["no.dg", *MACHINE, "--ranks", 4], ["no.dg"]),
    "an order without a store": ([*GRAPH, *MACHINE, "--ranks", 4, "--order", "random"], ["--order random"]),
    "no such algorithm": ([*GRAPH, *MACHINE, "--ranks", 4, "--algorithm", "4d"], ["--algorithm 4d", "1.5d"]),
    "a setting out of range": ([*GRAPH, *MACHINE, "--ranks", 4, "--dropout", 2], ["--dropout 2"]),
    "no such choice": ([*GRAPH, *MACHINE, "--ranks", 1, "--explain", 99], ["--explain 99", "choices"]),
    "curves of one number": ([*GRAPH, *MACHINE, "--ranks", 4, "--out", "c.html"], ["--out c.html", "1..64"]),
    "curves explained": ([*GRAPH, *MACHINE, "--ranks", "1..4", "--explain", 1], ["--explain 1"]),
    "one file for two": (
        [*GRAPH, *MACHINE, "--ranks", "1..4", "--out", "c.svg", "--svg", "./c.svg"],
        ["--svg ./c.svg: is what --out c.svg names, too"],
    ),
    "no log": ([*GRAPH, *MACHINE, "--ranks", "1..4", "--logs", "no.jsonl"], ["no.jsonl"]),
    "no such folder": ([*GRAPH, *MACHINE, "--ranks", "1..4", "--svg", "/no/c.svg"], ["--svg /no/c.svg"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(capsys, monkeypatch, tmp_path, case):
    monkeypatch.chdir(tmp_path)
    words, expected = BAD[case]
    assert call(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("distgnn: error: ") and all(part in line for part in expected)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("\nmemory = ", "\n# "), "memory is missing"),
        (("progress = ", "progress = 7 #"), "overlap.progress=7"),
    ],
)
def test_a_field_that_is_missing_or_absurd_is_named(capsys, tmp_path, change, expected):
    path = tmp_path / "mine.toml"
    path.write_text(read("perlmutter").toml().replace(*change))
    assert call(*GRAPH, "--machine", path, "--ranks", 4) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line and expected in line


@pytest.mark.slow
def test_one_rank_of_a_job_plans(tmp_path):
    done = mpiexec(2, "-m", "distgnn", "plan", *GRAPH, *MACHINE, "--ranks", 4, "--algorithm", "1d")
    assert done.code == 0, done.err
    assert done.out.count("algorithm") == 1
