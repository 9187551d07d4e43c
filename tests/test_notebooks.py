"""Notebooks run in Jupyter from top to bottom and print what is saved in them; what they claim is true."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mpi_helpers import clean_environment

pytestmark = pytest.mark.programs

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
nbformat = pytest.importorskip("nbformat", reason="needs the extra notebook")


def printed(notebook: Any) -> list[str]:
    """Return the printed output and the results of a notebook's cells."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.text if "text" in output else output.data["text/plain"] for output in outputs]


@pytest.mark.timeout(300)
@pytest.mark.slow  # starts a kernel
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_prints_what_is_saved(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    pytest.importorskip("ipykernel", reason="needs the extra notebook")
    from run import executed

    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", clean_environment()["PYTHONPATH"])
    saved = printed(nbformat.read(path, as_version=4))
    assert printed(executed(path, tmp_path)) == saved


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_small_outputs_a_plot_and_true_claims(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert path.stat().st_size < 100_000
    pictures = [out for cell in notebook.cells for out in cell.get("outputs", []) if "image/png" in str(out)]
    claims = [text for text in printed(notebook) if text in ("True", "False", "np.True_", "np.False_")]
    expected = ["True", "np.True_", "False", "True"] if path.stem == "operators" else ["True"] * len(claims)
    assert pictures and claims and claims == expected


def test_there_are_five_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "communication", "operators", "partitions", "planning", "sampling",
    ]  # fmt: skip
