"""Lines of code are counted as a reader would, and a room beyond its budget is refused."""

from __future__ import annotations

from pathlib import Path

import code_lines

PYTHON = '''"""A module.

With three lines."""

# a comment
import os  # counts


class A:
    """A class."""
    x = """two
    lines"""
    def f(self,
          y): "a docstring"

    def g(self):
        r"""Another."""
        return ("a text "
                # a comment inside
                "in two lines")
'''
C = """/* a comment
   of two lines */
#include "a//b.h"
int f(void) { // counts
    return 1; /* counts */
}

"""


def test_blank_lines_comments_and_docstrings_do_not_count() -> None:
    assert code_lines.of_python(PYTHON) == len(
        ["import", "class", "x =", "lines", "def f", "y):", "def g", "return", "in two"]
    )
    assert code_lines.of_c(C) == len(["#include", "int f", "return", "}"])
    assert code_lines.of_shell("#!/bin/sh\n#SBATCH -N 1\n\n# why\necho a # b\n") == 2


def test_rooms_are_the_folders_of_the_package_and_those_beside_it(tmp_path: Path) -> None:
    for name, text in {"distgnn/a.py": "x = 1\n", "distgnn/comm/b/c.py": "x = 1\ny = 2\n", "kernels/k.cu": C,
                       "tests/t.json": "1\n", "docs/d.py": "x = 1\n"}.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert code_lines.by_room(tmp_path) == {"distgnn/comm": 2, "ground": 1, "kernels": 4}


def test_a_room_beyond_its_budget_or_without_one_is_refused(tmp_path, monkeypatch, capsys) -> None:
    assert code_lines.over({"a": 3, "b": 2}, {"a": 3, "b": 2}) == []
    over, without = code_lines.over({"a": 3, "b": 2, "c": 1}, {"a": 2, "b": 2})
    assert "a has 3 lines of code, and may have 2" in over and "c has 1" in without
    (tmp_path / "tests").mkdir()
    monkeypatch.setattr(code_lines, "__file__", str(tmp_path / "tests" / "code_lines.py"))
    (tmp_path / "tests" / "t.py").write_text("x = 1\ny = 2\n")
    for budget, code in ((2, 0), (1, 1)):
        (tmp_path / "pyproject.toml").write_text(f"[tool.distgnn.lines]\ntests = {budget}\n")
        assert code_lines.main() == code
        said = capsys.readouterr()
        assert ("tests has 2 lines" in said.err) == bool(code) and "all" in said.out
