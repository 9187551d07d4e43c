"""The pages of ``docs/``: commands run as written, explained errors exist, pictures are of runs."""

from __future__ import annotations

import dataclasses
import importlib
import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import documents
from distgnn import cli
from distgnn.train import Settings
from mpi_helpers import mpiexec

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [path for path in sorted(DOCS.glob("*.md")) if documents.read(path).steps]


@pytest.mark.timeout(300)
@pytest.mark.programs
@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_commands_run_and_print_as_written(path: Path, tmp_path: Path) -> None:
    page = documents.read(path)
    if "import torch" in path.read_text() and find_spec("torch") is None:
        pytest.skip("the programs of this page need PyTorch")
    output = documents.run(page, tmp_path)
    assert documents.missing(page, output) == [], output


def test_a_line_that_is_not_printed_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("```text\nloss 1.5 after 3\nloss\n```\n")
    assert documents.missing(documents.read(tmp_path / "page.md"), "loss  0.25 after 10\n") == ["loss"]


def test_python_files_of_a_page_are_run() -> None:
    for path in PAGES:
        page = documents.read(path)
        ran = {step.words[1] for step in page.steps if step.words[0] == "python"}
        elsewhere = {"gathered.py", "distances.py"}  # tests/operators/test_moves.py
        assert set(page.files) - elsewhere == ran, path


def in_python(text: str) -> str:
    """Return a text in the library's words: ``--force`` is ``force=True``, ``--format NAME`` is
    ``format=NAME``.
    """
    return re.sub(r"--(\w+)(?: ([A-Z]{2,})\b)?", lambda found: f"{found[1]}={found[2] or True}", text)


def test_errors_that_are_explained_exist() -> None:
    page = (DOCS / "troubleshooting.md").read_text()
    quoted = [in_python(text) for text in re.findall(r"^### `(.+)`$", page, re.MULTILINE)]
    assert len(quoted) > 20
    code = "\n".join(path.read_text() for path in (ROOT / "distgnn").rglob("*.py"))
    code = re.sub(r'"\s+f?"', "", code)  # texts that go on in the next line
    pieces = {piece.strip(" :;,") for line in quoted for piece in line.split("…")}
    assert [piece for piece in sorted(pieces) if piece and piece not in code] == []


def test_flags_that_pages_name_exist() -> None:
    found = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
    pages = [ROOT / "README.md", *DOCS.glob("*.md")]
    named = {flag for path in pages for flag in found.findall(path.read_text())}
    sources = [*(ROOT / "distgnn/cli").glob("*.py"), *(ROOT / "jobs").iterdir()]
    known = {flag for path in sources if path.is_file() for flag in found.findall(path.read_text())}
    parsers = map(cli.command_parser, cli.COMMANDS)
    known |= {flag for parser in parsers for action in parser._actions for flag in action.option_strings}
    known |= {flag.replace("--", "--no-") for flag in known}
    # srun, mpi4py, Open MPI, Docker
    of_others = {"--distribution", "--gpu-bind", "--mpi-lib-version", "--parsable", "--shm-size"}
    assert named - known == of_others


@pytest.mark.programs
@pytest.mark.slow
def test_pictures_are_drawn_from_runs(tmp_path: Path) -> None:
    done = mpiexec(4, DOCS / "pictures.py", tmp_path)
    assert done.code == 0, done.err
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text() for path in (DOCS / "pictures").glob("*.svg")}


def test_pages_are_in_the_table_of_contents() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    assert all(path.name in config for path in DOCS.glob("*.md"))


def test_examples_of_docstrings_are_sections() -> None:
    """Elsewhere Markdown takes ``>>>`` for quotations of quotations."""
    texts = [path.read_text() for path in (ROOT / "distgnn").rglob("*.py")]
    paragraphs = [part for text in texts for part in re.split(r"\n\s*\n", text) if "    >>> " in part]
    assert len(paragraphs) >= 9
    assert [part for part in paragraphs if not re.match(r" *Examples:\n *>>> ", part)] == []


def test_names_of_the_library_lead_to_the_api_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    linked = importlib.import_module("hooks").on_page_content
    to = '<autoref identifier="distgnn.{}" optional><code>{}</code></autoref>'
    page = "<td><code>dg.scatter(H, layout)</code> <code>distgnn.plan.settle</code></td>"
    scatter, settle = (
        ("operators.sparse_features.scatter", "dg.scatter(H, layout)"),
        ("plan.settle.settle", "distgnn.plan.settle"),
    )
    assert linked(page) == f"<td>{to.format(*scatter)} {to.format(*settle)}</td>"
    role = '<h4 id="distgnn.ledger.Ledger.traffic"></h4>:meth:<code>~distgnn.ledger.Ledger.traffic</code>'
    assert linked(role).endswith(to.format("ledger.Ledger.traffic", "traffic"))
    two = '<h4 id="distgnn.a.A.step"></h4><h4 id="distgnn.b.B.step"></h4>'
    assert linked(f"{two}:meth:<code>step</code>") == f"{two}<code>step</code>", "either may be meant"
    for nothing in (
        "<code>dg.unheard</code>",
        "<code>np.scatter</code>",
        "<pre><code><span>dg</span></code></pre>",
    ):
        assert linked(nothing) == nothing
    assert linked(":func:<code>unheard</code>") == "<code>unheard</code>"


def test_api_pages_name_what_exists() -> None:
    for name in re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), re.MULTILINE):
        if name in sys.modules:
            continue
        module, _, member = name.rpartition(".")
        assert hasattr(importlib.import_module(module), member), name


def test_the_page_of_commands_has_every_flag_of_train() -> None:
    """The documentation puts the tables in; their numbers are those of the fields."""
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    page = hooks["on_page_markdown"]((DOCS / "commands.md").read_text())
    lines = [line.split(" | ") for line in page.splitlines() if line.startswith("| `--")]
    rows = {row[0].split("`")[1]: row for row in lines if len(row) == 4}
    for field in dataclasses.fields(Settings):
        if field.name != "quiet":
            assert field.metadata["help"] in rows[f"--{field.name.replace('_', '-')}"][3]
    assert rows["--momentum"][1:3] == ["a number", "`0`"] and rows["--dropout"][1] == "a number"
    assert rows["--warmup"][1:3] == ["a whole number, at least 0", "`0`"] and "`f1`" in rows["--metric"][1]
