"""jobs/study.sh: what the table of studies starts, and what becomes of runs that end, are cut off or fail.

A program that writes logs of known numbers stands for distgnn; tests/test_slurm.py has the real one.
"""

from __future__ import annotations

import csv
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from distgnn import cli
from distgnn.cli import train
from mpi_helpers import clean_environment

pytestmark = pytest.mark.programs

ROOT = Path(__file__).resolve().parents[1]
LAUNCHER = "SLURM_NTASKS", "SLURM_NNODES", "SLURM_JOB_ID", "SLURM_GPUS_ON_NODE"

DISTGNN = '''#!{python} -SE
"""Epoch k takes k seconds times 1 + the seed, divided by the ranks; MG-GCN halves that."""
import json, os, sys
from pathlib import Path

words = sys.argv[1:]
here = Path(__file__).parent
with open(here / "called", "a") as file:
    print(*words, file=file)
if words[0] != "train":
    Path(words[1 if words[0] == "train" else 2]).mkdir()
    sys.exit()
flags = dict(zip(words[2:], words[3:]))
if (here / "broken").exists() and (here / "broken").read_text() in flags["--log"]:
    print("begun\\nout of memory")
    sys.exit(3)
ranks, log = int(os.environ["FAKE_RANKS"]), open(flags["--log"], "w")
def say(**event): print(json.dumps(event), file=log)
say(event="run", config=dict(n=10, nnz=40), grid=dict(rows=ranks), ranks=[dict(device="host")],
    started="2026-01-01T00", versions=dict(distgnn="0"), mpi="MPI")
for k in range(1, int(flags["--epochs"]) + 1):
    seconds = k * (1 + int(flags["--seed"])) / ranks * (1 + ("--no-keep-aggregate" in words))
    say(event="epoch", seconds=seconds, phases=dict(spmm=seconds / 2, comm=seconds / 4),
        steps=dict(sampling=seconds / 2, fetching=0, propagation=seconds / 4, update=seconds / 4))
def spent(phase, operation, matrix, seconds):
    return dict(rank=0, phase=phase, operation=operation, matrix=matrix, seconds=seconds)
say(event="end", words=[5_000_000, 7_000_000], peak_bytes=[2**20], ledger=[
    spent("comm", "bcast", "A", 1), spent("comm", "alltoallv", "T", 2), spent("comm", "allreduce", "sums", 5),
    spent("sampling", "draw", "", 2.75)])
'''


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import jobs/study.py."""
    monkeypatch.syspath_prepend(ROOT / "jobs")
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    return importlib.import_module("study")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a distgnn that writes logs, and a launcher that tells it the ranks."""
    (tmp_path / "distgnn").write_text(DISTGNN.replace("{python}", sys.executable))
    (tmp_path / "mpiexec").write_text('#!/bin/sh\nexport FAKE_RANKS=$2; shift 2; exec "$@"\n')
    for name in ("distgnn", "mpiexec"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("DISTGNN", str(tmp_path / "distgnn"))
    monkeypatch.setenv("MPIEXEC", str(tmp_path / "mpiexec"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(jobs: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["study", *words])
    return jobs.main()


def called(folder: Path) -> list[str]:
    """Return the commands since the last call."""
    lines = (folder / "called").read_text().splitlines() if (folder / "called").exists() else []
    (folder / "called").unlink(missing_ok=True)
    return lines


def campaign(jobs: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, *words: str):
    monkeypatch.setattr(sys, "argv", ["study", name, *words])
    return jobs.Campaign(name, jobs.arguments())


PAPERS = {
    "plexus-6": {512, 1024},
    "plexus-table-2": {64},
    "plexus-7": {4, 8, 16, 32, 64, 128, 256, 512, 1024},
    "plexus-9": {2048, 1024, 64, 16, 4},
    "plexus-10": {32, 64, 128},
    "cagnet-1": {4, 16, 36, 64, 100},
    "cagnet-2": {16, 36, 64, 100},
    "cagnet-3": {25, 64, 121, 27, 125},
    "sparsity-aware-3": {4, 16, 32, 64, 128, 256},
    "sparsity-aware-4": {4, 16, 32, 64, 128, 256},
    "sparsity-aware-5": {16},
    "sparsity-aware-6": {4, 16, 32, 64},
    "sparsity-aware-7": {16, 32, 64, 128, 256},
    "mg-gcn-5": {1},
    "mg-gcn-9": {1, 2, 4, 8},
    "mg-gcn-10": {1, 2, 4, 8},
    "mg-gcn-11": {1, 2, 4, 8},
    "mg-gcn-12": {1, 2, 4, 8},
    "mg-gcn-13": {1, 2, 4, 8},
    "sampling-4": {4, 8, 16, 32, 64, 128},
    "sampling-5": {16, 32, 64, 128},
}


@pytest.mark.parametrize("name", PAPERS)
def test_every_run_of_every_study_has_settings_of_train(
    jobs: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert set(jobs.STUDIES) == set(PAPERS)
    planned = campaign(jobs, monkeypatch, name, "--ranks", "4096", "--trials", "1")
    assert PAPERS[name] <= {run.ranks for run in planned.runs} and not planned.notes
    assert len({run.name for run in planned.runs}) == len(planned.runs)
    for run in planned.runs:
        settings = train.settings(cli.parse(planned.command(run)))
        assert settings.epochs == 10 and settings.order == run.order
        assert (settings.replication or 1) == run.series.copies
        assert run.series.order in ("random", "double") or run.order.endswith(
            f"-{run.ranks // run.series.copies}"
        )


def test_copies_by_ranks_and_square_grids(jobs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    aware = campaign(jobs, monkeypatch, "sparsity-aware-7", "--ranks", "16", "--trials", "1")
    (run,) = (run for run in aware.runs if run.name == "protein-SA+GVB-c-4-P16-0")
    assert "1.5d --replication 4 --sparsity-aware --order volume-4" in " ".join(aware.command(run))
    cubes = campaign(jobs, monkeypatch, "cagnet-3", "--ranks", "27", "--only", "amazon-3D-P27-0")
    assert "--algorithm 3d-split --order random --seed 0 --grid 3x3x3" in " ".join(
        cubes.command(cubes.runs[0])
    )
    table = campaign(jobs, monkeypatch, "plexus-table-2", "--ranks", "64", "--trials", "1")
    grids = {run.series.label: " ".join(table.command(run)) for run in table.runs if run.ranks == 64}
    assert "--grid x=64,y=1,z=1" in grids["U"] and "--grid x=1,y=64,z=1" in grids["V"]
    other = campaign(jobs, monkeypatch, "cagnet-3", "--at", "6", "--only", "amazon-3D-P6-0")
    assert "--grid" not in other.command(other.runs[0])


def test_ranks_are_those_that_are_here(jobs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def counts(label: str, *words: str) -> list[int]:
        planned = campaign(jobs, monkeypatch, "cagnet-1", "--only", "amazon", "--trials", "1", *words)
        return [run.ranks for run in planned.runs if run.series.label == label]

    assert [counts(label, "--ranks", "40") for label in ("c=1", "c=4", "2D")] == [
        [8, 16, 36],
        [8, 16, 36],
        [9, 16, 36],
    ]
    assert [counts(label, "--ranks", "4") for label in ("c=1", "c=4", "2D")] == [[1, 2, 4], [4], [1, 4]]
    assert counts("2D", "--at", "6,3") == [3, 6]
    monkeypatch.setenv("SLURM_NTASKS", "16")
    here = campaign(jobs, monkeypatch, "cagnet-1")
    assert "amazon: P = 36, 64, 100 of the paper are more than the 16 ranks here" in here.notes


def test_sizes_of_generated_graphs(jobs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = campaign(jobs, monkeypatch, "sampling-4")
    nodes, degree = fitting.size("papers")
    assert nodes * degree == pytest.approx(250_000, rel=1e-3) and degree == pytest.approx(29.1, rel=1e-2)
    scaled = campaign(jobs, monkeypatch, "sampling-4", "--scale", "1e-3")
    assert scaled.size("papers")[0] == 111_060
    assert "--batch-size 371" in " ".join(fitting.command(fitting.runs[0])), "an eighth of 60 % of the nodes"
    assert "--batch-size 1024" in " ".join(
        scaled.command(next(run for run in scaled.runs if run.graph == "papers"))
    )
    dense = campaign(jobs, monkeypatch, "mg-gcn-9")
    sizes = [dense.size(graph) for graph in dense.study.graphs]
    assert len({nodes for nodes, _ in sizes}) == 1 and sizes[7][1] == pytest.approx(128 * sizes[0][1])


@pytest.mark.slow
def test_a_study_ends_in_a_table_and_a_figure(
    jobs: ModuleType, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = "cagnet-1", "--ranks", "4", "--only", "reddit-c-1", "--scale", "1e-6"
    assert call(jobs, monkeypatch, *study) == 0
    commands = called(fake)
    assert [line.split()[0] for line in commands] == ["generate", "prepare", *["train"] * 9]
    out = fake / "studies"
    with (out / "cagnet-1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["ranks"], row["trials"], row["million words"]) for row in rows] == [
        (ranks, "3", "7.0") for ranks in "124"
    ]
    # epochs 3 to 10 take 6.5 seconds on the mean, 13 and 19.5 with other seeds
    assert [float(rows[0][name]) for name in ("seconds", "least", "most")] == [13, 6.5, 19.5]
    assert [float(row["speed-up"]) for row in rows] == [1, 2, 4]
    quarters = [float(rows[0][name]) * 8 / 3.25 for name in ("sbcast", "dbcast", "reduce", "local")]
    assert quarters == pytest.approx([1, 2, 5, 24]), "a quarter of the time, divided as in the ledger"
    text = (out / "cagnet-1.md").read_text()
    assert "| reddit | c=1 | 4 | 4 | 3.25 | 1.625 | 4.875 | 3 | 4 |" in text
    assert (
        "reddit: P = 16, 36, 64 of the paper are more than the 4 ranks here" in text and "amazon" not in text
    )
    drawing = (out / "cagnet-1.svg").read_text()
    assert drawing.startswith("<svg") and all(f">{name}</text>" in drawing for name in ("reddit", "sbcast"))


@pytest.mark.slow
def test_an_interrupted_study_goes_on(
    jobs: ModuleType, fake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = "mg-gcn-11", "--ranks", "2", "--trials", "1", "--only", "cora"
    (fake / "broken").write_text("cora-MG-GCN-P2")
    assert call(jobs, monkeypatch, *study) == 1
    assert len(called(fake)) == 2 + 4
    told = capsys.readouterr()
    assert "[4/4] cora-MG-GCN-P2-0: FAILED: exit status 3; out of memory" in told.err
    assert "1 runs failed; the same command runs them again" in told.err
    table = fake / "studies" / "mg-gcn-11.md"
    assert "- FAILED: cora-MG-GCN-P2-0: exit status 3" in table.read_text()
    assert "| cora | CAGNET | 2 | 2 | 6.5 | 6.5 | 6.5 | 1 | 2 |" in table.read_text()

    assert "| cora | MG-GCN | 1 | 1 | 6.5 | 6.5 | 6.5 | 1 | 2 |" in table.read_text(), "over the other series"

    (fake / "broken").unlink()
    log = fake / "studies" / "mg-gcn-11" / "cora-CAGNET-P1-0.jsonl"
    log.write_text(log.read_text()[:-40])  # killed as it wrote its last line
    assert call(jobs, monkeypatch, *study) == 0
    assert [Path(line.split("--log ")[1].split()[0]).stem for line in called(fake)] == [
        "cora-CAGNET-P1-0",
        "cora-MG-GCN-P2-0",
    ]
    assert "cora-CAGNET-P2-0: kept" in capsys.readouterr().out and "FAILED" not in table.read_text()

    assert call(jobs, monkeypatch, *study, "--", "--hidden", "8") == 0
    assert len(called(fake)) == 4, "other settings are other runs"
    log.write_text("\n".join(line for line in log.read_text().splitlines() if "end" not in line))
    assert not jobs.study_results.finished(log)


@pytest.mark.slow
def test_a_store_that_cannot_be_made_fails_its_runs_only(
    jobs: ModuleType, fake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = fake / "distgnn"
    program.write_text(
        program.read_text().replace(
            'if words[0] != "train":', 'if "metis:4" in words: sys.exit("no METIS")\nif words[0] != "train":'
        )
    )
    study = "sparsity-aware-6", "--at", "4", "--only", "amazon"
    assert call(jobs, monkeypatch, *study) == 1
    assert sum("metis:4" in line for line in called(fake)) == 1, "it is not tried for every trial"
    table = (fake / "studies" / "sparsity-aware-6.md").read_text()
    assert "| amazon | SA+GVB | 4 |" in table and table.count("no METIS") == 3
    capsys.readouterr()


@pytest.mark.slow
def test_a_run_over_its_limit_is_ended(
    jobs: ModuleType, fake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (fake / "mpiexec").write_text("#!/bin/sh\necho begun; sleep 60 & wait\n")
    store = "--store", f"cora={fake}"
    assert (
        call(jobs, monkeypatch, "mg-gcn-5", "--only", "cora", "--trials", "1", "--limit", "0.3", *store) == 1
    )
    assert "over its limit of 0.3 s; begun" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("cagnet", {"local": 4.875, "sbcast": 1.625 / 8, "dbcast": 1.625 / 4, "reduce": 1.625 * 5 / 8}),
        ("exchange", {"local": 4.875, "bcast": 1.625 / 8, "alltoall": 1.625 / 4, "reduce": 1.625 * 5 / 8}),
        ("comm", {"communication": 1.625, "computation": 4.875}),
        ("phases", {"SpMM": 3.25, "communication": 1.625, "other": 1.625}),
        ("steps", {"sampling": 3.25, "fetching": 0, "propagation": 3.25}),
        ("sampling", {"sampling": 0.325, "communication and other": 2.925}),
    ],
)
def test_parts_of_an_epoch(
    jobs: ModuleType, fake: Path, monkeypatch: pytest.MonkeyPatch, kind: str, expected: dict[str, float]
) -> None:
    env = os.environ | {"FAKE_RANKS": "1"}
    words = "train", "x", "--log", "run.jsonl", "--seed", "0", "--epochs", "10"
    subprocess.run([fake / "distgnn", *words], env=env, check=True)
    found = jobs.study_results.parts(jobs.study_results.finished(fake / "run.jsonl"), kind)
    assert {name: value for name, value in found.items() if value or name in expected} == pytest.approx(
        expected
    )


def test_a_dry_run_prints_commands_and_writes_nothing(tmp_path: Path) -> None:
    """In a Slurm job of four nodes, on one rank per node."""
    for name in ("srun", "distgnn"):
        (tmp_path / name).write_text("#!/bin/sh\necho pmi2\n")
        (tmp_path / name).chmod(0o755)
    slurm = {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "16",
        "SLURM_NNODES": "4",
        "MPIEXEC": "",
        "PYTHON": sys.executable,
    }
    environ = clean_environment(PATH=f"{tmp_path}:{os.environ['PATH']}", DISTGNN="DISTGNN", **slurm)
    words = "cagnet-2", "--at", "4,8", "--trials", "1", "--dry-run", "--only", "amazon-c-1", "--out", "there"
    command = ["bash", ROOT / "jobs" / "study.sh", *words]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    generate, prepare, four, eight = done.stdout.splitlines()
    assert "generate rmat there/graphs/amazon-" in generate and "--order random" in prepare
    started = "srun --mpi=pmi2 --kill-on-bad-exit=1 --ntasks"
    assert four.startswith(f"{started}=4 --nodes=4 --ntasks-per-node=1 DISTGNN train there/graphs/amazon")
    assert eight.startswith(f"{started}=8 --nodes=4 --ntasks-per-node=2 DISTGNN train")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["cagnet-4"], "cagnet-4: no such study; there are plexus-6"),
        ([], "name a study"),
        (["cagnet-1", "--scale", "2"], "2: expected a number above 0 and up to 1"),
        (["cagnet-1", "--at", "4,x"], "x: expected a whole number of at least 1"),
        (["cagnet-1", "--epochs", "2"], "--epochs 2: expected more than the 2 that do not count"),
        (["cagnet-1", "--store", "mine=."], "--store mine=.: no graph mine"),
        (["cagnet-1", "--store", "reddit=nowhere"], "no directory nowhere"),
    ],
)
def test_bad_words(
    jobs: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    problem: str,
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(jobs, monkeypatch, *words)
    assert ended.value.code == 2 and problem in capsys.readouterr().err


@pytest.mark.slow
def test_a_store_of_the_user(
    jobs: ModuleType, fake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (fake / "mine.dg").mkdir()
    words = (
        "sampling-4",
        "--at",
        "2",
        "--trials",
        "1",
        "--only",
        "products-c-2",
        "--store",
        "products=mine.dg",
    )
    assert call(jobs, monkeypatch, *words) == 0
    (line,) = called(fake)
    told = capsys.readouterr().out
    assert "products: P as --at says; the paper has 4, 8, 16" in told
    assert line.startswith("train mine.dg ") and "--batch-size 1024" in line
    assert "products: 10 nodes, 40 non-zeros with self-loops, mine.dg" in told
