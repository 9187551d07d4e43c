"""jobs/gpu-check.sh without a GPU: its plans, what becomes of steps that fail or hang, and that it says what
is missing.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from mpi_helpers import clean_environment

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
    environ = clean_environment(PYTHON=sys.executable) | env
    command = ["bash", "jobs/gpu-check.sh", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def test_part_1_comes_in_this_order_and_fits_ten_minutes(gpu_check: ModuleType, tmp_path: Path) -> None:
    plan = gpu_check.Plan(tmp_path / "report.md", tmp_path, "mpiexec")
    steps = plan.steps(1)
    ranks = [f"ranks-{count}-{way}" for way in ("staged", "cuda-aware") for count in (2, 4)]
    assert [step.name for step in steps] == ["train", "tests-once", "tests-all", "spmm", "epoch", *ranks]
    assert sum(step.seconds for step in steps) <= 570
    for step in steps[5:]:
        assert step.env["DISTGNN_CUDA_AWARE"] == str(int("aware" in step.name))
    for part in (1, 2, 3):
        words = [word for step in plan.steps(part) for command in step.commands for word in command]
        assert all((ROOT / word).exists() for word in words if word.startswith(("tests", "benchmarks/")))


@pytest.mark.slow
def test_steps_that_fail_or_hang_are_named_and_the_others_run(
    gpu_check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [
        gpu_check.Step("broken", 9, [["sh", "-c", "echo first >&2; exit 3"], ["echo", "not reached"]]),
        gpu_check.Step("stuck", 0.3, [["sh", "-c", "echo begun; sleep 60 & wait"]]),
        gpu_check.Step("absent", 9, [["no-such-program"]]),
        gpu_check.Step("tests-of-it", 9, [["echo", "===== 3 passed in 0.01s ====="]]),
    ]
    monkeypatch.setattr(gpu_check, "PROBE", "print('a fine GPU')")
    assert gpu_check.check(tmp_path / "report.md", dict(os.environ), steps, 1) == 1
    report = (tmp_path / "report.md").read_text()
    assert "a fine GPU" in report and "    ===== 3 passed" in report
    for words in ("broken: exit status 3", "stuck: over its time", "absent: no-such-program: No such file"):
        assert report.count(words) == 2, "where it happened, and at the end"
    assert "1 of 4 steps passed" in report
    assert (tmp_path / "broken.log").read_text().splitlines()[1:] == ["first"]
    assert "begun" in (tmp_path / "stuck.log").read_text() and (tmp_path / "tests.log").exists()


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
def test_without_a_gpu_it_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('no CuPy here')")
    environ = {"PYTHONPATH": str(tmp_path), "RESULTS": str(tmp_path / "results")}
    done = run(**environ)
    assert done.returncode == 2 and "no GPU, no CuPy or no MPI here" in done.stderr
    assert not (tmp_path / "results").exists()
    assert run("--fast").returncode == 2
    plan = run("--dry-run", "--part", "2", "--only", "mem", **environ)
    assert plan.returncode == 0 and plan.stdout.count("\n") == 1
    assert "compute-sanitizer --error-exitcode 9 --tool memcheck" in plan.stdout
