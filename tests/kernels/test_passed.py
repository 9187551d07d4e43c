"""Tests of kernels are left out only after a run that passed, with all that they depend on as it was."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernels import passed
from loops import each

SKIPPED, PASSED = (
    SimpleNamespace(nodeid=name, skipped=name == "b", passed=name == "a", when="call") for name in "ba"
)
FOLDER = "tests/kernels"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a tree with the files that the tests depend on."""
    for name in passed.DEPENDS_ON:
        source, target = passed.ROOT / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    return tmp_path


def finished(root: Path, code: int = 0, *args: str, change: str = "", **options: Any) -> set[str] | None:
    """Return what would be run of a tree in which these tests passed or were skipped."""
    file = root / FOLDER / "passed.txt"
    file.unlink(missing_ok=True)
    notes = passed.Notes(file, root)
    for report in options.pop("reports", (PASSED, SKIPPED)):
        notes.pytest_runtest_logreport(report)
    if change:
        (root / change).write_text("x = 1\n")
    config = SimpleNamespace(args=list(args) or [FOLDER], getoption=lambda name, default: options.get(name))
    notes.pytest_sessionfinish(SimpleNamespace(config=config), code)
    return passed.but_for(file, root)


def test_a_run_that_passed_is_noted_with_what_it_skipped(root: Path) -> None:
    assert finished(root) == {"b"} and finished(root, reports=[PASSED]) == set()


def test_any_other_run_is_not(root: Path) -> None:
    assert (
        finished(root, 1) is None and finished(root, 5) is None and finished(root, reports=[SKIPPED]) is None
    )
    assert (
        finished(root, 0, f"{FOLDER}/test_narrow.py") is None and finished(root, 0, FOLDER, "tests") is None
    )
    for option in ("keyword", "markexpr", "quick", "deselect", "lf"):
        assert finished(root, **{option: "a"}) is None, option
    assert finished(root, change=f"{FOLDER}/new.py") is None


@each("name", ["kernels/csr_spmm.cu", "kernels/host/isa.h", "kernels/emulation/emulator.py", "setup.py",
               "tests/kernels/host_driver.c", "tests/kernels/test_narrow.py",
               "distgnn/local/cuda/launch.py", "tests/fake_cupy/cupy/_work.py", "benchmarks/ptxas.py",
               "kernels/new.cuh"])  # fmt: skip
def test_a_change_of_what_they_depend_on_is_seen(name: str, root: Path) -> None:
    assert finished(root) == {"b"}
    file = root / name
    before = file.read_bytes() if file.exists() else None
    file.write_bytes((before or b"") + b"\n")
    assert passed.but_for(root / FOLDER / "passed.txt", root) is None
    file.unlink() if before is None else file.write_bytes(before)
    assert passed.but_for(root / FOLDER / "passed.txt", root) == {"b"}
    (root / "kernels" / "README.md").write_text("words")
    assert passed.but_for(root / FOLDER / "passed.txt", root) == {"b"}
