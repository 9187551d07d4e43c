"""Commands and figures of the README: a new user's commands work as written, and the figures stand in the
results.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import documents

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


@pytest.mark.timeout(300)
@pytest.mark.programs
@pytest.mark.slow
def test_commands_run_and_print_as_written(tmp_path: Path) -> None:
    page = documents.read(README)
    assert len(page.steps) > 5
    output = documents.run(page, tmp_path)
    assert documents.missing(page, output) == [], output


def test_own_graph_takes_six_commands_at_most() -> None:
    own = README.read_text().split("## Your own graph")[1].split("\n## ")[0]
    block = re.search(r"^```sh\n(.*?)^```", own, re.DOTALL | re.MULTILINE)
    assert block and 3 < len(list(documents.commands(block[1]))) <= 6


def test_figures_stand_in_the_results() -> None:
    text = README.read_text().split("## What was measured")[1].split("\n## ")[0]
    rows = re.findall(r"^\| .* \| (.*) \(\[.*\]\((benchmarks/results/.*)\)\) \|$", text, re.MULTILINE)
    assert len(rows) > 6
    for claim, file in rows:
        figures = re.findall(r"\d+\.\d+|\d{2,}", claim)
        measured = (ROOT / file).read_text()
        assert figures and [f for f in figures if not re.search(rf"(?<!\d){f}(?!\d)", measured)] == [], claim


def test_files_that_the_readme_points_to_exist() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", README.read_text())
    assert targets and all((ROOT / target).exists() for target in targets)
