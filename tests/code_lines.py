"""Lines of code by room beside their budget, ``[tool.distgnn.lines]`` in ``pyproject.toml``.

A line counts if it holds a word of code: blank lines, comments and docstrings do not. A room is a folder of
``distgnn/``, or `kernels`, `jobs`, `tests` or `benchmarks`; `ground` has the modules of ``distgnn/`` itself.
`make lint-lines` prints a table, and exits with 1 if a room has more lines than its budget, or no budget.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOMS = "distgnn", "kernels", "jobs", "tests", "benchmarks"
PYTHON, C, SHELL = (".py", ".pyi", ".pyx"), (".c", ".cpp", ".cu", ".cuh", ".h"), (".sh", ".sbatch")
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
          tokenize.ENCODING, tokenize.ENDMARKER}  # fmt: skip
STATEMENT_ENDS = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}


def of_python(text: str) -> int:
    """Count the lines of code of a Python or Cython file; a text that stands alone is a docstring."""
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline)
              if token.type not in (tokenize.NL, tokenize.COMMENT)]  # fmt: skip
    lines, before = set[int](), tokenize.ENCODING
    for token, following in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        alone = token.type == tokenize.STRING and before in STATEMENT_ENDS
        if token.type not in SILENT and not (alone and following.type == tokenize.NEWLINE):
            lines |= set(range(token.start[0], token.end[0] + 1))
        before = token.type
    return len(lines)


def of_c(text: str) -> int:
    """Count the lines of code of a C or CUDA file. A comment in quotes is none."""
    pattern = r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/'
    bare = re.sub(pattern, lambda found: found[0] if found[0][0] == '"' else re.sub(r"[^\n]", "", found[0]),
                  text, flags=re.DOTALL)  # fmt: skip
    return sum(bool(line.strip()) for line in bare.splitlines())


def of_shell(text: str) -> int:
    """Count the lines of a script that are neither blank nor comments; directives of Slurm are lines."""
    lines = (line.strip() for line in text.splitlines())
    return sum(bool(line) and (line[0] != "#" or line.startswith("#SBATCH")) for line in lines)


COUNT = {
    suffix: count for kinds, count in ((PYTHON, of_python), (C, of_c), (SHELL, of_shell)) for suffix in kinds
}


def by_room(root: Path) -> dict[str, int]:
    """Count the lines of code of each room of the repository, in the order of their names."""
    lines: Counter[str] = Counter()
    for path in (path for room in ROOMS for path in (root / room).rglob("*") if path.suffix in COUNT):
        top, *inner = path.relative_to(root).parts
        room = top if top != "distgnn" else f"distgnn/{inner[0]}" if len(inner) > 1 else "ground"
        lines[room] += COUNT[path.suffix](path.read_text())
    return dict(sorted(lines.items()))


def over(lines: Mapping[str, int], budget: Mapping[str, int]) -> list[str]:
    """Name the rooms with more lines than they may have, in a sentence each."""
    return [f"{room} has {have} lines of code, and may have {budget.get(room, 0)}: take some out, or raise "
            "its number in pyproject.toml, with the reason in the commit"
            for room, have in lines.items() if have > budget.get(room, 0)]  # fmt: skip


def main() -> int:
    root = Path(__file__).resolve().parents[1]
    budget = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["distgnn"]["lines"]
    lines = by_room(root)
    print(f"{'room':<20}{'code lines':>12}{'budget':>10}")
    for room, have in (*lines.items(), ("all", sum(lines.values()))):
        print(f"{room:<20}{have:>12}{budget.get(room, sum(budget.values()) if room == 'all' else 0):>10}")
    refused = over(lines, budget)
    print(*refused, sep="\n", end="\n" if refused else "", file=sys.stderr)
    return bool(refused)


if __name__ == "__main__":
    sys.exit(main())
