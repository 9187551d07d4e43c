"""The kernel sources are found in a working tree, and are part of what is built for installation; so are the
machines that ship.
"""

from __future__ import annotations

import json
import os
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


PROGRAM = """
import json, distgnn as dg
from distgnn.local.cuda.launch import kernels_folder
from distgnn.plan.machine import known
from distgnn.report.page import render
assert "<h1>hello</h1>" in render("hello", [])
graph = dg.gallery.sbm(60, communities=3, features=4)
model = dg.fit(graph.A, graph.features, graph.labels, epochs=2)
print(json.dumps([dg.__file__, str(kernels_folder()), *known()]))
"""


@pytest.mark.programs
def test_a_wheel_of_an_sdist_works_without_a_compiler_and_has_all_files(tmp_path: Path) -> None:
    tree, site = tmp_path / "tree", tmp_path / "site"
    unwanted = (".git", ".venv*", "build", "dist", "*.so", "*.egg-info", "__pycache__", ".*_cache", "results")
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*unwanted))
    environ = os.environ | {"CC": "/nonexistent/cc", "PYTHONPATH": ""}

    def run(*words: str | Path, cwd: Path = tmp_path, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([sys.executable, *words], cwd=cwd, env=environ | env, capture_output=True,
                              text=True, timeout=100, check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    run("-c", f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})", cwd=tree)
    (sdist,) = tmp_path.glob("*.tar.gz")
    run("-m", "pip", "install", "--no-deps", "--no-index", "--no-build-isolation", "--target", site, sdist)
    done = run("-c", PROGRAM, PYTHONPATH=str(site))
    package, kernels, *machines = map(Path, json.loads(done.stdout))
    assert package.parent == site / "distgnn" and kernels == site / "distgnn/kernels"
    assert done.stderr.count("no compiled host kernels") == 1 and "use SciPy" in done.stderr
    assert contents(kernels) == contents(ROOT / "kernels")
    shutil.rmtree(kernels)
    for kind in ("py.typed", "*.py", "*.pyi", "*.toml", "*.html"):
        there, own = (
            {path.relative_to(base) for path in (base / "distgnn").rglob(kind)} for base in (site, ROOT)
        )
        assert there == own != set(), kind
    assert machines == sorted(Path(path.stem) for path in (ROOT / "distgnn/plan/machines").glob("*.toml"))


def test_pythons_that_are_named_are_those_that_are_run() -> None:
    """Classifiers, the matrix of a fork and wheels; a Python that none of our runs had is in none of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["project"]["classifiers"]))
    matrix = (ROOT / ".github/workflows/ci.yml").read_text().split("python: [")[1].split("]")[0]
    assert re.findall(r"[\d.]+", matrix) == named != []
    wheels = project["tool"]["cibuildwheel"]["build"].split()
    assert wheels == [f"cp{version.replace('.', '')}-*" for version in named]
    assert project["project"]["requires-python"] == f">={named[0]}"


def test_the_conda_recipe_has_the_version_and_what_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / "packaging/conda/meta.yaml").read_text()
    assert re.search(r'set version = "(.*)"', recipe)[1] == distgnn.__version__  # type: ignore[index]
    run = recipe.split("  run:\n")[1].split("\ntest:")[0]
    found = {line.split("#")[0].replace(" ", "").lstrip("-") for line in run.splitlines() if line.strip()}
    needed = {word.split(";")[0].replace(" ", "") for word in project["dependencies"]}
    assert found == needed | {"python" + project["requires-python"], "mpich"}
