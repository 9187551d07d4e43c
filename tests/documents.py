"""Markdown pages whose commands are run: what a reader types, in the order of the page.

Blocks of ``sh`` are commands. A ``python`` block that begins with ``# NAME.py`` is that file, which a later
command runs. A ``text`` block is what was printed up to there: each of its lines must have been, but for its
numbers. Other blocks are only shown.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from mpi_helpers import mpiexec

PROGRAM = """\
import runpy, sys
from distgnn import cli
for words in {steps}:
    if words[0] == "python":
        sys.argv = words[1:]
        runpy.run_path(words[1], run_name="__main__")
    else:
        code = cli.main(words[1:])
        assert code == 0, (code, words)
"""


class Step(NamedTuple):
    """A command on so many ranks."""

    ranks: int
    words: tuple[str, ...]


class Page(NamedTuple):
    """The steps, the files by name, and the lines that are printed."""

    steps: list[Step]
    files: dict[str, str]
    printed: list[str]


def read(path: Path) -> Page:
    """Read the commands and programs that a page gives its reader."""
    page = Page([], {}, [])
    for language, body in re.findall(r"^```(\w+)\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE):
        if language == "sh":
            page.steps.extend(commands(body))
        elif language == "text":
            page.printed.extend(line for line in body.splitlines() if line.strip(" .…"))
        elif language == "python" and (name := re.match(r"# (\w+\.py)\b", body)):
            page.files[name[1]] = body
    return page


def commands(block: str) -> Iterator[Step]:
    """Yield the commands of a block, which start Python or distgnn, alone or under mpiexec."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        ranks = 1
        if words[:2] == ["mpiexec", "-n"]:
            ranks, words = int(words[2]), words[3:]
        if words:
            assert words[0] in ("distgnn", "python"), line
            yield Step(ranks, tuple(words))


def run(page: Page, folder: Path) -> str:
    """Run all steps in a folder, consecutive ones on equal numbers of ranks in one launch. Their output."""
    for name, text in page.files.items():
        (folder / name).write_text(text)
    output = ""
    for ranks, steps in groupby(page.steps, key=lambda step: step.ranks):
        (folder / ".steps.py").write_text(PROGRAM.format(steps=[list(step.words) for step in steps]))
        done = mpiexec(ranks, ".steps.py", cwd=folder, timeout=240)
        assert done.code == 0, done.out + done.err
        output += done.out
    return output


def normal(line: str) -> str:
    """Return a line without its numbers and the width of its columns."""
    return " ".join(re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", line).split())


def missing(page: Page, output: str) -> list[str]:
    """List the lines of the page that were not printed."""
    printed = {normal(line) for line in output.splitlines()}
    return [line for line in page.printed if normal(line) not in printed]
