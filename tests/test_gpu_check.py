"""jobs/gpu-check.sh without a GPU: its plan, steps side by side, what becomes of those that fail or hang, and
that it says what is missing.
"""

from __future__ import annotations

import importlib.util
import os
import re
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
FIRST = ["compile", "kernels", "layers", "train", "synccheck"]
RANKS = [f"ranks-{count}-{way}" for count in (2, 4) for way in ("staged", "nccl", "aware")]
TIMED = ["spmm", "attention", "start", "sampling", "epochs", "profile", "calibrate", "counts"]
WATCHED = ["memcheck", "racecheck", "initcheck"]
ALL = [*FIRST, *RANKS, *TIMED, *WATCHED]


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load the program, which lies outside of the package."""
    monkeypatch.syspath_prepend(ROOT / "jobs")
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "jobs" / "gpu_check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def run(*words: str | os.PathLike[str], **env: str) -> subprocess.CompletedProcess[str]:
    environ = clean_environment(PYTHON=sys.executable, MPI_HOME="") | env  # "": no .mpi/ of this checkout
    command = ["bash", "jobs/gpu-check.sh", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def test_steps_come_in_this_order_and_the_page_has_them(gpu_check: ModuleType, tmp_path: Path) -> None:
    plan = gpu_check.Plan(tmp_path / "report.md", tmp_path, "mpiexec")
    steps = {step.name: step for step in plan.steps()}
    assert list(steps) == ALL and gpu_check.SECONDS + 15 <= 600, "what ends a step may take 15 seconds"
    assert [name for name, step in steps.items() if not step.cores] == ["compile", *TIMED]
    for name in RANKS:
        _, count, way = name.split("-")
        transport = {"staged": "host", "aware": "mpi", "nccl": "nccl"}[way]
        assert steps[name].env["DISTGNN_TRANSPORT"] == transport and steps[name].cores == int(count)
        for command in steps[name].commands:
            wrapped = command[4].endswith("nccl_on_one_gpu.py")
            assert command[1:3] == ["-n", count] and wrapped == (way == "nccl")
    page = (ROOT / "docs" / "gpu-check.md").read_text()
    rows = re.findall(r"^\| (`.+?`) \| (\d+) \|", page, re.MULTILINE)
    limits = {name: float(seconds) for row, seconds in rows for name in re.findall("`(.+?)`", row)}
    assert {re.sub(r"-\d-", "-N-", name): step.seconds for name, step in steps.items()} == limits


def test_files_of_all_steps_exist(gpu_check: ModuleType, tmp_path: Path) -> None:
    steps = {step.name: step for step in gpu_check.Plan(tmp_path / "report.md", tmp_path, "mpiexec").steps()}
    words = [word for step in steps.values() for command in step.commands for word in command]
    files = [word for word in words if word.startswith(("tests", "benchmarks/", "jobs/"))]
    assert files and all((ROOT / file).exists() for file in files)


def test_graphs_are_made_beside(gpu_check: ModuleType, tmp_path: Path) -> None:
    """Each once, by as many processes as half of the cores, in the folder that programs read."""
    plan = gpu_check.Plan(tmp_path / "report.md", tmp_path, "mpiexec")
    steps = [step for step in plan.steps() if step.name in ("epochs", "attention", "profile")]
    makers = plan.graphs(steps, 4)
    assert sorted(name for maker in makers for name in maker[4:]) == sorted(
        ["rmat-20-16", "rmat-16-492", "rmat-14-16", "rmat-16-32"]
    )
    assert len(makers) == 2 and all(maker[2:4] == steps[0].commands[0][-2:] for maker in makers)
    assert plan.graphs(plan.steps()[:3], 4) == []


def checker(gpu_check: ModuleType, folder: Path, seconds: float, cores: int = 4, **missing: str) -> Any:
    machine = gpu_check.Machine([], missing)
    end = time.monotonic() + seconds
    return gpu_check.Check(folder / "report.md", dict(os.environ), machine, end, cores)


def shell(gpu_check: ModuleType, name: str, script: str, cores: int = 0, seconds: float = 60) -> Any:
    return gpu_check.Step(name, seconds, [["sh", "-c", script]], cores)


@pytest.mark.slow
def test_steps_that_fail_or_hang_are_named_and_the_others_run(gpu_check: ModuleType, tmp_path: Path) -> None:
    steps = [
        gpu_check.Step("broken", 9, [["sh", "-c", "echo first >&2; exit 3"], ["echo", "not reached"]]),
        shell(gpu_check, "stuck", "echo begun; sleep 60 & wait", seconds=0.3),
        gpu_check.Step("absent", 9, [["no-such-program"]]),
        gpu_check.Step("ranks", 9, [["echo", "not reached"]], needs=("pytest", "mpi")),
        shell(gpu_check, "tests-of-it", "echo '===== 3 passed in 0.01s ====='", cores=1),
    ]
    assert checker(gpu_check, tmp_path, 100, mpi="no MPI: of any kind").run(steps) == 1
    report = (tmp_path / "report.md").read_text()
    assert "    ===== 3 passed" in report and "not reached" not in report
    for words in ("broken: exit status 3", "stuck: over its time", "absent: no-such-program: No such file",
                  "ranks: skipped: no MPI: of any kind"):  # fmt: skip
        assert report.count(words) == 2, "where it happened, and at the end"
    assert "1 of 5 steps passed, 1 skipped" in report
    assert (tmp_path / "broken.log").read_text().splitlines()[1:] == ["first"]
    assert "begun" in (tmp_path / "stuck.log").read_text()


def test_steps_run_side_by_side_while_there_are_cores_and_timed_ones_alone(
    gpu_check: ModuleType, tmp_path: Path
) -> None:
    """Two steps take two of four cores each and wait for each other; the others need those before over."""
    begun = {name: tmp_path / f"{name}.begun" for name in "ab"}
    wait = "touch {}; until test -e {}; do sleep 0.05; done; touch {}.over"
    after = "test -e {0}/{1}.over && sleep 0.3 && touch {0}/{2}.over"
    steps = [
        shell(gpu_check, "a", wait.format(begun["a"], begun["b"], tmp_path / "a"), 2),
        shell(gpu_check, "b", wait.format(begun["b"], begun["a"], tmp_path / "b"), 2),
        shell(gpu_check, "large", f"test -e {tmp_path}/a.over && {after.format(tmp_path, 'b', 'large')}", 3),
        shell(gpu_check, "timed", after.format(tmp_path, "large", "timed")),
        shell(gpu_check, "later", after.format(tmp_path, "timed", "later"), 1),
        shell(gpu_check, "larger than the machine", after.format(tmp_path, "later", "last"), 9),
    ]
    assert checker(gpu_check, tmp_path, 60).run(steps) == 0
    assert (tmp_path / "last.over").exists()


def test_all_ends_in_time(gpu_check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step gets no more than what is left, and none is begun at the end."""
    import gpu_steps

    monkeypatch.setattr(gpu_steps, "SHORTEST", 5.3)
    checked = checker(gpu_check, tmp_path, 5.5)
    assert checked.run([shell(gpu_check, name, "sleep 0.4") for name in ("first", "late", "later")]) == 1
    assert checked.passed == 1
    assert checked.failed == [f"{name}: not run: no time is left" for name in ("late", "later")]
    monkeypatch.setattr(gpu_steps, "SHORTEST", 0.0)
    checked, begun = checker(gpu_check, tmp_path, 0.3), time.monotonic()
    checked.run([shell(gpu_check, "cut", "exec sleep 60")])
    assert checked.failed[0].startswith("cut: over its time") and time.monotonic() < begun + 50


WITHOUT_MPI = ["compile", "kernels", "spmm", "counts"]
LAUNCHED = [name for name in ALL if name in (*RANKS, "sampling")]


@pytest.mark.parametrize(
    ("answers", "left_out"),
    [
        ({}, []),
        ({"MPI_PROBE": '["an MPI", false, "it says no"]'}, ["ranks-2-aware", "ranks-4-aware"]),
        ({"LAUNCH_PROBE": "1\n1"}, LAUNCHED),
        ({"LAUNCH_PROBE": None}, LAUNCHED),
        ({"MPI_PROBE": None}, [name for name in ALL if name not in WITHOUT_MPI]),
        ({"GPU_PROBE": "a fine GPU\nNCCL torch\n"}, ["ranks-2-nccl", "ranks-4-nccl", "profile"]),
        ({"GPU_PROBE": "a fine GPU\npytest\n"}, ["kernels", "layers", "synccheck", *RANKS, *WATCHED]),
        ({"no": "ncu"}, ["counts"]),
        ({"no": "compute-sanitizer"}, ["synccheck", *WATCHED]),
    ],
)
def test_what_is_here_decides_what_is_run(
    gpu_check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Any, left_out: Any
) -> None:
    """With and without MPI, a launcher, an MPI that takes device pointers, NCCL, pytest, NVIDIA's tools."""
    usual = {"GPU_PROBE": "a fine GPU\n\n", "MPI_PROBE": '["an MPI", true, "so"]', "LAUNCH_PROBE": "2\n2"}
    told = usual | answers
    found = {getattr(gpu_check, name): told[name] for name in usual}

    def probe(command: list[str], env: dict[str, str]) -> Any:
        answer = found[command[-1]]
        return subprocess.CompletedProcess(command, int(answer is None), answer or "", "Error: no libmpi")

    monkeypatch.setattr(gpu_check, "probe", probe)
    there = lambda name, path=None: None if name == told.get("no") else name  # noqa: E731
    monkeypatch.setattr(gpu_check.shutil, "which", there)
    machine = gpu_check.look(sys.executable, dict(os.environ))
    steps = gpu_check.Plan(tmp_path / "report.md", tmp_path, "mpiexec").steps()
    for step in steps:
        step.commands = []
    checked = gpu_check.Check(tmp_path / "report.md", {}, machine, time.monotonic() + 1000)
    assert checked.run(steps) == 0
    skipped = [line.partition(":")[0] for line in checked.skipped]
    assert skipped == left_out and checked.passed == len(ALL) - len(left_out)


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
@pytest.mark.timeout(300)
def test_a_training_and_ranks_by_nccl_on_the_stand_in_for_cupy(tmp_path: Path) -> None:
    words = "--tiny", "--stretch", "3", "--only", "train,ranks-2-nccl"
    done = run(*words, tmp_path, PYTHONPATH=str(ROOT / "tests" / "fake_cupy"))
    report = (tmp_path / "gpu-check.md").read_text()
    assert done.returncode == 0, report
    assert "equal those of a serial training" in report and "2 of 2 steps passed" in report
    assert "by sage 10,10, graph partitioned" in (tmp_path / "ranks-2-nccl.log").read_text()
    assert "order random, NCCL;" in (tmp_path / "ranks-2-nccl.log").read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_an_mpi_kernels_are_compiled_tested_and_timed(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(ROOT / "tests" / "fake_cupy"), "MPI4PY_LIBMPI": str(tmp_path / "no-libmpi")}
    only = "compile,train,kernels,ranks-2-staged,spmm"
    done = run("--tiny", "--stretch", "3", "--only", only, tmp_path, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "gpu-check.md").read_text()
    for name in ("train", "ranks-2-staged"):
        assert f"{name}: skipped: no MPI: {tmp_path}/no-libmpi: cannot open" in report
    assert "compiled 6 of 6 kernels" in report and "| rmat-6 | 8 |" in report
    assert "3 of 5 steps passed, 2 skipped" in report


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
    plan = run("--dry-run", "--only", "mem", **environ)
    assert plan.returncode == 0 and plan.stdout.count("\n") == 1
    assert "compute-sanitizer --error-exitcode 9 --tool memcheck" in plan.stdout
