"""jobs/gpu-check.sh without a GPU: the plan that it prints, what it says is missing, a run with stand-ins for
its programs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mpi_helpers import clean_environment

ROOT = Path(__file__).resolve().parents[1]

# Stands in for Python: knows which modules "are there", fails the tests of two ranks, and prints how it was
# called.
PYTHON = """#!/bin/sh
case "$*" in
  "-c import "*) module=${2#import }; module=${module%%;*}
    case " $MODULES " in *" $module "*) exit 0;; esac; exit 1 ;;
  *cuda_aware*) echo 0 ;;
  *) echo "python $*" ;;
esac
"""
LAUNCHER = """#!/bin/sh
[ "$1" = --version ] && { echo "mpirun (Open MPI) 4.1.4"; exit; }
echo "launcher $*"
case "$*" in *"-n 2"*) exit 3 ;; esac
"""
ALL = "cupy numpy scipy h5py mpi4py tqdm pytest iniconfig pluggy packaging pygments pytest_timeout pytest_mpi"


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """An environment with a GPU, as far as its programs say, and nothing else on the path but what a shell
    needs.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (
        ("python3", PYTHON),
        ("mpiexec", LAUNCHER),
        ("compute-sanitizer", '#!/bin/sh\necho "sanitizer $*"\n'),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for name in (
        "bash",
        "sh",
        "dirname",
        "date",
        "mkdir",
        "tee",
        "sed",
        "env",
        "grep",
        "head",
        "tail",
        "cat",
        "git",
    ):
        program = shutil.which(name)
        if program:
            (folder / name).symlink_to(program)
    dropped = ("WHEELS", "MPI_HOME", "RANKS", "MPIEXEC", "PYTHON", "DISTGNN_CUDA_AWARE")
    environ = clean_environment(PATH=str(folder), MODULES=ALL)
    return {name: value for name, value in environ.items() if name not in dropped}


def run(*words: str | os.PathLike[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", "jobs/gpu-check.sh", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_syntax() -> None:
    subprocess.run(["bash", "-n", "jobs/gpu-check.sh"], cwd=ROOT, check=True)


def test_dry_run_prints_the_plan_and_leaves_nothing(machine: dict[str, str], tmp_path: Path) -> None:
    before = sorted(ROOT.iterdir())
    done = run("--dry-run", env=machine)
    assert done.returncode == 0, done.stderr
    plan = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    steps = "environment tests ranks-2-staged ranks-4-staged ranks-2-cuda-aware ranks-4-cuda-aware "
    steps += "tests-cusparse sanitizer-warm-up "
    steps += "sanitizer-memcheck sanitizer-racecheck sanitizer-initcheck benchmark-float32 benchmark-float64"
    assert " ".join(plan) == steps
    assert plan["tests"].startswith("env DISTGNN_BACKEND=cupy python3 -m pytest")
    assert (
        "DISTGNN_CUDA_AWARE=0" in plan["ranks-2-staged"]
        and "--oversubscribe -n 2 python3" in plan["ranks-2-staged"]
    )
    assert (
        "DISTGNN_CUDA_AWARE=1" in plan["ranks-4-cuda-aware"] and "-n 4 python3" in plan["ranks-4-cuda-aware"]
    )
    assert (
        "set_allocator(None)" in plan["sanitizer-racecheck"]
        and "--tool racecheck" in plan["sanitizer-racecheck"]
    )
    for words in plan.values():
        for word in words.split():
            if word.startswith(("tests/", "benchmarks/")):
                assert (ROOT / word).exists(), word
    assert sorted(ROOT.iterdir()) == before
    only = run("--dry-run", "--quick", "--only", "benchmark", env=machine).stdout
    assert [line.split(":")[0] for line in only.splitlines()] == [
        "benchmark-float32",
        "benchmark-float64",
    ] and "--rounds 5" in only


@pytest.mark.slow
def test_a_run_keeps_logs_and_counts_failures(machine: dict[str, str], tmp_path: Path) -> None:
    results = tmp_path / "results"
    done = run(results, env=machine)
    assert done.returncode == 1
    summary = (results / "summary.txt").read_text().splitlines()
    assert summary[-1].startswith("gpu-check: 10 passed, 1 failed, 1 skipped")
    assert sum("FAILED   ranks-2-staged (status 3" in line for line in summary) == 1
    assert sum("skipped  ranks-cuda-aware" in line for line in summary) == 1
    log = (results / "sanitizer-memcheck.log").read_text()
    assert "sanitizer --tool memcheck --error-exitcode 9 python3 -c import sys, cupy" in log
    assert (
        "launcher --allow-run-as-root --oversubscribe -n 2 python3 -m pytest"
        in (results / "ranks-2-staged.log").read_text()
    )
    assert run(results, env=machine | {"RANKS": "4"}).returncode == 0


def test_missing_things_are_named(machine: dict[str, str], tmp_path: Path) -> None:
    done = run(tmp_path / "a", env=machine | {"MODULES": ALL.replace("cupy", "")})
    assert done.returncode == 2 and "python3 has no CuPy" in done.stdout
    done = run(tmp_path / "b", env=machine | {"MPI_HOME": "/nowhere"})
    assert done.returncode == 2 and "MPI_HOME=/nowhere has no bin/mpiexec" in done.stdout
    done = run(tmp_path / "c", env=machine | {"WHEELS": "/nowhere"})
    assert done.returncode == 2 and "WHEELS=/nowhere is no folder" in done.stdout
    done = run("--fast", env=machine)
    assert done.returncode == 2 and "unknown option --fast" in done.stderr

    Path(machine["PATH"], "compute-sanitizer").unlink()
    Path(machine["PATH"], "mpiexec").unlink()
    done = run(tmp_path / "d", env=machine)
    assert done.returncode == 0
    assert (
        "skipped  sanitizer: compute-sanitizer is not on the path" in done.stdout
        and "skipped  ranks: no mpiexec found" in done.stdout
    )


def test_wheels_fill_the_gaps(machine: dict[str, str], tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    have = machine | {"MODULES": ALL.replace("pytest_mpi", "").replace("tqdm", ""), "WHEELS": str(wheels)}
    done = run("--only", "tests", tmp_path / "results", env=have)
    log = (tmp_path / "results" / "packages.log").read_text()
    assert done.returncode == 0
    assert "pip install --quiet --no-index --no-deps --find-links" in log and log.rstrip().endswith(
        "tqdm pytest-mpi"
    )
