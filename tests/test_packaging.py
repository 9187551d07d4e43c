"""The kernel sources are found in a working tree, and are part of what is built for installation; so are the
machines that ship.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import distgnn
from distgnn.local.cuda.launch import kernels_folder

ROOT = Path(__file__).resolve().parents[1]


def contents(folder: Path) -> dict[str, bytes]:
    skipped = {"__pycache__"}
    files = (path for path in folder.rglob("*") if path.is_file() and not skipped & set(path.parts))
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in files if path.suffix not in (".o", ".so")
    }


def test_kernels_are_found() -> None:
    assert "README.md" in contents(kernels_folder())


@pytest.mark.slow
def test_a_build_contains_kernels_machines_and_templates_and_finds_them(tmp_path: Path) -> None:
    tree, built = tmp_path / "tree", tmp_path / "built"
    for name in ("distgnn", "kernels"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, tree)
    build = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(built)]
    subprocess.run(build, cwd=tree, check=True, capture_output=True, timeout=120)
    program = (
        "from distgnn.local.cuda.launch import kernels_folder; from distgnn.plan.machine import known; "
        "from distgnn.report.page import render; assert '<h1>hello</h1>' in render('hello', []); "
        "print(kernels_folder(), *known(), sep='\\n')"
    )
    found, *machines = subprocess.run(
        [sys.executable, "-c", program], cwd=built, check=True, capture_output=True, text=True
    ).stdout.split("\n")[:-1]
    assert Path(found) == built / "distgnn" / "kernels"
    assert contents(Path(found)) == contents(ROOT / "kernels")
    assert (built / "distgnn" / "py.typed").exists()  # type checkers look for it
    assert machines == sorted(path.stem for path in (ROOT / "distgnn/plan/machines").glob("*.toml")) != []


def test_the_conda_recipe_has_the_version_and_what_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / "packaging/conda/meta.yaml").read_text()
    assert re.search(r'set version = "(.*)"', recipe)[1] == distgnn.__version__  # type: ignore[index]
    run = recipe.split("  run:\n")[1].split("\ntest:")[0]
    found = {line.split("#")[0].replace(" ", "").lstrip("-") for line in run.splitlines() if line.strip()}
    needed = {word.split(";")[0].replace(" ", "") for word in project["dependencies"]}
    assert found == needed | {"python" + project["requires-python"], "mpich"}
