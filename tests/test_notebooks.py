"""Notebooks run top to bottom, and what their cells claim is true."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mpi_helpers import clean_environment

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def as_program(notebook: Path) -> str:
    """The code cells as one program; where a cell ends in an expression that compares, it must be true."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    return RUN_CELLS.format(sources=["".join(cell["source"]) for cell in cells])


RUN_CELLS = """
import ast, numpy
namespace = {{"__name__": "__main__"}}
for number, source in enumerate({sources!r}):
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f"cell {{number}}", "exec"), namespace)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), f"cell {{number}}", "eval"), namespace)
        if isinstance(value, (bool, numpy.bool_)):
            print(f"cell {{number}}: {{bool(value)}}", flush=True)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.slow
def test_notebook_runs(notebook, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", as_program(notebook)],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    claims = [line for line in done.stdout.splitlines() if line.startswith("cell ")]
    expected = {"operators": ["cell 1: True", "cell 2: True", "cell 4: False", "cell 6: True"]}
    assert claims == expected[notebook.stem], done.stdout


def test_there_are_notebooks():
    assert NOTEBOOKS
