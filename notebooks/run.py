"""Runs of the notebooks, saved with their outputs: python notebooks/run.py [NAME...]."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent


def executed(path: Path, folder: Path) -> Any:
    """Run a notebook in a folder; return it with the outputs."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=240, coalesce_streams=True, resources=resources).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.clear()  # when it ran
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return notebook


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            nbformat.write(executed(path, FOLDER), path)
            print(path.name, f"{path.stat().st_size / 1024:.0f} KiB")
