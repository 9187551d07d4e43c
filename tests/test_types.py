"""Types that reach users: stubs equal to their modules, keyword arguments equal to the code, and what mypy
says of programs outside of the clone.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import documents
import keywords

ROOT = Path(__file__).resolve().parents[1]
STUBS = sorted(path for path in (ROOT / "distgnn").rglob("__init__.pyi"))


@pytest.mark.parametrize("stub", STUBS, ids=lambda path: str(path.parent.name))
def test_a_stub_names_what_its_package_has(stub: Path) -> None:
    """The package takes its names from the stub; each must be there, and be what the stub's module has."""
    package = importlib.import_module(".".join(stub.parent.relative_to(ROOT).parts))
    lines = [line.split() for line in stub.read_text().splitlines() if line.startswith("from .")]
    for _, home, _, name, _, known in lines:
        module = importlib.import_module((package.__name__ + home).removesuffix("."))
        assert name == known and getattr(package, name) is getattr(module, name)
    assert {line[3] for line in lines} == set(package.__all__) - {"__version__"} and lines


def test_keyword_arguments_are_those_of_the_code() -> None:
    for room, table in keywords.tables().items():
        written = (ROOT / "distgnn" / room / "keywords.py").read_text()
        assert written == keywords.text(*table), "python tests/keywords.py writes it anew"


WRONG = """
import distgnn as dg

dg.fitt(3)
reveal_type(dg.fit(None, hiden=3))
dg.train.Settings(hidden=64, loss="mes")
dg.gallery.sbm(20, comunities=2)
dg.prepare("edges.csv", out="graph.dg", ordr="natural")
dg.store.lood
"""
SAID = [
    '4: error: Module has no attribute "fitt"; maybe "fit"?  [attr-defined]',
    '5: error: Unexpected keyword argument "hiden" for "fit"; did you mean "hidden"?  [call-arg]',
    '5: note: Revealed type is "distgnn.train.model.Model"',
    '6: error: Argument "loss" to "Settings" has incompatible type "Literal[\'mes\']"; expected '
    "\"Literal['softmax', 'binary', 'mse'] | None\"  [arg-type]",
    '7: error: Unexpected keyword argument "comunities" for "sbm"; did you mean "communities"?  [call-arg]',
    '8: error: Unexpected keyword argument "ordr" for "prepare"; did you mean "order"?  [call-arg]',
    '9: error: Module has no attribute "lood"  [attr-defined]',
]


@pytest.mark.programs
def test_mypy_outside_of_the_clone_reads_the_readme_and_finds_mistakes(tmp_path: Path) -> None:
    (tmp_path / "five.py").write_text(documents.read(ROOT / "README.md").files["five.py"])
    (tmp_path / "wrong.py").write_text(WRONG)
    cache = ROOT / ".mypy_cache" / "outside"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", cache, "five.py", "wrong.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if "defined in" not in line]
    assert said[:-1] == [f"wrong.py:{line}" for line in SAID]
    assert said[-1] == "Found 6 errors in 1 file (checked 2 source files)"
