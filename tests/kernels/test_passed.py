"""Tests of kernels are left out only after a run that passed, with all that they depend on as it was."""

from __future__ import annotations

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
    """Return a tree with files where those are on which the tests depend."""
    for name in passed.DEPENDS_ON:
        assert (passed.ROOT / name).exists(), name
        folder = [] if Path(name).suffix else ["a.py", "inner/b.cu", "inner/c.h", "README.md"]
        for file in [tmp_path / name / one for one in folder] or [tmp_path / name]:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("text\n")
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
    assert finished(root, 0, f"{FOLDER}/a.py") is None and finished(root, 0, FOLDER, "tests") is None
    for option in ("keyword", "markexpr", "quick", "deselect", "lf"):
        assert finished(root, **{option: "a"}) is None, option
    assert finished(root, change=f"{FOLDER}/new.py") is None


@each("name", ["kernels/a.py", "kernels/inner/b.cu", "kernels/inner/c.h", "kernels/new.cuh", "setup.py",
               "tests/kernels/a.py", "tests/fake_cupy/a.py", "distgnn/local/inner/new.py",
               "benchmarks/ptxas.py"])  # fmt: skip
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
