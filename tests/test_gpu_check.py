"""jobs/gpu-check.sh without a GPU: its plans, what becomes of steps that fail or hang, and that it says what
is missing.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mpi_helpers import clean_environment

pytestmark = pytest.mark.programs

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def gpu_check() -> ModuleType:
    """Load the program, which lies outside of the package."""
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "jobs" / "gpu_check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(*words: str | os.PathLike[str], **env: str) -> subprocess.CompletedProcess[str]:
    environ = clean_environment(PYTHON=sys.executable, MPI_HOME="") | env  # "": no .mpi/ of this checkout
    command = ["bash", "jobs/gpu-check.sh", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def test_part_1_comes_in_this_order_and_fits_ten_minutes(gpu_check: ModuleType, tmp_path: Path) -> None:
    plan = gpu_check.Plan(tmp_path / "report.md", tmp_path, "mpiexec")
    steps = plan.steps(1)
    first = ["compile", "train", "kernels", "tests-once", "tests-all", "spmm", "epoch"]
    assert [step.name for step in steps] == [*first, *RANKS]
    assert gpu_check.DEADLINES[1] + 15 <= 600, "what ends a step may take 15 seconds"
    for step in steps[7:]:
        assert step.env["DISTGNN_TRANSPORT"] == ("mpi" if "aware" in step.name else "host")
    (make,) = plan.graphs(steps)
    assert make == [*steps[6].commands[0], "--make"] and str(tmp_path) in make
    for part in (1, 2, 3):
        words = [word for step in plan.steps(part) for command in step.commands for word in command]
        files = [word for word in words if word.startswith(("tests", "benchmarks/", "jobs/"))]
        assert all((ROOT / file).exists() for file in files)
    assert [step.name for step in plan.steps(2)][2:] == ["memcheck", "racecheck", "initcheck", "synccheck"]


@pytest.mark.slow
def test_steps_that_fail_or_hang_are_named_and_the_others_run(gpu_check: ModuleType, tmp_path: Path) -> None:
    steps = [
        gpu_check.Step("broken", 9, [["sh", "-c", "echo first >&2; exit 3"], ["echo", "not reached"]]),
        gpu_check.Step("stuck", 0.3, [["sh", "-c", "echo begun; sleep 60 & wait"]]),
        gpu_check.Step("absent", 9, [["no-such-program"]]),
        gpu_check.Step("ranks", 9, [["echo", "not reached"]], needs=("pytest", "mpi")),
        gpu_check.Step("in-its-place", 9, [["true"]], instead="mpi"),
        gpu_check.Step("not-in-its-place", 9, [["false"]], instead="pytest"),
        gpu_check.Step("tests-of-it", 9, [["echo", "===== 3 passed in 0.01s ====="]]),
    ]
    machine, now = gpu_check.Machine([], {"mpi": "no MPI: of any kind"}), time.monotonic()
    checked = gpu_check.Check(tmp_path / "report.md", dict(os.environ), machine, now + 100)
    assert gpu_check.check(checked, steps, now) == 1
    report = (tmp_path / "report.md").read_text()
    assert "    ===== 3 passed" in report and "not reached" not in report
    for words in ("broken: exit status 3", "stuck: over its time", "absent: no-such-program: No such file",
                  "ranks: skipped: no MPI: of any kind"):  # fmt: skip
        assert report.count(words) == 2, "where it happened, and at the end"
    assert "2 of 6 steps passed, 1 skipped" in report
    assert (tmp_path / "broken.log").read_text().splitlines()[1:] == ["first"]
    assert "begun" in (tmp_path / "stuck.log").read_text() and (tmp_path / "tests.log").exists()


def test_a_part_ends_in_time(gpu_check: ModuleType, tmp_path: Path) -> None:
    """A step gets no more than what is left of its part, and none is begun at the end."""
    begun = time.monotonic()
    checked = gpu_check.Check(tmp_path / "report.md", dict(os.environ), gpu_check.Machine(), begun + 5.5)
    gpu_check.SHORTEST = 5.3
    steps = [gpu_check.Step(name, 90, [["sleep", "0.4"]]) for name in ("first", "late", "later")]
    assert gpu_check.check(checked, steps, begun) == 1 and checked.passed == 1
    words = "not run: the time of this part is over"
    assert checked.failed == [f"late: {words}", f"later: {words}"]
    checked.end, checked.failed, gpu_check.SHORTEST = time.monotonic() + 0.3, [], 0.0
    checked.run(gpu_check.Step("cut", 90, [["sleep", "60"]]))
    assert checked.failed[0].startswith("cut: over its time") and time.monotonic() < begun + 90


RANKS = [f"ranks-{count}-{way}" for way in ("staged", "cuda-aware") for count in (2, 4)]
ALL = ["compile", "train", "tests-once", "tests-all", "spmm", "epoch", *RANKS]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, ALL),
        ({"MPI_PROBE": '["an MPI", false, "it says no"]'}, ALL[:-2]),
        ({"LAUNCH_PROBE": "1\n1"}, ALL[:-4]),
        ({"LAUNCH_PROBE": None}, ALL[:-4]),
        ({"MPI_PROBE": None}, ["compile", "kernels", "spmm"]),
        ({"GPU_PROBE": "a fine GPU\npytest\n"}, ["compile", "train", "spmm", "epoch"]),
        ({"GPU_PROBE": "a fine GPU\npytest h5py\n", "MPI_PROBE": None}, ["compile", "spmm"]),
    ],
)
def test_what_is_here_decides_what_is_run(
    gpu_check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Any, expected: Any
) -> None:
    """With and without MPI, a launcher, an MPI that takes device pointers, pytest."""
    usual = {"GPU_PROBE": "a fine GPU\n\n", "MPI_PROBE": '["an MPI", true, "so"]', "LAUNCH_PROBE": "2\n2"}
    found = {getattr(gpu_check, name): answer for name, answer in (usual | answers).items()}

    def probe(command: list[str], env: dict[str, str]) -> Any:
        answer = found[command[-1]]
        return subprocess.CompletedProcess(command, int(answer is None), answer or "", "Error: no libmpi")

    monkeypatch.setattr(gpu_check, "probe", probe)
    monkeypatch.setattr(gpu_check, "follow", lambda *_: "")
    machine = gpu_check.look(sys.executable, dict(os.environ))
    checked = gpu_check.Check(tmp_path / "report.md", {}, machine, time.monotonic() + 1000)
    assert gpu_check.check(checked, gpu_check.Plan(checked.report, tmp_path, "mpiexec").steps(1), 0) == 0
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert [line.split()[1][:-1] for line in lines if ": passed, " in line] == expected
    assert len([line for line in lines if ": skipped: " in line]) == 2 * len(checked.skipped)
    skipped = [line.partition(":")[0] for line in checked.skipped]
    assert {*expected, *skipped} - {"kernels"} == {*ALL} and not {*expected} & {*skipped}


def test_an_mpi_is_a_folder_or_an_archive(gpu_check: ModuleType, tmp_path: Path) -> None:
    mpi, packed = tmp_path / "some-mpi", tmp_path / ".mpi"
    (mpi / "bin").mkdir(parents=True)
    (mpi / "bin" / "mpiexec").touch()
    packed.mkdir()
    with tarfile.open(packed / "mpi.txz", "w:xz") as archive:
        archive.add(mpi, "some-mpi")
    launcher, env = gpu_check.mpi(mpi, tmp_path)
    assert launcher == str(mpi / "bin" / "mpiexec") and env["PATH"].startswith(f"{mpi / 'bin'}:")
    for where in (packed, packed / "mpi.txz"):
        launcher, env = gpu_check.mpi(where, tmp_path)
        assert Path(launcher).exists() and env["OPAL_PREFIX"] == str(tmp_path / "mpi" / "some-mpi")
    with pytest.raises(SystemExit, match="has no bin/mpiexec"):
        gpu_check.mpi(tmp_path / "bin", tmp_path)


@pytest.mark.slow
def test_a_training_on_the_stand_in_for_cupy(tmp_path: Path) -> None:
    done = run("--tiny", "--only", "train", tmp_path, PYTHONPATH=str(ROOT / "tests" / "fake_cupy"))
    report = (tmp_path / "gpu-check.md").read_text()
    assert done.returncode == 0, report
    assert "equal those of a serial training" in report and "1 of 1 steps passed" in report


@pytest.mark.slow
def test_without_an_mpi_kernels_are_compiled_tested_and_timed(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(ROOT / "tests" / "fake_cupy"), "MPI4PY_LIBMPI": str(tmp_path / "no-libmpi")}
    done = run("--tiny", "--only", "compile,train,kernels,ranks-2-staged", tmp_path, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "gpu-check.md").read_text()
    for name in ("train", "ranks-2-staged"):
        assert f"{name}: skipped: no MPI: {tmp_path}/no-libmpi: cannot open" in report
    assert "compiled 6 of 6 kernels" in report and "2 of 4 steps passed, 2 skipped" in report


def test_a_launcher_must_connect_its_ranks(gpu_check: ModuleType, tmp_path: Path) -> None:
    launcher, env = tmp_path / "mpiexec", dict(os.environ)
    assert gpu_check.launches(str(launcher), env) == f"no launcher: there is no {launcher}"
    for script, problem in (("echo 1; echo 1", "connects: 1"), ("echo alas >&2; exit 1", "connects: alas"),
                            ("echo 2; echo 2", "")):  # fmt: skip
        launcher.write_text(f"#!/bin/sh\n{script}\n")
        launcher.chmod(0o700)
        assert gpu_check.launches(str(launcher), env).endswith(problem)


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('no CuPy here')")
    environ = {"PYTHONPATH": str(tmp_path), "RESULTS": str(tmp_path / "results")}
    done = run(**environ)
    assert done.returncode == 2 and "no GPU or no CuPy here" in done.stderr
    assert not (tmp_path / "results").exists()
    assert run("--fast").returncode == 2
    plan = run("--dry-run", "--part", "2", "--only", "mem", **environ)
    assert plan.returncode == 0 and plan.stdout.count("\n") == 1
    assert "compute-sanitizer --error-exitcode 9 --tool memcheck" in plan.stdout
